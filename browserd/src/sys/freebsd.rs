//! FreeBSD: procctl(2).

use std::io;

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

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
