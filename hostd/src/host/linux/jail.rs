//! A clone's jail: its supervisor, a process of its own that holds the sandbox and outlives hostd.
//!
//! ```text
//! STATE/run/browsertask001/limits    the limits in force
//! STATE/run/browsertask001/net       the clone's network namespace, kept by a mount
//! STATE/run/browsertask001/jail      the clone's identity and the supervisor's orders; locked by the supervisor
//! STATE/run/browsertask001/deadline  when the supervisor ends the clone by itself (see [`deadline`])
//! STATE/run/browsertask001/control   the supervisor's socket
//! STATE/run/browsertask001/cdp       the browser's debugging pipe as a socket, for clones without browserd
//! STATE/run/browsertask001/program   the process ID of the program in the sandbox: a hint, verified by its reader
//! STATE/run/browsertask001/log       the recent output of supervisor and clone: bounded, written by the supervisor only
//! ```
//!
//! The kernel tells which process is the supervisor: the one that holds the lock of the file `jail` (see [`lock`]). A
//! process ID in a file could belong to another process by now.
//!
//! hostd reads a bounded amount from everything that a supervisor writes: a compromised clone must not be able to use up
//! hostd's memory through its supervisor.

pub(super) mod deadline;
pub(super) mod lock;

use super::errors::{ErrorContext, failed, refused};
use super::files;
use super::mount_isolation::MountIsolation;
use super::supervisor::{BROWSERD, Orders, SupervisorReply, SupervisorRequest, last_lines, printable};
use crate::api::CloneId;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult, Identity, ObservedJail, ServiceEndpoint};
use lock::LockHolder;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
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
pub(super) const FILES: [&str; 6] = [CONTROL, CDP, PROGRAM, LOG, deadline::DEADLINE, JAIL];

/// The argument by which the daemon's program becomes a supervisor.
pub(super) const SUPERVISE: &str = "supervise-clone";
/// How long a running supervisor may take to report its service's status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// How much hostd reads of a jail file, of a reply and of the end of a log. All are far smaller.
const LONGEST_FILE: u64 = 64 << 10;
const LONGEST_REPLY: u64 = 64 << 10;
const LOG_TAIL: u64 = 8 << 10;

/// A jail whose supervisor is alive.
#[derive(Debug)]
pub(super) struct LiveJail {
    pub(super) supervisor: LockHolder,
    pub(super) identity: Identity,
}

impl LiveJail {
    /// Inspect the jail with this run folder: four system calls. One whose supervisor is dead is none.
    pub(super) fn find(run: &Path) -> io::Result<Option<LiveJail>> {
        let Some(file) = open(run)? else { return Ok(None) };
        let Some(supervisor) = lock::holder(&file)? else { return Ok(None) };
        let identity = match read_json::<JailIdentity>(&file) {
            Ok(found) => Identity::Clone(found.clone_id),
            Err(error) => Identity::Foreign(format!("{}: {error}", run.join(JAIL).display())),
        };
        Ok(Some(LiveJail { supervisor, identity }))
    }

    pub(super) fn observed(&self) -> ObservedJail {
        ObservedJail { identity: self.identity.clone(), dying: false }
    }

    /// Whether the service is ready, as the supervisor found when it last checked it.
    pub(super) fn is_ready(&self, run: &Path) -> bool {
        self.supervisor.is_ready.unwrap_or_else(|| answers(run))
    }
}

/// The part of [`Orders`] that says whose jail it is.
#[derive(Deserialize)]
struct JailIdentity {
    clone_id: CloneId,
}

fn open(run: &Path) -> io::Result<Option<File>> {
    match File::open(run.join(JAIL)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The supervisor's process, if it is alive.
pub(super) fn supervisor(run: &Path) -> io::Result<Option<u32>> {
    let Some(file) = open(run)? else { return Ok(None) };
    Ok(lock::holder(&file)?.map(|holder| holder.pid))
}

/// The user that the clone's processes were started as, as far as the jail file tells.
pub(super) fn uid(run: &Path) -> Option<u32> {
    let file = open(run).ok()??;
    read_json::<Orders>(&file).ok().map(|orders| orders.uid)
}

/// What the jail file tells the supervisor.
pub(super) fn orders(file: &File) -> io::Result<Orders> {
    read_json(file)
}

fn read_json<T: serde::de::DeserializeOwned>(mut file: &File) -> io::Result<T> {
    // A jail file fits into one read of this size.
    let mut bytes = vec![0; 4 << 10];
    let mut length = file.read(&mut bytes)?;
    if length == bytes.len() {
        length += file.take(LONGEST_FILE).read_to_end(&mut bytes)?;
    }
    serde_json::from_slice(&bytes[..length])
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Note the program in the sandbox, so that the clone's processes are found without reading all of `/proc`: its process ID
/// and whether it is browserd.
pub(super) fn note_program(run: &Path, pid: u32, is_browserd: bool) -> io::Result<()> {
    let kind = if is_browserd { BROWSERD } else { "browser" };
    files::write_atomically(&run.join(PROGRAM), format!("{pid} {kind}\n").as_bytes())
}

/// The program that the supervisor noted. A hint: whoever uses it proves first whose process it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct NotedProgram {
    pub(super) pid: u32,
    pub(super) is_browserd: bool,
}

pub(super) fn noted_program(run: &Path) -> Option<NotedProgram> {
    let mut text = String::new();
    File::open(run.join(PROGRAM)).ok()?.take(LONGEST_FILE).read_to_string(&mut text).ok()?;
    let (pid, kind) = text.split_once(' ')?;
    Some(NotedProgram { pid: pid.parse().ok()?, is_browserd: kind.trim_end() == BROWSERD })
}

/// Ask the supervisor whether the service answers now.
pub(super) fn answers(run: &Path) -> bool {
    let ask = || -> io::Result<bool> {
        if supervisor(run)?.is_none() {
            return Ok(false);
        }
        let stream = UnixStream::connect(run.join(CONTROL))?;
        stream.set_read_timeout(Some(STATUS_TIMEOUT))?;
        stream.set_write_timeout(Some(STATUS_TIMEOUT))?;
        Ok(matches!(converse(stream, &SupervisorRequest::Status)?, SupervisorReply::Ready { .. }))
    };
    ask().unwrap_or(false)
}

fn converse(mut stream: UnixStream, request: &SupervisorRequest) -> io::Result<SupervisorReply> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = Vec::new();
    BufReader::new(stream.take(LONGEST_REPLY)).read_until(b'\n', &mut reply)?;
    Ok(serde_json::from_slice(&reply)?)
}

/// Start the supervisor and wait until it holds its lock and listens.
pub(super) async fn start(
    run: PathBuf,
    orders: Orders,
    deadline: Duration,
    isolation: Option<&MountIsolation>,
) -> HostResult<()> {
    let name = orders.name.clone();
    let what = ErrorContext { object: format!("jail of {name}"), hint: "see hostd's log" };
    match LiveJail::find(&run).map_err(|error| what.failed("cannot be inspected", error))? {
        Some(LiveJail { identity: Identity::Clone(id), .. }) if id == orders.clone_id => return Ok(()),
        Some(other) => {
            return Err(refused(
                what.object,
                "start the jail",
                HostErrorKind::Foreign,
                format!("another jail is running there: {:?}", other.identity),
            ));
        }
        None => {}
    }
    let text = serde_json::to_vec(&orders).expect("plain data");
    let prepare = || {
        for file in [CONTROL, CDP, PROGRAM, LOG] {
            files::remove_file(&run.join(file))?;
        }
        deadline::make(&run, deadline)?;
        files::write_atomically(&run.join(JAIL), &text)
    };
    prepare().map_err(|error| what.failed("cannot be prepared", error))?;
    let namespace = isolation.map(MountIsolation::empty_namespace).transpose();
    let namespace = namespace.map_err(|error| what.failed("its mounts cannot be isolated", error))?;
    // The running program itself, even if an update has replaced its file.
    let child = tokio::process::Command::new("/proc/self/exe")
        .arg0("hostd")
        .arg(SUPERVISE)
        .arg(&run)
        .env_clear()
        .current_dir("/")
        .stdin(namespace.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| what.failed("the supervisor cannot be started", error))?;
    let mut starting = StartingSupervisor(Some(child));
    let (stdout, stderr) =
        starting.0.as_mut().map(|child| (child.stdout.take(), child.stderr.take())).unzip();
    // One byte more than the ready line, so that anything else is noticed.
    let ready = read_at_most(stdout.flatten(), UP.len() as u64 + 1).await;
    if ready.map_err(|error| what.failed("the supervisor cannot be read", error))? != UP {
        let output = read_at_most(stderr.flatten(), LOG_TAIL).await.unwrap_or_default();
        let output = last_lines(printable_lines(&output).iter().map(String::as_str));
        let why = format!("the supervisor ended at its start: {output}");
        return Err(refused(what.object, "start the jail", HostErrorKind::Failed, why));
    }
    // From here on it runs without this hostd, which only reaps it when it ends. A task waits for its pidfd: tokio asks the
    // kernel about each child that nobody waits for whenever any child ends.
    if let Some(mut supervisor) = starting.0.take() {
        tokio::spawn(async move { supervisor.wait().await });
    }
    Ok(())
}

/// The ready line of a supervisor: it holds its lock and listens. Then it closes its output.
pub(super) const UP: &[u8] = b"up\n";

/// A supervisor that is not ready yet must not outlive the call that started it.
struct StartingSupervisor(Option<tokio::process::Child>);

impl Drop for StartingSupervisor {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.start_kill();
        }
    }
}

/// Tell the supervisor to start the service and wait until it is ready.
pub(super) async fn start_service(run: PathBuf, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
    let what = ErrorContext {
        object: format!("service of {}", spec.names.name),
        hint: "see hostd's log; hostctl doctor checks the host",
    };
    let ask = async {
        let stream = tokio::net::UnixStream::connect(run.join(CONTROL)).await?;
        let (read, mut write) = stream.into_split();
        let start = SupervisorRequest::Start { clone_id: spec.clone_id.clone(), secret: spec.secret.clone() };
        let mut line = serde_json::to_vec(&start)?;
        line.push(b'\n');
        tokio::io::AsyncWriteExt::write_all(&mut write, &line).await?;
        let mut reply = Vec::new();
        let mut read = tokio::io::BufReader::new(read.take(LONGEST_REPLY));
        tokio::io::AsyncBufReadExt::read_until(&mut read, b'\n', &mut reply).await?;
        if reply.is_empty() {
            let why = format!("it ended; recent output: {}", recent_output(&run));
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        io::Result::Ok(serde_json::from_slice(&reply)?)
    };
    let reply: SupervisorReply =
        ask.await.map_err(|error| what.failed("the supervisor does not answer", error))?;
    match reply {
        SupervisorReply::Ready { endpoint, cdp_endpoint, took } => {
            for (part, seconds) in &took {
                // In addition to the spans of `timing`: this part was measured by another process.
                tracing::debug!(target: "hostd::time", part, seconds, "measured by the supervisor");
            }
            Ok(ServiceEndpoint { endpoint, cdp_endpoint })
        }
        SupervisorReply::Failed { message, not_ready } => {
            let kind = if not_ready { HostErrorKind::NotReady } else { HostErrorKind::Failed };
            Err(HostError::new(kind, what.object, message, what.hint))
        }
        SupervisorReply::Idle => {
            Err(failed(what.object, "the supervisor", io::Error::other("did not start it"), what.hint))
        }
    }
}

async fn read_at_most(from: Option<impl tokio::io::AsyncRead + Unpin>, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(limit).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// The end of the jail's log, for error messages. The supervisor bounds and escapes it, but one that an earlier version of
/// hostd started does neither.
fn recent_output(run: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(run.join(LOG))?;
        let start = file.metadata()?.len().saturating_sub(LOG_TAIL);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let lines = printable_lines(&read().unwrap_or_default());
    last_lines(lines.iter().map(String::as_str))
}

fn printable_lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_any_size_costs_little_to_read() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(recent_output(run.path()), "(no output)");
        let path = run.path().join(LOG);
        let mut log = File::create(&path).unwrap();
        // Sparse: two gibibytes of NUL bytes, as one line.
        log.set_len(2 << 30).unwrap();
        log.seek(SeekFrom::End(0)).unwrap();
        log.write_all(b"\nthe \x1b[31mreason\n").unwrap();
        let recent = recent_output(run.path());
        assert!(recent.ends_with(" | the \\u{1b}[31mreason"), "{recent}");
        assert!(recent.len() < 8 << 10, "{} bytes", recent.len());
    }

    #[test]
    fn a_reply_without_end_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let supervisor = std::thread::spawn(move || while theirs.write_all(&[b'x'; 4096]).is_ok() {});
        assert!(converse(ours, &SupervisorRequest::Status).is_err());
        supervisor.join().unwrap();
    }

    #[test]
    fn a_jail_file_of_any_size_costs_little_to_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 << 30).unwrap();
        assert_eq!(orders(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_note_that_is_none_is_ignored() {
        let run = tempfile::tempdir().unwrap();
        assert!(noted_program(run.path()).is_none());
        note_program(run.path(), 7, true).unwrap();
        let noted = noted_program(run.path()).unwrap();
        assert!(noted.pid == 7 && noted.is_browserd);
        std::fs::write(run.path().join(PROGRAM), "7").unwrap();
        assert!(noted_program(run.path()).is_none());
    }
}
