//! PID namespaces: from a process ID inside one to the ID that the caller knows.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `NS_GET_TGID_FROM_PIDNS` of `linux/nsfs.h` (Linux 6.11): `_IOR(0xb7, 0x7, int)`.
const GET_TGID_FROM_PIDNS: libc::Ioctl = 0x8004_b707_u32 as libc::Ioctl;

/// The caller's ID of the process that is `pid` inside the namespace. `ESRCH`: there is no such process in it; another
/// error: the kernel does not have this call (Linux before 6.11).
pub fn outer_id(namespace: BorrowedFd<'_>, pid: u32) -> io::Result<u32> {
    let pid = libc::c_ulong::from(pid);
    // SAFETY: the descriptor is open, and this request takes its argument as a number, not as a pointer.
    let found = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_TGID_FROM_PIDNS, pid) };
    u32::try_from(found).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn in_the_own_namespace_an_id_is_the_same() {
        let own = File::open("/proc/self/ns/pid").unwrap();
        assert_eq!(outer_id(own.as_fd(), std::process::id()).unwrap(), std::process::id());
        let unused = outer_id(own.as_fd(), u32::try_from(i32::MAX).unwrap()).unwrap_err();
        assert_eq!(unused.raw_os_error(), Some(libc::ESRCH));
    }
}
