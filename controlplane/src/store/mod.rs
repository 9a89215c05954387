//! The only place with SQL. SQLite and Postgres are behind one type; every test of the store runs on both.
//!
//! Both engines get the same text: `$1` parameters, 64-bit milliseconds, TEXT. Every call has the deadline
//! `store.timeout_seconds`. A connection whose transaction failed, or was abandoned, is closed, so that no state of it can
//! reach a later call.

mod audit;
mod error;
mod frames;
mod keys;
mod migrate;
mod open;
mod rows;
mod sessions;
mod transaction;

pub use audit::{AuditFilter, AuditHead, AuditRow, CheckpointRow, NewAudit};
pub use error::{OpenError, StoreError};
pub use rows::{FrameRow, KeyRow, RecordingRow, SessionRow};
pub use sessions::{IDEMPOTENCY_MS, Inserted, SessionFilter};

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The database. Clones share its connections.
#[derive(Clone)]
pub struct Store {
    engine: Engine,
    timeout: Duration,
    checked: Arc<Mutex<Option<Instant>>>,
}

#[derive(Clone)]
enum Engine {
    /// SQLite has one writer at a time, so there is one connection for writing: callers queue here and not in SQLite, which
    /// would let them sleep and retry.
    Sqlite {
        read: sqlx::SqlitePool,
        write: sqlx::SqlitePool,
    },
    Postgres(sqlx::PgPool),
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("engine", &self.engine_name()).finish_non_exhaustive()
    }
}

/// Run the same body on whichever engine there is. `read db` gives an executor for one statement that only reads, `write db`
/// one for one statement that writes (in a transaction, so that a statement whose caller gave up is not carried out later),
/// `transaction tx` a transaction that is committed after the body; `tx` is used as `&mut ***tx`.
macro_rules! on {
    ($store:expr, read $db:ident => $body:expr) => {
        match &$store.engine {
            $crate::store::Engine::Sqlite { read: $db, .. } => $store.deadline(async { Ok($body) }).await,
            $crate::store::Engine::Postgres($db) => $store.deadline(async { Ok($body) }).await,
        }
    };
    ($store:expr, write $db:ident => $body:expr) => {
        $crate::store::on!($store, transaction tx => {
            let $db = &mut ***tx;
            $body
        })
    };
    ($store:expr, transaction $tx:ident => $body:expr) => {
        match &$store.engine {
            $crate::store::Engine::Sqlite { write, .. } => {
                let work = async {
                    let mut transaction = $crate::store::transaction::begin(write, "BEGIN IMMEDIATE").await?;
                    let $tx = &mut transaction;
                    let result = $body;
                    transaction.commit().await?;
                    Ok(result)
                };
                $store.deadline(work).await
            }
            $crate::store::Engine::Postgres(pool) => {
                let work = async {
                    let mut transaction = $crate::store::transaction::begin(pool, "BEGIN").await?;
                    let $tx = &mut transaction;
                    let result = $body;
                    transaction.commit().await?;
                    Ok(result)
                };
                $store.deadline(work).await
            }
        }
    };
}
pub(crate) use on;

impl Store {
    /// `sqlite` or `postgres`.
    pub fn engine_name(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite { .. } => "sqlite",
            Engine::Postgres(_) => "postgres",
        }
    }

    async fn deadline<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::timeout(self.timeout)),
        }
    }

    /// Whether the database can be written, for the readiness check. It commits a row, because a full disk is found only by
    /// that; at most once a second.
    pub async fn check(&self) -> Result<(), StoreError> {
        let recent = |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() < Duration::from_secs(1));
        if recent(&self.checked.lock().expect("not poisoned")) {
            return Ok(());
        }
        on!(self, write db => {
            sqlx::query("INSERT INTO probe (id, at) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET at = excluded.at")
                .bind(crate::time::now())
                .execute(db)
                .await?;
        })?;
        *self.checked.lock().expect("not poisoned") = Some(Instant::now());
        Ok(())
    }

    /// Close the connections. Later calls fail.
    pub async fn close(&self) {
        match &self.engine {
            Engine::Sqlite { read, write } => {
                read.close().await;
                // The last connection that is closed moves the write-ahead log into the database.
                write.close().await;
            }
            Engine::Postgres(pool) => pool.close().await,
        }
    }
}
