//! Processes as descriptors (`pidfd_open(2)`).
//!
//! A process ID can be reused as soon as its process is reaped. A pidfd refers to one process for ever, so a caller opens
//! the pidfd first, then verifies that the ID still belongs to the process it means, and then signals the pidfd.

pub use rustix::process::Signal;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A descriptor of the process that has this ID now. `ESRCH` if there is none.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Send a signal to this process. `ESRCH` if it was reaped.
pub fn signal(process: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    Ok(rustix::process::pidfd_send_signal(process, signal)?)
}

/// Whether the process has exited. A pidfd becomes readable when the last thread of its process is gone.
pub fn has_exited(process: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(wait(process, Some(Instant::now()))? == Exit::Exited)
}

/// Whether every one of these processes is still running: one `poll(2)`.
pub fn all_running<'a>(processes: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<bool> {
    let mut watched: Vec<PollFd<'a>> =
        processes.into_iter().map(|process| PollFd::from_borrowed_fd(process, PollFlags::IN)).collect();
    Ok(poll_until(&mut watched, Some(Instant::now()))? == 0)
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited.
    Exited,
    /// The deadline passed first.
    TimedOut,
}

/// Wait until the process exits, or until the deadline.
pub fn wait(process: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<Exit> {
    let mut watched = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    Ok(if poll_until(&mut watched, deadline)? == 0 { Exit::TimedOut } else { Exit::Exited })
}

/// Wait until one of two descriptors is readable: which of them are. Neither: the deadline passed.
pub fn readable(one: impl AsFd, other: impl AsFd, deadline: Option<Instant>) -> io::Result<[bool; 2]> {
    let mut watched = [one.as_fd(), other.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll_until(&mut watched, deadline)?;
    Ok(watched.map(|fd| !fd.revents().is_empty()))
}

/// `poll(2)` that resumes after a signal (`EINTR`) with the time that is left.
fn poll_until(watched: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<usize> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(timespec);
        match poll(watched, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    // A deadline centuries away is as good as one that fits.
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, OwnedFd) {
        let child = Command::new("/bin/sleep").arg("60").spawn().expect("sleep starts");
        let process = open(child.id()).expect("a pidfd of a child");
        (child, process)
    }

    #[test]
    fn a_killed_process_is_reported_as_exited() {
        let (mut child, process) = sleeper();
        assert!(!has_exited(process.as_fd()).unwrap());
        assert!(all_running([process.as_fd()]).unwrap());
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(wait(process.as_fd(), Some(soon)).unwrap(), Exit::TimedOut);
        signal(process.as_fd(), Signal::KILL).unwrap();
        assert_eq!(wait(process.as_fd(), None).unwrap(), Exit::Exited);
        assert!(!all_running([process.as_fd()]).unwrap());
        child.wait().unwrap();
        let refused = signal(process.as_fd(), Signal::KILL).unwrap_err();
        assert_eq!(
            refused.raw_os_error(),
            Some(libc::ESRCH),
            "a reaped process is never confused with another"
        );
    }

    #[test]
    fn a_stopped_process_is_killed_without_being_resumed() {
        let (mut child, process) = sleeper();
        signal(process.as_fd(), Signal::STOP).unwrap();
        signal(process.as_fd(), Signal::KILL).unwrap();
        assert_eq!(wait(process.as_fd(), None).unwrap(), Exit::Exited);
        child.wait().unwrap();
    }

    #[test]
    fn no_process_has_the_id_zero() {
        assert_eq!(open(0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
