//! Linux: prctl(2).

use std::io;

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

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
