//! From the system's errors to the host's: which object, what happened, what to do.

use crate::host::{HostError, HostErrorKind};
use std::io;

/// One object being worked on.
#[derive(Debug)]
pub(super) struct ErrorContext {
    pub(super) object: String,
    /// What an operator can do when it fails.
    pub(super) hint: &'static str,
}

impl ErrorContext {
    pub(super) fn failed(&self, message: &str, error: &io::Error) -> HostError {
        failed(&self.object, message, error, self.hint)
    }
}

/// The system refused something.
pub(super) fn failed(object: impl Into<String>, message: &str, error: &io::Error, hint: &str) -> HostError {
    HostError::new(kind(error), object, format!("{message}: {error}"), hint)
}

/// Something is not as it must be.
pub(super) fn doing(
    object: impl Into<String>,
    what: &str,
    kind: HostErrorKind,
    why: impl std::fmt::Display,
) -> HostError {
    let hint = match kind {
        HostErrorKind::Foreign => {
            "it is not hostd's: find out whose it is and remove it, or take another pool"
        }
        _ => "look at hostd's log; hostctl doctor checks the host",
    };
    HostError::new(kind, object, format!("cannot {what}: {why}"), hint)
}

fn kind(error: &io::Error) -> HostErrorKind {
    match error.raw_os_error() {
        Some(libc::EBUSY) => HostErrorKind::Busy,
        Some(libc::ENOSPC | libc::EDQUOT) => HostErrorKind::NoSpace,
        Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV) => HostErrorKind::NotReady,
        _ => HostErrorKind::Failed,
    }
}
