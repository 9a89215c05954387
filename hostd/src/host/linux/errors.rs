//! From errors of the system to errors of the host: which object, what happened, what to do.

use crate::host::{HostError, HostErrorKind};
use std::io;

/// The object that is being worked on.
#[derive(Debug)]
pub(super) struct ErrorContext {
    pub(super) object: String,
    /// What an operator can do when it fails.
    pub(super) hint: &'static str,
}

impl ErrorContext {
    pub(super) fn failed(&self, message: &str, cause: io::Error) -> HostError {
        failed(&self.object, message, cause, self.hint)
    }
}

/// A system call failed. Its error is kept as the source.
pub(super) fn failed(object: impl Into<String>, message: &str, cause: io::Error, hint: &str) -> HostError {
    HostError::new(kind(&cause), object, message, hint).caused_by(cause)
}

/// An object is not in the state that it must be in.
pub(super) fn refused(
    object: impl Into<String>,
    action: &str,
    kind: HostErrorKind,
    why: impl std::fmt::Display,
) -> HostError {
    let hint = match kind {
        HostErrorKind::Foreign => {
            "it does not belong to hostd: find its owner and remove it, or configure another pool"
        }
        _ => "read hostd's log; hostctl doctor checks the host",
    };
    HostError::new(kind, object, format!("cannot {action}: {why}"), hint)
}

fn kind(error: &io::Error) -> HostErrorKind {
    match error.raw_os_error() {
        Some(libc::EBUSY) => HostErrorKind::Busy,
        Some(libc::ENOSPC | libc::EDQUOT) => HostErrorKind::NoSpace,
        Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV) => HostErrorKind::NotReady,
        _ => HostErrorKind::Failed,
    }
}
