//! Project quotas (quotactl(2)): the file system counts everything below a folder as one project and limits its size.
//!
//! Quotas do not apply to a process with `CAP_SYS_RESOURCE`, and an overlay writes with the credentials of the process that
//! mounted it. So the overlay on such a folder is mounted without that capability ([`without_exemption`]).

#![allow(unsafe_code)]

use caps::{CapSet, Capability};
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `struct fsxattr` of the kernel's `fs.h`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// `FS_XFLAG_PROJINHERIT`: new files belong to their folder's project.
const INHERIT: u32 = 0x200;
/// `QCMD(Q_SETQUOTA, PRJQUOTA)` and `QCMD(Q_GETQUOTA, PRJQUOTA)`.
const SET: u32 = (0x80_0008 << 8) | 2;
const GET: u32 = (0x80_0007 << 8) | 2;
/// `QIF_BLIMITS`: only the limits of blocks are set.
const BLOCK_LIMITS: u32 = 1;
/// The unit of these limits, in bytes.
const BLOCK: u64 = 1024;

nix::ioctl_read!(get_attributes, b'X', 31, Attributes);
nix::ioctl_write_ptr!(set_attributes, b'X', 32, Attributes);

/// Make an empty folder a project and limit its size, then read the limit back.
pub(super) fn set(folder: &Path, project: u32, bytes: u64) -> io::Result<()> {
    let folder = File::open(folder)?;
    let mut attributes =
        Attributes { flags: 0, extent_size: 0, extents: 0, project: 0, copy_extent_size: 0, padding: [0; 8] };
    // SAFETY: the kernel writes one `fsxattr`, and `attributes` has its layout.
    unsafe { get_attributes(folder.as_raw_fd(), &mut attributes) }?;
    attributes.flags |= INHERIT;
    attributes.project = project;
    // SAFETY: the kernel reads one `fsxattr`, and `attributes` has its layout.
    unsafe { set_attributes(folder.as_raw_fd(), &attributes) }?;
    limit(&folder, project, bytes)?;
    let mut found = empty();
    call(&folder, GET, project, &mut found)?;
    match found.dqb_bhardlimit {
        limit if limit == bytes.div_ceil(BLOCK) => Ok(()),
        limit => Err(io::Error::other(format!("the project's quota is {limit} KiB after it was set"))),
    }
}

/// Remove the project's quota. `folder` is any folder of the file system.
pub(super) fn clear(folder: &Path, project: u32) -> io::Result<()> {
    match limit(&File::open(folder)?, project, 0) {
        // Quotas have been switched off: there is none.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOSYS)) => Ok(()),
        other => other,
    }
}

fn limit(folder: &File, project: u32, bytes: u64) -> io::Result<()> {
    let mut quota = empty();
    quota.dqb_bhardlimit = bytes.div_ceil(BLOCK);
    quota.dqb_bsoftlimit = quota.dqb_bhardlimit;
    quota.dqb_valid = BLOCK_LIMITS;
    call(folder, SET, project, &mut quota)
}

fn empty() -> libc::dqblk {
    // SAFETY: the structure has only integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

fn call(folder: &File, command: u32, project: u32, quota: &mut libc::dqblk) -> io::Result<()> {
    // SAFETY: the kernel reads or writes one `if_dqblk` during the call. libc's `dqblk` has its layout.
    let done = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, folder.as_raw_fd(), command, project, std::ptr::from_mut(quota))
    };
    Errno::result(done).map(drop).map_err(io::Error::from)
}

/// Run something in a thread to which quotas apply.
pub(super) fn without_exemption<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // capset(2) changes this thread alone, and the thread ends with the work.
            caps::drop(None, CapSet::Effective, Capability::CAP_SYS_RESOURCE).map_err(io::Error::other)?;
            work()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_working_thread_drops_the_capability() {
        let has = || caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_RESOURCE).unwrap();
        let before = has();
        assert!(!without_exemption(|| Ok(has())).unwrap());
        assert_eq!(has(), before);
    }

    #[test]
    fn the_kernels_structures_have_their_sizes() {
        assert_eq!(size_of::<Attributes>(), 28);
        assert_eq!(size_of::<libc::dqblk>(), 72);
    }
}
