//! Errors of the store.

use crate::error::{ApiError, ErrorCode};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the store could not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, is locked, read-only or full, or did not answer in time. Nothing is half done. A commit
    /// that was under way when the connection was lost may still have happened.
    #[error("the database does not answer: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// A row violates the schema: the database was changed by something else.
    #[error("the database has a row that this version cannot read: {0}")]
    Corrupt(String),
    /// The database refused a row because of a rule of the schema, such as a number that exists already.
    #[error("the database refused the row: {0}")]
    Refused(#[source] sqlx::Error),
}

impl StoreError {
    pub(super) fn timeout(limit: Duration) -> Self {
        let text = format!("no answer within {} s (store.timeout_seconds)", limit.as_secs());
        Self::Unavailable(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text)))
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::error::ErrorKind;
        match &error {
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::TypeNotFound { .. }
            | sqlx::Error::RowNotFound => Self::Corrupt(error.to_string()),
            sqlx::Error::Database(database) => match database.kind() {
                ErrorKind::UniqueViolation
                | ErrorKind::ForeignKeyViolation
                | ErrorKind::NotNullViolation
                | ErrorKind::CheckViolation => Self::Refused(error),
                // Postgres: class 22 is data that a column cannot hold.
                _ if database.code().is_some_and(|code| code.len() == 5 && code.starts_with("22")) => {
                    Self::Refused(error)
                }
                _ if database.code().is_some_and(|code| is_damage(&code)) => Self::Corrupt(error.to_string()),
                _ => Self::Unavailable(error),
            },
            _ => Self::Unavailable(error),
        }
    }
}

/// Whether the engine says that its files are damaged: SQLITE_CORRUPT, SQLITE_NOTADB, or Postgres's data_corrupted and
/// index_corrupted.
fn is_damage(code: &str) -> bool {
    match code {
        "XX001" | "XX002" => true,
        // The primary code of SQLite is the lowest byte.
        _ => code.len() < 5 && matches!(code.parse::<i32>().map(|code| code & 0xff), Ok(11 | 26)),
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => ApiError::new(ErrorCode::StoreUnavailable, error.to_string())
                .retry_after(Duration::from_secs(1)),
            StoreError::Corrupt(_) | StoreError::Refused(_) => {
                ApiError::new(ErrorCode::Internal, error.to_string())
            }
        }
    }
}

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file of the embedded database, or its folder.
    #[error("cannot use {path}: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The address of the database.
    #[error("store.url (or DATABASE_URL) is not valid: {0}; it looks like postgres://user@host/database")]
    Url(String),
    /// The database cannot be reached or used.
    #[error("cannot open the database: {0}")]
    Connect(#[source] sqlx::Error),
    /// Another process holds the database.
    #[error("the database was locked by another process for {} s; stop that process, or retry", .0.as_secs())]
    Locked(Duration),
    /// The database was made by a newer program.
    #[error(
        "the database has schema version {found}, but this program knows only versions up to {known}: it was used by a newer program; \
         install that version again, or restore a backup of the database from before the update"
    )]
    TooNew {
        /// The version of the database.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// A migration that was applied has another text in this program.
    #[error(
        "migration {0} of the database is not the one of this program: the database belongs to another build"
    )]
    OtherSchema(i64),
    /// A migration failed; the database was not changed.
    #[error("migration {version} of the database failed and was rolled back: {source}")]
    Migration {
        /// The migration.
        version: i64,
        /// Why.
        source: sqlx::Error,
    },
}
