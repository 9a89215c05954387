//! A place for a clone: claiming the record of a free slot, and making sure that nothing is left in it.

use super::book::{Caps, NoSlot};
use super::create::host_error;
use super::engine::{Inner, Working, blocking};
use super::ours::{self, Claim};
use super::progress::{Listeners, Progress};
use super::walk::Ended;
use crate::api::{CloneId, ErrorCode, Limits, RequestId, RpcError, SnapshotName, Tenant};
use crate::clock::Moment;
use crate::host::Host;
use crate::record::{Phase, Record};
use crate::slot::Slot;
use crate::timing;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

/// What is wanted, before it has a slot.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) request_id: Option<RequestId>,
    pub(super) tenant: Option<Tenant>,
    pub(super) owner_uid: Option<u32>,
    pub(super) snapshot: SnapshotName,
    pub(super) limits: Limits,
    pub(super) life: Duration,
    /// A certain slot.
    pub(super) asked: Option<Slot>,
    /// For the warm pool.
    pub(super) pool: bool,
}

impl Wish {
    fn record(&self, slot: Slot, now: &Moment) -> Record {
        Record {
            version: Record::VERSION,
            slot,
            clone_id: CloneId::random(),
            request_id: self.request_id.clone(),
            tenant: self.tenant.clone(),
            owner_uid: self.owner_uid,
            snapshot: self.snapshot.clone(),
            limits: self.limits,
            created: now.stamp(),
            deadline: now.stamp_in(self.life),
            pool: self.pool,
            phase: Phase::Creating,
        }
    }
}

/// What came of looking for a slot.
enum Found<H> {
    Claimed(Box<Record>, Working<H>),
    /// This member of the warm pool has to go first.
    Pooled(Slot),
}

impl<H: Host> Inner<H> {
    /// Claim a slot in which nothing is left, with the warm pool making room where it must.
    pub(super) async fn place(
        self: &Arc<Self>,
        wish: &Wish,
        listeners: &Listeners,
    ) -> Result<(Record, Working<H>), RpcError> {
        let mut tried = BTreeSet::new();
        loop {
            let (record, working) = match self.claim_slot(wish, &tried).await? {
                Found::Claimed(record, working) => (*record, working),
                Found::Pooled(slot) => {
                    // It is no member afterwards, whatever becomes of it: this ends.
                    self.drain(slot, "its place is needed").await;
                    continue;
                }
            };
            match self.clear_slot(&record, listeners).await? {
                None => return Ok((record, working)),
                Some(why) => {
                    tracing::warn!(slot = %record.slot, why, "the slot is not free after all");
                    self.forget(record.slot).await?;
                    if wish.asked.is_some() {
                        return Err(name_taken(&self.pool.name(record.slot).to_string(), &why));
                    }
                    tried.insert(record.slot);
                }
            }
        }
    }

    pub(super) fn caps(&self) -> Caps {
        let server = &self.config.server;
        Caps { host: server.max_clones, tenant: server.max_clones_per_tenant }
    }

    /// Make the record of a free slot: the one atomic step that a slot, its names and addresses are had by.
    async fn claim_slot(self: &Arc<Self>, wish: &Wish, tried: &BTreeSet<Slot>) -> Result<Found<H>, RpcError> {
        let caps = self.caps();
        let now = self.clock.now();
        let (record, working) = {
            let mut book = self.book();
            let slot = match wish.pool {
                true => book.spare_slot(&self.pool, caps.host, tried),
                false => book.free_slot(&self.pool, wish.asked, wish.tenant.as_ref(), caps, tried),
            };
            let slot = match slot {
                Ok(slot) => slot,
                Err(NoSlot::Pooled(slot)) => return Ok(Found::Pooled(slot)),
                Err(why) => return Err(self.no_slot(why, wish)),
            };
            // Nobody works on a free slot, and nobody can begin to while the book is held.
            let working =
                self.try_work_on(&mut book, slot).ok_or_else(|| self.no_slot(NoSlot::Taken, wish))?;
            let record = wish.record(slot, &now);
            book.records.insert(slot, record.clone());
            (record, working)
        };
        let (inner, copy) = (self.clone(), record.clone());
        let claimed = blocking(move || inner.store.claim(&copy)).instrument(timing::part("record"));
        if let Err(error) = claimed.await {
            self.book().records.remove(&record.slot);
            return Err(self.state_unavailable(&error));
        }
        Ok(Found::Claimed(Box::new(record), working))
    }

    /// Take away unmarked leftovers of the slot. `Some`: something in it is not this clone's to remove.
    async fn clear_slot(
        self: &Arc<Self>,
        record: &Record,
        listeners: &Listeners,
    ) -> Result<Option<String>, RpcError> {
        let names = self.pool.names(record.slot);
        let look = self.bounded(names.name.as_str(), self.host.look_before_create(&names));
        let seen = match look.instrument(timing::part("look")).await {
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
            Ended::Gone | Ended::Dying => Ok(None),
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

    pub(super) fn no_slot(&self, why: NoSlot, wish: &Wish) -> RpcError {
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
                let tenant = wish.tenant.as_ref().map_or("", |tenant| tenant.as_str());
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
            NoSlot::Taken | NoSlot::Pooled(_) => {
                let name = wish.asked.map_or("the slot".to_owned(), |slot| self.pool.name(slot).into());
                name_taken(&name, "it is in use, quarantined or not ours").retry_after(patience)
            }
        }
    }
}

fn name_taken(name: &str, why: &str) -> RpcError {
    RpcError::new(
        ErrorCode::NameTaken,
        format!("{name} is not free: {why}"),
        "leave name out to get any free slot; hostctl ls --all shows who has this one",
    )
}
