//! Every command line of the FreeBSD host, in one place that an administrator can read.
//!
//! Only words that hostd made itself go in: names of a slot, parsed addresses, numbers. `docs/freebsd-commands.md` is
//! recorded from real runs of these and kept true by a test. PF's lines are the `pf` crate's, ZFS's the storage
//! driver's.

use crate::api::CloneId;
use crate::slot::SlotNames;
use std::path::Path;

/// Arguments, without the tool.
pub(super) type Arguments = Vec<String>;

fn arguments<const N: usize>(words: [&str; N]) -> Arguments {
    words.map(str::to_owned).into()
}

/// What is looked at of every jail, dying ones too. As JSON all of it is text, whatever the jail put into its name.
pub(super) fn list_jails() -> Arguments {
    arguments(["-d", "--libxo", "json", "name", "path", "jid", "dying", "vnet", "host.hostuuid"])
}

/// Every interface of the host, the bridge with its members among them.
pub(super) fn list_interfaces() -> Arguments {
    arguments(["-a"])
}

/// Every process with the jail it is in. No column holds anything that a clone can choose.
pub(super) fn list_processes() -> Arguments {
    arguments(["-axo", "pid,jid,state"])
}

/// Every mount.
pub(super) fn list_mounts() -> Arguments {
    arguments(["-p"])
}

/// Every resource rule.
pub(super) fn list_limits() -> Arguments {
    Arguments::new()
}

/// All of a clone's limits at once. Rules are kept by the jail's name, so this works before there is a jail.
pub(super) fn add_limits(rules: Vec<String>) -> Arguments {
    let mut line = arguments(["-a"]);
    line.extend(rules);
    line
}

/// Every rule of a clone, whoever made it.
pub(super) fn remove_limits(names: &SlotNames) -> Arguments {
    arguments(["-r", &format!("jail:{}", names.name)])
}

/// The slot's own number among the pairs, so that no scan has to find a free one.
pub(super) fn pair(base: u32, names: &SlotNames) -> String {
    format!("epair{}", base + u32::from(names.slot.number()))
}

/// What the host's end says about whose it is.
pub(super) fn mark(clone_id: &CloneId) -> String {
    format!("hostd:{clone_id}")
}

/// Make the pair; its host's end gets address, mark and name. The address family must follow `create`, and the name
/// comes last because everything before it goes by the old one.
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

/// The clone's end gets its address and name. It is given to the jail by jail(8).
pub(super) fn name_clone_end(base: u32, names: &SlotNames) -> Arguments {
    let end = format!("{}b", pair(base, names));
    arguments([&end, "ether", &names.mac_clone.to_string(), "name", &names.epair_clone])
}

/// Attach the host's end. Private members never hear each other, and PF would not see it if they did.
pub(super) fn attach(bridge: &str, names: &SlotNames) -> Arguments {
    arguments([bridge, "addm", &names.epair_host, "private", &names.epair_host])
}

/// Destroy an interface; of a pair this takes both ends, wherever they are.
pub(super) fn destroy_interface(name: &str) -> Arguments {
    arguments([name, "destroy"])
}

/// The emergency brake, and its release.
pub(super) fn set_bridge(bridge: &str, up: bool) -> Arguments {
    arguments([bridge, if up { "up" } else { "down" }])
}

/// Start a jail by its own file.
pub(super) fn start_jail(conf: &Path, names: &SlotNames) -> Arguments {
    arguments(["-q", "-f", &conf.to_string_lossy(), "-c", names.name.as_str()])
}

/// Stop a jail by its own file: TERM, `stop.timeout`, KILL, and its mounts go.
pub(super) fn stop_jail(conf: &Path, names: &SlotNames) -> Arguments {
    arguments(["-q", "-f", &conf.to_string_lossy(), "-r", names.name.as_str()])
}

/// Remove a jail without its file: everything in it is killed at once, its mounts stay.
pub(super) fn remove_jail(names: &SlotNames) -> Arguments {
    arguments(["-q", "-R", names.name.as_str()])
}

/// The same two by Bastille.
pub(super) fn bastille(what: &str, names: &SlotNames) -> Arguments {
    arguments([what, names.name.as_str()])
}

/// Ask the browser service to stop, by the clone's own rc.d. What it answers is the clone's word and counts nothing.
pub(super) fn stop_service(names: &SlotNames) -> Arguments {
    arguments([names.name.as_str(), "/usr/sbin/service", super::conf::SERVICE, "onestop"])
}

/// Signal processes that are proven to be in the clone.
pub(super) fn signal(word: &str, pids: impl IntoIterator<Item = u32>) -> Arguments {
    let mut line = arguments([&format!("-{word}")]);
    line.extend(pids.into_iter().map(|pid| pid.to_string()));
    line
}

/// Unmount one place.
pub(super) fn unmount(path: &str, force: bool) -> Arguments {
    if force { arguments(["-f", path]) } else { arguments([path]) }
}

/// Values of the kernel as `name: value`; names that this kernel does not know are left out.
pub(super) fn settings(names: &[&str]) -> Arguments {
    let mut line = arguments(["-i"]);
    line.extend(names.iter().map(|&name| name.to_owned()));
    line
}
