//! Starts a real browserd with a real Chromium, and a small web site on loopback.
//!
//! Chromium refuses to run as root with its sandbox, and browserd never disables the sandbox. Tests that run as root
//! therefore start each browserd under its own UID.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod site;
pub mod stand_in;

use browserd::Secret;
use browserd::client::{Client, ClientError};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Each browserd gets the next user id of this test process.
static NEXT_UID: AtomicU32 = AtomicU32::new(0);

/// Timeout for every wait and every call. It only ends tests that hang: a busy machine may be arbitrarily slow.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(240);
const CALL_TIMEOUT_MS: &str = "240000";

/// A user id that no other browserd of the tests has.
pub fn next_uid() -> u32 {
    *kernel::user_ids::of_test(std::process::id()).start() + NEXT_UID.fetch_add(1, Ordering::Relaxed)
}

/// The path of Chromium. Panics if it is not installed.
pub fn chromium() -> PathBuf {
    let named = std::env::var_os("BROWSERD_TEST_CHROMIUM").map(PathBuf::from);
    let usual =
        ["/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium", "/usr/local/bin/chrome"];
    named.into_iter().chain(usual.iter().map(PathBuf::from)).find(|path| path.exists()).expect(
        "Chromium is needed: install the packages chromium and chromium-shell, or set BROWSERD_TEST_CHROMIUM",
    )
}

pub struct Browserd {
    pub child: Child,
    pub address: SocketAddr,
    pub folder: tempfile::TempDir,
    pub uid: u32,
    pub secret: Secret,
}

impl Browserd {
    /// Starts browserd and waits until it listens.
    pub fn start(extra: &[&str]) -> Self {
        Self::start_with(&chromium(), extra)
    }

    /// Starts a browserd that makes its own secret.
    pub fn start_own_secret() -> Self {
        Self::start_in_new_folder(&chromium(), &[], None)
    }

    pub fn start_with(chromium: &Path, extra: &[&str]) -> Self {
        Self::start_in_new_folder(chromium, extra, Some(Secret::random().unwrap()))
    }

    fn start_in_new_folder(chromium: &Path, extra: &[&str], secret: Option<Secret>) -> Self {
        let root = nix::unistd::geteuid().is_root();
        let uid = next_uid();
        let folder = tempfile::Builder::new().prefix("browserd-test-").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        if root {
            chown(&data, Some(uid), Some(uid)).unwrap();
        }
        let (child, address) = spawn(&data, uid, chromium, extra, log, secret.as_ref());
        // The caller reads a secret that browserd made from its ready line.
        let secret = secret.unwrap_or_else(|| Secret::random().unwrap());
        Self { child, address, folder, uid, secret }
    }

    /// Starts browserd again in the same folder.
    pub fn start_again(&mut self) {
        let _ = std::fs::remove_file(self.data().join("browserd.address"));
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        (self.child, self.address) = spawn(&self.data(), self.uid, &chromium(), &[], log, Some(&self.secret));
        self.wait_ready();
    }

    /// Starts browserd and waits until the browser is ready.
    pub fn ready(extra: &[&str]) -> Self {
        let browserd = Self::start(extra);
        browserd.wait_ready();
        browserd
    }

    /// Waits for the `ready` line and checks it. From then on `/readyz` returns 200.
    pub fn wait_ready(&self) {
        let line = self.status_line();
        let at = self.address;
        let rest = line.trim_end().strip_prefix(&format!("ready http://{at}")).expect("its address");
        // The URL of raw CDP is missing if raw CDP is disabled.
        let raw = format!(" ws://{at}/devtools/browser/");
        assert!(rest.is_empty() || rest.starts_with(&raw), "{line:?}");
        assert_eq!(self.get("/readyz").0, 200);
    }

    /// Waits for the line that browserd writes to its standard output.
    pub fn status_line(&self) -> String {
        let file = self.folder.path().join("stdout");
        wait("browserd's status line", || {
            std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n'))
        })
    }

    pub fn client(&self) -> Client {
        Client::new(self.address, self.secret.clone())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request with exactly these headers and the length of the body. Returns the status and the JSON body.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        raw_request(self.address, method, path, headers, body)
    }

    /// The header that presents the secret.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.secret.as_str())
    }

    /// The URL for clients that send no header.
    pub fn url(&self) -> String {
        format!("http://{}/{}", self.address, self.secret.as_str())
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        let host = self.address.to_string();
        self.request("GET", path, &[("host", &host), ("authorization", &self.bearer())], "")
    }

    /// The state of browserd and its browser.
    pub fn health(&self) -> Value {
        let (status, health) = self.get("/v1/health");
        assert_eq!(status, 200, "{health}");
        health
    }

    /// Waits until the health probe says no, and returns the state.
    pub fn wait_failed(&self) -> Value {
        wait("the failed state", || (self.get("/healthz").0 == 503).then_some(()));
        self.health()
    }

    pub fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let host = self.address.to_string();
        self.request(
            "POST",
            path,
            &[("host", &host), ("authorization", &self.bearer()), ("content-type", "application/json")],
            &body.to_string(),
        )
    }

    /// Sends SIGTERM and waits for the exit status.
    pub fn stop(&mut self) -> ExitStatus {
        signal(self.child.id(), nix::sys::signal::Signal::SIGTERM);
        wait("browserd to stop", || self.child.try_wait().unwrap())
    }

    /// The running processes of this browserd's UID. Requires root, because only then is the UID its own.
    pub fn processes(&self) -> Vec<u32> {
        assert!(nix::unistd::geteuid().is_root(), "this test counts processes by UID: run it as root");
        processes_of(self.uid)
    }
}

impl Drop for Browserd {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            signal(self.child.id(), nix::sys::signal::Signal::SIGTERM);
            let end = Instant::now() + Duration::from_secs(20);
            while Instant::now() < end && self.child.try_wait().is_ok_and(|status| status.is_none()) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().filter(|line| !line.contains("chromium line=")).collect();
            eprintln!("--- browserd's log\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

fn spawn(
    data: &Path,
    uid: u32,
    chromium: &Path,
    extra: &[&str],
    log: std::fs::File,
    secret: Option<&Secret>,
) -> (Child, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_browserd"));
    command
        .args(["--listen", "127.0.0.1:0"])
        .args(secret.iter().flat_map(|_| ["--secret-fd", "0"]))
        .arg("--chromium")
        .arg(chromium)
        .arg("--data-dir")
        .arg(data)
        .args(["--default-timeout-ms", CALL_TIMEOUT_MS, "--start-timeout-ms", CALL_TIMEOUT_MS])
        .args(extra)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("BROWSERD_LOG", "trace")
        .stdin(Stdio::piped())
        .stdout(std::fs::File::create(data.with_file_name("stdout")).unwrap())
        .stderr(log);
    if nix::unistd::geteuid().is_root() {
        command.uid(uid).gid(uid);
    }
    let mut child = command.spawn().expect("browserd starts");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(secret.map_or("", |secret| secret.as_str()).as_bytes()).unwrap();
    drop(stdin);
    let address = wait("browserd to listen", || {
        if let Some(status) = child.try_wait().unwrap() {
            let log = std::fs::read_to_string(data.with_file_name("log")).unwrap_or_default();
            panic!("browserd ended during its start ({status}):\n{log}");
        }
        std::fs::read_to_string(data.join("browserd.address")).ok()?.trim().parse().ok()
    });
    (child, address)
}

/// Processes of a UID, without zombies.
pub fn processes_of(uid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let owner = field("Uid:").split_whitespace().next().and_then(|text| text.parse().ok());
        if owner == Some(uid) && !field("State:").trim().starts_with('Z') {
            found.push(pid);
        }
    }
    found
}

pub fn signal(pid: u32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal).unwrap();
}

/// Polls until there is a result. Panics with `what` after the timeout.
pub fn wait<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < end, "timeout while waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn raw_request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let mut text =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    // A server that refuses a large body may close the connection before all of it is sent.
    let _ = stream.write_all(body.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// The error code of a failed call.
pub fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> String {
    match result {
        Err(ClientError::Api(error)) => error.code.as_str().to_owned(),
        other => panic!("expected an API error, got {other:?}"),
    }
}
