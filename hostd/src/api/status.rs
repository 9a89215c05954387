//! The result of `host-status`: counts, health, findings and the warm pool.

use super::clone::CloneState;
use super::ids::CloneName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Healthy.
    Ok,
    /// Works, but an operator should know about it.
    Warning,
    /// No clone can be created.
    Error,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The stable name of the check.
    pub check: String,
    /// Its severity.
    pub severity: Severity,
    /// What was found.
    pub message: String,
    /// How to fix it; empty if nothing is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// The state of the clones' firewall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EgressHealth {
    /// The rules are loaded and refer to the table.
    Ok,
    /// The table of clone addresses is missing: clones have no network.
    TableMissing,
    /// The rules are missing or disabled: the clones' links stay down until they are restored.
    RulesMissing,
    /// The rules are in place, but the clones' common link, a bridge, does not exist: clones have no network.
    BridgeMissing,
    /// The rules are in place, but the clones' bridge is down: clones have no network until hostd brings it up.
    BridgeDown,
}

impl EgressHealth {
    /// What is wrong and what it means for the clones; `None` if nothing is.
    pub fn problem(self) -> Option<&'static str> {
        match self {
            EgressHealth::Ok => None,
            EgressHealth::TableMissing => {
                Some("the firewall's table of clones is missing: all clones are cut off")
            }
            EgressHealth::RulesMissing => Some(
                "the firewall's rules for the clones are not loaded: their links are taken down until they are",
            ),
            EgressHealth::BridgeMissing => Some("the clones' bridge does not exist: all clones are cut off"),
            EgressHealth::BridgeDown => {
                Some("the clones' bridge is down, with the firewall's rules in place: all clones are cut off")
            }
        }
    }
}

/// Result of `host-status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusResult {
    /// hostd's version.
    pub version: String,
    /// The host's drivers, such as `storage` → `zfs`.
    pub host: BTreeMap<String, String>,
    /// The subnet of the slots.
    pub pool: String,
    /// The number of slots.
    pub slots: u64,
    /// The number of clones by state.
    pub clones: BTreeMap<CloneState, u64>,
    /// The largest number of clones on this host.
    pub max_clones: u64,
    /// Running operations.
    pub operations: u64,
    /// Open connections.
    pub connections: u64,
    /// The firewall at the last inspection.
    pub egress: EgressHealth,
    /// The warm pool; absent when pool.size is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_pool: Option<PoolStatus>,
    /// The daemon's uptime.
    pub uptime_seconds: u64,
    /// Conditions that an operator should know about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
    /// The results of the host's checks, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub findings: Option<Vec<Finding>>,
    /// The metrics as Prometheus text, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
}

/// How complete a member of the warm pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Flavor {
    /// With a running browser on a blank page; used first.
    Ready,
    /// Without a browser, which is started by the create: slower, but uses almost no memory.
    Basic,
}

impl Flavor {
    /// Every flavour, in the order of use.
    pub const ALL: [Flavor; 2] = [Flavor::Ready, Flavor::Basic];

    /// The name on the wire and in the metrics.
    pub fn word(self) -> &'static str {
        match self {
            Flavor::Ready => "ready",
            Flavor::Basic => "basic",
        }
    }
}

/// The warm pool, in the result of `host-status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatus {
    /// The wanted number of members of each flavour.
    pub size: u64,
    /// The configured flavours.
    pub flavors: Vec<Flavor>,
    /// The members, by name.
    pub members: Vec<PoolMember>,
    /// Whether a member is being created.
    pub refilling: bool,
    /// Creates served from the warm pool since the daemon started.
    pub hits: u64,
    /// Creates that found no member.
    pub misses_empty: u64,
    /// Creates that found no member with their snapshot, limits or name.
    pub misses_unfit: u64,
    /// Members destroyed unused: too old, broken, evicted, template changed, or daemon stopped.
    pub drained: u64,
    /// How long the last refill took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refill_seconds: Option<f64>,
    /// Why the warm pool cannot be refilled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One member of the warm pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolMember {
    /// Its name, which it keeps when it gets an owner.
    pub name: CloneName,
    /// Its flavour.
    pub flavor: Flavor,
    /// How old it is.
    pub age_seconds: u64,
    /// The time until it expires.
    pub seconds_left: u64,
}
