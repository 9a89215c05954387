//! Slots without entries in connection tracking.
//!
//! A slot without a link and without membership cannot get new entries while the rules are proven. After its entries were
//! seen to be gone, they need not be looked for again: that would read the whole table of the host.

use crate::slot::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// The slots that are known to have no entries.
#[derive(Debug, Default)]
pub(super) struct UntrackedSlots {
    slots: BTreeSet<Slot>,
    /// When each slot last got a link or a membership.
    connected: BTreeMap<Slot, Moment>,
    last: Moment,
}

/// A point in the order of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Moment(u64);

impl UntrackedSlots {
    /// The moment before an inspection, for [`UntrackedSlots::confirm`].
    pub(super) fn now(&self) -> Moment {
        self.last
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.slots.contains(&slot)
    }

    /// The slot gets a link or a membership, so entries can appear.
    pub(super) fn connect(&mut self, slot: Slot) {
        self.last.0 += 1;
        self.slots.remove(&slot);
        self.connected.insert(slot, self.last);
    }

    /// An inspection that began at this moment found the slot without link, membership and entries. It does not count if
    /// the slot got a link or a membership after the inspection began.
    pub(super) fn confirm(&mut self, slot: Slot, began: Moment) {
        if self.connected.get(&slot).is_none_or(|connected| *connected <= began) {
            self.slots.insert(slot);
        }
    }

    /// The rules changed: every slot may have got entries.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inspection_does_not_count_for_a_slot_that_got_its_link_meanwhile() {
        let slot = Slot::try_from(7).unwrap();
        let mut untracked = UntrackedSlots::default();
        untracked.confirm(slot, untracked.now());
        assert!(untracked.contains(slot), "it never had a link");
        untracked.connect(slot);
        assert!(!untracked.contains(slot));
        let began = untracked.now();
        untracked.confirm(slot, began);
        assert!(untracked.contains(slot), "the inspection began after its last link");
        untracked.clear();
        untracked.connect(slot);
        untracked.confirm(slot, began);
        assert!(!untracked.contains(slot), "the inspection began before it");
    }
}
