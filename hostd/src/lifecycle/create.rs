//! Create: the clone that this request made before, a member of the warm pool, or a new clone.

use super::claim_slot::CloneRequest;
use super::entry::Caller;
use super::errors::{
    host_error, limit_label, name_taken, no_slot, operation_died, state_unavailable, unknown_name,
};
use super::parts::Parts;
use super::progress::ProgressSink;
use super::registry::{NoSlot, RegistryState};
use super::slot_task::{CreateOutcome, SlotMessage, SlotReply, SlotWorker};
use super::warm_pool::Draw;
use crate::api::{
    BrowserSettings, CloneState, CreateParams, CreateResult, ErrorCode, RequestId, RpcError, SnapshotName,
};
use crate::config::Config;
use crate::host::Host;
use crate::record::{Phase, Record};
use crate::slot::Slot;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Why a slot could not be reserved yet.
enum NotYet {
    /// The request has a clone by now.
    Known,
    /// The template has not been checked, and a new clone needs it.
    TemplateUnchecked,
    /// The requested slot is being released.
    Busy(Slot),
    /// This member of the warm pool must be evicted first.
    Evict(Slot),
    /// Never.
    Refused(NoSlot),
}

/// Reserve nothing for a request that has a live clone, or one that was used.
fn is_known(state: &RegistryState, owner: Option<u32>, request: &RequestId) -> bool {
    state.by_request(owner, request).is_some_and(|record| record.is_live() || record.was_ready())
}

impl<H: Host> Parts<H> {
    /// The snapshot that a create asks for.
    pub(super) fn requested_snapshot(&self, params: &CreateParams) -> SnapshotName {
        params.snapshot.clone().unwrap_or_else(|| self.config.host.snapshot.clone())
    }

    /// The version of the template that a member of the warm pool must have, if there are members.
    pub(super) async fn members_template(&self, snapshot: &SnapshotName) -> Result<Option<String>, RpcError> {
        let has_members = self.config.pool.size > 0 && self.registry.read().members().next().is_some();
        match has_members {
            true => self.template_version(snapshot).await.map(Some),
            false => Ok(None),
        }
    }

    /// The clone of this request: the one it made before, or a new one. `template` is the result of
    /// [`Parts::members_template`] from right before the call.
    pub(super) async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        params: CreateParams,
        progress: Option<ProgressSink>,
        template: Result<Option<String>, RpcError>,
    ) -> Result<CreateResult, RpcError> {
        let _serving = self.warm_pool.serving();
        let requested = self.requested_slot(&params)?;
        let lease = self.config.lifecycle.lease(params.deadline_seconds)?;
        let snapshot = self.requested_snapshot(&params);
        let browser = requested_browser(&self.config, &snapshot, &params)?;
        let request = CloneRequest {
            request_id: Some(params.request_id.clone()),
            tenant: params.tenant.clone(),
            owner_uid: caller.uid,
            snapshot,
            limits: self.config.clone_limits.grant(params.limits.as_ref())?,
            browser,
            lease,
            requested,
            pool: false,
        };
        let mut template = Some(template);
        let mut tried = BTreeSet::new();
        let (mut firewall_checked, mut template_checked, mut counted) = (false, false, false);
        loop {
            if let Some(renewed) = self.renew_known(caller, &params, lease, progress.clone()).await? {
                return Ok(renewed);
            }
            if !firewall_checked {
                self.firewall_is_ready().await?;
                self.admit(caller.uid).await?;
                firewall_checked = true;
            }
            // What was read before the call counts for the first attempt only.
            let template = match template.take() {
                Some(read) => read?,
                None => self.members_template(&request.snapshot).await?,
            };
            let mut bound = false;
            let reserved = self.reserve(progress.clone(), |state, busy| {
                if is_known(state, caller.uid, &params.request_id) {
                    return Err(NotYet::Known);
                }
                state
                    .within_caps(caller.uid, request.tenant.as_ref(), self.caps())
                    .map_err(NotYet::Refused)?;
                if let Some(template) = &template
                    && let Some(member) = self.choose_member(&request, template, state, busy)
                {
                    bound = true;
                    return Ok(member);
                }
                if !template_checked {
                    return Err(NotYet::TemplateUnchecked);
                }
                let slot = self.choose_slot(&request, state, busy, &tried)?;
                let record = request.record(slot, &self.clock.now());
                let message = SlotMessage::Create { record: Box::new(record.clone()) };
                Ok((record, message))
            });
            if !bound && !counted && self.config.pool.size > 0 && !matches!(reserved, Err(NotYet::Known)) {
                counted = true;
                self.warm_pool
                    .count(if template.is_some() { Draw::Unfit } else { Draw::Empty }, &self.metrics);
                // Members that do not fit because the template changed are drained by the timer.
                self.wake.notify_one();
            }
            let reply = match reserved {
                Ok(reply) => reply,
                Err(NotYet::Known) => continue,
                Err(NotYet::TemplateUnchecked) => {
                    self.template_is_ready(&request.snapshot).await?;
                    template_checked = true;
                    continue;
                }
                Err(NotYet::Busy(slot)) => {
                    self.tasks.until_idle(slot).await;
                    continue;
                }
                Err(NotYet::Evict(slot)) => {
                    let why = "its slot is needed".to_owned();
                    // Whatever comes of it, it is no member afterwards, so this loop ends.
                    let _ = self.send(slot, SlotMessage::Drain { why }, None).await;
                    continue;
                }
                Err(NotYet::Refused(why)) => return Err(self.no_slot(why, &request)),
            };
            match created(reply.await.map_err(|_| operation_died())?)? {
                CreateOutcome::Clone(result) => {
                    if bound {
                        self.warm_pool.count(Draw::Hit, &self.metrics);
                        self.warm_pool.want();
                    }
                    return Ok(*result);
                }
                CreateOutcome::MemberBroken => {}
                CreateOutcome::SlotNotFree(slot, why) => {
                    if requested.is_some() {
                        return Err(name_taken(self.slots.name(slot).as_str(), &why));
                    }
                    tried.insert(slot);
                }
            }
        }
    }

    /// Whether this caller's request made a clone before, whose lease a create would renew.
    pub(super) fn is_known(&self, caller: &Caller, request: &RequestId) -> bool {
        is_known(&self.registry.read(), caller.uid, request)
    }

    /// The renewed lease of the clone that this request made before. `None`: there is no such clone.
    async fn renew_known(
        self: &Arc<Self>,
        caller: &Caller,
        params: &CreateParams,
        lease: Duration,
        progress: Option<ProgressSink>,
    ) -> Result<Option<CreateResult>, RpcError> {
        loop {
            let known = {
                let state = self.registry.read();
                state.by_request(caller.uid, &params.request_id).map(|record| record.slot)
            };
            let Some(slot) = known else { return Ok(None) };
            let (params, uid) = (Box::new(params.clone()), caller.uid);
            let message = SlotMessage::Renew { params, uid, lease };
            let reply = self.send(slot, message, progress.clone()).await.map_err(|_| operation_died())?;
            match reply {
                SlotReply::Renewed(renewed) => return Ok(renewed?.map(|renewed| *renewed)),
                // The create that was joined is over: this call's own lease and parameters count now.
                joined => drop(created(joined)?),
            }
        }
    }

    fn requested_slot(&self, params: &CreateParams) -> Result<Option<Slot>, RpcError> {
        let Some(name) = &params.name else { return Ok(None) };
        let slot = self.slots.slot_of_name(name.as_str());
        slot.map(Some).ok_or_else(|| unknown_name(name.as_str(), &self.slots))
    }

    /// A free slot for a new clone.
    fn choose_slot(
        &self,
        request: &CloneRequest,
        state: &RegistryState,
        busy: &dyn Fn(Slot) -> bool,
        tried: &BTreeSet<Slot>,
    ) -> Result<Slot, NotYet> {
        let Some(slot) = request.requested else {
            let excluded = |slot: Slot| busy(slot) || tried.contains(&slot);
            return state.free_slot(&self.slots, self.caps(), excluded).map_err(NotYet::from);
        };
        let live = state.records.get(&slot).is_some_and(Record::is_live);
        if busy(slot) && !live {
            return Err(NotYet::Busy(slot));
        }
        state.requested_slot(slot).map_err(NotYet::from)
    }

    fn no_slot(&self, why: NoSlot, request: &CloneRequest) -> RpcError {
        if let Some(limit) = limit_label(why) {
            self.metrics.limit_rejection(limit);
        }
        let name = request.requested.map(|slot| self.slots.name(slot));
        let tenant = request.tenant.as_ref().map_or("", |tenant| tenant.as_str());
        no_slot(why, &self.config, &self.slots, name, tenant)
    }
}

impl From<NoSlot> for NotYet {
    fn from(why: NoSlot) -> NotYet {
        match why {
            NoSlot::Evict(slot) => NotYet::Evict(slot),
            why => NotYet::Refused(why),
        }
    }
}

/// The settings of the browser of a request's clone.
fn requested_browser(
    config: &Config,
    snapshot: &SnapshotName,
    params: &CreateParams,
) -> Result<BrowserSettings, RpcError> {
    if let Some((name, why)) = params.browser.as_ref().and_then(BrowserSettings::problem) {
        let hint = "leave it out for the configured setting";
        return Err(RpcError::new(ErrorCode::InvalidParams, format!("browser.{name}: {why}"), hint));
    }
    Ok(config.browser_settings(snapshot, params.browser.as_ref()))
}

fn created(reply: SlotReply) -> Result<CreateOutcome, RpcError> {
    match reply {
        SlotReply::Created(result) => result,
        _ => unreachable!("a create is answered as a create"),
    }
}

impl<H: Host> SlotWorker<H> {
    /// Renew the lease of the clone that this request made. `None`: the slot has no such clone.
    pub(super) async fn renew(
        &self,
        params: &CreateParams,
        uid: Option<u32>,
        lease: Duration,
    ) -> Result<Option<CreateResult>, RpcError> {
        let parts = &self.parts;
        let record = self.record().filter(|record| record.is_of(uid, &params.request_id));
        let Some(mut record) = record else { return Ok(None) };
        // A parameter that is left out stays as it is.
        let other_tenant = params.tenant.is_some() && params.tenant != record.tenant;
        let other_snapshot = params.snapshot.as_ref().is_some_and(|snapshot| *snapshot != record.snapshot);
        let other_name = params.name.as_ref().is_some_and(|name| *name != self.names.name);
        let other_limits = params.limits.is_some_and(|limits| !limits.agree_with(&record.limits));
        let other_browser =
            params.browser.as_ref().is_some_and(|browser| !browser.agree_with(&record.browser));
        let other = other_tenant || other_snapshot || other_name || other_limits || other_browser;
        if record.was_ready() && other {
            return Err(RpcError::new(
                ErrorCode::RequestConflict,
                format!("request {} was made with other parameters", params.request_id),
                "use a new request_id for every new clone",
            ));
        }
        let finished = || {
            RpcError::new(
                ErrorCode::RequestFinished,
                format!("the clone of request {} is gone", params.request_id),
                "use a new request_id for a new clone",
            )
            .about(&self.names.name)
        };
        let now = parts.clock.now();
        match &record.phase {
            Phase::Ready { .. } => {
                let left = now.until(&record.deadline).unwrap_or_default();
                if left.is_zero() {
                    return Err(finished());
                }
                if lease > left {
                    let before = record.deadline.mono_ms;
                    record.deadline = now.stamp_in(lease);
                    let jail = |millis| self.set_deadline(Duration::from_millis(millis));
                    // First, so that the jail's deadline is never earlier than the record's.
                    let told = jail(record.deadline.mono_ms).await;
                    told.map_err(|error| host_error(&error).about(&self.names.name))?;
                    if let Err(error) = parts.registry.save(&self.turn, &record).await {
                        // What fails here as well ends at the deadline that was asked for.
                        let _ = jail(before).await;
                        return Err(state_unavailable(&parts.config, &error));
                    }
                    parts.wake.notify_one();
                }
                let mut result = parts.create_result(&record, true);
                let assessed = parts.registry.read().assessed.get(&self.slot()).cloned();
                let problem = match assessed {
                    Some((CloneState::Broken, problem)) => Some(problem.unwrap_or_default()),
                    _ => parts.services.problem(&record),
                };
                if problem.is_some() {
                    (result.clone.state, result.clone.problem) = (CloneState::Broken, problem);
                }
                Ok(Some(result))
            }
            // A member of the warm pool has no request, so it is never found by one.
            Phase::Destroying { was_ready: false, .. } | Phase::Creating | Phase::Pooled { .. } => {
                Err(RpcError::new(
                    ErrorCode::Incomplete,
                    format!("an earlier attempt of request {} is being rolled back", params.request_id),
                    "try again shortly",
                )
                .about(&self.names.name)
                .retry_after(Duration::from_secs(1)))
            }
            Phase::Quarantined { was_ready: false, .. } => Ok(None),
            Phase::Destroying { .. } | Phase::Quarantined { .. } => Err(finished()),
        }
    }
}
