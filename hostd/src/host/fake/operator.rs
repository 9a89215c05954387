//! Changes by others: administrators, other tools, the kernel, reboots.

use super::effects::{JAIL_MOUNTS, half_pair};
use super::world::{Jail, Mark, Pair, Planted, SlotObjects, Storage, Stuck, Table, World};
use super::{FakeHost, lock};
use crate::api::{Limits, SnapshotName};
use crate::host::Part;
use crate::slot::Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

impl FakeHost {
    /// Jails, processes, mounts, interfaces, table members, states and limits are gone; storage,
    /// what is aside, and foreign storage stay. The rules are loaded at boot if they can be.
    pub fn reboot(&self) {
        self.meddle(|world| {
            for objects in world.slots.values_mut() {
                if objects.foreign_storage() {
                    // Its owner's fstab mounts it again.
                    let (storage, mounts) = (objects.storage.take(), std::mem::take(&mut objects.mounts));
                    *objects = SlotObjects { storage, mounts, ..SlotObjects::default() };
                    continue;
                }
                *objects = SlotObjects { storage: objects.storage.take(), ..SlotObjects::default() };
                if let Some(storage) = &mut objects.storage {
                    (storage.mounted, storage.busy_tries, storage.forced) = (true, 0, false);
                }
            }
            for storage in world.aside.values_mut() {
                storage.busy_tries = 0;
            }
            world.planted.retain(|(_, planted)| matches!(planted, Planted::Storage { .. }));
            world.firewall.states.clear();
            world.firewall.table = None;
            world.firewall.rules = false;
            world.firewall.links_down = false;
            if world.firewall.loadable {
                world.firewall.load();
            }
        });
    }

    /// The table is destroyed, members and all. Established connections live on.
    pub fn lose_table(&self) {
        self.meddle(|world| world.firewall.table = None);
    }

    /// Rules, table and states are flushed, and the rules cannot be loaded again before
    /// [`FakeHost::restore_rules`]: a repair can only take the links down.
    pub fn lose_rules(&self) {
        self.flush_rules();
        self.meddle(|world| world.firewall.loadable = false);
    }

    /// Rules, table and states are flushed, as a restart of the firewall does; a repair loads them again.
    pub fn flush_rules(&self) {
        self.meddle(|world| {
            world.firewall.rules = false;
            world.firewall.table = None;
            world.firewall.states.clear();
        });
    }

    /// The administrator's rules are loaded, with an empty table unless there is one.
    pub fn restore_rules(&self) {
        self.meddle(|world| {
            world.firewall.loadable = true;
            world.firewall.load();
        });
    }

    /// The rules are loaded anew and the members are lost; established connections live on.
    pub fn reload_firewall(&self) {
        self.meddle(|world| {
            let empty = Table { members: BTreeSet::new(), referenced: true };
            if world.firewall.rules {
                world.firewall.table = Some(empty);
            }
        });
    }

    /// Add an address to the table that belongs to no clone.
    pub fn add_stray_member(&self, ip: Ipv4Addr) {
        self.meddle(|world| world.add_member(ip).expect("adding a member cannot fail"));
    }

    /// The jail is removed by hand: its mounts, limits and member stay, its interface comes back.
    pub fn kill_jail(&self, slot: Slot) {
        self.meddle(|world| {
            let objects = world.slot_mut(slot);
            if !objects.foreign_jail() {
                objects.end_jail();
            }
        });
    }

    /// A foreign jail is stopped by whoever started it.
    pub fn stop_foreign_jail(&self, slot: Slot) {
        self.meddle(|world| {
            let objects = world.slot_mut(slot);
            if objects.foreign_jail() {
                (objects.jail, objects.limits) = (None, None);
                world.planted.retain(|(at, planted)| *at != slot || !matches!(planted, Planted::Jail { .. }));
            }
        });
    }

    /// The interface pair is destroyed by hand.
    pub fn remove_interface(&self, slot: Slot) {
        self.meddle(|world| {
            world.slot_mut(slot).network.take_if(|pair| pair.mark != Mark::Foreign);
        });
    }

    /// The limits are removed by hand.
    pub fn remove_limits_of(&self, slot: Slot) {
        self.meddle(|world| {
            let objects = world.slot_mut(slot);
            if !objects.foreign_jail() {
                objects.limits = None;
            }
        });
    }

    /// One end of a pair with the slot's name and no mark, if there is no interface.
    pub fn add_stray_interface(&self, slot: Slot) {
        self.meddle(|world| {
            world.slot_mut(slot).network.get_or_insert_with(half_pair);
        });
    }

    /// This many attempts to destroy the slot's storage fail as busy, with force or without.
    pub fn make_busy(&self, slot: Slot, tries: u32) {
        self.meddle(|world| match &mut world.slot_mut(slot).storage {
            Some(storage) if storage.mark != Mark::Foreign => storage.busy_tries = tries,
            _ => {}
        });
    }

    /// A mount below the clone does not go: only by force, or (`until_force` false) not at all
    /// before [`FakeHost::unstick_mount`] or a reboot. Without storage there is nothing to mount below.
    pub fn stick_mount(&self, slot: Slot, until_force: bool) {
        let how = if until_force { Stuck::UntilForce } else { Stuck::Always };
        self.meddle(|world| {
            let objects = world.slot_mut(slot);
            if objects.storage.is_some() && !objects.foreign_storage() {
                objects.mounts.insert(JAIL_MOUNTS[0].to_owned(), how);
            }
        });
    }

    /// Stuck mounts of the slot can be unmounted again.
    pub fn unstick_mount(&self, slot: Slot) {
        self.meddle(|world| world.slot_mut(slot).mounts.values_mut().for_each(|stuck| *stuck = Stuck::No));
    }

    /// The slot's jail stays dying for this many inspections after its end.
    pub fn make_dying(&self, slot: Slot, polls: u32) {
        self.meddle(|world| world.slot_mut(slot).dying_after_stop = polls);
    }

    /// The processes in the slot's jail end by KILL only.
    pub fn ignore_term(&self, slot: Slot) {
        self.meddle(|world| match &mut world.slot_mut(slot).jail {
            Some(jail) if jail.mark != Mark::Foreign => jail.ignores_term = true,
            _ => {}
        });
    }

    /// The storage loses its mark, as if hostd had died between clone and mark.
    pub fn forget_mark(&self, slot: Slot) {
        self.meddle(|world| match &mut world.slot_mut(slot).storage {
            Some(storage) if storage.mark != Mark::Foreign => storage.mark = Mark::Unmarked,
            _ => {}
        });
    }

    /// The browser in the slot's jail ends; the jail stays.
    pub fn kill_browser(&self, slot: Slot) {
        self.meddle(|world| match &mut world.slot_mut(slot).jail {
            Some(jail) if jail.mark != Mark::Foreign => {
                jail.processes.pop_last();
                jail.service_ready = false;
            }
            _ => {}
        });
    }

    /// The slot's jail is frozen or resumed by hand.
    pub fn set_frozen(&self, slot: Slot, frozen: bool) {
        self.meddle(|world| match &mut world.slot_mut(slot).jail {
            Some(jail) if jail.mark != Mark::Foreign => jail.frozen = frozen,
            _ => {}
        });
    }

    /// The jails that are frozen.
    pub fn frozen(&self) -> BTreeSet<Slot> {
        self.read(|world| {
            let frozen = |objects: &SlotObjects| objects.jail.as_ref().is_some_and(|jail| jail.frozen);
            world.slots.iter().filter(|(_, objects)| frozen(objects)).map(|(slot, _)| *slot).collect()
        })
    }

    /// When the jails end by themselves, as time since boot.
    pub fn deadlines(&self) -> BTreeMap<Slot, Duration> {
        self.read(|world| {
            let deadline =
                |(slot, objects): (&Slot, &SlotObjects)| Some((*slot, objects.jail.as_ref()?.deadline));
            world.slots.iter().filter_map(deadline).collect()
        })
    }

    /// This snapshot of the template is recreated under the same name.
    pub fn remake_template(&self, snapshot: &SnapshotName) {
        self.meddle(|world| *world.templates.entry(snapshot.clone()).or_default() += 1);
    }

    /// The template loses this snapshot.
    pub fn remove_template(&self, snapshot: &SnapshotName) {
        self.meddle(|world| {
            world.templates.remove(snapshot);
        });
    }

    /// Plant a foreign object with the slot's name: storage with something mounted below it, a jail
    /// (whose folder is elsewhere) with limits and a process, or an interface pair. Returns false, and
    /// plants nothing, if such an object exists.
    pub fn plant_foreign(&self, slot: Slot, part: Part) -> bool {
        let created = lock(&self.state.clock).now().stamp();
        self.meddle(|world| {
            let (jid, pid) = (world.number(), world.number());
            let objects = world.slot_mut(slot);
            let planted = match part {
                Part::Storage if objects.storage.is_none() && objects.mounts.is_empty() => {
                    let storage = Storage {
                        mark: Mark::Foreign,
                        snapshot: None,
                        quota: None,
                        mounted: true,
                        created,
                        busy_tries: 0,
                        forced: false,
                    };
                    objects.storage = Some(storage.clone());
                    objects.mounts = BTreeMap::from([("data".to_owned(), Stuck::No)]);
                    Planted::Storage { storage, mounts: objects.mounts.clone() }
                }
                Part::Network if objects.network.is_none() => {
                    let pair = Pair {
                        mark: Mark::Foreign,
                        host_end: true,
                        clone_end: true,
                        configured: true,
                        in_jail: false,
                    };
                    Planted::Network(objects.network.insert(pair).clone())
                }
                Part::Jail if objects.jail.is_none() && objects.limits.is_none() => {
                    objects.limits = Some(Limits { memory_bytes: Some(1 << 30), ..Limits::default() });
                    let jail = Jail {
                        jid,
                        mark: Mark::Foreign,
                        processes: BTreeSet::from([pid]),
                        ignores_term: false,
                        service_ready: false,
                        frozen: false,
                        deadline: Duration::MAX,
                    };
                    objects.jail = Some(jail.clone());
                    Planted::Jail { jail, limits: objects.limits }
                }
                _ => return false,
            };
            world.planted.push((slot, planted));
            true
        })
    }

    pub(super) fn meddle<R>(&self, change: impl FnOnce(&mut World) -> R) -> R {
        lock(&self.state.store).change(change).expect("the folder of the fake world can be written")
    }
}
