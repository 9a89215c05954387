//! Create: the clone this request made before, one from the warm pool, or a new one.

use super::engine::{Caller, Inner};
use super::place::Wish;
use super::progress::{Listeners, Progress};
use super::step::Step;
use crate::api::{
    CloneState, CreateParams, CreateResult, EgressHealth, ErrorCode, Launch, RpcError, SnapshotName,
};
use crate::host::{Host, HostError, HostErrorKind};
use crate::record::Phase;
use crate::slot::Slot;
use std::sync::Arc;
use std::time::Duration;

impl<H: Host> Inner<H> {
    /// Answer the clone of this request: the one it made before, or a new one.
    pub(super) async fn create(
        self: Arc<Self>,
        caller: Caller,
        params: CreateParams,
        listeners: Listeners,
    ) -> Result<CreateResult, RpcError> {
        let _serving = self.serving();
        let asked = self.asked_slot(&params)?;
        let life = self.life(&params)?;
        if let Some(renewed) = self.known_request(&caller, &params, life).await? {
            return Ok(renewed);
        }
        let wish = Wish {
            snapshot: params.snapshot.unwrap_or_else(|| self.config.host.snapshot.clone()),
            limits: self.config.clone_limits.grant(params.limits.as_ref()),
            request_id: Some(params.request_id),
            tenant: params.tenant,
            owner_uid: caller.uid,
            life,
            asked,
            pool: false,
        };
        self.firewall_is_ready().await?;
        if let Some(claimed) = self.claim_member(&wish, &listeners).await? {
            return Ok(claimed);
        }
        self.template_is_ready(&wish.snapshot).await?;
        let (record, _working) = self.place(&wish, &listeners).await?;
        let progress = Progress::new(&self.pool.name(record.slot), &listeners);
        self.build(record, &Step::ALL, Launch::Cold, progress, &listeners).await
    }

    fn asked_slot(&self, params: &CreateParams) -> Result<Option<Slot>, RpcError> {
        let Some(name) = &params.name else { return Ok(None) };
        match self.pool.slot_of_name(name.as_str()) {
            Some(slot) => Ok(Some(slot)),
            None => Err(not_of_this_pool(name.as_str(), &self.pool)),
        }
    }

    fn life(&self, params: &CreateParams) -> Result<Duration, RpcError> {
        let lifecycle = &self.config.lifecycle;
        let seconds = params.deadline_seconds.unwrap_or(lifecycle.default_deadline_seconds);
        if seconds == 0 {
            return Err(RpcError::new(
                ErrorCode::InvalidParams,
                "deadline_seconds is 0",
                "ask for at least 1 second, or leave it out for the default",
            ));
        }
        Ok(Duration::from_secs(seconds.min(lifecycle.max_deadline_seconds)))
    }

    /// The lease of the clone this request made before, renewed. `None`: there is no such clone.
    async fn known_request(
        self: &Arc<Self>,
        caller: &Caller,
        params: &CreateParams,
        life: Duration,
    ) -> Result<Option<CreateResult>, RpcError> {
        let Some(slot) = self.book().by_request(&params.request_id).map(|record| record.slot) else {
            return Ok(None);
        };
        let _working = self.work_on(slot).await;
        let record = self.book().records.get(&slot).cloned();
        let Some(mut record) = record.filter(|record| record.request_id.as_ref() == Some(&params.request_id))
        else {
            return Ok(None);
        };
        let conflict = |what: &str| {
            RpcError::new(
                ErrorCode::RequestConflict,
                format!("request {} was made {what}", params.request_id),
                "use a request_id of your own for every new clone",
            )
        };
        if record.owner_uid != caller.uid {
            return Err(conflict("by another user"));
        }
        let other_snapshot = params.snapshot.as_ref().is_some_and(|snapshot| *snapshot != record.snapshot);
        let other_name =
            params.name.as_ref().is_some_and(|name| self.pool.slot_of_name(name.as_str()) != Some(slot));
        let other_limits = self.config.clone_limits.grant(params.limits.as_ref()) != record.limits;
        if record.was_ready()
            && (record.tenant != params.tenant || other_snapshot || other_name || other_limits)
        {
            return Err(conflict("with other parameters"));
        }
        let name = self.pool.name(slot);
        let finished = || {
            RpcError::new(
                ErrorCode::RequestFinished,
                format!("the clone of request {} is over", params.request_id),
                "use a new request_id for a new clone",
            )
            .about(&name)
        };
        let now = self.clock.now();
        match &record.phase {
            Phase::Ready { .. } => {
                let left = now.until(&record.deadline).unwrap_or_default();
                if left.is_zero() {
                    return Err(finished());
                }
                if life > left {
                    record.deadline = now.stamp_in(life);
                    self.save(&record).await.map_err(|error| self.state_unavailable(&error))?;
                    self.wake.notify_one();
                }
                let mut clone = self.describe(&record, caller);
                if let Some((CloneState::Broken, problem)) = self.book().assessments.get(&slot) {
                    (clone.state, clone.problem) = (CloneState::Broken, problem.clone());
                }
                Ok(Some(CreateResult { clone, renewed: true }))
            }
            // A member of the warm pool has no request, so it is none that was found by one.
            Phase::Destroying { was_ready: false, .. } | Phase::Creating | Phase::Pooled { .. } => {
                Err(RpcError::new(
                    ErrorCode::Incomplete,
                    format!("an earlier try of request {} is being rolled back", params.request_id),
                    "try again shortly",
                )
                .about(&name)
                .retry_after(Duration::from_secs(1)))
            }
            Phase::Quarantined { was_ready: false, .. } => Ok(None),
            Phase::Destroying { .. } | Phase::Quarantined { .. } => Err(finished()),
        }
    }

    /// The host was looked at and its firewall stands: what every clone needs that somebody gets.
    pub(super) async fn firewall_is_ready(self: &Arc<Self>) -> Result<(), RpcError> {
        if !self.book().looked {
            self.wake.notify_one();
            return Err(not_ready(
                "the host has not been looked at yet",
                "try again shortly; hostctl doctor tells more",
            ));
        }
        let health =
            self.bounded("firewall", self.host.egress_health()).await.map_err(|error| host_error(&error))?;
        if health != EgressHealth::Ok {
            self.wake.notify_one();
            let message = match health {
                EgressHealth::TableMissing => "the firewall's table of clones is missing",
                _ => "the firewall's rules for the clones are not loaded",
            };
            return Err(not_ready(
                message,
                "hostd puts them back by itself where it can; hostctl doctor tells more",
            ));
        }
        Ok(())
    }

    /// The template can be cloned now: what every clone needs that is made.
    pub(super) async fn template_is_ready(&self, snapshot: &SnapshotName) -> Result<(), RpcError> {
        self.bounded("template", self.host.check_template(snapshot)).await.map_err(|error| host_error(&error))
    }

    pub(super) fn state_unavailable(&self, error: &std::io::Error) -> RpcError {
        let path = self.config.paths.state.display();
        RpcError::new(
            ErrorCode::StateUnavailable,
            format!("{path}: the record cannot be written: {error}"),
            "make room on its disk or mend its permissions, then try again",
        )
    }
}

pub(super) fn not_of_this_pool(name: &str, pool: &crate::slot::Slots) -> RpcError {
    let (first, last) = (pool.slots().next(), pool.slots().last());
    let range = match (first, last) {
        (Some(first), Some(last)) => format!("{} to {}", pool.name(first), pool.name(last)),
        _ => "none".into(),
    };
    RpcError::new(
        ErrorCode::InvalidParams,
        format!("{name} is not a name of this pool"),
        format!("names here are {range}"),
    )
}

fn not_ready(message: &str, hint: &str) -> RpcError {
    RpcError::new(ErrorCode::HostNotReady, message, hint).retry_after(Duration::from_secs(1))
}

/// A host's failure as the contract knows it.
pub(super) fn host_error(error: &HostError) -> RpcError {
    let code = match error.kind {
        HostErrorKind::NoSpace => ErrorCode::DiskFull,
        HostErrorKind::Timeout => ErrorCode::Timeout,
        HostErrorKind::Template => ErrorCode::TemplateUnusable,
        HostErrorKind::NotReady => ErrorCode::HostNotReady,
        HostErrorKind::Busy | HostErrorKind::Foreign | HostErrorKind::Failed => ErrorCode::StepFailed,
    };
    RpcError::new(code, error.to_string(), error.hint.clone())
}
