//! A running sandbox.

use super::limits::{LimitEnforcer, Limiter};
use super::{doing, stages};
use crate::{Error, Layer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{SockaddrIn, connect};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox_inside::linux::channel;
use serde::Serialize;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Whether a layer is enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerState {
    /// Enforced and verified.
    On,
    /// Switched off by the policy, or not applicable (a change of uid without root).
    Off,
    /// Optional in the policy and missing on this machine, for this reason.
    Missing(String),
}

/// The duration of each phase of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timings {
    /// From the call of `spawn` to the start of the first stage.
    pub prepare: Duration,
    /// From there until all layers are enforced, including cgroup limits.
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
    /// Stage 1 kills the sandbox when this socket closes.
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
        match pidfd_open(Pid::from_child(&guard), PidfdFlags::empty()) {
            Ok(guard_pidfd) => {
                Ok(Inside { guard, guard_pidfd, lifeline: Some(lifeline), program: None, ended: None })
            }
            Err(e) => {
                // Stage 1 also ends by itself because its socket closes; the kill is only faster.
                let _ = guard.kill();
                let _ = guard.wait();
                Err(doing("pidfd_open of stage 1")(e.into()))
            }
        }
    }

    /// Records the process of stage 2 after its report. It still waits for GO, so `pid` cannot have
    /// been reused.
    pub(crate) fn record_program(&mut self, pid: i32) -> Result<(), Error> {
        let pidfd = Pid::from_raw(pid)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|e| doing("pidfd_open of the program")(e.into()))?;
        let init = parent_of(pid).map_err(doing("find the sandbox's process 1"))?;
        // Some hardened kernels refuse this. Only `connect_inside` needs it and reports the error.
        let network = std::fs::File::open(format!("/proc/{pid}/ns/net")).ok().map(OwnedFd::from);
        self.program = Some(Program { pid, pidfd, init, network });
        Ok(())
    }

    /// The socket to stage 1.
    pub(crate) fn socket(&self) -> &OwnedFd {
        self.lifeline.as_ref().expect("only taken by kill_all")
    }

    /// Every process that must be moved into a cgroup to limit the program, outermost first.
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
        self.program.as_ref().expect("set before a Sandbox is created")
    }

    fn kill_all(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        // Closing the socket makes stage 1 kill bubblewrap and all orphans, also during the start.
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
        // Drop cannot report an error.
        let _ = self.kill_all();
    }
}

/// Sends SIGTERM. A process that has already ended (ESRCH) is no error.
fn terminate(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    match pidfd_send_signal(pidfd, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn parent_of(pid: i32) -> io::Result<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // "pid (name) state ppid …": the name may contain ')', so split at the last one.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(1))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A running sandbox. Dropping it kills everything inside.
#[derive(Debug)]
pub struct Sandbox {
    // Dropped before the limiter: a cgroup can be removed only after its processes have ended.
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
        Sandbox { inside, limiter, layers, timings, listener }
    }

    /// The program's process id, as the launcher sees it.
    pub fn program_pid(&self) -> u32 {
        u32::try_from(self.inside.program().pid).expect("process ids are positive")
    }

    /// The program's pidfd. Readable once the program has ended.
    pub fn program_pidfd(&self) -> BorrowedFd<'_> {
        self.inside.program().pidfd.as_fd()
    }

    /// The process id of stage 1. It is the launcher's child and ends after the whole sandbox.
    pub fn guard_pid(&self) -> u32 {
        self.inside.guard.id()
    }

    /// Stage 1's pidfd. Readable once the whole sandbox has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.inside.guard_pidfd.as_fd()
    }

    /// Every layer and its state.
    pub fn layers(&self) -> &[(Layer, LayerState)] {
        &self.layers
    }

    /// Whether `layer` is enforced.
    pub fn has(&self, layer: Layer) -> bool {
        self.layers.contains(&(layer, LayerState::On))
    }

    /// What enforces the cgroup limits.
    pub fn limits(&self) -> &LimitEnforcer {
        self.limiter.enforcer()
    }

    /// The duration of each phase of the launch.
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

    /// A new TCP socket in the sandbox's network namespace.
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
        let reply =
            channel::send(socket.as_fd(), b"dial", &numbers).and_then(|()| channel::receive(socket.as_fd()));
        // The helper ends after one reply, so this does not block for long.
        helper.wait()?;
        let reply = reply?;
        reply.descriptors.into_iter().next().ok_or_else(|| {
            io::Error::other(format!(
                "no socket in the sandbox's network: {}",
                String::from_utf8_lossy(&reply.bytes)
            ))
        })
    }

    /// Waits until everything inside has ended. A program killed by signal N gives status 128+N.
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
        terminate(self.program_pidfd())?;
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

/// The user namespace that owns `network`, unless it is this process's own, which `setns` refuses.
fn owner_to_enter(network: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    use std::os::unix::fs::MetadataExt;
    let owner = super::namespace::owner_of(network.as_fd())?;
    let own = std::fs::metadata("/proc/self/ns/user")?.ino();
    let same = nix::sys::stat::fstat(&owner)?.st_ino == own;
    Ok((!same).then_some(owner))
}
