//! browserd in the clone's sandbox: the program beside the browser, which starts the browser.
//!
//! It sees the files that a confined browser sees, and can write to one folder of the clone. It listens on the clone's
//! address, and the packet filter decides who reaches it. It writes a ready line when its browser can open pages. The ready
//! line is not trusted: `/readyz` must answer 200 over the network, and a renderer must be observed in its own sandbox.

use super::Orders;
use super::output::{OutputLog, printable};
use super::service::{ServiceError, io_error};
use crate::api::CloneSecret;
use crate::host::{self, linux::jail};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;
use sandbox::{
    FileRule, HostFacts, Launch, Network, Policy, Program, Sandbox, Stdio, SyscallErrno, SyscallRule,
};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, fchown};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HOME: &str = "/home/browser";
const DATA: &str = "/home/browser/data";
const PROGRAM: &str = "/run/browserd";
/// The descriptor from which browserd reads its secret.
const SECRET: i32 = 3;
const TEMPORARY_BYTES: u64 = 512 << 20;
/// How long it may take until its browser can open pages. Longer than any machine needs: hostd's timeout of a step
/// (`lifecycle.step_timeout_seconds`) is shorter, and hostd then ends this process.
const READY_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long one answer of `/readyz` may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A page has run script by then, so a confined renderer exists: the time is only for finding it.
const RENDERER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest ready line.
const LONGEST_LINE: usize = 16 << 10;
/// How much of an invalid line is in the error.
const LONGEST_QUOTE: usize = 512;

/// A browserd that is ready.
pub(super) struct Started {
    pub(super) sandbox: Sandbox,
    /// The URL of its raw CDP, if it offers that.
    pub(super) cdp_endpoint: Option<String>,
    /// The duration of each part of its start.
    pub(super) took: Vec<(String, f64)>,
}

/// Start it and wait until it is ready.
pub(super) fn start(
    orders: &Orders,
    run: &Path,
    network: File,
    program: &Path,
    address: SocketAddr,
    log: &Arc<OutputLog>,
    secret: Option<&CloneSecret>,
) -> Result<Started, ServiceError> {
    let mut began = Instant::now();
    let mut took = Vec::new();
    let mut note = |part: &str| {
        took.push((part.to_owned(), began.elapsed().as_secs_f64()));
        began = Instant::now();
    };
    let data = orders.folder.join("data");
    let make = || match DirBuilder::new().mode(0o700).create(&data) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => {
            // Not by its path: a link in its place must not change the owner of the link's target.
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            fchown(
                nix::fcntl::open(&data, flags, nix::sys::stat::Mode::empty())?,
                Some(orders.uid),
                Some(orders.uid),
            )
        }
    };
    make().map_err(io_error(data.display().to_string()))?;
    let policy = policy(orders, program, &data);
    let mut arguments = vec![
        format!("--listen={address}"),
        format!("--chromium={}", orders.browser.display()),
        format!("--data-dir={DATA}"),
        format!("--secret-fd={SECRET}"),
    ];
    arguments.extend(orders.settings.arguments());
    if orders.warm_up {
        arguments.push("--warm-up".into());
    }
    let program = Program { path: PROGRAM.into(), arguments };
    let facts = HostFacts::gather(&policy)?;
    let plan = policy.plan(&facts, &program).map_err(sandbox::Error::from)?;
    note("plan");
    let secret = pass_secret(secret).map_err(io_error("the clone's secret"))?;
    let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(|error| io_error("a pipe")(error.into()));
    let ((ready_line, stdout), (errors, stderr)) = (pipe()?, pipe()?);
    let sandbox = Launch::new(plan)
        .network_namespace(network.into())
        .descriptor(SECRET, secret)
        .stdout(Stdio::Descriptor(stdout))
        .stderr(Stdio::Descriptor(stderr))
        .spawn()?;
    OutputLog::follow(log, errors).map_err(io_error("the thread that reads browserd's output"))?;
    jail::note_program(run, sandbox.program_pid(), true).map_err(io_error("the run folder"))?;
    note("sandbox");
    let addresses =
        wait_for_ready_line(ready_line, sandbox.pidfd(), READY_TIMEOUT).map_err(io_error("browserd"))?;
    note("browser");
    ask_ready(address).map_err(io_error("browserd"))?;
    let proof = launcher::prove_renderer(sandbox.program_pid(), RENDERER_TIMEOUT).map_err(|seen| {
        io_error("browserd")(io::Error::other(format!("the browser's own sandbox is not active: {seen}")))
    })?;
    note("proof");
    log.note(format_args!("browserd as process {} with {proof:?}", sandbox.program_pid()));
    let cdp_endpoint = addresses.split(' ').find_map(|url| host::cdp_endpoint(address, url));
    Ok(Started { sandbox, cdp_endpoint, took })
}

/// The secret in a pipe: once browserd has read it, no descriptor in the sandbox contains it any more.
fn pass_secret(secret: Option<&CloneSecret>) -> io::Result<OwnedFd> {
    let secret = secret.ok_or_else(|| io::Error::other("hostd sent none"))?;
    let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
    File::from(theirs).write_all(secret.as_str().as_bytes())?;
    Ok(ours)
}

fn policy(orders: &Orders, program: &Path, data: &Path) -> Policy {
    let mut policy = Policy::new("browser");
    policy.identity.host_uid = Some(orders.uid);
    policy.network = Network::Filtered;
    if let Some(files) = orders.limits.open_files {
        policy.limits.open_files = files;
    }
    policy.files = launcher::browser_files(&orders.browser);
    policy.files.extend(FileRule::identity_files(&policy.identity, "browser", HOME));
    // The host's own resolver and names belong to another network.
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
    policy.syscalls.refuse.push(no_watching());
    policy
}

/// The files that a browser watches never change in a clone (resolver, fonts, certificates), and the kernel takes ten
/// milliseconds longer to end a process that watches files: a third of a destroy.
fn no_watching() -> SyscallRule {
    SyscallRule {
        calls: vec!["inotify_init".into(), "inotify_init1".into()],
        when: Vec::new(),
        answer: SyscallErrno::Enosys,
        reason: "nothing that is watched changes in a clone, and whoever watches takes longer to end".into(),
    }
}

/// Wait for browserd's ready line: `ready` and its addresses, or `failed` and why. The wait ends with the process.
fn wait_for_ready_line(pipe: OwnedFd, process: BorrowedFd<'_>, timeout: Duration) -> io::Result<String> {
    let deadline = Instant::now() + timeout;
    let mut pipe = File::from(pipe);
    let mut line = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = format!("it was not ready within {} s", timeout.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        let milliseconds = u16::try_from(left.as_millis()).unwrap_or(u16::MAX).max(1);
        let mut watched =
            [PollFd::new(pipe.as_fd(), PollFlags::POLLIN), PollFd::new(process, PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::from(milliseconds)) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let [has_output, has_ended] = watched.map(|one| one.any().unwrap_or(false));
        if !has_output && has_ended {
            return Err(io::Error::other("it ended at its start"));
        }
        let mut chunk = [0; 4096];
        let count = pipe.read(&mut chunk)?;
        line.extend_from_slice(&chunk[..count]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            return parse_ready_line(&String::from_utf8_lossy(&line[..end]));
        }
        if count == 0 || line.len() > LONGEST_LINE {
            return Err(io::Error::other("it wrote no complete ready line"));
        }
    }
}

fn parse_ready_line(line: &str) -> io::Result<String> {
    // The program may be hostile, and errors are shown on terminals.
    let quote = |text: &str| printable(&text.chars().take(LONGEST_QUOTE).collect::<String>());
    match line.split_once(' ') {
        Some(("ready", addresses)) => Ok(addresses.to_owned()),
        Some(("failed", why)) => Err(io::Error::other(format!("its browser does not start: {}", quote(why)))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("its ready line is {:?}", quote(line)))),
    }
}

/// Ask browserd over the network, as its callers do, whether pages can be opened. At most one status line is read.
pub(super) fn ask_ready(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    // Written at once: the answer must not arrive before the rest of the request is sent.
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    match &answer == b"HTTP/1.1 200" {
        true => Ok(()),
        false => {
            let answer = printable(&String::from_utf8_lossy(&answer));
            Err(io::Error::other(format!("/readyz answers {answer}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::pidfd;

    /// The result for a browserd that writes this and closes its output.
    fn result_of(output: &[u8]) -> Result<String, String> {
        let (ours, theirs) = pipe2(OFlag::O_CLOEXEC).unwrap();
        File::from(theirs).write_all(output).unwrap();
        let process = pidfd::open(std::process::id()).unwrap();
        wait_for_ready_line(ours, process.as_fd(), READY_TIMEOUT).map_err(|error| error.to_string())
    }

    #[test]
    fn its_process_has_the_name_that_a_destroy_expects() {
        assert_eq!(Path::new(PROGRAM).file_name().unwrap(), super::super::BROWSERD);
    }

    #[test]
    fn only_a_ready_line_makes_it_ready() {
        assert_eq!(result_of(b"ready http://10.87.0.1:8080\n").unwrap(), "http://10.87.0.1:8080");
        assert_eq!(result_of(b"ready http://x ws://x/y\n").unwrap(), "http://x ws://x/y");
        assert!(result_of(b"failed exit status 127\n").unwrap_err().contains("exit status 127"));
        for incomplete in [&b"ready"[..], b"", &[b'x'; 60_000]] {
            assert!(result_of(incomplete).unwrap_err().contains("no complete ready line"));
        }
        assert!(result_of(b"hello world\n").unwrap_err().contains("hello world"));
        let hostile = [&b"failed \x1b[2J"[..], &[b'y'; 10_000], b"\n"].concat();
        let error = result_of(&hostile).unwrap_err();
        assert!(error.contains("\\u{1b}[2J") && error.len() < 1000, "{error}");
    }

    #[test]
    fn the_wait_ends_with_its_process() {
        let (ours, _kept_open) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let process = pidfd::open(child.id()).unwrap();
        let error = wait_for_ready_line(ours, process.as_fd(), READY_TIMEOUT).unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
        child.wait().unwrap();
    }
}
