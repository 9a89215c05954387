//! The entry to the lifecycle: the operations as the server calls them, and the daemon's background work.

use super::calls::{Alarms, Calls};
use super::host_calls::HostCalls;
use super::parts::Parts;
use super::progress::ProgressSink;
use super::reaping::Reaping;
use super::registry::Registry;
use super::service_watch::ServiceWatch;
use super::slot_task::SlotTasks;
use super::warm_pool::WarmPool;
use crate::api::{
    CloneState, CreateParams, CreateResult, DestroyParams, DestroyResult, EgressHealth, ErrorCode, Finding,
    ForceUnmountParams, ForceUnmountResult, ListParams, ListResult, Method, PoolStatus, ReapParams,
    ReapResult, RequestId, RpcError,
};
use crate::audit::{Actor, Audit};
use crate::clock::Clock;
use crate::config::Config;
use crate::host::Host;
use crate::metrics::Metrics;
use crate::record::{Store, StoreError};
use crate::slot::{Slots, SlotsError};
use crate::timing;
use futures_util::future::join_all;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tracing::Instrument;

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

impl Caller {
    /// A part of the daemon itself.
    pub fn hostd(part: &'static str) -> Caller {
        Caller { actor: Actor::Hostd(part), uid: None, operator: true }
    }
}

/// What a lifecycle is made of besides its host.
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

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Why a lifecycle cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration of the slots.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// The state folder.
    #[error("the state folder cannot be used: {0}")]
    Store(#[from] StoreError),
}

/// The lifecycle's part of `host-status`.
#[derive(Debug, Clone)]
pub struct LifecycleStatus {
    /// Clones by state.
    pub clones: BTreeMap<CloneState, u64>,
    /// Operations under way.
    pub operations: u64,
    /// How the firewall was at the last inspection.
    pub egress: EgressHealth,
    /// The warm pool, if there is one.
    pub pool: Option<PoolStatus>,
    /// What an operator should know.
    pub alarms: Vec<String>,
}

/// The life of all clones of one host. Copies share everything.
///
/// A call that has begun is finished by the slot's own task even if its future is dropped. The server runs each call on a
/// task of its own, so that its audit line after the call is written too.
pub struct Lifecycle<H> {
    parts: Arc<Parts<H>>,
    stopped: watch::Sender<bool>,
}

impl<H> Clone for Lifecycle<H> {
    fn clone(&self) -> Self {
        Lifecycle { parts: self.parts.clone(), stopped: self.stopped.clone() }
    }
}

impl<H> std::fmt::Debug for Lifecycle<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lifecycle").finish_non_exhaustive()
    }
}

impl<H: Host> Lifecycle<H> {
    /// Read the records and inspect the host. Nothing on it is changed before [`Lifecycle::run_timers`] or the first call.
    /// A host that cannot be inspected yet raises an alarm and is not an error.
    pub async fn open(host: H, setup: Setup) -> Result<Lifecycle<H>, OpenError> {
        let Setup { config, clock, audit, metrics } = setup;
        let slots = Slots::new(&config.pool)?;
        let (store, found) = Store::open(&config.paths.state, &slots)?;
        let registry = Registry::new(store, found);
        let unproven = registry.read().members().map(|record| record.slot).collect();
        let alarms = Arc::new(Alarms::default());
        let audit_path = config.paths.audit.clone();
        let parts = Arc::new(Parts {
            slots,
            host: HostCalls::new(host, Duration::from_secs(config.lifecycle.step_timeout_seconds)),
            registry,
            tasks: SlotTasks::default(),
            calls: Arc::new(Calls::new(audit, audit_path, metrics.clone(), alarms.clone())),
            alarms,
            warm_pool: WarmPool::new(unproven),
            reaping: Reaping::default(),
            services: ServiceWatch::default(),
            wake: Notify::new(),
            config,
            clock,
            metrics,
        });
        parts.first_inspection().await;
        let owners: BTreeSet<u32> =
            parts.registry.read().records.values().filter_map(|record| record.owner_uid).collect();
        for owner in owners {
            if let Err(error) = parts.admit(Some(owner)).await {
                tracing::warn!(owner, error = error.message, "the owner of a clone may not connect to it");
            }
        }
        Ok(Lifecycle { parts, stopped: watch::Sender::new(false) })
    }

    /// The host, for status and checks.
    pub fn host(&self) -> &H {
        &self.parts.host.host
    }

    /// The slots, for names.
    pub fn slots(&self) -> &Slots {
        &self.parts.slots
    }

    /// The records' folder, so that tests can crash in the middle of a write.
    #[cfg(feature = "fake-host")]
    pub fn store(&self) -> &Store {
        self.parts.registry.store()
    }

    /// `browser-clone-create`.
    pub async fn create(
        &self,
        caller: &Caller,
        params: CreateParams,
        progress: Option<ProgressSink>,
    ) -> Result<CreateResult, RpcError> {
        let span = timing::operation("create", params.request_id.as_str());
        let request = to_json(&params);
        let name = |result: &CreateResult| Some(result.clone.name.to_string());
        let parts = &self.parts;
        let snapshot = parts.requested_snapshot(&params);
        let work = |template| Box::pin(parts.create(caller, params, progress, template));
        let calls = &parts.calls;
        let audited =
            calls.audited_create(&caller.actor, request, parts.members_template(&snapshot), work, name);
        calls.counted(Method::Create, audited).instrument(span).await
    }

    /// `browser-clone-destroy`.
    pub async fn destroy(
        &self,
        caller: &Caller,
        params: DestroyParams,
        progress: Option<ProgressSink>,
    ) -> Result<DestroyResult, RpcError> {
        let span = timing::operation("destroy", params.name.as_str());
        if let Err(error) = self.parts.may_destroy(caller, &params.name) {
            return Err(self.refuse(caller, Method::Destroy, error));
        }
        let request = to_json(&params);
        let name = |result: &DestroyResult| Some(result.name.to_string());
        let work = Box::pin(self.parts.destroy(caller, params, progress));
        self.remove(caller, Method::Destroy, request, work, name).instrument(span).await
    }

    /// `browser-clone-reap`. A dry run changes nothing, so it has no audit lines.
    pub async fn reap(
        &self,
        caller: &Caller,
        params: ReapParams,
        progress: Option<ProgressSink>,
    ) -> Result<ReapResult, RpcError> {
        if let Some(Err(error)) = params.name.as_ref().map(|name| self.parts.slot_of(name)) {
            return Err(self.refuse(caller, Method::Reap, error));
        }
        let (request, dry_run) = (to_json(&params), params.dry_run);
        let work = Box::pin(self.parts.reap(caller, params, progress));
        match dry_run {
            true => self.parts.calls.counted(Method::Reap, work).await,
            false => self.remove(caller, Method::Reap, request, work, |_| None).await,
        }
    }

    /// `browser-clone-force-unmount`.
    pub async fn force_unmount(
        &self,
        caller: &Caller,
        params: ForceUnmountParams,
        progress: Option<ProgressSink>,
    ) -> Result<ForceUnmountResult, RpcError> {
        if let Err(error) = self.parts.slot_of(&params.name) {
            return Err(self.refuse(caller, Method::ForceUnmount, error));
        }
        let request = to_json(&params);
        let name = |result: &ForceUnmountResult| Some(result.name.to_string());
        let work = Box::pin(self.parts.force_unmount(params, progress));
        self.remove(caller, Method::ForceUnmount, request, work, name).await
    }

    /// A call that is refused before it changes anything: counted, and summarised in the audit log.
    fn refuse(&self, caller: &Caller, method: Method, error: RpcError) -> RpcError {
        self.refused(caller, method, error.code());
        self.parts.metrics.operation(method, error.code().word());
        error
    }

    /// A caller's removal: counted, and audited before and after.
    async fn remove<T>(
        &self,
        caller: &Caller,
        method: Method,
        request: Value,
        work: impl Future<Output = Result<T, RpcError>>,
        name: impl FnOnce(&T) -> Option<String>,
    ) -> Result<T, RpcError> {
        let calls = &self.parts.calls;
        calls.counted(method, calls.audited_removal(&caller.actor, method, request, work, name)).await
    }

    /// Whether a create with this request id renews the lease of a clone of this caller.
    pub fn is_known(&self, caller: &Caller, request: &RequestId) -> bool {
        self.parts.is_known(caller, request)
    }

    /// `browser-clone-list`: from the records and the last inspection; no host command.
    pub fn list(&self, caller: &Caller, params: &ListParams) -> ListResult {
        self.parts.list(caller, params)
    }

    /// The lifecycle's part of `host-status`; no host command.
    pub fn status(&self) -> LifecycleStatus {
        self.parts.status()
    }

    /// Check everything a create needs: the host, the records and the audit log.
    pub async fn checks(&self) -> Vec<Finding> {
        let mut findings = self.host().checks().await;
        findings.extend(self.parts.own_checks().await);
        findings
    }

    /// Count a call that the server refused. The audit log gets one line per caller, method and error for all of them.
    pub fn refused(&self, caller: &Caller, method: Method, code: ErrorCode) {
        self.parts.calls.refused(&caller.actor, method, code);
    }

    /// Compare the records with the host once, and do what the planner decides. Returns when all of it is done.
    pub async fn reconcile_now(&self) {
        let reaping = self.parts.reconcile().await;
        join_all(reaping).await;
    }

    /// Run the timers (deadlines, reconcile) until the shutdown. Spawn this once.
    pub async fn run_timers(self) {
        let mut stopped = self.stopped.subscribe();
        loop {
            // Removals go on by themselves: a slow one must not delay the deadlines of others.
            drop(self.parts.reconcile().await);
            let pause = self.parts.until_next_turn();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.parts.wake.notified() => {}
                () = self.host().changed() => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
        }
    }

    /// Ask the services of ready clones in turn until the shutdown. Spawn this once.
    pub async fn run_service_checks(self) {
        let interval = Duration::from_millis(self.parts.config.lifecycle.service_check_interval_ms);
        let mut stopped = self.stopped.subscribe();
        while !interval.is_zero() {
            tokio::select! {
                () = self.parts.check_services(interval) => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
        }
    }

    /// Keep the warm pool full until the shutdown. Spawn this once.
    pub async fn run_pool(self) {
        let mut stopped = self.stopped.subscribe();
        loop {
            let (pause, idle) = self.parts.refill_in_background().await;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.parts.warm_pool.wanted(), if idle => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
        }
    }

    /// Fill the warm pool now: to its size, or to the first failure.
    pub async fn refill_now(&self) -> Result<(), RpcError> {
        self.parts.refill_all().await
    }

    /// Refuse new operations, drain the warm pool and wait for the running operations, at most the configured grace.
    /// Returns how many were still running; their records tell the next start what to do.
    pub async fn shutdown(&self) -> u64 {
        let parts = &self.parts;
        parts.calls.close();
        self.stopped.send_replace(true);
        parts.drain_all("hostd is stopping");
        let grace = Duration::from_secs(parts.config.lifecycle.shutdown_grace_seconds);
        let all_ended = async {
            parts.calls.all_ended().await;
            parts.tasks.all_idle().await;
        };
        let _ = tokio::time::timeout(grace, all_ended).await;
        self.host().close();
        parts.calls.active().max(parts.tasks.busy().len() as u64)
    }
}

fn to_json(params: &impl serde::Serialize) -> Value {
    serde_json::to_value(params).unwrap_or_default()
}
