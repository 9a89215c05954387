//! Helpers for tests with a real browser.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use launcher::cdp::Connection;
use launcher::{Browser, Config};
use serde_json::{Value, json};

pub const LIMIT: Duration = Duration::from_secs(60);
pub const LAUNCHER: &str = env!("CARGO_BIN_EXE_browser-launcher");
/// The uid of an ordinary user; no account and no other test process has it.
pub fn ordinary() -> u32 {
    *kernel::user_ids::of_test(std::process::id()).start()
}

const CHILD: &str = "LAUNCHER_TEST_ORDINARY";

/// Allows one browser at a time, because test machines have few cores.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs a test as root and then, in a separate process, as an ordinary user. Without root only the second half runs, as
/// the current user.
pub fn as_root_and_as_user(name: &str, body: fn()) {
    let _alone = alone();
    require_tools();
    if !is_root() {
        return body();
    }
    body();
    as_user(name);
}

/// Runs a test only as an ordinary user.
pub fn only_as_user(name: &str, body: fn()) {
    let _alone = alone();
    require_tools();
    if is_root() { as_user(name) } else { body() }
}

fn as_user(name: &str) {
    let home = tempfile::tempdir().expect("a home");
    chown(home.path(), Some(ordinary()), Some(ordinary())).expect("chown");
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command
        .env_clear()
        .env(CHILD, "1")
        .env("HOME", home.path())
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/");
    for kept in ["DISPLAY", "XAUTHORITY"] {
        command.envs(std::env::var(kept).map(|value| (kept, value)));
    }
    let output = command.uid(ordinary()).gid(ordinary()).output().expect("run as an ordinary user");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "as an ordinary user:\n{text}");
}

/// Fails if a required program is not installed, and names the script that installs it.
pub fn require_tools() {
    let needed = [
        "/usr/bin/bwrap",
        "/usr/lib/chromium/chromium",
        "/usr/lib/chromium/chromium-headless-shell",
        "/usr/bin/chromedriver",
        "/usr/bin/Xvfb",
        "/usr/share/fonts/truetype/dejavu",
    ];
    for path in needed {
        assert!(Path::new(path).exists(), "{path} is missing: run scripts/install-deps");
    }
}

/// A configuration with private folders.
pub struct Setup {
    pub folder: tempfile::TempDir,
    pub config: Config,
}

impl Setup {
    pub fn new() -> Setup {
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).expect("mkdir");
            path.canonicalize().expect("real path")
        };
        let config =
            Config { media: Some(path("media")), downloads: Some(path("downloads")), ..Config::default() };
        Setup { folder, config }
    }

    pub fn allowing(mut self, server: &Server) -> Setup {
        self.config.allow.push(server.address.to_string().parse().expect("allow"));
        self
    }

    pub fn media(&self) -> PathBuf {
        self.config.media.clone().expect("set")
    }

    pub fn downloads(&self) -> PathBuf {
        self.config.downloads.clone().expect("set")
    }

    /// The configuration as a file.
    pub fn file(&self) -> PathBuf {
        let path = self.folder.path().join("config.toml");
        std::fs::write(&path, toml::to_string(&self.config).expect("toml")).expect("write");
        path
    }

    /// `browser-launcher run -- ARGUMENTS`, to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(LAUNCHER);
        command.arg("--config").arg(self.file()).args(["run", "--"]).args(arguments);
        finish(command)
    }

    /// The executable under a browser's name, with this configuration, as clients start it.
    pub fn drop_in(&self) -> Command {
        let link = self.folder.path().join("chromium-sandboxed");
        if !link.exists() {
            std::os::unix::fs::symlink(LAUNCHER, &link).expect("link");
        }
        let mut command = Command::new(link);
        command.env("BROWSER_LAUNCHER_CONFIG", self.file());
        command
    }
}

/// Runs a command to its end, with a timeout.
pub fn finish(mut command: Command) -> Output {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    let collect = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.expect("piped").read_to_end(&mut bytes).expect("read");
            bytes
        })
    };
    let stdout = collect(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = collect(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait().expect("wait") {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().expect("kill");
                panic!(
                    "{command:?} did not end: {}",
                    String::from_utf8_lossy(&stderr.join().expect("stderr"))
                );
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    Output { status, stdout: stdout.join().expect("stdout"), stderr: stderr.join().expect("stderr") }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A web server on a loopback port that counts its connections.
pub struct Server {
    pub address: SocketAddr,
    pub visits: Arc<AtomicUsize>,
}

pub type Handler = fn(&str, SocketAddr) -> Vec<u8>;

impl Server {
    /// `handler` gets the request's path and returns the whole response.
    pub fn start(handler: Handler) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let visits = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&visits);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || serve(stream, handler, address));
            }
        });
        Server { address, visits }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }
}

fn serve(stream: TcpStream, handler: Handler, address: SocketAddr) {
    let mut reader = BufReader::new(stream.try_clone().expect("clone"));
    let mut first = String::new();
    if reader.read_line(&mut first).is_err() {
        return;
    }
    let mut line = String::new();
    let mut key = None;
    while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
        if let Some((_, value)) =
            line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key"))
        {
            key = Some(value.trim().to_owned());
        }
        line.clear();
    }
    let path = first.split_whitespace().nth(1).unwrap_or("/").to_owned();
    let mut stream = stream;
    let _ = match key {
        Some(key) => stream.write_all(&websocket_hello(&key)),
        None => stream.write_all(&handler(&path, address)),
    };
    if path == "/socket" {
        // Until the browser closes it.
        let _ = reader.read(&mut [0; 64]);
    }
}

/// The response to a WebSocket handshake, and one text frame with "hello".
fn websocket_hello(key: &str) -> Vec<u8> {
    let script = "import base64,hashlib,sys;print(base64.b64encode(hashlib.sha1((sys.argv[1]+'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').encode()).digest()).decode())";
    let accept = Command::new("/usr/bin/python3").args(["-c", script, key]).output().expect("python3").stdout;
    let mut bytes = format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n", text(&accept).trim()).into_bytes();
    bytes.extend_from_slice(b"\x81\x05hello");
    bytes
}

pub fn html(body: &str) -> Vec<u8> {
    let page = format!("<!doctype html><meta charset=utf-8><title>test</title>{body}");
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{page}", page.len()).into_bytes()
}

/// An attached page.
pub struct Page {
    pub session: String,
}

impl Page {
    pub fn open(cdp: &mut Connection, url: &str) -> Page {
        let target = cdp
            .call(
                "Target.createTarget",
                json!({ "url": "about:blank" }),
                LIMIT,
            )
            .expect("page")["targetId"]
            .clone();
        let attached = cdp
            .call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }), LIMIT)
            .expect("attach");
        let page = Page { session: attached["sessionId"].as_str().expect("session").to_owned() };
        page.call(cdp, "Page.enable", json!({}));
        page.go(cdp, url);
        page
    }

    pub fn call(&self, cdp: &mut Connection, method: &str, params: Value) -> Value {
        self.try_call(cdp, method, params).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_call(
        &self,
        cdp: &mut Connection,
        method: &str,
        params: Value,
    ) -> Result<Value, launcher::cdp::CdpError> {
        cdp.call_in(Some(&self.session), method, params, LIMIT)
    }

    /// Navigates and waits for the page to be complete; returns the error text of a navigation that failed.
    pub fn go(&self, cdp: &mut Connection, url: &str) -> Option<String> {
        let result = self.call(cdp, "Page.navigate", json!({ "url": url }));
        let error = result.get("errorText").and_then(Value::as_str).map(str::to_owned);
        if error.is_none() {
            self.until(cdp, "document.readyState === 'complete'");
        }
        error
    }

    /// The value of an expression; promises are awaited.
    pub fn evaluate(&self, cdp: &mut Connection, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call(cdp, "Runtime.evaluate", params);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"].get("value").cloned().unwrap_or_default()
    }

    pub fn until(&self, cdp: &mut Connection, expression: &str) {
        let deadline = Instant::now() + LIMIT;
        while self.evaluate(cdp, expression) != json!(true) {
            assert!(Instant::now() < deadline, "never true: {expression}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn screenshot(&self, cdp: &mut Connection) -> Vec<u8> {
        let data = self.call(cdp, "Page.captureScreenshot", json!({ "format": "png" }));
        base64(data["data"].as_str().expect("data"))
    }
}

pub fn base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("not base64: {other}"),
    };
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(value).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits =
            group.iter().fold(0u32, |bits, digit| (bits << 6) | u32::from(*digit)) << (6 * (4 - group.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}

pub fn is_png(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 200
}

/// Whether a process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

pub fn stop(mut browser: Browser) {
    browser.stop(Duration::from_secs(10)).expect("stop");
}

/// Polls until a condition holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
