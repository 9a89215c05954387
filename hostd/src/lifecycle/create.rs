//! Create: claim a slot, run the steps, verify each; roll back on the first failure.

use super::book::{Caps, NoSlot};
use super::engine::{Caller, Inner, Working, blocking};
use super::ours::{self, Claim};
use super::progress::{Listeners, Progress};
use super::reconcile;
use super::step::Step;
use super::walk::{Ended, Walked};
use crate::api::{
    CloneId, CloneState, CreateParams, CreateResult, EgressHealth, ErrorCode, Launch, RpcError, SnapshotName,
};
use crate::host::{CloneSpec, Host, HostError, HostErrorKind};
use crate::record::{Durability, Phase, Record};
use crate::slot::Slot;
use std::collections::BTreeSet;
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
        let asked = self.asked_slot(&params)?;
        let life = self.life(&params)?;
        if let Some(renewed) = self.known_request(&caller, &params, life).await? {
            return Ok(renewed);
        }
        let snapshot = params.snapshot.clone().unwrap_or_else(|| self.config.host.snapshot.clone());
        self.host_is_ready(&snapshot).await?;

        let mut tried = BTreeSet::new();
        let (record, _working) = loop {
            let (record, working) = self.claim(&caller, &params, &snapshot, life, asked, &tried).await?;
            match self.clear_slot(&record, &listeners).await? {
                None => break (record, working),
                Some(why) => {
                    tracing::warn!(slot = %record.slot, why, "the slot is not free after all");
                    self.forget(record.slot).await?;
                    if asked.is_some() {
                        return Err(name_taken(&self.pool.name(record.slot).to_string(), &why));
                    }
                    tried.insert(record.slot);
                }
            }
        };
        self.build(record, &listeners).await
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
                    self.save(&record, Durability::Synced)
                        .await
                        .map_err(|error| self.state_unavailable(&error))?;
                    self.wake.notify_one();
                }
                let mut clone = self.describe(&record, caller);
                if let Some((CloneState::Broken, problem)) = self.book().verdicts.get(&slot) {
                    (clone.state, clone.problem) = (CloneState::Broken, problem.clone());
                }
                Ok(Some(CreateResult { clone, renewed: true }))
            }
            Phase::Destroying { was_ready: false, .. } | Phase::Creating { .. } => Err(RpcError::new(
                ErrorCode::Incomplete,
                format!("an earlier try of request {} is being rolled back", params.request_id),
                "try again shortly",
            )
            .about(&name)
            .retry_after(Duration::from_secs(1))),
            Phase::Quarantined { was_ready: false, .. } => Ok(None),
            Phase::Destroying { .. } | Phase::Quarantined { .. } => Err(finished()),
        }
    }

    /// What every create needs, looked at before anything is claimed.
    async fn host_is_ready(self: &Arc<Self>, snapshot: &SnapshotName) -> Result<(), RpcError> {
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
        self.bounded("template", self.host.check_template(snapshot)).await.map_err(|error| host_error(&error))
    }

    /// Make the record of a free slot: the one atomic step that a slot, its names and addresses are had by.
    async fn claim(
        self: &Arc<Self>,
        caller: &Caller,
        params: &CreateParams,
        snapshot: &SnapshotName,
        life: Duration,
        asked: Option<Slot>,
        tried: &BTreeSet<Slot>,
    ) -> Result<(Record, Working<H>), RpcError> {
        let server = &self.config.server;
        let caps = Caps { host: server.max_clones, tenant: server.max_clones_per_tenant };
        let now = self.clock.now();
        let (record, working) = {
            let mut book = self.book();
            let slot = book
                .free_slot(&self.pool, asked, params.tenant.as_ref(), caps, tried)
                .map_err(|why| self.no_slot(why, params))?;
            // Nobody works on a free slot, and nobody can begin to while the book is held.
            let working =
                self.try_work_on(&mut book, slot).ok_or_else(|| self.no_slot(NoSlot::Taken, params))?;
            let record = Record {
                version: Record::VERSION,
                slot,
                clone_id: CloneId::random(),
                request_id: Some(params.request_id.clone()),
                tenant: params.tenant.clone(),
                owner_uid: caller.uid,
                snapshot: snapshot.clone(),
                limits: self.config.clone_limits.grant(params.limits.as_ref()),
                created: now.stamp(),
                deadline: now.stamp_in(life),
                phase: Phase::Creating { reached: None },
            };
            book.records.insert(slot, record.clone());
            (record, working)
        };
        let (inner, copy) = (self.clone(), record.clone());
        if let Err(error) = blocking(move || inner.store.claim(&copy)).await {
            self.book().records.remove(&record.slot);
            return Err(self.state_unavailable(&error));
        }
        Ok((record, working))
    }

    /// Take away unmarked leftovers of the slot. `Some`: something in it is not this clone's to remove.
    async fn clear_slot(
        self: &Arc<Self>,
        record: &Record,
        listeners: &Listeners,
    ) -> Result<Option<String>, RpcError> {
        let names = self.pool.names(record.slot);
        let seen = match self.bounded(names.name.as_str(), self.host.look_before_create(&names)).await {
            Ok(seen) => seen,
            Err(error) => {
                self.forget(record.slot).await?;
                return Err(host_error(&error).about(&names.name));
            }
        };
        if seen.is_absent() {
            return Ok(None);
        }
        if let Some(why) = ours::foreign(&seen) {
            return Ok(Some(why));
        }
        if let Some(id) = ours::mark(&seen) {
            return Ok(Some(format!("the orphan {id} is in it")));
        }
        if seen.jail.as_ref().is_some_and(|jail| jail.dying) {
            return Ok(Some("an earlier jail of it is still dying".into()));
        }
        let walked =
            self.walk(&names, Claim::Clone(&record.clone_id), Progress::new(&names.name, listeners)).await;
        match walked.ended {
            Ended::Gone => Ok(None),
            Ended::Incomplete => {
                let error = RpcError::new(
                    ErrorCode::StepFailed,
                    format!("{}: leftovers in its slot cannot be removed", names.name),
                    "try again: another slot is taken; the reaper goes on with this one",
                );
                Err(self.rolled_back(record.clone(), error, walked).await)
            }
        }
    }

    /// Remove a record whose clone never began.
    async fn forget(self: &Arc<Self>, slot: Slot) -> Result<(), RpcError> {
        let inner = self.clone();
        blocking(move || inner.store.remove(slot)).await.map_err(|error| self.state_unavailable(&error))?;
        self.book().records.remove(&slot);
        Ok(())
    }

    async fn build(
        self: &Arc<Self>,
        mut record: Record,
        listeners: &Listeners,
    ) -> Result<CreateResult, RpcError> {
        let spec = reconcile::spec(&record, &self.pool);
        let mut progress = Progress::new(&spec.names.name, listeners);
        let mut endpoint = String::new();
        for step in Step::ALL {
            let made = progress.step(&step.to_string(), self.run_step(step, &spec)).await;
            let failed = match made {
                Ok(answer) => {
                    endpoint = answer.unwrap_or(endpoint);
                    record.phase = Phase::Creating { reached: Some(step) };
                    // Not synced: after a power loss an older step is rolled back just the same.
                    self.save(&record, Durability::Written)
                        .await
                        .err()
                        .map(|error| self.state_unavailable(&error))
                }
                Err(error) => Some(host_error(&error).step(step)),
            };
            if let Some(error) = failed {
                return Err(self.roll_back(record, error.about(&spec.names.name), listeners).await);
            }
        }
        let stages = progress.stages();
        record.phase = Phase::Ready { endpoint, stages: stages.clone() };
        // Synced: from here on a caller relies on this clone being found again.
        if let Err(error) = self.save(&record, Durability::Synced).await {
            let error = self.state_unavailable(&error).about(&spec.names.name);
            return Err(self.roll_back(record, error, listeners).await);
        }
        for stage in &stages {
            self.metrics.stage(&stage.stage, Launch::Cold, stage.seconds);
        }
        self.wake.notify_one();
        let owner = Caller { operator: true, ..Caller::hostd("create") };
        Ok(CreateResult { clone: self.describe(&record, &owner), renewed: false })
    }

    async fn run_step(&self, step: Step, spec: &CloneSpec) -> Result<Option<String>, HostError> {
        let name = spec.names.name.as_str();
        let answer = self.bounded(name, step.ensure(&self.host, spec)).await?;
        if self.host.answers_for(step.part()) {
            return Ok(answer);
        }
        let seen = self.look(&spec.names, &[step.part()]).await?;
        step.verify(spec, &seen).map_err(|why| {
            let message = format!("the host reported success, but {why}");
            HostError::new(
                HostErrorKind::Failed,
                name,
                message,
                "look at the host's log; hostctl doctor checks the host",
            )
        })?;
        Ok(answer)
    }

    /// Undo what was made and answer the first error with the clean-up's errors beside it.
    async fn roll_back(self: &Arc<Self>, record: Record, error: RpcError, listeners: &Listeners) -> RpcError {
        let names = self.pool.names(record.slot);
        let record = self.begin_destroy(record, &format!("its create failed: {error}")).await;
        let claim = Claim::Clone(&record.clone_id);
        let walked = self.walk(&names, claim, Progress::new(&names.name, listeners)).await;
        self.rolled_back(record, error, walked).await
    }

    async fn rolled_back(self: &Arc<Self>, record: Record, error: RpcError, walked: Walked) -> RpcError {
        let errors = match walked.ended {
            Ended::Gone => Vec::new(),
            Ended::Incomplete => walked.errors.clone(),
        };
        self.finish_destroy(record, &walked).await;
        error.cleanup(errors)
    }

    fn no_slot(&self, why: NoSlot, params: &CreateParams) -> RpcError {
        let server = &self.config.server;
        let patience = Duration::from_secs(1);
        match why {
            NoSlot::HostFull => {
                self.metrics.limit_rejection("clones");
                let message = format!("this host has all of its {} clones", server.max_clones);
                RpcError::new(ErrorCode::HostFull, message, "destroy one, or raise server.max_clones")
                    .retry_after(patience)
            }
            NoSlot::TenantFull => {
                self.metrics.limit_rejection("tenant_clones");
                let tenant = params.tenant.as_ref().map_or("", |tenant| tenant.as_str());
                let message =
                    format!("tenant {tenant} has all of its {} clones", server.max_clones_per_tenant);
                RpcError::new(
                    ErrorCode::TenantFull,
                    message,
                    "destroy one, or raise server.max_clones_per_tenant",
                )
                .retry_after(patience)
            }
            NoSlot::NoneFree => {
                self.metrics.limit_rejection("slots");
                let message = format!("none of the pool's {} slots is free", self.pool.len());
                RpcError::new(
                    ErrorCode::HostFull,
                    message,
                    "freed slots stay unused for lifecycle.quarantine_seconds; hostctl ls --all shows them",
                )
                .retry_after(patience)
            }
            NoSlot::Taken => {
                let name = params.name.as_ref().map_or("the slot", |name| name.as_str());
                name_taken(name, "it is in use, quarantined or not ours").retry_after(patience)
            }
        }
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

fn name_taken(name: &str, why: &str) -> RpcError {
    RpcError::new(
        ErrorCode::NameTaken,
        format!("{name} is not free: {why}"),
        "leave name out to get any free slot; hostctl ls --all shows who has this one",
    )
}

pub(super) fn not_of_this_pool(name: &str, pool: &crate::slot::Pool) -> RpcError {
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
