//! The only place with SQL. SQLite and Postgres are behind one type; every test of the store runs on both.

use crate::error::{ApiError, ErrorCode};
use crate::ids::{KeyId, SessionId, TenantId};
use crate::time::Millis;

/// Why the store could not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, is read-only or full, or did not answer in time. Nothing was changed.
    #[error("the database does not answer: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// A row violates the schema: the database was changed by something else.
    #[error("the database has a row that this version cannot read: {0}")]
    Corrupt(String),
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => ApiError::new(ErrorCode::StoreUnavailable, error.to_string()),
            StoreError::Corrupt(_) => ApiError::new(ErrorCode::Internal, error.to_string()),
        }
    }
}

/// A session as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// The session; also the `request_id` at hostd.
    pub id: SessionId,
    /// The tenant.
    pub tenant: TenantId,
    /// The caller that opened it, as [`Caller::name`](crate::access::Caller::name).
    pub owner: String,
    /// `opening`, `open`, `closing` or `closed`.
    pub state: String,
    /// `clean` or `operator`.
    pub credential_mode: String,
    /// The domains, as a JSON array of host names.
    pub domains: String,
    /// `off`, `transient` or `audit`.
    pub record: String,
    /// The labels, as a JSON object of texts.
    pub labels: String,
    /// When it was asked for.
    pub created_at: Millis,
    /// When its clone was ready.
    pub started_at: Option<Millis>,
    /// When it ends at the latest.
    pub deadline_at: Millis,
    /// The idle time in milliseconds after which it is closed.
    pub idle_ms: Millis,
    /// When the last call ended. Written at most every few seconds.
    pub used_at: Millis,
    /// The name of its clone at hostd, once there is one.
    pub clone_name: Option<String>,
    /// The id of its clone at hostd.
    pub clone_id: Option<String>,
    /// When it was closed.
    pub closed_at: Option<Millis>,
    /// Why it was closed: `requested`, `idle`, `deadline`, `clone_lost`, `open_failed`, `restart`, …
    pub close_reason: Option<String>,
}

/// An API key as it is stored. The secret is not stored, only its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// The public name.
    pub id: KeyId,
    /// The tenant.
    pub tenant: TenantId,
    /// A name for people.
    pub label: String,
    /// SHA-256 of the secret.
    pub secret_hash: Vec<u8>,
    /// The scopes, separated by commas.
    pub scopes: String,
    /// Who issued it.
    pub issued_by: String,
    /// When it was issued.
    pub issued_at: Millis,
    /// When it expires.
    pub expires_at: Option<Millis>,
    /// When it was revoked.
    pub revoked_at: Option<Millis>,
    /// When it was last used. Written at most once a minute.
    pub used_at: Option<Millis>,
}
