//! Parameters and results of the methods.

use super::ids::{CloneId, CloneName, ProgressToken, RequestId, SnapshotName, Tenant};
use super::pool::PoolStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Parameters of `browser-clone-create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateParams {
    /// The caller's name for this request. The same id again answers the same clone and renews its lease.
    pub request_id: RequestId,
    /// On whose behalf; counted against the tenant's cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// A certain free slot by its clone name; without it hostd takes the slot freed longest ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<CloneName>,
    /// The template's snapshot; without it the configured default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotName>,
    /// How long the clone may live from now on; capped by the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub deadline_seconds: Option<u64>,
    /// Limits below the configured ones.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object")]
    pub limits: Option<Limits>,
    /// Ask for progress notifications that carry this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_token: Option<ProgressToken>,
}

impl CreateParams {
    /// The plainest request: defaults for everything but the id.
    pub fn new(request_id: RequestId) -> Self {
        Self {
            request_id,
            tenant: None,
            name: None,
            snapshot: None,
            deadline_seconds: None,
            limits: None,
            progress_token: None,
        }
    }
}

/// An object or null. A derived type would take an array as well, by the order of its fields.
fn object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    use serde::de::Error;
    let raw = <Box<serde_json::value::RawValue>>::deserialize(deserializer)?;
    if raw.get().starts_with('[') {
        return Err(D::Error::custom("an array stands where an object belongs: its fields have names"));
    }
    serde_json::from_str(raw.get()).map_err(D::Error::custom)
}

/// Parameters of `browser-clone-destroy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DestroyParams {
    /// The clone's name.
    pub name: CloneName,
    /// Its identity, so that a late call cannot hit the next clone of this name.
    pub clone_id: CloneId,
    /// false: answer as soon as egress is cut, nothing in the clone can run any more and the teardown is recorded; the
    /// rest continues by itself.
    #[serde(default = "wait_by_default")]
    pub wait: bool,
    /// Ask for progress notifications that carry this token.
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
    /// Its identity, so that a late call cannot hit the next clone of this name.
    pub clone_id: CloneId,
    /// Ask for progress notifications that carry this token.
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
    /// Only tell what would be done, and why.
    #[serde(default)]
    pub dry_run: bool,
    /// Look at this clone alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<CloneName>,
    /// Ask for progress notifications that carry this token.
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
    /// Also answer the metrics as Prometheus text (`hostctl metrics`).
    #[serde(default)]
    pub metrics: bool,
}

/// Parameters of `rpc.discover`: none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscoverParams {}

/// What a clone may use. In a request: wishes, each at most the configured limit. In an answer: what is on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of all its processes together, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub memory_bytes: Option<u64>,
    /// Number of processes (threads on Linux).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub processes: Option<u64>,
    /// Open files of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub open_files: Option<u64>,
    /// Processor time: 100 is one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub cpu_percent: Option<u64>,
    /// What the clone may add to its template on disk, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub disk_bytes: Option<u64>,
    /// Bytes read from disk in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub read_bytes_per_second: Option<u64>,
    /// Bytes written to disk in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub write_bytes_per_second: Option<u64>,
}

/// Where a clone is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CloneState {
    /// Being made.
    Creating,
    /// Made ahead of time and owned by nobody: a create takes it.
    Pooled,
    /// Made and verified.
    Ready,
    /// Was ready, but the host no longer shows all of it; destroy it.
    Broken,
    /// Being taken away.
    Destroying,
    /// A destroy was begun and could not be finished yet; the reaper goes on.
    Incomplete,
    /// Gone; its slot is kept free for a while.
    Quarantined,
    /// On the host and provably ours, but without a record.
    Orphan,
    /// Has our name but is not ours; never touched.
    Foreign,
}

impl CloneState {
    /// Every state, in the order of a clone's life.
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

    /// The word on the wire.
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
    /// The stage: a step's name, `thaw` for a clone of the warm pool, or `total`.
    pub stage: String,
    /// Its duration.
    pub seconds: f64,
}

/// How the clone came to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// Made for this request.
    #[default]
    Cold,
    /// Made ahead of time, with its browser up.
    Warm,
    /// Made ahead of time; its browser was started for this request.
    Basic,
}

impl Launch {
    /// The word on the wire and in the metrics.
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
    /// Its name, which is its slot.
    pub name: CloneName,
    /// Its identity; in a list only for the owner and for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_id: Option<CloneId>,
    /// The request that made it; in a list only for the owner and for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// On whose behalf it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// The user that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_uid: Option<u32>,
    /// Where it is in its life.
    pub state: CloneState,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its IPv6 address, if the pool has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip6: Option<Ipv6Addr>,
    /// Where its browser service answers, once it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Its raw CDP, of this clone alone: for Playwright's `connectOverCDP` or Puppeteer's `browserWSEndpoint`, which then
    /// need not ask the endpoint first. A later clone with the same address refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdp_endpoint: Option<String>,
    /// The template's snapshot it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotName>,
    /// The limits that are on, but for those named in `limits_not_kept`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Which of them this host cannot keep, by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_not_kept: Vec<String>,
    /// When its create began (RFC 3339; for show only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// How old it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// When its deadline passes (RFC 3339; for show only, the monotonic clock decides).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<String>,
    /// How long until then; 0 when it has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds_left: Option<u64>,
    /// Cold, or from the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Launch>,
    /// How long each stage of its create took.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageTiming>,
    /// What is wrong with it, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Answer of `browser-clone-create`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateResult {
    /// The clone.
    pub clone: CloneInfo,
    /// True when this call renewed the lease of a clone that was already there.
    pub renewed: bool,
}

/// Answer of `browser-clone-destroy`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DestroyResult {
    /// The clone's name.
    pub name: CloneName,
    /// The identity that was asked for.
    pub clone_id: CloneId,
    /// True when there was nothing left to do.
    pub already_gone: bool,
    /// True when nothing of the clone is left; false when the teardown continues in the background.
    pub complete: bool,
    /// How long each step took.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageTiming>,
}

/// Why the reaper takes a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReapReason {
    /// Its destroy was begun and not finished.
    DestroyUnfinished,
    /// Its create was begun, not finished, and nobody works on it.
    CreateUnfinished,
    /// A member of the warm pool that is over: too old, its template changed, broken, or no longer wanted.
    PoolDrained,
    /// Its deadline passed, or the host was restarted since.
    DeadlinePassed,
    /// It has no record, is provably ours, and older than the grace period.
    Orphan,
}

impl ReapReason {
    /// Every reason.
    pub const ALL: [ReapReason; 5] = [
        ReapReason::DestroyUnfinished,
        ReapReason::CreateUnfinished,
        ReapReason::PoolDrained,
        ReapReason::DeadlinePassed,
        ReapReason::Orphan,
    ];

    /// The word on the wire and in the metrics.
    pub fn word(self) -> &'static str {
        match self {
            ReapReason::DestroyUnfinished => "destroy_unfinished",
            ReapReason::CreateUnfinished => "create_unfinished",
            ReapReason::PoolDrained => "pool_drained",
            ReapReason::DeadlinePassed => "deadline_passed",
            ReapReason::Orphan => "orphan",
        }
    }
}

/// One clone the reaper looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReapLine {
    /// The clone, or `aside/<clone_id>` for storage that was moved aside.
    pub name: String,
    /// Why it was (or would be) taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReapReason>,
    /// The reason in words: what was seen and what was decided.
    pub why: String,
    /// What went wrong, for those in `failed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// Answer of `browser-clone-reap`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReapResult {
    /// Whether nothing was done on purpose.
    pub dry_run: bool,
    /// Taken (or, in a dry run, would be).
    pub reaped: Vec<ReapLine>,
    /// Left alone, each with its reason.
    pub kept: Vec<ReapLine>,
    /// Tried and not finished; the next run goes on.
    pub failed: Vec<ReapLine>,
    /// Set when the run stopped rather than emptying the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm: Option<String>,
}

/// Answer of `browser-clone-force-unmount`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForceUnmountResult {
    /// The clone's name.
    pub name: CloneName,
    /// Mounts below the clone that are gone now.
    pub unmounted: Vec<String>,
    /// Mounts that are still there.
    pub left: Vec<String>,
}

/// Answer of `browser-clone-list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListResult {
    /// The clones, by name.
    pub clones: Vec<CloneInfo>,
}

/// How urgent a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Works, but an operator should know.
    Warning,
    /// A create cannot work.
    Error,
}

/// One line of the doctor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What was looked at, as a stable word.
    pub check: String,
    /// How it is.
    pub severity: Severity,
    /// What was seen.
    pub message: String,
    /// The exact thing to do about it; empty when all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// Whether the clones' firewall does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EgressHealth {
    /// Rules loaded, referring to the table.
    Ok,
    /// The table of members is gone: clones are cut off.
    TableMissing,
    /// The rules are gone or off: the clones' links are taken down until they are back.
    RulesMissing,
}

/// Answer of `host-status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusResult {
    /// hostd's version.
    pub version: String,
    /// The host's drivers, such as `storage` → `zfs`.
    pub host: BTreeMap<String, String>,
    /// The pool's addresses.
    pub pool: String,
    /// How many slots the pool has.
    pub slots: u64,
    /// How many clones there are, by state.
    pub clones: BTreeMap<CloneState, u64>,
    /// How many clones this host may have.
    pub max_clones: u64,
    /// Operations under way.
    pub operations: u64,
    /// Open connections.
    pub connections: u64,
    /// How the firewall was when last looked at.
    pub egress: EgressHealth,
    /// The clones made ahead of time; absent when pool.size is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_pool: Option<PoolStatus>,
    /// How long the daemon has been up.
    pub uptime_seconds: u64,
    /// Things an operator should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
    /// The doctor's findings, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub findings: Option<Vec<Finding>>,
    /// The metrics as Prometheus text, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
}

/// What a step of a running operation is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProgressState {
    /// It began.
    Started,
    /// It ended well.
    Done,
    /// It failed; the operation's answer says how.
    Failed,
}

/// Parameters of the notification `progress`, sent to callers that passed a token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// The caller's token.
    pub progress_token: ProgressToken,
    /// The clone.
    pub name: CloneName,
    /// The step, as in `stages` and in errors.
    pub step: String,
    /// What it is doing.
    pub state: ProgressState,
    /// Time since the step began.
    pub seconds: f64,
}
