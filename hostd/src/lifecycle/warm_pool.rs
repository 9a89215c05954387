//! Keeping the warm pool full.
//!
//! Members are made one at a time, by the same steps as any clone, and frozen when they are complete. Callers come first: a
//! member is started only when no caller has created or destroyed a clone for a moment, it pauses between its steps while
//! one does, and only a configured share of the time is spent on members. A member that an earlier process left is proven
//! before it counts.

use super::claim_slot::CloneRequest;
use super::entry::Caller;
use super::errors::{host_error, operation_died, shutting_down, state_unavailable};
use super::ownership::Ownership;
use super::parts::Parts;
use super::planner::{self, WarmPoolTarget};
use super::progress::Progress;
use super::registry::NoSlot;
use super::slot_task::{SlotMessage, SlotReply, SlotWorker};
use super::step::Step;
use super::teardown::TeardownEnd;
use crate::api::{ErrorCode, Flavor, Limits, Method, RpcError};
use crate::host::{CloneSpec, Host, HostErrorKind, HostResult, ServiceEndpoint, chain};
use crate::metrics::Metrics;
use crate::record::{Phase, Record};
use crate::slot::{Slot, SlotNames};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long no caller must have created or destroyed a clone before a member is started: the caller is busy with a
/// connection and a first page.
const QUIET: Duration = Duration::from_millis(200);
/// How long a member waits for callers before it is started, and before each of its steps. Callers that never pause must
/// not keep the pool empty.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// After failures, the pause before the next try doubles up to this.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);
/// How long a browser that has just shown a page may finish its own work before it is frozen. What is left, it does when
/// it is thawed, while the caller waits.
const SETTLING: Duration = Duration::from_millis(150);

/// How a create fared with the warm pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Draw {
    /// It got a member.
    Hit,
    /// There was no member.
    Empty,
    /// There were members, but none of its snapshot, limits or name.
    Unfit,
}

impl Draw {
    /// The label in the metrics.
    fn label(self) -> &'static str {
        match self {
            Draw::Hit => "hit",
            Draw::Empty => "empty",
            Draw::Unfit => "unfit",
        }
    }
}

/// What the warm pool did since the daemon's start.
#[derive(Debug, Default, Clone)]
pub(super) struct Tally {
    pub(super) hits: u64,
    pub(super) misses_empty: u64,
    pub(super) misses_unfit: u64,
    pub(super) drained: u64,
    pub(super) refilling: bool,
    pub(super) last_refill_seconds: Option<f64>,
}

/// The warm pool's own state. Its members are records of the registry.
#[derive(Debug, Default)]
pub(super) struct WarmPool {
    state: Mutex<WarmPoolState>,
    call_ended: Notify,
    /// A member was bound.
    wanted: Notify,
    /// One member at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct WarmPoolState {
    /// Creates and destroys that callers wait for.
    calls_running: u64,
    last_call_ended: Option<Instant>,
    failures: u32,
    /// Members that an earlier process made and this one has not proven yet.
    unproven: BTreeSet<Slot>,
    /// What the template's snapshot was when last checked.
    template: Option<String>,
    tally: Tally,
}

/// A caller waits for a create or a destroy.
#[derive(Debug)]
pub(super) struct Serving<'a>(&'a WarmPool);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.calls_running -= 1;
        state.last_call_ended = Some(Instant::now());
        drop(state);
        self.0.call_ended.notify_waiters();
    }
}

impl WarmPool {
    pub(super) fn new(unproven: BTreeSet<Slot>) -> WarmPool {
        WarmPool { state: Mutex::new(WarmPoolState { unproven, ..Default::default() }), ..Default::default() }
    }

    fn lock(&self) -> MutexGuard<'_, WarmPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn serving(&self) -> Serving<'_> {
        self.lock().calls_running += 1;
        Serving(self)
    }

    /// A member may be missing.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Wait until a member may be missing.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// This member is about to be bound, which proves it.
    pub(super) fn mark_proven(&self, slot: Slot) {
        self.lock().unproven.remove(&slot);
    }

    pub(super) fn count(&self, draw: Draw, metrics: &Metrics) {
        let tally = &mut self.lock().tally;
        match draw {
            Draw::Hit => tally.hits += 1,
            Draw::Empty => tally.misses_empty += 1,
            Draw::Unfit => tally.misses_unfit += 1,
        }
        metrics.pool_claim(draw.label());
    }

    pub(super) fn count_drained(&self, metrics: &Metrics) {
        self.lock().tally.drained += 1;
        metrics.pool_drained();
    }

    pub(super) fn tally(&self) -> Tally {
        self.lock().tally.clone()
    }

    /// Wait until no call has run for a moment.
    async fn quiet(&self) {
        loop {
            self.no_call().await;
            let ended = self.lock().last_call_ended;
            match ended.map(|ended| QUIET.saturating_sub(ended.elapsed())) {
                None | Some(Duration::ZERO) => return,
                Some(rest) => tokio::time::sleep(rest).await,
            }
        }
    }

    /// Wait until no call runs.
    async fn no_call(&self) {
        loop {
            let ended = self.call_ended.notified();
            if self.lock().calls_running == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl<H: Host> Parts<H> {
    /// What the members shall be; `None`: there is no warm pool.
    pub(super) fn warm_pool_target(&self) -> Option<WarmPoolTarget> {
        let config = &self.config.pool;
        (config.size > 0).then(|| WarmPoolTarget {
            snapshot: self.config.host.snapshot.clone(),
            template: self.warm_pool.lock().template.clone(),
            limits: self.config.clone_limits.all(),
            flavors: config.flavors.clone(),
            size: usize::from(config.size),
        })
    }

    /// Check whether the template is still what the members were made of.
    pub(super) async fn check_template_version(&self) {
        if self.config.pool.size == 0 {
            return;
        }
        let snapshot = &self.config.host.snapshot;
        let version = match self.host.run("template", self.host.host.template_version(snapshot)).await {
            Ok(version) => Some(version),
            // It is gone or cannot be cloned any more: no member is made of it.
            Err(error) if error.kind == HostErrorKind::Template => {
                Some(format!("unusable: {}", chain(&error)))
            }
            Err(_) => None,
        };
        self.warm_pool.lock().template = version;
    }

    /// Make one member when no caller is disturbed. Returns how long to wait before the next one, and whether a wanted
    /// member ends that wait.
    pub(super) async fn refill_in_background(self: &Arc<Self>) -> (Duration, bool) {
        self.adopt_members().await;
        let Some(flavor) = self.missing_flavor() else { return (self.interval(), true) };
        let _ = tokio::time::timeout(LONGEST_PAUSE, self.warm_pool.quiet()).await;
        let began = Instant::now();
        match self.refill_one(flavor).await {
            Ok(()) => {
                self.warm_pool.lock().failures = 0;
                (self.pause_after(began.elapsed()), false)
            }
            Err(_) => {
                let failures = {
                    let mut state = self.warm_pool.lock();
                    state.failures += 1;
                    (state.failures - 1).min(6)
                };
                (Duration::from_secs(1 << failures).min(LONGEST_BACK_OFF), false)
            }
        }
    }

    /// Make members until none is missing.
    pub(super) async fn refill_all(self: &Arc<Self>) -> Result<(), RpcError> {
        self.adopt_members().await;
        while let Some(flavor) = self.missing_flavor() {
            self.refill_one(flavor).await?;
        }
        Ok(())
    }

    /// Keeps the time spent on the pool to its share. Where the kernel limits a member in the making to that share, no
    /// pause is needed.
    fn pause_after(&self, took: Duration) -> Duration {
        let limits = self.config.clone_limits.all();
        if self.limits_while_made(&limits) != limits {
            return Duration::ZERO;
        }
        let share = u32::try_from(self.config.pool.refill_percent.clamp(1, 100)).unwrap_or(100);
        took * (100 - share) / share
    }

    /// The limits of a member in the making: its share of a processor, if that can be changed when it is done.
    fn limits_while_made(&self, limits: &Limits) -> Limits {
        let share = self.config.pool.refill_percent;
        let cpu_percent = Some(limits.cpu_percent.map_or(share, |limit| limit.min(share)));
        let slow = Limits { cpu_percent, ..*limits };
        if self.host.host.can_change_limits(&slow, limits) { slow } else { *limits }
    }

    /// The first flavour of which there are too few members, if there is room for one more.
    fn missing_flavor(&self) -> Option<Flavor> {
        let config = &self.config.pool;
        let busy = self.tasks.busy();
        let state = self.registry.read();
        let count = |flavor| state.members().filter(|record| record.pooled() == Some(flavor)).count();
        let short =
            |flavor: &Flavor| config.flavors.contains(flavor) && count(*flavor) < usize::from(config.size);
        let room = !self.calls.closing()
            && state.inspected.is_some()
            && state
                .spare_slot(&self.slots, self.config.server.max_clones, |slot| busy.contains(&slot))
                .is_ok();
        Flavor::ALL.into_iter().find(short).filter(|_| room)
    }

    /// Make one member, with its audit lines.
    async fn refill_one(self: &Arc<Self>, flavor: Flavor) -> Result<(), RpcError> {
        let _active = self.calls.begin();
        let _turn = self.warm_pool.turn.lock().await;
        // The pool may have been filled while this waited, and a stopping daemon makes nothing.
        if self.missing_flavor() != Some(flavor) {
            return Ok(());
        }
        self.warm_pool.lock().tally.refilling = true;
        let began = Instant::now();
        let request = serde_json::json!({ "pool": flavor });
        let actor = Caller::hostd("pool").actor;
        let name = |names: &SlotNames| Some(names.name.to_string());
        let work = |()| Box::pin(self.reserve_member(flavor));
        let made = self.calls.audited_create(&actor, request, std::future::ready(()), work, name).await;
        let seconds = began.elapsed().as_secs_f64();
        let alarm = made.as_ref().err().map(|error| format!("the warm pool cannot be filled: {error}"));
        self.alarms.set("pool", alarm);
        let mut state = self.warm_pool.lock();
        state.tally.refilling = false;
        if made.is_ok() {
            state.tally.last_refill_seconds = Some(seconds);
            self.metrics.pool_refill(seconds);
        }
        made.map(drop)
    }

    async fn reserve_member(self: &Arc<Self>, flavor: Flavor) -> Result<SlotNames, RpcError> {
        let snapshot = self.config.host.snapshot.clone();
        self.firewall_is_ready().await?;
        self.template_is_ready(&snapshot).await?;
        // Read before the template is used: a template that changes meanwhile makes this member outdated.
        let template = self.template_version(&snapshot).await?;
        let request = CloneRequest {
            request_id: None,
            tenant: None,
            owner_uid: None,
            snapshot,
            limits: self.config.clone_limits.all(),
            lease: Duration::from_secs(self.config.pool.max_age_seconds),
            requested: None,
            pool: true,
        };
        let mut tried = BTreeSet::new();
        loop {
            let mut chosen = None;
            let reserved: Result<_, NoSlot> = self.reserve(None, |state, busy| {
                let excluded = |slot: Slot| busy(slot) || tried.contains(&slot);
                let slot = state.spare_slot(&self.slots, self.config.server.max_clones, excluded)?;
                chosen = Some(slot);
                let record = request.record(slot, &self.clock.now());
                let template = template.clone();
                let message = SlotMessage::MakeMember { record: Box::new(record.clone()), flavor, template };
                Ok((record, message))
            });
            let reply = reserved.map_err(|_| {
                RpcError::new(
                    ErrorCode::HostFull,
                    "no slot is left for the warm pool",
                    "none: it waits for one",
                )
            })?;
            match reply.await.map_err(|_| operation_died())? {
                SlotReply::MemberMade(Ok(Some(names))) => return Ok(names),
                SlotReply::MemberMade(Ok(None)) => tried.extend(chosen),
                SlotReply::MemberMade(Err(error)) => return Err(error),
                _ => unreachable!("a member is answered as a member"),
            }
        }
    }

    /// Between two steps of a member: callers come first, and a stopping daemon makes nothing.
    pub(super) async fn yield_to_callers(&self) -> Result<(), RpcError> {
        let _ = tokio::time::timeout(LONGEST_PAUSE, self.warm_pool.no_call()).await;
        if self.calls.closing() { Err(shutting_down()) } else { Ok(()) }
    }

    /// Prove the members that an earlier process left, and drain those that are broken.
    async fn adopt_members(self: &Arc<Self>) {
        let _active = self.calls.begin();
        if self.calls.closing() || self.registry.read().inspected.is_none() {
            return;
        }
        let unproven = std::mem::take(&mut self.warm_pool.lock().unproven);
        for slot in unproven {
            if let Some(reply) = self.send_if_idle(slot, SlotMessage::Adopt) {
                let _ = reply.await;
            }
        }
    }

    /// Drain every member; a stopping daemon waits for the slots' tasks.
    pub(super) fn drain_all(self: &Arc<Self>, why: &str) {
        let members: Vec<Slot> = self.registry.read().members().map(|record| record.slot).collect();
        for slot in members {
            drop(self.send(slot, SlotMessage::Drain { why: why.to_owned() }, None));
        }
    }
}

impl<H: Host> SlotWorker<H> {
    /// Make the member of a reserved record. `None`: the slot is not free.
    pub(super) async fn make_member(
        &self,
        record: Record,
        flavor: Flavor,
        template: String,
    ) -> Result<Option<SlotNames>, RpcError> {
        if self.claim(&record).await?.is_some() {
            return Ok(None);
        }
        let parts = &self.parts;
        let spec = planner::spec(&record, &parts.slots);
        let made = self.make_member_parts(&spec, flavor).await;
        let saved = match made {
            Ok(service) => {
                let phase = Phase::Pooled {
                    flavor,
                    endpoint: service.as_ref().map(|service| service.endpoint.clone()),
                    cdp_endpoint: service.and_then(|service| service.cdp_endpoint),
                    template,
                };
                let pooled = Record { phase, ..record.clone() };
                let saved = parts.registry.save(&self.turn, &pooled).await;
                saved.map_err(|error| state_unavailable(&parts.config, &error))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = saved {
            return Err(self.roll_back(record, error.about(&spec.names.name)).await);
        }
        // A stopping daemon may have listed the members before this was one.
        if parts.calls.closing() {
            self.drain("hostd is stopping").await;
        }
        Ok(Some(spec.names))
    }

    async fn make_member_parts(
        &self,
        spec: &CloneSpec,
        flavor: Flavor,
    ) -> Result<Option<ServiceEndpoint>, RpcError> {
        let limits = self.parts.limits_while_made(&spec.limits);
        let slow = CloneSpec { limits, warm_up: flavor == Flavor::Ready, ..spec.clone() };
        let steps = match flavor {
            Flavor::Ready => &Step::ALL[..],
            Flavor::Basic => &Step::ALL[..Step::ALL.len() - 1],
        };
        let progress = Progress::new(&spec.names.name, &self.listeners);
        let service = self.run_steps(true, &slow, steps, &progress).await?;
        if slow.limits != spec.limits {
            let set = self.run_step(Step::Limits, spec).await;
            set.map_err(|error| host_error(&error).step(Step::Limits))?;
        }
        if flavor == Flavor::Ready {
            tokio::time::sleep(SETTLING).await;
            self.freeze().await.map_err(|error| host_error(&error))?;
        }
        Ok(service)
    }

    /// Prove the member in this slot, or drain it.
    pub(super) async fn adopt(&self) {
        let Some(record) = self.record().filter(|record| record.pooled().is_some()) else { return };
        match self.prove_member(&record).await {
            Ok(()) => tracing::info!(slot = %record.slot, "a member of the warm pool was adopted"),
            Err(error) => self.drain(&chain(&error)).await,
        }
    }

    async fn prove_member(&self, record: &Record) -> HostResult<()> {
        if record.pooled() == Some(Flavor::Basic) {
            return self.prove_jail(&planner::spec(record, &self.parts.slots)).await;
        }
        self.thaw(&planner::spec(record, &self.parts.slots)).await?;
        self.prove_service().await?;
        self.freeze().await
    }

    /// Destroy the member in this slot, if it still is one. Its slot is free at once: no caller ever knew it.
    pub(super) async fn drain(&self, why: &str) {
        let Some(record) = self.record().filter(|record| record.pooled().is_some()) else { return };
        let parts = &self.parts;
        let _active = parts.calls.begin();
        let names = &self.names;
        let request = serde_json::json!({ "name": names.name, "pool": why });
        let work = Box::pin(async {
            let record = self.begin_destroy(record, why).await;
            let progress = Progress::new(&names.name, &self.listeners);
            let teardown = self.tear_down(Ownership::Clone(&record.clone_id), progress, || {}).await;
            self.finish_destroy(record, &teardown).await;
            if let TeardownEnd::Incomplete = teardown.end {
                let message = teardown.errors.join("; ");
                return Err(RpcError::new(ErrorCode::Incomplete, message, "the reaper continues"));
            }
            parts.warm_pool.count_drained(&parts.metrics);
            Ok(())
        });
        let actor = Caller::hostd("pool").actor;
        let name = |(): &()| Some(names.name.to_string());
        if let Err(error) = parts.calls.audited_removal(&actor, Method::Destroy, request, work, name).await {
            tracing::warn!(clone = %names.name, %error, "a member of the warm pool is not gone yet");
        }
    }
}
