//! The same test on both engines.

use super::postgres::Postgres;
use controlplane::config::StoreConfig;
use controlplane::store::{OpenError, Store};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Somebody else's lock on the embedded database. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Lock(Child);

impl Drop for Lock {
    fn drop(&mut self) {
        // The holder ends with its standard input.
        drop(self.0.stdin.take());
        self.0.wait().expect("wait");
    }
}

/// An empty database, and a state folder.
#[derive(Debug)]
pub(crate) struct Database {
    /// The server, for tests on Postgres.
    pub(crate) server: Option<Postgres>,
    /// How to open it.
    pub(crate) config: StoreConfig,
    lock: Option<Lock>,
    folder: TempDir,
}

impl Database {
    /// SQLite.
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::Builder::new().prefix("cp-state-").tempdir().expect("a folder");
        Self { server: None, config: StoreConfig::default(), lock: None, folder }
    }

    /// A Postgres server of its own.
    pub(crate) fn postgres() -> Self {
        Self::on(Postgres::start())
    }

    /// A database on this server.
    pub(crate) fn on(server: Postgres) -> Self {
        let config = StoreConfig { url: server.create_database(), ..StoreConfig::default() };
        Self { server: Some(server), config, ..Self::sqlite() }
    }

    /// The state folder.
    pub(crate) fn state(&self) -> &Path {
        self.folder.path()
    }

    /// Open it.
    pub(crate) async fn open(&self) -> Store {
        self.try_open().await.expect("the database opens")
    }

    /// Open it.
    pub(crate) async fn try_open(&self) -> Result<Store, OpenError> {
        Store::open(&self.config, self.state()).await
    }

    /// Run SQL beside the program, as somebody with access to the database does. The answer has one line for each row.
    pub(crate) fn sql(&self, text: &str) -> String {
        if let Some(server) = &self.server {
            return server.sql("test_0", text);
        }
        let script = "import sqlite3, sys\n\
             c = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n\
             for statement in sys.argv[2].split(';'):\n    \
                 for row in c.execute(statement):\n        \
                     print('|'.join(str(v) for v in row))\n";
        let file = self.state().join("controlplane.db");
        let output =
            Command::new("python3").arg("-c").arg(script).arg(file).arg(text).output().expect("python3");
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
    }

    /// Make the database unusable: another process holds the only lock of SQLite, Postgres has crashed. Writes fail until
    /// [`Database::heal`].
    pub(crate) fn fail(&mut self) {
        match &mut self.server {
            Some(server) => server.stop(),
            None => self.lock = Some(self.hold_lock()),
        }
    }

    /// End the failure.
    pub(crate) fn heal(&mut self) {
        match &mut self.server {
            Some(server) => server.start_again(),
            None => self.lock = None,
        }
    }

    fn hold_lock(&self) -> Lock {
        // Beside a busy writer SQLite's own waiting, which sleeps longer and longer, may never meet a free moment.
        let script = "import sqlite3, sys\n\
             c = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n\
             while not c.in_transaction:\n\
             \x20   try: c.execute('BEGIN IMMEDIATE')\n\
             \x20   except sqlite3.OperationalError: pass\n\
             print('locked', flush=True)\n\
             sys.stdin.read()\n";
        let mut holder = Command::new("python3")
            .arg("-c")
            .arg(script)
            .arg(self.state().join("controlplane.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut line).expect("an answer");
        let lock = Lock(holder);
        assert_eq!(line, "locked\n");
        lock
    }
}
