//! The effects on the model.
//!
//! Most real effects are two transactions, and a crash between them leaves the first. Here they are two functions:
//! `begin_…` and the one that completes it. Each checks before it changes anything.

use super::world::{Dying, Jail, Mark, Pair, SlotObjects, Storage, Stuck, Table, World};
use crate::api::{CloneId, EgressHealth, Limits, SnapshotName};
use crate::clock::Moment;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult, ServiceEndpoint, Unmount};
use crate::slot::SlotNames;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

/// The mounts that jail(8) makes and removes with the jail.
pub(super) const JAIL_MOUNTS: [&str; 2] = ["root/dev", "root/opt/browser"];

/// The processes of the service: browserd and a browser.
const SERVICE_PROCESSES: usize = 2;

fn failed(object: &str, message: &str, hint: &str) -> HostError {
    HostError::new(HostErrorKind::Failed, object, message, hint)
}

fn busy(object: &str, message: &str) -> HostError {
    HostError::new(HostErrorKind::Busy, object, message, "try again, or unmount by force")
}

fn foreign(object: &str) -> HostError {
    let hint = "inspect it by hand; hostd does not change it";
    HostError::new(HostErrorKind::Foreign, object, "belongs to something else", hint)
}

/// The error of a create step whose object exists: foreign if it has another identity, else half made.
fn in_the_way(mark: &Mark, object: &str) -> HostError {
    match mark {
        Mark::Clone(_) | Mark::Foreign => foreign(object),
        Mark::Unmarked => failed(object, "already exists, without a mark", "destroy the clone first"),
    }
}

impl World {
    pub(super) fn check_template(&self, snapshot: &SnapshotName) -> HostResult<()> {
        if self.templates.contains_key(snapshot) {
            return Ok(());
        }
        let hint = "take the snapshot of the template, or name one that exists";
        Err(HostError::new(HostErrorKind::Template, format!("browser@{snapshot}"), "does not exist", hint))
    }

    // Storage: clone, then mark.

    pub(super) fn begin_storage(&mut self, spec: &CloneSpec, now: &Moment) -> HostResult<()> {
        match &self.slot_mut(spec.names.slot).storage {
            Some(storage) if storage.mark.is(&spec.clone_id) => return Ok(()),
            Some(storage) => return Err(in_the_way(&storage.mark, &spec.names.dataset)),
            None => self.check_template(&spec.snapshot)?,
        }
        self.slot_mut(spec.names.slot).storage = Some(Storage {
            mark: Mark::Unmarked,
            snapshot: Some(spec.snapshot.clone()),
            quota: None,
            mounted: true,
            created: now.stamp(),
            busy_tries: 0,
            forced: false,
        });
        Ok(())
    }

    pub(super) fn mark_storage(&mut self, spec: &CloneSpec) -> HostResult<()> {
        let Some(storage) = &mut self.slot_mut(spec.names.slot).storage else {
            return Err(failed(&spec.names.dataset, "does not exist", "create the clone again"));
        };
        storage.mark = Mark::Clone(spec.clone_id.clone());
        storage.quota = spec.limits.disk_bytes;
        storage.mounted = true;
        Ok(())
    }

    pub(super) fn begin_destroy_storage(&mut self, names: &SlotNames) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        let held = objects.held();
        let Some(storage) = &mut objects.storage else { return Ok(()) };
        if storage.mark == Mark::Foreign {
            return Err(foreign(&names.dataset));
        }
        if let Some(why) = held {
            return Err(busy(&names.dataset, why));
        }
        storage.destroy_try(&names.dataset)?;
        storage.mounted = false;
        Ok(())
    }

    pub(super) fn destroy_storage(&mut self, names: &SlotNames) -> HostResult<()> {
        self.slot_mut(names.slot).storage = None;
        Ok(())
    }

    pub(super) fn begin_move_aside(&mut self, names: &SlotNames, id: &CloneId) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        if objects.storage.is_some() && objects.jail.is_some() && !objects.foreign_jail() {
            return Err(busy(&names.dataset, "a jail runs from it"));
        }
        match &mut objects.storage {
            None => Ok(()),
            Some(storage) if storage.mark.is(id) => Ok(()),
            Some(storage) if storage.mark == Mark::Unmarked => {
                storage.mark = Mark::Clone(id.clone());
                Ok(())
            }
            Some(_) => Err(foreign(&names.dataset)),
        }
    }

    /// A rename without unmounting: it works on busy storage, and mounts below stay where they are.
    pub(super) fn move_aside(&mut self, names: &SlotNames, id: &CloneId) -> HostResult<()> {
        if let Some(storage) = self.slot_mut(names.slot).storage.take() {
            self.aside.insert(id.clone(), storage);
        }
        Ok(())
    }

    pub(super) fn begin_destroy_aside(&mut self, id: &CloneId) -> HostResult<()> {
        match self.aside.get_mut(id) {
            Some(storage) => storage.destroy_try(&format!("aside/{id}")),
            None => Ok(()),
        }
    }

    pub(super) fn destroy_aside(&mut self, id: &CloneId) -> HostResult<()> {
        self.aside.remove(id);
        Ok(())
    }

    // Limits: one rule for each, by the jail's name.

    pub(super) fn begin_limits(&mut self, spec: &CloneSpec) -> HostResult<()> {
        let objects = self.slot_mut(spec.names.slot);
        objects.refuse_foreign_jail(&spec.names)?;
        if objects.limits != Some(spec.limits) {
            objects.limits = Some(first_rule(&spec.limits));
        }
        Ok(())
    }

    pub(super) fn set_limits(&mut self, spec: &CloneSpec) -> HostResult<()> {
        self.slot_mut(spec.names.slot).limits = Some(spec.limits);
        Ok(())
    }

    pub(super) fn begin_remove_limits(&mut self, names: &SlotNames) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        objects.refuse_foreign_jail(names)?;
        objects.limits = objects.limits.map(|limits| first_rule(&limits));
        Ok(())
    }

    pub(super) fn remove_limits(&mut self, names: &SlotNames) -> HostResult<()> {
        self.slot_mut(names.slot).limits = None;
        Ok(())
    }

    // The interface pair: made, then named, described and configured.

    pub(super) fn begin_network(&mut self, spec: &CloneSpec) -> HostResult<()> {
        let objects = self.slot_mut(spec.names.slot);
        match &objects.network {
            Some(pair) if pair.mark.is(&spec.clone_id) => {}
            Some(pair) => return Err(in_the_way(&pair.mark, &spec.names.epair_host)),
            None => objects.network = Some(half_pair()),
        }
        Ok(())
    }

    pub(super) fn complete_network(&mut self, spec: &CloneSpec) -> HostResult<()> {
        let Some(pair) = &mut self.slot_mut(spec.names.slot).network else {
            let hint = "create the clone again";
            return Err(failed(&spec.names.epair_host, "interface does not exist", hint));
        };
        let mark = Mark::Clone(spec.clone_id.clone());
        *pair = Pair { mark, host_end: true, clone_end: true, configured: true, in_jail: pair.in_jail };
        Ok(())
    }

    pub(super) fn begin_remove_network(&mut self, names: &SlotNames) -> HostResult<()> {
        let Some(pair) = &mut self.slot_mut(names.slot).network else { return Ok(()) };
        if pair.mark == Mark::Foreign {
            return Err(foreign(&names.epair_host));
        }
        (pair.host_end, pair.configured) = (false, false);
        Ok(())
    }

    pub(super) fn remove_network(&mut self, names: &SlotNames) -> HostResult<()> {
        self.slot_mut(names.slot).network = None;
        Ok(())
    }

    // Egress: by address.

    /// As pfctl: adding to a missing table creates one, to which no rule refers.
    pub(super) fn add_member(&mut self, ip: Ipv4Addr) -> HostResult<()> {
        let unreferenced = || Table { members: BTreeSet::new(), referenced: false };
        self.firewall.table.get_or_insert_with(unreferenced).members.insert(ip);
        Ok(())
    }

    pub(super) fn remove_member(&mut self, ip: Ipv4Addr) -> HostResult<()> {
        if let Some(table) = &mut self.firewall.table {
            table.members.remove(&ip);
        }
        Ok(())
    }

    pub(super) fn kill_states(&mut self, ip: Ipv4Addr) -> HostResult<()> {
        self.firewall.states.remove(&ip);
        Ok(())
    }

    /// Take the links down first, because loading the rules may fail.
    pub(super) fn begin_repair_egress(&mut self) -> HostResult<()> {
        self.firewall.links_down |= self.firewall.health() == EgressHealth::RulesMissing;
        Ok(())
    }

    pub(super) fn repair_egress(&mut self) -> HostResult<EgressHealth> {
        if self.firewall.loadable {
            self.firewall.load();
        }
        Ok(self.firewall.health())
    }

    // The jail: its mounts, then the jail.

    pub(super) fn begin_jail(&mut self, spec: &CloneSpec) -> HostResult<()> {
        let names = &spec.names;
        let objects = self.slot_mut(names.slot);
        match &objects.jail {
            Some(jail) if jail.mark.is(&spec.clone_id) => return Ok(()),
            Some(_) => return Err(foreign(names.name.as_str())),
            None => {}
        }
        let ours = |storage: &Storage| storage.mark.is(&spec.clone_id) && storage.mounted;
        if !objects.storage.as_ref().is_some_and(ours) {
            let folder = names.folder.display().to_string();
            return Err(failed(&folder, "No such file or directory", "create the clone again"));
        }
        if !objects.network.as_ref().is_some_and(|pair| pair.mark.is(&spec.clone_id) && pair.complete()) {
            let hint = "create the clone again";
            return Err(failed(&names.epair_clone, "interface does not exist", hint));
        }
        for mount in JAIL_MOUNTS {
            objects.mounts.entry(mount.to_owned()).or_insert(Stuck::No);
        }
        Ok(())
    }

    pub(super) fn start_jail(&mut self, spec: &CloneSpec) -> HostResult<()> {
        let jid = self.number();
        let objects = self.slot_mut(spec.names.slot);
        if objects.jail.is_none() {
            let mark = Mark::Clone(spec.clone_id.clone());
            let processes = BTreeSet::new();
            objects.jail = Some(Jail {
                jid,
                mark,
                processes,
                ignores_term: false,
                service_ready: false,
                frozen: false,
                deadline: spec.deadline,
            });
        }
        if let Some(pair) = &mut objects.network {
            pair.in_jail = true;
        }
        Ok(())
    }

    pub(super) fn begin_stop_jail(&mut self, names: &SlotNames) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        objects.refuse_foreign_jail(names)?;
        if let Some(jail) = &mut objects.jail {
            jail.processes.clear();
            (jail.service_ready, jail.frozen) = (false, false);
        }
        Ok(())
    }

    /// `jail -r`: its mounts are removed, its interface returns to the host.
    pub(super) fn stop_jail(&mut self, names: &SlotNames) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        if objects.jail.is_some() {
            objects.mounts.retain(|_, stuck| *stuck != Stuck::No);
            objects.end_jail();
        }
        Ok(())
    }

    // The service and the processes.

    pub(super) fn begin_service(&mut self, spec: &CloneSpec) -> HostResult<()> {
        let pids: Vec<u32> = (0..SERVICE_PROCESSES).map(|_| self.number()).collect();
        match &mut self.slot_mut(spec.names.slot).jail {
            Some(jail) if jail.mark.is(&spec.clone_id) => {
                if jail.processes.is_empty() {
                    jail.processes.extend(pids);
                }
                Ok(())
            }
            Some(_) => Err(foreign(spec.names.name.as_str())),
            None => Err(failed(spec.names.name.as_str(), "jail not found", "create the clone again")),
        }
    }

    /// The service is ready, and the browser has a connection if egress is granted.
    pub(super) fn service_ready(&mut self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        let names = &spec.names;
        match &mut self.slot_mut(names.slot).jail {
            Some(jail) if !jail.processes.is_empty() => jail.service_ready = true,
            _ => return Err(failed(names.name.as_str(), "the service ended", "see the clone's log")),
        }
        if self.firewall.is_member(names.ip) && self.firewall.health() == EgressHealth::Ok {
            self.firewall.states.insert(names.ip);
        }
        Ok(service(names))
    }

    /// The service is asked to stop. Processes that ignore SIGTERM, and frozen ones, stay.
    pub(super) fn begin_end_processes(&mut self, names: &SlotNames) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        objects.refuse_foreign_jail(names)?;
        if let Some(jail) = &mut objects.jail {
            jail.service_ready = false;
            if !jail.ignores_term && !jail.frozen {
                jail.processes.pop_first();
            }
        }
        Ok(())
    }

    /// The processes that are left are killed, frozen ones too.
    pub(super) fn end_processes(&mut self, names: &SlotNames) -> HostResult<()> {
        if let Some(jail) = &mut self.slot_mut(names.slot).jail {
            jail.processes.clear();
            (jail.service_ready, jail.frozen) = (false, false);
        }
        Ok(())
    }

    pub(super) fn set_frozen(&mut self, names: &SlotNames, frozen: bool) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        objects.refuse_foreign_jail(names)?;
        if let Some(jail) = &mut objects.jail {
            jail.frozen = frozen;
        }
        Ok(())
    }

    pub(super) fn set_deadline(&mut self, names: &SlotNames, deadline: Duration) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        objects.refuse_foreign_jail(names)?;
        if let Some(jail) = &mut objects.jail {
            jail.deadline = deadline;
        }
        Ok(())
    }

    // Mounts below the clone, deepest first.

    pub(super) fn begin_unmount(&mut self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        if objects.foreign_storage() {
            return Err(foreign(&names.folder.display().to_string()));
        }
        let deepest = objects.mounts.iter().rev().find(|(_, stuck)| objects.goes(**stuck, how));
        if let Some(deepest) = deepest.map(|(path, _)| path.clone()) {
            objects.mounts.remove(&deepest);
        }
        Ok(())
    }

    pub(super) fn unmount(&mut self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let objects = self.slot_mut(names.slot);
        let mut mounts = std::mem::take(&mut objects.mounts);
        mounts.retain(|_, stuck| !objects.goes(*stuck, how));
        objects.mounts = mounts;
        if let (Unmount::Force, Some(storage)) = (how, &mut objects.storage) {
            storage.forced = true;
        }
        match objects.mounts.keys().next_back() {
            Some(left) => Err(busy(&names.folder.join(left).display().to_string(), "Device busy")),
            None => Ok(()),
        }
    }
}

/// The endpoint of the service.
pub(super) fn service(names: &SlotNames) -> ServiceEndpoint {
    let at = format!("{}:8080", names.ip);
    ServiceEndpoint {
        endpoint: format!("http://{at}"),
        cdp_endpoint: Some(format!("ws://{at}/devtools/browser/{}", names.name)),
    }
}

/// A pair after `ifconfig epair create`, not configured yet.
pub(super) fn half_pair() -> Pair {
    Pair { mark: Mark::Unmarked, host_end: true, clone_end: false, configured: false, in_jail: false }
}

/// Only the first rule, as after a tool that died.
fn first_rule(limits: &Limits) -> Limits {
    Limits { memory_bytes: limits.memory_bytes, ..Limits::default() }
}

impl SlotObjects {
    fn refuse_foreign_jail(&self, names: &SlotNames) -> HostResult<()> {
        if self.foreign_jail() { Err(foreign(names.name.as_str())) } else { Ok(()) }
    }

    /// Why the storage cannot be unmounted now.
    fn held(&self) -> Option<&'static str> {
        let forced = self.storage.as_ref().is_some_and(|storage| storage.forced);
        if !self.mounts.is_empty() {
            Some("something is mounted below it")
        } else if self.jail.is_some() && !self.foreign_jail() {
            Some("a jail runs from it")
        } else if !self.dying.is_empty() && !forced {
            Some("pool or dataset is busy")
        } else {
            None
        }
    }

    fn goes(&self, stuck: Stuck, how: Unmount) -> bool {
        let in_use =
            !self.foreign_jail() && self.jail.as_ref().is_some_and(|jail| !jail.processes.is_empty());
        match how {
            Unmount::Gentle => stuck == Stuck::No && !in_use,
            Unmount::Force => stuck != Stuck::Always,
        }
    }

    /// End the jail. It may stay dying for a while; its interface returns to the host without configuration.
    pub(super) fn end_jail(&mut self) {
        let Some(jail) = self.jail.take() else { return };
        let polls = std::mem::take(&mut self.dying_after_stop);
        if polls > 0 {
            self.dying.push(Dying { jid: jail.jid, mark: jail.mark, polls });
        }
        if let Some(pair) = self.network.as_mut().filter(|pair| pair.mark != Mark::Foreign) {
            (pair.in_jail, pair.configured) = (false, false);
        }
    }
}

impl Storage {
    fn destroy_try(&mut self, object: &str) -> HostResult<()> {
        match self.busy_tries.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                self.busy_tries = left;
                Err(busy(object, "pool or dataset is busy"))
            }
        }
    }
}
