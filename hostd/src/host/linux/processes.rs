//! Which processes are a clone's, proven by the kernel, and ending them without ever meaning another.
//!
//! A process is inside if it is in the clone's cgroup, or in the clone's network namespace (which is kept by our own
//! mount, so its number is nobody else's), or is the clone's supervisor (the holder of the jail's lock), or descends
//! from one that is: Chromium puts its renderers into namespaces of their own, but an orphan inside goes to the
//! sandbox's own process 1. No name, no user id and no number from a file is believed.

use super::limits::LimitBackend;
use super::{cgroup, jail, netns, network};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The processes of the clone with this run folder.
pub(super) fn inside(name: &str, run: &Path, keeper: &LimitBackend) -> io::Result<BTreeSet<u32>> {
    let proof = Proof::of(name, run, keeper)?;
    // A look at every process of the host is long. A cgroup has all of a clone's: its supervisor enters it before it starts
    // anything, and nothing inside can leave it. And a clone that has neither process nor network is gone.
    if proof.has_cgroup || (proof.processes.is_empty() && proof.network.is_none()) {
        return Ok(proof.processes);
    }
    Ok(proof.among(&all()?))
}

/// What makes a process a clone's own.
#[derive(Debug)]
struct Proof {
    /// In the clone's cgroup, or its supervisor.
    processes: BTreeSet<u32>,
    has_cgroup: bool,
    /// The network namespace that its processes are in.
    network: Option<u64>,
}

impl Proof {
    fn of(name: &str, run: &Path, keeper: &LimitBackend) -> io::Result<Proof> {
        let cgroup = keeper.cgroup(name).map(|cgroup| cgroup::processes(&cgroup)).transpose()?.flatten();
        let has_cgroup = cgroup.is_some();
        let mut processes: BTreeSet<u32> = cgroup.into_iter().flatten().collect();
        processes.extend(jail::supervisor(run)?);
        // hostd itself is never inside, even if somebody moves it there.
        processes.remove(&std::process::id());
        Ok(Proof { processes, has_cgroup, network: netns::inode(&network::pin(run)) })
    }

    /// The clone's own among these and what is known already.
    fn among(self, candidates: &[u32]) -> BTreeSet<u32> {
        let mut found = self.processes;
        if self.network.is_some() {
            found.extend(candidates.iter().copied().filter(|pid| network_of(*pid) == self.network));
        }
        found.remove(&std::process::id());
        if found.is_empty() {
            return found;
        }
        let parents: Vec<(u32, u32)> =
            candidates.iter().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
        loop {
            let children: Vec<u32> = parents
                .iter()
                .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            if children.is_empty() {
                return found;
            }
            found.extend(children);
        }
    }
}

/// All processes of the host.
fn all() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(pids)
}

fn parent(pid: u32) -> Option<u32> {
    let (state, parent) = state_and_parent(pid)?;
    // The dead are not counted.
    (state != 'Z' && state != 'X').then_some(parent)
}

fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    // Both stand near its beginning.
    let mut stat = [0; 256];
    let length = File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut stat)).ok()?;
    // "pid (name) state ppid …"; the name may contain anything, so from its end.
    let end = stat[..length].iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[end + 1..length]).ok()?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether a process stands still. One that is gone does.
pub(super) fn is_stopped(pid: u32) -> bool {
    state_and_parent(pid).is_none_or(|(state, _)| matches!(state, 'T' | 't' | 'Z' | 'X'))
}

fn network_of(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(|meta| meta.ino())
}

/// A clone's processes, each as a descriptor that never means another.
#[derive(Debug)]
pub(super) struct Held(Vec<(u32, OwnedFd)>);

impl Held {
    /// Take hold of the clone's processes. Each is looked at again once it is held: only then its number is its own.
    pub(super) fn take(name: &str, run: &Path, keeper: &LimitBackend) -> io::Result<Held> {
        let first = inside(name, run, keeper)?;
        let held: Vec<(u32, OwnedFd)> =
            first.into_iter().filter_map(|pid| Some((pid, super::pidfd::open(pid).ok()?))).collect();
        // What makes each of them a clone's own (its ancestors inside) is among them.
        let pids: Vec<u32> = held.iter().map(|(pid, _)| *pid).collect();
        let again = Proof::of(name, run, keeper)?.among(&pids);
        Ok(Held(held.into_iter().filter(|(pid, _)| again.contains(pid)).collect()))
    }

    /// Those that call themselves so, and the others. Good for an order among them and nothing else.
    pub(super) fn split(self, name: &str) -> (Held, Held) {
        let called = |(pid, _): &(u32, OwnedFd)| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim_end() == name)
        };
        let (these, others) = self.0.into_iter().partition(called);
        (Held(these), Held(others))
    }

    /// Their numbers.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|(pid, _)| *pid)
    }

    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        let mut first = None;
        for (_, process) in &self.0 {
            match super::pidfd::signal(process.as_fd(), signal) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => drop(first.get_or_insert(error)),
                _ => {}
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Whether not one of them has ended.
    pub(super) fn all_alive(&self) -> io::Result<bool> {
        let mut watched: Vec<PollFd<'_>> =
            self.0.iter().map(|(_, process)| PollFd::new(process.as_fd(), PollFlags::POLLIN)).collect();
        Ok(poll(&mut watched, PollTimeout::ZERO)? == 0)
    }

    /// Wait until all of them have ended, at most this long.
    pub(super) fn wait(&self, patience: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + patience;
        for (_, process) in &self.0 {
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let milliseconds = u16::try_from(left.as_millis()).unwrap_or(u16::MAX);
                let mut watched = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
                match poll(&mut watched, PollTimeout::from(milliseconds)) {
                    Err(nix::errno::Errno::EINTR) => {}
                    Err(error) => return Err(error.into()),
                    Ok(0) if left.is_zero() => return Ok(false),
                    Ok(0) => {}
                    Ok(_) => break,
                }
            }
        }
        Ok(true)
    }
}
