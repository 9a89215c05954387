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
    /// When a step changed something in the slot last. An inspection that began before that is not kept.
    changed: Option<Instant>,
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

    /// Keep what an inspection of this slot, begun at this time, showed.
    pub(super) fn keep(
        &self,
        began: Instant,
        names: &SlotNames,
        network: &network::PairNames,
        lists: &HostLists,
    ) {
        if lists.jails.is_none() && lists.interfaces.is_none() && lists.mounts.is_none() {
            return;
        }
        let interfaces = lists.interfaces.as_ref();
        let look = Look {
            taken: Instant::now(),
            changed: None,
            jail: lists.jails.as_ref().map(|all| jails::of(all, names).cloned()),
            interfaces: interfaces.map(|all| network.of(all, names).into_iter().cloned().collect()),
            mounts: lists.mounts.as_ref().map(|all| mounts::below(all, names).into_iter().cloned().collect()),
        };
        let mut looks = self.lock();
        looks.retain(|_, look| look.taken.elapsed() < LASTS);
        let outdated = looks.get(&names.slot).and_then(|last| last.changed).is_some_and(|at| at > began);
        if !outdated {
            looks.insert(names.slot, look);
        }
    }

    fn of<T>(&self, slot: Slot, part: impl FnOnce(&Look) -> Option<T>) -> Option<T> {
        self.lock().get(&slot).filter(|look| look.taken.elapsed() < LASTS).and_then(part)
    }

    fn change(&self, slot: Slot, change: impl FnOnce(&mut Look)) {
        let now = Instant::now();
        let mut looks = self.lock();
        let look = looks.entry(slot).or_insert(Look {
            taken: now,
            changed: None,
            jail: None,
            interfaces: None,
            mounts: None,
        });
        look.changed = Some(now);
        change(look);
    }

    /// Everything in the slot may have changed.
    pub(super) fn forget(&self, slot: Slot) {
        self.change(slot, |look| (look.jail, look.interfaces, look.mounts) = (None, None, None));
    }

    /// The slot's interfaces were destroyed.
    pub(super) fn interfaces_destroyed(&self, slot: Slot) {
        self.change(slot, |look| look.interfaces = Some(Vec::new()));
    }

    /// The slot's mounts may have changed.
    pub(super) fn forget_mounts(&self, slot: Slot) {
        self.change(slot, |look| look.mounts = None);
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
