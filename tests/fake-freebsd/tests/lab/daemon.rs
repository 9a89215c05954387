//! The daemon as a test has it: a process, and what is asked of it over its socket.

use super::wire::{self, Wire};
use super::{tail, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

/// A running daemon; killed when dropped, so that a failing test leaves nothing behind.
pub struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    pub fn new(child: Child, socket: PathBuf) -> Daemon {
        Daemon { child, socket }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Wait until it answers. An error tells that it ended instead. A connection alone proves nothing: a tool that was
    /// just being started when the daemon before was killed still has that one's socket for a moment.
    pub fn wait_ready(&mut self) -> Result<(), String> {
        let ready = wait_for(|| {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(Err(format!("hostd ended at its start: {status}")));
            }
            let mut wire = Wire::connect(&self.socket).ok()?;
            wire.call("host-status", json!({})).ok().map(|_| Ok(()))
        });
        ready.unwrap_or_else(|| Err("hostd did not answer in time".into()))
    }

    /// One call that succeeds.
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|refused| panic!("{method}: {refused:?}"))
    }

    /// One call that is answered.
    pub fn try_call(&self, method: &str, params: Value) -> Result<Value, wire::Refused> {
        let mut wire = Wire::connect(&self.socket).unwrap();
        match wire.call(method, params) {
            Ok(result) => Ok(result),
            Err(wire::CallError::Refused(refused)) => Err(refused),
            Err(wire::CallError::Gone(error)) => {
                let log = self.socket.with_file_name("hostd.log");
                // One that has ended is still to be waited for, and /proc tells by which signal.
                let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
                panic!("{method} was not answered: {error}\n{}\nits end: {stat}", tail(&log));
            }
        }
    }

    /// Make a clone; answers it.
    pub fn create(&self, request: &str) -> Value {
        self.try_create(json!({"request_id": request}))
            .unwrap_or_else(|refused| panic!("create {request}: {refused:?}"))
    }

    /// The same with parameters of one's own.
    pub fn try_create(&self, params: Value) -> Result<Value, wire::Refused> {
        self.try_call("browser-clone-create", params).map(|mut result| result["clone"].take())
    }

    /// Destroy a clone.
    pub fn destroy(&self, clone: &Value) -> Result<Value, wire::Refused> {
        self.try_call("browser-clone-destroy", json!({"name": clone["name"], "clone_id": clone["clone_id"]}))
    }

    /// The clones of which hostd knows, foreign things aside.
    pub fn clones(&self) -> Vec<Value> {
        let mut listed = self.call("browser-clone-list", json!({}));
        let mut clones = std::mem::take(listed["clones"].as_array_mut().unwrap());
        clones.retain(|clone| clone["state"] != "foreign");
        clones
    }

    /// The state of a clone; nothing if it is not listed.
    pub fn state(&self, name: &Value) -> String {
        let clones = self.clones();
        let found = clones.iter().find(|clone| clone["name"] == *name);
        found.and_then(|clone| clone["state"].as_str()).unwrap_or_default().to_owned()
    }

    /// SIGKILL, and wait for its end.
    pub fn kill9(mut self) {
        self.kill();
    }

    /// SIGTERM, and wait for its end.
    pub fn stop(mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        wait_for(|| self.child.try_wait().unwrap()).expect("hostd ends when asked to")
    }

    fn kill(&mut self) {
        // Both fail only when it has already ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}
