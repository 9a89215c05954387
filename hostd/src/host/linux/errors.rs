//! From the system's errors to host errors: the object, what happened, what to do.

use crate::host::{HostError, HostErrorKind};
use std::io;

/// The object of the current operation.
#[derive(Debug)]
pub(super) struct ErrorContext {
    pub(super) object: String,
    /// What the operator can do if the operation fails.
    pub(super) hint: &'static str,
}

impl ErrorContext {
    pub(super) fn failed(&self, message: &str, cause: io::Error) -> HostError {
        failed(&self.object, message, cause, self.hint)
    }
}

/// A failed system call. Its error is kept as the source.
pub(super) fn failed(object: impl Into<String>, message: &str, cause: io::Error, hint: &str) -> HostError {
    HostError::new(kind(&cause), object, message, hint).caused_by(cause)
}

/// An object is not in the required state.
pub(super) fn refused(
    object: impl Into<String>,
    action: &str,
    kind: HostErrorKind,
    why: impl std::fmt::Display,
) -> HostError {
    let hint = match kind {
        HostErrorKind::Foreign => {
            "it does not belong to hostd: find its owner and remove it, or configure other slots"
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
