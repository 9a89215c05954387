//! A create that takes a clone from the warm pool.
//!
//! The order is the point. Reserving is done in memory under the book's lock, so two creates never get the same member
//! and caps hold. One write binds request, tenant, owner, limits and deadline to it, whole or not at all: whoever dies
//! before it leaves a member that nobody has, whoever dies after it a clone that the same request finds again, and that the
//! next look thaws if nobody did. The member wakes and is proven during that write, since a browser that wakes keeps every
//! processor busy, and the caller hears of it when both are done. One that is not well is no longer bound before another is.
//!
//! The only sync that a caller waits for is that of the audit log, whose promise is about the power as well; why that
//! write needs none is said at [`Store::save`](crate::record::Store::save).

use super::book::Book;
use super::create::host_error;
use super::engine::{Inner, Working};
use super::place::Wish;
use super::progress::{Listeners, Progress};
use super::reconcile;
use super::step::Step;
use super::tally::Draw;
use crate::api::{CloneState, CreateResult, Flavor, Launch, RpcError};
use crate::host::{CloneSpec, Host, HostError, HostErrorKind, HostResult, Part};
use crate::record::{Phase, Record};
use crate::slot::SlotNames;
use std::sync::Arc;
use std::time::Duration;

/// A member that one create has for itself, in memory.
struct Reserved<H> {
    /// As it is in the pool, and on disk.
    member: Record,
    /// As it shall be.
    bound: Record,
    flavor: Flavor,
    working: Working<H>,
}

/// Why a member could not be had.
enum Lost {
    /// Something is wrong with it: another will do.
    Broken(String),
    /// The create cannot go on; the member is over as well.
    Failed(RpcError),
    /// The same, and it has been taken away already.
    RolledBack(RpcError),
}

impl From<HostError> for Lost {
    fn from(error: HostError) -> Lost {
        Lost::Broken(error.to_string())
    }
}

impl<H: Host> Inner<H> {
    /// Take a member that fits. `None`: there is none, so one has to be made.
    pub(super) async fn claim_member(
        self: &Arc<Self>,
        wish: &Wish,
        listeners: &Listeners,
    ) -> Result<Option<CreateResult>, RpcError> {
        if self.config.pool.size == 0 {
            return Ok(None);
        }
        if !self.book().records.values().any(|record| record.pooled().is_some()) {
            self.count(Draw::Empty);
            return Ok(None);
        }
        let version = self.bounded("template", self.host.template_version(&wish.snapshot)).await;
        let template = version.map_err(|error| host_error(&error))?;
        while let Some(reserved) = self.reserve(wish, &template)? {
            match self.hand_out(&reserved, listeners).await {
                Ok(result) => {
                    self.count(Draw::Hit);
                    self.refill.want();
                    return Ok(Some(result));
                }
                Err(Lost::RolledBack(error)) => return Err(error),
                Err(Lost::Failed(error)) => {
                    self.give_up(reserved, error.to_string());
                    return Err(error);
                }
                Err(Lost::Broken(why)) => self.give_up(reserved, why),
            }
        }
        self.count(Draw::Unfit);
        // Those that do not fit because the template changed shall not wait for the timer.
        self.wake.notify_one();
        Ok(None)
    }

    /// Keep the best member that fits for this create alone.
    fn reserve(self: &Arc<Self>, wish: &Wish, template: &str) -> Result<Option<Reserved<H>>, RpcError> {
        let now = self.clock.now();
        let mut book = self.book();
        book.within_caps(wish.tenant.as_ref(), self.caps()).map_err(|why| self.no_slot(why, wish))?;
        let fits = |record: &&Record| self.fits(&book, record, wish, template);
        // With its browser up, then without work on its limits, then the one that is too old soonest.
        let rank =
            |record: &&Record| (record.pooled(), record.limits != wish.limits, record.deadline.mono_ms);
        let best = book.records.values().filter(fits).min_by_key(rank).cloned();
        let Some(member) = best else { return Ok(None) };
        let Some(flavor) = member.pooled() else { return Ok(None) };
        let Some(working) = self.try_work_on(&mut book, member.slot) else { return Ok(None) };
        let bound = Record {
            request_id: wish.request_id.clone(),
            tenant: wish.tenant.clone(),
            owner_uid: wish.owner_uid,
            limits: wish.limits,
            created: now.stamp(),
            deadline: now.stamp_in(wish.life),
            pool: false,
            ..member.clone()
        };
        // From here on it counts against the caps.
        book.records.insert(bound.slot, bound.clone());
        book.unproven.remove(&bound.slot);
        Ok(Some(Reserved { member, bound, flavor, working }))
    }

    fn fits(&self, book: &Book, record: &Record, wish: &Wish, now_template: &str) -> bool {
        let Phase::Pooled { template, .. } = &record.phase else { return false };
        let in_time = self.clock.now().until(&record.deadline).is_some_and(|left| !left.is_zero());
        let broken = matches!(book.assessments.get(&record.slot), Some((CloneState::Broken, _)));
        record.pool
            && template == now_template
            && record.snapshot == wish.snapshot
            && wish.asked.is_none_or(|slot| slot == record.slot)
            && self.host.can_change_limits(&record.limits, &wish.limits)
            && in_time
            && !broken
            && !book.working.contains(&record.slot)
    }

    /// Wake the member, prove it, and bind it to its request.
    async fn hand_out(
        self: &Arc<Self>,
        reserved: &Reserved<H>,
        listeners: &Listeners,
    ) -> Result<CreateResult, Lost> {
        let Reserved { member, bound, flavor, .. } = reserved;
        let spec = reconcile::spec(bound, &self.pool);
        let name = spec.names.name.as_str();
        let progress = Progress::new(&spec.names.name, listeners);
        if bound.limits != member.limits {
            progress.step("limits", self.run_step(Step::Limits, &spec)).await?;
        }
        let (endpoint, cdp_endpoint) = match (&member.phase, flavor) {
            (Phase::Pooled { endpoint: Some(endpoint), cdp_endpoint, .. }, Flavor::Ready) => {
                (endpoint.clone(), cdp_endpoint.clone())
            }
            _ => return self.finish_basic(bound.clone(), &spec, progress, listeners).await,
        };
        let ready = |stages| {
            let (endpoint, cdp_endpoint) = (endpoint.clone(), cdp_endpoint.clone());
            let phase = Phase::Ready { endpoint, cdp_endpoint, stages, launch: Launch::Warm };
            Record { phase, ..bound.clone() }
        };
        let wake = async {
            progress.step("thaw", self.bounded(name, self.host.thaw(&spec.names))).await?;
            progress.step("service", self.prove_service(&spec.names)).await
        };
        // How long waking takes is not known yet; it is not written down.
        let written = ready(progress.stages());
        let (woken, saved) = tokio::join!(wake, self.save(&written));
        let unwritten = |error| Lost::Failed(self.state_unavailable(&error).about(&spec.names.name));
        if let Err(error) = woken {
            // No two records may name one request, and the next member will.
            self.save(member).await.map_err(unwritten)?;
            return Err(error.into());
        }
        saved.map_err(unwritten)?;
        let stages = progress.stages();
        let ready = ready(stages.clone());
        self.book().records.insert(ready.slot, ready.clone());
        for stage in &stages {
            self.metrics.stage(&stage.stage, Launch::Warm, stage.seconds);
        }
        self.heed_deadline(&ready);
        Ok(self.answer(&ready))
    }

    /// A member without a browser is a create that has come as far as its last step; from here on it is one.
    async fn finish_basic(
        self: &Arc<Self>,
        mut bound: Record,
        spec: &CloneSpec,
        progress: Progress,
        listeners: &Listeners,
    ) -> Result<CreateResult, Lost> {
        self.prove_jail(spec).await?;
        bound.phase = Phase::Creating;
        let saved = self.save(&bound).await;
        saved.map_err(|error| Lost::Failed(self.state_unavailable(&error).about(&spec.names.name)))?;
        let built = self.build(bound, &[Step::Service], Launch::Basic, progress, listeners).await;
        built.map_err(Lost::RolledBack)
    }

    /// The one thing that nobody has looked at since the member was made, and that a caller needs.
    pub(super) async fn prove_service(&self, names: &SlotNames) -> HostResult<()> {
        match self.bounded(names.name.as_str(), self.host.service_answers(names)).await? {
            true => Ok(()),
            false => Err(broken(names, "its browser service does not answer any more")),
        }
    }

    /// The same for a member without a browser.
    pub(super) async fn prove_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        let seen = self.look(&spec.names, &[Part::Jail]).await?;
        Step::Jail.verify(spec, &seen).map_err(|why| broken(&spec.names, &why))
    }

    /// Back into the pool's hands, which take it away. Nobody waits for that.
    fn give_up(self: &Arc<Self>, reserved: Reserved<H>, why: String) {
        let Reserved { member, working, .. } = reserved;
        tracing::warn!(slot = %member.slot, why, "a member of the warm pool could not be taken");
        self.book().records.insert(member.slot, member.clone());
        let (inner, active) = (self.clone(), self.active());
        tokio::spawn(async move {
            inner.drain_held(member, working, &why).await;
            drop(active);
        });
    }

    fn count(&self, draw: Draw) {
        self.book().tally.count(draw);
        self.metrics.pool_claim(draw.word());
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_millis(self.config.lifecycle.reconcile_interval_ms)
    }
}

fn broken(names: &SlotNames, why: &str) -> HostError {
    HostError::new(HostErrorKind::Failed, names.name.as_str(), why, "none: it is replaced")
}
