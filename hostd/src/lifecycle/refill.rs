//! Keeping the warm pool full.
//!
//! Members are made one at a time, by the same steps as any clone, and frozen as soon as they are complete; one without a
//! browser has nothing that runs by itself. Callers come first: a member is begun only when none of them has created or
//! destroyed a clone for a moment, stands still between its steps while one does, and the time spent on members has its
//! share. A member that an earlier process left is proven before it counts.

use super::create::host_error;
use super::engine::Inner;
use super::place::Wish;
use super::progress::{Listeners, Progress};
use super::reconcile::{self, WarmPoolTarget};
use super::step::Step;
use crate::api::{ErrorCode, Flavor, Limits, Method, RpcError};
use crate::host::{CloneSpec, Host, HostError, HostErrorKind, HostResult, Part, ServiceEndpoint};
use crate::record::{Phase, Record};
use crate::slot::SlotNames;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long no caller must have created or destroyed a clone before a member is begun: the caller is busy with what it
/// just got, with a connection and a first page.
const QUIET: Duration = Duration::from_millis(200);
/// How long a member waits for callers before it is begun, and before each of its steps. Callers that never pause must not
/// keep the pool empty for ever: then all of their creates would be cold.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// After failures, the pause before the next try doubles up to this.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);

/// How long a browser that has just shown a page may tidy up before it is frozen. What it has left to do then, it does when
/// it is thawed, in the way of whoever waits for that.
const SETTLING: Duration = Duration::from_millis(150);

/// How often freezing a clone is tried.
const FREEZE_TRIES: u32 = 3;

/// What the filling of the warm pool goes by.
#[derive(Debug, Default)]
pub(super) struct Refill {
    calls: Mutex<Calls>,
    call_ended: Notify,
    /// A member was taken.
    wanted: Notify,
    failures: AtomicU64,
    /// One member at a time.
    turn: tokio::sync::Mutex<()>,
}

/// Creates and destroys that callers wait for.
#[derive(Debug, Default)]
struct Calls {
    running: u64,
    last_ended: Option<Instant>,
}

impl Refill {
    /// Something may be lacking.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Wait until something may be lacking.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Wait until no call has run for a moment.
    async fn quiet(&self) {
        loop {
            self.no_call().await;
            let ended = self.calls().last_ended;
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
            if self.calls().running == 0 {
                return;
            }
            ended.await;
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller waits for a create or a destroy.
pub(super) struct Serving<H>(Arc<Inner<H>>);

impl<H> Drop for Serving<H> {
    fn drop(&mut self) {
        let refill = &self.0.refill;
        let mut calls = refill.calls();
        calls.running -= 1;
        calls.last_ended = Some(Instant::now());
        drop(calls);
        refill.call_ended.notify_waiters();
    }
}

impl<H: Host> Inner<H> {
    pub(super) fn serving(self: &Arc<Self>) -> Serving<H> {
        self.refill.calls().running += 1;
        Serving(self.clone())
    }

    /// What the members shall be; none: there is no warm pool.
    pub(super) fn pool_wish(&self, book: &super::book::Book) -> Option<WarmPoolTarget> {
        let config = &self.config.pool;
        (config.size > 0).then(|| WarmPoolTarget {
            snapshot: self.config.host.snapshot.clone(),
            template: book.template.clone(),
            limits: self.config.clone_limits.grant(None),
            flavors: config.flavors.clone(),
            size: usize::from(config.size),
        })
    }

    /// See whether the template is still what the members were made of.
    pub(super) async fn look_at_template(&self) {
        if self.config.pool.size == 0 {
            return;
        }
        let snapshot = &self.config.host.snapshot;
        let version = match self.bounded("template", self.host.template_version(snapshot)).await {
            Ok(version) => Some(version),
            // Gone, or not to be cloned any more: no member is of it.
            Err(error) if error.kind == HostErrorKind::Template => Some(format!("unusable: {error}")),
            Err(_) => None,
        };
        self.book().template = version;
    }

    /// Make one member when that is nobody's loss. Answers how long to wait before the next, and whether only as long as
    /// nothing is lacking.
    pub(super) async fn refill_in_peace(self: &Arc<Self>) -> (Duration, bool) {
        self.adopt().await;
        let Some(flavor) = self.lacking() else { return (self.interval(), true) };
        let _ = tokio::time::timeout(LONGEST_PAUSE, self.refill.quiet()).await;
        let began = Instant::now();
        match self.make_member(flavor).await {
            Ok(()) => {
                self.refill.failures.store(0, Ordering::SeqCst);
                (self.pause_after(began.elapsed()), false)
            }
            Err(_) => {
                let failures = self.refill.failures.fetch_add(1, Ordering::SeqCst).min(6);
                (Duration::from_secs(1 << failures).min(LONGEST_BACK_OFF), false)
            }
        }
    }

    /// Make members until none is lacking.
    pub(super) async fn refill_all(self: &Arc<Self>) -> Result<(), RpcError> {
        self.adopt().await;
        while let Some(flavor) = self.lacking() {
            self.make_member(flavor).await?;
        }
        Ok(())
    }

    /// So that no more than its share of the time is spent on the pool. Where the kernel holds a member to that share while
    /// it is made, there is nothing to make up for.
    fn pause_after(&self, took: Duration) -> Duration {
        let limits = self.config.clone_limits.grant(None);
        if self.held_back(&limits) != limits {
            return Duration::ZERO;
        }
        let share = u32::try_from(self.config.pool.refill_percent.clamp(1, 100)).unwrap_or(100);
        took * (100 - share) / share
    }

    /// The limits of a member that is being made: its share of a processor, if that can be changed when it is done.
    fn held_back(&self, limits: &Limits) -> Limits {
        let share = self.config.pool.refill_percent;
        let cpu_percent = Some(limits.cpu_percent.map_or(share, |limit| limit.min(share)));
        let slow = Limits { cpu_percent, ..*limits };
        if self.host.can_change_limits(&slow, limits) { slow } else { *limits }
    }

    /// The first flavour of which there are too few members, if there is room for one more.
    fn lacking(&self) -> Option<Flavor> {
        let config = &self.config.pool;
        let book = self.book();
        let there = |flavor| book.records.values().filter(|record| record.pooled() == Some(flavor)).count();
        let short =
            |flavor: &Flavor| config.flavors.contains(flavor) && there(*flavor) < usize::from(config.size);
        let room = !book.closing
            && book.looked
            && book.spare_slot(&self.pool, self.config.server.max_clones, &Default::default()).is_ok();
        Flavor::ALL.into_iter().find(short).filter(|_| room)
    }

    /// Make one member, with its lines in the audit log.
    async fn make_member(self: &Arc<Self>, flavor: Flavor) -> Result<(), RpcError> {
        let _active = self.active();
        let _turn = self.refill.turn.lock().await;
        // Somebody else's turn may have filled it, and a stopping daemon makes nothing.
        if self.lacking() != Some(flavor) {
            return Ok(());
        }
        self.book().tally.refilling = true;
        let began = Instant::now();
        let request = serde_json::json!({ "pool": flavor });
        let made = self.audited_by_pool(Method::Create, request, self.make(flavor)).await;
        let took = began.elapsed().as_secs_f64();
        let mut book = self.book();
        book.tally.refilling = false;
        book.set_alarm(
            "pool",
            made.as_ref().err().map(|error| format!("the warm pool cannot be filled: {error}")),
        );
        if made.is_ok() {
            book.tally.last_refill_seconds = Some(took);
            self.metrics.pool_refill(took);
        }
        made.map(drop)
    }

    async fn make(self: &Arc<Self>, flavor: Flavor) -> Result<SlotNames, RpcError> {
        let snapshot = self.config.host.snapshot.clone();
        self.firewall_is_ready().await?;
        self.template_is_ready(&snapshot).await?;
        // Asked before the template is used: one that changes meanwhile makes this member an old one.
        let version = self.bounded("template", self.host.template_version(&snapshot)).await;
        let template = version.map_err(|error| host_error(&error))?;
        let wish = Wish {
            request_id: None,
            tenant: None,
            owner_uid: None,
            snapshot,
            limits: self.config.clone_limits.grant(None),
            life: Duration::from_secs(self.config.pool.max_age_seconds),
            asked: None,
            pool: true,
        };
        let listeners = Listeners::default();
        let (record, working) = self.place(&wish, &listeners).await?;
        let spec = reconcile::spec(&record, &self.pool);
        let made = self.make_steps(&spec, flavor).await;
        let phase = made.map(|service| Phase::Pooled {
            flavor,
            endpoint: service.as_ref().map(|service| service.endpoint.clone()),
            cdp_endpoint: service.and_then(|service| service.cdp_endpoint),
            template,
        });
        let saved = match phase {
            Ok(phase) => {
                let pooled = Record { phase, ..record.clone() };
                let saved = self.save(&pooled).await;
                saved.map(|()| pooled).map_err(|error| self.state_unavailable(&error))
            }
            Err(error) => Err(error),
        };
        match saved {
            Err(error) => Err(self.roll_back(record, error.about(&spec.names.name), &listeners).await),
            Ok(pooled) => {
                // The drain of a stopping daemon may have looked before this member was one.
                if self.book().closing {
                    self.drain_held(pooled, working, "hostd is stopping").await;
                }
                Ok(spec.names)
            }
        }
    }

    async fn make_steps(
        self: &Arc<Self>,
        spec: &CloneSpec,
        flavor: Flavor,
    ) -> Result<Option<ServiceEndpoint>, RpcError> {
        let limits = self.held_back(&spec.limits);
        let slow = CloneSpec { limits, warm_up: flavor == Flavor::Ready, ..spec.clone() };
        let steps = match flavor {
            Flavor::Ready => &Step::ALL[..],
            Flavor::Basic => &Step::ALL[..Step::ALL.len() - 1],
        };
        let progress = Progress::new(&spec.names.name, &Listeners::default());
        let service = self.run_steps(true, &slow, steps, &progress).await?;
        if slow.limits != spec.limits {
            self.run_step(Step::Limits, spec).await.map_err(|error| host_error(&error).step(Step::Limits))?;
        }
        if flavor == Flavor::Ready {
            tokio::time::sleep(SETTLING).await;
            self.freeze(&spec.names).await.map_err(|error| host_error(&error))?;
        }
        Ok(service)
    }

    /// Freeze a clone, and look. A process that is started while others are stopped is found by the next try.
    pub(super) async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        for _ in 0..FREEZE_TRIES {
            self.bounded(names.name.as_str(), self.host.freeze(names)).await?;
            if self.look(names, &[Part::Jail, Part::Processes]).await?.frozen {
                return Ok(());
            }
        }
        let message = "the host reported success, but it is not frozen";
        Err(HostError::new(HostErrorKind::Failed, names.name.as_str(), message, "look at the host's log"))
    }

    /// Between two steps of a member: callers first, and a stopping daemon makes nothing.
    pub(super) async fn may_go_on(&self) -> Result<(), RpcError> {
        let _ = tokio::time::timeout(LONGEST_PAUSE, self.refill.no_call()).await;
        match self.book().closing {
            false => Ok(()),
            true => Err(RpcError::new(
                ErrorCode::ShuttingDown,
                "hostd is stopping",
                "none: it is made at the next start",
            )),
        }
    }

    /// Prove the members that an earlier process left, and take away those that are not well.
    async fn adopt(self: &Arc<Self>) {
        let _active = self.active();
        let unproven = {
            let mut book = self.book();
            if book.closing || !book.looked { Default::default() } else { std::mem::take(&mut book.unproven) }
        };
        for slot in unproven {
            let Some(working) = self.try_work_on(&mut self.book(), slot) else { continue };
            let record = self.book().records.get(&slot).cloned();
            let Some((record, flavor)) = record.and_then(|record| Some((record.clone(), record.pooled()?)))
            else {
                continue;
            };
            match self.prove_member(&record, flavor).await {
                Ok(()) => tracing::info!(%slot, "a member of the warm pool was adopted"),
                Err(error) => self.drain_held(record, working, &error.to_string()).await,
            }
        }
    }

    async fn prove_member(&self, record: &Record, flavor: Flavor) -> HostResult<()> {
        let spec = reconcile::spec(record, &self.pool);
        if flavor == Flavor::Basic {
            return self.prove_jail(&spec).await;
        }
        self.bounded(spec.names.name.as_str(), self.host.thaw(&spec.names)).await?;
        self.prove_service(&spec.names).await?;
        self.freeze(&spec.names).await
    }
}
