//! Which processes belong to a clone, proven by the kernel, and how they are killed without ever signalling another.
//!
//! A process belongs to a clone if one of these holds:
//! - it is in the clone's cgroup;
//! - it is the clone's supervisor: the process that holds the lock of the jail file;
//! - it is in the PID namespace of the supervisor's sandbox, or is one of the processes between the two;
//! - it is in the clone's network namespace, which our own mount keeps, so its inode belongs to no other;
//! - it descends from one of these. Chromium puts its renderers into namespaces of their own.
//!
//! A name, a user ID or a process ID from a file proves nothing. A process is signalled through a pidfd that was opened
//! before the last of these proofs.
//!
//! Reading all of `/proc` takes longer the more clones there are, so it is the last resort: for a clone without a cgroup
//! whose supervisor is gone or has not started its sandbox yet.

use super::limits::LimitBackend;
use super::supervisor::BROWSERD;
use super::{cgroup, jail, netns, network};
use kernel::pid_namespace;
use kernel::pidfd::{self, Exit, Signal};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// Processes between a supervisor and the program in its sandbox. There are three; more than this is another tree.
const LONGEST_CHAIN: usize = 8;
/// Killed processes cannot fork, so the second listing finds no new one. More listings than this mean a bug.
const KILL_ROUNDS: usize = 16;

/// The processes of the clone with this run folder.
pub(super) fn inside(name: &str, run: &Path, limits: &LimitBackend) -> io::Result<BTreeSet<u32>> {
    let proof = Proof::of(name, run, limits)?;
    // A cgroup has all of a clone's processes: the supervisor enters it before it starts anything, and nothing inside can
    // leave it. A clone without supervisor and network namespace has no process.
    if proof.has_cgroup || (proof.processes.is_empty() && proof.network.is_none()) {
        return Ok(proof.processes);
    }
    match SandboxProcesses::find(run, &proof)? {
        Some(sandbox) => sandbox.pids(),
        None => Ok(proof.among(&all()?)),
    }
}

/// Send SIGKILL to every process of the clone, also when it is stopped or frozen. When this returns, none of them can
/// execute another instruction of its own or fork; the kernel may still be releasing them.
pub(super) fn kill(name: &str, run: &Path, limits: &LimitBackend) -> io::Result<ProcessHandles> {
    let proof = Proof::of(name, run, limits)?;
    if let Some(cgroup) = limits.cgroup(name).filter(|_| proof.has_cgroup) {
        let handles = ProcessHandles::open(name, run, limits)?;
        // Kills atomically: also what is forked at this moment, and what is frozen.
        cgroup::kill(&cgroup)?;
        // The supervisor, if it has not entered the cgroup yet.
        handles.signal(Signal::KILL)?;
        return Ok(handles);
    }
    if let Some(sandbox) = SandboxProcesses::find(run, &proof)? {
        return kill_until_none_is_new(|| sandbox.handles());
    }
    kill_until_none_is_new(|| ProcessHandles::open(name, run, limits))
}

/// A process that was signalled with SIGKILL cannot fork any more. So a listing that began after all processes of the
/// previous one were signalled, and that shows no other process, is complete.
fn kill_until_none_is_new(list: impl Fn() -> io::Result<ProcessHandles>) -> io::Result<ProcessHandles> {
    let mut killed = ProcessHandles::default();
    for _ in 0..KILL_ROUNDS {
        let known: BTreeSet<u32> = killed.pids().collect();
        let mut listed = list()?;
        listed.handles.retain(|(pid, _)| !known.contains(pid));
        if listed.handles.is_empty() {
            return Ok(killed);
        }
        listed.signal(Signal::KILL)?;
        killed.handles.extend(listed.handles);
        killed.browserd = killed.browserd.or(listed.browserd);
    }
    Err(io::Error::other("new processes appear faster than they can be killed"))
}

/// What proves that a process belongs to the clone.
#[derive(Debug)]
struct Proof {
    /// The processes in the clone's cgroup, and its supervisor.
    processes: BTreeSet<u32>,
    supervisor: Option<u32>,
    has_cgroup: bool,
    /// The inode of the clone's network namespace.
    network: Option<u64>,
}

impl Proof {
    fn of(name: &str, run: &Path, limits: &LimitBackend) -> io::Result<Proof> {
        let cgroup = limits.cgroup(name).map(|cgroup| cgroup::processes(&cgroup)).transpose()?.flatten();
        let has_cgroup = cgroup.is_some();
        let mut processes: BTreeSet<u32> = cgroup.into_iter().flatten().collect();
        let supervisor = jail::supervisor(run)?;
        processes.extend(supervisor);
        // hostd itself never belongs to a clone, even if somebody moves it into the cgroup.
        processes.remove(&std::process::id());
        Ok(Proof { processes, supervisor, has_cgroup, network: netns::inode(&network::pin(run)) })
    }

    /// The clone's processes: those known already, and those of the candidates that are proven.
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
    // A zombie has nothing left to run.
    (state != 'Z' && state != 'X').then_some(parent)
}

fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    // Both fields are near the beginning of the line.
    let mut stat = [0; 256];
    let length = File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut stat)).ok()?;
    // "pid (name) state ppid …": the name may contain anything, so the fields are counted from its closing parenthesis.
    let end = stat[..length].iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[end + 1..length]).ok()?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether a process is stopped. One that is gone counts as stopped.
pub(super) fn is_stopped(pid: u32) -> bool {
    state_and_parent(pid).is_none_or(|(state, _)| matches!(state, 'T' | 't' | 'Z' | 'X'))
}

fn network_of(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(|meta| meta.ino())
}

fn pid_namespace_of(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|meta| meta.ino())
}

/// The processes of a clone whose supervisor runs a sandbox: found through the sandbox's PID namespace, whose procfs lists
/// its processes and no other. The kernel ends a PID namespace with its first process, so none of them survives that.
#[derive(Debug)]
struct SandboxProcesses<'a> {
    run: &'a Path,
    supervisor: u32,
    /// The program in the sandbox, as the supervisor noted it.
    program: u32,
    /// The processes between the supervisor and the PID namespace.
    between: Vec<u32>,
    namespace: File,
    /// The procfs that is mounted inside the sandbox. An open directory works also after the namespace's end.
    procfs: File,
}

impl SandboxProcesses<'_> {
    /// `None`: the sandbox is not there, or cannot be proven to be this clone's, or the kernel lacks a call.
    fn find<'a>(run: &'a Path, proof: &Proof) -> io::Result<Option<SandboxProcesses<'a>>> {
        let (Some(supervisor), Some(network)) = (proof.supervisor, proof.network) else { return Ok(None) };
        let Some(program) = jail::noted_program(run) else { return Ok(None) };
        // From here on another process with this ID is noticed.
        let Ok(process) = pidfd::open(program) else { return Ok(None) };
        let own = fs::metadata("/proc/self/ns/pid")?.ino();
        let Some(chain) = chain(program, supervisor) else { return Ok(None) };
        let opened = || {
            let namespace = File::open(format!("/proc/{program}/ns/pid"))?;
            io::Result::Ok((namespace, File::open(format!("/proc/{program}/root/proc"))?))
        };
        let Ok((namespace, procfs)) = opened() else { return Ok(None) };
        let inode = namespace.metadata()?.ino();
        let lists_the_namespace = fstatfs(&procfs)
            .is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC)
            && fs::metadata(format!("/proc/{program}/root/proc/1/ns/pid"))
                .is_ok_and(|first| first.ino() == inode);
        let is_proven = network_of(program) == Some(network)
            && inode != own
            && lists_the_namespace
            && pid_namespace::outer_id(namespace.as_fd(), 1).is_ok()
            && !pidfd::has_exited(process.as_fd())?;
        if !is_proven {
            return Ok(None);
        }
        let between = chain.into_iter().filter(|pid| pid_namespace_of(*pid) == Some(own)).collect();
        Ok(Some(SandboxProcesses { run, supervisor, program, between, namespace, procfs }))
    }

    /// Every process of the namespace: its ID inside, and its ID here.
    fn members(&self) -> io::Result<Vec<(u32, u32)>> {
        let mut members = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.procfs)? {
            let name = entry?;
            let Some(inner) = name.file_name().to_str().ok().and_then(|name| name.parse().ok()) else {
                continue;
            };
            members.extend(self.outer_id(inner)?.map(|outer| (inner, outer)));
        }
        Ok(members)
    }

    /// `None`: it was reaped meanwhile.
    fn outer_id(&self, inner: u32) -> io::Result<Option<u32>> {
        match pid_namespace::outer_id(self.namespace.as_fd(), inner) {
            Ok(outer) => Ok(Some(outer)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn pids(&self) -> io::Result<BTreeSet<u32>> {
        let members = self.members()?.into_iter().map(|(_, outer)| outer);
        let running = |pid: &u32| parent(*pid).is_some();
        Ok(members.chain(self.between.iter().copied()).chain([self.supervisor]).filter(running).collect())
    }

    fn handles(&self) -> io::Result<ProcessHandles> {
        let mut handles = Vec::new();
        for (inner, outer) in self.members()? {
            let Ok(process) = pidfd::open(outer) else { continue };
            // The proof after the descriptor: the namespace still has this process under this ID.
            if self.outer_id(inner)? == Some(outer) {
                handles.push((outer, process));
            }
        }
        let open = |pid: u32| Some((pid, pidfd::open(pid).ok()?));
        let between: Vec<(u32, OwnedFd)> = self.between.iter().copied().filter_map(open).collect();
        let supervisor = open(self.supervisor);
        // Once the supervisor is dead its lock is free and its children have another parent.
        if jail::supervisor(self.run)? == Some(self.supervisor) {
            let again = chain(self.program, self.supervisor).unwrap_or_default();
            handles.extend(between.into_iter().filter(|(pid, _)| again.contains(pid)));
            handles.extend(supervisor);
        }
        let browserd = jail::runs_browserd(self.run).then_some(self.program);
        Ok(ProcessHandles { handles, browserd })
    }
}

/// The processes from a program up to the supervisor it descends from, without the latter. `None`: it does not.
fn chain(program: u32, supervisor: u32) -> Option<Vec<u32>> {
    let mut chain = vec![program];
    while chain.len() <= LONGEST_CHAIN {
        match state_and_parent(*chain.last()?)? {
            (_, above) if above == supervisor => return Some(chain),
            (_, above) => chain.push(above),
        }
    }
    None
}

/// A clone's processes, each with a pidfd, which never refers to another process.
#[derive(Debug, Default)]
pub(super) struct ProcessHandles {
    handles: Vec<(u32, OwnedFd)>,
    /// browserd's process, where one is known.
    browserd: Option<u32>,
}

impl ProcessHandles {
    /// Open the clone's processes.
    pub(super) fn open(name: &str, run: &Path, limits: &LimitBackend) -> io::Result<ProcessHandles> {
        let proof = Proof::of(name, run, limits)?;
        if !proof.has_cgroup
            && let Some(sandbox) = SandboxProcesses::find(run, &proof)?
        {
            return sandbox.handles();
        }
        let found = inside(name, run, limits)?;
        let opened: Vec<(u32, OwnedFd)> =
            found.into_iter().filter_map(|pid| Some((pid, pidfd::open(pid).ok()?))).collect();
        // The proof again, now that the IDs cannot be reused. The ancestors that prove a process are among them.
        let pids: Vec<u32> = opened.iter().map(|(pid, _)| *pid).collect();
        let proven = Proof::of(name, run, limits)?.among(&pids);
        let handles: Vec<(u32, OwnedFd)> =
            opened.into_iter().filter(|(pid, _)| proven.contains(pid)).collect();
        // By its name, which is good enough for an order among the clone's own processes.
        let is_browserd = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim_end() == BROWSERD)
        };
        let browserd = handles.iter().map(|(pid, _)| *pid).find(is_browserd);
        Ok(ProcessHandles { handles, browserd })
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.handles.iter().map(|(pid, _)| *pid)
    }

    /// Those that have not exited yet.
    pub(super) fn running(&self) -> io::Result<BTreeSet<u32>> {
        let mut running = BTreeSet::new();
        for (pid, process) in &self.handles {
            if !pidfd::has_exited(process.as_fd())? {
                running.insert(*pid);
            }
        }
        Ok(running)
    }

    /// Signal all of them, browserd first. A process that has exited is success.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let mut first = None;
        let is_browserd = |pid: u32| Some(pid) == self.browserd;
        let (browserd, others): (Vec<_>, Vec<_>) =
            self.handles.iter().partition(|(pid, _)| is_browserd(*pid));
        for (_, process) in browserd.into_iter().chain(others) {
            match pidfd::signal(process.as_fd(), signal) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => drop(first.get_or_insert(error)),
                _ => {}
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Whether none of them has exited.
    pub(super) fn all_running(&self) -> io::Result<bool> {
        pidfd::all_running(self.handles.iter().map(|(_, process)| process.as_fd()))
    }

    /// Wait for browserd's exit, which closes its callers' connections.
    pub(super) fn wait_for_browserd(&self, deadline: Instant) -> io::Result<Exit> {
        let browserd = self.handles.iter().find(|(pid, _)| Some(*pid) == self.browserd);
        browserd.map_or(Ok(Exit::Exited), |(_, process)| pidfd::wait(process.as_fd(), Some(deadline)))
    }

    /// Wait until all of them have exited.
    pub(super) fn wait(&self, deadline: Instant) -> io::Result<Exit> {
        for (_, process) in &self.handles {
            if pidfd::wait(process.as_fd(), Some(deadline))? == Exit::TimedOut {
                return Ok(Exit::TimedOut);
            }
        }
        Ok(Exit::Exited)
    }

    /// Take over the handles of another listing of the same clone.
    pub(super) fn extend(&mut self, other: ProcessHandles) {
        self.handles.extend(other.handles);
        self.browserd = self.browserd.or(other.browserd);
    }
}
