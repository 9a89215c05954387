//! Inspection of one slot, and of all slots at once.
//!
//! What the kernel lists for all clones together (mounts, links, addresses, set elements, connections) is read once per
//! inspection into [`HostState`]. The rest is read per clone.

use super::errors::ErrorContext;
use super::jail::LiveJail;
use super::mounts::MountTable;
use super::network::LinkTable;
use super::{LinuxHostState, cgroup, egress, freezer, network, processes};
use crate::host::zfs::datasets::Datasets;
use crate::host::{HostResult, Inventory, ObservedClone, Part};
use crate::slot::{Slot, SlotNames};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::num::NonZero;

/// What the kernel lists for all slots together, or for the one slot that is inspected.
pub(super) struct HostState {
    mounts: MountTable,
    /// Empty unless the storage is ZFS.
    datasets: Datasets,
    /// `None`: neither the network nor egress is inspected.
    links: Option<LinkTable>,
    /// The addresses that have egress.
    members: BTreeSet<IpAddr>,
    /// Slots without link and membership of which the kernel still tracks connections.
    tracked: BTreeSet<Slot>,
}

impl HostState {
    /// How many of a clone's addresses have egress, and how many it has.
    fn members(&self, names: &SlotNames) -> (usize, usize) {
        let all = egress::addresses(names);
        (all.clone().filter(|address| self.members.contains(address)).count(), all.count())
    }

    fn has_link(&self, names: &SlotNames) -> bool {
        self.links.as_ref().is_some_and(|links| links.has(&names.interface))
    }
}

/// How many clones are worth another thread.
const CLONES_PER_THREAD: usize = 64;

/// Inspect slots on as many threads as the machine has processors. An inspection of a clone takes some fifteen system calls,
/// so that of hundreds takes longest of all that an inspection of the host does.
fn in_parallel(
    slots: &[Slot],
    inspect: impl Fn(Slot) -> HostResult<Option<(Slot, ObservedClone)>> + Sync,
) -> HostResult<BTreeMap<Slot, ObservedClone>> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = processors.min(slots.len() / CLONES_PER_THREAD).max(1);
    let all = |slots: &[Slot]| -> HostResult<Vec<(Slot, ObservedClone)>> {
        slots.iter().filter_map(|slot| inspect(*slot).transpose()).collect()
    };
    let (own, others) = slots.split_at(slots.len().div_ceil(threads));
    std::thread::scope(|scope| {
        let share = others.len().div_ceil(threads.saturating_sub(1).max(1)).max(1);
        let started: Vec<_> = others
            .chunks(share)
            .map(|share| {
                // Without another thread this one does it.
                std::thread::Builder::new()
                    .name("inspection".into())
                    .spawn_scoped(scope, || all(share))
                    .map_err(|_| share)
            })
            .collect();
        let mut found = BTreeMap::from_iter(all(own)?);
        for started in started {
            found.extend(match started {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
                Err(share) => all(share)?,
            });
        }
        Ok(found)
    })
}

impl LinuxHostState {
    /// Inspect these parts of one slot.
    pub(super) fn inspect(
        &self,
        names: &SlotNames,
        parts: &[Part],
        host: &HostState,
    ) -> HostResult<ObservedClone> {
        let run = self.run(names);
        let what = ErrorContext { object: names.name.to_string(), hint: "hostctl doctor checks the host" };
        let failed = |error: io::Error| what.failed("cannot be inspected", error);
        let mut observed = ObservedClone::default();
        let jail = match parts.contains(&Part::Jail) || parts.contains(&Part::Service) {
            true => LiveJail::find(&run).map_err(failed)?,
            false => None,
        };
        let is_frozen = match &jail {
            Some(jail) => {
                freezer::is_frozen(self.clone_ref(names, &run), jail.supervisor.pid).map_err(failed)?
            }
            None => false,
        };
        for part in parts {
            match part {
                Part::Storage => {
                    let storage = self.storage.inspect(names, &host.mounts, &host.datasets);
                    observed.storage = storage.map_err(failed)?;
                }
                Part::Mounts => observed.mounts = self.storage.mounts_below(names, &host.mounts),
                Part::Limits => {
                    let name = names.name.as_str();
                    observed.limits = self.limits.inspect(name, &run).map_err(failed)?;
                    let cgroup = self.limits.cgroup(name);
                    observed.oom_kills = cgroup.map(|cgroup| cgroup::oom_kills(&cgroup)).unwrap_or_default();
                }
                Part::Network => {
                    let links = host.links.as_ref();
                    observed.network = links.and_then(|links| links.network(names, &network::pin(&run)));
                }
                Part::Egress => {
                    // A clone with only some of its addresses in the set is not granted egress, but can still send.
                    let (members, all) = host.members(names);
                    observed.egress = members == all;
                    observed.connections =
                        (members > 0 && members < all) || host.tracked.contains(&names.slot);
                }
                Part::Jail => {
                    observed.jail = jail.as_ref().map(LiveJail::observed);
                    observed.frozen = is_frozen;
                }
                Part::Processes => {
                    observed.processes = processes::inside(self.clone_ref(names, &run)).map_err(failed)?;
                    observed.processes.extend(self.killed_and_running(names)?);
                }
                Part::Service => {
                    // A frozen service would not answer before the timeout.
                    observed.service_ready =
                        !is_frozen && jail.as_ref().is_some_and(|jail| jail.is_ready(&run));
                }
            }
        }
        Ok(observed)
    }

    /// Read what an inspection of these parts needs, of one slot or of all.
    pub(super) fn host_state(
        &self,
        parts: &[Part],
        only: Option<&SlotNames>,
        datasets: Datasets,
    ) -> HostResult<HostState> {
        let wanted = |part| parts.contains(&part);
        let what = ErrorContext { object: "/proc".into(), hint: "hostd needs /proc" };
        let mounts = match wanted(Part::Storage) || wanted(Part::Mounts) {
            true => self
                .storage
                .mounts(only)
                .map_err(|error| what.failed("the mounts cannot be listed", error))?,
            false => MountTable::default(),
        };
        let began = self.egress.moment();
        let links = match wanted(Part::Network) || wanted(Part::Egress) {
            true => Some(LinkTable::read(only)?),
            false => None,
        };
        if let (None, Some(links)) = (only, &links) {
            self.host_addresses.note(links.host_addresses());
        }
        let members = match (wanted(Part::Egress), only) {
            (true, Some(names)) => self.egress.members_of(names)?,
            (true, None) => self.egress.members()?,
            (false, _) => BTreeSet::new(),
        };
        let mut host = HostState { mounts, datasets, links, members, tracked: BTreeSet::new() };
        if wanted(Part::Egress) {
            // For all slots, also for empty ones: one walk through the connection table answers for all of them, and a
            // later create in such a slot needs no walk.
            let names: Vec<SlotNames> = match only {
                Some(names) => vec![names.clone()],
                None => self.slots.slots().map(|slot| self.slots.names(slot)).collect(),
            };
            let cut_off: Vec<&SlotNames> =
                names.iter().filter(|names| host.members(names).0 == 0 && !host.has_link(names)).collect();
            host.tracked = self.egress.tracked(&cut_off, began)?;
        }
        Ok(host)
    }

    /// Every slot that has any object on the host.
    fn occupied_slots(&self, host: &HostState) -> HostResult<BTreeSet<Slot>> {
        let what = ErrorContext { object: "clones".into(), hint: "check the folder's file system" };
        let failed = |error: io::Error| what.failed("cannot be listed", error);
        let mut slots = self.storage.slots(&self.slots, &host.datasets).map_err(failed)?;
        let runs = std::fs::read_dir(&self.run).map_err(failed)?;
        let names = runs.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let names = names.chain(self.limits.names().map_err(failed)?);
        slots.extend(names.filter_map(|name| self.slots.slot_of_name(&name)));
        let links = host.links.iter().flat_map(LinkTable::names);
        slots.extend(links.filter_map(|name| self.slots.slot_of_interface(name)));
        slots.extend(host.members.iter().filter_map(|address| self.slots.slot_of_address(*address)));
        Ok(slots)
    }

    /// Inspect all slots.
    pub(super) fn inventory(&self, datasets: Datasets) -> HostResult<Inventory> {
        // A clone without its supervisor is broken. Which other processes it has matters only to a destroy.
        let parts: Vec<Part> = Part::ALL.iter().copied().filter(|part| *part != Part::Processes).collect();
        let host = self.host_state(&parts, None, datasets)?;
        let slots: Vec<Slot> = self.occupied_slots(&host)?.into_iter().collect();
        let clones = in_parallel(&slots, |slot| {
            let observed = self.inspect(&self.slots.names(slot), &parts, &host)?;
            Ok((!observed.is_absent()).then_some((slot, observed)))
        })?;
        let what = ErrorContext { object: "clones".into(), hint: "check the folder's file system" };
        let aside = self.storage.aside(&host.datasets);
        let aside = aside.map_err(|error| what.failed("storage moved aside cannot be listed", error))?;
        Ok(Inventory { clones, aside, egress: self.egress.health()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{HostError, HostErrorKind};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn slots(count: u16) -> Vec<Slot> {
        (1..=count).map(|number| Slot::new(number).unwrap()).collect()
    }

    #[test]
    fn every_slot_is_inspected_once_and_absent_ones_are_left_out() {
        for count in [0, 1, 63, 128, 129, 500, 900] {
            let slots = slots(count);
            let inspected = Mutex::new(Vec::new());
            let found = in_parallel(&slots, |slot| {
                inspected.lock().unwrap().push(slot);
                let observed =
                    ObservedClone { oom_kills: u64::from(slot.number()), ..ObservedClone::default() };
                Ok((slot.number() % 3 != 0).then_some((slot, observed)))
            })
            .unwrap();
            let mut inspected = inspected.into_inner().unwrap();
            inspected.sort();
            assert_eq!(inspected, slots);
            let present: Vec<Slot> = slots.iter().copied().filter(|slot| slot.number() % 3 != 0).collect();
            assert_eq!(found.keys().copied().collect::<Vec<_>>(), present);
            assert!(found.iter().all(|(slot, observed)| observed.oom_kills == u64::from(slot.number())));
        }
    }

    /// Half of an inspection must not be taken for the whole.
    #[test]
    fn an_error_about_one_slot_is_the_result() {
        for bad in [1, 64, 300, 500] {
            let calls = AtomicUsize::new(0);
            let result = in_parallel(&slots(500), |slot| {
                calls.fetch_add(1, Ordering::Relaxed);
                match slot.number() == bad {
                    true => {
                        Err(HostError::new(HostErrorKind::Failed, format!("slot {bad}"), "unreadable", ""))
                    }
                    false => Ok(None),
                }
            });
            assert_eq!(result.unwrap_err().object, format!("slot {bad}"));
            assert!(calls.load(Ordering::Relaxed) > 0);
        }
    }
}
