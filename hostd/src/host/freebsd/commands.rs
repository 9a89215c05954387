//! Every command line of the FreeBSD host, except those of PF (crate `pf`) and ZFS ([`crate::host::zfs::layout`]).
//!
//! Arguments come from hostd only: names of a slot, parsed addresses, numbers. A test records the commands in
//! `docs/freebsd-commands.md`.

use crate::api::CloneId;
use crate::slot::SlotNames;
use std::path::Path;

/// Arguments, without the tool.
pub(super) type Arguments = Vec<String>;

fn arguments<const N: usize>(words: [&str; N]) -> Arguments {
    words.map(str::to_owned).into()
}

/// List every jail, dying ones included. JSON quotes whatever a jail has put into its name.
pub(super) fn list_jails() -> Arguments {
    arguments(["-d", "--libxo", "json", "name", "path", "jid", "dying", "vnet", "host.hostuuid"])
}

/// List every interface of the host, including the bridge with its members.
pub(super) fn list_interfaces() -> Arguments {
    arguments(["-a"])
}

/// List every process with its jail. A clone controls none of the columns.
pub(super) fn list_processes() -> Arguments {
    arguments(["-axo", "pid,jid,state"])
}

/// List every mount.
pub(super) fn list_mounts() -> Arguments {
    arguments(["-p"])
}

/// List every resource rule.
pub(super) fn list_limits() -> Arguments {
    Arguments::new()
}

/// Add all of a clone's limits. Rules refer to the jail's name, so they can be added before the jail exists.
pub(super) fn add_limits(rules: Vec<String>) -> Arguments {
    let mut line = arguments(["-a"]);
    line.extend(rules);
    line
}

/// Remove every rule of a clone, also rules that were added by hand.
pub(super) fn remove_limits(names: &SlotNames) -> Arguments {
    arguments(["-r", &format!("jail:{}", names.name)])
}

/// The name of the slot's pair. Its number is derived from the slot.
pub(super) fn pair(base: u32, names: &SlotNames) -> String {
    format!("epair{}", base + u32::from(names.slot.number()))
}

/// The description of the host's end: the clone's identity.
pub(super) fn mark(clone_id: &CloneId) -> String {
    format!("hostd:{clone_id}")
}

/// Create the pair and set the address, description and name of the host's end. The address family must follow `create`;
/// the name comes last because the arguments before it refer to the old one.
pub(super) fn create_pair(base: u32, names: &SlotNames, clone_id: &CloneId) -> Arguments {
    let mac = names.mac_host.to_string();
    let mark = mark(clone_id);
    arguments([
        &pair(base, names),
        "create",
        "ether",
        &mac,
        "description",
        &mark,
        "up",
        "name",
        &names.epair_host,
    ])
}

/// Set the address and name of the clone's end. jail(8) moves it into the jail.
pub(super) fn name_clone_end(base: u32, names: &SlotNames) -> Arguments {
    let end = format!("{}b", pair(base, names));
    arguments([&end, "ether", &names.mac_clone.to_string(), "name", &names.epair_clone])
}

/// Add the host's end to the bridge as a private member: private members cannot reach each other. The bridge's entry for the
/// clone's Ethernet address is static, so frames for it never go to a neighbour that sends with the same address.
pub(super) fn attach(bridge: &str, names: &SlotNames) -> Arguments {
    let end = names.epair_host.as_str();
    arguments([bridge, "addm", end, "private", end, "static", end, &names.mac_clone.to_string()])
}

/// Set every slot's entry in the ARP table from a file.
pub(super) fn set_arp(file: &Path) -> Arguments {
    arguments(["-f", &file.to_string_lossy()])
}

/// List the ARP table by addresses.
pub(super) fn list_arp() -> Arguments {
    arguments(["-an"])
}

/// List the rules of ipfw, the second packet filter.
pub(super) fn list_barrier() -> Arguments {
    arguments(["list"])
}

/// Load the second barrier from a file.
pub(super) fn load_barrier(file: &Path) -> Arguments {
    arguments(["-f", "-q", &file.to_string_lossy()])
}

/// Destroy an interface. Of a pair this destroys both ends.
pub(super) fn destroy_interface(name: &str) -> Arguments {
    arguments([name, "destroy"])
}

/// Take the bridge down or up.
pub(super) fn set_bridge(bridge: &str, up: bool) -> Arguments {
    arguments([bridge, if up { "up" } else { "down" }])
}

/// Start a jail from its configuration file.
pub(super) fn start_jail(conf: &Path, names: &SlotNames) -> Arguments {
    arguments(["-q", "-f", &conf.to_string_lossy(), "-c", names.name.as_str()])
}

/// Stop a jail by its configuration file: SIGTERM, `stop.timeout`, SIGKILL, unmount.
pub(super) fn stop_jail(conf: &Path, names: &SlotNames) -> Arguments {
    arguments(["-q", "-f", &conf.to_string_lossy(), "-r", names.name.as_str()])
}

/// Remove a jail without its file: its processes are killed at once, its mounts stay.
pub(super) fn remove_jail(names: &SlotNames) -> Arguments {
    arguments(["-q", "-R", names.name.as_str()])
}

/// Start or stop a jail by Bastille.
pub(super) fn bastille(what: &str, names: &SlotNames) -> Arguments {
    arguments([what, names.name.as_str()])
}

/// Signal every process that is in this jail. The number is that of a jail, never 0, which means any jail.
pub(super) fn signal(name: &str, jid: u32) -> Arguments {
    arguments([&format!("-{name}"), "-j", &jid.to_string()])
}

/// Unmount one path.
pub(super) fn unmount(path: &str, force: bool) -> Arguments {
    if force { arguments(["-f", path]) } else { arguments([path]) }
}

/// Read kernel settings as `name: value`. Unknown names are left out.
pub(super) fn settings(names: &[&str]) -> Arguments {
    let mut line = arguments(["-i"]);
    line.extend(names.iter().map(|&name| name.to_owned()));
    line
}
