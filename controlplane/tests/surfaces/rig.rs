//! The whole service over a host whose clones share one browserd: a real one, or a stand-in.

use controlplane::config::Config;
use controlplane::hosts::{HostError, HostLink, MadeClone, WantedClone};
use controlplane::surfaces::service::Service;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hostd::api::{CloneId, CloneInfo, CloneName, CloneSecret, SecretUrl, StatusResult};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// It only ends tests that hang: a busy machine may be arbitrarily slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// Wait for a value.
pub(crate) fn wait<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The browserd that every clone has.
#[derive(Debug, Clone)]
pub(crate) struct Browser {
    pub(crate) address: SocketAddr,
    pub(crate) secret: CloneSecret,
    pub(crate) path: String,
}

/// A host that makes clones at once.
#[derive(Debug)]
struct TestHost {
    browser: Browser,
    made: AtomicU32,
}

impl HostLink for TestHost {
    fn create(&self, _: WantedClone) -> BoxFuture<'_, Result<MadeClone, HostError>> {
        let number = self.made.fetch_add(1, Ordering::SeqCst) % 1000;
        let Browser { address, secret, path } = self.browser.clone();
        let made = MadeClone {
            name: CloneName::try_from(format!("test{number:03}")).unwrap(),
            id: CloneId::try_from(format!("{number:032x}")).unwrap(),
            renewed: false,
            endpoint: format!("http://{address}"),
            cdp: Some(SecretUrl::new(&format!("ws://{address}{path}"), &secret)),
            secret,
        };
        async move { Ok(made) }.boxed()
    }

    fn destroy(&self, _: CloneName, _: CloneId) -> BoxFuture<'_, Result<(), HostError>> {
        async { Ok(()) }.boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<CloneInfo>, HostError>> {
        // An empty list would mean that every clone is lost.
        async { Err(HostError::Unavailable("this host has no list".into())) }.boxed()
    }

    fn status(&self) -> BoxFuture<'_, Result<StatusResult, HostError>> {
        async { Err(HostError::Unavailable("this host has no status".into())) }.boxed()
    }
}

/// The running service and a runtime for it. Tests are clients in threads of their own.
pub(crate) struct Rig {
    pub(crate) runtime: Runtime,
    service: Option<Service>,
    pub(crate) http: SocketAddr,
    pub(crate) socket: PathBuf,
    pub(crate) folder: tempfile::TempDir,
}

impl Rig {
    /// The service over a stand-in that accepts connections and answers every call with an empty object.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::over(stand_in(), change)
    }

    /// The service over this browser.
    pub(crate) fn over(browser: Browser, change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::Builder::new().prefix("cps").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut config = Config::default();
        config.paths.socket = folder.path().join("run/sock");
        config.paths.state = folder.path().join("state");
        config.recording.folder = folder.path().join("recordings");
        config.http.listen = "127.0.0.1:0".into();
        config.limits.opens_per_minute = 100_000;
        config.limits.open_burst = 10_000;
        config.limits.calls_per_second = 100_000;
        config.limits.call_burst = 100_000;
        change(&mut config);
        let socket = config.paths.socket.clone();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let host = Arc::new(TestHost { browser, made: AtomicU32::new(0) });
        let service = runtime.block_on(Service::start_with(config, host)).unwrap();
        let http = service.http_address().unwrap();
        Self { runtime, service: Some(service), http, socket, folder }
    }

    /// A request at the Unix socket, as this process's user.
    pub(crate) fn local(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        exchange(stream, &request(method, path, &[("host", "localhost")], body.as_ref()))
    }

    /// A request at the HTTP listener.
    pub(crate) fn remote(&self, method: &str, path: &str, key: Option<&str>, body: Option<Value>) -> Answer {
        let host = self.http.to_string();
        let bearer = key.map(|key| format!("Bearer {key}"));
        let mut headers = vec![("host", host.as_str())];
        headers.extend(bearer.as_deref().map(|value| ("authorization", value)));
        self.raw(&request(method, path, &headers, body.as_ref()))
    }

    /// These bytes at the HTTP listener.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        exchange(self.connect(), bytes)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A key of a tenant: its secret and its id.
    pub(crate) fn key(&self, tenant: &str, scopes: &[&str]) -> (String, String) {
        self.key_until(tenant, scopes, None)
    }

    pub(crate) fn key_until(&self, tenant: &str, scopes: &[&str], seconds: Option<u64>) -> (String, String) {
        let mut wanted = json!({ "tenant": tenant, "scopes": scopes, "label": "a test's" });
        if let Some(seconds) = seconds {
            wanted["expires_in_seconds"] = seconds.into();
        }
        let answer = self.local("POST", "/v1/keys", Some(wanted));
        assert_eq!(answer.status, 201, "{answer:?}");
        (answer.text("key"), answer.text("key_id"))
    }

    pub(crate) fn revoke(&self, tenant: &str, key_id: &str) {
        let answer = self.local("DELETE", &format!("/v1/keys/{key_id}?tenant={tenant}"), None);
        assert_eq!(answer.json["revoked"], true, "{answer:?}");
    }

    /// A new session of a key.
    pub(crate) fn open(&self, key: &str) -> String {
        let answer = self.remote("POST", "/v1/sessions", Some(key), Some(json!({})));
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.text("session_id")
    }

    /// The audit log of a tenant: verb, event and outcome.
    pub(crate) fn audit(&self, tenant: &str) -> Vec<Value> {
        let answer = self.local("GET", &format!("/v1/audit?limit=1000&tenant={tenant}"), None);
        answer.json["rows"].as_array().unwrap().clone()
    }

    pub(crate) fn stop(&mut self) {
        if let Some(service) = self.service.take() {
            self.runtime.block_on(service.stop());
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An answer of the service.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn text(&self, name: &str) -> String {
        self.json[name].as_str().unwrap_or_else(|| panic!("no {name}: {self:?}")).to_owned()
    }

    pub(crate) fn code(&self) -> &str {
        self.json["error"]["code"].as_str().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    match body {
        Some(body) => {
            let body = body.to_string();
            text +=
                &format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
        None => text += "\r\n",
    }
    text.into_bytes()
}

/// Send bytes and read until the service closes the connection.
pub(crate) fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> Answer {
    // The service may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut all = Vec::new();
    let mut part = [0; 16384];
    while let Ok(length @ 1..) = stream.read(&mut part) {
        all.extend_from_slice(&part[..length]);
    }
    answer(&all)
}

pub(crate) fn answer(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    let json = serde_json::from_str(body).unwrap_or(Value::Null);
    Answer { status, head: head.to_owned(), body: body.to_owned(), json }
}

/// Answers calls with an empty object, and WebSockets with what it gets.
fn stand_in() -> Browser {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let secret = CloneSecret::random();
    let path = "/devtools/browser/stand-in".to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Browser { address, secret, path }
}

fn serve(mut stream: TcpStream) {
    loop {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        if head.contains("upgrade: websocket") {
            let accepted = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                            sec-websocket-accept: of-the-stand-in\r\n\r\nhello";
            stream.write_all(accepted.as_bytes()).unwrap();
            let mut part = vec![0; 65536];
            while let Ok(length @ 1..) = stream.read(&mut part) {
                if stream.write_all(&part[..length]).is_err() {
                    return;
                }
            }
            return;
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A real browserd with a real Chromium, under a user id of its own.
pub(crate) struct RealBrowser {
    child: Child,
    _folder: tempfile::TempDir,
    pub(crate) browser: Browser,
}

impl RealBrowser {
    pub(crate) fn start() -> Self {
        Self::start_with_timeout("240000")
    }

    /// With this default deadline of a call, in milliseconds.
    pub(crate) fn start_with_timeout(timeout: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let uid =
            *kernel::user_ids::of_test(std::process::id()).start() + NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = tempfile::Builder::new().prefix("cpb").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let root = nix::unistd::geteuid().is_root();
        if root {
            chown(&data, Some(uid), Some(uid)).unwrap();
        }
        let secret = CloneSecret::random();
        let stdout = folder.path().join("stdout");
        let mut command = Command::new(example(concat!(env!("CARGO_PKG_NAME"), "-browserd")));
        command
            .args(["--listen", "127.0.0.1:0", "--secret-fd", "0"])
            .args(["--default-timeout-ms", timeout, "--start-timeout-ms", "240000", "--chromium"])
            .arg(chromium())
            .arg("--data-dir")
            .arg(&data)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(&stdout).unwrap())
            .stderr(std::fs::File::create(folder.path().join("log")).unwrap());
        if root {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(secret.as_str().as_bytes()).unwrap();
        let line = wait("browserd is ready", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("browserd: {status}\n{}", std::fs::read_to_string(folder.path().join("log")).unwrap());
            }
            std::fs::read_to_string(&stdout).ok().filter(|text| text.ends_with('\n'))
        });
        let url = line.split_whitespace().find_map(|word| word.strip_prefix("ws://")).expect("raw CDP");
        let (address, path) = url.split_once('/').unwrap();
        let browser = Browser { address: address.parse().unwrap(), secret, path: format!("/{path}") };
        Self { child, _folder: folder, browser }
    }
}

impl Drop for RealBrowser {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && self.child.try_wait().is_ok_and(|status| status.is_none()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that Cargo built beside this test.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    let package = env!("CARGO_PKG_NAME");
    assert!(program.is_file(), "{} is missing: cargo build -p {package} --examples", program.display());
    program
}

/// The path of Chromium. Panics if it is not installed.
fn chromium() -> PathBuf {
    let named = std::env::var_os("BROWSERD_TEST_CHROMIUM").map(PathBuf::from);
    let usual =
        ["/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium", "/usr/local/bin/chrome"];
    named.into_iter().chain(usual.iter().map(PathBuf::from)).find(|path| path.exists()).expect(
        "Chromium is needed: install the packages chromium and chromium-shell, or set BROWSERD_TEST_CHROMIUM",
    )
}

/// The checkout.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
