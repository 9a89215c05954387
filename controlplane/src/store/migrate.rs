//! The schema: numbered migrations, applied at the start in one transaction under a lock. A second process waits.

use super::error::OpenError;
use super::open::MIGRATION_WAIT;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, raw_sql};

/// The text of every migration. A released one is never changed.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/0001_sessions_keys_recordings_audit.sql")];

/// The words of the migrations that differ between the engines.
struct Dialect {
    seq: &'static str,
    bytes: &'static str,
}

const SQLITE: Dialect = Dialect { seq: "INTEGER PRIMARY KEY", bytes: "BLOB" };
const POSTGRES: Dialect = Dialect { seq: "BIGINT PRIMARY KEY", bytes: "BYTEA" };

/// The lock of the migrations: "ctlplane" in ASCII.
const LOCK: i64 = 0x6374_6c70_6c61_6e65;

impl Dialect {
    fn text(&self, migration: &str) -> String {
        migration.replace("{seq}", self.seq).replace("{bytes}", self.bytes)
    }
}

/// Apply what is missing, within the transaction of the connection, and commit. A macro, because the bounds of a function that
/// is generic over the engine would be longer than its body.
macro_rules! apply {
    ($connection:expr, $dialect:expr) => {
        async {
            let failed = |version| move |source| OpenError::Migration { version, source };
            let table = $dialect.text(
                "CREATE TABLE IF NOT EXISTS schema_version (version {seq}, digest {bytes} NOT NULL, applied_at BIGINT NOT NULL)",
            );
            raw_sql(AssertSqlSafe(table)).execute(&mut $connection).await.map_err(OpenError::Connect)?;
            let applied: Vec<(i64, Vec<u8>)> =
                sqlx::query_as("SELECT version, digest FROM schema_version ORDER BY version")
                    .fetch_all(&mut $connection)
                    .await
                    .map_err(OpenError::Connect)?;

            let known = MIGRATIONS.len() as i64;
            if let Some((found, _)) = applied.last().filter(|(found, _)| *found > known) {
                return Err(OpenError::TooNew { found: *found, known });
            }
            for (index, migration) in MIGRATIONS.iter().enumerate() {
                let version = index as i64 + 1;
                let digest = Sha256::digest(migration).to_vec();
                if let Some((found, applied)) = applied.get(index) {
                    if *found != version || *applied != digest {
                        return Err(OpenError::OtherSchema(version));
                    }
                    continue;
                }
                raw_sql(AssertSqlSafe($dialect.text(migration)))
                    .execute(&mut $connection)
                    .await
                    .map_err(failed(version))?;
                sqlx::query("INSERT INTO schema_version (version, digest, applied_at) VALUES ($1, $2, $3)")
                    .bind(version)
                    .bind(digest)
                    .bind(crate::time::now())
                    .execute(&mut $connection)
                    .await
                    .map_err(failed(version))?;
                tracing::info!(version, "the schema of the database was brought up to date");
            }
            $connection.execute("COMMIT").await.map_err(OpenError::Connect)?;
            Ok(())
        }
    };
}

pub(super) async fn sqlite(options: &SqliteConnectOptions) -> Result<(), OpenError> {
    let mut connection = options.connect().await.map_err(OpenError::Connect)?;
    let result = async {
        connection.execute("BEGIN IMMEDIATE").await.map_err(OpenError::Connect)?;
        apply!(connection, SQLITE).await
    }
    .await;
    // Without a commit, closing is the rollback.
    let closed = connection.close().await.map_err(OpenError::Connect);
    result.and(closed)
}

pub(super) async fn postgres(options: &PgConnectOptions) -> Result<(), OpenError> {
    let work = async {
        let mut connection = options.connect().await.map_err(OpenError::Connect)?;
        let result = async {
            connection.execute("BEGIN").await.map_err(OpenError::Connect)?;
            sqlx::query("SELECT pg_advisory_xact_lock($1)")
                .bind(LOCK)
                .execute(&mut connection)
                .await
                .map_err(OpenError::Connect)?;
            apply!(connection, POSTGRES).await
        }
        .await;
        let closed = connection.close().await.map_err(OpenError::Connect);
        result.and(closed)
    };
    match tokio::time::timeout(MIGRATION_WAIT, work).await {
        Ok(result) => result,
        Err(_) => Err(OpenError::Locked(MIGRATION_WAIT)),
    }
}
