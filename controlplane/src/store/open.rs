//! Opening the database.

use super::error::OpenError;
use super::{Engine, Store, migrate};
use crate::config::StoreConfig;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Executor, SqlitePool};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long the start waits for another process that migrates the database.
pub(super) const MIGRATION_WAIT: Duration = Duration::from_secs(60);

impl Store {
    /// Open the database and bring its schema up to date.
    ///
    /// Without an address it is `controlplane.db` in the state folder, which is created with mode 0700 if it is missing.
    pub async fn open(config: &StoreConfig, state_folder: &Path) -> Result<Self, OpenError> {
        let timeout = Duration::from_secs(config.timeout_seconds);
        let engine = if config.url.is_empty() {
            sqlite(config, timeout, state_folder).await?
        } else {
            postgres(config, timeout).await?
        };
        Ok(Self { engine, timeout, checked: Arc::new(Mutex::new(None)) })
    }
}

async fn sqlite(config: &StoreConfig, timeout: Duration, folder: &Path) -> Result<Engine, OpenError> {
    let path = folder.join("controlplane.db");
    private_file(folder, &path)?;
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(false)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        // Every commit is on the disk when it returns.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(timeout);

    // The switch to the write-ahead log needs the file alone and does not wait by itself.
    let began = Instant::now();
    loop {
        match migrate::sqlite(&options).await {
            Ok(()) => break,
            Err(error) if !is_busy(&error) => return Err(error),
            Err(_) if began.elapsed() > MIGRATION_WAIT => return Err(OpenError::Locked(MIGRATION_WAIT)),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }

    let pool = |connections| {
        SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(timeout)
            // There is no connection that could be lost.
            .test_before_acquire(false)
            .max_lifetime(None)
    };
    let write = pool(1).connect_with(options.clone()).await.map_err(OpenError::Connect)?;
    let read: SqlitePool = pool(config.connections).connect_lazy_with(options.read_only(true));
    Ok(Engine::Sqlite { read, write })
}

fn is_busy(error: &OpenError) -> bool {
    let (OpenError::Connect(error) | OpenError::Migration { source: error, .. }) = error else {
        return false;
    };
    // The primary code is the lowest byte of the extended code: 5 is SQLITE_BUSY, 6 SQLITE_LOCKED.
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i32>().ok());
    matches!(code.map(|code| code & 0xff), Some(5 | 6))
}

/// Create the file with mode 0600 before SQLite does it with another. Its companions get the mode of the file.
fn private_file(folder: &Path, path: &Path) -> Result<(), OpenError> {
    let failed = |path: &Path| {
        let path = PathBuf::from(path);
        move |source: io::Error| OpenError::File { path, source }
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(folder)(error)),
        _ => {}
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)
        .map_err(failed(path))?;
    let keep_private = |file: &File| -> io::Result<()> {
        if file.metadata()?.permissions().mode() & 0o7777 != 0o600 {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        Ok(())
    };
    keep_private(&file).map_err(failed(path))
}

async fn postgres(config: &StoreConfig, timeout: Duration) -> Result<Engine, OpenError> {
    if !(config.url.starts_with("postgres://") || config.url.starts_with("postgresql://")) {
        return Err(OpenError::Url("the scheme is neither postgres nor postgresql".into()));
    }
    let options: PgConnectOptions = config
        .url
        .parse::<PgConnectOptions>()
        .map_err(|error| OpenError::Url(error.to_string()))?
        .application_name("controlplane");

    migrate::postgres(&options).await?;

    let limit = timeout.as_millis();
    let settings = format!(
        "SET statement_timeout = {limit}; SET lock_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit}; \
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    );
    let settings: Arc<str> = settings.into();
    let pool = PgPoolOptions::new()
        .max_connections(config.connections)
        .acquire_timeout(timeout)
        .after_connect(move |connection, _| {
            // The server gives up when this side does. A commit is on the server's disk when it returns.
            let settings = settings.clone();
            Box::pin(async move {
                connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(settings))).await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await
        .map_err(OpenError::Connect)?;
    Ok(Engine::Postgres(pool))
}
