//! Stage 1: outside the sandbox, between the launcher and bubblewrap.
//!
//! It has two purposes:
//!
//! * It does what must happen before bubblewrap runs: enter a network namespace and a cgroup, drop
//!   root, pass on only the intended descriptors. This needs a single-threaded process; between
//!   `fork` and `exec` of a multi-threaded launcher most of it is unsafe.
//! * It guards the lifetime. Bubblewrap's `--die-with-parent` follows the parent *thread* and is not
//!   armed from the first moment. Stage 1 watches the launcher's process by pidfd from before
//!   bubblewrap starts and kills everything when the launcher ends.

use super::{Failure, channel, sys};
use crate::layer::Layer;
use crate::protocol::{FIRST_DESCRIPTOR, MAX_DESCRIPTORS, Record, StageOne};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, setgroups, setpgid, setresgid, setresuid};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How to treat descriptors that the launcher left inheritable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// Close them.
    Close,
    /// Pass them on into the sandbox (layer `descriptors` off).
    PassOn,
}

/// Runs stage 1: standard input is the socket to the launcher.
pub fn run(descriptors: Inherited) -> ExitCode {
    // A program executed from a memory file is named after its descriptor number. The name is only
    // informative, so a failure is ignored.
    let _ = nix::sys::prctl::set_name(c"sandbox-guard");
    if descriptors == Inherited::Close && sys::close_range(3, i32::MAX, false).is_err() {
        return ExitCode::from(70);
    }
    let Ok((order, descriptors)) = receive_order() else {
        return ExitCode::from(70);
    };
    match start(&order, &descriptors) {
        Ok((bubblewrap, pidfd)) => guard(&order, descriptors, bubblewrap, pidfd),
        Err(failure) => {
            report(&order, &descriptors, failure);
            ExitCode::from(71)
        }
    }
}

/// Receives the order and moves its descriptors to the numbers that the protocol defines.
fn receive_order() -> std::io::Result<(StageOne, Vec<OwnedFd>)> {
    let input = std::io::stdin();
    let message = channel::receive(input.as_fd())?;
    let order: StageOne = serde_json::from_slice(&message.bytes)?;
    if message.descriptors.len() > MAX_DESCRIPTORS {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut placed = Vec::new();
    for (index, descriptor) in message.descriptors.iter().enumerate() {
        let number = FIRST_DESCRIPTOR + i32::try_from(index).map_err(std::io::Error::other)?;
        let copy = sys::copy_above(descriptor.as_fd(), number)?;
        if copy.as_raw_fd() != number {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        placed.push(copy);
    }
    Ok((order, placed))
}

fn report(order: &StageOne, descriptors: &[OwnedFd], failure: Failure) {
    let record = Record::Failed { layer: failure.layer, message: failure.message };
    if let Ok(status) = by_number(descriptors, order.status) {
        // Sending fails only if the launcher has ended.
        let _ = channel::send_record(&status, &record, &[]);
    }
}

fn start(order: &StageOne, descriptors: &[OwnedFd]) -> Result<(Pid, OwnedFd), Failure> {
    // setpgid: a terminal signals the launcher's process group, and the launcher handles that itself.
    setpgid(Pid::from_raw(0), Pid::from_raw(0))
        .map_err(|e| Failure::other(format!("own process group: {e}")))?;
    // PR_SET_CHILD_SUBREAPER: orphans of bubblewrap become children of stage 1, which kills them.
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
        .map_err(|e| Failure::other(format!("become subreaper: {e}")))?;
    // setns needs CAP_SYS_ADMIN, so it comes before the change of uid.
    if let Some(number) = order.network_namespace {
        setns(by_number(descriptors, number)?, CloneFlags::CLONE_NEWNET)
            .map_err(|e| Failure::of(Layer::Network, format!("enter the prepared network namespace: {e}")))?;
    }
    // Writing 0 to cgroup.procs moves the writing process.
    if let Some(number) = order.cgroup {
        nix::unistd::write(by_number(descriptors, number)?, b"0")
            .map_err(|e| Failure::of(Layer::Limits, format!("enter the cgroup: {e}")))?;
    }
    show_at_other_paths(&order.show_at)?;
    if let Some(user) = order.become_user {
        become_user(user)?;
    }
    let arguments = bubblewrap_arguments(order)?;
    let path = CString::new(order.bubblewrap.as_os_str().as_bytes())
        .map_err(|_| Failure::of(Layer::Bubblewrap, "path contains NUL"))?;
    let forked = match order.become_user {
        Some(user) => fork_as_only_process(user)?,
        None => sys::fork().map_err(|e| Failure::other(format!("fork: {e}")))?,
    };
    match forked {
        Some(child) => {
            let pidfd = sys::pidfd_open(child)
                .map_err(|e| Failure::other(format!("pidfd_open of bubblewrap: {e}")))?;
            Ok((Pid::from_raw(child), pidfd))
        }
        None => {
            let failure = match prepare_descriptors(order) {
                Ok(()) => {
                    let error = sys::exec(&path, &arguments, &[]);
                    let message = format!("execute {}: {error}", order.bubblewrap.display());
                    Failure::of(Layer::Bubblewrap, message)
                }
                Err(error) => Failure::of(Layer::Descriptors, format!("prepare descriptors: {error}")),
            };
            report(order, descriptors, failure);
            std::process::exit(71)
        }
    }
}

fn by_number(descriptors: &[OwnedFd], number: i32) -> Result<BorrowedFd<'_>, Failure> {
    descriptors
        .iter()
        .find(|d| d.as_raw_fd() == number)
        .map(AsFd::as_fd)
        .ok_or_else(|| Failure::other(format!("descriptor {number} was not sent")))
}

/// Shows files and folders at paths that the user to become can follow, in a mount namespace of its own. Bubblewrap opens
/// paths as that user, who cannot pass through the folders of root.
fn show_at_other_paths(shown: &[(PathBuf, PathBuf)]) -> Result<(), Failure> {
    if shown.is_empty() {
        return Ok(());
    }
    let failed = |what: &str, e: Errno| Failure::other(format!("{what}: {e}"));
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| failed("own mount namespace", e))?;
    // Nothing that is mounted here appears on the host. What the host unmounts disappears here too.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(|e| failed("separate the mounts", e))?;
    for (path, point) in shown {
        let failed = |e| failed(&format!("show {} at {}", path.display(), point.display()), e);
        // The launcher has resolved the path, so a link in it was put there afterwards by somebody else.
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let opened = openat2(AT_FDCWD, path, how).map_err(failed)?;
        let source = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(source.as_str()), point, None::<&str>, flags, None::<&str>).map_err(failed)?;
    }
    Ok(())
}

/// Drops root permanently. Groups come first because only root can change them.
fn become_user(user: u32) -> Result<(), Failure> {
    let failed = |what: &str, e: Errno| Failure::of(Layer::Identity, format!("{what}: {e}"));
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    setgroups(&[]).map_err(|e| failed("leave all groups", e))?;
    setresgid(gid, gid, gid).map_err(|e| failed("change gid", e))?;
    setresuid(uid, uid, uid).map_err(|e| failed("change uid", e))?;
    if setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_ok() {
        return Err(Failure::of(Layer::Identity, "the process could become root again"));
    }
    Ok(())
}

/// How long to wait for the kernel to release processes of an earlier sandbox with the same uid.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// Forks, unless another process has the same uid. Processes of one uid may signal each other and share limits, so a
/// private uid must not be used twice.
///
/// The kernel counts the processes of a uid for `RLIMIT_NPROC`. With a limit of two, the fork fails if there is any process
/// besides this one and its child. Zombies count too, so `/proc` is searched then. The previous limit is restored.
fn fork_as_only_process(user: u32) -> Result<Option<i32>, Failure> {
    let failed = |what: &str, e: &dyn std::fmt::Display| Failure::of(Layer::Identity, format!("{what}: {e}"));
    let (soft, hard) = getrlimit(Resource::RLIMIT_NPROC).map_err(|e| failed("RLIMIT_NPROC", &e))?;
    setrlimit(Resource::RLIMIT_NPROC, 2.min(hard), hard).map_err(|e| failed("RLIMIT_NPROC", &e))?;
    let first = sys::fork();
    setrlimit(Resource::RLIMIT_NPROC, soft, hard).map_err(|e| failed("RLIMIT_NPROC", &e))?;
    match first {
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
        forked => return forked.map_err(|e| failed("fork", &e)),
    }
    let deadline = Instant::now() + RELEASE_LIMIT;
    while let Some(other) = other_process_of(user) {
        if Instant::now() >= deadline {
            return Err(Failure::of(Layer::Identity, format!("uid {user} is in use by process {other}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    sys::fork().map_err(|e| failed("fork", &e))
}

/// A process with this uid, besides the own one and zombies.
fn other_process_of(user: u32) -> Option<Pid> {
    let own = Pid::this();
    processes().filter(|pid| *pid != own).find(|pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start);
        let uid = field("Uid:").and_then(|ids| ids.split_whitespace().next()?.parse::<u32>().ok());
        uid == Some(user) && !field("State:").is_some_and(|state| state.starts_with(['Z', 'X']))
    })
}

fn bubblewrap_arguments(order: &StageOne) -> Result<Vec<CString>, Failure> {
    [
        "bwrap".to_owned(),
        "--args".to_owned(),
        order.arguments.to_string(),
        "--".to_owned(),
        format!("/proc/self/fd/{}", order.stages),
        "confine".to_owned(),
        order.instructions.to_string(),
    ]
    .into_iter()
    .map(|word| CString::new(word).map_err(|_| Failure::other("NUL in an argument")))
    .collect()
}

/// Runs in the child: bubblewrap gets `/dev/null` as input and output, its error output goes to a
/// memory file, and only the descriptors named in `order` lose close-on-exec.
fn prepare_descriptors(order: &StageOne) -> std::io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    sys::copy_to(null.as_raw_fd(), 0)?;
    sys::copy_to(null.as_raw_fd(), 1)?;
    sys::copy_to(order.complaints, 2)?;
    let needed = [order.status, order.arguments, order.stages, order.instructions];
    for number in needed.into_iter().chain(order.inherit.iter().copied()) {
        sys::set_close_on_exec(number, false)?;
    }
    Ok(())
}

/// Waits until bubblewrap or the launcher ends, then kills every remaining child.
fn guard(order: &StageOne, descriptors: Vec<OwnedFd>, bubblewrap: Pid, pidfd: OwnedFd) -> ExitCode {
    let launcher: Vec<OwnedFd> =
        descriptors.into_iter().filter(|d| d.as_raw_fd() == order.launcher).collect();
    // The other descriptors are closed here: an open pipe end would hide the program's end of file.
    let status = match launcher.first() {
        Some(launcher) => wait_for_either(launcher.as_fd(), pidfd.as_fd(), bubblewrap),
        None => None,
    };
    if status.is_none() {
        let _ = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
    }
    kill_children();
    ExitCode::from(status.unwrap_or(137))
}

/// Bubblewrap's exit status, or `None` if the launcher ended or closed its socket first.
fn wait_for_either(launcher: BorrowedFd<'_>, bubblewrap: BorrowedFd<'_>, pid: Pid) -> Option<u8> {
    // The launcher sends nothing more on this socket, so any event means that it was closed.
    let input = std::io::stdin();
    let mut watched = [
        PollFd::new(launcher, PollFlags::POLLIN),
        PollFd::new(bubblewrap, PollFlags::POLLIN),
        PollFd::new(input.as_fd(), PollFlags::POLLIN),
    ];
    loop {
        match poll(&mut watched, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        let happened = |index: usize| watched[index].revents().is_some_and(|e| !e.is_empty());
        if happened(1) {
            return Some(match waitpid(pid, None) {
                Ok(WaitStatus::Exited(_, code)) => u8::try_from(code).unwrap_or(255),
                Ok(WaitStatus::Signaled(_, signal, _)) => 128 + signal as u8,
                _ => 255,
            });
        }
        if happened(0) || happened(2) {
            return None;
        }
    }
}

/// Kills and reaps children, including adopted orphans, until none is left.
fn kill_children() {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {
                for child in children() {
                    let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
                }
                // The children of a reaped child are adopted and appear in the next round.
                let _ = waitpid(None, None);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// Processes whose parent is this one.
fn children() -> Vec<Pid> {
    let own = std::process::id().to_string();
    processes()
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
                // "pid (name) state ppid …": the name may contain ')', so split at the last one.
                stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1))
                    == Some(own.as_str())
            })
        })
        .collect()
}

/// All processes that `/proc` shows.
fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).map(Pid::from_raw)
}
