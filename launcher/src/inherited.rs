//! The inherited descriptors 3 and 4 of a pipe client.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Descriptor 3 (requests of the client) and 4 (responses), now close-on-exec; `None` if either is not open.
///
/// Call this once at the start of `main`, before anything opens a descriptor.
pub fn debugging_pipe() -> Option<(OwnedFd, OwnedFd)> {
    let take = |number| {
        // SAFETY: only passed to fcntl, which returns EBADF if it is not open.
        let candidate = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl(candidate, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
        // SAFETY: it is open, was inherited by the process, and nothing else in this program owns it.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    };
    let (input, output) = (take(3), take(4));
    input.zip(output)
}
