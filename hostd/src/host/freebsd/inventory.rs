//! Inspects the host: one command for each kind of object, independent of the number of clones, all at the same time.

use super::egress::{PROOF_LASTS, membership};
use super::interfaces::Interface;
use super::jails::{self, Jail};
use super::mounts::{self, Mount};
use super::processes::{self, Process};
use super::{FreebsdState, rctl};
use crate::api::{EgressHealth, SnapshotName};
use crate::host::zfs::datasets::Datasets;
use crate::host::{HostError, HostErrorKind, HostResult, Inventory, ObservedClone, Part, chain};
use crate::slot::{Slot, SlotNames};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Instant;

/// The result of the last inventory, on which creates rely until it is too old.
#[derive(Debug, Clone)]
pub(super) struct RecentInventory {
    taken: Instant,
    /// The slots with objects.
    pub(super) slots: BTreeSet<Slot>,
    pub(super) egress: EgressHealth,
    /// The configured snapshot, if it can be cloned.
    template: Result<SnapshotName, HostError>,
}

/// The lists of one inspection. A list that was not requested is `None`.
#[derive(Debug, Default)]
pub(super) struct HostLists {
    datasets: Option<Datasets>,
    pub(super) jails: Option<Vec<Jail>>,
    pub(super) interfaces: Option<Vec<Interface>>,
    members: Option<BTreeSet<IpNet>>,
    limits: Option<rctl::Rules>,
    processes: Option<Vec<Process>>,
    pub(super) mounts: Option<Vec<Mount>>,
}

async fn when<T>(wanted: bool, work: impl Future<Output = HostResult<T>>) -> HostResult<Option<T>> {
    if wanted { work.await.map(Some) } else { Ok(None) }
}

impl FreebsdState {
    /// The last inventory, if creates may still rely on it.
    pub(super) fn recent(&self) -> Option<RecentInventory> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|last| last.taken.elapsed() < PROOF_LASTS).cloned()
    }

    /// Drop the last inventory.
    pub(super) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn lists(&self, parts: &[Part], only: Option<&SlotNames>) -> HostResult<HostLists> {
        let wanted = |part| parts.contains(&part);
        // A process is attributed by its jail, so both lists are needed.
        let processes = wanted(Part::Processes) && wanted(Part::Jail);
        let interfaces = async {
            match only {
                Some(names) => self.interfaces_for(names).await,
                None => self.interfaces().await,
            }
        };
        let jails_and_processes = async {
            let Some(names) = only else {
                return tokio::try_join!(
                    when(wanted(Part::Jail), self.jails()),
                    when(processes, self.processes())
                );
            };
            let jails = when(wanted(Part::Jail), self.jails()).await?;
            // Without a live jail no process can be the slot's.
            let live = jails.as_ref().and_then(|all| jails::of(all, names)).is_some_and(|jail| !jail.dying);
            Ok((jails, when(processes && live, self.processes()).await?))
        };
        let (datasets, (jails, processes), interfaces, members, limits, mounts) = tokio::try_join!(
            when(wanted(Part::Storage), self.datasets(only)),
            jails_and_processes,
            when(wanted(Part::Network), interfaces),
            when(wanted(Part::Egress), self.members()),
            when(wanted(Part::Limits), self.limits()),
            when(wanted(Part::Mounts), self.mounts()),
        )?;
        Ok(HostLists { datasets, jails, interfaces, members, limits, processes, mounts })
    }

    async fn datasets(&self, only: Option<&SlotNames>) -> HostResult<Datasets> {
        match only {
            Some(names) => self.storage.look_at(names).await,
            None => self.storage.look_all().await,
        }
    }

    /// One slot in these lists, without a request to its service.
    fn slot(&self, names: &SlotNames, lists: &HostLists) -> ObservedClone {
        let mut seen = ObservedClone::default();
        if let Some(datasets) = &lists.datasets {
            seen.storage = datasets.storage(self.storage.layout(), names);
        }
        if let Some(mounts) = &lists.mounts {
            seen.mounts = mounts::observed(mounts, names);
        }
        if let Some(rules) = &lists.limits {
            seen.limits = rctl::observed(rules, names);
        }
        if let Some(interfaces) = &lists.interfaces {
            seen.network = self.network.observed(interfaces, names);
        }
        if let Some(members) = &lists.members {
            // With some of its addresses in the table the clone can still reach the network.
            let (all, any) = membership(members, names);
            (seen.egress, seen.connections) = (all, any && !all);
        }
        if let Some(jails) = &lists.jails {
            seen.jail = jails::observed(jails, names);
            let live = jails::of(jails, names).filter(|jail| !jail.dying);
            if let (Some(processes), Some(jail)) = (&lists.processes, live) {
                seen.processes = processes::inside(processes, jail.jid);
                seen.frozen = processes::frozen(processes, jail.jid);
            }
        }
        seen
    }

    pub(super) async fn inspect(&self, names: &SlotNames, parts: &[Part]) -> HostResult<ObservedClone> {
        let began = Instant::now();
        let lists = self.lists(parts, Some(names)).await?;
        self.storage_is_visible(names, &lists)?;
        self.looks.keep(began, names, &self.network, &lists);
        let mut seen = self.slot(names, &lists);
        if parts.contains(&Part::Service) {
            seen.service_ready = self.is_ready(names).await;
        }
        Ok(seen)
    }

    /// Check that an absent dataset is really absent. While the zpool is not imported, `zfs` reports the same for every
    /// dataset, but then the datasets' parent is not mounted either.
    fn storage_is_visible(&self, names: &SlotNames, lists: &HostLists) -> HostResult<()> {
        let (Some(datasets), Some(mounts)) = (&lists.datasets, &lists.mounts) else { return Ok(()) };
        let parent = &self.config.pool.parent_dataset;
        if datasets.get(&names.dataset).is_some() || mounts.iter().any(|mount| mount.source == *parent) {
            return Ok(());
        }
        Err(HostError::new(
            HostErrorKind::NotReady,
            parent,
            format!("it is not mounted, so it is not known whether {} exists", names.dataset),
            "import the zpool and mount the dataset: zpool import, zfs mount",
        ))
    }

    pub(super) async fn inventory(&self) -> HostResult<Inventory> {
        let snapshot = &self.config.host.snapshot;
        let template = async { Ok(self.storage.check_template(snapshot).await) };
        let arp = async { Ok(self.unset_arp().await) };
        let barrier = async { Ok(self.barrier_gap().await) };
        let (lists, findings, template, unset_arp, barrier_gap) =
            tokio::try_join!(self.lists(Part::ALL, None), self.prove(), template, arp, barrier)?;
        let interfaces = lists.interfaces.as_deref().unwrap_or_default();
        let bridge = self.network.bridge(interfaces);
        let egress = self.judge(&findings, bridge);
        // Without the bridge there is no network that the entries could belong to.
        if bridge.is_some() {
            self.keep_arp(unset_arp).await;
        }
        self.keep_barrier(barrier_gap).await;
        if lists.datasets.as_ref().is_some_and(|datasets| datasets.has_empty_aside(self.storage.layout()))
            && let Err(error) = self.storage.destroy_empty_aside().await
        {
            tracing::debug!(error = chain(&error), "the empty parent of moved datasets cannot be destroyed");
        }
        let mut clones = BTreeMap::new();
        for slot in self.used_slots(&lists) {
            let seen = self.slot(&self.slots.names(slot), &lists);
            if !seen.is_absent() {
                clones.insert(slot, seen);
            }
        }
        let aside =
            lists.datasets.as_ref().map(|datasets| datasets.aside(self.storage.layout())).unwrap_or_default();
        let jails = lists.jails.as_deref().unwrap_or_default();
        let template = template.and_then(|_| self.template_rests(jails)).map(|()| snapshot.clone());
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(RecentInventory {
            taken: Instant::now(),
            slots: clones.keys().copied().collect(),
            egress,
            template,
        });
        Ok(Inventory { clones, aside, egress })
    }

    /// Every slot with an object.
    fn used_slots(&self, lists: &HostLists) -> BTreeSet<Slot> {
        let known = &self.slots;
        let mut slots = BTreeSet::new();
        let by_name = |name: &str| known.slot_of_name(name);
        let datasets = lists.datasets.iter();
        slots.extend(datasets.flat_map(|datasets| datasets.slots(self.storage.layout(), known)));
        slots.extend(lists.jails.iter().flatten().filter_map(|jail| by_name(&jail.name)));
        slots.extend(lists.limits.iter().flatten().filter_map(|(name, _)| by_name(name)));
        let interfaces = lists.interfaces.iter().flatten();
        slots.extend(interfaces.filter_map(|interface| self.network.slot_of(known, interface)));
        let members = lists.members.iter().flatten();
        slots.extend(members.filter_map(|member| known.slot_of_address(member.addr())));
        for mount in lists.mounts.iter().flatten() {
            let inside = std::path::Path::new(&mount.at).strip_prefix(&self.config.pool.clones_dir);
            let first = inside.ok().and_then(|inside| inside.components().next());
            slots.extend(first.and_then(|first| by_name(&first.as_os_str().to_string_lossy())));
        }
        slots
    }

    /// Check that this snapshot can be cloned: it exists on both datasets, and the template's jail is stopped.
    pub(super) async fn template_is_good(&self, snapshot: &SnapshotName) -> HostResult<()> {
        match self.recent() {
            Some(RecentInventory { template: Ok(proven), .. }) if proven == *snapshot => Ok(()),
            Some(RecentInventory { template: Err(error), .. }) if *snapshot == self.config.host.snapshot => {
                Err(error)
            }
            _ => {
                let (_, jails) = tokio::try_join!(self.storage.check_template(snapshot), self.jails())?;
                self.template_rests(&jails)
            }
        }
    }

    /// Check that the template's jail is stopped. While it runs, its files change.
    pub(super) fn template_rests(&self, jails: &[Jail]) -> HostResult<()> {
        let name = &self.config.host.template;
        match jails.iter().find(|jail| jail.name == *name && !jail.dying) {
            None => Ok(()),
            Some(jail) => Err(HostError::new(
                HostErrorKind::Template,
                format!("jail {name}"),
                format!(
                    "the template is running as jail {}: stop it while clones are created from it",
                    jail.jid
                ),
                format!("bastille stop {name}"),
            )),
        }
    }
}
