//! A running sandbox.

use crate::{Error, Launch, Layer};
use serde::Serialize;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Duration;

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

/// Who keeps the cgroup limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKeeper {
    /// The policy sets none that need a cgroup.
    NotNeeded,
    /// A cgroup made directly in a delegated folder.
    Cgroup(std::path::PathBuf),
    /// A transient scope of systemd.
    Scope(String),
    /// Nobody (the policy calls limits optional); the reason.
    Nobody(String),
}

/// Where the time of a launch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timings {
    /// From the call of `spawn` to the start of bubblewrap.
    pub prepare: Duration,
    /// From there to the word of stage 2 that everything is in force.
    pub confine: Duration,
    /// From there to the execution of the program (limits included).
    pub execute: Duration,
}

/// A running sandbox. Dropping it kills everything inside.
#[derive(Debug)]
pub struct Sandbox {
    program_pid: u32,
    bubblewrap_pid: u32,
    program_pidfd: OwnedFd,
    bubblewrap_pidfd: OwnedFd,
    layers: Vec<(Layer, LayerState)>,
    limits: LimitKeeper,
    timings: Timings,
    listener: Option<TcpListener>,
}

impl Sandbox {
    pub(crate) fn start(_launch: Launch) -> Result<Sandbox, Error> {
        Err(Error::Layer {
            layer: Layer::Bubblewrap,
            reason: "not built yet".into(),
            fix: None,
        })
    }

    /// The program's process id, as the launcher sees it.
    pub fn program_pid(&self) -> u32 {
        self.program_pid
    }

    /// The program's process, as a descriptor that never means another one. Readable when it ended.
    pub fn program_pidfd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.program_pidfd.as_fd()
    }

    /// The process id of bubblewrap outside, the launcher's child.
    pub fn bubblewrap_pid(&self) -> u32 {
        self.bubblewrap_pid
    }

    /// Bubblewrap's process. Readable when the whole sandbox ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.bubblewrap_pidfd.as_fd()
    }

    /// Every layer, and whether it is in force.
    pub fn layers(&self) -> &[(Layer, LayerState)] {
        &self.layers
    }

    /// Who keeps the cgroup limits.
    pub fn limits(&self) -> &LimitKeeper {
        &self.limits
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

    /// Connects to `127.0.0.1:port` of the sandbox's own network.
    pub fn connect_inside(&self, _port: u16) -> io::Result<TcpStream> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits until everything inside has ended. A program killed by signal N shows as status 128+N.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The exit status, if everything inside has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Asks the program to end, waits up to `grace`, then kills everything inside.
    pub fn stop(&mut self, _grace: Duration) -> io::Result<ExitStatus> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Kills everything inside at once and waits for its end.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
