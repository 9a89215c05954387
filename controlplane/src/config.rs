//! The configuration: types, defaults and documentation of every key.

use crate::access::Scope;
use crate::ids::TenantId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Sockets and folders.
    pub paths: Paths,
    /// The listener for programs that cannot use the Unix socket.
    pub http: HttpConfig,
    /// The database.
    pub store: StoreConfig,
    /// What a session may ask for.
    pub sessions: SessionConfig,
    /// How much callers may use. Every refusal names its limit.
    pub limits: LimitConfig,
    /// Recordings of sessions.
    pub recording: RecordingConfig,
    /// The audit log.
    pub audit: AuditConfig,
    /// The log.
    pub log: LogConfig,
    /// What local users may do, by the peer credentials of the Unix socket. The first matching rule decides.
    /// Without a rule that matches, root and the service's own user have every scope except `evaluate` in the tenant
    /// `default`, and every other user who can open the socket has the default scopes in a tenant of its own, `uid-N`.
    pub access: Vec<AccessRule>,
}

/// Sockets and folders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// The Unix socket of the service. Peer credentials are the login.
    pub socket: PathBuf,
    /// The group that owns the socket (mode 0660). Empty: the service's own group.
    pub socket_group: String,
    /// hostd's socket.
    pub hostd: PathBuf,
    /// The folder of the embedded database, the audit log's signing key and other state.
    pub state: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        let (run, state) = if cfg!(target_os = "freebsd") {
            ("/var/run", "/var/db/controlplane")
        } else {
            ("/run", "/var/lib/controlplane")
        };
        Self {
            socket: format!("{run}/controlplane/controlplane.sock").into(),
            socket_group: String::new(),
            hostd: format!("{run}/hostd/hostd.sock").into(),
            state: state.into(),
        }
    }
}

/// The listener for programs that cannot use the Unix socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// The address of the HTTP listener. Callers present a key. Empty: no listener.
    pub listen: String,
    /// Names that a request may have as its Host, beside IP addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// The address under which clients reach the listener, for the URLs in answers. Empty: the Host of the request.
    pub public_url: String,
    /// The longest request body in bytes, except for uploads.
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    pub max_body_bytes: u64,
    /// How long a client may take to send a request and to read an answer.
    #[schemars(range(min = 1, max = 3600))]
    pub client_timeout_seconds: u64,
    /// Open connections.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_connections: usize,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9480".into(),
            allowed_hosts: Vec::new(),
            public_url: String::new(),
            max_body_bytes: 4 << 20,
            client_timeout_seconds: 30,
            max_connections: 1024,
        }
    }
}

/// The database.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// The address of a Postgres database, `postgres://user@host/database`; may contain a password, so it is never logged.
    /// Empty: the embedded SQLite database in the state folder. The variable `DATABASE_URL` sets it too.
    pub url: String,
    /// Connections to the database.
    #[schemars(range(min = 1, max = 100))]
    pub connections: u32,
    /// How long a query may take, including the wait for a connection.
    #[schemars(range(min = 1, max = 60))]
    pub timeout_seconds: u64,
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.url.is_empty() { "sqlite" } else { "postgres" };
        f.debug_struct("StoreConfig").field("kind", &kind).finish_non_exhaustive()
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { url: String::new(), connections: 8, timeout_seconds: 5 }
    }
}

/// What a session may ask for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// The lifetime of a session that asks for none.
    #[schemars(range(min = 1, max = 31_622_400))]
    pub deadline_seconds: u64,
    /// The longest lifetime that a session can ask for.
    #[schemars(range(min = 1, max = 31_622_400))]
    pub max_deadline_seconds: u64,
    /// The idle time after which a session that asks for none is closed.
    #[schemars(range(min = 1, max = 31_622_400))]
    pub idle_seconds: u64,
    /// The longest idle time that a session can ask for.
    #[schemars(range(min = 1, max = 31_622_400))]
    pub max_idle_seconds: u64,
    /// The lease of a session's clone at hostd. It is renewed while the session is open; without the control plane, hostd
    /// removes the clone when the lease ends.
    #[schemars(range(min = 10, max = 86_400))]
    pub lease_seconds: u64,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            deadline_seconds: 3600,
            max_deadline_seconds: 24 * 3600,
            idle_seconds: 900,
            max_idle_seconds: 24 * 3600,
            lease_seconds: 120,
        }
    }
}

/// How much callers may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitConfig {
    /// Open sessions.
    #[schemars(range(min = 1, max = 100_000))]
    pub sessions: u32,
    /// Open sessions of one tenant.
    #[schemars(range(min = 1, max = 100_000))]
    pub sessions_per_tenant: u32,
    /// Opens that wait for a free session or clone.
    #[schemars(range(min = 0, max = 100_000))]
    pub queue: u32,
    /// How long an open waits in the queue.
    #[schemars(range(min = 0, max = 3600))]
    pub queue_wait_seconds: u64,
    /// Opens of one tenant per minute, on average.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub opens_per_minute: u32,
    /// Opens of one tenant in a burst, before the average applies.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub open_burst: u32,
    /// Calls of one caller per second, on average.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub calls_per_second: u32,
    /// Calls of one caller in a burst, before the average applies.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub call_burst: u32,
    /// Running calls of one session. Calls of one tab run one after the other.
    #[schemars(range(min = 1, max = 32))]
    pub calls_per_session: u32,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self {
            sessions: 100,
            sessions_per_tenant: 50,
            queue: 100,
            queue_wait_seconds: 30,
            opens_per_minute: 120,
            open_burst: 40,
            calls_per_second: 100,
            call_burst: 200,
            calls_per_session: 8,
        }
    }
}

/// Recordings of sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecordingConfig {
    /// The folder of the recordings; a picture is at TENANT/SESSION/N.png below it.
    pub folder: PathBuf,
    /// The size of all recordings. When it is reached, sessions with `record: audit` are refused, and screenshots of running
    /// ones fail.
    #[schemars(range(min = 1_048_576, max = 1_125_899_906_842_624u64))]
    pub quota_bytes: u64,
    /// How long recordings of `record: audit` are kept.
    #[schemars(range(min = 1, max = 31_622_400))]
    pub retention_seconds: u64,
    /// How many pictures a session with `record: transient` keeps.
    #[schemars(range(min = 1, max = 10_000))]
    pub transient_frames: u32,
}

impl Default for RecordingConfig {
    fn default() -> Self {
        let folder = if cfg!(target_os = "freebsd") {
            "/var/db/browser-jail/sessions"
        } else {
            "/var/lib/controlplane/recordings"
        };
        Self {
            folder: folder.into(),
            quota_bytes: 20 << 30,
            retention_seconds: 7 * 24 * 3600,
            transient_frames: 50,
        }
    }
}

/// The audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// How often the head of the chain is signed while there are new rows.
    #[schemars(range(min = 1, max = 86_400))]
    pub sign_every_seconds: u64,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { sign_every_seconds: 60 }
    }
}

/// The log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// `human` or `json`.
    pub format: LogFormat,
    /// The log filter, such as `info` or `controlplane=debug`.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Human, filter: "info".into() }
    }
}

/// The log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}

/// What local users may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// Users, by name or number.
    #[serde(default)]
    pub users: Vec<String>,
    /// Groups, by name or number.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The tenant they act for.
    pub tenant: TenantId,
    /// What they may do.
    pub scopes: Vec<Scope>,
}
