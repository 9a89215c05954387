//! pfctl(8): what changes the packet filter. How it is shown is in `pfctl_show`.

use super::pfctl_show as show;
use crate::fake::{Caller, Fake, Said};
use crate::options::Options;
use crate::world::{Ruleset, StateKind, Table, World};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

const USAGE: &str = "usage: pfctl [-AdeghMmNnOPqRrvz] [-a anchor] [-D macro=value] [-F modifier]
\t[-f file] [-i interface] [-K host | network]
\t[-k host | network | gateway | label | id] [-o level] [-p device]
\t[-s modifier] [-t table -T command [address ...]] [-x level]
";
const LONGEST_TABLE: usize = 31;
const NO_TABLE: &str = "pfctl: Table does not exist.\n";

pub(super) fn run(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let given = match Options::parse(arguments, "AdeghMmNnOPqRrvza:D:F:f:i:K:k:o:p:s:t:T:x:") {
        Ok(given) => given,
        Err(why) => return super::refused(fake, "pfctl", arguments, why, USAGE),
    };
    fake.change(|world| {
        if caller.nobody {
            return Said::err(1, "pfctl: /dev/pf: Permission denied\n");
        }
        // A file is read before the device is opened only to check it.
        if !world.pf.loaded && !given.has('n') {
            return Said::err(1, "pfctl: /dev/pf: No such file or directory\n");
        }
        let mut said = act(world, &given, arguments);
        if given.has('v') {
            said.err.insert_str(0, "No ALTQ support in kernel\nALTQ related functions disabled\n");
        }
        if given.has('q') && said.code != 255 {
            said.err.clear();
        }
        said
    })
}

fn act(world: &mut World, given: &Options, arguments: &[String]) -> Said {
    let anchor = given.value('a').unwrap_or_default();
    if given.has('e') || given.has('d') {
        return switch(world, given.has('e'));
    }
    if let Some(what) = given.value('F') {
        return flush(world, anchor, what);
    }
    if !given.values('k').is_empty() {
        return kill_states(world, &given.values('k'), given.has('M'));
    }
    if let Some(host) = given.value('K') {
        let _ = host;
        return Said::err(0, "killed 0 src nodes from 1 sources and 0 destinations\n");
    }
    if let Some(command) = given.value('T') {
        let table = given.value('t').unwrap_or_default();
        if table.len() > LONGEST_TABLE || table.is_empty() {
            world.violations.push(format!("pfctl {}", arguments.join(" ")));
            return Said::err(1, USAGE);
        }
        return table_command(world, anchor, table, command, &given.operands);
    }
    if let Some(file) = given.value('f') {
        return load(world, anchor, file, given.has('n'));
    }
    if let Some(what) = given.value('s') {
        return show::show(world, anchor, what, given.has('P'), given.has('v'));
    }
    world.violations.push(format!("pfctl {}: not known to the fake", arguments.join(" ")));
    Said::err(1, USAGE)
}

fn switch(world: &mut World, on: bool) -> Said {
    match (on, world.pf.enabled) {
        (true, true) => Said::err(1, "pfctl: pf already enabled\n"),
        (false, false) => Said::err(1, "pfctl: pf not enabled\n"),
        _ => {
            world.pf.enabled = on;
            Said::err(0, if on { "pf enabled\n" } else { "pf disabled\n" })
        }
    }
}

/// Rules, tables and states all go, of the main ruleset and of every anchor.
pub(super) fn flush_all(world: &mut World) -> (usize, usize) {
    let (tables, states) = (world.pf.main.tables.len(), world.pf.states.len());
    world.pf.main = Ruleset::default();
    world.pf.anchors.clear();
    world.pf.states.clear();
    (tables, states)
}

fn flush(world: &mut World, anchor: &str, what: &str) -> Said {
    if !anchor.is_empty() {
        let Some(ruleset) = world.pf.anchors.get_mut(anchor) else { return Said::nothing() };
        return match what {
            "rules" | "Rules" => {
                ruleset.filter.clear();
                Said::err(0, "rules cleared\n")
            }
            _ => {
                let tables = ruleset.tables.len();
                *ruleset = Ruleset::default();
                Said::err(
                    0,
                    format!("Ethernet rules cleared\nrules cleared\nnat cleared\n{tables} tables deleted.\n"),
                )
            }
        };
    }
    match what {
        "states" => {
            let count = world.pf.states.len();
            world.pf.states.clear();
            Said::err(0, format!("{count} states cleared\n"))
        }
        "rules" => {
            world.pf.main.filter.clear();
            Said::err(0, "rules cleared\n")
        }
        _ => {
            let (tables, states) = flush_all(world);
            let text = format!(
                "Ethernet rules cleared\nrules cleared\nnat cleared\n{tables} tables deleted.\n{states} states cleared\n\
                 source tracking entries cleared\npf: statistics cleared\npf: interface flags reset\n"
            );
            Said::err(0, text)
        }
    }
}

/// An address or a network without its host bits.
fn entry(text: &str) -> Option<String> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, length.parse::<u32>().ok()?),
        None => return text.parse::<IpAddr>().ok().map(|address| address.to_string()),
    };
    match address.parse::<IpAddr>().ok()? {
        IpAddr::V4(address) if length < 32 => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            Some(format!("{}/{length}", Ipv4Addr::from(u32::from(address) & mask)))
        }
        IpAddr::V4(address) => (length == 32).then(|| address.to_string()),
        IpAddr::V6(address) => (length <= 128).then(|| format!("{address}/{length}")),
    }
}

/// Whether a network contains an address.
fn covers(net: &str, address: &str) -> bool {
    let (Some((net, length)), Ok(address)) = (net.split_once('/'), address.parse::<Ipv4Addr>()) else {
        return false;
    };
    let (Ok(net), Ok(length)) = (net.parse::<Ipv4Addr>(), length.parse::<u32>()) else { return false };
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    u32::from(address) & mask == u32::from(net)
}

fn contains(table: &Table, address: &str) -> bool {
    table.members.contains(address) || table.members.iter().any(|net| covers(net, address))
}

fn table_command(world: &mut World, anchor: &str, name: &str, command: &str, operands: &[String]) -> Said {
    if !["add", "delete", "replace", "show", "test", "flush", "kill", "zero"].contains(&command) {
        world.violations.push(format!("pfctl -T {command}"));
        return Said::err(1, format!("pfctl: Unknown table command '{command}'\n{USAGE}"));
    }
    let mut entries = BTreeSet::new();
    for word in operands {
        match entry(word) {
            Some(entry) => drop(entries.insert(entry)),
            None => {
                world
                    .violations
                    .push(format!("pfctl -T {command} {word}: not an address, so a name to look up"));
                return Said::err(255, format!("no IP address found for {word}\n"));
            }
        }
    }
    let ruleset = match anchor {
        "" => &mut world.pf.main,
        anchor => world.pf.anchors.entry(anchor.to_owned()).or_default(),
    };
    let mut lead = String::new();
    if !ruleset.tables.contains_key(name) {
        match command {
            // A table that is missing is made, and nothing but this line tells.
            "add" | "replace" => {
                ruleset.tables.insert(name.to_owned(), Table { persist: true, ..Table::default() });
                lead = "1 table created.\n".to_owned();
            }
            "kill" => return Said::err(0, "0 table deleted.\n"),
            _ => return Said::err(255, NO_TABLE),
        }
    }
    let table = ruleset.tables.get_mut(name).expect("it is there");
    let given = entries.len();
    if table.constant && ["add", "delete", "replace", "flush"].contains(&command) {
        return Said::err(255, "pfctl: Operation not permitted.\n");
    }
    let said = match command {
        "add" => {
            let before = table.members.len();
            table.members.append(&mut entries);
            Said::err(0, format!("{}/{given} addresses added.\n", table.members.len() - before))
        }
        "delete" => {
            let gone = entries.iter().filter(|entry| table.members.remove(*entry)).count();
            Said::err(0, format!("{gone}/{given} addresses deleted.\n"))
        }
        "replace" => {
            let added = entries.difference(&table.members).count();
            let deleted = table.members.difference(&entries).count();
            table.members = entries;
            let mut text = String::new();
            for (count, word) in [(added, "added"), (deleted, "deleted")] {
                if count > 0 {
                    text.push_str(&format!("{count} addresses {word}.\n"));
                }
            }
            Said::err(0, if text.is_empty() { "no changes.\n".to_owned() } else { text })
        }
        "show" => Said::out(table.members.iter().map(|member| format!("   {member}\n")).collect::<String>()),
        "test" => {
            let fit = entries.iter().filter(|entry| contains(table, entry)).count();
            Said::err(if fit == given { 0 } else { 2 }, format!("{fit}/{given} addresses match.\n"))
        }
        "flush" => {
            let count = table.members.len();
            table.members.clear();
            Said::err(0, format!("{count} addresses deleted.\n"))
        }
        "kill" => {
            ruleset.tables.remove(name);
            Said::err(0, "1 table deleted.\n")
        }
        _ => Said::err(0, "1 table/stats cleared.\n"),
    };
    Said { err: format!("{lead}{}", said.err), ..said }
}

fn kill_states(world: &mut World, hosts: &[&str], matching: bool) -> Said {
    let name = |host: &str| entry(host).is_none();
    if hosts.iter().any(|host| name(host)) {
        world.violations.push(format!("pfctl -k {}: not an address", hosts.join(" -k ")));
        return Said::err(1, "pfctl: getaddrinfo: Name does not resolve\n");
    }
    let is = |end: &str, host: &str| {
        let address = end.rsplit_once(':').map_or(end, |(address, _)| address);
        host.ends_with("/0") || address == host || covers(host, address)
    };
    let fits = |state: &crate::State| {
        // The outer side of a translation has another source; only its inner side can be named, with -M.
        (state.kind != StateKind::Translated || matching)
            && is(&state.source, hosts[0])
            && hosts.get(1).is_none_or(|host| is(&state.destination, host))
    };
    let before = world.pf.states.len();
    world.pf.states.retain(|state| !fits(state));
    let killed = before - world.pf.states.len();
    Said::err(0, format!("killed {killed} states from 1 sources and {} destinations\n", hosts.len() - 1))
}

fn load(world: &mut World, anchor: &str, file: &str, only_check: bool) -> Said {
    let Ok(text) = std::fs::read_to_string(world.real(file)) else {
        let err = format!(
            "pfctl: {file}: No such file or directory\n\
             pfctl: cannot open the main config file!: No such file or directory\n"
        );
        return Said::err(1, err);
    };
    let parsed = match show::parse(&text) {
        Ok(parsed) => parsed,
        Err((line, why)) => {
            let mut err = format!("{file}:{line}: {why}\n");
            if !only_check {
                err.push_str("pfctl: Syntax error in config file: pf rules not loaded\n");
            }
            return Said::err(1, err);
        }
    };
    if only_check {
        return Said::nothing();
    }
    let old = match anchor {
        "" => std::mem::take(&mut world.pf.main),
        anchor => world.pf.anchors.remove(anchor).unwrap_or_default(),
    };
    let mut new = parsed.ruleset;
    for (name, table) in old.tables {
        match new.tables.get_mut(&name) {
            // Declared without a list: what was added stays.
            Some(declared) if !parsed.with_list.contains(&name) => declared.members = table.members,
            Some(_) => {}
            None if table.persist => drop(new.tables.insert(name, table)),
            None => {}
        }
    }
    for name in parsed.anchors {
        world.pf.anchors.entry(name).or_default();
    }
    match anchor {
        "" => world.pf.main = new,
        anchor => drop(world.pf.anchors.insert(anchor.to_owned(), new)),
    }
    for (name, file) in parsed.loads {
        let said = load(world, &name, &file, false);
        if said.code != 0 {
            return said;
        }
    }
    Said::nothing()
}
