//! How pfctl(8) reads rules and shows what is loaded.

use crate::fake::Said;
use crate::world::{Ruleset, StateKind, Table, World};
use std::collections::BTreeSet;
use std::fmt::Write;

/// A file of rules, read.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) ruleset: Ruleset,
    /// Tables whose declaration lists entries.
    pub(super) with_list: BTreeSet<String>,
    /// Anchors that the rules name.
    pub(super) anchors: BTreeSet<String>,
    /// Anchors to be loaded, and from which file.
    pub(super) loads: Vec<(String, String)>,
}

/// Read rules; the error is the line and what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Parsed, (usize, String)> {
    let mut parsed = Parsed::default();
    let mut filtering = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let wrong = |why: &str| Err((at + 1, why.to_owned()));
        let words: Vec<&str> = line.split_whitespace().collect();
        let quoted = |word: &str| word.trim_matches('"').to_owned();
        if let Some(name) = line.split('$').nth(1) {
            let name: String =
                name.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            return wrong(&format!("macro '{name}' not defined"));
        }
        match words[..] {
            [] => {}
            ["table", name, ..] if name.starts_with('<') && name.ends_with('>') => {
                let name = name.trim_matches(['<', '>']).to_owned();
                let list = line.split_once('{').map(|(_, list)| list.trim_end_matches('}'));
                let entries = list.into_iter().flat_map(|list| list.split([',', ' ']));
                let members = entries.map(str::trim).filter(|entry| !entry.is_empty());
                // One address is listed without its length.
                let whole = |entry: &str| if entry.contains(':') { "/128" } else { "/32" };
                let members = members.map(|entry| entry.trim_end_matches(whole(entry)).to_owned()).collect();
                if list.is_some() {
                    parsed.with_list.insert(name.clone());
                }
                let (persist, constant) = (words.contains(&"persist"), words.contains(&"const"));
                parsed.ruleset.tables.insert(name, Table { persist, constant, members });
            }
            ["set" | "scrub" | "nat" | "rdr" | "nat-anchor" | "rdr-anchor", ..] if filtering => {
                return wrong(
                    "Rules must be in order: options, ethernet, normalization, queueing, translation, filtering",
                );
            }
            ["set", "skip", "on", ..] => {
                let names = words[3..]
                    .iter()
                    .map(|word| word.trim_matches(['{', '}', ',']))
                    .filter(|word| !word.is_empty());
                parsed.ruleset.skip.extend(names.map(str::to_owned));
            }
            ["set", ..] => {}
            ["scrub", ..] => parsed.ruleset.filter.push(line.to_owned()),
            ["nat-anchor" | "rdr-anchor", name, ..] => {
                parsed.anchors.insert(quoted(name).trim_end_matches("/*").to_owned());
                parsed.ruleset.nat.push(format!("{line} all"));
            }
            ["nat" | "rdr" | "no", ..] => {
                // How a port is chosen is listed behind.
                let round_robin = if line.ends_with(')') { " round-robin" } else { "" };
                parsed.ruleset.nat.push(format!("{line}{round_robin}"));
            }
            ["load", "anchor", name, "from", file] => parsed.loads.push((quoted(name), quoted(file))),
            ["anchor", name, ..] => {
                filtering = true;
                parsed.anchors.insert(quoted(name));
                parsed.ruleset.filter.push(format!("{line} all"));
            }
            ["pass" | "block", ..] => {
                filtering = true;
                parsed.ruleset.filter.push(listed(line));
            }
            _ => return wrong("syntax error"),
        }
    }
    Ok(parsed)
}

/// A filter rule the way pfctl lists it: with what it left out.
fn listed(rule: &str) -> String {
    let mut rule = rule.to_owned();
    if let Some(short) = rule.strip_suffix(" from any") {
        rule = format!("{short} all");
    }
    if rule.starts_with("block ") && !rule.starts_with("block drop") && !rule.starts_with("block return") {
        rule = rule.replacen("block", "block drop", 1);
    }
    if rule.starts_with("pass") && !rule.contains(" keep state") && !rule.contains(" no state") {
        let flags = if rule.contains(" proto udp") { "" } else { " flags S/SA" };
        rule.push_str(&format!("{flags} keep state"));
    }
    rule
}

pub(super) fn show(world: &World, anchor: &str, what: &str, numbers: bool, verbose: bool) -> Said {
    let found = match anchor {
        "" => Some(&world.pf.main),
        anchor => world.pf.anchors.get(anchor),
    };
    let none = Ruleset::default();
    let ruleset = found.unwrap_or(&none);
    match what {
        "info" | "i" => Said::out(info(world)),
        "r" | "rules" | "n" | "nat" if found.is_none() => {
            Said::err(0, "pfctl: DIOCGETRULES: Invalid argument\n")
        }
        "r" | "rules" => Said::out(lines(&ruleset.filter, numbers)),
        "n" | "nat" => Said::out(lines(&ruleset.nat, numbers)),
        "T" | "Tables" if verbose => Said::out(tables(world, ruleset, anchor)),
        "T" | "Tables" => {
            Said::out(ruleset.tables.keys().map(|name| format!("{name}\n")).collect::<String>())
        }
        "A" | "Anchors" => {
            Said::out(world.pf.anchors.keys().map(|name| format!("  {name}\n")).collect::<String>())
        }
        "I" | "Interfaces" => {
            let one = |name: &String| match verbose && world.pf.main.skip.contains(name) {
                true => format!("{name} (skip)\n"),
                false => format!("{name}\n"),
            };
            Said::out(world.interfaces.iter().map(|interface| one(&interface.name)).collect::<String>())
        }
        "s" | "states" => Said::out(states(world)),
        other => Said::err(1, format!("pfctl: Unknown show modifier '{other}'\n")),
    }
}

fn lines(rules: &[String], numbers: bool) -> String {
    let line = |rule: &String| {
        let mut rule = rule.clone();
        if !numbers {
            for (number, name) in [("53", "domain"), ("853", "domain-s"), ("8080", "http-alt")] {
                rule = rule.replace(&format!(" port = {number} "), &format!(" port = {name} "));
            }
        }
        format!("{rule}\n")
    };
    rules.iter().map(line).collect()
}

fn info(world: &World) -> String {
    let status = if world.pf.enabled { "Enabled" } else { "Disabled" };
    let first = format!("Status: {status} for 0 days 00:00:02");
    let mut text =
        format!("{first:<46}Debug: Urgent\n\nState Table                          Total             Rate\n");
    let current = world.pf.states.len();
    let _ = writeln!(text, "  {:<24}{current:>16} {:>14}", "current entries", "");
    for name in ["searches", "inserts", "removals"] {
        let _ = writeln!(text, "  {name:<24}{:>16} {:>16}", 0, "0.0/s");
    }
    text.push_str("Counters\n");
    for name in [
        "match",
        "bad-offset",
        "fragment",
        "short",
        "normalize",
        "memory",
        "bad-timestamp",
        "congestion",
        "ip-option",
        "proto-cksum",
        "state-mismatch",
        "state-insert",
        "state-limit",
        "src-limit",
        "synproxy",
        "map-failed",
    ] {
        let _ = writeln!(text, "  {name:<24}{:>16} {:>16}", 0, "0.0/s");
    }
    text
}

/// How many rules name a table.
fn referring(rules: &Ruleset, name: &str) -> usize {
    let name = format!("<{name}>");
    rules.filter.iter().chain(&rules.nat).map(|rule| rule.matches(&name).count()).sum()
}

fn tables(world: &World, ruleset: &Ruleset, anchor: &str) -> String {
    let mut text = String::new();
    for (name, table) in &ruleset.tables {
        let rules = referring(ruleset, name);
        // An anchor's rules that name a table which the anchor does not have mean the main ruleset's.
        let borrows = |(other, rules): &(&String, &Ruleset)| {
            anchor.is_empty()
                && *other != anchor
                && !rules.tables.contains_key(name)
                && referring(rules, name) > 0
        };
        let anchors = world.pf.anchors.iter().filter(borrows).count();
        let flag = |set: bool, letter: char| if set { letter } else { '-' };
        let _ = write!(text, "{}{}a-", flag(table.constant, 'c'), flag(table.persist, 'p'));
        let _ = writeln!(text, "{}{}-\t{name}", flag(rules > 0, 'r'), flag(anchors > 0, 'h'));
        let _ = writeln!(text, "\tAddresses:   {}", table.members.len());
        text.push_str("\tCleared:     Mon Nov 16 00:48:32 2026\n");
        let _ = writeln!(text, "\tReferences:  [ Anchors: {anchors:<18} Rules: {rules:<18} ]");
        let _ = writeln!(text, "\tEvaluations: [ NoMatch: {:<18} Match: {:<18} ]", 0, 0);
        for label in ["In/Block:", "In/Pass:", "In/XPass:", "Out/Block:", "Out/Pass:", "Out/XPass:"] {
            let _ = writeln!(text, "\t{label:<12} [ Packets: {:<18} Bytes: {:<18} ]", 0, 0);
        }
    }
    text
}

fn states(world: &World) -> String {
    let line = |state: &crate::State| {
        let (source, destination) = (&state.source, &state.destination);
        let ends = match state.kind {
            StateKind::Inner => format!("{destination} <- {source}"),
            StateKind::Translated => format!("203.0.113.254:58960 ({source}) -> {destination}"),
            StateKind::ToClone => format!("{source} -> {destination}"),
        };
        format!("all tcp {ends}       ESTABLISHED:ESTABLISHED\n")
    };
    world.pf.states.iter().map(line).collect()
}
