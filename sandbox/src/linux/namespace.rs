//! A namespace ioctl for which no safe wrapper exists.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The user namespace that owns `namespace`.
pub(crate) fn owner_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: this request takes no argument and returns a new descriptor.
    let number = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just created this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
