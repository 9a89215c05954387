//! One clone: its state and timings.

use super::ids::{CloneId, CloneName, RequestId, SnapshotName, Tenant};
use super::limits::Limits;
use super::secret::SecretUrl;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The state of a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CloneState {
    /// A create is in progress.
    Creating,
    /// A member of the warm pool, without an owner.
    Pooled,
    /// Created and verified.
    Ready,
    /// Was ready, but a part is missing on the host; destroy it.
    Broken,
    /// A destroy is in progress.
    Destroying,
    /// A destroy could not be finished; the reaper retries.
    Incomplete,
    /// Destroyed; its slot is not reused for a while.
    Quarantined,
    /// On the host with hostd's identity, but without a record.
    Orphan,
    /// Has a clone's name but was not made by hostd; never changed.
    Foreign,
}

impl CloneState {
    /// Every state, in the order of the lifecycle.
    pub const ALL: [CloneState; 9] = [
        CloneState::Creating,
        CloneState::Pooled,
        CloneState::Ready,
        CloneState::Broken,
        CloneState::Destroying,
        CloneState::Incomplete,
        CloneState::Quarantined,
        CloneState::Orphan,
        CloneState::Foreign,
    ];

    /// The name on the wire.
    pub fn word(self) -> &'static str {
        match self {
            CloneState::Creating => "creating",
            CloneState::Pooled => "pooled",
            CloneState::Ready => "ready",
            CloneState::Broken => "broken",
            CloneState::Destroying => "destroying",
            CloneState::Incomplete => "incomplete",
            CloneState::Quarantined => "quarantined",
            CloneState::Orphan => "orphan",
            CloneState::Foreign => "foreign",
        }
    }
}

/// How long one stage of a create took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageTiming {
    /// The step, `thaw` for a clone of the warm pool, or `total`.
    pub stage: String,
    /// Its duration.
    pub seconds: f64,
}

/// How the clone was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// Created for this request.
    #[default]
    Cold,
    /// From the warm pool, with a running browser.
    Warm,
    /// From the warm pool; the browser was started for this request.
    Basic,
}

impl Launch {
    /// The name on the wire and in the metrics.
    pub fn word(self) -> &'static str {
        match self {
            Launch::Cold => "cold",
            Launch::Warm => "warm",
            Launch::Basic => "basic",
        }
    }
}

/// One clone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CloneInfo {
    /// Its name, which contains its slot number.
    pub name: CloneName,
    /// Its unique id; in a list only for the owner and for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_id: Option<CloneId>,
    /// The request that created it; in a list only for the owner and for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The tenant it is counted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// The user that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_uid: Option<u32>,
    /// Where it is in its life.
    pub state: CloneState,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its IPv6 address, if pool.subnet6 is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip6: Option<Ipv6Addr>,
    /// The address of its browser service, once it is ready; in a list only for the owner and for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Its raw CDP endpoint, for Playwright's `connectOverCDP` or Puppeteer's `browserWSEndpoint`. The URL contains the
    /// clone's secret, so only the owner gets it. It is valid for this clone only: a later clone with the same address
    /// refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub cdp_endpoint: Option<SecretUrl>,
    /// The template's snapshot it was cloned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotName>,
    /// The limits in effect, except those in `limits_not_kept`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The limits that this host cannot enforce.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_not_kept: Vec<String>,
    /// When its create began (RFC 3339, informational).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// How old it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// When its deadline passes (RFC 3339, informational: the monotonic clock decides).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<String>,
    /// The time until the deadline; 0 when it has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds_left: Option<u64>,
    /// Whether it was created for the request or taken from the warm pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Launch>,
    /// How long each stage of its create took.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageTiming>,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
