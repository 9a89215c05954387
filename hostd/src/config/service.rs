//! The sections of the daemon: limits of callers, log, metrics and access rules.

use super::types::{empty_is_none, none_is_empty};
use crate::api::Method;
use crate::slot::Slot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits for callers of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The largest number of clones on this host.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub max_clones: u64,
    /// The largest number of clones of one tenant of one user.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub max_clones_per_tenant: u64,
    /// Creates of one user per minute, on average.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub creates_per_minute: u32,
    /// Creates of one user in a burst, before the average applies.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub create_burst: u32,
    /// Renewals of leases (creates that repeat the request of a clone) of one user per minute, on average. Operators are
    /// exempt.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub renewals_per_minute: u32,
    /// Renewals of one user in a burst, before the average applies.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub renewal_burst: u32,
    /// Destroys of one user per minute, on average. Operators are exempt.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub destroys_per_minute: u32,
    /// Destroys of one user in a burst, before the average applies.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub destroy_burst: u32,
    /// Reaps of one user per minute, on average, dry runs included. Operators are exempt.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub reaps_per_minute: u32,
    /// Reaps of one user in a burst, before the average applies.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub reap_burst: u32,
    /// Lists, status and discover calls of one user per minute, on average. Operators are exempt.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub reads_per_minute: u32,
    /// Lists, status and discover calls of one user in a burst, before the average applies.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub read_burst: u32,
    /// Open connections.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_connections: usize,
    /// Open connections of one user; above it the longest idle one is closed.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_connections_per_user: usize,
    /// Running requests of one connection.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_requests_per_connection: usize,
    /// Running operations on the host. One eighth of them is reserved for operators.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub max_operations: usize,
    /// Running operations of one user. Operators are exempt.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub max_operations_per_user: usize,
    /// The longest line, in bytes.
    #[schemars(range(min = 4096, max = 16 << 20))]
    pub max_line_bytes: usize,
    /// The timeout for receiving one line and for sending one answer.
    #[schemars(range(min = 1, max = 3600))]
    pub line_timeout_seconds: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_clones: 100,
            max_clones_per_tenant: 50,
            creates_per_minute: 120,
            create_burst: 40,
            renewals_per_minute: 1200,
            renewal_burst: 1000,
            destroys_per_minute: 600,
            destroy_burst: 200,
            reaps_per_minute: 30,
            reap_burst: 10,
            reads_per_minute: 12_000,
            read_burst: 2_000,
            max_connections: 512,
            max_connections_per_user: 256,
            max_requests_per_connection: 64,
            max_operations: 64,
            max_operations_per_user: 24,
            max_line_bytes: 64 * 1024,
            line_timeout_seconds: 10,
        }
    }
}

/// The log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// `human` or `json`.
    pub format: LogFormat,
    /// The log filter, such as `info` or `hostd=debug`.
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

/// The Prometheus listener.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// The address of the HTTP listener for Prometheus, such as 127.0.0.1:9469; loopback only. Empty: off.
    #[serde(deserialize_with = "empty_is_none", serialize_with = "none_is_empty")]
    #[schemars(with = "String")]
    pub listen: Option<std::net::SocketAddr>,
}

/// One access rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccessRule {
    /// Users by name or number.
    pub users: Vec<String>,
    /// Groups by name or number.
    pub groups: Vec<String>,
    /// The methods they may call. browser-clone-force-unmount is for operators only.
    pub operations: Vec<Method>,
    /// Operators may call everything, on all clones.
    pub operator: bool,
}

impl AccessRule {
    /// The default rules.
    pub(super) fn defaults() -> Vec<AccessRule> {
        let operations = Method::ALL.into_iter().filter(|method| *method != Method::ForceUnmount).collect();
        vec![
            AccessRule { users: vec!["root".into()], operator: true, ..AccessRule::default() },
            AccessRule { groups: vec!["hostd".into()], operations, ..AccessRule::default() },
        ]
    }

    /// What is wrong with the rule.
    pub fn problem(&self) -> Option<String> {
        if self.users.iter().chain(&self.groups).any(|name| name.trim().is_empty()) {
            return Some("has an empty name: give the name or number of a user or group".into());
        }
        if self.users.is_empty() && self.groups.is_empty() {
            return Some("matches nobody: give `users` or `groups`".into());
        }
        if !self.operator && self.operations.is_empty() {
            return Some("allows nothing: give `operations`, or `operator = true`".into());
        }
        if !self.operator && self.operations.contains(&Method::ForceUnmount) {
            let method = Method::ForceUnmount;
            return Some(format!("{method} is for operators only: remove it, or set `operator = true`"));
        }
        None
    }
}
