//! The host's interfaces as `ifconfig -a` lists them.
//!
//! The form was recorded on FreeBSD 14.1. Details that hostd does not use are skipped, so new ones of later releases, such as
//! the VLAN filter of bridges in FreeBSD 15, do no harm. What cannot be read of one interface is that interface's problem: an
//! unreadable flag or address counts as absent, which never makes an interface look better than it is.
//!
//! `ifconfig -a` reads the names first and then asks the kernel for each detail by name. If an interface is renamed or
//! destroyed in between, its first line lacks the metric, its block ends early, and ifconfig still exits with 0 (seen on
//! FreeBSD 14.1). Such an interface is marked as [`Interface::torn`]; the rest of the list is valid.

use super::errors::{Unreadable, unreadable, whole};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// One interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Interface {
    /// Not unique: an interface that returns from a jail keeps the name it had there.
    pub(super) name: String,
    pub(super) up: bool,
    pub(super) ether: Option<String>,
    pub(super) description: Option<String>,
    pub(super) groups: BTreeSet<String>,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// A bridge's members and their flags.
    pub(super) members: BTreeMap<String, BTreeSet<String>>,
    /// It was renamed or destroyed while it was listed: details may be missing.
    pub(super) torn: bool,
}

/// `8843<UP,BROADCAST>` → the words.
fn flags(text: &str) -> BTreeSet<String> {
    let words =
        text.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(words, _)| words);
    words.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Read the list. `complaints` is what ifconfig wrote to its standard error: with any, a block without a group is torn.
pub(super) fn read(text: &str, complaints: &str) -> Result<Vec<Interface>, Unreadable> {
    let mut found: Vec<Interface> = Vec::new();
    for line in whole("ifconfig", text)?.lines() {
        if !line.starts_with('\t') {
            let begun = line
                .split_once(": flags=")
                .filter(|(name, _)| !name.is_empty() && !name.contains(char::is_whitespace));
            let Some((name, rest)) = begun else {
                return unreadable("ifconfig", line, "NAME: flags=NUMBER<WORDS> metric …");
            };
            let (given, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let (up, torn) = (flags(given).contains("UP"), !rest.starts_with("metric "));
            found.push(Interface { name: name.to_owned(), up, torn, ..Interface::default() });
            continue;
        }
        let Some(interface) = found.last_mut() else {
            return unreadable("ifconfig", line, "an interface before its details");
        };
        let detail = &line[1..];
        if let Some(text) = detail.strip_prefix("description: ") {
            interface.description = Some(text.to_owned());
        } else if let Some(text) = detail.strip_prefix("ether ") {
            interface.ether = Some(text.trim_end().to_owned());
        } else if let Some(text) = detail.strip_prefix("groups: ") {
            interface.groups = text.split_whitespace().map(str::to_owned).collect();
        } else if let Some(text) = detail.strip_prefix("inet ").or_else(|| detail.strip_prefix("inet6 ")) {
            let address = text.split([' ', '/', '%']).next().unwrap_or_default();
            interface.addresses.extend(address.parse::<IpAddr>().ok());
        } else if let Some(text) = detail.strip_prefix("member: ") {
            let (name, given) = text.split_once(" flags=").unwrap_or((text, ""));
            interface.members.insert(name.trim_end().to_owned(), flags(given));
        }
    }
    // Every host has a loopback interface.
    if found.is_empty() {
        return unreadable("ifconfig", text, "at least one interface");
    }
    if !complaints.trim().is_empty() {
        found.iter_mut().filter(|interface| interface.groups.is_empty()).for_each(|one| one.torn = true);
    }
    Ok(found)
}
