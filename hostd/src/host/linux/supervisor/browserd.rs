//! browserd in the clone's sandbox: the program beside the browser, which starts the browser itself.
//!
//! It sees what a confined browser sees, and one folder of the clone's to write to. Its address is the clone's own, and
//! the packet filter decides who reaches it. It says by itself when it is ready; then its word is checked: `/readyz` must
//! say yes over the network, and a renderer must be seen in a sandbox of its own, as without browserd.

use super::Orders;
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
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

const HOME: &str = "/home/browser";
const DATA: &str = "/home/browser/data";
const PROGRAM: &str = "/run/browserd";
/// The descriptor from which browserd reads its secret.
const SECRET: i32 = 3;
const TEMPORARY_BYTES: u64 = 512 << 20;
/// How long it may take until its browser can open pages. Longer than any machine needs: hostd's own limit of a step
/// (`lifecycle.step_timeout_seconds`) ends it earlier, and ends this process with it.
const READY_LIMIT: Duration = Duration::from_secs(3600);
/// How long one answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// A page has run script by then, so its renderer is there and confined: the time is for the look alone.
const RENDERER_LIMIT: Duration = Duration::from_secs(5);
/// More than its one line is no browserd.
const LONGEST_WORD: usize = 64 << 10;

/// A browserd that is ready.
pub(super) struct Started {
    pub(super) sandbox: Sandbox,
    /// Its raw CDP, if it has any.
    pub(super) cdp_endpoint: Option<String>,
    /// How long the parts of its start took.
    pub(super) took: Vec<(String, f64)>,
}

/// Start it and wait until it is ready.
pub(super) fn start(
    orders: &Orders,
    run: &Path,
    network: File,
    program: &Path,
    address: SocketAddr,
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
        _ => chown(&data, Some(orders.uid), Some(orders.uid)),
    };
    make().map_err(io_error(data.display().to_string()))?;
    let policy = policy(orders, program, &data);
    let mut arguments = vec![
        format!("--listen={address}"),
        format!("--chromium={}", orders.browser.display()),
        format!("--data-dir={DATA}"),
        format!("--secret-fd={SECRET}"),
    ];
    if orders.warm_up {
        arguments.push("--warm-up".into());
    }
    let program = Program { path: PROGRAM.into(), arguments };
    let facts = HostFacts::gather(&policy)?;
    let plan = policy.plan(&facts, &program).map_err(sandbox::Error::from)?;
    note("plan");
    let secret = pass_secret(secret).map_err(io_error("the clone's secret"))?;
    let (word, its_end) = pipe2(OFlag::O_CLOEXEC).map_err(|error| io_error("a pipe")(error.into()))?;
    let sandbox = Launch::new(plan)
        .network_namespace(network.into())
        .descriptor(SECRET, secret)
        .stdout(Stdio::Descriptor(its_end))
        .stderr(Stdio::Inherit)
        .spawn()?;
    jail::note_program(run, sandbox.program_pid(), true).map_err(io_error("the run folder"))?;
    note("sandbox");
    let said = wait_for_word(word, sandbox.pidfd(), READY_LIMIT).map_err(io_error("browserd"))?;
    note("browser");
    ask_ready(address).map_err(io_error("browserd"))?;
    let proof = launcher::prove_renderer(sandbox.program_pid(), RENDERER_LIMIT).map_err(|seen| {
        io_error("browserd")(io::Error::other(format!("the browser's own sandbox is not alive: {seen}")))
    })?;
    note("proof");
    eprintln!("supervisor: browserd as process {} with {proof:?}", sandbox.program_pid());
    let cdp_endpoint = said.split(' ').find_map(|word| host::cdp_endpoint(address, word));
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
    policy.syscalls.refuse.push(no_watching());
    policy
}

/// Nothing that a browser watches ever changes in a clone (resolver, fonts, certificates), and the kernel takes ten
/// milliseconds longer to end a process that watches files: a third of a destroy.
fn no_watching() -> SyscallRule {
    SyscallRule {
        calls: vec!["inotify_init".into(), "inotify_init1".into()],
        when: Vec::new(),
        answer: SyscallErrno::Enosys,
        reason: "nothing that is watched changes in a clone, and whoever watches takes longer to end".into(),
    }
}

/// Wait for browserd's one line: ready and where, or why it never will be. Its end is the end of the wait.
fn wait_for_word(word: OwnedFd, process: BorrowedFd<'_>, patience: Duration) -> io::Result<String> {
    let deadline = Instant::now() + patience;
    let mut pipe = File::from(word);
    let mut line = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = format!("it was not ready within {} s", patience.as_secs());
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
        let [spoken, ended] = watched.map(|one| one.any().unwrap_or(false));
        if !spoken && ended {
            return Err(io::Error::other("it ended at its start"));
        }
        let mut chunk = [0; 4096];
        let count = pipe.read(&mut chunk)?;
        line.extend_from_slice(&chunk[..count]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let said = String::from_utf8_lossy(&line[..end]).into_owned();
            return match said.split_once(' ') {
                Some(("ready", whereabouts)) => Ok(whereabouts.to_owned()),
                Some(("failed", why)) => Err(io::Error::other(format!("its browser does not start: {why}"))),
                _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("it said {said:?}"))),
            };
        }
        if count == 0 || line.len() > LONGEST_WORD {
            return Err(io::Error::other("it closed its line without a word"));
        }
    }
}

/// Whether browserd says, over the network as callers will ask, that pages can be opened.
pub(super) fn ask_ready(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    // In one piece: an answer must not overtake the rest of the question.
    let question = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    match &answer == b"HTTP/1.1 200" {
        true => Ok(()),
        false => Err(io::Error::other(format!("/readyz says {}", String::from_utf8_lossy(&answer)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::pidfd;

    /// What comes of a browserd that says this and closes its line.
    fn heard(said: &str) -> Result<String, String> {
        let (ours, theirs) = pipe2(OFlag::O_CLOEXEC).unwrap();
        File::from(theirs).write_all(said.as_bytes()).unwrap();
        let process = pidfd::open(std::process::id()).unwrap();
        wait_for_word(ours, process.as_fd(), READY_LIMIT).map_err(|error| error.to_string())
    }

    #[test]
    fn its_process_is_called_as_a_destroy_expects() {
        assert_eq!(Path::new(PROGRAM).file_name().unwrap(), super::super::BROWSERD);
    }

    #[test]
    fn only_its_own_word_makes_it_ready() {
        assert_eq!(heard("ready http://10.87.0.1:8080\n").unwrap(), "http://10.87.0.1:8080");
        assert_eq!(heard("ready http://x ws://x/y\n").unwrap(), "http://x ws://x/y");
        assert!(heard("failed exit status 127\n").unwrap_err().contains("exit status 127"));
        assert!(heard("ready").unwrap_err().contains("without a word"));
        assert!(heard("").unwrap_err().contains("without a word"));
        assert!(heard("hello world\n").unwrap_err().contains("hello world"));
    }

    #[test]
    fn its_end_is_the_end_of_the_wait() {
        let (ours, _kept_open) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let process = pidfd::open(child.id()).unwrap();
        let error = wait_for_word(ours, process.as_fd(), READY_LIMIT).unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
        child.wait().unwrap();
    }
}
