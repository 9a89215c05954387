//! Parameters of the methods.

use super::ids::{CloneId, CloneName, ProgressToken, RequestId, SnapshotName, Tenant};
use super::limits::Limits;
use browser_settings::BrowserSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest time that can be requested or configured, in seconds: sums of such times cannot overflow, and a longer one
/// is a wrong unit.
pub const LONGEST_SECONDS: u64 = 366 * 24 * 3600;

/// Parameters of `browser-clone-create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateParams {
    /// The idempotency key of the request. Repeating it returns the same clone and renews its lease. Every user has request
    /// ids of its own.
    pub request_id: RequestId,
    /// The tenant that the clone is counted for. Every user has tenants of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// The free slot to use, by its clone name; default: the slot freed longest ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<CloneName>,
    /// The template's snapshot; default: as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotName>,
    /// The clone's lifetime from now on; at most the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = LONGEST_SECONDS))]
    pub deadline_seconds: Option<u64>,
    /// Limits of the clone, each at most the configured one; default: as configured.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub limits: Option<Limits>,
    /// Settings of the clone's browser; default: as configured. A clone with other settings than the configured ones is never
    /// one of the warm pool.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub browser: Option<BrowserSettings>,
    /// Request progress notifications with this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_token: Option<ProgressToken>,
}

impl CreateParams {
    /// A request with default values.
    pub fn new(request_id: RequestId) -> Self {
        Self {
            request_id,
            tenant: None,
            name: None,
            snapshot: None,
            deadline_seconds: None,
            limits: None,
            browser: None,
            progress_token: None,
        }
    }
}

/// An object or null. A derived type would also accept an array, in the order of its fields.
fn object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    use serde::de::Error;
    let raw = <Box<serde_json::value::RawValue>>::deserialize(deserializer)?;
    if raw.get().starts_with('[') {
        return Err(D::Error::custom("expected an object, found an array"));
    }
    serde_json::from_str(raw.get()).map_err(D::Error::custom)
}

/// Parameters of `browser-clone-destroy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DestroyParams {
    /// The clone's name.
    pub name: CloneName,
    /// The clone's id, so that a late call cannot affect the next clone of this name.
    pub clone_id: CloneId,
    /// false: answer as soon as egress is cut, nothing in the clone can run any more and the teardown is recorded; the
    /// rest continues by itself.
    #[serde(default = "wait_by_default")]
    pub wait: bool,
    /// Request progress notifications with this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_token: Option<ProgressToken>,
}

fn wait_by_default() -> bool {
    true
}

impl DestroyParams {
    /// Destroy this clone and wait until nothing of it is left.
    pub fn new(name: CloneName, clone_id: CloneId) -> Self {
        Self { name, clone_id, wait: true, progress_token: None }
    }
}

/// Parameters of `browser-clone-force-unmount`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForceUnmountParams {
    /// The clone's name.
    pub name: CloneName,
    /// The clone's id, so that a late call cannot affect the next clone of this name.
    pub clone_id: CloneId,
    /// Request progress notifications with this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_token: Option<ProgressToken>,
}

impl ForceUnmountParams {
    /// Force the mounts of this clone.
    pub fn new(name: CloneName, clone_id: CloneId) -> Self {
        Self { name, clone_id, progress_token: None }
    }
}

/// Parameters of `browser-clone-reap`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReapParams {
    /// Change nothing; only return what would be done, and why.
    #[serde(default)]
    pub dry_run: bool,
    /// Only this clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<CloneName>,
    /// Request progress notifications with this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_token: Option<ProgressToken>,
}

/// Parameters of `browser-clone-list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// Only this clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<CloneName>,
    /// Only the clones of this tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
}

/// Parameters of `host-status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusParams {
    /// Also run the host's checks (`hostctl doctor`); slower.
    #[serde(default)]
    pub checks: bool,
    /// Also return the metrics as Prometheus text (`hostctl metrics`).
    #[serde(default)]
    pub metrics: bool,
}

/// Parameters of `rpc.discover`: none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscoverParams {}
