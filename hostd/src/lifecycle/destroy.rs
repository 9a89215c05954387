//! Destroy and force-unmount.

use super::entry::Caller;
use super::errors::{host_error, operation_died, unknown_name, wrong_clone};
use super::ownership::{self, Ownership};
use super::parts::Parts;
use super::progress::{Progress, ProgressSink};
use super::slot_task::{SlotMessage, SlotReply, SlotWorker};
use super::teardown::{Teardown, TeardownEnd};
use crate::api::{
    CloneId, CloneName, DestroyParams, DestroyResult, ErrorCode, ForceUnmountParams, ForceUnmountResult,
    Limits, RpcError,
};
use crate::host::{Host, ObservedClone, Part, Unmount, chain};
use crate::record::{Phase, Record};
use crate::slot::Slot;
use std::collections::BTreeSet;
use std::sync::Arc;

impl<H: Host> Parts<H> {
    pub(super) fn slot_of(&self, name: &CloneName) -> Result<Slot, RpcError> {
        let slot = self.slots.slot_of_name(name.as_str());
        slot.ok_or_else(|| unknown_name(name.as_str(), &self.slots))
    }

    /// The slot of a clone that this caller may destroy: its owner and operators may.
    pub(super) fn may_destroy(&self, caller: &Caller, name: &CloneName) -> Result<Slot, RpcError> {
        let slot = self.slot_of(name)?;
        let owner = self.registry.record(slot).map(|record| record.owner_uid);
        if !caller.operator && owner.is_some_and(|owner| owner != caller.uid) {
            let message = format!("{name} belongs to another user");
            let error = RpcError::new(ErrorCode::Denied, message, "its owner or an operator can destroy it");
            return Err(error.about(name));
        }
        Ok(slot)
    }

    /// Destroy a clone; absent is success.
    pub(super) async fn destroy(
        self: &Arc<Self>,
        caller: &Caller,
        params: DestroyParams,
        progress: Option<ProgressSink>,
    ) -> Result<DestroyResult, RpcError> {
        let slot = self.may_destroy(caller, &params.name)?;
        let message = SlotMessage::Destroy { params: Box::new(params), operator: caller.operator };
        match self.send(slot, message, progress).await.map_err(|_| operation_died())? {
            SlotReply::Destroyed(result) => result,
            _ => unreachable!("a destroy is answered as a destroy"),
        }
    }

    /// Force the mounts of a clone that is being destroyed.
    pub(super) async fn force_unmount(
        self: &Arc<Self>,
        params: ForceUnmountParams,
        progress: Option<ProgressSink>,
    ) -> Result<ForceUnmountResult, RpcError> {
        let slot = self.slot_of(&params.name)?;
        let message = SlotMessage::ForceUnmount(Box::new(params));
        match self.send(slot, message, progress).await.map_err(|_| operation_died())? {
            SlotReply::ForceUnmounted(result) => result,
            _ => unreachable!("a force-unmount is answered as a force-unmount"),
        }
    }
}

impl<H: Host> SlotWorker<H> {
    pub(super) async fn destroy(
        &self,
        params: &DestroyParams,
        operator: bool,
    ) -> Result<DestroyResult, RpcError> {
        // Not before its turn: a member in the making would wait for this call, and this call for the member.
        let _serving = self.parts.warm_pool.serving();
        let result = |complete, already_gone| DestroyResult {
            name: params.name.clone(),
            clone_id: params.clone_id.clone(),
            already_gone,
            complete,
            stages: Vec::new(),
        };
        let record = match self.record() {
            Some(record) if record.clone_id != params.clone_id => return Err(wrong_clone(&params.name)),
            Some(record) if !record.is_live() => return Ok(result(true, true)),
            Some(record) => record,
            None => match self.adopt_by_mark(&params.clone_id, operator).await? {
                Some(record) => record,
                None => return Ok(result(true, true)),
            },
        };
        let mut record = record;
        let recorded = self.record_destroy(&mut record, "asked for").await;
        let progress = Progress::new(&self.names.name, &self.listeners);
        let halted = || {
            if recorded {
                self.parts.tasks.reply_early(self.slot(), &SlotReply::Destroyed(Ok(result(false, false))));
            }
        };
        let teardown = self.tear_down(Ownership::Clone(&record.clone_id), progress, halted).await;
        self.finish_destroy(record, &teardown).await;
        let name = &self.names.name;
        match teardown.end {
            TeardownEnd::Gone | TeardownEnd::Dying => {
                Ok(DestroyResult { stages: teardown.stages, ..result(true, false) })
            }
            TeardownEnd::Incomplete => Err(RpcError::new(
                ErrorCode::Incomplete,
                format!("{name} is not gone yet: {}", teardown.errors.join("; ")),
                "it is recorded and the reaper continues; an operator can help with hostctl force-unmount",
            )
            .about(name)
            .cleanup(teardown.errors)
            .retry_after(self.parts.interval())),
        }
    }

    /// A record for a clone that has none but carries this mark on the host. Only operators may go by that.
    async fn adopt_by_mark(&self, clone_id: &CloneId, operator: bool) -> Result<Option<Record>, RpcError> {
        let name = &self.names.name;
        let observed = self.parts.host.inspect(&self.names, Part::ALL).await;
        let observed = observed.map_err(|error| host_error(&error).about(name))?;
        if ownership::mark(&observed) != Some(clone_id) || ownership::foreign(&observed).is_some() {
            return Ok(None);
        }
        if operator {
            return Ok(Some(self.adopted(clone_id.clone())));
        }
        Err(RpcError::new(
            ErrorCode::Denied,
            format!("{name} has no record, so its owner is not known"),
            "an operator can destroy it; the reaper removes it after the grace period",
        )
        .about(name))
    }

    pub(super) async fn force_unmount(
        &self,
        params: ForceUnmountParams,
    ) -> Result<ForceUnmountResult, RpcError> {
        let name = &params.name;
        let refuse = |code, message: String, hint: &str| Err(RpcError::new(code, message, hint).about(name));
        let record = match self.record() {
            None => {
                let message = format!("{name} has no record");
                return refuse(ErrorCode::NotFound, message, "hostctl ls shows the clones");
            }
            Some(record) if record.clone_id != params.clone_id => return Err(wrong_clone(name)),
            Some(record) if !matches!(record.phase, Phase::Destroying { .. }) => {
                let message = format!("{name} is not being destroyed; nothing was touched");
                return refuse(ErrorCode::NotDestroying, message, "destroy it first");
            }
            Some(record) => record,
        };
        let (host, names) = (&self.parts.host, &self.names);
        let ownership = Ownership::Clone(&record.clone_id);
        let failed = |error| host_error(&error).about(name);
        let parts = [Part::Mounts, Part::Storage, Part::Jail];
        let observed = host.inspect(names, &parts).await.map_err(failed)?;
        if let Some(why) = ownership.held(&observed) {
            let message = format!("{name}: {why}; nothing was touched");
            let hint = "the destroy continues by itself once that is stopped";
            return refuse(ErrorCode::Incomplete, message, hint);
        }
        let before = ownership.filter(&observed).mounts;
        let progress = Progress::new(name, &self.listeners);
        if !before.is_empty() {
            let work = host.run("mounts", host.host.unmount(names, Unmount::Force));
            if let Err(error) = progress.step("force-unmount", work).await {
                tracing::warn!(clone = %name, error = chain(&error), "not everything could be unmounted");
            }
        }
        let left = ownership.filter(&host.inspect(names, &parts).await.map_err(failed)?).mounts;
        let unmounted = before.difference(&left).cloned().collect();
        // The destroy continues at once rather than at the next turn of the timer.
        self.parts.wake.notify_one();
        Ok(ForceUnmountResult { name: params.name, unmounted, left: left.into_iter().collect() })
    }

    /// A record for something that has none, so that its removal survives a crash.
    pub(super) fn adopted(&self, clone_id: CloneId) -> Record {
        let now = self.parts.clock.now().stamp();
        Record {
            version: Record::VERSION,
            slot: self.slot(),
            clone_id,
            secret: None,
            request_id: None,
            tenant: None,
            owner_uid: None,
            snapshot: self.parts.config.host.snapshot.clone(),
            limits: Limits::default(),
            browser: Default::default(),
            created: now.clone(),
            deadline: now,
            pool: false,
            phase: Phase::Creating,
        }
    }

    /// Record that the clone is being destroyed, so that a crash does not make it ready again. The removal goes on if that
    /// cannot be written: whatever a crash leaves is found by the clone's mark, or goes at its deadline.
    pub(super) async fn begin_destroy(&self, mut record: Record, why: &str) -> Record {
        self.record_destroy(&mut record, why).await;
        record
    }

    /// The same. False: it could not be written.
    async fn record_destroy(&self, record: &mut Record, why: &str) -> bool {
        if matches!(record.phase, Phase::Destroying { .. }) {
            return true;
        }
        let was_ready = record.was_ready();
        record.phase = Phase::Destroying { why: why.to_owned(), was_ready, attempts: 0, errors: Vec::new() };
        self.save_removal(record).await
    }

    /// Record how the teardown ended.
    pub(super) async fn finish_destroy(&self, mut record: Record, teardown: &Teardown) {
        let registry = &self.parts.registry;
        let was_ready = record.was_ready();
        let (why, attempts) = match &record.phase {
            Phase::Destroying { why, attempts, .. } => (why.clone(), *attempts),
            _ => ("its create failed".to_owned(), 0),
        };
        if let TeardownEnd::Incomplete = teardown.end {
            let (errors, attempts) = (teardown.errors.clone(), attempts.saturating_add(1));
            record.phase = Phase::Destroying { why, was_ready, attempts, errors };
            self.save_removal(&record).await;
            return;
        }
        registry.mark_freed(record.slot);
        record.phase = Phase::Quarantined { freed: self.parts.clock.now().stamp(), was_ready };
        // No caller ever knew a member of the warm pool.
        let quarantined = !record.pool && self.parts.config.lifecycle.quarantine_seconds > 0;
        if let (TeardownEnd::Gone, false) = (&teardown.end, quarantined) {
            // If the file cannot be removed now, the timer releases the slot later.
            registry.remember(&self.turn, record);
            return self.release(teardown.left.clone()).await;
        }
        self.save_removal(&record).await;
        registry.forget_inspection(record.slot, None);
    }

    /// Record a step of the removal, on disk if that is possible now. False: only in memory.
    async fn save_removal(&self, record: &Record) -> bool {
        let saved = self.parts.registry.save_removal(&self.turn, record).await;
        self.parts.state_written(&saved);
        saved.is_ok()
    }

    /// Write the record again after a write failed or its file was lost.
    pub(super) async fn write_record(&self) {
        let written = self.parts.registry.write_again(&self.turn, self.slot()).await;
        self.parts.state_written(&written);
    }

    /// Remove the record of a clone that is gone, if its quarantine is over by now.
    pub(super) async fn release_quarantined(&self) {
        if self.record().is_some_and(|record| !record.is_live()) {
            let left = self.parts.registry.read().observed(self.slot()).cloned();
            self.release(left.unwrap_or_default()).await;
        }
    }

    /// Remove the record of a clone that is gone. What is left in the slot belongs to others and is shown as such.
    async fn release(&self, left: ObservedClone) {
        let slot = self.slot();
        let removed = self.parts.registry.remove(&self.turn, slot).await;
        self.parts.state_written(&removed);
        let left = (!left.is_absent()).then(|| {
            let assessment = self.parts.assess_alone(slot, &left, &BTreeSet::new());
            (left, assessment.state, assessment.problem)
        });
        self.parts.registry.forget_inspection(slot, left);
    }
}
