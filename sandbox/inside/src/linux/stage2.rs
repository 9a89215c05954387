//! Stage 2: inside the sandbox, the last code that runs before the program.
//!
//! It first verifies what bubblewrap set up, then drops privileges step by step. The system call
//! filter comes last because the earlier steps need system calls that it refuses.

use super::{
    Failure, bounds, capabilities, channel, descriptors, landlock, seccomp, sys, user_namespace, verify,
};
use crate::layer::Layer;
use crate::protocol::{Executable, FIRST_DESCRIPTOR, GO, Instructions, Record, Target};
use std::ffi::CString;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

/// Runs stage 2; `number` is the descriptor of the instructions. Returns only if the program could
/// not be started.
pub fn run(number: &str) -> ExitCode {
    let Ok(instructions) = read_instructions(number) else {
        return ExitCode::from(72);
    };
    let Ok(status) = sys::own(instructions.status_fd) else {
        return ExitCode::from(72);
    };
    if let Err(failure) = confine_and_execute(&instructions, &status) {
        let record = Record::Failed { layer: failure.layer, message: failure.message };
        // Sending fails only if the launcher has ended.
        let _ = channel::send_record(&status, &record, &[]);
    }
    ExitCode::from(73)
}

fn read_instructions(number: &str) -> std::io::Result<Instructions> {
    let number = number.parse().map_err(std::io::Error::other)?;
    let mut text = Vec::new();
    std::fs::File::from(sys::own(number)?).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn confine_and_execute(orders: &Instructions, status: &OwnedFd) -> Result<(), Failure> {
    sys::set_close_on_exec(status.as_raw_fd(), true).map_err(|e| Failure::of(Layer::Descriptors, e))?;
    let mut missing = Vec::new();

    verify::sandbox(&orders.verify)?;
    let bounds = orders.bounds.as_ref();
    // Needs a capability in bubblewrap's user namespace, which the next step gives up.
    missing.extend(bounds::apply(bounds, bounds::limit_inodes)?);
    user_namespace::enter(orders.verify.uid, orders.verify.gid)?;
    missing.extend(bounds::apply(bounds, bounds::limit_namespaces)?);
    let listener = orders.listen.map(listen).transpose()?;
    descriptors::move_and_close(&orders.descriptors, &keep(orders, status, listener.as_ref()))?;
    // After the descriptors have their final numbers, which may be below the limit of open files.
    missing.extend(bounds::apply(bounds, bounds::limit_process)?);
    let target = PreparedTarget::new(&orders.target)?;
    if orders.drop_capabilities {
        capabilities::drop_all()?;
    }
    if let Some(rules) = &orders.landlock {
        missing.extend(landlock::restrict(rules)?.map(|why| (Layer::Landlock, why)));
    }
    if let Some(filters) = &orders.seccomp {
        missing.extend(seccomp::install(filters)?.map(|why| (Layer::Seccomp, why)));
    }

    let sockets: Vec<i32> = listener.iter().map(AsRawFd::as_raw_fd).collect();
    channel::send_record(status, &Record::Ready { missing }, &sockets)
        .map_err(|e| Failure::other(format!("report to the launcher: {e}")))?;
    drop(listener);
    match channel::receive(status.as_fd()) {
        Ok(message) if message.bytes == [GO] => Err(target.execute()),
        Ok(_) => Err(Failure::other("the launcher ended before it sent GO")),
        Err(e) => Err(Failure::other(format!("wait for the launcher: {e}"))),
    }
}

/// The descriptors that stage 2 itself still needs.
fn keep(orders: &Instructions, status: &OwnedFd, listener: Option<&OwnedFd>) -> Vec<i32> {
    let mut keep = vec![status.as_raw_fd()];
    keep.extend(listener.map(AsRawFd::as_raw_fd));
    if let Executable::Descriptor(number) = orders.target.program {
        keep.push(number);
    }
    keep
}

/// Opens the socket on which the launcher accepts connections from inside. A socket stays in the
/// network namespace in which it was created, so the launcher can use it from outside without a relay.
fn listen(port: u16) -> Result<OwnedFd, Failure> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        // F_DUPFD moves it above the numbers that the program's own descriptors get.
        .and_then(|listener| sys::copy_above(listener.as_fd(), FIRST_DESCRIPTOR))
        .map_err(|e| Failure::of(Layer::Network, format!("listen on 127.0.0.1:{port}: {e}")))
}

/// The program, ready for `execve` without further allocation or file access.
struct PreparedTarget {
    program: Executable,
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl PreparedTarget {
    fn new(target: &Target) -> Result<Self, Failure> {
        std::env::set_current_dir(&target.working_folder)
            .map_err(|e| Failure::other(format!("folder {}: {e}", target.working_folder.display())))?;
        let path = match &target.program {
            Executable::Path(path) => path.as_os_str().as_bytes().to_vec(),
            Executable::Descriptor(number) => {
                sys::set_close_on_exec(*number, true)
                    .map_err(|e| Failure::other(format!("the program's descriptor: {e}")))?;
                Vec::new()
            }
        };
        let environment = target.environment.iter().map(|(name, value)| format!("{name}={value}"));
        Ok(PreparedTarget {
            program: target.program.clone(),
            path: c_string(path)?,
            arguments: c_strings(target.arguments.iter().cloned())?,
            environment: c_strings(environment)?,
        })
    }

    /// Returns only on failure.
    fn execute(&self) -> Failure {
        let error = match self.program {
            Executable::Path(_) => sys::exec(&self.path, &self.arguments, &self.environment),
            Executable::Descriptor(number) => {
                sys::exec_descriptor(number, &self.arguments, &self.environment)
            }
        };
        Failure::other(format!("execute: {error}"))
    }
}

fn c_strings(texts: impl Iterator<Item = String>) -> Result<Vec<CString>, Failure> {
    texts.map(c_string).collect()
}

fn c_string(text: impl Into<Vec<u8>>) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::other("NUL in an argument or variable"))
}
