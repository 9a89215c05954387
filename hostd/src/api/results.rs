//! Results of the methods that act on clones, and the progress notification.

use super::clone::{CloneInfo, StageTiming};
use super::ids::{CloneId, CloneName, ProgressToken};
use super::secret::CloneSecret;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Result of `browser-clone-create`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateResult {
    /// The clone.
    pub clone: CloneInfo,
    /// True when this call renewed the lease of an existing clone.
    pub renewed: bool,
    /// The secret that the clone's browserd requires: `Authorization: Bearer SECRET`, or `/SECRET` before the path. The URL
    /// `cdp_endpoint` contains it; nothing else does. None for a clone without browserd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<CloneSecret>,
    /// Who may connect to the endpoint. The packet filter refuses everybody else.
    #[serde(default)]
    pub callers: Callers,
}

/// Who may connect to a clone's endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Callers {
    /// User ids on the host itself.
    pub users: Vec<u32>,
    /// Addresses and networks of other machines and of containers.
    pub networks: Vec<String>,
}

/// Result of `browser-clone-destroy`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DestroyResult {
    /// The clone's name.
    pub name: CloneName,
    /// The clone's id.
    pub clone_id: CloneId,
    /// True when the clone was already gone.
    pub already_gone: bool,
    /// True when nothing of the clone is left; false when the teardown continues in the background.
    pub complete: bool,
    /// How long each step took.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageTiming>,
}

/// Why a clone is reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReapReason {
    /// Its destroy was not finished.
    DestroyUnfinished,
    /// Its create was not finished and is not running.
    CreateUnfinished,
    /// A member of the warm pool that is too old, broken, no longer wanted, or whose template changed.
    PoolDrained,
    /// Its deadline passed, or the host was rebooted.
    DeadlinePassed,
    /// It has hostd's identity but no record, and is older than the grace period.
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

    /// The name on the wire and in the metrics.
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

/// The reaper's decision on one clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReapLine {
    /// The clone, or `aside/<clone_id>` for storage that was moved aside.
    pub name: String,
    /// Why it was (or would be) reaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReapReason>,
    /// The reason as a sentence.
    pub why: String,
    /// The errors, for clones in `failed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// Result of `browser-clone-reap`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReapResult {
    /// Whether this was a dry run.
    pub dry_run: bool,
    /// Clones that were reaped (or would be, in a dry run).
    pub reaped: Vec<ReapLine>,
    /// Clones that were kept.
    pub kept: Vec<ReapLine>,
    /// Clones that could not be reaped completely; the next run continues.
    pub failed: Vec<ReapLine>,
    /// Set when the run stopped at the reap cap or another safety limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm: Option<String>,
}

/// Result of `browser-clone-force-unmount`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForceUnmountResult {
    /// The clone's name.
    pub name: CloneName,
    /// The mounts that were unmounted.
    pub unmounted: Vec<String>,
    /// The mounts that are left.
    pub left: Vec<String>,
}

/// Result of `browser-clone-list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListResult {
    /// The clones, by name.
    pub clones: Vec<CloneInfo>,
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProgressState {
    /// The step began.
    Started,
    /// The step succeeded.
    Done,
    /// The step failed; the result of the operation has the error.
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
    /// The state of the step.
    pub state: ProgressState,
    /// Time since the step began.
    pub seconds: f64,
}
