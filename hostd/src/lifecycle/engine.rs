//! The engine: the operations as the server calls them.

use crate::api::*;
use crate::audit::{Actor, Audit};
use crate::clock::Clock;
use crate::config::Config;
use crate::host::Host;
use crate::metrics::Metrics;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Who calls, and what that means for the clones they may touch.
#[derive(Debug, Clone)]
pub struct Caller {
    /// For the audit log.
    pub actor: Actor,
    /// The owner of what is created; hostd's own calls have none.
    pub uid: Option<u32>,
    /// May act on everybody's clones.
    pub operator: bool,
}

/// Where progress goes: clone, step, state, time since the step began.
pub type ProgressSink = Arc<dyn Fn(&CloneName, &str, ProgressState, Duration) + Send + Sync>;

/// What an engine is made of besides its host.
pub struct Setup {
    /// The configuration.
    pub config: Arc<Config>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The audit log.
    pub audit: Arc<Audit>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// The engine's share of `host-status`.
#[derive(Debug, Clone)]
pub struct EngineStatus {
    /// Clones by state.
    pub clones: BTreeMap<CloneState, u64>,
    /// Operations under way.
    pub operations: u64,
    /// How the firewall was when last looked at.
    pub egress: EgressHealth,
    /// Things an operator should know.
    pub alarms: Vec<String>,
}

/// The life of all clones of one host. Cheap to clone; all clones are the same engine.
pub struct Engine<H> {
    host: Arc<H>,
}

impl<H: Host> Engine<H> {
    /// Read the records, compare them with the host and roll back what is unfinished.
    /// After this the host is as the records say, or an alarm tells what is not.
    pub async fn open(_host: H, _setup: Setup) -> Result<Engine<H>, RpcError> {
        unimplemented!()
    }
    /// The host, for status and checks.
    pub fn host(&self) -> &H {
        &self.host
    }
    /// `browser-clone-create`. Runs to its end even if the caller goes away.
    pub async fn create(
        &self,
        _caller: &Caller,
        _params: CreateParams,
        _progress: Option<ProgressSink>,
    ) -> Result<CreateResult, RpcError> {
        unimplemented!()
    }
    /// `browser-clone-destroy`.
    pub async fn destroy(
        &self,
        _caller: &Caller,
        _params: CloneParams,
        _progress: Option<ProgressSink>,
    ) -> Result<DestroyResult, RpcError> {
        unimplemented!()
    }
    /// `browser-clone-reap`.
    pub async fn reap(
        &self,
        _caller: &Caller,
        _params: ReapParams,
        _progress: Option<ProgressSink>,
    ) -> Result<ReapResult, RpcError> {
        unimplemented!()
    }
    /// `browser-clone-force-unmount`.
    pub async fn force_unmount(
        &self,
        _caller: &Caller,
        _params: CloneParams,
        _progress: Option<ProgressSink>,
    ) -> Result<ForceUnmountResult, RpcError> {
        unimplemented!()
    }
    /// `browser-clone-list`: from the records and the last look at the host; no host command.
    pub fn list(&self, _caller: &Caller, _params: &ListParams) -> ListResult {
        unimplemented!()
    }
    /// Its share of `host-status`; no host command.
    pub fn status(&self) -> EngineStatus {
        unimplemented!()
    }
    /// Run the timers (deadlines, reconcile) until the engine is shut down. Spawn this once.
    pub async fn run_timers(self) {
        unimplemented!()
    }
    /// Refuse new operations and wait for the running ones, at most the configured grace.
    /// Answers how many were still running; their records tell the next start what to do.
    pub async fn shutdown(&self) -> usize {
        unimplemented!()
    }
}
