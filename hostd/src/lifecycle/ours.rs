//! Which of the things seen in a slot may be removed.
//!
//! Holding the slot's record makes unmarked leftovers ours. What carries another identity, or only
//! looks like ours, is never touched, and neither is what hangs on it.

use crate::api::CloneId;
use crate::host::{Identity, JailSeen, NetworkSeen, ObservedClone, StorageSeen};

/// On what grounds something in a slot is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim<'a> {
    /// It is this clone's.
    Clone(&'a CloneId),
    /// The slot is ours and its record does not tell whose: whatever carries one of our marks, or none.
    Slot,
}

impl Claim<'_> {
    fn covers(self, identity: &Identity) -> bool {
        match (self, identity) {
            (Claim::Clone(mine), Identity::Clone(id)) => mine == id,
            (Claim::Slot, Identity::Clone(_)) | (_, Identity::Unmarked) => true,
            (_, Identity::Foreign(_)) => false,
        }
    }

    /// What of the things seen is ours to remove.
    pub(super) fn ours(self, seen: &ObservedClone) -> ObservedClone {
        let storage = seen.storage.as_ref();
        let jail = seen.jail.as_ref();
        let network = seen.network.as_ref();
        let my_storage = storage.filter(|storage: &&StorageSeen| self.covers(&storage.identity));
        let my_network = network.filter(|network: &&NetworkSeen| self.covers(&network.identity));
        // A dying jail cannot be touched by anybody: it is only waited for.
        let my_jail = jail.filter(|jail: &&JailSeen| jail.dying || self.covers(&jail.identity));
        let others_storage = storage.is_some() && my_storage.is_none();
        let others_jail = jail.is_some() && my_jail.is_none();
        ObservedClone {
            storage: my_storage.cloned(),
            mounts: if others_storage || others_jail { Default::default() } else { seen.mounts.clone() },
            limits: if others_jail { None } else { seen.limits },
            network: my_network.cloned(),
            // The table is ours alone, and so is every address of the pool in it.
            egress: seen.egress,
            connections: seen.connections,
            jail: my_jail.cloned(),
            processes: if others_jail { Default::default() } else { seen.processes.clone() },
            service_ready: seen.service_ready && !others_jail,
        }
    }
}

/// Why something in a slot is not ours, if anything there is not.
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

/// The mark that things in a slot carry, if any does.
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

/// Nothing but a dying jail: gone for every purpose but the slot's next use.
pub(super) fn only_dying(seen: &ObservedClone) -> bool {
    let rest = ObservedClone { jail: None, ..seen.clone() };
    seen.jail.as_ref().is_some_and(|jail| jail.dying) && rest.is_absent()
}
