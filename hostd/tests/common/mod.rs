//! The real daemon in a private folder, with the fake host behind it, and a plain client.
//!
//! Threads and blocking sockets on purpose: a test reads from top to bottom, and nothing it shares
//! with the daemon's own client can hide a defect of both.

// Every test file uses its own share of this.
#![allow(dead_code, unreachable_pub)]

pub mod binary;
pub mod wire;

use hostd::config::PoolConfig;
use hostd::host::fake::FakeHost;
use hostd::slot::Slots;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use wire::wait_for;

/// Nothing that a test waits for takes longer, even on a machine with other things to do.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A private folder with the configuration, state, socket and fake world of one daemon.
#[derive(Debug)]
pub struct Lab {
    folder: tempfile::TempDir,
    pool: Slots,
}

impl Lab {
    /// A pool of so many slots, fast timers, and everything allowed to the user that runs the test.
    /// `more` is added to the configuration: sections other than those written here.
    pub fn new(slots: u16, more: &str) -> Lab {
        Lab::with_pool(slots, "", more)
    }

    /// The same with more settings of the section `[pool]`.
    pub fn with_pool(slots: u16, pool_settings: &str, more: &str) -> Lab {
        // Short, because a socket's path must be.
        let folder = tempfile::Builder::new().prefix("hd").tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pool = PoolConfig { last_slot: slots, clones_dir: at("clones"), ..PoolConfig::default() };
        let config = format!(
            r#"
[paths]
socket = "{socket}"
socket_group = ""
state = "{state}"
audit = "{audit}"

[pool]
last_slot = {slots}
clones_dir = "{clones}"
{pool_settings}

[host]
driver = "fake"

[lifecycle]
step_timeout_seconds = 10
busy_patience_ms = 60
quarantine_seconds = 0
orphan_grace_seconds = 0
reap_cap = 999
reconcile_interval_ms = 100
shutdown_grace_seconds = 5

[server]
creates_per_minute = 1000000
create_burst = 1000000

[log]
filter = "info,hostd::lifecycle=debug"

[[access]]
users = ["{uid}"]
operator = true
{more}
"#,
            socket = at("sock").display(),
            state = at("state").display(),
            audit = at("audit.log").display(),
            clones = at("clones").display(),
            uid = nix::unistd::geteuid(),
        );
        fs::create_dir(at("state")).unwrap();
        fs::write(at("hostd.toml"), config).unwrap();
        Lab { pool: Slots::new(&pool).unwrap(), folder }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.path().join("sock")
    }

    /// The pool, for names.
    pub fn pool(&self) -> &Slots {
        &self.pool
    }

    /// The folder of the fake world, where the daemon keeps it.
    pub fn world_folder(&self) -> PathBuf {
        self.path().join("state").join("fake-world")
    }

    /// How long each call of the host takes, from the daemon's next start on.
    pub fn set_latency(&self, milliseconds: u64) {
        fs::create_dir_all(self.world_folder()).unwrap();
        fs::write(self.world_folder().join("latency_ms"), milliseconds.to_string()).unwrap();
    }

    /// The world that the daemon sees, to look at and to meddle with, while it runs or not.
    pub fn world(&self) -> FakeHost {
        FakeHost::persistent(self.pool.clone(), &self.world_folder()).unwrap()
    }

    /// From the next start on the configuration has this text instead of that.
    pub fn change_config(&self, from: &str, to: &str) {
        let path = self.path().join("hostd.toml");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    /// Start the daemon. Its log is appended to `hostd.log`.
    pub fn start(&self) -> Daemon {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.path().join("hostd.log"));
        let log = log.unwrap();
        let child = Command::new(binary::hostd())
            .arg("--config")
            .arg(self.path().join("hostd.toml"))
            // Nothing of the test's environment may configure it.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Daemon { child, socket: self.socket() }
    }

    /// The last lines of the daemon's log, for a failure's message.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.path().join("hostd.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Keep the folder, for a look after a failure.
    pub fn keep(self) -> PathBuf {
        self.folder.keep()
    }
}

/// A running daemon; killed when dropped, so that a failing test leaves nothing behind.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    /// Wait until it takes connections. An error tells that it ended instead.
    pub fn wait_ready(&mut self) -> Result<(), String> {
        let ready = wait_for(|| {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(Err(format!("hostd ended at its start: {status}")));
            }
            UnixStream::connect(&self.socket).is_ok().then_some(Ok(()))
        });
        ready.unwrap_or_else(|| Err("hostd did not take connections in time".into()))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it ended by itself, and how.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// SIGKILL, and wait for its end.
    pub fn kill9(mut self) {
        self.kill();
    }

    /// SIGTERM, and wait for its end.
    pub fn stop(mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        wait_for(|| self.child.try_wait().unwrap()).expect("hostd ends when asked to")
    }

    fn kill(&mut self) {
        // Both fail only when it has already ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A small generator of numbers that repeats itself for the same seed (splitmix64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}
