//! FreeBSD: procctl(2).

use std::io;
use std::os::fd::RawFd;

pub(super) fn forbid_tracing() -> io::Result<()> {
    let mut forbidden: libc::c_int = libc::PROC_TRACE_CTL_DISABLE;
    // SAFETY: the argument is a pointer to an integer that is valid during the call.
    check(unsafe { libc::procctl(libc::P_PID, 0, libc::PROC_TRACE_CTL, (&raw mut forbidden).cast()) })
}

pub(super) fn become_subreaper() -> io::Result<()> {
    // SAFETY: this command takes no argument; id 0 of P_PID means the calling process.
    check(unsafe { libc::procctl(libc::P_PID, 0, libc::PROC_REAP_ACQUIRE, std::ptr::null_mut()) })
}

pub(super) fn kill_with_parent(parent: u32) -> io::Result<()> {
    let mut signal: libc::c_int = libc::SIGKILL;
    // SAFETY: the argument is a pointer to an integer that is valid during the call.
    check(unsafe { libc::procctl(libc::P_PID, 0, libc::PROC_PDEATHSIG_CTL, (&raw mut signal).cast()) })?;
    // If the parent died between fork and this call, the kernel sends no signal: fail instead.
    // SAFETY: getppid has no preconditions.
    if unsafe { libc::getppid() } as u32 == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// Marks all descriptors from this number on. Marking instead of closing keeps the standard library's own pipe, by which
/// the child reports that it could not be executed.
pub(super) fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: getdtablesize has no preconditions.
    let end = unsafe { libc::getdtablesize() };
    for number in first..end {
        // SAFETY: F_SETFD changes a flag of a descriptor; a closed number gives EBADF, which is no error here.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// FreeBSD has nothing like Landlock for this. Chromium cannot trace browserd ([`forbid_tracing`]), but it can signal it.
#[derive(Debug)]
pub(crate) struct Confinement;

impl Confinement {
    pub(crate) fn prepare() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) fn enter(&self) -> io::Result<()> {
        Ok(())
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
