//! The life of a session: open, use, renew, close, and what happens to it after a restart.

use crate::ids::{SessionId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether a session has a person's logins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CredentialMode {
    /// An empty browser.
    #[default]
    Clean,
    /// With the logins that a grant allows.
    Operator,
}

/// What of a session is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Nothing.
    Off,
    /// The last screenshots, until the session is closed.
    #[default]
    Transient,
    /// Every screenshot, kept for the configured time.
    Audit,
}

/// Open a session: a browser of its own, with its own files, address and limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenSession {
    /// Whether the session has a person's logins.
    pub credential_mode: CredentialMode,
    /// The host names whose logins are used; only with `credential_mode: operator`.
    pub domains: Vec<String>,
    /// What is recorded; fixed for the session.
    pub record: Record,
    /// The session's lifetime in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// The session is closed when it was not used for so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// Texts for the caller's own use, shown in lists.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Its clone is being created.
    Opening,
    /// It can be used.
    Open,
    /// Its clone is being destroyed.
    Closing,
    /// It has ended.
    Closed,
}

/// A session as its owner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionView {
    /// The session. It is a secret of its owner: whoever knows it still needs the owner's credential.
    pub session_id: SessionId,
    /// Where it is in its life.
    pub state: SessionState,
    /// Its tenant.
    pub tenant: TenantId,
    /// Who opened it.
    pub owner: String,
    /// Whether it has a person's logins.
    pub credential_mode: CredentialMode,
    /// The host names whose logins it has.
    pub domains: Vec<String>,
    /// What is recorded.
    pub record: Record,
    /// Texts of the caller.
    pub labels: BTreeMap<String, String>,
    /// When it was asked for (RFC 3339).
    pub created_at: String,
    /// When it could be used first (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ends at the latest (RFC 3339).
    pub deadline_at: String,
    /// The idle time after which it is closed, in seconds.
    pub idle_seconds: u64,
    /// When it was last used (RFC 3339).
    pub used_at: String,
    /// When it ended (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<String>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub close_reason: Option<String>,
}
