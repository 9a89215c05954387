//! browserd in the clone's sandbox: the program beside the browser, which starts the browser itself.
//!
//! It sees what a confined browser sees, and one folder of the clone's to write to. Its address is the clone's own, and
//! the packet filter decides who reaches it.

use super::Orders;
use super::service::{ServiceError, io_error};
use sandbox::{FileRule, HostFacts, Launch, Network, Policy, Program, Sandbox, Stdio};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

const HOME: &str = "/home/browser";
const DATA: &str = "/home/browser/data";
const PROGRAM: &str = "/run/browserd";
const TEMPORARY_BYTES: u64 = 512 << 20;
/// How long it may take until its browser can open pages. Longer than any machine needs: hostd's own limit of a step
/// (`lifecycle.step_timeout_seconds`) ends it earlier, and ends this process with it.
const READY_LIMIT: Duration = Duration::from_secs(3600);
const PAUSE: Duration = Duration::from_millis(5);

/// Start it and wait until it is ready.
pub(super) fn start(orders: &Orders, program: &Path, address: SocketAddr) -> Result<Sandbox, ServiceError> {
    let data = orders.folder.join("data");
    let make = || match DirBuilder::new().mode(0o700).create(&data) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => chown(&data, Some(orders.uid), Some(orders.uid)),
    };
    make().map_err(io_error(data.display().to_string()))?;
    let policy = policy(orders, program, &data);
    let arguments = [
        format!("--listen={address}"),
        format!("--chromium={}", orders.browser.display()),
        format!("--data-dir={DATA}"),
    ];
    let program = Program { path: PROGRAM.into(), arguments: arguments.into() };
    let facts = HostFacts::gather(&policy)?;
    let plan = policy.plan(&facts, &program).map_err(sandbox::Error::from)?;
    let network = File::open(&orders.network).map_err(io_error(orders.network.display().to_string()))?;
    let mut sandbox = Launch::new(plan).network_namespace(network.into()).stderr(Stdio::Inherit).spawn()?;
    let began = Instant::now();
    while !is_ready(address) {
        let ended = sandbox.try_wait().map_err(io_error("browserd"))?;
        if let Some(status) = ended {
            let why = format!("it ended at its start: {status}");
            return Err(io_error("browserd")(io::Error::other(why)));
        }
        if began.elapsed() > READY_LIMIT {
            return Err(io_error("browserd")(io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(sandbox)
}

fn policy(orders: &Orders, program: &Path, data: &Path) -> Policy {
    let mut policy = Policy::new("browser");
    policy.identity.host_uid = Some(orders.uid);
    policy.network = Network::Filtered;
    if let Some(files) = orders.limits.open_files {
        policy.limits.open_files = files;
    }
    policy.files = FileRule::system_programs();
    for folder in ["/usr/local", "/usr/src"] {
        if Path::new(folder).is_dir() && !orders.browser.starts_with(folder) {
            policy.files.push(FileRule::hidden(folder));
        }
    }
    if let Some(folder) = orders.browser.parent().filter(|folder| !folder.starts_with("/usr")) {
        policy.files.push(FileRule::programs(folder));
    }
    let shown =
        ["/etc/fonts", "/etc/localtime", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/ca-certificates"];
    policy.files.extend(shown.map(FileRule::read_only_if_present));
    policy.files.extend(FileRule::identity_files(&policy.identity, "browser", HOME));
    // The host's own resolver and names are of another network.
    let resolver = orders.resolver.map(|address| format!("nameserver {address}\n")).unwrap_or_default();
    policy.files.push(FileRule::synthetic("/etc/resolv.conf", resolver));
    policy.files.push(FileRule::synthetic("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"));
    for folder in ["/tmp", "/dev/shm", HOME] {
        policy.files.push(FileRule::temporary(folder, TEMPORARY_BYTES));
    }
    policy.files.push(FileRule::writable(data, DATA));
    policy.files.push(FileRule::ReadOnly {
        path: PROGRAM.into(),
        source: Some(program.to_owned()),
        execute: true,
        optional: false,
    });
    let environment = [("HOME", HOME), ("LANG", "C.UTF-8"), ("PATH", "/usr/bin:/bin"), ("TMPDIR", "/tmp")];
    policy.environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    policy.working_folder = HOME.into();
    policy
}

/// Whether browserd says that pages can be opened.
pub(super) fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        Ok(&answer == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}
