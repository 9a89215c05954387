//! FreeBSD: `LOCAL_PEERCRED`, boot time, monotonic clock.

#![allow(unsafe_code)]

use super::{DefaultDirs, Peer};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The usual folders.
pub fn default_dirs() -> DefaultDirs {
    DefaultDirs::freebsd()
}

/// Nothing to do: jemalloc shares its arenas between threads.
pub fn spare_memory() {}

/// The id of this boot: `kern.boot_id` (random for each boot) if it exists, else the boot time.
pub fn boot_id() -> io::Result<String> {
    if let Ok(bytes) = sysctl(c"kern.boot_id", 16)
        && bytes.len() == 16
    {
        return Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
    }
    let bytes = sysctl(c"kern.boottime", size_of::<libc::timeval>())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Time since boot. It cannot be set.
pub fn monotonic() -> Duration {
    let now =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC always exists");
    Duration::from(now)
}

/// The credentials of the peer. Root inside a jail is indistinguishable from root, so no jail may contain the socket.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    // SAFETY: xucred is a plain C structure for which all zeroes are valid.
    let mut cred: libc::xucred = unsafe { std::mem::zeroed() };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::xucred>()).expect("a small structure");
    // SAFETY: `cred` is valid for `bytes` bytes, and the kernel writes at most that many.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_LOCAL,
            libc::LOCAL_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut bytes,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if cred.cr_version != libc::XUCRED_VERSION {
        return Err(io::Error::other(format!("peer credentials of unknown version {}", cred.cr_version)));
    }
    let count = usize::try_from(cred.cr_ngroups).unwrap_or(0).min(cred.cr_groups.len());
    Ok(Peer { uid: cred.cr_uid, gids: cred.cr_groups[..count].to_vec(), pid: None })
}

fn sysctl(name: &CStr, size: usize) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; size];
    let mut length = value.len();
    // SAFETY: the name is NUL-terminated, the buffer is valid for `length` bytes, and no new value is passed.
    let done = unsafe {
        libc::sysctlbyname(name.as_ptr(), value.as_mut_ptr().cast(), &raw mut length, std::ptr::null(), 0)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(length);
    Ok(value)
}
