//! What the last inspection of a slot showed, for the steps that follow it at once.
//!
//! A destroy inspects its slot and then removes one part after the other. Without this each step would list the same objects
//! again. Between an inspection and a step only hostd's own steps of this slot change its objects, one at a time. A look is
//! used for a few seconds, and a step that changes something forgets that part of it. Processes are never taken from it.

use super::interfaces::Interface;
use super::inventory::HostLists;
use super::jails::{self, Jail};
use super::mounts::{self, Mount};
use super::{FreebsdState, network};
use crate::host::HostResult;
use crate::slot::{Slot, SlotNames};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a look is used.
const LASTS: Duration = Duration::from_secs(5);

/// The slot's own objects. `None`: not inspected, or changed since.
#[derive(Debug)]
struct Look {
    taken: Instant,
    jail: Option<Option<Jail>>,
    interfaces: Option<Vec<Interface>>,
    mounts: Option<Vec<Mount>>,
}

/// The last look at each slot.
#[derive(Debug, Default)]
pub(super) struct RecentLooks(Mutex<BTreeMap<Slot, Look>>);

impl RecentLooks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Slot, Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keep what an inspection of this slot showed.
    pub(super) fn keep(&self, names: &SlotNames, network: &network::PairNames, lists: &HostLists) {
        let look = Look {
            taken: Instant::now(),
            jail: lists.jails.as_ref().map(|all| jails::of(all, names).cloned()),
            interfaces: lists
                .interfaces
                .as_ref()
                .map(|all| network.of(all, names).into_iter().cloned().collect()),
            mounts: lists.mounts.as_ref().map(|all| mounts::below(all, names).into_iter().cloned().collect()),
        };
        let mut looks = self.lock();
        looks.retain(|_, look| look.taken.elapsed() < LASTS);
        looks.insert(names.slot, look);
    }

    fn of<T>(&self, slot: Slot, part: impl FnOnce(&Look) -> Option<T>) -> Option<T> {
        self.lock().get(&slot).filter(|look| look.taken.elapsed() < LASTS).and_then(part)
    }

    /// Everything in the slot may have changed.
    pub(super) fn forget(&self, slot: Slot) {
        self.lock().remove(&slot);
    }

    /// The slot's interfaces were destroyed.
    pub(super) fn interfaces_destroyed(&self, slot: Slot) {
        if let Some(look) = self.lock().get_mut(&slot) {
            look.interfaces = Some(Vec::new());
        }
    }

    /// The slot's mounts may have changed.
    pub(super) fn forget_mounts(&self, slot: Slot) {
        if let Some(look) = self.lock().get_mut(&slot) {
            look.mounts = None;
        }
    }
}

impl FreebsdState {
    /// The slot's jail: a live one if there is one, else a dying one.
    pub(super) async fn own_jail(&self, names: &SlotNames) -> HostResult<Option<Jail>> {
        match self.looks.of(names.slot, |look| look.jail.clone()) {
            Some(jail) => Ok(jail),
            None => Ok(jails::of(&self.jails().await?, names).cloned()),
        }
    }

    /// The slot's interfaces, in the order in which they are to be destroyed.
    pub(super) async fn own_interfaces(&self, names: &SlotNames) -> HostResult<Vec<Interface>> {
        match self.looks.of(names.slot, |look| look.interfaces.clone()) {
            Some(interfaces) => Ok(interfaces),
            None => {
                let all = self.interfaces_for(names).await?;
                Ok(self.network.of(&all, names).into_iter().cloned().collect())
            }
        }
    }

    /// The mounts below the slot's folder, in the order in which they are to be unmounted.
    pub(super) async fn own_mounts(&self, names: &SlotNames) -> HostResult<Vec<Mount>> {
        match self.looks.of(names.slot, |look| look.mounts.clone()) {
            Some(mounts) => Ok(mounts),
            None => Ok(mounts::below(&self.mounts().await?, names).into_iter().cloned().collect()),
        }
    }
}
