//! The clones' resolver with `egress.resolver = "auto"`: a process on their gateway address that asks this machine's resolvers.
//!
//! A machine's resolver is often one that clones may not reach: a stub on loopback, a router with a private address, a VPN's
//! server that comes and goes. The forwarder asks whatever `/etc/resolv.conf` names at the moment of the query, so clones resolve
//! names as the machine itself does. The packet filter lets only members reach it, and what a name leads to is the packet
//! filter's matter too: a private address in an answer stays blocked.
//!
//! It is the daemon's own program in a process of its own, without privileges and with a user id of its own ([`relay`]). Like the
//! clones it outlives hostd, so that names are resolved while hostd is restarted. hostd opens its sockets, because port 53 needs
//! a privilege, and replaces it at each start. The kernel tells which process it is: the one that holds the lock of its file.

mod relay;

pub(super) use relay::main;

use super::errors::{failed, refused};
use super::jail::lock;
use super::{cgroup, files};
use crate::api::Limits;
use crate::host::{HostErrorKind, HostResult, chain};
use ipnet::Ipv4Net;
use kernel::pidfd::{self, Signal};
use kernel::user_ids;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket, sockopt,
};
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The argument by which the daemon's program becomes the forwarder.
const FORWARD: &str = "forward-names";
/// The name of its file below the run folder, and of its cgroup.
const NAME: &str = "dns-forwarder";
const PORT: u16 = 53;
/// How long it may take to start, or to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The forwarder of one hostd.
#[derive(Debug)]
pub(super) struct DnsForwarder {
    address: SocketAddrV4,
    clones: Ipv4Net,
    /// A user id that no clone has.
    uid: u32,
    file: PathBuf,
    cgroup: Option<PathBuf>,
    /// Held while it is started or ended.
    changing: Mutex<()>,
    /// Why it does not run, as it was logged.
    problem: Mutex<Option<String>>,
}

impl DnsForwarder {
    /// Nothing is started yet.
    pub(super) fn new(
        gateway: Ipv4Addr,
        clones: Ipv4Net,
        uid: u32,
        run: &std::path::Path,
        cgroup: impl FnOnce(&str) -> Option<PathBuf>,
    ) -> DnsForwarder {
        let (address, file) = (SocketAddrV4::new(gateway, PORT), run.join(NAME));
        let (changing, problem) = (Mutex::default(), Mutex::default());
        DnsForwarder { address, clones, uid, file, cgroup: cgroup(NAME), changing, problem }
    }

    /// Start it if it does not run.
    pub(super) fn ensure(&self) -> HostResult<()> {
        // Asked at every inspection of the host: one system call on an open file.
        if self.process().is_ok_and(|process| process.is_some()) {
            return Ok(());
        }
        self.restart()
    }

    /// Start it if it does not run, and log why that fails, once.
    pub(super) fn keep_running(&self) {
        let problem = self.ensure().err().map(|error| format!("{}; {}", chain(&error), error.hint));
        let mut known = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != problem {
            match &problem {
                Some(problem) => tracing::error!(problem, "the clones' resolver does not run"),
                None => tracing::info!("the clones' resolver runs"),
            }
            *known = problem;
        }
    }

    /// Start it anew with this program. Queries wait in its sockets meanwhile.
    pub(super) fn restart(&self) -> HostResult<()> {
        let _changing = self.changing();
        let started = self.stop().and_then(|()| match self.start() {
            // Its file may be lost with the state folder.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                self.end_all_of_its_user()?;
                self.start()
            }
            other => other,
        });
        started.map_err(|error| {
            let object = format!("resolver of the clones at {}", self.address);
            match error.kind() {
                io::ErrorKind::AddrInUse => refused(
                    object,
                    "be started",
                    HostErrorKind::NotReady,
                    "another program on this machine uses the port; let that program leave out this address, or set \
                     egress.resolver to the address of a resolver",
                ),
                _ => failed(object, "it cannot be started", error, "set egress.resolver to the address of a resolver"),
            }
        })
    }

    /// End it.
    pub(super) fn end(&self) -> io::Result<()> {
        let _changing = self.changing();
        self.stop()?;
        if let Some(cgroup) = &self.cgroup {
            let _ = std::fs::remove_dir(cgroup);
        }
        files::remove_file(&self.file)
    }

    /// The process, if it runs.
    fn process(&self) -> io::Result<Option<u32>> {
        match File::open(&self.file) {
            Ok(file) => Ok(lock::holder(&file)?.map(|holder| holder.pid)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stop(&self) -> io::Result<()> {
        let Some(pid) = self.process()? else { return Ok(()) };
        let process = match pidfd::open(pid) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            other => other?,
        };
        // The lock shows that the descriptor is this process and no later one of the same id.
        if self.process()? != Some(pid) {
            return Ok(());
        }
        Self::kill(&process)
    }

    /// End a forwarder whose file is lost: the processes with its user id, which nobody else has.
    fn end_all_of_its_user(&self) -> io::Result<()> {
        let ids = self.uid..=self.uid;
        for (pid, _) in user_ids::processes_in(&ids)? {
            let process = match pidfd::open(pid) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                other => other?,
            };
            // The second look shows that the descriptor is this process and no later one of the same id.
            if user_ids::processes_in(&ids)?.iter().any(|(other, _)| *other == pid) {
                Self::kill(&process)?;
            }
        }
        Ok(())
    }

    fn kill(process: &OwnedFd) -> io::Result<()> {
        match pidfd::signal(process.as_fd(), Signal::KILL) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
            _ => {}
        }
        match pidfd::wait(process.as_fd(), Some(Instant::now() + PATIENCE))? {
            pidfd::Exit::Exited => Ok(()),
            pidfd::Exit::TimedOut => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the old process does not end"))
            }
        }
    }

    fn start(&self) -> io::Result<()> {
        let (udp, tcp) = (self.socket(SockType::Datagram)?, self.socket(SockType::Stream)?);
        listen(&tcp, Backlog::new(64).map_err(io::Error::from)?)?;
        if let Some(cgroup) = &self.cgroup {
            let parent = cgroup.parent().unwrap_or(cgroup);
            cgroup::ensure_parent(parent).map_err(io::Error::other)?;
            let limits = Limits { memory_bytes: Some(64 << 20), processes: Some(16), ..Limits::default() };
            cgroup::write(cgroup, &limits)?;
        }
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&self.file)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("hostd")
            .arg(FORWARD)
            .arg(&self.file)
            .arg(self.uid.to_string())
            .arg(self.clones.to_string());
        command.args(&self.cgroup).env_clear().current_dir("/");
        // Its sockets are its standard input and output.
        command.stdin(Stdio::from(udp)).stdout(Stdio::from(tcp)).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let deadline = Instant::now() + PATIENCE;
        let started = loop {
            if self.process()? == Some(child.id()) {
                break Ok(());
            }
            if let Some(status) = child.try_wait()? {
                break Err(io::Error::other(format!("it ended at its start: {status}")));
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                break Err(io::Error::new(io::ErrorKind::TimedOut, "it did not start in time"));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        // Reaped when it ends, if hostd still runs then.
        std::thread::Builder::new().name("dns-forwarder".into()).spawn(move || child.wait())?;
        started
    }

    /// The gateway address exists only while a clone has a link, hence the option.
    fn socket(&self, kind: SockType) -> io::Result<OwnedFd> {
        let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::IpFreebind, &true)?;
        if kind == SockType::Stream {
            setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        }
        bind(socket.as_raw_fd(), &SockaddrIn::from(self.address))?;
        Ok(socket)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
