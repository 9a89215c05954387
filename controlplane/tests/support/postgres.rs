//! A private Postgres server: own folder, only a Unix socket, ended with the test.
//!
//! The programs are those of the distribution. initdb and postgres refuse to run as root, so root runs them as the user
//! `postgres` or `nobody`. The server gets SIGQUIT from the kernel when the thread ends that started it, also when the test
//! process is killed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, User, chown, geteuid};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server. Dropping it ends the server and removes its files.
#[derive(Debug)]
pub(crate) struct Postgres {
    folder: TempDir,
    server: Option<Child>,
    durable: bool,
    databases: AtomicU32,
}

impl Postgres {
    /// A server that does not wait for the disk: nothing here survives a crash of the machine anyway.
    pub(crate) fn start() -> Self {
        Self::start_with(false)
    }

    /// A server that syncs every commit, for measurements.
    pub(crate) fn start_durable() -> Self {
        Self::start_with(true)
    }

    fn start_with(durable: bool) -> Self {
        let folder = tempfile::Builder::new().prefix("cp-pg-").tempdir().expect("a folder");
        run(Command::new("cp").arg("-a").arg(template()).arg(folder.path().join("data")));
        give_away(folder.path());
        let mut postgres = Self { folder, server: None, durable, databases: AtomicU32::new(0) };
        postgres.start_again();
        postgres
    }

    /// The folder of the socket.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Make an empty database, and return its address.
    pub(crate) fn create_database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// The address of a database.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@localhost/{database}?host={}", self.folder.path().display())
    }

    /// Run SQL with psql, beside the program under test. The answer has one line for each row.
    pub(crate) fn sql(&self, database: &str, text: &str) -> String {
        let output = self.psql(database).arg("-c").arg(text).output().expect("psql");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}: {error}");
        String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
    }

    /// A psql that is not started yet.
    pub(crate) fn psql(&self, database: &str) -> Command {
        let mut psql = Command::new(program("psql"));
        psql.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-h"])
            .arg(self.folder.path())
            .stdin(Stdio::null());
        psql
    }

    /// Start the server, after [`Postgres::stop`].
    pub(crate) fn start_again(&mut self) {
        assert!(self.server.is_none(), "the server runs");
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.folder.path().join("log"))
            .expect("the log of the server");
        let mut command = unprivileged(&program("postgres"), true);
        command
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .arg("-k")
            .arg(self.folder.path())
            .args(["-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=200"])
            .args(["-c", if self.durable { "fsync=on" } else { "fsync=off" }])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log);
        self.server = Some(command.spawn().expect("setpriv and postgres"));
        let began = Instant::now();
        while !self.is_ready() {
            let ended = self.server.as_mut().expect("started").try_wait().expect("wait");
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "postgres does not start: {}", self.log());
            sleep(Duration::from_millis(20));
        }
    }

    fn is_ready(&self) -> bool {
        let mut psql = self.psql("postgres");
        psql.args(["-c", "SELECT 1"]).stdout(Stdio::null()).stderr(Stdio::null());
        psql.status().is_ok_and(|status| status.success())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// End the server at once, with every connection, as a crash does: the next start recovers from the log.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::SIGQUIT);
        let mut server = self.server.take().expect("the server runs");
        server.wait().expect("wait");
    }

    /// Let every process of the server stand still, as on a machine that hangs.
    pub(crate) fn freeze(&self) {
        self.signal_all(Signal::SIGSTOP);
    }

    /// Go on after [`Postgres::freeze`].
    pub(crate) fn thaw(&self) {
        self.signal_all(Signal::SIGCONT);
    }

    fn pid(&self) -> Pid {
        let server = self.server.as_ref().expect("the server runs");
        Pid::from_raw(i32::try_from(server.id()).expect("a process id"))
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the server runs");
    }

    fn signal_all(&self, signal: Signal) {
        self.signal(signal);
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        for child in fs::read_to_string(children).expect("children").split_whitespace() {
            // One that has just ended needs no signal.
            let _ = kill(Pid::from_raw(child.parse().expect("a process id")), signal);
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.thaw();
            self.stop();
        }
    }
}

/// The user that runs the server.
fn user() -> Option<(Uid, Gid)> {
    if !geteuid().is_root() {
        return None;
    }
    let user = ["postgres", "nobody"].iter().find_map(|name| User::from_name(name).ok().flatten());
    let user = user.expect("root needs the user postgres or nobody to run a server");
    Some((user.uid, user.gid))
}

fn unprivileged(program: &Path, end_with_parent: bool) -> Command {
    let mut command = Command::new("setpriv");
    if let Some((uid, gid)) = user() {
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).arg("--clear-groups");
    }
    if end_with_parent {
        command.arg("--pdeathsig=QUIT");
    }
    command
        .arg("--")
        .arg(program)
        .current_dir("/")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C");
    command
}

fn give_away(path: &Path) {
    if let Some((uid, gid)) = user() {
        chown(path, Some(uid), Some(gid)).expect("chown");
    }
}

/// Debian has the programs of each version in a folder of its own, and only the clients on the PATH.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest =
        versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists()).max();
    let on_path = || {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.exists())
    };
    newest.or_else(on_path).unwrap_or_else(|| panic!("no {name}: scripts/install-deps installs Postgres"))
}

/// An initialised folder, made once for all tests of this target folder: initdb takes more than a second.
fn template() -> PathBuf {
    let version = Command::new(program("postgres")).arg("--version").output().expect("postgres").stdout;
    let version: String = String::from_utf8_lossy(&version)
        .chars()
        .filter(|c| c.is_ascii_digit() || *c == '.')
        .take(8)
        .collect();
    let owner = user().map_or(geteuid(), |(uid, _)| uid);
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let template = parent.join(format!("postgres-{version}-{owner}"));

    let lock = File::create(parent.join("postgres.lock")).expect("the lock");
    lock.lock().expect("the lock");
    if !template.exists() {
        // The user of the server may not reach the target folder.
        let work = tempfile::Builder::new().prefix("cp-pg-").tempdir().expect("a folder");
        give_away(work.path());
        let data = work.path().join("data");
        let mut initdb = unprivileged(&program("initdb"), false);
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]);
        run(initdb.args(["--no-sync", "--wal-segsize=1"]));
        let copy = template.with_extension("new");
        let _ = fs::remove_dir_all(&copy);
        run(Command::new("cp").arg("-a").arg(&data).arg(&copy));
        // The rename comes last, so an interrupted run is repeated.
        fs::rename(&copy, &template).expect("the template");
    }
    template
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
