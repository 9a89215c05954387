//! A clone's jail: its supervisor, a process of its own that holds the sandbox and outlives hostd.
//!
//! ```text
//! STATE/run/browsertask001/limits    the limits that are on
//! STATE/run/browsertask001/net       the clone's network namespace, kept by a mount
//! STATE/run/browsertask001/jail      whose jail it is and what it shall run; locked by the supervisor
//! STATE/run/browsertask001/control   the supervisor's socket
//! STATE/run/browsertask001/cdp       the browser's debugging pipe as a socket, without browserd
//! STATE/run/browsertask001/program   the process ID of the program in the sandbox: a hint, verified by its reader
//! STATE/run/browsertask001/log       what the supervisor and the browser said
//! ```
//!
//! Which process the supervisor is, the kernel tells: the one that holds the lock of the file `jail`. A process number
//! written down somewhere could be another's by now; a lock ends with its process.

use super::errors::{ErrorContext, failed, refused};
use super::files;
use super::mount_isolation::MountIsolation;
use super::supervisor::{Answer, BROWSERD, Orders, Request};
use crate::api::CloneId;
use crate::host::{HostError, HostErrorKind, HostResult, Identity, ObservedJail, ServiceEndpoint};
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;

pub(super) const JAIL: &str = "jail";
pub(super) const CONTROL: &str = "control";
pub(super) const CDP: &str = "cdp";
pub(super) const LOG: &str = "log";
const PROGRAM: &str = "program";
/// The files that a jail makes in the run folder.
pub(super) const FILES: [&str; 5] = [CONTROL, CDP, PROGRAM, LOG, JAIL];

/// The argument by which the daemon's program becomes a supervisor.
pub(super) const SUPERVISE: &str = "supervise-clone";
/// How long a supervisor that is alive may take to say how it is.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// The lock that a supervisor holds as long as it lives.
fn whole_file(kind: i32) -> libc::flock {
    let small = |value: i32| libc::c_short::try_from(value).expect("a small constant");
    libc::flock { l_type: small(kind), l_whence: small(libc::SEEK_SET), l_start: 0, l_len: 0, l_pid: 0 }
}

/// Take the lock of a jail, for ever: it ends with this process.
pub(super) fn lock(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_SETLK(&whole_file(libc::F_WRLCK))).map(drop).map_err(io::Error::from)
}

/// The supervisor's process, if it lives.
pub(super) fn supervisor(run: &Path) -> io::Result<Option<u32>> {
    let file = match File::open(run.join(JAIL)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut held = whole_file(libc::F_WRLCK);
    fcntl(&file, FcntlArg::F_GETLK(&mut held))?;
    let free = i32::from(held.l_type) == libc::F_UNLCK;
    Ok(u32::try_from(held.l_pid).ok().filter(|pid| !free && *pid > 0))
}

/// Note the program in the sandbox, so that the clone's processes are found without reading all of `/proc`. What is noted
/// is `PID` and whether it is browserd.
pub(super) fn note_program(run: &Path, pid: u32, is_browserd: bool) -> io::Result<()> {
    let kind = if is_browserd { BROWSERD } else { "browser" };
    files::write_atomically(&run.join(PROGRAM), format!("{pid} {kind}\n").as_bytes())
}

/// The process ID that the supervisor noted. It is a hint: whoever uses it proves first whose process it is.
pub(super) fn noted_program(run: &Path) -> Option<u32> {
    std::fs::read_to_string(run.join(PROGRAM)).ok()?.split(' ').next()?.parse().ok()
}

/// Whether the program in the sandbox is browserd.
pub(super) fn runs_browserd(run: &Path) -> bool {
    std::fs::read_to_string(run.join(PROGRAM)).is_ok_and(|noted| noted.trim_end().ends_with(BROWSERD))
}

/// What the file says.
///
/// Never for the supervisor itself by another descriptor: closing any descriptor of a file gives its lock up.
pub(super) fn orders(mut file: &File) -> io::Result<Orders> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Inspect the jail. A jail whose supervisor is dead counts as absent.
pub(super) fn inspect(run: &Path) -> io::Result<Option<ObservedJail>> {
    if supervisor(run)?.is_none() {
        return Ok(None);
    }
    let identity = match File::open(run.join(JAIL)).and_then(|file| orders(&file)) {
        Ok(orders) => Identity::Clone(orders.clone_id),
        Err(error) => Identity::Foreign(format!("{}: {error}", run.join(JAIL).display())),
    };
    Ok(Some(ObservedJail { identity, dying: false }))
}

/// Whether the service answers.
pub(super) fn is_ready(run: &Path) -> bool {
    let ask = || -> io::Result<bool> {
        if supervisor(run)?.is_none() {
            return Ok(false);
        }
        let stream = UnixStream::connect(run.join(CONTROL))?;
        stream.set_read_timeout(Some(STATUS_PATIENCE))?;
        stream.set_write_timeout(Some(STATUS_PATIENCE))?;
        Ok(matches!(converse(stream, &Request::Status)?, Answer::Ready { .. }))
    };
    ask().unwrap_or(false)
}

fn converse(mut stream: UnixStream, request: &Request) -> io::Result<Answer> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

/// Start the supervisor and wait until it holds its lock and listens.
pub(super) async fn start(
    run: PathBuf,
    orders: Orders,
    isolation: Option<&MountIsolation>,
) -> HostResult<()> {
    let name = orders.name.clone();
    let what = ErrorContext { object: format!("jail of {name}"), hint: "look at hostd's log" };
    match inspect(&run).map_err(|error| what.failed("cannot be inspected", error))? {
        Some(ObservedJail { identity: Identity::Clone(id), .. }) if id == orders.clone_id => return Ok(()),
        Some(seen) => {
            return Err(refused(
                what.object,
                "start the jail",
                HostErrorKind::Foreign,
                format!("another is there: {:?}", seen.identity),
            ));
        }
        None => {}
    }
    let text = serde_json::to_vec(&orders).expect("plain data");
    let prepare = || {
        for file in [CONTROL, CDP, PROGRAM] {
            files::remove_file(&run.join(file))?;
        }
        files::write_atomically(&run.join(JAIL), &text)?;
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(run.join(LOG))
    };
    let log = prepare().map_err(|error| what.failed("cannot be prepared", error))?;
    let namespace = isolation.map(MountIsolation::empty_namespace).transpose();
    let namespace = namespace.map_err(|error| what.failed("its mounts cannot be isolated", error))?;
    // The running program itself, also when its file was replaced by an update meanwhile.
    let child = tokio::process::Command::new("/proc/self/exe")
        .arg0("hostd")
        .arg(SUPERVISE)
        .arg(&run)
        .env_clear()
        .current_dir("/")
        .stdin(namespace.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| what.failed("the supervisor cannot be started", error))?;
    let mut unfinished = Unfinished(Some(child));
    let mut word = Vec::new();
    if let Some(mut stdout) = unfinished.0.as_mut().and_then(|child| child.stdout.take()) {
        stdout
            .read_to_end(&mut word)
            .await
            .map_err(|error| what.failed("the supervisor cannot be heard", error))?;
    }
    if word != UP {
        return Err(refused(what.object, "start the jail", HostErrorKind::Failed, last_words(&run)));
    }
    // From here on it lives without us. Tokio waits for it when it ends, if we still live then.
    drop(unfinished.0.take());
    Ok(())
}

/// What a supervisor says when it holds its lock and listens; then it closes its output.
pub(super) const UP: &[u8] = b"up\n";

/// A supervisor that is not ready yet must not outlive the call that started it.
struct Unfinished(Option<tokio::process::Child>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.start_kill();
        }
    }
}

/// Tell the supervisor to start the service and wait until it is ready.
pub(super) async fn start_service(run: PathBuf, name: &str, id: &CloneId) -> HostResult<ServiceEndpoint> {
    let what = ErrorContext {
        object: format!("service of {name}"),
        hint: "look at hostd's log; hostctl doctor checks the host",
    };
    let asked = async {
        let stream = tokio::net::UnixStream::connect(run.join(CONTROL)).await?;
        let (read, mut write) = stream.into_split();
        let mut line = serde_json::to_vec(&Request::Start { clone_id: id.clone() })?;
        line.push(b'\n');
        tokio::io::AsyncWriteExt::write_all(&mut write, &line).await?;
        let mut answer = String::new();
        tokio::io::AsyncBufReadExt::read_line(&mut tokio::io::BufReader::new(read), &mut answer).await?;
        if answer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, last_words(&run)));
        }
        io::Result::Ok(serde_json::from_str(&answer)?)
    };
    let answer: Answer = asked.await.map_err(|error| what.failed("the supervisor does not answer", error))?;
    match answer {
        Answer::Ready { endpoint, cdp_endpoint, took } => {
            for (part, seconds) in &took {
                // Beside the spans of `timing`: a part that another process measured.
                tracing::debug!(target: "hostd::time", part, seconds, "measured inside");
            }
            Ok(ServiceEndpoint { endpoint, cdp_endpoint })
        }
        Answer::Failed { message, not_ready } => {
            let kind = if not_ready { HostErrorKind::NotReady } else { HostErrorKind::Failed };
            // The log goes with the clone, so what it says last is told here.
            let message = format!("{message}; the log ends: {}", last_words(&run));
            Err(HostError::new(kind, what.object, message, what.hint))
        }
        Answer::Idle => {
            Err(failed(what.object, "the supervisor", io::Error::other("did not start it"), what.hint))
        }
    }
}

/// The end of the jail's log, for messages.
fn last_words(run: &Path) -> String {
    let text = std::fs::read(run.join(LOG)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    let words: Vec<&str> = lines.into_iter().rev().collect();
    if words.is_empty() { "(nothing was said)".into() } else { words.join(" | ") }
}
