//! The registry: the records on disk and in memory, and which slot is taken next.
//!
//! It is the only writer of records. A write needs the [`SlotTurn`] of its slot, which only the slot's task has, so two
//! operations never write the record of one slot. Reservations are made in memory under one lock, so two creates never
//! get the same slot or the same member of the warm pool, and caps hold.
//!
//! The last inspection of the host is kept for lists and for choosing a slot. It is never a proof of anything.

use super::slot_task::SlotTurn;
use crate::api::{CloneState, EgressHealth, RequestId, Tenant};
use crate::clock::Moment;
use crate::host::{Inventory, ObservedClone};
use crate::record::{Record, Store, StoredRecord};
use crate::slot::{Slot, Slots};
use crate::timing;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::Instrument;

/// Slots that the warm pool leaves free for callers.
const SPARE_SLOTS: usize = 1;

/// The registry.
pub(super) struct Registry {
    store: Arc<Store>,
    /// The last write failed.
    failing: AtomicBool,
    state: Mutex<RegistryState>,
}

/// What the registry knows. Readers get it by [`Registry::read`]; only this file changes it.
#[derive(Debug)]
pub(super) struct RegistryState {
    pub(super) records: BTreeMap<Slot, Record>,
    pub(super) unreadable: BTreeMap<Slot, String>,
    /// The host as last inspected; `None` until the first inspection.
    pub(super) inspected: Option<Inventory>,
    /// State and problem of every known slot at the last inspection.
    pub(super) assessed: BTreeMap<Slot, (CloneState, Option<String>)>,
    /// When a slot without a readable record was first seen with something in it.
    first_seen: BTreeMap<Slot, Duration>,
    /// In which order slots were freed.
    freed: BTreeMap<Slot, u64>,
    frees: u64,
    /// Slots whose file on disk is not what memory says, because a write failed.
    unsaved: BTreeSet<Slot>,
    /// The revision in which each slot's record was changed last.
    changed: BTreeMap<Slot, u64>,
    revision: u64,
}

/// Why no slot can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// The host has as many clones as it may have.
    HostFull,
    /// The tenant has as many clones as it may have.
    TenantFull,
    /// The requested slot is not free.
    Taken,
    /// No slot is free: all are in use or quarantined, or something is in them.
    NoneFree,
    /// This member of the warm pool must be evicted first.
    Evict(Slot),
}

/// How many clones there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caps {
    pub(super) host: u64,
    pub(super) tenant: u64,
}

/// The state, for reading only.
pub(super) struct StateReader<'a>(MutexGuard<'a, RegistryState>);

impl Deref for StateReader<'_> {
    type Target = RegistryState;
    fn deref(&self) -> &RegistryState {
        &self.0
    }
}

impl Registry {
    pub(super) fn new(store: Store, found: BTreeMap<Slot, StoredRecord>) -> Registry {
        let (mut records, mut unreadable) = (BTreeMap::<Slot, Record>::new(), BTreeMap::new());
        for (slot, found) in found {
            match found {
                StoredRecord::Record(record) => drop(records.insert(slot, *record)),
                StoredRecord::Unreadable(why) => {
                    tracing::error!(%slot, why, "a record cannot be read; its clone is treated as an orphan");
                    unreadable.insert(slot, why);
                }
            }
        }
        let state = RegistryState {
            records,
            unreadable,
            inspected: None,
            assessed: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            freed: BTreeMap::new(),
            frees: 0,
            unsaved: BTreeSet::new(),
            changed: BTreeMap::new(),
            revision: 0,
        };
        Registry { store: Arc::new(store), failing: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// The records' folder, so that tests can crash in the middle of a write.
    #[cfg(feature = "fake-host")]
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self) -> StateReader<'_> {
        StateReader(self.lock())
    }

    /// The record of a slot.
    pub(super) fn record(&self, slot: Slot) -> Option<Record> {
        self.lock().records.get(&slot).cloned()
    }

    /// Reserve a slot or a member: `choose` returns the record that the slot shall have, in memory only, and is atomic.
    pub(super) fn reserve<E>(
        &self,
        choose: impl FnOnce(&RegistryState) -> Result<Option<Record>, E>,
    ) -> Result<Option<Record>, E> {
        let mut state = self.lock();
        let reserved = choose(&state)?;
        if let Some(record) = &reserved {
            state.put(record.clone());
        }
        Ok(reserved)
    }

    /// Make the record of a reserved slot on disk: the claim. It is synced before this returns. On failure the reservation
    /// is gone.
    pub(super) async fn claim(&self, turn: &SlotTurn, record: &Record) -> io::Result<()> {
        turn.check(record.slot);
        let (store, copy) = (self.store.clone(), record.clone());
        let claimed = self.on_disk(move || store.claim(&copy)).instrument(timing::part("record")).await;
        if let Err(error) = &claimed {
            self.lock().drop_record(record.slot);
            // The file may be there although its folder could not be synced.
            if error.kind() != io::ErrorKind::AlreadyExists {
                let (store, slot) = (self.store.clone(), record.slot);
                let removed = blocking(move || store.remove(slot)).await;
                self.note_saved(slot, removed.is_ok());
            }
        }
        claimed
    }

    /// Write a record, on disk first. If that fails, memory is unchanged.
    pub(super) async fn save(&self, turn: &SlotTurn, record: &Record) -> io::Result<()> {
        self.write(turn, record).await?;
        self.remember(turn, record.clone());
        Ok(())
    }

    /// Record a step of a removal: in memory always, on disk if that is possible now. A removal never waits for a disk that
    /// works, and the timer writes the record later.
    pub(super) async fn save_removal(&self, turn: &SlotTurn, record: &Record) -> io::Result<()> {
        let written = self.write(turn, record).await;
        self.remember(turn, record.clone());
        self.note_saved(record.slot, written.is_ok());
        written
    }

    async fn write(&self, turn: &SlotTurn, record: &Record) -> io::Result<()> {
        turn.check(record.slot);
        let (store, copy) = (self.store.clone(), record.clone());
        self.on_disk(move || store.save(&copy)).instrument(timing::part("record")).await
    }

    /// Run a write off the threads that serve callers, and remember whether it succeeded.
    async fn on_disk(&self, write: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let written = blocking(write).await;
        self.failing.store(written.is_err(), Ordering::Relaxed);
        written
    }

    /// Make the file of a slot what memory says.
    pub(super) async fn write_again(&self, turn: &SlotTurn, slot: Slot) -> io::Result<()> {
        let written = match self.record(slot) {
            Some(record) => self.write(turn, &record).await,
            None => {
                let store = self.store.clone();
                self.on_disk(move || store.remove(slot)).await
            }
        };
        self.note_saved(slot, written.is_ok());
        written
    }

    /// The slots whose file is missing or is not what memory says. An error: records cannot be read or written now.
    pub(super) async fn unsaved(&self) -> io::Result<BTreeSet<Slot>> {
        let store = self.store.clone();
        let failing = self.failing.load(Ordering::Relaxed);
        let look = move || {
            store.prepare()?;
            if failing {
                store.probe()?;
            }
            store.slots()
        };
        let on_disk = blocking(look).await?;
        self.failing.store(false, Ordering::Relaxed);
        let state = self.lock();
        let missing = state.records.keys().filter(|slot| !on_disk.contains(slot));
        Ok(missing.chain(&state.unsaved).copied().collect())
    }

    /// What is wrong with the files of slots that are not busy, if anything. Nothing is written.
    pub(super) async fn problem(&self, busy: &BTreeSet<Slot>) -> Option<String> {
        let store = self.store.clone();
        let on_disk = match blocking(move || store.slots()).await {
            Ok(slots) => slots,
            Err(error) => return Some(error.to_string()),
        };
        if self.failing.load(Ordering::Relaxed) {
            return Some("the last write failed".to_owned());
        }
        let state = self.lock();
        let lacks = |slot: &&Slot| !on_disk.contains(slot) && !busy.contains(slot);
        let missing = state.records.keys().filter(lacks).count();
        match (missing, state.unsaved.len()) {
            (0, 0) => None,
            (missing, unsaved) => {
                Some(format!("{missing} records have no file, and {unsaved} could not be written"))
            }
        }
    }

    fn note_saved(&self, slot: Slot, saved: bool) {
        let mut state = self.lock();
        match saved {
            true => state.unsaved.remove(&slot),
            false => state.unsaved.insert(slot),
        };
    }

    /// Change a record in memory only.
    pub(super) fn remember(&self, turn: &SlotTurn, record: Record) {
        turn.check(record.slot);
        let mut state = self.lock();
        state.unreadable.remove(&record.slot);
        state.put(record);
    }

    /// Remove the record of a slot whose clone is gone or never began. If that fails, memory is unchanged.
    pub(super) async fn remove(&self, turn: &SlotTurn, slot: Slot) -> io::Result<()> {
        turn.check(slot);
        let store = self.store.clone();
        self.on_disk(move || store.remove(slot)).await?;
        let mut state = self.lock();
        state.unsaved.remove(&slot);
        state.drop_record(slot);
        Ok(())
    }

    /// Forget what the last inspection showed of a slot. `left` is what is in the slot now, with its assessment.
    pub(super) fn forget_inspection(
        &self,
        slot: Slot,
        left: Option<(ObservedClone, CloneState, Option<String>)>,
    ) {
        let mut state = self.lock();
        state.assessed.remove(&slot);
        if let Some(inspected) = &mut state.inspected {
            inspected.clones.remove(&slot);
        }
        if let Some((observed, clone_state, problem)) = left {
            state.assessed.insert(slot, (clone_state, problem));
            if let Some(inspected) = &mut state.inspected {
                inspected.clones.insert(slot, observed);
            }
        }
    }

    /// A slot was freed now, so it is taken last.
    pub(super) fn mark_freed(&self, slot: Slot) {
        let mut state = self.lock();
        state.frees += 1;
        let number = state.frees;
        state.freed.insert(slot, number);
    }

    /// Keep an inspection of the whole host, and assess it under the same lock. `began` is the revision before it, and
    /// `busy` are the slots that were busy during it: what it shows of a slot that changed meanwhile may be outdated, so
    /// nothing of that is kept.
    pub(super) fn take_inventory<T>(
        &self,
        mut inventory: Inventory,
        now: &Moment,
        began: u64,
        mut busy: BTreeSet<Slot>,
        assess: impl FnOnce(
            &RegistryState,
            &Inventory,
            &BTreeSet<Slot>,
        ) -> (BTreeMap<Slot, (CloneState, Option<String>)>, T),
    ) -> T {
        let mut state = self.lock();
        busy.extend(state.changed_since(began));
        let unrecorded = inventory.clones.keys().chain(state.unreadable.keys()).copied();
        let unrecorded: BTreeSet<Slot> =
            unrecorded.filter(|slot| !state.records.contains_key(slot)).collect();
        state.first_seen.retain(|slot, _| unrecorded.contains(slot));
        for slot in unrecorded {
            state.first_seen.entry(slot).or_insert(now.mono);
        }
        let (assessed, result) = assess(&state, &inventory, &busy);
        for slot in busy {
            match state.inspected.as_mut().and_then(|before| before.clones.remove(&slot)) {
                Some(before) => drop(inventory.clones.insert(slot, before)),
                None => drop(inventory.clones.remove(&slot)),
            }
        }
        state.assessed = assessed;
        state.inspected = Some(inventory);
        result
    }
}

impl RegistryState {
    fn put(&mut self, record: Record) {
        self.touch(record.slot);
        self.records.insert(record.slot, record);
    }

    fn drop_record(&mut self, slot: Slot) {
        self.touch(slot);
        self.records.remove(&slot);
    }

    fn touch(&mut self, slot: Slot) {
        self.revision += 1;
        self.changed.insert(slot, self.revision);
    }

    /// The number of changes of records so far.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The slots whose record changed since that revision.
    pub(super) fn changed_since(&self, revision: u64) -> impl Iterator<Item = Slot> {
        self.changed.iter().filter(move |(_, changed)| **changed > revision).map(|(slot, _)| *slot)
    }

    /// The record that a user's request made, the latest if several are known. Users do not share request ids.
    pub(super) fn by_request(&self, owner: Option<u32>, request: &RequestId) -> Option<&Record> {
        let same = self.records.values().filter(|record| record.is_of(owner, request));
        // A rolled-back attempt leaves a quarantined record; the record of a later attempt is the one that counts.
        same.max_by_key(|record| (record.is_live(), record.was_ready()))
    }

    /// The members of the warm pool.
    pub(super) fn members(&self) -> impl Iterator<Item = &Record> {
        self.records.values().filter(|record| record.pooled().is_some())
    }

    /// How the packet filter was at the last inspection.
    pub(super) fn egress(&self) -> EgressHealth {
        self.inspected.as_ref().map_or(EgressHealth::Ok, |inspected| inspected.egress)
    }

    /// What the last inspection showed of a slot.
    pub(super) fn observed(&self, slot: Slot) -> Option<&ObservedClone> {
        self.inspected.as_ref().and_then(|inspected| inspected.clones.get(&slot))
    }

    /// How long each slot without a readable record has been seen with something in it.
    pub(super) fn seen_for(&self, now: &Moment) -> BTreeMap<Slot, Duration> {
        self.first_seen.iter().map(|(slot, since)| (*slot, now.mono.saturating_sub(*since))).collect()
    }

    /// Whether host and tenant may have one clone more. Members of the warm pool do not count: they are evicted. Tenants
    /// are counted for each owner, so that no user can use up the tenant of another.
    pub(super) fn within_caps(
        &self,
        owner: Option<u32>,
        tenant: Option<&Tenant>,
        caps: Caps,
    ) -> Result<(), NoSlot> {
        let claimed = || self.records.values().filter(|record| record.is_claimed());
        if claimed().count() as u64 >= caps.host {
            return Err(NoSlot::HostFull);
        }
        let of_tenant =
            || claimed().filter(|record| record.owner_uid == owner && record.tenant.as_ref() == tenant);
        if tenant.is_some() && of_tenant().count() as u64 >= caps.tenant {
            return Err(NoSlot::TenantFull);
        }
        Ok(())
    }

    /// A free slot for a caller: the one freed longest ago.
    pub(super) fn free_slot(
        &self,
        slots: &Slots,
        caps: Caps,
        excluded: impl Fn(Slot) -> bool,
    ) -> Result<Slot, NoSlot> {
        // The member that would be too old first is evicted first.
        let evicted = self.members().min_by_key(|record| record.deadline.mono_ms).map(|record| record.slot);
        if let Some(slot) = evicted
            && self.live() >= caps.host
        {
            return Err(NoSlot::Evict(slot));
        }
        let oldest = self.freed_longest_ago(slots, excluded);
        oldest.ok_or_else(|| evicted.map_or(NoSlot::NoneFree, NoSlot::Evict))
    }

    /// The requested slot, if it is free.
    pub(super) fn requested_slot(&self, slot: Slot) -> Result<Slot, NoSlot> {
        let member = self.records.get(&slot).is_some_and(|record| record.pooled().is_some());
        match self.is_free(slot) {
            true => Ok(slot),
            false if member => Err(NoSlot::Evict(slot)),
            false => Err(NoSlot::Taken),
        }
    }

    /// A free slot for the warm pool, which takes neither the last slot nor the last clone of the cap.
    pub(super) fn spare_slot(
        &self,
        slots: &Slots,
        most: u64,
        excluded: impl Fn(Slot) -> bool,
    ) -> Result<Slot, NoSlot> {
        if self.live() >= most {
            return Err(NoSlot::HostFull);
        }
        if slots.slots().filter(|slot| self.is_free(*slot)).count() <= SPARE_SLOTS {
            return Err(NoSlot::NoneFree);
        }
        self.freed_longest_ago(slots, excluded).ok_or(NoSlot::NoneFree)
    }

    /// All clones, those of the warm pool included.
    fn live(&self) -> u64 {
        self.records.values().filter(|record| record.is_live()).count() as u64
    }

    fn is_free(&self, slot: Slot) -> bool {
        !self.records.contains_key(&slot)
            && !self.unreadable.contains_key(&slot)
            && self.observed(slot).is_none()
    }

    fn freed_longest_ago(&self, slots: &Slots, excluded: impl Fn(Slot) -> bool) -> Option<Slot> {
        let free = slots.slots().filter(|slot| self.is_free(*slot) && !excluded(*slot));
        free.min_by_key(|slot| (self.freed.get(slot).copied().unwrap_or(0), *slot))
    }
}

/// Run something that waits for the disk, off the threads that serve callers.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(died) if died.is_panic() => std::panic::resume_unwind(died.into_panic()),
        // The runtime is shutting down, and with it everything that could use the result.
        Err(_) => std::future::pending().await,
    }
}
