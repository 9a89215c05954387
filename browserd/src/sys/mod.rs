//! What the operating systems do differently, and the few calls that need `unsafe`: starting a child
//! with the pipe at descriptors 3 and 4 that cannot outlive us, and ending all of its family.

#![allow(unsafe_code)]

#[cfg(target_os = "freebsd")]
mod freebsd;
#[cfg(target_os = "freebsd")]
use freebsd as platform;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as platform;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Descriptors used while the pipe is put in its place: above 3 and 4, so that no step overwrites
/// what a later one needs.
const SCRATCH: RawFd = 10;

/// Orphans of the browser become our children, so that we can end and reap them.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    platform::adopt_orphans()
}

/// Start `command` in its own process group, with `pipe` as its descriptors 3 (it reads) and 4 (it
/// writes). The kernel kills it when the calling thread dies, which therefore has to be the main one.
pub(crate) fn spawn_with_pipe(command: &mut Command, pipe: OwnedFd) -> io::Result<Child> {
    let parent = std::process::id();
    let raw = pipe.as_raw_fd();
    command.process_group(0);
    // SAFETY: the closure runs between fork and exec and only makes async-signal-safe system calls
    // on its own copies of integers; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            platform::die_with_parent(parent)?;
            place_pipe(raw)
        });
    }
    let child = command.spawn();
    drop(pipe);
    child
}

/// Runs in the child: duplicates have no close-on-exec flag, except where source and target are equal,
/// hence the detour over a high number.
fn place_pipe(raw: RawFd) -> io::Result<()> {
    // SAFETY: fcntl on a descriptor that the closure's caller keeps open across the fork.
    let high = unsafe { libc::fcntl(raw, libc::F_DUPFD_CLOEXEC, SCRATCH) };
    if high < 0 {
        return Err(io::Error::last_os_error());
    }
    for target in [3, 4] {
        // SAFETY: both numbers are plain descriptors of this child; whatever 3 and 4 were before is
        // close-on-exec state of the parent that the new program must not see anyway.
        if unsafe { libc::dup2(high, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Whether the child has ended. It is not reaped: its number stays its own until [`end_family`].
pub(crate) fn has_ended(child: &Child) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(pid(child)), flags), Ok(WaitStatus::StillAlive))
}

/// Send a signal to the child. Safe as long as it is not reaped.
pub(crate) fn signal(child: &Child, signal: Signal) {
    // An error can only mean that it is gone already, which is what the signal is for.
    let _ = nix::sys::signal::kill(pid(child), signal);
}

/// Kill whatever is left of the child's process group while its number cannot have been given to
/// anybody else, then reap what became ours. True when nothing of ours is left in the group.
pub(crate) fn end_family(child: &mut Child) -> bool {
    let _ = killpg(pid(child), Signal::SIGKILL);
    let _ = child.wait();
    reap_group(pid(child))
}

/// Reap adopted orphans of the group; true when none is left.
pub(crate) fn reap_group(group: Pid) -> bool {
    loop {
        match waitpid(Pid::from_raw(-group.as_raw()), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {
                let _ = killpg(group, Signal::SIGKILL);
                return false;
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return true,
        }
    }
}

/// The child's number.
pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}
