//! The real daemon with the fake host behind it, in a private folder, for the server's tests.

// Every test file uses its own share of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use hostd::api::{CreateParams, StatusParams};
use hostd::client::Client;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// Nothing that a test waits for takes longer, even on a machine with other things to do.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A private folder with socket, state, audit log and log of one daemon.
#[derive(Debug)]
pub struct Home {
    folder: tempfile::TempDir,
    settings: Vec<String>,
}

impl Home {
    /// Everything allowed to the user that runs the test, no limits in the way, and these settings on top.
    pub fn new(settings: &[&str]) -> Home {
        // Short, because a socket's path must be.
        let folder = tempfile::Builder::new().prefix("hs").tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let own = [
            format!("paths.socket={}", at("run/sock")),
            "paths.socket_group=".to_owned(),
            format!("paths.state={}", at("state")),
            format!("paths.audit={}", at("audit.log")),
            format!("pool.clones_dir={}", at("clones")),
            "host.driver=fake".to_owned(),
            "lifecycle.quarantine_seconds=0".to_owned(),
            "lifecycle.reconcile_interval_ms=200".to_owned(),
            "server.creates_per_minute=1000000".to_owned(),
            "server.create_burst=1000000".to_owned(),
            format!("access=[{{users=[\"{}\"],operator=true}}]", nix::unistd::geteuid()),
        ];
        // A setting that the test gives is not given twice: not every daemon knows the fake host.
        let key = |setting: &str| setting.split('=').next().map(str::to_owned);
        let own = own.into_iter().filter(|one| settings.iter().all(|other| key(other) != key(one)));
        let settings = own.chain(settings.iter().map(|text| (*text).to_owned())).collect();
        Home { folder, settings }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("run/sock")
    }

    pub fn audit(&self) -> PathBuf {
        self.path().join("audit.log")
    }

    /// How long each call of the host takes, from the daemon's next start on.
    pub fn set_latency(&self, milliseconds: u64) {
        let world = self.path().join("state/fake-world");
        fs::create_dir_all(&world).unwrap();
        fs::write(world.join("latency_ms"), milliseconds.to_string()).unwrap();
    }

    /// The arguments that make this home the daemon's.
    pub fn arguments(&self) -> Vec<String> {
        let config = self.path().join("none.toml");
        fs::write(&config, "").unwrap();
        // Whatever the umask is: hostd refuses a file that others can write.
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
        let mut arguments = vec!["--config".to_owned(), config.display().to_string()];
        for setting in &self.settings {
            arguments.extend(["--set".to_owned(), setting.clone()]);
        }
        arguments
    }

    /// The daemon's command line; nothing of the test's environment may configure it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hostd"));
        command.args(self.arguments()).env_clear().stdin(Stdio::null());
        command
    }

    /// Start it and wait until it answers and has looked at its host.
    pub async fn start(&self) -> Daemon {
        self.start_command(self.command()).await
    }

    /// The same with another command line.
    pub async fn start_command(&self, mut command: Command) -> Daemon {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.path().join("log")).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut daemon = Daemon { child, socket: self.socket() };
        let began = Instant::now();
        loop {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("hostd ended at its start: {status}\n{}", self.log());
            }
            if let Ok(client) = Client::connect(&self.socket()).await
                && let Ok(status) = client.status(StatusParams { metrics: true, checks: false }).await
                && !status.metrics.unwrap().contains("hostd_reconcile_duration_seconds_count 0\n")
            {
                return daemon;
            }
            assert!(began.elapsed() < PATIENCE, "hostd does not answer\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }
}

/// A running daemon; killed when dropped, so that a failing test leaves nothing behind.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.socket).await.unwrap().with_timeout(PATIENCE)
    }

    /// A client when nobody else is connected any more, for tests of the caps.
    pub async fn only_client(&self) -> Client {
        let client = self.client().await;
        until("nobody else is connected", async || {
            client.status(StatusParams::default()).await.unwrap().connections == 1
        })
        .await;
        client
    }

    pub async fn raw(&self) -> Raw {
        Raw::over(UnixStream::connect(&self.socket).await.unwrap())
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Wait for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "hostd does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// SIGTERM; it must end well.
    pub async fn stop(mut self) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        let status = self.ended().await;
        assert_eq!((status.code(), status.signal()), (Some(0), None));
    }

    /// SIGKILL.
    pub async fn kill9(mut self) {
        self.child.kill().unwrap();
        self.ended().await;
    }

    /// A number of kilobytes from the kernel's word about the process, such as `VmRSS` or `VmHWM`.
    pub fn memory(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only when it has ended and been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that sends whatever it is told to.
#[derive(Debug)]
pub struct Raw {
    pub lines: BufReader<OwnedReadHalf>,
    pub write: OwnedWriteHalf,
}

impl Raw {
    pub fn over(stream: UnixStream) -> Raw {
        let (read, write) = stream.into_split();
        Raw { lines: BufReader::new(read), write }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.write.write_all(bytes.as_ref()).await.unwrap();
    }

    /// The next line as JSON; `None` when the connection is closed.
    pub async fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        match tokio::time::timeout(PATIENCE, self.lines.read_line(&mut line)).await.expect("a line in time") {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))),
        }
    }

    /// One line, one answer: its `error.data.code`, or `ok`.
    pub async fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\n")).await;
        code(&self.line().await.expect("an answer"))
    }
}

/// The `error.data.code` of an answer, or `ok`.
pub fn code(answer: &Value) -> String {
    match answer.get("error") {
        Some(error) => error["data"]["code"].as_str().unwrap().to_owned(),
        None => "ok".to_owned(),
    }
}

pub fn create(id: impl std::fmt::Display) -> CreateParams {
    CreateParams::new(id.to_string().parse().unwrap())
}

/// Wait until something holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
