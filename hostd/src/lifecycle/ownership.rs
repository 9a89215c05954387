//! Which of the objects in a slot may be removed.
//!
//! Objects with the clone's label may be, and unlabelled objects in a slot whose record hostd holds. Objects with another
//! label, foreign objects, and objects that depend on either are never touched.

use crate::api::CloneId;
use crate::host::{Identity, ObservedClone, ObservedJail, ObservedNetwork, ObservedStorage};

/// Why objects in a slot may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ownership<'a> {
    /// They belong to this clone.
    Clone(&'a CloneId),
    /// hostd holds the slot, but its record does not name the clone: objects with any clone's label, or without one.
    Slot,
}

impl Ownership<'_> {
    fn covers(self, identity: &Identity) -> bool {
        match (self, identity) {
            (Ownership::Clone(mine), Identity::Clone(id)) => mine == id,
            (Ownership::Slot, Identity::Clone(_)) | (_, Identity::Unmarked) => true,
            (_, Identity::Foreign(_)) => false,
        }
    }

    /// The part of the inspection that may be removed.
    pub(super) fn filter(self, seen: &ObservedClone) -> ObservedClone {
        let storage = seen.storage.as_ref();
        let jail = seen.jail.as_ref();
        let network = seen.network.as_ref();
        let my_storage = storage.filter(|storage: &&ObservedStorage| self.covers(&storage.identity));
        let my_network = network.filter(|network: &&ObservedNetwork| self.covers(&network.identity));
        // A dying jail cannot be removed by anybody; the walk waits for it.
        let my_jail = jail.filter(|jail: &&ObservedJail| jail.dying || self.covers(&jail.identity));
        let others_storage = storage.is_some() && my_storage.is_none();
        let others_jail = jail.is_some() && my_jail.is_none();
        ObservedClone {
            storage: my_storage.cloned(),
            // Mounts depend on the storage; limits and processes depend on the jail.
            mounts: if others_storage { Default::default() } else { seen.mounts.clone() },
            limits: if others_jail { None } else { seen.limits },
            oom_kills: if others_jail { 0 } else { seen.oom_kills },
            network: my_network.cloned(),
            // Only hostd uses the table, so every address of a slot in it is hostd's.
            egress: seen.egress,
            connections: seen.connections,
            jail: my_jail.cloned(),
            frozen: seen.frozen && my_jail.is_some(),
            processes: if others_jail { Default::default() } else { seen.processes.clone() },
            service_ready: seen.service_ready && !others_jail,
        }
    }

    /// Why nothing in the slot may be unmounted or destroyed: a jail that is not this clone's may use it.
    pub(super) fn held(self, seen: &ObservedClone) -> Option<String> {
        let jail = seen.jail.as_ref().filter(|jail| !jail.dying && !self.covers(&jail.identity))?;
        let whose = match &jail.identity {
            Identity::Foreign(why) => why.clone(),
            Identity::Clone(id) => format!("the jail is the clone {id}'s"),
            Identity::Unmarked => return None,
        };
        Some(format!("something that is not ours may run from it ({whose}): stop that first"))
    }
}

/// Why an object in the slot is foreign, if one is.
pub(super) fn foreign(seen: &ObservedClone) -> Option<String> {
    let identities = [
        ("storage", seen.storage.as_ref().map(|storage| &storage.identity)),
        ("jail", seen.jail.as_ref().filter(|jail| !jail.dying).map(|jail| &jail.identity)),
        ("network", seen.network.as_ref().map(|network| &network.identity)),
    ];
    identities.into_iter().find_map(|(what, identity)| match identity {
        Some(Identity::Foreign(why)) => Some(format!("{what}: {why}")),
        _ => None,
    })
}

/// The first clone's label on an object in the slot, if there is one.
pub(super) fn mark(seen: &ObservedClone) -> Option<&CloneId> {
    let identities = [
        seen.storage.as_ref().map(|storage| &storage.identity),
        seen.network.as_ref().map(|network| &network.identity),
        seen.jail.as_ref().map(|jail| &jail.identity),
    ];
    identities.into_iter().flatten().find_map(|identity| match identity {
        Identity::Clone(id) => Some(id),
        _ => None,
    })
}

/// Whether only a dying jail is left: the clone is gone, but the slot cannot be used yet.
pub(super) fn only_dying(seen: &ObservedClone) -> bool {
    let rest = ObservedClone { jail: None, ..seen.clone() };
    seen.jail.as_ref().is_some_and(|jail| jail.dying) && rest.is_absent()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Limits;
    use crate::host::Part;
    use std::collections::BTreeSet;

    fn id(digit: char) -> CloneId {
        CloneId::try_from(digit.to_string().repeat(32)).unwrap()
    }

    fn theirs() -> Identity {
        Identity::Foreign("made by hand".into())
    }

    /// A whole clone whose three bearers of identity are these.
    fn seen(storage: Identity, network: Identity, jail: Identity) -> ObservedClone {
        ObservedClone {
            storage: Some(ObservedStorage { identity: storage, snapshot: None, mounted: true, age: None }),
            mounts: BTreeSet::from(["dev".to_owned()]),
            oom_kills: 0,
            limits: Some(Limits::default()),
            network: Some(ObservedNetwork { identity: network, complete: true }),
            egress: true,
            connections: true,
            jail: Some(ObservedJail { identity: jail, dying: false }),
            frozen: true,
            processes: BTreeSet::from([7]),
            service_ready: true,
        }
    }

    fn whole(owner: char) -> ObservedClone {
        seen(Identity::Clone(id(owner)), Identity::Clone(id(owner)), Identity::Clone(id(owner)))
    }

    #[test]
    fn a_clone_owns_what_carries_its_mark_or_none() {
        let mine = id('a');
        assert_eq!(Ownership::Clone(&mine).filter(&whole('a')), whole('a'));
        let unmarked = seen(Identity::Unmarked, Identity::Unmarked, Identity::Unmarked);
        assert_eq!(Ownership::Clone(&mine).filter(&unmarked), unmarked);
        assert_eq!(Ownership::Clone(&mine).filter(&ObservedClone::default()), ObservedClone::default());
        let left = Ownership::Clone(&mine).filter(&whole('b'));
        assert_eq!(left.parts(), [Part::Egress], "of another clone only our own table's entry is ours");
        assert!(left.egress && left.connections);
    }

    #[test]
    fn what_another_jail_may_run_from_is_held_by_it() {
        let mine = id('a');
        let ownership = Ownership::Clone(&mine);
        assert_eq!(ownership.held(&whole('a')), None);
        assert_eq!(ownership.held(&ObservedClone::default()), None);
        assert_eq!(ownership.held(&seen(theirs(), theirs(), Identity::Unmarked)), None);
        assert!(ownership.held(&whole('b')).unwrap().contains(&"b".repeat(32)));
        let held = ownership.held(&seen(Identity::Unmarked, Identity::Unmarked, theirs())).unwrap();
        assert!(held.contains("made by hand") && held.ends_with("stop that first"), "{held}");
        let mut dying = whole('b');
        dying.jail.as_mut().unwrap().dying = true;
        assert_eq!(ownership.held(&dying), None, "nothing runs in it any more");
        assert_eq!(Ownership::Slot.held(&whole('b')), None);
    }

    #[test]
    fn a_slot_owns_what_carries_any_of_our_marks() {
        assert_eq!(Ownership::Slot.filter(&whole('b')), whole('b'));
        let foreign = seen(theirs(), theirs(), theirs());
        assert_eq!(Ownership::Slot.filter(&foreign).parts(), [Part::Egress]);
    }

    #[test]
    fn what_hangs_on_something_foreign_is_foreign_with_it() {
        let mine = || Identity::Clone(id('a'));
        let owner = id('a');
        let ownership = Ownership::Clone(&owner);
        let under_their_jail = ownership.filter(&seen(mine(), mine(), theirs()));
        assert_eq!(under_their_jail.parts(), [Part::Storage, Part::Mounts, Part::Network, Part::Egress]);
        assert!(!under_their_jail.service_ready && under_their_jail.processes.is_empty());
        let on_their_storage = ownership.filter(&seen(theirs(), mine(), mine()));
        assert_eq!(
            on_their_storage.parts(),
            [Part::Limits, Part::Network, Part::Egress, Part::Jail, Part::Processes],
            "neither the storage nor what is mounted below it"
        );
        let beside_their_network = ownership.filter(&seen(mine(), theirs(), mine()));
        assert_eq!(beside_their_network, ObservedClone { network: None, ..whole('a') });
        let without_storage = ObservedClone { storage: None, ..whole('a') };
        assert_eq!(
            ownership.filter(&without_storage),
            without_storage,
            "mounts without storage are leftovers of ours"
        );
    }

    #[test]
    fn a_dying_jail_is_nobodys_to_touch_and_everybodys_to_wait_for() {
        let dying = |identity| ObservedClone {
            jail: Some(ObservedJail { identity, dying: true }),
            ..ObservedClone::default()
        };
        for identity in [theirs(), Identity::Unmarked, Identity::Clone(id('b'))] {
            let seen = dying(identity);
            assert_eq!(Ownership::Clone(&id('a')).filter(&seen), seen);
            assert!(only_dying(&seen));
            assert_eq!(foreign(&seen), None);
        }
        assert!(!only_dying(&ObservedClone::default()));
        assert!(!only_dying(&whole('a')));
        assert!(!only_dying(&ObservedClone { egress: true, ..dying(Identity::Unmarked) }));
    }

    #[test]
    fn marks_and_strangers_are_named() {
        assert_eq!(mark(&whole('a')), Some(&id('a')));
        assert_eq!(mark(&ObservedClone::default()), None);
        let mine = || Identity::Clone(id('a'));
        let only_jail = seen(theirs(), Identity::Unmarked, mine());
        assert_eq!(mark(&only_jail), Some(&id('a')));
        assert_eq!(foreign(&only_jail).as_deref(), Some("storage: made by hand"));
        assert_eq!(foreign(&seen(mine(), theirs(), mine())).as_deref(), Some("network: made by hand"));
        assert_eq!(foreign(&seen(mine(), mine(), theirs())).as_deref(), Some("jail: made by hand"));
        assert_eq!(foreign(&whole('b')), None, "another clone of ours is not foreign");
    }
}
