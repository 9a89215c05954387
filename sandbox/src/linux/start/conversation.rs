//! Receives the reports of the stages.

use super::package::Package;
use crate::linux::{doing, fixes};
use crate::{Error, Layer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sandbox_inside::linux::channel;
use sandbox_inside::protocol::Record;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The report of stage 2.
pub(super) struct StageReport {
    pub(super) record: Record,
    /// Its process id as reported by the kernel.
    pub(super) sender: Option<i32>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Waits until all layers are enforced or a stage reports a failure.
pub(super) fn wait_for_record(
    package: &Package,
    deadline: Instant,
    timeout: Duration,
    program: &str,
) -> Result<StageReport, Error> {
    let message = receive(package, deadline, timeout)?;
    if message.bytes.is_empty() {
        return Err(explain_complaints(package.complaints()));
    }
    let record = serde_json::from_slice(&message.bytes).map_err(|e| doing("understand stage 2")(e.into()))?;
    match record {
        Record::Failed { layer, message } => Err(failed(package, layer, message, program)),
        record => Ok(StageReport { record, sender: message.sender, descriptors: message.descriptors }),
    }
}

/// Waits for `execve`, which closes the socket. A message on it reports a failure.
pub(super) fn wait_for_execution(
    package: &Package,
    deadline: Instant,
    timeout: Duration,
    program: &str,
) -> Result<(), Error> {
    let message = receive(package, deadline, timeout)?;
    if message.bytes.is_empty() {
        return Ok(());
    }
    match serde_json::from_slice(&message.bytes) {
        Ok(Record::Failed { layer, message }) => Err(failed(package, layer, message, program)),
        _ => Err(doing("understand stage 2")(std::io::ErrorKind::InvalidData.into())),
    }
}

fn receive(package: &Package, deadline: Instant, timeout: Duration) -> Result<channel::Message, Error> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let milliseconds = u16::try_from(left.as_millis()).unwrap_or(u16::MAX);
        let mut watched = [PollFd::new(package.status.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::from(milliseconds)) {
            Err(nix::Error::EINTR) => continue,
            Err(e) => return Err(doing("wait for stage 2")(e.into())),
            Ok(0) if Instant::now() >= deadline => {
                return Err(Error::Timeout(timeout, package.complaints()));
            }
            Ok(0) => continue,
            Ok(_) => {}
        }
        return channel::receive(package.status.as_fd()).map_err(doing("receive from stage 2"));
    }
}

/// The error when bubblewrap ended before stage 2 reported; only its error output is known.
fn explain_complaints(complaints: String) -> Error {
    let distribution = fixes::distribution();
    let has = |text: &str| complaints.contains(text);
    let fix = if has("mount proc") || has("/proc") && has("mount") {
        Some(fixes::mount_proc(distribution))
    } else if has("namespace") || has("userns") || has("uid map") || has("RTM_NEWADDR") {
        Some(fixes::allow_user_namespaces(distribution))
    } else {
        None
    };
    Error::Layer {
        layer: Layer::Bubblewrap,
        reason: if complaints.is_empty() {
            "bubblewrap ended without a message (killed?)".to_owned()
        } else {
            complaints
        },
        fix,
    }
}

/// The failure of a stage as an error.
fn failed(package: &Package, layer: Option<Layer>, reason: String, program: &str) -> Error {
    let Some(layer) = layer else {
        return Error::Exec { program: program.to_owned(), reason };
    };
    let fix = match layer {
        Layer::Landlock => Some(fixes::landlock(fixes::distribution(), package.landlock_abi)),
        Layer::Seccomp => Some(fixes::seccomp()),
        _ => None,
    };
    Error::Layer { layer, reason, fix }
}
