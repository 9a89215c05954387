//! System-specific code and the calls that need `unsafe`: protecting browserd from other processes, starting Chromium
//! confined and with the pipe as descriptors 3 and 4, and killing and reaping its process group.

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
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

pub(crate) use platform::Confinement;

/// The first descriptor that Chromium does not get: after the standard ones and the pipe.
const FIRST_CLOSED: RawFd = 5;
/// Lowest number for the temporary duplicate of the pipe: above 3 and 4, so that dup2(2) cannot overwrite it.
const SCRATCH: RawFd = 10;

/// Forbids other processes of the same user to trace this process, to read its memory and to take its descriptors. This
/// ends with exec(2).
pub(crate) fn forbid_tracing() -> io::Result<()> {
    platform::forbid_tracing()
}

/// Takes a descriptor that the parent process passed by its number. The caller guarantees that nothing else in this process
/// owns it.
pub(crate) fn take_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD reads a flag of a descriptor; a closed number gives EBADF.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open (checked above) and, by this function's contract, not owned.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes orphans of the browser children of browserd, so that it can kill and reap them.
pub(crate) fn become_subreaper() -> io::Result<()> {
    platform::become_subreaper()
}

/// Starts `command` in its own process group and confined, with `pipe` as descriptors 3 (for reading) and 4 (for writing)
/// and no others but the standard ones. The kernel kills it when the calling thread ends, so this must be called on the
/// main thread.
pub(crate) fn spawn_with_pipe(
    command: &mut Command,
    pipe: OwnedFd,
    confinement: Confinement,
) -> io::Result<Child> {
    let parent = std::process::id();
    let raw = pipe.as_raw_fd();
    command.process_group(0);
    // SAFETY: the closure runs between fork and exec. It makes only async-signal-safe system calls on integers, allocates
    // nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            platform::kill_with_parent(parent)?;
            // Before the pipe, which may take the number of one of its descriptors.
            confinement.enter()?;
            duplicate_pipe(raw)?;
            platform::close_on_exec_from(FIRST_CLOSED)
        });
    }
    let child = command.spawn();
    drop(pipe);
    child
}

/// Duplicates the pipe to descriptors 3 and 4, in the child. dup2(2) clears close-on-exec, but does nothing if source and
/// target are equal. The source is therefore duplicated to a high number first.
fn duplicate_pipe(raw: RawFd) -> io::Result<()> {
    // SAFETY: fcntl with integers only; the parent keeps the descriptor open until the fork.
    let high = unsafe { libc::fcntl(raw, libc::F_DUPFD_CLOEXEC, SCRATCH) };
    if high < 0 {
        return Err(io::Error::last_os_error());
    }
    for target in [3, 4] {
        // SAFETY: dup2 with integers only. Descriptors 3 and 4 of the parent are not needed in the child.
        if unsafe { libc::dup2(high, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Whether the child has ended. It is not reaped (WNOWAIT), so its PID is not reused before [`kill_group`].
pub(crate) fn has_ended(child: &Child) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(pid(child)), flags), Ok(WaitStatus::StillAlive))
}

/// Sends a signal to the child. It must not have been reaped, so that the PID is still its own.
pub(crate) fn signal(child: &Child, signal: Signal) {
    // An error means that the child has already ended.
    let _ = nix::sys::signal::kill(pid(child), signal);
}

/// Kills the child's process group, before the PID can be reused, then reaps the child and its adopted orphans. Returns
/// true if no process of the group is left.
pub(crate) fn kill_group(child: &mut Child) -> bool {
    let _ = killpg(pid(child), Signal::SIGKILL);
    let _ = child.wait();
    reap_group(pid(child))
}

/// Reaps adopted orphans of the group. Returns true if none is left.
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

/// The child's PID.
pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}
