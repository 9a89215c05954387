//! Linux: `prctl`.

use std::io;

pub(super) fn adopt_orphans() -> io::Result<()> {
    // SAFETY: this option takes one integer and touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

pub(super) fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: this option takes one integer and touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    // The parent may have died between fork and here: then no signal will ever come.
    // SAFETY: getppid has no preconditions.
    if unsafe { libc::getppid() } as u32 == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
