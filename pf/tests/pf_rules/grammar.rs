//! A strict parser for the part of pf.conf(5) that is rendered or recorded, and a model of PF's rule evaluation.
//!
//! Everything else is an error, so a rendered line that PF would reject fails the tests.

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ruleset {
    pub(crate) tables: BTreeMap<String, Table>,
    pub(crate) nat: Vec<Nat>,
    pub(crate) rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) constant: bool,
    pub(crate) persist: bool,
    pub(crate) entries: Vec<IpNet>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nat {
    pub(crate) interface: String,
    pub(crate) from: Hosts,
    pub(crate) to: Hosts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hosts {
    Any,
    Host,
    Net(IpNet),
    Table(String),
    Not(Box<Hosts>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) pass: bool,
    /// `in` or `out`; `None` means both.
    pub(crate) direction: Option<String>,
    pub(crate) quick: bool,
    pub(crate) interface: Option<String>,
    pub(crate) v4: Option<bool>,
    pub(crate) protocol: Option<String>,
    pub(crate) from: Hosts,
    pub(crate) to: Hosts,
    pub(crate) port: Option<u16>,
    pub(crate) user: Option<u32>,
    pub(crate) icmp6: Option<String>,
    pub(crate) keeps_state: bool,
    pub(crate) label: Option<String>,
}

/// The packet properties that rules match.
#[derive(Debug, Clone)]
pub(crate) struct Packet<'a> {
    pub(crate) direction: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) protocol: &'a str,
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
    pub(crate) user: u32,
}

/// Splits a line into words. Quotes stay part of their word.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let length = if let Some(quoted) = rest.strip_prefix('"') {
            quoted.find('"').ok_or("unterminated quote")? + 2
        } else if rest.starts_with(['{', '}', ',', '=', '!']) {
            1
        } else {
            rest.find(|c: char| c.is_whitespace() || "{},=!\"".contains(c)).unwrap_or(rest.len())
        };
        words.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(words)
}

impl Ruleset {
    /// Parses a whole file. With `plain`, macros and lists are refused.
    pub(crate) fn read(text: &str, plain: bool) -> Result<Ruleset, String> {
        let mut set = Ruleset::default();
        let mut macros: BTreeMap<String, String> = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let fail = |why: String| format!("line {}: {why}: {line}", number + 1);
            let mut tokens = Vec::new();
            for word in words(line).map_err(fail)? {
                let Some((before, name)) = word.split_once('$') else {
                    tokens.push(word);
                    continue;
                };
                let (name, after) = name.split_once(')').map_or((name, ""), |(name, _)| (name, ")"));
                let value = macros.get(name).ok_or_else(|| fail(format!("no macro {name}")))?;
                tokens.push(format!("{before}{value}{after}"));
            }
            let texts: Vec<&str> = tokens.iter().map(String::as_str).collect();
            match texts[..] {
                [name, "=", value] if !plain => {
                    macros.insert(name.to_owned(), value.trim_matches('"').to_owned());
                }
                ["set", "skip", "on", _] if !plain => {}
                ["table", ..] => {
                    let (name, table) = read_table(&texts).map_err(fail)?;
                    if set.tables.insert(name.clone(), table).is_some() {
                        return Err(fail(format!("table {name} is declared twice")));
                    }
                }
                ["nat", "on", interface, "inet", "from", ref rest @ ..] => {
                    if !set.rules.is_empty() {
                        return Err(fail("translation after filtering".into()));
                    }
                    let mut rest = rest.iter().copied();
                    let from = read_hosts(&mut rest).map_err(fail)?;
                    expect(&mut rest, "to").map_err(fail)?;
                    let to = read_hosts(&mut rest).map_err(fail)?;
                    let tail: Vec<&str> = rest.collect();
                    if tail != ["->", &format!("({interface})")] {
                        return Err(fail("unsupported translation target".into()));
                    }
                    set.nat.push(Nat { interface: interface.into(), from, to });
                }
                ["pass" | "block", ..] => {
                    for texts in expand(&texts, plain).map_err(fail)? {
                        set.rules.push(read_rule(&texts, plain).map_err(fail)?);
                    }
                }
                _ => return Err(fail("unknown statement".into())),
            }
        }
        Ok(set)
    }

    /// PF's decision: the first matching quick rule, otherwise the last matching rule, otherwise pass.
    pub(crate) fn passes(&self, packet: &Packet<'_>, members: &[IpAddr], host: &[IpAddr]) -> bool {
        let mut pass = true;
        for rule in self.rules.iter().filter(|rule| self.matches(rule, packet, members, host)) {
            pass = rule.pass;
            if rule.quick {
                break;
            }
        }
        pass
    }

    fn matches(&self, rule: &Rule, packet: &Packet<'_>, members: &[IpAddr], host: &[IpAddr]) -> bool {
        let includes = |hosts: &Hosts, ip: IpAddr| self.includes(hosts, ip, members, host);
        rule.direction.as_deref().is_none_or(|direction| direction == packet.direction)
            && rule.interface.as_deref().is_none_or(|interface| interface == packet.interface)
            && rule.v4.is_none_or(|v4| v4 == packet.from.is_ipv4())
            && rule.protocol.as_deref().is_none_or(|protocol| protocol == packet.protocol)
            && rule.port.is_none_or(|port| port == packet.port)
            && rule.user.is_none_or(|user| user == packet.user)
            && rule.icmp6.is_none()
            && includes(&rule.from, packet.from)
            && includes(&rule.to, packet.to)
    }

    fn includes(&self, hosts: &Hosts, ip: IpAddr, members: &[IpAddr], host: &[IpAddr]) -> bool {
        match hosts {
            Hosts::Any => true,
            Hosts::Host => host.contains(&ip),
            Hosts::Net(net) => net.contains(&ip),
            Hosts::Table(name) if name == "browser_tasks" => members.contains(&ip),
            Hosts::Table(name) => self.tables[name].entries.iter().any(|net| net.contains(&ip)),
            Hosts::Not(inner) => !self.includes(inner, ip, members, host),
        }
    }
}

/// Expands `{ a b }` to one rule per item.
fn expand<'a>(texts: &[&'a str], plain: bool) -> Result<Vec<Vec<&'a str>>, String> {
    let Some(open) = texts.iter().position(|text| *text == "{") else { return Ok(vec![texts.to_vec()]) };
    if plain {
        return Err("lists are not allowed".into());
    }
    let close = texts.iter().position(|text| *text == "}").ok_or("unterminated list")?;
    let items = texts[open + 1..close].iter().filter(|item| **item != ",");
    Ok(items.map(|item| [&texts[..open], &[*item], &texts[close + 1..]].concat()).collect())
}

fn expect<'a>(words: &mut impl Iterator<Item = &'a str>, expected: &str) -> Result<(), String> {
    match words.next() {
        Some(word) if word == expected => Ok(()),
        other => Err(format!("{other:?} instead of {expected}")),
    }
}

/// Parses the options of `keep state`, with what pfctl's grammar refuses.
fn read_state_options<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut text = String::new();
    while !text.ends_with(')') {
        text = format!("{text} {}", words.next().ok_or("no end of the options")?);
    }
    let inner = text.trim().strip_prefix('(').and_then(|text| text.strip_suffix(')')).ok_or("no options")?;
    let (mut global, mut rate) = (false, false);
    for option in inner.split(',').map(str::trim) {
        let (name, value) = option.split_once(' ').ok_or_else(|| format!("{option} has no value"))?;
        match name {
            "source-track" if value == "rule" || value == "global" => global = value == "global",
            "max-src-states" | "src.track" if value.parse::<u32>().is_ok() => {}
            "max-src-conn-rate" => {
                // PF_THRESHOLD_MAX of the kernel.
                let fits = |(limit, seconds): (&str, &str)| {
                    Some(limit.parse::<u32>().ok()? < u32::MAX / 1000 && seconds.parse::<u32>().ok()? > 0)
                };
                rate = value.split_once('/').and_then(fits).unwrap_or(false);
                if !rate {
                    return Err(format!("{value} is no rate"));
                }
            }
            _ => return Err(format!("unknown option {option}")),
        }
    }
    match global && rate {
        true => Err("'max-src-conn-rate' is incompatible with 'source-track global'".into()),
        false => Ok(()),
    }
}

fn read_table(texts: &[&str]) -> Result<(String, Table), String> {
    let name = texts
        .get(1)
        .and_then(|name| name.strip_prefix('<')?.strip_suffix('>'))
        .ok_or("missing table name")?;
    if name.is_empty() || name.len() > 31 {
        return Err("a table's name has 1 to 31 characters".into());
    }
    let mut table = Table { constant: false, persist: false, entries: Vec::new() };
    let mut rest = texts[2..].iter().copied();
    while let Some(word) = rest.next() {
        match word {
            "const" => table.constant = true,
            "persist" => table.persist = true,
            "{" => loop {
                let entry = rest.next().ok_or("unterminated list")?;
                let net = entry.parse().or_else(|_| entry.parse::<IpAddr>().map(IpNet::from));
                table.entries.push(net.map_err(|_| format!("{entry} is not a network"))?);
                match rest.next() {
                    Some(",") => {}
                    Some("}") => break,
                    other => return Err(format!("{other:?} in a list")),
                }
            },
            other => return Err(format!("{other} in a table")),
        }
    }
    Ok((name.into(), table))
}

fn read_hosts<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Hosts, String> {
    let word = words.next().ok_or("hosts are missing")?;
    Ok(match word {
        "any" => Hosts::Any,
        "self" | "(self)" => Hosts::Host,
        "!" => Hosts::Not(Box::new(read_hosts(words)?)),
        _ => match word.strip_prefix('<').and_then(|name| name.strip_suffix('>')) {
            Some(name) => Hosts::Table(name.into()),
            None => {
                let net = word.parse().or_else(|_| word.parse::<IpAddr>().map(IpNet::from));
                Hosts::Net(net.map_err(|_| format!("{word} is neither address, network nor table"))?)
            }
        },
    })
}

fn read_rule(texts: &[&str], plain: bool) -> Result<Rule, String> {
    let mut words = texts.iter().copied().peekable();
    let pass = match words.next() {
        Some("pass") => true,
        Some("block") => {
            let how = words.next();
            if !matches!(how, Some("drop" | "return")) {
                return Err(format!("{how:?} instead of drop or return"));
            }
            false
        }
        other => return Err(format!("{other:?} is not an action")),
    };
    let direction = words.next_if(|word| matches!(*word, "in" | "out")).map(str::to_owned);
    let quick = words.next_if_eq(&"quick").is_some();
    let interface = match words.next_if_eq(&"on") {
        Some(_) => Some(words.next().ok_or("no interface")?.to_owned()),
        None => None,
    };
    let v4 = words.next_if(|word| matches!(*word, "inet" | "inet6")).map(|family| family == "inet");
    let protocol = match words.next_if_eq(&"proto") {
        Some(_) => {
            let protocol = words.next().ok_or("no protocol")?;
            if !["tcp", "udp", "ipv6-icmp"].contains(&protocol) {
                return Err(format!("protocol {protocol}"));
            }
            Some(protocol.to_owned())
        }
        None => None,
    };
    let mut rule = Rule {
        pass,
        direction,
        quick,
        interface,
        v4,
        protocol,
        from: Hosts::Any,
        to: Hosts::Any,
        port: None,
        user: None,
        icmp6: None,
        keeps_state: pass,
        label: None,
    };
    match words.next() {
        Some("all") => {}
        Some("from") => {
            rule.from = read_hosts(&mut words)?;
            expect(&mut words, "to")?;
            rule.to = read_hosts(&mut words)?;
            if words.next_if_eq(&"port").is_some() {
                words.next_if_eq(&"=");
                let port = words.next().ok_or("no port")?;
                rule.port = Some(port.parse().map_err(|_| format!("port {port}"))?);
            }
        }
        // A rule without hosts, such as `block drop in quick on em0`, applies to all.
        None if !plain => return Ok(rule),
        other => return Err(format!("{other:?} instead of hosts")),
    }
    if rule.port.is_some() && !matches!(rule.protocol.as_deref(), Some("tcp" | "udp")) {
        return Err("a port needs tcp or udp".into());
    }
    let families = [&rule.from, &rule.to].map(|hosts| match hosts {
        Hosts::Net(net) => Some(matches!(net, IpNet::V4(_))),
        _ => None,
    });
    for family in families.into_iter().flatten() {
        if rule.v4.is_some_and(|v4| v4 != family) {
            return Err("an address of the other family".into());
        }
    }
    while let Some(word) = words.next() {
        match word {
            "user" => {
                expect(&mut words, "=")?;
                let user = words.next().ok_or("no user")?;
                rule.user = Some(user.parse().map_err(|_| format!("user {user}"))?);
            }
            "flags" if pass => expect(&mut words, "S/SA")?,
            "icmp6-type" if rule.protocol.as_deref() == Some("ipv6-icmp") => {
                let kind = words.next().ok_or("no type")?;
                if !["neighbrsol", "neighbradv"].contains(&kind) {
                    return Err(format!("ICMPv6 type {kind}"));
                }
                rule.icmp6 = Some(kind.into());
            }
            "keep" if pass => {
                expect(&mut words, "state")?;
                if words.peek().is_some_and(|word| word.starts_with('(')) {
                    read_state_options(&mut words)?;
                }
            }
            "no" if pass => {
                expect(&mut words, "state")?;
                rule.keeps_state = false;
            }
            "label" => {
                let label = words.next().and_then(|label| label.strip_prefix('"')?.strip_suffix('"'));
                let label = label.filter(|label| (1..=63).contains(&label.len())).ok_or("no label")?;
                rule.label = Some(label.into());
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(rule)
}
