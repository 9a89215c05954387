//! The FreeBSD host: a ZFS clone, a VNET jail in Bastille's layout, a private member of a bridge, a PF table entry, RCTL
//! rules.
//!
//! | part | object | identified by | module |
//! |---|---|---|---|
//! | storage | two ZFS clones | a user property | [`super::zfs`] |
//! | limits | RCTL rules | the jail's name | [`rctl`] |
//! | network | epair in the bridge | the description of the host's end | [`network`], [`interfaces`], [`arp`] |
//! | egress | members of a PF table | the slot's address | [`egress`], [`rule_watch`], [`barrier`] |
//! | jail | VNET jail | its `host.hostuuid` | [`jail`], [`jails`], [`conf`], [`files`] |
//! | service | processes of the jail | the jail's number | [`service`], [`processes`], [`signals`] |
//! | mounts | mounts below the clone's folder | the path | [`mounts`] |
//!
//! All work is done by the system's tools: [`commands`] has their arguments, [`errors`] classifies their messages. The code
//! uses no FreeBSD system call, so it is compiled and tested on Linux too, where `host.driver = "freebsd"` runs it with fake
//! tools.
//!
//! A create needs at most twelve commands, because two inspections are saved: the slot is inspected before a create only if
//! the last inventory is old or showed an object in it (every step fails on an existing object), and the table is not
//! inspected after an add, because pfctl reports how many addresses it added. The steps of a destroy use what its inspection
//! has shown ([`recent_look`]).

mod arp;
mod barrier;
mod checks;
mod commands;
mod conf;
pub mod egress;
mod errors;
mod files;
mod interfaces;
mod inventory;
mod jail;
mod jails;
mod mounts;
mod network;
mod processes;
mod rctl;
mod recent_look;
mod rule_watch;
mod service;
mod settings;
mod signals;
#[cfg(test)]
mod tests;

use super::command::{Tool, Tools};
use super::zfs::Zfs;
use super::{CloneSpec, Host, HostResult, Inventory, ObservedClone, Part, ServiceEndpoint, Unmount};
use crate::api::{CloneId, EgressHealth, Finding, Limits, SnapshotName};
use crate::config::{Config, JailDriver};
use crate::slot::{SlotNames, Slots};
use egress::Egress;
use inventory::RecentInventory;
use recent_look::RecentLooks;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The host that hostd runs on.
#[derive(Debug, Clone)]
pub struct FreebsdHost(Arc<FreebsdState>);

#[derive(Debug)]
struct FreebsdState {
    slots: Slots,
    config: Config,
    tools: Toolbox,
    storage: Zfs,
    egress: Egress,
    network: network::PairNames,
    style: conf::CloneSettings,
    /// Bastille has no lock, so hostd runs one at a time.
    bastille_lock: tokio::sync::Mutex<()>,
    /// The last inventory.
    last: Mutex<Option<RecentInventory>>,
    looks: RecentLooks,
}

/// The tools, each found once.
#[derive(Debug)]
struct Toolbox {
    arp: Tool,
    bastille: Tool,
    ifconfig: Tool,
    ipfw: Tool,
    jail: Tool,
    jls: Tool,
    mount: Tool,
    pfctl: Tool,
    pkill: Tool,
    ps: Tool,
    rctl: Tool,
    sysctl: Tool,
    umount: Tool,
}

impl Toolbox {
    fn find(tools: &Tools) -> Toolbox {
        Toolbox {
            arp: tools.find("arp"),
            bastille: tools.find("bastille"),
            ifconfig: tools.find("ifconfig"),
            ipfw: tools.find("ipfw"),
            jail: tools.find("jail"),
            jls: tools.find("jls"),
            mount: tools.find("mount"),
            pfctl: tools.find("pfctl"),
            pkill: tools.find("pkill"),
            ps: tools.find("ps"),
            rctl: tools.find("rctl"),
            sysctl: tools.find("sysctl"),
            umount: tools.find("umount"),
        }
    }

    /// The tools that this configuration needs.
    fn needed(&self, driver: JailDriver) -> Vec<&Tool> {
        let Toolbox {
            arp,
            bastille,
            ifconfig,
            ipfw,
            jail,
            jls,
            mount,
            pfctl,
            pkill,
            ps,
            rctl,
            sysctl,
            umount,
        } = self;
        let mut all = vec![arp, ifconfig, ipfw, jail, jls, mount, pfctl, pkill, ps, rctl, sysctl, umount];
        if driver == JailDriver::Bastille {
            all.push(bastille);
        }
        all
    }
}

impl FreebsdHost {
    /// Check the configuration and locate the tools. The host is not changed. Missing tools are reported by the doctor and
    /// by every create that needs them.
    pub fn open(config: &Config, slots: &Slots) -> HostResult<FreebsdHost> {
        let tools = Tools::new(&config.host.tool_folders);
        Ok(FreebsdHost(Arc::new(FreebsdState {
            storage: Zfs::new(&tools, slots, config.pool.clones_dir.clone(), &config.host.template, &[]),
            tools: Toolbox::find(&tools),
            egress: Egress::new(config, slots)?,
            network: network::PairNames {
                bridge: config.freebsd.bridge.clone(),
                base: config.freebsd.epair_base,
            },
            style: conf::CloneSettings {
                devfs_ruleset: config.freebsd.devfs_ruleset,
                console_logs: config.freebsd.console_logs.clone(),
                port: config.egress.browserd_port,
                resolver: egress::resolver(config),
            },
            bastille_lock: tokio::sync::Mutex::default(),
            last: Mutex::default(),
            looks: RecentLooks::default(),
            slots: slots.clone(),
            config: config.clone(),
        })))
    }
}

impl Host for FreebsdHost {
    fn drivers(&self) -> BTreeMap<String, String> {
        let freebsd = &self.0.config.freebsd;
        let jail = match freebsd.jail_driver {
            JailDriver::Jail => "jail(8), Bastille's layout",
            JailDriver::Bastille => "Bastille",
        };
        [
            ("storage", format!("ZFS below {}", self.0.config.pool.parent_dataset)),
            ("network", format!("epair in {}", freebsd.bridge)),
            ("egress", format!("PF anchor {}, table <{}>", freebsd.anchor, freebsd.table)),
            ("limits", "RCTL".to_owned()),
            ("jail", jail.to_owned()),
            ("service", "browserd".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    async fn checks(&self) -> Vec<Finding> {
        self.0.checks().await
    }

    async fn check_template(&self, snapshot: &SnapshotName) -> HostResult<()> {
        self.0.template_is_good(snapshot).await
    }

    async fn inventory(&self) -> HostResult<Inventory> {
        self.0.inventory().await
    }

    async fn inspect(&self, names: &SlotNames, parts: &[Part]) -> HostResult<ObservedClone> {
        self.0.inspect(names, parts).await
    }

    async fn inspect_before_create(&self, names: &SlotNames) -> HostResult<ObservedClone> {
        match self.0.recent() {
            Some(last) if !last.slots.contains(&names.slot) => Ok(ObservedClone::default()),
            _ => self.0.inspect(names, Part::ALL).await,
        }
    }

    fn answers_for(&self, part: Part) -> bool {
        part == Part::Egress
    }

    /// Files, limits, interfaces and membership are made at the same time. Nothing runs before the limits are set.
    fn waits_for(&self, part: Part, earlier: Part) -> bool {
        match part {
            Part::Service => true,
            Part::Jail => earlier != Part::Egress,
            _ => false,
        }
    }

    async fn egress_health(&self) -> HostResult<EgressHealth> {
        match self.0.recent() {
            Some(last) => Ok(last.egress),
            None => self.0.health().await,
        }
    }

    async fn changed(&self) {
        self.0.rules_changed().await;
    }

    async fn repair_egress(&self) -> HostResult<EgressHealth> {
        self.0.forget();
        self.0.repair().await
    }

    async fn ensure_storage(&self, spec: &CloneSpec) -> HostResult<()> {
        self.0.storage.ensure(spec).await
    }

    async fn ensure_limits(&self, spec: &CloneSpec) -> HostResult<()> {
        self.0.set_limits(spec).await
    }

    /// Rules apply to running processes, and a new amount replaces the old one. The disk quota belongs to the dataset.
    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        let kept = |limit: fn(&Limits) -> Option<u64>| limit(from).is_none() || limit(to).is_some();
        from.disk_bytes == to.disk_bytes
            && kept(|limits| limits.memory_bytes)
            && kept(|limits| limits.processes)
            && kept(|limits| limits.open_files)
            && kept(|limits| limits.cpu_percent)
            && kept(|limits| limits.read_bytes_per_second)
            && kept(|limits| limits.write_bytes_per_second)
    }

    async fn ensure_network(&self, spec: &CloneSpec) -> HostResult<()> {
        self.0.looks.forget(spec.names.slot);
        self.0.make_network(spec).await
    }

    async fn ensure_egress(&self, spec: &CloneSpec) -> HostResult<()> {
        self.0.grant(&spec.names).await
    }

    async fn ensure_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        self.0.looks.forget(spec.names.slot);
        let started = self.0.start(spec).await;
        self.0.looks.forget(spec.names.slot);
        started
    }

    async fn ensure_service(&self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        // The jail's exec.start has started it.
        self.0.wait_ready(spec).await
    }

    async fn cut_egress(&self, names: &SlotNames) -> HostResult<()> {
        self.0.cut(names).await
    }

    async fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        self.0.end_processes(names).await
    }

    async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        self.0.freeze(names).await
    }

    async fn thaw(&self, names: &SlotNames, _deadline: Duration) -> HostResult<()> {
        self.0.thaw(names).await
    }

    async fn unmount(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let unmounted = self.0.unmount_below(names, how).await;
        match how {
            Unmount::Gentle => unmounted,
            Unmount::Force => unmounted.and(self.0.storage.force_unmount(names).await),
        }
    }

    async fn stop_jail(&self, names: &SlotNames) -> HostResult<()> {
        self.0.stop(names).await
    }

    async fn remove_network(&self, names: &SlotNames) -> HostResult<()> {
        self.0.remove_pair(names).await
    }

    async fn remove_limits(&self, names: &SlotNames) -> HostResult<()> {
        self.0.drop_limits(names).await
    }

    async fn destroy_storage(&self, names: &SlotNames) -> HostResult<()> {
        self.0.storage.destroy(names).await
    }

    async fn move_storage_aside(&self, names: &SlotNames, clone_id: &CloneId) -> HostResult<()> {
        self.0.storage.move_aside(names, clone_id).await
    }

    async fn destroy_aside(&self, clone_id: &CloneId) -> HostResult<()> {
        self.0.storage.destroy_aside(clone_id).await
    }
}
