//! Destroy and force-unmount: the caller's side of the walk.

use super::create::{host_error, not_of_this_pool};
use super::engine::{Caller, Inner, blocking};
use super::ours::{self, Claim};
use super::progress::{Listeners, Progress};
use super::walk::{Ended, Walked};
use crate::api::{
    CloneId, CloneName, DestroyParams, DestroyResult, ErrorCode, ForceUnmountParams, ForceUnmountResult, Limits,
    RpcError,
};
use crate::host::{Host, ObservedClone, Part, Unmount};
use crate::record::{Phase, Record};
use crate::slot::Slot;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl<H: Host> Inner<H> {
    /// Whether this caller may destroy this clone: its owner and operators may.
    pub(super) fn may_touch(&self, caller: &Caller, name: &CloneName) -> Result<(), RpcError> {
        let slot = self.pool_slot(name)?;
        let book = self.book();
        match book.records.get(&slot) {
            Some(record) if !caller.operator && record.owner_uid != caller.uid => Err(RpcError::new(
                ErrorCode::Denied,
                format!("{name} belongs to another user"),
                "its owner or an operator can destroy it",
            )
            .about(name)),
            _ => Ok(()),
        }
    }

    fn pool_slot(&self, name: &CloneName) -> Result<Slot, RpcError> {
        let slot = self.pool.slot_of_name(name.as_str());
        slot.ok_or_else(|| not_of_this_pool(name.as_str(), &self.pool))
    }

    /// Take a clone away; absent is success.
    pub(super) async fn destroy(
        self: Arc<Self>,
        caller: Caller,
        params: DestroyParams,
        listeners: Listeners,
    ) -> Result<DestroyResult, RpcError> {
        let slot = self.pool_slot(&params.name)?;
        let names = self.pool.names(slot);
        let _working = self.work_on(slot).await;
        // Not before: what is worked on may be a member, whose making stands still while a caller is served.
        let _serving = self.serving();
        let gone = DestroyResult {
            name: params.name.clone(),
            clone_id: params.clone_id.clone(),
            already_gone: true,
            complete: true,
            stages: Vec::new(),
        };
        let record = self.book().records.get(&slot).cloned();
        let record = match record {
            Some(record) if record.clone_id != params.clone_id => {
                return Err(RpcError::new(
                    ErrorCode::WrongClone,
                    format!("{} is another clone by now; nothing was touched", params.name),
                    "the clone you mean is gone already",
                )
                .about(&params.name));
            }
            Some(record) if !record.is_live() => return Ok(gone),
            Some(record) => record,
            None => {
                // Without a record the mark on the host tells; only operators may go by that.
                let seen = self
                    .look(&names, Part::ALL)
                    .await
                    .map_err(|error| host_error(&error).about(&names.name))?;
                if ours::mark(&seen) != Some(&params.clone_id) || ours::foreign(&seen).is_some() {
                    return Ok(gone);
                }
                if !caller.operator {
                    return Err(RpcError::new(
                        ErrorCode::Denied,
                        format!("{} has no record, so its owner is not known", params.name),
                        "an operator can destroy it; the reaper takes it after the grace period",
                    )
                    .about(&params.name));
                }
                self.adopted(slot, params.clone_id.clone())
            }
        };
        let record = self.begin_destroy(record, "asked for").await;
        let claim = Claim::Clone(&record.clone_id);
        let walked = self.walk(&names, claim, Progress::new(&names.name, &listeners)).await;
        self.finish_destroy(record, &walked).await;
        match walked.ended {
            Ended::Gone | Ended::Dying => {
                Ok(DestroyResult { already_gone: false, stages: walked.stages, ..gone })
            }
            Ended::Incomplete => Err(RpcError::new(
                ErrorCode::Incomplete,
                format!("{} is not gone yet: {}", names.name, walked.errors.join("; ")),
                "it is recorded and the reaper goes on; an operator can help with hostctl force-unmount",
            )
            .about(&names.name)
            .cleanup(walked.errors)
            .retry_after(Duration::from_millis(self.config.lifecycle.reconcile_interval_ms))),
        }
    }

    /// Force the mounts of a clone that is being destroyed, and nothing else.
    pub(super) async fn force_unmount(
        self: Arc<Self>,
        params: ForceUnmountParams,
        listeners: Listeners,
    ) -> Result<ForceUnmountResult, RpcError> {
        let slot = self.pool_slot(&params.name)?;
        let names = self.pool.names(slot);
        let _working = self.work_on(slot).await;
        let refuse =
            |code, message: String, hint: &str| Err(RpcError::new(code, message, hint).about(&params.name));
        let record = self.book().records.get(&slot).cloned();
        let record = match record {
            None => {
                return refuse(
                    ErrorCode::NotFound,
                    format!("{} has no record", params.name),
                    "hostctl ls shows what is there",
                );
            }
            Some(record) if record.clone_id != params.clone_id => {
                let message = format!("{} is another clone by now; nothing was touched", params.name);
                return refuse(ErrorCode::WrongClone, message, "the clone you mean is gone already");
            }
            Some(record) if !matches!(record.phase, Phase::Destroying { .. }) => {
                let message = format!("{} is not being destroyed; nothing was touched", params.name);
                return refuse(ErrorCode::NotDestroying, message, "destroy it first");
            }
            Some(record) => record,
        };
        let claim = Claim::Clone(&record.clone_id);
        let failed = |error| host_error(&error).about(&names.name);
        let parts = [Part::Mounts, Part::Storage, Part::Jail];
        let seen = self.look(&names, &parts).await.map_err(failed)?;
        if let Some(why) = claim.held(&seen) {
            let message = format!("{}: {why}; nothing was touched", params.name);
            return refuse(
                ErrorCode::Incomplete,
                message,
                "the destroy goes on by itself once that is stopped",
            );
        }
        let before = claim.ours(&seen).mounts;
        let progress = Progress::new(&names.name, &listeners);
        if !before.is_empty() {
            let work = self.bounded("mounts", self.host.unmount(&names, Unmount::Force));
            if let Err(error) = progress.step("force-unmount", work).await {
                tracing::warn!(clone = %names.name, %error, "not everything could be unmounted");
            }
        }
        let left = claim.ours(&self.look(&names, &parts).await.map_err(failed)?).mounts;
        let unmounted = before.difference(&left).cloned().collect();
        // The destroy goes on at once rather than at the next turn of the timer.
        self.wake.notify_one();
        Ok(ForceUnmountResult { name: params.name, unmounted, left: left.into_iter().collect() })
    }

    /// A record for something that has none, so that taking it away survives a crash.
    pub(super) fn adopted(&self, slot: Slot, clone_id: CloneId) -> Record {
        let now = self.clock.now().stamp();
        Record {
            version: Record::VERSION,
            slot,
            clone_id,
            request_id: None,
            tenant: None,
            owner_uid: None,
            snapshot: self.config.host.snapshot.clone(),
            limits: Limits::default(),
            created: now.clone(),
            deadline: now,
            pool: false,
            phase: Phase::Creating,
        }
    }

    /// Record that the clone is to go: a crash must not bring it back to Ready.
    pub(super) async fn begin_destroy(self: &Arc<Self>, mut record: Record, why: &str) -> Record {
        if !matches!(record.phase, Phase::Destroying { .. }) {
            let was_ready = record.was_ready();
            record.phase =
                Phase::Destroying { why: why.to_owned(), was_ready, attempts: 0, errors: Vec::new() };
            if let Err(error) = self.save(&record).await {
                // Taking away is right even if it cannot be noted: whatever stays is found again.
                tracing::error!(slot = %record.slot, %error, "the destroy cannot be recorded; going on with it");
                self.book().records.insert(record.slot, record.clone());
            }
        }
        record
    }

    /// Record how the walk ended.
    pub(super) async fn finish_destroy(self: &Arc<Self>, mut record: Record, walked: &Walked) {
        let was_ready = record.was_ready();
        let tried = match &record.phase {
            Phase::Destroying { attempts, .. } => *attempts,
            _ => 0,
        };
        let why = match &record.phase {
            Phase::Destroying { why, .. } => why.clone(),
            _ => "its create failed".to_owned(),
        };
        if !matches!(walked.ended, Ended::Incomplete) {
            self.book().mark_freed(record.slot);
        }
        // Nobody ever knew of a member of the warm pool.
        let quarantined = !record.pool && self.config.lifecycle.quarantine_seconds > 0;
        record.phase = match walked.ended {
            Ended::Gone if !quarantined => return self.release(record.slot, walked.left.clone()).await,
            Ended::Gone | Ended::Dying => Phase::Quarantined { freed: self.clock.now().stamp(), was_ready },
            Ended::Incomplete => Phase::Destroying {
                why,
                was_ready,
                attempts: tried.saturating_add(1),
                errors: walked.errors.clone(),
            },
        };
        if let Err(error) = self.save(&record).await {
            tracing::error!(slot = %record.slot, %error, "the end of a destroy cannot be recorded");
        }
        if !record.is_live() {
            self.book().forget_look(record.slot);
        }
    }

    /// Remove the record of a clone that is gone and whose quarantine is over. What is left in the slot is somebody
    /// else's, and is shown as that from now on.
    pub(super) async fn release(self: &Arc<Self>, slot: Slot, left: ObservedClone) {
        let inner = self.clone();
        let removed = blocking(move || inner.store.remove(slot)).await;
        match removed {
            Ok(()) => drop(self.book().records.remove(&slot)),
            Err(error) => tracing::error!(%slot, %error, "the record cannot be removed"),
        }
        self.book().forget_look(slot);
        if !left.is_absent() {
            let assessment = self.judge_alone(slot, &left, &BTreeSet::new());
            let mut book = self.book();
            book.seen.clones.insert(slot, left);
            book.assessments.insert(slot, (assessment.state, assessment.problem));
        }
    }
}
