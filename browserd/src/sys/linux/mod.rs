//! Linux: prctl(2), close_range(2), and the confinement of Chromium.

mod confinement;

pub(crate) use confinement::Confinement;

use std::io;
use std::os::fd::RawFd;

pub(super) fn forbid_tracing() -> io::Result<()> {
    // SAFETY: this option takes one integer and accesses no memory.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

pub(super) fn become_subreaper() -> io::Result<()> {
    // SAFETY: this option takes one integer and accesses no memory.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

pub(super) fn kill_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: this option takes one integer and accesses no memory.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    // If the parent died between fork and this call, the kernel sends no signal: fail instead.
    // SAFETY: getppid has no preconditions.
    if unsafe { libc::getppid() } as u32 == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// Marks all descriptors from this number on. Marking instead of closing keeps the standard library's own pipe, by which
/// the child reports that it could not be executed.
pub(super) fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: this call takes integers only. The raw call is used because older C libraries have no wrapper.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_int::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
