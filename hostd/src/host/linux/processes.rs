//! Which processes belong to a clone, proven by the kernel, and how they are killed without ever signalling another.
//!
//! A process belongs to a clone if one of these holds:
//! - it is in the clone's cgroup;
//! - it is the clone's supervisor: the process that holds the lock of the jail file;
//! - it runs as the clone's user, in the PID namespace of the supervisor's sandbox or in the clone's network namespace. Our
//!   own mount keeps the latter, so its inode belongs to no other namespace;
//! - it is one of the processes between the supervisor and the sandbox's PID namespace;
//! - it descends from one of these. Chromium puts its renderers into namespaces of their own.
//!
//! A namespace alone proves nothing: an operator enters a clone's namespaces with `nsenter`. A name, a user ID alone or a
//! process ID from a file proves nothing either. A process is signalled through a pidfd that was opened before the last of
//! these proofs.
//!
//! A process that a clone starts has no other user than the clone's: the sandbox's user namespace maps no other ID. If it is
//! orphaned, it stays in the sandbox's PID namespace, which the kernel ends with its first process.
//!
//! Reading all of `/proc` takes longer the more clones there are, so it is the last resort: for a clone without a cgroup
//! whose supervisor is gone or has not started its sandbox yet.

use super::limits::LimitBackend;
use super::supervisor::BROWSERD;
use super::{cgroup, jail, netns, network};
use crate::slot::SlotNames;
use jail::NotedProgram;
use kernel::pid_namespace;
use kernel::pidfd::{self, Exit, Signal};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Processes between a supervisor and the program in its sandbox. There are three; more than this is another tree.
const LONGEST_CHAIN: usize = 8;
/// Killed processes cannot fork, so the second listing finds no new one. More listings than this mean a bug.
const KILL_ROUNDS: usize = 16;

/// A clone, as far as its processes are concerned.
#[derive(Debug, Clone, Copy)]
pub(super) struct CloneRef<'a> {
    pub(super) names: &'a SlotNames,
    pub(super) run: &'a Path,
    pub(super) limits: &'a LimitBackend,
}

impl CloneRef<'_> {
    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        self.limits.cgroup(self.names.name.as_str())
    }
}

/// The processes of a clone.
pub(super) fn inside(clone: CloneRef<'_>) -> io::Result<BTreeSet<u32>> {
    let proof = Proof::of(clone)?;
    // A cgroup has all of a clone's processes: the supervisor enters it before it starts anything, and nothing inside can
    // leave it. A clone without supervisor and network namespace has no process.
    if proof.has_cgroup || (proof.processes.is_empty() && proof.network.is_none()) {
        return Ok(proof.processes);
    }
    match SandboxProcesses::find(clone.run, &proof)? {
        Some(sandbox) => sandbox.pids(),
        None => Ok(proof.among(&all()?)),
    }
}

/// Send SIGKILL to every process of the clone, also when it is stopped or frozen. When this returns, none of them can
/// execute another instruction of its own or fork; the kernel may still be releasing them.
pub(super) fn kill(clone: CloneRef<'_>) -> io::Result<ProcessHandles> {
    let proof = Proof::of(clone)?;
    if let Some(cgroup) = clone.cgroup().filter(|_| proof.has_cgroup) {
        let handles = ProcessHandles::open(clone)?;
        // Kills atomically: also what is forked at this moment, and what is frozen.
        cgroup::kill(&cgroup)?;
        // The supervisor, if it has not entered the cgroup yet.
        handles.signal(Signal::KILL)?;
        return Ok(handles);
    }
    if let Some(sandbox) = SandboxProcesses::find(clone.run, &proof)? {
        return kill_until_none_is_new(|| sandbox.handles());
    }
    kill_until_none_is_new(|| ProcessHandles::open(clone))
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
    users: CloneUsers,
}

/// The users that a clone's processes may have: that of its slot, and that of its jail file. They differ after the range of
/// user IDs was changed in the configuration.
#[derive(Debug, Clone, Copy)]
struct CloneUsers([u32; 2]);

impl CloneUsers {
    fn of(clone: CloneRef<'_>) -> CloneUsers {
        let own = clone.names.uid;
        CloneUsers([own, jail::uid(clone.run).unwrap_or(own)])
    }

    /// Whether a process has the clone's user. Not by the owner of its folder in `/proc`: that is root for a process that is
    /// not dumpable.
    fn include(&self, pid: u32) -> bool {
        user_of(pid).is_some_and(|uid| uid != 0 && self.0.contains(&uid))
    }
}

impl Proof {
    fn of(clone: CloneRef<'_>) -> io::Result<Proof> {
        let cgroup = clone.cgroup().map(|cgroup| cgroup::processes(&cgroup)).transpose()?.flatten();
        let has_cgroup = cgroup.is_some();
        let mut processes: BTreeSet<u32> = cgroup.into_iter().flatten().collect();
        let supervisor = jail::supervisor(clone.run)?;
        processes.extend(supervisor);
        // hostd itself never belongs to a clone, even if somebody moves it into the cgroup.
        processes.remove(&std::process::id());
        let network = netns::inode(&network::pin(clone.run));
        Ok(Proof { processes, supervisor, has_cgroup, network, users: CloneUsers::of(clone) })
    }

    /// The clone's processes: those known already, and those of the candidates that are proven.
    fn among(self, candidates: &[u32]) -> BTreeSet<u32> {
        let mut found = self.processes;
        if self.network.is_some() {
            let is_inside = |pid: &u32| network_of(*pid) == self.network && self.users.include(*pid);
            found.extend(candidates.iter().copied().filter(is_inside));
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
    let stat = MainThread::of(pid)?;
    Some((stat.state, stat.parent))
}

/// Whether a process is stopped. One that is gone counts as stopped.
pub(super) fn is_stopped(pid: u32) -> bool {
    state_and_parent(pid).is_none_or(|(state, _)| matches!(state, 'T' | 't' | 'Z' | 'X'))
}

/// The file with the state of a process's main thread. The file of the whole process, `/proc/PID/stat`, takes longer to read,
/// because it adds up the times of all threads.
fn main_thread_stat(pid: u32) -> String {
    format!("/proc/{pid}/task/{pid}/stat")
}

/// The file is shorter: it has about fifty numbers and a name of at most 64 bytes.
const STAT_BYTES: usize = 1024;

/// What the kernel tells of a process's main thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MainThread {
    state: char,
    parent: u32,
    is_exiting: bool,
    is_being_killed: bool,
}

impl MainThread {
    fn of(pid: u32) -> Option<MainThread> {
        let mut stat = [0; STAT_BYTES];
        let file = File::open(main_thread_stat(pid));
        let length = file.and_then(|mut file| file.read(&mut stat)).ok()?;
        MainThread::parse(&stat[..length])
    }

    fn parse(stat: &[u8]) -> Option<MainThread> {
        // "pid (name) state ppid …": the name may contain anything, so fields are counted from its closing parenthesis.
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // Fields 9 and 31 of proc(5); field 5 is next.
        let flags: u64 = fields.nth(4)?.parse().ok()?;
        let pending: u64 = fields.nth(21)?.parse().ok()?;
        let is_being_killed = pending & (1 << (libc::SIGKILL - 1)) != 0;
        Some(MainThread { state, parent, is_exiting: flags & PF_EXITING != 0, is_being_killed })
    }

    /// Whether it is stopped or frozen and nothing has ended it. SIGKILL makes a stopped or frozen thread run before `kill`
    /// returns, so one that was killed is never in such a state again.
    fn is_suspended(&self) -> bool {
        matches!(self.state, 'T' | 't' | 'S' | 'D') && !self.is_exiting && !self.is_being_killed
    }
}

/// A flag of the kernel's `task_struct`: the thread is on its way out, and will not run its program again.
const PF_EXITING: u64 = 0x4;

/// The real user of a process, in the user namespace of this one.
fn user_of(pid: u32) -> Option<u32> {
    // The line is among the first ten.
    let mut status = [0; 1024];
    let length =
        File::open(format!("/proc/{pid}/status")).and_then(|mut file| file.read(&mut status)).ok()?;
    let text = String::from_utf8_lossy(&status[..length]).into_owned();
    text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
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
    program: NotedProgram,
    users: CloneUsers,
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
        let Some(noted) = jail::noted_program(run) else { return Ok(None) };
        let program = noted.pid;
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
        let users = proof.users;
        Ok(Some(SandboxProcesses { run, supervisor, program: noted, users, between, namespace, procfs }))
    }

    /// Every process of the clone in the namespace: its ID inside, and its ID here. An operator's process that entered the
    /// namespace has another user. The kernel ends it with the namespace.
    fn members(&self) -> io::Result<Vec<(u32, u32)>> {
        let mut members = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.procfs)? {
            let name = entry?;
            let Some(inner) = name.file_name().to_str().ok().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let outer = self.outer_id(inner)?.filter(|outer| self.users.include(*outer));
            members.extend(outer.map(|outer| (inner, outer)));
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
            // The proof after the descriptor: the namespace still has this process under this ID. A zombie has ended.
            if self.outer_id(inner)? == Some(outer) && !pidfd::has_exited(process.as_fd())? {
                handles.push((outer, process));
            }
        }
        let open = |pid: u32| Some((pid, pidfd::open(pid).ok()?));
        let between: Vec<(u32, OwnedFd)> = self.between.iter().copied().filter_map(open).collect();
        let supervisor = open(self.supervisor);
        // Once the supervisor is dead its lock is free and its children have another parent.
        if jail::supervisor(self.run)? == Some(self.supervisor) {
            let again = chain(self.program.pid, self.supervisor).unwrap_or_default();
            handles.extend(between.into_iter().filter(|(pid, _)| again.contains(pid)));
            handles.extend(supervisor);
        }
        let browserd = self.program.is_browserd.then_some(self.program.pid);
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
    pub(super) fn open(clone: CloneRef<'_>) -> io::Result<ProcessHandles> {
        let proof = Proof::of(clone)?;
        if !proof.has_cgroup
            && let Some(sandbox) = SandboxProcesses::find(clone.run, &proof)?
        {
            return sandbox.handles();
        }
        let found = inside(clone)?;
        let opened: Vec<(u32, OwnedFd)> =
            found.into_iter().filter_map(|pid| Some((pid, pidfd::open(pid).ok()?))).collect();
        // The proof again, now that the IDs cannot be reused. The ancestors that prove a process are among them.
        let pids: Vec<u32> = opened.iter().map(|(pid, _)| *pid).collect();
        let proven = Proof::of(clone)?.among(&pids);
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

    /// Open the file with the state of each process. `None`: one of them has exited.
    pub(super) fn open_states(&self) -> io::Result<Option<ProcessStates>> {
        let opened: Option<Vec<File>> =
            self.pids().map(|pid| File::open(main_thread_stat(pid)).ok()).collect();
        // The pidfds prove that the IDs still belonged to the same processes when the files were opened.
        let are_same = pidfd::all_running(self.handles.iter().map(|(_, process)| process.as_fd()))?;
        Ok(opened.filter(|_| are_same).map(ProcessStates))
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

/// The open files with the states of a clone's processes. Each refers to one process: once that is reaped, a read fails, also
/// if another process has its ID.
#[derive(Debug)]
pub(super) struct ProcessStates(Vec<File>);

impl ProcessStates {
    /// Whether all processes are stopped or frozen and none was killed, by one pread(2) for each.
    ///
    /// A pidfd does not tell: it reports an exit only when the kernel has released the process's memory, milliseconds after
    /// the kill.
    pub(super) fn all_suspended(&self) -> bool {
        let mut stat = [0; STAT_BYTES];
        self.0.iter().all(|file| {
            let read = file.read_at(&mut stat, 0);
            let line = &stat[..*read.as_ref().unwrap_or(&0)];
            let is_suspended = MainThread::parse(line).is_some_and(|thread| thread.is_suspended());
            if !is_suspended {
                tracing::warn!(?read, line = %line.escape_ascii(), "a process that was frozen is not any more");
            }
            is_suspended
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::Duration;

    fn stopped_sleeper() -> (Child, ProcessHandles) {
        let child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let handles =
            ProcessHandles { handles: vec![(child.id(), pidfd::open(child.id()).unwrap())], browserd: None };
        handles.signal(Signal::STOP).unwrap();
        let began = Instant::now();
        while !is_stopped(child.id()) {
            assert!(began.elapsed() < Duration::from_secs(30), "it does not stop");
            std::thread::yield_now();
        }
        (child, handles)
    }

    #[test]
    fn a_process_that_was_killed_is_never_called_suspended() {
        for _ in 0..200 {
            let (mut child, handles) = stopped_sleeper();
            let states = handles.open_states().unwrap().expect("it is alive");
            assert!(states.all_suspended() && states.all_suspended(), "the same files are read again");
            handles.signal(Signal::KILL).unwrap();
            assert!(!states.all_suspended(), "right after the kill");
            child.wait().unwrap();
            assert!(!states.all_suspended(), "after it was reaped");
            assert!(handles.open_states().unwrap().is_none(), "of a process that was reaped");
        }
    }

    #[test]
    fn the_fields_of_stat_are_found_behind_any_name() {
        let line = |state: char, flags: u32, pending: u32| {
            format!(
                "7 (a) R 1 (b)) {state} 3 7 7 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 9 9 9 9 1 1 0 0 0 {pending} 0 0 0\n"
            )
        };
        let seen = |state, flags, pending| MainThread::parse(line(state, flags, pending).as_bytes()).unwrap();
        assert_eq!(seen('T', 0x40_0000, 0).parent, 3);
        assert!(seen('T', 0x40_0000, 0).is_suspended() && seen('S', 0, 1).is_suspended());
        assert!(!seen('T', 0x40_0004, 0).is_suspended(), "exiting");
        assert!(!seen('T', 0x40_0000, 0x100).is_suspended(), "being killed");
        assert!(!seen('R', 0, 0).is_suspended() && !seen('Z', 0, 0).is_suspended());
        assert_eq!(MainThread::parse(b"7 (sh) S"), None);
    }

    #[test]
    fn the_user_is_read_for_any_process() {
        assert_eq!(user_of(std::process::id()), Some(nix::unistd::getuid().as_raw()));
        assert_eq!(user_of(u32::MAX), None);
    }
}
