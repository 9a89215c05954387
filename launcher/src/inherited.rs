//! The descriptors 3 and 4 of a pipe client, taken over from the process that started us.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Descriptor 3 (the client's messages) and 4 (our answers), closed on exec from now on; `None` if either is not open.
///
/// To be called once, at the start of `main`, before anything else opens a descriptor.
pub fn debugging_pipe() -> Option<(OwnedFd, OwnedFd)> {
    let take = |number| {
        // SAFETY: the number is only asked about; fcntl answers EBADF if it is not open.
        let candidate = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl(candidate, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
        // SAFETY: it is open, came with the process, and nobody else in this program uses it.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    };
    let (input, output) = (take(3), take(4));
    input.zip(output)
}
