//! The client: the program that started the launcher. Its end is the end of the browser.
//!
//! A client that is killed sends no signal, and a port client has no pipe that closes. So the launcher watches the process
//! of the client by a pidfd, which never means another process, unlike a process id.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

/// Programs between a client and the launcher. Such a program still waits for the launcher after the client was killed
/// (`sh -c`), so the client is the process above it.
const WRAPPERS: &[&str] = &[
    "sh", "dash", "bash", "zsh", "ash", "ksh", "fish", "busybox", "env", "timeout", "nice", "stdbuf",
    "xvfb-run",
];
/// More levels than any client uses.
const MAX_LEVELS: usize = 16;

/// The pidfd of the client. `None` if the launcher was not started by a client: by the first process of the machine or
/// of a container, or in the background by a program that has already ended.
pub(crate) fn watch() -> io::Result<Option<OwnedFd>> {
    let Some(parent) = getppid() else {
        return Ok(None);
    };
    let Some(mut process) = open(parent)? else {
        return Ok(None);
    };
    // The parent has not been replaced by another process with its id, because it is still the parent.
    if getppid() != Some(parent) {
        return Ok(None);
    }
    let mut pid = parent;
    for _ in 0..MAX_LEVELS {
        if pid == Pid::INIT {
            return Ok(None);
        }
        let Some((name, above)) = describe(pid) else {
            return Ok(Some(process));
        };
        if !WRAPPERS.contains(&name.as_str()) {
            return Ok(Some(process));
        }
        let Some(above) = above else {
            return Ok(None);
        };
        let Some(next) = open(above)? else {
            return Ok(None);
        };
        // As for the first one. If the wrapper has ended meanwhile, its parent cannot be known any more.
        if describe(pid).and_then(|(_, again)| again) != Some(above) {
            return Ok(None);
        }
        (pid, process) = (above, next);
    }
    Ok(Some(process))
}

fn open(pid: Pid) -> io::Result<Option<OwnedFd>> {
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The name of a process and its parent.
fn describe(pid: Pid) -> Option<(String, Option<Pid>)> {
    parse(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
}

/// Reads `pid (name) state ppid …`. The name may contain parentheses.
fn parse(stat: &str) -> Option<(String, Option<Pid>)> {
    let (start, rest) = stat.rsplit_once(')')?;
    let name = start.split_once('(')?.1;
    let parent: i32 = rest.split_whitespace().nth(1)?.parse().ok()?;
    Some((name.to_owned(), Pid::from_raw(parent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_from_its_stat_line() {
        let (name, parent) = parse("12 (a) b (c) S 34 12 12 0").expect("valid");
        assert_eq!((name.as_str(), parent.map(Pid::as_raw_pid)), ("a) b (c", Some(34)));
        assert_eq!(parse("12 (x) S 0 0"), Some(("x".to_owned(), None)));
        assert_eq!(parse("nonsense"), None);
        let (_, parent) = describe(rustix::process::getpid()).expect("own process");
        assert_eq!(parent, getppid());
    }
}
