//! The audit log: one JSON line before and one after every call that changes the host.
//!
//! The line before is on disk before the first effect; a call whose line cannot be written is
//! refused. Nothing in a request is secret by design, so requests are logged whole.

use crate::api::Method;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Who asked: a peer on the socket, or hostd itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// A caller, by the kernel's word.
    Peer {
        /// User id.
        uid: u32,
        /// Process id, where known.
        pid: Option<i32>,
    },
    /// A part of the daemon, such as the deadline timer.
    Hostd(&'static str),
}

#[derive(Serialize)]
struct Line<'a, T> {
    time: String,
    call: u64,
    phase: &'static str,
    actor: &'a Actor,
    method: Method,
    #[serde(flatten)]
    detail: T,
}

#[derive(Serialize)]
struct Before<'a> {
    request: &'a serde_json::Value,
}

/// How a call ended, for its second line.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// `ok` or the error's code.
    pub result: String,
    /// The clone it was about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The error's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long the call took.
    pub seconds: f64,
}

/// The open log.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    file: Mutex<Arc<File>>,
    calls: AtomicU64,
}

impl Audit {
    /// Open or make the log, readable by its owner only.
    pub fn open(path: &Path) -> io::Result<Audit> {
        Ok(Audit { path: path.to_owned(), file: Mutex::new(Arc::new(open(path)?)), calls: AtomicU64::new(0) })
    }

    /// Open the path anew, after the log was rotated.
    pub fn reopen(&self) -> io::Result<()> {
        let file = Arc::new(open(&self.path)?);
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }

    /// The line before the first effect. Its number goes into the line after.
    pub fn before(&self, actor: &Actor, method: Method, request: &serde_json::Value) -> io::Result<u64> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.write("before", call, actor, method, Before { request })?.sync_data()?;
        Ok(call)
    }

    /// The line after the call. It is written but not synced: a loss of power may take it, as it may take the end of the
    /// call itself, and the line before says that there was one.
    pub fn after(&self, call: u64, actor: &Actor, method: Method, outcome: &Outcome) -> io::Result<()> {
        self.write("after", call, actor, method, outcome).map(drop)
    }

    fn write<T: Serialize>(
        &self,
        phase: &'static str,
        call: u64,
        actor: &Actor,
        method: Method,
        detail: T,
    ) -> io::Result<Arc<File>> {
        let time = humantime::format_rfc3339_micros(std::time::SystemTime::now()).to_string();
        let mut line = serde_json::to_vec(&Line { time, call, phase, actor, method, detail })?;
        line.push(b'\n');
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // One write for the whole line: O_APPEND keeps lines of several writers apart. Nobody waits for another's sync.
        (&*file).write_all(&line)?;
        Ok(file)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json_and_survive_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::open(&path).unwrap();
        let actor = Actor::Peer { uid: 7, pid: Some(9) };
        let call = audit.before(&actor, Method::Create, &serde_json::json!({"request_id": "a"})).unwrap();
        std::fs::rename(&path, dir.path().join("audit.log.0")).unwrap();
        audit.reopen().unwrap();
        let outcome = Outcome { result: "ok".into(), name: Some("bt001".into()), error: None, seconds: 0.5 };
        audit.after(call, &actor, Method::Create, &outcome).unwrap();

        let old = std::fs::read_to_string(dir.path().join("audit.log.0")).unwrap();
        let new = std::fs::read_to_string(&path).unwrap();
        let old: serde_json::Value = serde_json::from_str(&old).unwrap();
        let new: serde_json::Value = serde_json::from_str(&new).unwrap();
        assert_eq!(
            (&old["phase"], &old["call"], &old["request"]["request_id"]),
            (&"before".into(), &1.into(), &"a".into())
        );
        assert_eq!((&new["phase"], &new["call"], &new["result"]), (&"after".into(), &1.into(), &"ok".into()));
        assert_eq!(old["actor"]["peer"]["uid"], 7);
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let audit = Audit::open(Path::new("/dev/full")).unwrap();
        assert!(audit.before(&Actor::Hostd("test"), Method::Reap, &serde_json::Value::Null).is_err());
    }
}
