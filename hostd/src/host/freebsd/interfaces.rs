//! The host's interfaces as `ifconfig -a` lists them.
//!
//! The first line of an interface and the details that hostd uses are read strictly. Other details are skipped.
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

/// `flags=8843<UP,BROADCAST>` → the words.
fn flags(text: &str) -> Option<BTreeSet<String>> {
    let (number, rest) = text.split_once('<').unwrap_or((text, ">"));
    let words = rest.strip_suffix('>')?;
    let hex = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    let plain = words
        .bytes()
        .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"_,-".contains(&byte));
    (hex && plain).then(|| words.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

/// Read the list. `complaints` is what ifconfig wrote to its standard error: with any, a block without a group is torn.
pub(super) fn read(text: &str, complaints: &str) -> Result<Vec<Interface>, Unreadable> {
    let mut found: Vec<Interface> = Vec::new();
    for line in whole("ifconfig", text)?.lines() {
        if !line.starts_with('\t') {
            let begun = line.split_once(": flags=").and_then(|(name, rest)| {
                let (given, rest) = rest.split_once(' ')?;
                let torn = !rest.starts_with("metric ");
                (!torn || rest.starts_with("mtu ")).then_some((name, flags(given)?, torn))
            });
            let Some((name, given, torn)) = begun.filter(|(name, ..)| !name.is_empty()) else {
                return unreadable("ifconfig", line, "NAME: flags=NUMBER<WORDS> metric …");
            };
            let up = given.contains("UP");
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
            match address.parse() {
                Ok(address) => drop(interface.addresses.insert(address)),
                Err(_) => return unreadable("ifconfig", line, "an address"),
            }
        } else if let Some(text) = detail.strip_prefix("member: ") {
            let member = text
                .split_once(" flags=")
                .and_then(|(name, given)| Some((name, flags(given.split_whitespace().next()?)?)));
            match member.filter(|(name, _)| !name.is_empty()) {
                Some((name, given)) => drop(interface.members.insert(name.to_owned(), given)),
                None => return unreadable("ifconfig", line, "member: NAME flags=NUMBER<WORDS>"),
            }
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
