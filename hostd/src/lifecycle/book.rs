//! The book: the records in memory, who is working on what, and which slot is next.
//!
//! The records' owner is the state folder; the book is its copy, changed together with it. What was
//! last seen of the host is kept for lists and for choosing a slot, never as proof of anything.

use super::tally::Tally;
use crate::api::{CloneState, EgressHealth, RequestId, Tenant};
use crate::clock::Moment;
use crate::host::Inventory;
use crate::record::{Record, StoredRecord};
use crate::slot::{Slot, Slots};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The book.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) records: BTreeMap<Slot, Record>,
    pub(super) unreadable: BTreeMap<Slot, String>,
    /// Slots somebody is working on.
    pub(super) working: BTreeSet<Slot>,
    /// The host when last looked at as a whole.
    pub(super) seen: Inventory,
    /// Whether it was looked at at all.
    pub(super) looked: bool,
    /// State and problem of every known slot when last looked at.
    pub(super) assessments: BTreeMap<Slot, (CloneState, Option<String>)>,
    /// What an operator should know.
    pub(super) alarms: BTreeMap<&'static str, String>,
    /// New operations are refused.
    pub(super) closing: bool,
    /// What the warm pool's snapshot of the template was when last looked at.
    pub(super) template: Option<String>,
    /// Members of the warm pool that an earlier process made and this one has not proven yet.
    pub(super) unproven: BTreeSet<Slot>,
    /// What the warm pool did so far.
    pub(super) tally: Tally,
    first_seen: BTreeMap<Slot, Duration>,
    freed: BTreeMap<Slot, u64>,
    frees: u64,
    locks: BTreeMap<Slot, Arc<tokio::sync::Mutex<()>>>,
}

/// Why no slot can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// The host has as many clones as it may.
    HostFull,
    /// The tenant has as many clones as it may.
    TenantFull,
    /// The slot asked for is not free.
    Taken,
    /// No slot is free: in use, quarantined, or something is in them.
    NoneFree,
    /// This member of the warm pool has the place, and gives it up.
    Pooled(Slot),
}

/// How many clones there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caps {
    pub(super) host: u64,
    pub(super) tenant: u64,
}

/// Slots that the warm pool leaves free for others.
const SPARE_SLOTS: usize = 1;

impl Book {
    pub(super) fn new(found: BTreeMap<Slot, StoredRecord>) -> Book {
        let (mut records, mut unreadable) = (BTreeMap::<Slot, Record>::new(), BTreeMap::new());
        for (slot, found) in found {
            match found {
                StoredRecord::Record(record) => drop(records.insert(slot, *record)),
                StoredRecord::Unreadable(why) => drop(unreadable.insert(slot, why)),
            }
        }
        let unproven = records.values().filter(|record| record.pooled().is_some()).map(|record| record.slot);
        Book {
            unproven: unproven.collect(),
            records,
            unreadable,
            working: BTreeSet::new(),
            seen: Inventory { clones: BTreeMap::new(), aside: BTreeSet::new(), egress: EgressHealth::Ok },
            looked: false,
            assessments: BTreeMap::new(),
            alarms: BTreeMap::new(),
            closing: false,
            template: None,
            tally: Tally::default(),
            first_seen: BTreeMap::new(),
            freed: BTreeMap::new(),
            frees: 0,
            locks: BTreeMap::new(),
        }
    }

    /// The queue of a slot: operations on one clone run one after the other.
    pub(super) fn lock_of(&mut self, slot: Slot) -> Arc<tokio::sync::Mutex<()>> {
        self.locks.entry(slot).or_default().clone()
    }

    /// The record a request made, the latest if several are known.
    pub(super) fn by_request(&self, request: &RequestId) -> Option<&Record> {
        let mine = self.records.values().filter(|record| record.request_id.as_ref() == Some(request));
        // A rolled-back attempt leaves a quarantined record; a later attempt's record says more.
        mine.max_by_key(|record| (record.is_live(), record.was_ready()))
    }

    /// Whether host and tenant may have one clone more. Members of the warm pool do not count: they give way.
    pub(super) fn within_caps(&self, tenant: Option<&Tenant>, caps: Caps) -> Result<(), NoSlot> {
        let claimed = || self.records.values().filter(|record| record.is_claimed());
        if claimed().count() as u64 >= caps.host {
            return Err(NoSlot::HostFull);
        }
        let of_tenant = || claimed().filter(|record| record.tenant.as_ref() == tenant);
        if tenant.is_some() && of_tenant().count() as u64 >= caps.tenant {
            return Err(NoSlot::TenantFull);
        }
        Ok(())
    }

    /// A free slot for a caller: the one freed longest ago, or the one asked for.
    pub(super) fn free_slot(
        &self,
        pool: &Slots,
        asked: Option<Slot>,
        tenant: Option<&Tenant>,
        caps: Caps,
        not: &BTreeSet<Slot>,
    ) -> Result<Slot, NoSlot> {
        self.within_caps(tenant, caps)?;
        if let Some(slot) = asked {
            let pooled = self.records.get(&slot).is_some_and(|record| record.pooled().is_some());
            return match self.is_free(slot) && !not.contains(&slot) {
                true => Ok(slot),
                false if pooled => Err(NoSlot::Pooled(slot)),
                false => Err(NoSlot::Taken),
            };
        }
        // The one that would be too old first.
        let pooled = self.records.values().filter(|record| record.pooled().is_some());
        let gives_way = pooled.min_by_key(|record| record.deadline.mono_ms).map(|record| record.slot);
        if let Some(slot) = gives_way
            && self.live() >= caps.host
        {
            return Err(NoSlot::Pooled(slot));
        }
        let oldest = self.freed_longest_ago(pool, not);
        oldest.ok_or_else(|| gives_way.map_or(NoSlot::NoneFree, NoSlot::Pooled))
    }

    /// A free slot for the warm pool, which takes neither the last slot nor the last place.
    pub(super) fn spare_slot(&self, pool: &Slots, most: u64, not: &BTreeSet<Slot>) -> Result<Slot, NoSlot> {
        if self.live() >= most {
            return Err(NoSlot::HostFull);
        }
        if pool.slots().filter(|slot| self.is_free(*slot)).count() <= SPARE_SLOTS {
            return Err(NoSlot::NoneFree);
        }
        self.freed_longest_ago(pool, not).ok_or(NoSlot::NoneFree)
    }

    /// All clones, those of the warm pool included.
    fn live(&self) -> u64 {
        self.records.values().filter(|record| record.is_live()).count() as u64
    }

    fn is_free(&self, slot: Slot) -> bool {
        !self.records.contains_key(&slot)
            && !self.unreadable.contains_key(&slot)
            && !self.working.contains(&slot)
            && !self.seen.clones.contains_key(&slot)
    }

    fn freed_longest_ago(&self, pool: &Slots, not: &BTreeSet<Slot>) -> Option<Slot> {
        let free = pool.slots().filter(|slot| self.is_free(*slot) && !not.contains(slot));
        free.min_by_key(|slot| (self.freed.get(slot).copied().unwrap_or(0), *slot))
    }

    /// What the last look showed of a slot is over.
    pub(super) fn forget_look(&mut self, slot: Slot) {
        self.seen.clones.remove(&slot);
        self.assessments.remove(&slot);
    }

    /// Remember that a slot was freed now, so that it is taken last.
    pub(super) fn mark_freed(&mut self, slot: Slot) {
        self.frees += 1;
        self.freed.insert(slot, self.frees);
    }

    /// Take in a look at the whole host.
    pub(super) fn look(&mut self, seen: Inventory, now: &Moment) {
        let unrecorded = seen.clones.keys().chain(self.unreadable.keys()).copied();
        let unrecorded: BTreeSet<Slot> = unrecorded.filter(|slot| !self.records.contains_key(slot)).collect();
        self.first_seen.retain(|slot, _| unrecorded.contains(slot));
        for slot in unrecorded {
            self.first_seen.entry(slot).or_insert(now.mono);
        }
        self.seen = seen;
        self.looked = true;
    }

    /// Set or clear one of the things an operator should know.
    pub(super) fn set_alarm(&mut self, about: &'static str, alarm: Option<String>) {
        match alarm {
            Some(text) if self.alarms.get(about) == Some(&text) => {}
            Some(text) => {
                tracing::error!(about, alarm = text, "alarm");
                self.alarms.insert(about, text);
            }
            None => drop(self.alarms.remove(about)),
        }
    }

    /// Since when each slot without a readable record has been seen with something in it.
    pub(super) fn seen_for(&self, now: &Moment) -> BTreeMap<Slot, Duration> {
        self.first_seen.iter().map(|(slot, since)| (*slot, now.mono.saturating_sub(*since))).collect()
    }
}
