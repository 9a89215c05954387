//! The sections of the clones: slots, warm pool, timeouts.

use super::types::{empty_is_none, none_is_empty};
use crate::api::{ErrorCode, Flavor, LONGEST_SECONDS, RpcError};
use crate::platform::{DefaultDirs, default_dirs};
use crate::slot::Slot;
use ipnet::{Ipv4Net, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The slots and the warm pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Names begin with this; the slot's three digits follow (browsertask001).
    pub prefix: String,
    /// The prefix of interface names, which must be short (bt001, e0a_bt001).
    pub interface_prefix: String,
    /// The first slot.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub first_slot: u16,
    /// The last slot.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub last_slot: u16,
    /// The clones' own IPv4 network. Its first address is the gateway.
    #[schemars(with = "String")]
    pub subnet: Ipv4Net,
    /// Unused addresses at the start of the network; slot N has address offset + N.
    #[schemars(range(min = 2, max = 1 << 24))]
    pub address_offset: u32,
    /// The clones' own IPv6 network, with the same offsets. Empty: no IPv6.
    #[serde(deserialize_with = "empty_is_none", serialize_with = "none_is_empty")]
    #[schemars(with = "String")]
    pub subnet6: Option<Ipv6Net>,
    /// On Linux each slot has its own user id: this number plus the slot. Nobody else may use these ids: the daemon does
    /// not start if an account has one. Change it only while there are no clones.
    pub uid_base: u32,
    /// The folder of the clones.
    pub clones_dir: PathBuf,
    /// The parent dataset of the clones, for ZFS.
    pub parent_dataset: String,
    /// How many members of each flavour the warm pool keeps, frozen, for later creates; 0 is off. Members are evicted
    /// when server.max_clones is reached.
    #[schemars(range(max = 500))]
    pub size: u16,
    /// `ready` members have a running browser and use its memory; for `basic` ones the create starts it. A create uses a
    /// ready member first, then a basic one, then makes a new clone.
    pub flavors: Vec<Flavor>,
    /// A member that is older than this is replaced.
    #[schemars(range(min = 1, max = LONGEST_SECONDS))]
    pub max_age_seconds: u64,
    /// How much of the time refills may take, in percent. Where the limits of a running clone can be changed, it is also
    /// the processor limit of a member that is being made.
    #[schemars(range(min = 1, max = 100))]
    pub refill_percent: u64,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self::below(&default_dirs())
    }
}

impl PoolConfig {
    pub(super) fn below(dirs: &DefaultDirs) -> Self {
        Self {
            prefix: "browsertask".into(),
            interface_prefix: "bt".into(),
            first_slot: 1,
            last_slot: 900,
            subnet: Ipv4Net::new_assert([10, 87, 64, 0].into(), 22),
            address_offset: 15,
            subnet6: None,
            uid_base: kernel::user_ids::CLONES,
            clones_dir: dirs.clones.clone(),
            parent_dataset: "zroot/bastille/jails".into(),
            size: 0,
            flavors: vec![Flavor::Ready],
            max_age_seconds: 3600,
            refill_percent: 50,
        }
    }
}

/// Timeouts and deadlines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LifecycleConfig {
    /// A clone's lifetime if the request names none.
    #[schemars(range(min = 1, max = LONGEST_SECONDS))]
    pub default_deadline_seconds: u64,
    /// The longest lifetime that one request may ask for; more is refused. Renewing the lease extends it.
    #[schemars(range(min = 1, max = LONGEST_SECONDS))]
    pub max_deadline_seconds: u64,
    /// The timeout of one step.
    #[schemars(range(min = 1, max = 3600))]
    pub step_timeout_seconds: u64,
    /// How long to wait for a busy dataset before force is used.
    #[schemars(range(max = 3_600_000))]
    pub busy_patience_ms: u64,
    /// How long a freed slot stays unused.
    #[schemars(range(max = LONGEST_SECONDS))]
    pub quarantine_seconds: u64,
    /// How long an object without a record must have existed before it is reaped.
    #[schemars(range(max = LONGEST_SECONDS))]
    pub orphan_grace_seconds: u64,
    /// The largest number of clones reaped in one run.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub reap_cap: usize,
    /// How often the host is inspected and compared with the records.
    #[schemars(range(min = 10, max = 3_600_000))]
    pub reconcile_interval_ms: u64,
    /// How often each ready clone's browser service is asked whether it answers; 0 is never. A clone whose service does not
    /// answer twice in a row is shown as broken.
    #[schemars(range(max = 3_600_000))]
    pub service_check_interval_ms: u64,
    /// How long a stopping daemon waits for running operations; unfinished ones stay recorded.
    #[schemars(range(max = 3600))]
    pub shutdown_grace_seconds: u64,
}

impl Default for LifecycleConfig {
    fn default() -> Self {
        Self {
            default_deadline_seconds: 1800,
            max_deadline_seconds: 86_400,
            step_timeout_seconds: 60,
            busy_patience_ms: 10_000,
            quarantine_seconds: 60,
            orphan_grace_seconds: 600,
            reap_cap: 10,
            reconcile_interval_ms: 5_000,
            service_check_interval_ms: 30_000,
            shutdown_grace_seconds: 30,
        }
    }
}

impl LifecycleConfig {
    /// The lifetime of a request's clone.
    pub fn lease(&self, requested: Option<u64>) -> Result<Duration, RpcError> {
        let (seconds, most) = (requested.unwrap_or(self.default_deadline_seconds), self.max_deadline_seconds);
        if seconds == 0 {
            return Err(RpcError::new(
                ErrorCode::InvalidParams,
                "deadline_seconds: 0 is too small: at least 1",
                "leave it out for the default",
            ));
        }
        if seconds > most {
            return Err(RpcError::new(
                ErrorCode::LimitExceeded,
                format!(
                    "deadline_seconds: {seconds} is above lifecycle.max_deadline_seconds, which is {most}"
                ),
                "ask for less and renew the lease, or leave it out for the default",
            ));
        }
        Ok(Duration::from_secs(seconds))
    }
}
