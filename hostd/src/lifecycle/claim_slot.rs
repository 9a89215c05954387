//! Claiming a slot: the record is written first, then leftovers in the slot are removed.

use super::errors::{host_error, state_unavailable};
use super::ownership::{self, Ownership};
use super::progress::Progress;
use super::slot_task::{CreateOutcome, SlotWorker};
use super::step::Step;
use super::teardown::TeardownEnd;
use crate::api::{
    BrowserSettings, CloneId, CloneSecret, ErrorCode, Launch, Limits, RequestId, RpcError, SnapshotName,
    Tenant,
};
use crate::clock::Moment;
use crate::host::Host;
use crate::record::{Phase, Record};
use crate::slot::Slot;
use crate::timing;
use std::time::Duration;
use tracing::Instrument;

/// A clone that is wanted, before it has a slot.
#[derive(Debug, Clone)]
pub(super) struct CloneRequest {
    pub(super) request_id: Option<RequestId>,
    pub(super) tenant: Option<Tenant>,
    pub(super) owner_uid: Option<u32>,
    pub(super) snapshot: SnapshotName,
    pub(super) limits: Limits,
    pub(super) browser: BrowserSettings,
    pub(super) lease: Duration,
    /// The slot that the caller named.
    pub(super) requested: Option<Slot>,
    /// For the warm pool.
    pub(super) pool: bool,
}

impl CloneRequest {
    /// The record of this clone in a slot.
    pub(super) fn record(&self, slot: Slot, now: &Moment) -> Record {
        Record {
            version: Record::VERSION,
            slot,
            clone_id: CloneId::random(),
            secret: Some(CloneSecret::random()),
            request_id: self.request_id.clone(),
            tenant: self.tenant.clone(),
            owner_uid: self.owner_uid,
            snapshot: self.snapshot.clone(),
            limits: self.limits,
            browser: self.browser.clone(),
            created: now.stamp(),
            deadline: now.stamp_in(self.lease),
            pool: self.pool,
            phase: Phase::Creating,
        }
    }
}

impl<H: Host> SlotWorker<H> {
    /// Make the clone of a reserved record.
    pub(super) async fn create(&self, record: Record) -> Result<CreateOutcome, RpcError> {
        if let Some(why) = self.claim(&record).await? {
            return Ok(CreateOutcome::SlotNotFree(self.slot(), why));
        }
        let progress = Progress::new(&self.names.name, &self.listeners);
        let built = self.build(record, &Step::ALL, Launch::Cold, progress).await?;
        Ok(CreateOutcome::Clone(Box::new(built)))
    }

    /// Claim the slot: make its record on disk, then remove leftovers that carry no mark. `Some`: something in the slot is
    /// not this clone's to remove, and the claim was given up.
    pub(super) async fn claim(&self, record: &Record) -> Result<Option<String>, RpcError> {
        let parts = &self.parts;
        let claimed = parts.registry.claim(&self.turn, record).await;
        claimed.map_err(|error| state_unavailable(&parts.config, &error))?;
        let names = &self.names;
        let inspection = parts.host.run(names.name.as_str(), parts.host.host.inspect_before_create(names));
        let observed = match inspection.instrument(timing::part("look")).await {
            Ok(observed) => observed,
            Err(error) => {
                self.give_up_claim().await?;
                return Err(host_error(&error).about(&names.name));
            }
        };
        if observed.is_absent() {
            return Ok(None);
        }
        let orphan = || ownership::mark(&observed).map(|id| format!("the orphan {id} is in it"));
        let dying = observed.jail.as_ref().is_some_and(|jail| jail.dying);
        let dying = || dying.then(|| "an earlier jail of it is still dying".to_owned());
        if let Some(why) = ownership::foreign(&observed).or_else(orphan).or_else(dying) {
            tracing::warn!(slot = %record.slot, why, "the slot is not free");
            self.give_up_claim().await?;
            return Ok(Some(why));
        }
        let progress = Progress::new(&names.name, &self.listeners);
        let teardown = self.tear_down(Ownership::Clone(&record.clone_id), progress, || {}).await;
        match teardown.end {
            TeardownEnd::Gone | TeardownEnd::Dying => Ok(None),
            TeardownEnd::Incomplete => {
                let error = RpcError::new(
                    ErrorCode::StepFailed,
                    format!("{}: leftovers in its slot cannot be removed", names.name),
                    "try again: another slot is taken; the reaper continues with this one",
                );
                Err(self.rolled_back(record.clone(), error, teardown).await)
            }
        }
    }

    /// Remove a record whose clone never began.
    async fn give_up_claim(&self) -> Result<(), RpcError> {
        let removed = self.parts.registry.remove(&self.turn, self.slot()).await;
        removed.map_err(|error| state_unavailable(&self.parts.config, &error))
    }
}
