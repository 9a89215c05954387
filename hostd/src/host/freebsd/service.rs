//! browserd in the clone: its processes and its readiness.
//!
//! The clone is not trusted. Its rc.d script runs with a deadline and its exit code is ignored. A PID from its PID file is
//! signalled only if the kernel reports that process inside the jail. Readiness is tested by a request over the network.

use super::errors::{Complaint, classify, command_failed, digits};
use super::files::Folder;
use super::processes::{self, Process};
use super::{FreebsdState, commands, conf, jails};
use crate::host::{HostError, HostErrorKind, HostResult, ServiceEndpoint, cdp_endpoint, chain};
use crate::slot::SlotNames;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The deadline of browserd's rc.d stop, which gives Chromium a few seconds to exit.
const STOP_TIMEOUT: Duration = Duration::from_secs(12);
/// The deadline of one HTTP request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The longest PID file.
const PID_FILE: usize = 16;
/// The longest HTTP response that is read.
const ANSWER: usize = 4096;

/// How long processes get between SIGTERM and SIGKILL.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(2);

impl FreebsdState {
    pub(super) async fn processes(&self) -> HostResult<Vec<Process>> {
        let outcome = self.tools.ps.with(commands::list_processes()).run().await?;
        if !outcome.success() {
            return Err(command_failed("processes", &outcome, "run `ps -axo pid,jid,state` by hand"));
        }
        Ok(processes::read(outcome.text()?)?)
    }

    /// The processes inside the clone's jail, if it has a live one.
    async fn inside(&self, names: &SlotNames) -> HostResult<BTreeSet<u32>> {
        let jails = self.jails().await?;
        let Some(jail) = jails::of(&jails, names).filter(|jail| !jail.dying) else {
            return Ok(BTreeSet::new());
        };
        Ok(processes::inside(&self.processes().await?, jail.jid))
    }

    /// Freeze everything inside by SIGSTOP.
    pub(super) async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        self.signal(names, "STOP", self.inside(names).await?).await
    }

    /// Resume everything inside by SIGCONT.
    pub(super) async fn thaw(&self, names: &SlotNames) -> HostResult<()> {
        self.signal(names, "CONT", self.inside(names).await?).await
    }

    /// End everything inside the jail: browserd's rc.d script first, then SIGTERM, then SIGKILL.
    ///
    /// One deadline holds for all of it. It is shorter than the lifecycle's, so that the error names the processes.
    pub(super) async fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        let limit = self.step_limit();
        match tokio::time::timeout(limit, self.stop_then_kill(names, limit)).await {
            Ok(ended) => ended,
            Err(_) => Err(HostError::new(
                HostErrorKind::Timeout,
                format!("processes of {}", names.name),
                format!("still running after {:.1} s", limit.as_secs_f32()),
                "inspect them with ps -J; a process in state D waits for a disk",
            )),
        }
    }

    async fn stop_then_kill(&self, names: &SlotNames, limit: Duration) -> HostResult<()> {
        let (jails, processes) = tokio::try_join!(self.jails(), self.processes())?;
        let Some(jail) = jails::of(&jails, names).filter(|jail| !jail.dying) else { return Ok(()) };
        // The jail is identified once. If it ends meanwhile, no process has its number any more.
        let jid = jail.jid;
        let inside = processes::inside(&processes, jid);
        if inside.is_empty() {
            return Ok(());
        }
        // A stopped process handles neither the rc.d script's signal nor SIGTERM.
        if processes::any_stopped(&processes, jid) {
            self.try_signal(names, "CONT", inside).await;
        }
        self.stop_service(names, STOP_TIMEOUT.min(limit / 3)).await;
        let inside = processes::inside(&self.processes().await?, jid);
        if inside.is_empty() {
            return Ok(());
        }
        self.try_signal(names, "TERM", self.main_process(names, inside).await).await;
        if self.ended_within(jid, SIGNAL_TIMEOUT.min(limit / 8)).await? {
            return Ok(());
        }
        // A process can fork between the list and the signal, so both are repeated until the list is empty.
        loop {
            let inside = processes::inside(&self.processes().await?, jid);
            if inside.is_empty() {
                return Ok(());
            }
            self.try_signal(names, "KILL", inside).await;
            tokio::time::sleep(FIRST_PAUSE).await;
        }
    }

    /// Run the clone's rc.d script. Its exit code proves nothing: the processes are listed afterwards.
    async fn stop_service(&self, names: &SlotNames, timeout: Duration) {
        match self.tools.jexec.with(commands::stop_service(names)).within(timeout).run().await {
            Ok(outcome) => {
                tracing::debug!(clone = %names.name, ended = %outcome.ended, "ran browserd's rc.d stop")
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(clone = %names.name, error, "browserd's rc.d stop failed; its processes are signalled")
            }
        }
    }

    /// The process of the PID file, which ends the others in order, if it is proven to be inside; else all of them.
    async fn main_process(&self, names: &SlotNames, inside: BTreeSet<u32>) -> BTreeSet<u32> {
        let root = conf::root(names);
        match tokio::task::spawn_blocking(move || read_pid_file(&root)).await.ok().flatten() {
            Some(pid) if inside.contains(&pid) => BTreeSet::from([pid]),
            Some(pid) => {
                tracing::warn!(clone = %names.name, pid, "the clone's PID file names a process outside of it");
                inside
            }
            None => inside,
        }
    }

    /// Whether the jail's last process ends within this time.
    async fn ended_within(&self, jid: u32, timeout: Duration) -> HostResult<bool> {
        let (mut pause, mut waited) = (FIRST_PAUSE, Duration::ZERO);
        while waited < timeout {
            tokio::time::sleep(pause).await;
            waited += pause;
            if processes::inside(&self.processes().await?, jid).is_empty() {
                return Ok(true);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(false)
    }

    /// Signal processes that are proven to be inside. A stronger signal follows, so a failure is only logged.
    async fn try_signal(&self, names: &SlotNames, signal: &str, inside: BTreeSet<u32>) {
        if let Err(error) = self.signal(names, signal, inside).await {
            let error = chain(&error);
            tracing::warn!(clone = %names.name, signal, error, "the clone's processes cannot be signalled");
        }
    }

    /// Signal processes that are proven to be inside. Processes that have ended meanwhile are no error.
    async fn signal(&self, names: &SlotNames, signal: &str, inside: BTreeSet<u32>) -> HostResult<()> {
        if inside.is_empty() {
            return Ok(());
        }
        let outcome = self.tools.kill.with(commands::signal(signal, inside)).run().await?;
        match classify(&outcome.stderr) {
            _ if outcome.success() => Ok(()),
            Complaint::Absent => Ok(()),
            _ => Err(command_failed(
                format!("processes of {}", names.name),
                &outcome,
                "inspect them with ps -J",
            )),
        }
    }

    /// The longest time one verb may take: a little less than the lifecycle allows, so that the verb's own error is reported.
    fn step_limit(&self) -> Duration {
        Duration::from_secs(self.config.lifecycle.step_timeout_seconds).mul_f64(0.9)
    }

    fn address(&self, names: &SlotNames) -> SocketAddr {
        (names.ip, self.style.port).into()
    }

    /// Whether browserd reports readiness now.
    pub(super) async fn is_ready(&self, names: &SlotNames) -> bool {
        matches!(ask(self.address(names), "/readyz", REQUEST_TIMEOUT).await, Ok(200))
    }

    /// Wait until browserd is ready, and read its raw CDP endpoint.
    pub(super) async fn wait_ready(&self, names: &SlotNames) -> HostResult<ServiceEndpoint> {
        let address = self.address(names);
        let mut pause = FIRST_PAUSE;
        let wait = async {
            while !self.is_ready(names).await {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            raw_cdp(address, REQUEST_TIMEOUT).await
        };
        match tokio::time::timeout(self.step_limit(), wait).await {
            Ok(cdp_endpoint) => Ok(ServiceEndpoint { endpoint: format!("http://{address}"), cdp_endpoint }),
            Err(_) => Err(HostError::new(
                HostErrorKind::Timeout,
                format!("http://{address}/readyz"),
                "the browser service is not ready",
                format!("read {}/var/log/browserd.log", conf::root(names).display()),
            )),
        }
    }
}

/// The PID in the clone's PID file, if that is a regular file with one number and no component of its path is a link.
fn read_pid_file(root: &std::path::Path) -> Option<u32> {
    let read = || Folder::open(root)?.enter("var")?.enter("run")?.read("browserd.pid", PID_FILE);
    let bytes = read().ok()?;
    let text = std::str::from_utf8(&bytes).ok()?;
    digits(text.strip_suffix('\n').unwrap_or(text)).filter(|pid| *pid > 1)
}

/// One HTTP request; returns the status code.
async fn ask(address: SocketAddr, path: &str, timeout: Duration) -> std::io::Result<u16> {
    let answer = converse(address, path, timeout, |answer| answer.contains(&b'\n')).await?;
    status(&answer).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))
}

/// The raw CDP endpoint that browserd reports, if any.
async fn raw_cdp(address: SocketAddr, timeout: Duration) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        web_socket_debugger_url: String,
    }
    let answer = converse(address, "/json/version", timeout, is_whole).await.ok()?;
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|end| &answer[end + 4..])?;
    let said: Version = serde_json::from_slice(body).ok().filter(|_| status(&answer) == Some(200))?;
    cdp_endpoint(address, &said.web_socket_debugger_url)
}

/// Whether a response has its whole body, as its header says.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let header = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = header.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    length.is_some_and(|length: usize| answer.len() >= (end + 4).saturating_add(length))
}

/// One HTTP request; reads the response until `enough`. The clone is not trusted, so size and time are bounded.
///
/// hostd resets the connection (a linger time of zero) and does not let browserd close it first. A connection that the jail
/// closed first would stay in TIME_WAIT there and keep a stopped jail dying, and its dataset busy, for a minute.
async fn converse(
    address: SocketAddr,
    path: &str,
    timeout: Duration,
    enough: impl Fn(&[u8]) -> bool,
) -> std::io::Result<Vec<u8>> {
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_zero_linger()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = vec![0; ANSWER];
        let mut length = 0;
        while length < ANSWER && !enough(&answer[..length]) {
            match stream.read(&mut answer[length..]).await? {
                0 => break,
                count => length += count,
            }
        }
        answer.truncate(length);
        Ok(answer)
    };
    match tokio::time::timeout(timeout, talk).await {
        Ok(result) => result,
        Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

/// `HTTP/1.1 200 OK` → 200.
fn status(answer: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(answer).ok()?.lines().next()?;
    let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "))?;
    let code = rest.split(' ').next()?;
    (code.len() == 3).then(|| digits(code)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_status_line_is_refused() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\nServer: x"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503 Service Unavailable\r\n"), Some(503));
        assert_eq!(status(b"HTTP/1.1 200"), Some(200));
        for other in [
            &b""[..],
            b"HTTP/1.1",
            b"HTTP/1.1 2",
            b"HTTP/1.1 2000 OK",
            b"HTTP/1.1 20x OK",
            b"SSH-2.0",
            b"\xff\xfe",
        ] {
            assert_eq!(status(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_response_is_whole_when_its_body_is() {
        for (answer, whole) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", true),
            ("HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\n{}x", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0", false),
        ] {
            assert_eq!(is_whole(answer.as_bytes()), whole, "{answer:?}");
        }
    }

    /// The server sees a reset: its side of the connection is gone at once, without TIME_WAIT.
    #[tokio::test]
    async fn a_connection_to_the_clone_is_reset_by_hostd() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = tokio::spawn(async move { ask(address, "/readyz", REQUEST_TIMEOUT).await });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 512];
        let length = stream.read(&mut request).await.unwrap();
        assert!(!String::from_utf8_lossy(&request[..length]).contains("close"), "browserd keeps it open");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        assert_eq!(asked.await.unwrap().unwrap(), 200);
        let error = stream.read(&mut request).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_pid_file_must_be_a_regular_file_with_one_number() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("var/run");
        assert_eq!(read_pid_file(root.path()), None);
        std::fs::create_dir_all(&run).unwrap();
        let file = run.join("browserd.pid");
        for (text, pid) in [
            ("4711\n", Some(4711)),
            ("4711", Some(4711)),
            ("", None),
            ("\n", None),
            ("0", None),
            ("1", None),
            ("-4711", None),
            ("+4711", None),
            (" 4711", None),
            ("4711 1", None),
            ("4711\n\n", None),
            ("99999999999", None),
            ("0x10", None),
            ("1234567890123456789", None),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(read_pid_file(root.path()), pid, "{text:?}");
        }
        std::fs::remove_file(&file).unwrap();
        let elsewhere = root.path().join("elsewhere");
        std::fs::write(&elsewhere, "4711\n").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert_eq!(read_pid_file(root.path()), None, "no link is followed");
    }

    #[tokio::test]
    async fn a_cdp_endpoint_at_another_address_is_ignored() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let own = format!("ws://{address}/devtools/browser/5e6d-1");
        let named =
            |url: &str| format!("HTTP/1.1 200 OK\r\nX: y\r\n\r\n{{\"webSocketDebuggerUrl\":\"{url}\"}}");
        let cases = [
            (named(&own), Some(own.clone())),
            (named("ws://192.0.2.1:8080/devtools/browser/5e6d-1"), None),
            (named(&format!("{own}/../x")), None),
            (named(&format!("ws://{address}/devtools/browser/")), None),
            (named(&own).replace("200 OK", "403 No"), None),
            ("HTTP/1.1 200 OK\r\n\r\nhello".to_owned(), None),
            (String::new(), None),
        ];
        for (answer, expected) in cases {
            let answering = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 512];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /json/version HTTP/1.1\r\n"));
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let (said, ()) = tokio::join!(raw_cdp(address, REQUEST_TIMEOUT), answering);
            assert_eq!(said, expected, "{answer}");
        }
    }

    #[tokio::test]
    async fn a_service_without_a_response_is_not_ready() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            for answer in ["HTTP/1.1 503 Wait\r\n\r\n", "", "HTTP/1.1 200 OK\r\n\r\n"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 512];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /readyz HTTP/1.1\r\n"));
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        assert_eq!(ask(address, "/readyz", REQUEST_TIMEOUT).await.unwrap(), 503);
        assert!(ask(address, "/readyz", REQUEST_TIMEOUT).await.is_err());
        assert_eq!(ask(address, "/readyz", REQUEST_TIMEOUT).await.unwrap(), 200);
        answering.await.unwrap();
        assert!(ask(address, "/readyz", REQUEST_TIMEOUT).await.is_err(), "nobody listens");
    }
}
