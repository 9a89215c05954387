//! A running sandbox.

use super::limits::{LimitKeeper, Limiter};
use super::{doing, stages};
use crate::{Error, Layer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{SockaddrIn, connect};
use sandbox_inside::linux::{channel, sys};
use serde::Serialize;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Whether a layer is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerState {
    /// In force, verified.
    On,
    /// Switched off by the policy, or meaningless here (a uid drop without root).
    Off,
    /// The policy calls it optional and this machine lacks it, for this reason.
    Missing(String),
}

/// Where the time of a launch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timings {
    /// From the call of `spawn` to the start of the first stage.
    pub prepare: Duration,
    /// From there to the word of stage 2 that everything is in force (cgroup limits included).
    pub confine: Duration,
    /// From there to the execution of the program.
    pub execute: Duration,
}

impl Timings {
    /// From the call of `spawn` to the execution of the program.
    pub fn total(&self) -> Duration {
        self.prepare + self.confine + self.execute
    }
}

/// The processes of a sandbox. Dropping it kills them all.
#[derive(Debug)]
pub(crate) struct Inside {
    guard: Child,
    guard_pidfd: OwnedFd,
    /// As long as this is open, stage 1 lets the sandbox live.
    lifeline: Option<OwnedFd>,
    program: Option<Program>,
    ended: Option<ExitStatus>,
}

#[derive(Debug)]
struct Program {
    pid: i32,
    pidfd: OwnedFd,
    /// Bubblewrap's process 1 inside.
    init: i32,
    network: Option<OwnedFd>,
}

impl Inside {
    pub(crate) fn new(mut guard: Child, lifeline: OwnedFd) -> Result<Self, Error> {
        let pid = i32::try_from(guard.id()).expect("process ids are positive");
        match sys::pidfd_open(pid) {
            Ok(guard_pidfd) => Ok(Inside {
                guard,
                guard_pidfd,
                lifeline: Some(lifeline),
                program: None,
                ended: None,
            }),
            Err(e) => {
                // Its socket closes with this error, so it ends by itself; the kill is for haste.
                let _ = guard.kill();
                let _ = guard.wait();
                Err(doing("make a descriptor of stage 1")(e))
            }
        }
    }

    /// Stage 2 spoke: `pid` is its process, which waits for us and so cannot be another's number.
    pub(crate) fn found(&mut self, pid: i32) -> Result<(), Error> {
        let pidfd = sys::pidfd_open(pid).map_err(doing("make a descriptor of the program"))?;
        let init = parent_of(pid).map_err(doing("find the sandbox's process 1"))?;
        // Not readable on some hardened kernels; only `connect_inside` needs it, and says so.
        let network = std::fs::File::open(format!("/proc/{pid}/ns/net"))
            .ok()
            .map(OwnedFd::from);
        self.program = Some(Program {
            pid,
            pidfd,
            init,
            network,
        });
        Ok(())
    }

    /// The socket to stage 1.
    pub(crate) fn socket(&self) -> &OwnedFd {
        self.lifeline
            .as_ref()
            .expect("only taken to end everything")
    }

    /// Every process that must be moved to put the program under a limit, outermost first.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut pids = vec![self.guard.id()];
        if let Some(program) = &self.program {
            let outer = parent_of(program.init).unwrap_or_default();
            pids.extend(
                [outer, program.init, program.pid]
                    .into_iter()
                    .filter_map(|pid| u32::try_from(pid).ok())
                    .filter(|pid| *pid > 1),
            );
        }
        pids.dedup();
        pids
    }

    fn program(&self) -> &Program {
        self.program
            .as_ref()
            .expect("a sandbox is handed out only after stage 2 spoke")
    }

    fn kill_all(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        // Stage 1 kills bubblewrap and whatever comes up orphaned, at every moment of the start too.
        self.lifeline = None;
        self.wait()
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        let status = self.guard.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            if self.ended.is_some() {
                return Ok(self.ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let milliseconds = u16::try_from(left.as_millis()).unwrap_or(u16::MAX);
            let mut watched = [PollFd::new(self.guard_pidfd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut watched, PollTimeout::from(milliseconds)) {
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(0) if Instant::now() >= deadline => return Ok(None),
                Ok(0) => {}
                Ok(_) => return self.wait().map(Some),
            }
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Nothing more can be done about an error here: the kernel refused to kill our own child.
        let _ = self.kill_all();
    }
}

/// A process that has ended already is as good as one that got the signal.
fn signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    match sys::pidfd_send_signal(pidfd, signal) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

fn parent_of(pid: i32) -> io::Result<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // "pid (name) state ppid …"; the name may contain anything, so from its end.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(1))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A running sandbox. Dropping it kills everything inside.
#[derive(Debug)]
pub struct Sandbox {
    // Before the limiter: processes must be gone before their cgroup can be removed.
    inside: Inside,
    limiter: Limiter,
    layers: Vec<(Layer, LayerState)>,
    timings: Timings,
    listener: Option<TcpListener>,
}

impl Sandbox {
    pub(crate) fn new(
        inside: Inside,
        layers: Vec<(Layer, LayerState)>,
        limiter: Limiter,
        timings: Timings,
        listener: Option<TcpListener>,
    ) -> Self {
        Sandbox {
            inside,
            limiter,
            layers,
            timings,
            listener,
        }
    }

    /// The program's process id, as the launcher sees it.
    pub fn program_pid(&self) -> u32 {
        u32::try_from(self.inside.program().pid).expect("process ids are positive")
    }

    /// The program's process, as a descriptor that never means another one. Readable when it ended.
    pub fn program_pidfd(&self) -> BorrowedFd<'_> {
        self.inside.program().pidfd.as_fd()
    }

    /// The process id of stage 1, the launcher's child, which ends when the whole sandbox has.
    pub fn guard_pid(&self) -> u32 {
        self.inside.guard.id()
    }

    /// Stage 1's process. Readable when the whole sandbox ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.inside.guard_pidfd.as_fd()
    }

    /// Every layer, and whether it is in force.
    pub fn layers(&self) -> &[(Layer, LayerState)] {
        &self.layers
    }

    /// Whether `layer` is in force.
    pub fn has(&self, layer: Layer) -> bool {
        self.layers.contains(&(layer, LayerState::On))
    }

    /// Who keeps the cgroup limits.
    pub fn limits(&self) -> &LimitKeeper {
        self.limiter.keeper()
    }

    /// Where the time of the launch went.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// In mode `proxy`, the listening socket on the sandbox's loopback. Each connection accepted
    /// from it is one that the program made inside.
    pub fn take_proxy_listener(&mut self) -> Option<TcpListener> {
        self.listener.take()
    }

    /// Connects to `127.0.0.1:port` of the sandbox's own network (or of the host's, in mode
    /// `host`).
    pub fn connect_inside(&self, port: u16) -> io::Result<TcpStream> {
        let socket = self.socket_inside()?;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        connect(socket.as_raw_fd(), &SockaddrIn::from(address))?;
        Ok(TcpStream::from(socket))
    }

    /// A fresh TCP socket that belongs to the sandbox's network.
    fn socket_inside(&self) -> io::Result<OwnedFd> {
        let network = self.inside.program().network.as_ref().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the sandbox's network namespace could not be opened",
            )
        })?;
        let (mut helper, socket) = stages::start(&["dial"]).map_err(io::Error::other)?;
        let owner = owner_to_enter(network)?;
        let mut numbers = vec![network.as_raw_fd()];
        numbers.extend(owner.as_ref().map(AsRawFd::as_raw_fd));
        let answer = channel::send(socket.as_fd(), b"dial", &numbers)
            .and_then(|()| channel::receive(socket.as_fd()));
        // One answer, then it ends: this does not wait long.
        helper.wait()?;
        let answer = answer?;
        answer.descriptors.into_iter().next().ok_or_else(|| {
            io::Error::other(format!(
                "no socket in the sandbox's network: {}",
                String::from_utf8_lossy(&answer.bytes)
            ))
        })
    }

    /// Waits until everything inside has ended. A program killed by signal N shows as status 128+N.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.inside.wait()
    }

    /// Waits for at most `timeout`.
    pub fn wait_timeout(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        self.inside.wait_until(Instant::now() + timeout)
    }

    /// The exit status, if everything inside has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.inside.wait_until(Instant::now())
    }

    /// Asks the program to end, waits up to `grace`, then kills everything inside.
    pub fn stop(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        signal(self.program_pidfd(), libc::SIGTERM)?;
        match self.wait_timeout(grace)? {
            Some(status) => Ok(status),
            None => self.kill(),
        }
    }

    /// Kills everything inside at once and waits for its end.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.inside.kill_all()
    }
}

/// The user namespace that owns `network`, unless it is our own (which cannot be entered again).
fn owner_to_enter(network: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    use std::os::unix::fs::MetadataExt;
    let owner = super::namespace::owner_of(network.as_fd())?;
    let own = std::fs::metadata("/proc/self/ns/user")?.ino();
    let same = nix::sys::stat::fstat(&owner)?.st_ino == own;
    Ok((!same).then_some(owner))
}
