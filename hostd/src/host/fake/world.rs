//! The model: the objects of a host as plain values.
//!
//! It stores what the real tools store: limits by name, table members and states by address.

use crate::api::{CloneId, EgressHealth, Limits, SnapshotName};
use crate::clock::{Moment, Stamp};
use crate::host::{Identity, Inventory, ObservedClone, ObservedJail, ObservedNetwork, ObservedStorage, Part};
use crate::slot::{Slot, Slots};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The identity of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Mark {
    Clone(CloneId),
    Unmarked,
    Foreign,
}

impl Mark {
    fn identity(&self, why_foreign: &str) -> Identity {
        match self {
            Mark::Clone(id) => Identity::Clone(id.clone()),
            Mark::Unmarked => Identity::Unmarked,
            Mark::Foreign => Identity::Foreign(why_foreign.to_owned()),
        }
    }

    pub(super) fn is(&self, id: &CloneId) -> bool {
        matches!(self, Mark::Clone(mine) if mine == id)
    }
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Storage {
    pub(super) mark: Mark,
    /// The template's snapshot it is a clone of; a foreign dataset has none.
    pub(super) snapshot: Option<SnapshotName>,
    pub(super) quota: Option<u64>,
    pub(super) mounted: bool,
    pub(super) created: Stamp,
    /// The number of destroy attempts that fail as busy.
    pub(super) busy_tries: u32,
    /// Was unmounted by force: a dying jail no longer holds it.
    pub(super) forced: bool,
}

/// Whether a mount can be unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stuck {
    No,
    UntilForce,
    Always,
}

/// An interface pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) mark: Mark,
    pub(super) host_end: bool,
    pub(super) clone_end: bool,
    /// Has an address, is on the bridge and up. The clone's end loses this when it returns from a jail.
    pub(super) configured: bool,
    pub(super) in_jail: bool,
}

impl Pair {
    pub(super) fn complete(&self) -> bool {
        self.host_end && self.clone_end && self.configured
    }
}

/// A running jail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Jail {
    pub(super) jid: u32,
    pub(super) mark: Mark,
    pub(super) processes: BTreeSet<u32>,
    pub(super) ignores_term: bool,
    pub(super) service_ready: bool,
    pub(super) frozen: bool,
    /// When it ends by itself, as time since boot.
    pub(super) deadline: Duration,
}

/// A stopped jail of which the kernel still holds something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dying {
    pub(super) jid: u32,
    pub(super) mark: Mark,
    /// The number of inspections until it is gone.
    pub(super) polls: u32,
}

/// The objects of one slot, without those of the firewall.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlotObjects {
    pub(super) storage: Option<Storage>,
    /// Mounts below the clone's folder, by their path below it.
    pub(super) mounts: BTreeMap<String, Stuck>,
    /// Rules refer to the jail's name: they outlive the jail and apply to the next one.
    pub(super) limits: Option<Limits>,
    pub(super) network: Option<Pair>,
    pub(super) jail: Option<Jail>,
    /// A new jail may run beside them under the same name.
    pub(super) dying: Vec<Dying>,
    /// After the next stop the jail stays dying for this many inspections.
    pub(super) dying_after_stop: u32,
}

/// The table that grants egress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) members: BTreeSet<Ipv4Addr>,
    /// Whether a loaded rule refers to it. A table that was made by adding to a missing one is referred to by none.
    pub(super) referenced: bool,
}

/// The firewall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Firewall {
    pub(super) rules: bool,
    /// Whether the administrator's rules could be loaded now.
    pub(super) loadable: bool,
    pub(super) table: Option<Table>,
    /// Addresses with established connections.
    pub(super) states: BTreeSet<Ipv4Addr>,
    /// The clones' links are down because the rules are missing.
    pub(super) links_down: bool,
}

impl Firewall {
    pub(super) fn health(&self) -> EgressHealth {
        match &self.table {
            _ if !self.rules => EgressHealth::RulesMissing,
            Some(table) if table.referenced => EgressHealth::Ok,
            _ => EgressHealth::TableMissing,
        }
    }

    pub(super) fn is_member(&self, ip: Ipv4Addr) -> bool {
        self.table.as_ref().is_some_and(|table| table.members.contains(&ip))
    }

    /// Load the administrator's rules: the table is declared without content, so members stay.
    pub(super) fn load(&mut self) {
        let members = self.table.take().map(|table| table.members).unwrap_or_default();
        self.table = Some(Table { members, referenced: true });
        self.rules = true;
        self.links_down = false;
    }
}

/// A foreign object as it was planted, to detect changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Planted {
    Storage { storage: Storage, mounts: BTreeMap<String, Stuck> },
    Jail { jail: Jail, limits: Option<Limits> },
    Network(Pair),
}

/// The whole host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct World {
    pub(super) slots: BTreeMap<Slot, SlotObjects>,
    pub(super) aside: BTreeMap<CloneId, Storage>,
    pub(super) firewall: Firewall,
    /// The template's snapshots and how often each was recreated.
    pub(super) templates: BTreeMap<SnapshotName, u32>,
    pub(super) planted: Vec<(Slot, Planted)>,
    last_number: u32,
}

impl World {
    pub(super) fn new() -> World {
        let template = |name: &str| SnapshotName::try_from(name.to_owned()).expect("a valid snapshot name");
        let table = Table { members: BTreeSet::new(), referenced: true };
        World {
            slots: BTreeMap::new(),
            aside: BTreeMap::new(),
            firewall: Firewall {
                rules: true,
                loadable: true,
                table: Some(table),
                states: BTreeSet::new(),
                links_down: false,
            },
            templates: ["default", "v2"].map(|name| (template(name), 1)).into(),
            planted: Vec::new(),
            last_number: 100,
        }
    }

    pub(super) fn slot_mut(&mut self, slot: Slot) -> &mut SlotObjects {
        self.slots.entry(slot).or_default()
    }

    /// A jail's or process's number, never used twice.
    pub(super) fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn anything_dying(&self) -> bool {
        self.slots.values().any(|objects| !objects.dying.is_empty())
    }

    /// Inspect one slot. Inspecting a dying jail counts down its polls.
    pub(super) fn observe(
        &mut self,
        names: &Slots,
        slot: Slot,
        parts: &[Part],
        now: &Moment,
    ) -> ObservedClone {
        let ip = names.names(slot).ip;
        let (member, connected) = (self.firewall.is_member(ip), self.firewall.states.contains(&ip));
        let mut seen = ObservedClone::default();
        let mut empty = SlotObjects::default();
        let objects = self.slots.get_mut(&slot).unwrap_or(&mut empty);
        for part in parts {
            match part {
                Part::Storage => {
                    seen.storage = objects.storage.as_ref().map(|storage| storage.observed(now));
                }
                Part::Mounts => seen.mounts = objects.mounts.keys().cloned().collect(),
                Part::Limits => seen.limits = objects.limits,
                Part::Network => seen.network = objects.network.as_ref().map(Pair::observed),
                Part::Egress => (seen.egress, seen.connections) = (member, connected),
                Part::Jail => {
                    seen.jail = objects.observe_jail();
                    seen.frozen = objects.jail.as_ref().is_some_and(|jail| jail.frozen);
                }
                Part::Processes => {
                    seen.processes =
                        objects.jail.as_ref().map(|jail| jail.processes.clone()).unwrap_or_default();
                }
                Part::Service => seen.service_ready = objects.jail.as_ref().is_some_and(Jail::answers),
            }
        }
        seen
    }

    /// Inspect everything except the services.
    pub(super) fn inventory(&mut self, names: &Slots, now: &Moment) -> Inventory {
        let members = self.firewall.table.iter().flat_map(|table| &table.members);
        let stray =
            members.chain(&self.firewall.states).filter_map(|ip| names.slot_of_address(IpAddr::V4(*ip)));
        let slots: BTreeSet<Slot> = self.slots.keys().copied().chain(stray).collect();
        let clones = slots.into_iter().map(|slot| (slot, self.observe(names, slot, Part::ALL, now)));
        let clones = clones.filter(|(_, seen)| !seen.is_absent()).collect();
        Inventory { clones, aside: self.aside.keys().cloned().collect(), egress: self.firewall.health() }
    }

    /// Every object that hostd made, or that could only be hostd's, as `kind name`.
    pub(super) fn objects(&self, names: &Slots) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for (slot, objects) in &self.slots {
            let name = names.name(*slot);
            let mut note = |kind: &str, detail: &str| all.insert(format!("{kind} {name}{detail}"));
            // Mounts below a foreign folder are foreign too.
            if !objects.foreign_storage() {
                if objects.storage.is_some() {
                    note("storage", "");
                }
                for mount in objects.mounts.keys() {
                    note("mount", &format!("/{mount}"));
                }
            }
            if objects.network.as_ref().is_some_and(|pair| pair.mark != Mark::Foreign) {
                note("network", "");
            }
            for dying in &objects.dying {
                note("dying", &format!(" {}", dying.jid));
            }
            // The rules and processes of a foreign jail are foreign too.
            if !objects.foreign_jail() {
                if let Some(jail) = &objects.jail {
                    note("jail", "");
                    for pid in &jail.processes {
                        note("process", &format!(" {pid}"));
                    }
                }
                if objects.limits.is_some() {
                    note("limits", "");
                }
            }
        }
        let by_address = |ip: &Ipv4Addr| match names.slot_of_address(IpAddr::V4(*ip)) {
            Some(slot) => names.name(slot).to_string(),
            None => ip.to_string(),
        };
        let members = self.firewall.table.iter().flat_map(|table| &table.members);
        all.extend(members.map(|ip| format!("member {}", by_address(ip))));
        all.extend(self.firewall.states.iter().map(|ip| format!("state {}", by_address(ip))));
        all.extend(self.aside.keys().map(|id| format!("aside {id}")));
        all
    }

    /// The foreign objects that are unchanged.
    pub(super) fn foreign(&self, names: &Slots) -> BTreeSet<String> {
        let untouched = self.planted.iter().filter_map(|(slot, planted)| {
            let objects = self.slots.get(slot)?;
            let (kind, same) = match planted {
                Planted::Storage { storage, mounts } => {
                    ("storage", objects.storage.as_ref() == Some(storage) && objects.mounts == *mounts)
                }
                Planted::Network(pair) => ("network", objects.network.as_ref() == Some(pair)),
                Planted::Jail { jail, limits } => {
                    ("jail", objects.jail.as_ref() == Some(jail) && objects.limits == *limits)
                }
            };
            same.then(|| format!("{kind} {}", names.name(*slot)))
        });
        untouched.collect()
    }
}

impl SlotObjects {
    pub(super) fn foreign_storage(&self) -> bool {
        self.storage.as_ref().is_some_and(|storage| storage.mark == Mark::Foreign)
    }

    pub(super) fn foreign_jail(&self) -> bool {
        self.jail.as_ref().is_some_and(|jail| jail.mark == Mark::Foreign)
    }

    fn observe_jail(&mut self) -> Option<ObservedJail> {
        let why = "its path is not the clone's folder";
        let dying = self.dying.first().map(|dying| dying.mark.identity(why));
        for dying in &mut self.dying {
            dying.polls = dying.polls.saturating_sub(1);
        }
        self.dying.retain(|dying| dying.polls > 0);
        match &self.jail {
            Some(jail) => Some(ObservedJail { identity: jail.mark.identity(why), dying: false }),
            None => dying.map(|identity| ObservedJail { identity, dying: true }),
        }
    }
}

impl Jail {
    /// Whether its service answers. A frozen service does not.
    pub(super) fn answers(&self) -> bool {
        self.service_ready && !self.frozen
    }
}

impl Pair {
    fn observed(&self) -> ObservedNetwork {
        let identity = self.mark.identity("its description has another identity");
        ObservedNetwork { identity, complete: self.complete() }
    }
}

impl Storage {
    fn observed(&self, now: &Moment) -> ObservedStorage {
        ObservedStorage {
            identity: self.mark.identity("it is not a clone of the template"),
            snapshot: self.snapshot.clone(),
            mounted: self.mounted,
            age: Some(now.since(&self.created).unwrap_or_else(|| wall_age(&self.created, now))),
        }
    }
}

/// The age of an object from before this boot, by the wall clock.
fn wall_age(created: &Stamp, now: &Moment) -> Duration {
    Duration::from_millis(now.stamp().wall_ms.saturating_sub(created.wall_ms))
}
