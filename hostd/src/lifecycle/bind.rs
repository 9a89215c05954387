//! Binding: a create gives a member of the warm pool its owner.
//!
//! The member is reserved in memory under the registry's lock. One write binds request, tenant, owner, limits and deadline
//! to it, completely or not at all. A crash before that write leaves a member without an owner; a crash after it leaves a
//! clone that the same request finds again, and that the next inspection thaws. The member is thawed and proven during the
//! write, and the caller gets it when both are done. A member that turns out to be broken is unbound on disk before
//! another one is bound, so no two records ever name one request.
//!
//! The only sync that the caller waits for is that of the audit line; [`Store::save`](crate::record::Store::save) says why
//! the write needs none.

use super::claim_slot::CloneRequest;
use super::errors::state_unavailable;
use super::parts::Parts;
use super::planner;
use super::progress::Progress;
use super::registry::RegistryState;
use super::slot_task::{CreateOutcome, SlotMessage, SlotWorker};
use super::step::Step;
use crate::api::{CloneState, CreateResult, Flavor, Launch, RpcError};
use crate::host::{CloneSpec, Host, HostError, HostErrorKind, HostResult, Part};
use crate::record::{Phase, Record};
use crate::slot::{Slot, SlotNames};
use std::time::Duration;

/// Why a member could not be bound.
enum BindError {
    /// The member is broken: another one will do.
    Broken(String),
    /// The create cannot continue; the member is drained as well.
    Failed(RpcError),
    /// The same, and the clone was rolled back already.
    RolledBack(RpcError),
}

impl From<HostError> for BindError {
    fn from(error: HostError) -> BindError {
        BindError::Broken(crate::host::chain(&error))
    }
}

impl<H: Host> Parts<H> {
    /// The best member of the warm pool that fits, with the message that binds it.
    pub(super) fn choose_member(
        &self,
        request: &CloneRequest,
        template: &str,
        state: &RegistryState,
        busy: &dyn Fn(Slot) -> bool,
    ) -> Option<(Record, SlotMessage)> {
        let now = self.clock.now();
        let fits = |record: &&Record| !busy(record.slot) && self.fits(record, request, template, state);
        // Ready members first, then those with the right limits, then the one that is too old soonest.
        let rank =
            |record: &&Record| (record.pooled(), record.limits != request.limits, record.deadline.mono_ms);
        let member = state.members().filter(fits).min_by_key(rank)?.clone();
        let flavor = member.pooled()?;
        let bound = Record {
            request_id: request.request_id.clone(),
            tenant: request.tenant.clone(),
            owner_uid: request.owner_uid,
            limits: request.limits,
            created: now.stamp(),
            deadline: now.stamp_in(request.lease),
            pool: false,
            ..member.clone()
        };
        self.warm_pool.mark_proven(bound.slot);
        let message = SlotMessage::Bind { member: Box::new(member), bound: Box::new(bound.clone()), flavor };
        Some((bound, message))
    }

    fn fits(&self, record: &Record, request: &CloneRequest, now: &str, state: &RegistryState) -> bool {
        let Phase::Pooled { template, .. } = &record.phase else { return false };
        let in_time = self.clock.now().until(&record.deadline).is_some_and(|left| !left.is_zero());
        let broken = matches!(state.assessed.get(&record.slot), Some((CloneState::Broken, _)));
        template == now
            && record.snapshot == request.snapshot
            && request.requested.is_none_or(|slot| slot == record.slot)
            && self.host.host.can_change_limits(&record.limits, &request.limits)
            && in_time
            && !broken
            // A member of an earlier version of hostd has none, and everybody could use its browser.
            && record.secret.is_some()
    }
}

impl<H: Host> SlotWorker<H> {
    /// Bind a reserved member to its request.
    pub(super) async fn bind(
        &self,
        member: Record,
        bound: Record,
        flavor: Flavor,
    ) -> Result<CreateOutcome, RpcError> {
        let (why, outcome) = match self.hand_out(&member, &bound, flavor).await {
            Ok(result) => return Ok(CreateOutcome::Clone(Box::new(result))),
            Err(BindError::RolledBack(error)) => return Err(error),
            Err(BindError::Failed(error)) => (error.to_string(), Err(error)),
            Err(BindError::Broken(why)) => (why, Ok(CreateOutcome::MemberBroken)),
        };
        tracing::warn!(slot = %member.slot, why, "a member of the warm pool could not be bound");
        self.parts.registry.remember(&self.turn, member);
        // The caller does not wait for the drain.
        self.parts.tasks.send_next(self.slot(), SlotMessage::Drain { why });
        outcome
    }

    /// Thaw the member, prove it, and write down its owner.
    async fn hand_out(
        &self,
        member: &Record,
        bound: &Record,
        flavor: Flavor,
    ) -> Result<CreateResult, BindError> {
        let parts = &self.parts;
        let spec = planner::spec(bound, &parts.slots);
        let progress = Progress::new(&spec.names.name, &self.listeners);
        if bound.limits != member.limits {
            progress.step("limits", self.run_step(Step::Limits, &spec)).await?;
        }
        let (endpoint, cdp_endpoint) = match (&member.phase, flavor) {
            (Phase::Pooled { endpoint: Some(endpoint), cdp_endpoint, .. }, Flavor::Ready) => {
                (endpoint.clone(), cdp_endpoint.clone())
            }
            _ => return self.finish_basic(bound.clone(), &spec, progress).await,
        };
        let ready = |stages| {
            let (endpoint, cdp_endpoint) = (endpoint.clone(), cdp_endpoint.clone());
            let phase = Phase::Ready { endpoint, cdp_endpoint, stages, launch: Launch::Warm };
            Record { phase, ..bound.clone() }
        };
        let thaw = async {
            progress.step("thaw", self.thaw(&spec)).await?;
            progress.step("service", self.prove_service()).await
        };
        // The record does not contain how long the thaw takes: it is written at the same time.
        let written = ready(progress.stages());
        let (thawed, saved) = tokio::join!(thaw, parts.registry.save(&self.turn, &written));
        let unwritten =
            |error| BindError::Failed(state_unavailable(&parts.config, &error).about(&spec.names.name));
        if let Err(error) = thawed {
            // No two records may name one request, and the next member is bound to it.
            parts.registry.save(&self.turn, member).await.map_err(unwritten)?;
            return Err(error.into());
        }
        saved.map_err(unwritten)?;
        let ready = ready(progress.stages());
        parts.registry.remember(&self.turn, ready.clone());
        Ok(self.handed_out(&ready, Launch::Warm))
    }

    /// A basic member lacks only the last step of a create.
    async fn finish_basic(
        &self,
        mut bound: Record,
        spec: &CloneSpec,
        progress: Progress,
    ) -> Result<CreateResult, BindError> {
        self.prove_jail(spec).await?;
        self.set_deadline(spec.deadline).await?;
        bound.phase = Phase::Creating;
        let saved = self.parts.registry.save(&self.turn, &bound).await;
        saved.map_err(|error| {
            BindError::Failed(state_unavailable(&self.parts.config, &error).about(&spec.names.name))
        })?;
        let built = self.build(bound, &[Step::Service], Launch::Basic, progress).await;
        built.map_err(BindError::RolledBack)
    }

    pub(super) async fn thaw(&self, spec: &CloneSpec) -> HostResult<()> {
        let host = &self.parts.host;
        host.run(self.names.name.as_str(), host.host.thaw(&self.names, spec.deadline)).await
    }

    /// Tell the clone's jail its deadline.
    pub(super) async fn set_deadline(&self, deadline: Duration) -> HostResult<()> {
        let host = &self.parts.host;
        host.run(self.names.name.as_str(), host.host.set_deadline(&self.names, deadline)).await
    }

    /// Prove that the member's service answers: nothing else can have changed since the member was made.
    pub(super) async fn prove_service(&self) -> HostResult<()> {
        let host = &self.parts.host;
        match host.run(self.names.name.as_str(), host.host.service_answers(&self.names)).await? {
            true => Ok(()),
            false => Err(broken(&self.names, "its browser service does not answer any more")),
        }
    }

    /// Prove that a member without a browser still has its jail.
    pub(super) async fn prove_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        let observed = self.parts.host.inspect(&spec.names, &[Part::Jail]).await?;
        Step::Jail.verify(spec, &observed).map_err(|why| broken(&spec.names, &why))
    }
}

fn broken(names: &SlotNames, why: &str) -> HostError {
    HostError::new(HostErrorKind::Failed, names.name.as_str(), why, "none: it is replaced")
}
