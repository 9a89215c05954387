//! Rows as the rest of the program sees them.

use crate::ids::{KeyId, SessionId, TenantId};
use crate::time::Millis;

/// A session as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct SessionRow {
    /// The session; also the `request_id` at hostd.
    #[sqlx(try_from = "String")]
    pub id: SessionId,
    /// The tenant.
    #[sqlx(try_from = "String")]
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
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct KeyRow {
    /// The public name.
    #[sqlx(try_from = "String")]
    pub id: KeyId,
    /// The tenant.
    #[sqlx(try_from = "String")]
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

/// A picture of a recording. The picture itself is a file.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct FrameRow {
    /// The session.
    #[sqlx(try_from = "String")]
    pub session: SessionId,
    /// Its tenant.
    #[sqlx(try_from = "String")]
    pub tenant: TenantId,
    /// Its number in the session.
    pub number: i64,
    /// When it was taken.
    pub captured_at: Millis,
    /// Its size.
    pub bytes: i64,
    /// `png`, `jpeg` or `webp`.
    pub format: String,
    /// Its width in pixels.
    pub width: i64,
    /// Its height in pixels.
    pub height: i64,
    /// The verb whose result it is.
    pub verb: String,
}

/// The recording of a session: the sum of its frames.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct RecordingRow {
    /// The session.
    #[sqlx(try_from = "String")]
    pub session: SessionId,
    /// Its tenant.
    #[sqlx(try_from = "String")]
    pub tenant: TenantId,
    /// Who opened the session.
    pub owner: String,
    /// `transient` or `audit`.
    pub record: String,
    /// When the session was asked for.
    pub created_at: Millis,
    /// When the session was closed. The time for which a recording is kept begins here.
    pub closed_at: Option<Millis>,
    /// How many frames there are.
    pub frames: i64,
    /// Their size together.
    pub bytes: i64,
    /// When the first was taken.
    pub first_at: Millis,
    /// When the last was taken.
    pub last_at: Millis,
}
