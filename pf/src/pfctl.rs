//! Arguments for `pfctl`, and strict parsers for its output. The module runs no command.
//!
//! Behaviour of `pfctl`, recorded on FreeBSD 14.1:
//! - adding to a missing table creates it and succeeds; only a line on stderr reports it. No rule refers to such a table,
//!   so membership has no effect. [`Change::table_created`] and [`prove`] detect this;
//! - an invalid address is resolved as a host name, which can take minutes. Only parsed addresses are passed;
//! - listing a missing anchor exits with 0 and an error on stderr;
//! - deleting a member keeps its connections. Killing states by address keeps the translated ones; `-M` kills both.

use crate::pf_conf;
use crate::policy::Policy;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The arguments, without the program's name.
pub type Arguments = Vec<String>;

fn arguments(words: &[&str]) -> Arguments {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Adds members.
pub fn add(policy: &Policy, members: &[IpAddr]) -> Arguments {
    table_command(policy, "add", members)
}

/// Deletes members. Their connections stay until [`kill_states`].
pub fn delete(policy: &Policy, members: &[IpAddr]) -> Arguments {
    table_command(policy, "delete", members)
}

/// Lists the members.
pub fn show(policy: &Policy) -> Arguments {
    table_command(policy, "show", &[])
}

fn table_command(policy: &Policy, command: &str, members: &[IpAddr]) -> Arguments {
    let mut words = arguments(&["-t", &policy.set, "-T", command]);
    words.extend(members.iter().map(IpAddr::to_string));
    words
}

/// Kills the states of an address: one command for its outgoing connections, translated ones included, and one for
/// connections to it.
pub fn kill_states(address: IpAddr) -> [Arguments; 2] {
    let any = if address.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let address = address.to_string();
    [arguments(&["-M", "-k", &address]), arguments(&["-M", "-k", any, "-k", &address])]
}

/// Kills the states of all addresses of a network, in both directions and translated ones included.
pub fn kill_network_states(network: &IpNet) -> [Arguments; 2] {
    let any = if network.network().is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let network = network.to_string();
    [arguments(&["-M", "-k", &network]), arguments(&["-M", "-k", any, "-k", &network])]
}

/// Shows whether PF is enabled.
pub fn info() -> Arguments {
    arguments(&["-s", "info"])
}

/// Lists the tables of the main ruleset with the number of rules that refer to them.
pub fn tables() -> Arguments {
    arguments(&["-vvsT"])
}

/// Lists the filter rules of the main ruleset.
pub fn main_rules() -> Arguments {
    arguments(&["-sr"])
}

/// Lists the translation rules of the main ruleset.
pub fn main_nat() -> Arguments {
    arguments(&["-sn"])
}

/// Lists the anchor's filter rules, with numeric ports.
pub fn anchor_rules(policy: &Policy) -> Arguments {
    arguments(&["-a", &policy.anchor, "-P", "-sr"])
}

/// Lists the anchor's translation rules.
pub fn anchor_nat(policy: &Policy) -> Arguments {
    arguments(&["-a", &policy.anchor, "-P", "-sn"])
}

/// Shows the clones' bridge and whether PF skips it.
pub fn bridge(policy: &Policy) -> Arguments {
    arguments(&["-v", "-s", "Interfaces", "-i", &policy.bridge])
}

/// Lists the anchor's table of denied ranges.
pub fn anchor_denied(policy: &Policy) -> Arguments {
    arguments(&["-a", &policy.anchor, "-t", pf_conf::DENIED_TABLE, "-T", "show"])
}

/// Checks the syntax of the anchor's file without loading it.
pub fn check_anchor(policy: &Policy, file: &str) -> Arguments {
    arguments(&["-a", &policy.anchor, "-nf", file])
}

/// Loads only the anchor's rules. The members stay.
pub fn load_anchor(policy: &Policy, file: &str) -> Arguments {
    arguments(&["-a", &policy.anchor, "-f", file])
}

/// The output of `pfctl` could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse the output of pfctl {command}: expected {expected}, got {line:?}")]
pub struct ReadError {
    /// The arguments that name the output.
    pub command: &'static str,
    /// The line that was not understood.
    pub line: String,
    /// What was expected.
    pub expected: &'static str,
}

fn unreadable<T>(command: &'static str, line: &str, expected: &'static str) -> Result<T, ReadError> {
    Err(ReadError { command, line: line.to_owned(), expected })
}

/// Why `pfctl` failed, according to its stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The table does not exist.
    NoTable,
    /// The anchor does not exist. The exit status is 0.
    NoAnchor,
    /// The kernel module is not loaded.
    NoDevice,
    /// The caller is not root.
    Permission,
    /// `-e` while PF is enabled.
    AlreadyEnabled,
    /// `-d` while PF is disabled.
    NotEnabled,
    /// An argument is not an address.
    NotAnAddress,
    /// The file has a syntax error; nothing was loaded.
    Syntax,
    /// Any other error.
    Other(String),
}

/// Classifies stderr. `None` if it contains no error.
pub fn failure(stderr: &str) -> Option<Failure> {
    let mut other = None;
    for line in stderr.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let known = match line {
            "pfctl: Table does not exist." => Failure::NoTable,
            "pfctl: DIOCGETRULES: Invalid argument" => Failure::NoAnchor,
            "pfctl: /dev/pf: No such file or directory" => Failure::NoDevice,
            "pfctl: /dev/pf: Permission denied" => Failure::Permission,
            "pfctl: pf already enabled" => Failure::AlreadyEnabled,
            "pfctl: pf not enabled" => Failure::NotEnabled,
            _ if line.starts_with("no IP address found for") => Failure::NotAnAddress,
            _ if line.starts_with("pfctl: Syntax error in config file")
                || line.ends_with(": syntax error") =>
            {
                Failure::Syntax
            }
            _ if line.starts_with("pfctl: ") => {
                other.get_or_insert_with(|| Failure::Other(line.to_owned()));
                continue;
            }
            // Counts, "pf enabled" and "No ALTQ support in kernel" are not errors.
            _ => continue,
        };
        return Some(known);
    }
    other
}

/// Parses `-s info`: whether PF is enabled.
pub fn read_enabled(stdout: &str) -> Result<bool, ReadError> {
    let line = stdout.lines().next().unwrap_or_default();
    let state =
        line.strip_prefix("Status: ").and_then(|rest| rest.split_once(" for ")).map(|(state, _)| state);
    match state {
        Some("Enabled") => Ok(true),
        Some("Disabled") => Ok(false),
        _ => unreadable("-s info", line, "\"Status: Enabled for\" or \"Status: Disabled for\""),
    }
}

/// Parses `-v -s Interfaces`: whether PF ignores this interface (`set skip on`).
pub fn read_skipped(stdout: &str, interface: &str) -> Result<bool, ReadError> {
    for line in stdout.lines() {
        let (name, note) = line.split_once(' ').unwrap_or((line, ""));
        if name != interface {
            continue;
        }
        return match note {
            "" => Ok(false),
            "(skip)" => Ok(true),
            _ => unreadable("-s Interfaces", line, "a name, optionally followed by (skip)"),
        };
    }
    // PF lists every interface that a rule names. If this one is missing, the rules are not loaded, and `prove` reports
    // that.
    Ok(false)
}

/// Parses `-T show`: addresses and networks.
pub fn read_members(stdout: &str) -> Result<BTreeSet<IpNet>, ReadError> {
    let mut members = BTreeSet::new();
    for line in stdout.lines() {
        let Some(entry) = line.strip_prefix("   ") else {
            return unreadable("-T show", line, "three spaces and an address");
        };
        let net = match (entry.parse::<IpNet>(), entry.parse::<IpAddr>()) {
            (Ok(net), _) => net,
            (_, Ok(address)) => IpNet::from(address),
            // Negated entries are refused too: hostd never creates them.
            _ => return unreadable("-T show", line, "an address or a network"),
        };
        if !members.insert(net) {
            return unreadable("-T show", line, "each entry once");
        }
    }
    Ok(members)
}

/// The result of `-T add` or `-T delete`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The table did not exist. No rule refers to it, so membership has no effect.
    pub table_created: bool,
    /// How many entries changed.
    pub changed: usize,
    /// How many were given.
    pub given: usize,
}

/// Parses the stderr of `-T add` and `-T delete`.
pub fn read_change(stderr: &str) -> Result<Change, ReadError> {
    const EXPECTED: &str = "\"1/1 addresses added.\"";
    let command = "-T add|delete";
    let mut table_created = false;
    let mut lines = without_altq_notice(stderr).peekable();
    if lines.peek() == Some(&"1 table created.") {
        table_created = true;
        lines.next();
    }
    let line = lines.next().unwrap_or_default();
    let counts = line.strip_suffix(" addresses added.").or_else(|| line.strip_suffix(" addresses deleted."));
    let Some((changed, given)) = counts.and_then(|counts| counts.split_once('/')) else {
        return unreadable(command, line, EXPECTED);
    };
    let (Some(changed), Some(given)) = (number(changed), number(given)) else {
        return unreadable(command, line, EXPECTED);
    };
    if changed > given {
        return unreadable(command, line, "at most as many changed as given");
    }
    match lines.next() {
        Some(extra) => unreadable(command, extra, "no further line"),
        None => Ok(Change { table_created, changed, given }),
    }
}

/// The lines of stderr without the notice that every run prints on a kernel without ALTQ.
fn without_altq_notice(stderr: &str) -> impl Iterator<Item = &str> {
    const NO_ALTQ: [&str; 2] = ["No ALTQ support in kernel", "ALTQ related functions disabled"];
    stderr.lines().filter(|line| !NO_ALTQ.contains(line))
}

/// Parses digits only: no sign, no spaces.
fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Parses the stderr of `-k`: how many states were killed.
pub fn read_killed(stderr: &str) -> Result<usize, ReadError> {
    let line = without_altq_notice(stderr).next().unwrap_or_default();
    let killed = line.strip_prefix("killed ").and_then(|rest| rest.split_once(" states from "));
    match killed.and_then(|(killed, _)| number(killed)) {
        Some(killed) => Ok(killed),
        None => unreadable("-k", line, "\"killed 1 states from\""),
    }
}

/// A table as listed by `-vvsT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name, which may contain spaces.
    pub name: String,
    /// The anchor it belongs to; empty for the main ruleset.
    pub anchor: String,
    /// It is kept when no rule refers to it.
    pub persist: bool,
    /// Its entries cannot change.
    pub constant: bool,
    /// It is the active table and not a copy that a reload prepares.
    pub active: bool,
    /// Number of entries.
    pub addresses: usize,
    /// How many anchors refer to it.
    pub referring_anchors: usize,
    /// How many rules of its own ruleset refer to it.
    pub referring_rules: usize,
}

impl Table {
    /// Whether any rule refers to it.
    pub fn is_referred_to(&self) -> bool {
        self.referring_anchors + self.referring_rules > 0
    }
}

/// Parses `-vvsT`.
pub fn read_tables(stdout: &str) -> Result<Vec<Table>, ReadError> {
    let command = "-vvsT";
    let mut tables: Vec<Table> = Vec::new();
    let mut lines = stdout.lines();
    while let Some(line) = lines.next() {
        let Some((flags, names)) = line.split_once('\t').filter(|(flags, _)| !flags.is_empty()) else {
            return unreadable(command, line, "flags, a tab and a table's name");
        };
        let letters = "cpairhC";
        let known = flags.len() == letters.len()
            && flags.chars().zip(letters.chars()).all(|(flag, letter)| flag == '-' || flag == letter);
        if !known {
            return unreadable(command, line, "seven flags of cpairhC");
        }
        let (name, anchor) = names.split_once('\t').unwrap_or((names, ""));
        if name.is_empty() {
            return unreadable(command, line, "a table's name");
        }
        let mut field = |label: &'static str| -> Result<&str, ReadError> {
            let line = lines.next().unwrap_or_default();
            match line.strip_prefix('\t').and_then(|rest| rest.strip_prefix(label)) {
                Some(value) => Ok(value.trim()),
                None => unreadable(command, line, label),
            }
        };
        let addresses = field("Addresses:")?;
        field("Cleared:")?;
        let references = field("References:")?;
        for label in
            ["Evaluations:", "In/Block:", "In/Pass:", "In/XPass:", "Out/Block:", "Out/Pass:", "Out/XPass:"]
        {
            field(label)?;
        }
        let words: Vec<&str> = references.split_whitespace().collect();
        let referring = match words[..] {
            ["[", "Anchors:", anchors, "Rules:", rules, "]"] => number(anchors).zip(number(rules)),
            _ => None,
        };
        let Some((referring_anchors, referring_rules)) = referring else {
            return unreadable(command, references, "[ Anchors: N Rules: N ]");
        };
        let Some(addresses) = number(addresses) else {
            return unreadable(command, addresses, "a number of addresses");
        };
        let has = |letter| flags.contains(letter);
        tables.push(Table {
            name: name.into(),
            anchor: anchor.into(),
            persist: has('p'),
            constant: has('c'),
            active: has('a'),
            addresses,
            referring_anchors,
            referring_rules,
        });
    }
    Ok(tables)
}

/// Parses `-sr` or `-sn`: one rule per line, normalised to the form that [`pf_conf`] renders.
///
/// stderr is needed because the exit status does not report a missing anchor.
pub fn read_rules(stdout: &str, stderr: &str) -> Result<Vec<String>, Failure> {
    match failure(stderr) {
        Some(failure) => Err(failure),
        None => Ok(stdout.lines().map(normalise).filter(|line| !line.is_empty()).collect()),
    }
}

/// Removes from a rule what the administrator's settings and pfctl add without changing its meaning. The order of state
/// options and the spaces around them do not matter either.
fn normalise(line: &str) -> String {
    let line =
        match line.split_once(" state (").and_then(|(before, rest)| Some((before, rest.split_once(')')?))) {
            Some((before, (options, after))) => {
                // `set state-policy if-bound` in pf.conf appears in every rule; pfctl adds `src.track` to a rule with a rate.
                let added = |option: &&str| *option != "if-bound" && !option.starts_with("src.track ");
                let mut kept: Vec<&str> = options.split(',').map(str::trim).filter(added).collect();
                kept.sort_unstable();
                match kept.is_empty() {
                    true => format!("{before} state {after}"),
                    false => format!("{before} state ({}) {after}", kept.join(", ")),
                }
            }
            None => line.to_owned(),
        };
    let mut words: Vec<&str> = line.split_whitespace().collect();
    for at in 2..words.len() {
        if words[at - 2..at] == ["port", "="] {
            // Names of the ports that are rendered, for a pfctl without `-P`.
            words[at] = match words[at] {
                "domain" => "53",
                "domain-s" => "853",
                "http-alt" => "8080",
                other => other,
            };
        }
    }
    words.join(" ")
}

/// The parsed output that [`prove`] checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// From [`info`].
    pub enabled: bool,
    /// From [`bridge`].
    pub skipped: bool,
    /// From [`main_rules`].
    pub main_rules: Vec<String>,
    /// From [`main_nat`].
    pub main_nat: Vec<String>,
    /// From [`anchor_rules`]; empty if the anchor does not exist.
    pub anchor_rules: Vec<String>,
    /// From [`anchor_nat`].
    pub anchor_nat: Vec<String>,
    /// From [`anchor_denied`].
    pub denied: BTreeSet<IpNet>,
    /// From [`tables`].
    pub tables: Vec<Table>,
}

/// A difference between the loaded and the rendered rules. While there is one, the clones' bridge must be down.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// PF is disabled.
    #[error("PF is disabled and blocks nothing: run `service pf start`")]
    Disabled,
    /// PF ignores the clones' bridge.
    #[error(
        "pf.conf contains `set skip on {0}`, so no rule applies to the bridge: remove it and run `pfctl -f /etc/pf.conf`"
    )]
    Skipped(String),
    /// The main ruleset does not use the anchor.
    #[error("the loaded pf.conf does not contain `{0}`: add it and run `pfctl -f /etc/pf.conf`")]
    NotCalled(String),
    /// A `quick` rule precedes the anchor.
    #[error("the quick rule `{0}` precedes the anchor in pf.conf: move it after the anchor")]
    Shadowed(String),
    /// The anchor's rules differ from the rendered ones.
    #[error("the anchor's rules differ from the rendered ones ({0}): load the anchor again")]
    Anchor(String),
    /// The table of members is not declared, or no rule refers to it.
    #[error("table <{table}> {why}")]
    Table {
        /// The table.
        table: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Compares the loaded rules with the rendered ones. An empty list means that they are equivalent.
pub fn prove(policy: &Policy, observed: &Observed) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !observed.enabled {
        findings.push(Finding::Disabled);
    }
    if observed.skipped {
        findings.push(Finding::Skipped(policy.bridge.clone()));
    }
    findings.extend(prove_call(policy, &observed.main_rules));
    let nat = pf_conf::nat_rules(policy);
    let nat_anchor = format!("nat-anchor \"{}\"", policy.anchor);
    if !nat.is_empty() && !observed.main_nat.contains(&format!("{nat_anchor} all")) {
        findings.push(Finding::NotCalled(nat_anchor));
    }
    findings.extend(prove_anchor(policy, &observed.anchor_rules));
    let nat_fits = nat.len() == observed.anchor_nat.len()
        && nat.iter().zip(&observed.anchor_nat).all(|(rule, found)| {
            // PF appends the port selection, such as `round-robin`.
            found.strip_prefix(rule.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
    if !nat_fits {
        findings.push(Finding::Anchor("its translation rules differ".into()));
    }
    if observed.denied != pf_conf::denied_table(policy) {
        findings.push(Finding::Anchor(format!("<{}> has other entries", pf_conf::DENIED_TABLE)));
    }
    let table = |why| Finding::Table { table: policy.set.clone(), why };
    match observed.tables.iter().find(|found| found.name == policy.set && found.anchor.is_empty()) {
        None => findings.push(table("does not exist: run `pfctl -f /etc/pf.conf`")),
        Some(found) if !found.active || !found.persist => {
            findings.push(table(
                "is not declared `persist` in pf.conf: declare it and run `pfctl -f /etc/pf.conf`",
            ));
        }
        Some(found) if !found.is_referred_to() => {
            findings.push(table("is used by no rule, so membership has no effect: load the anchor"));
        }
        Some(_) => {}
    }
    findings
}

/// Whether the filter rules of the main ruleset use the anchor, before any `quick` rule.
pub fn prove_call(policy: &Policy, main_rules: &[String]) -> Option<Finding> {
    let anchor = format!("anchor \"{}\" all", policy.anchor);
    let Some(at) = main_rules.iter().position(|rule| *rule == anchor) else {
        return Some(Finding::NotCalled(format!("anchor \"{}\"", policy.anchor)));
    };
    let quick = |rule: &&String| rule.split_whitespace().any(|word| word == "quick");
    main_rules[..at].iter().find(quick).cloned().map(Finding::Shadowed)
}

/// Whether the anchor's filter rules are the rendered ones.
pub fn prove_anchor(policy: &Policy, anchor_rules: &[String]) -> Option<Finding> {
    let anchor_rules: Vec<String> = anchor_rules.iter().map(|rule| normalise(rule)).collect();
    let rules: Vec<String> = pf_conf::filter_rules(policy).iter().map(|rule| normalise(rule)).collect();
    let at = (0..rules.len().max(anchor_rules.len())).find(|&at| rules.get(at) != anchor_rules.get(at))?;
    Some(Finding::Anchor(match (rules.get(at), anchor_rules.get(at)) {
        (Some(rule), Some(found)) => format!("`{found}` instead of `{rule}`"),
        (Some(rule), None) => format!("`{rule}` is missing"),
        (None, found) => format!("`{}` is unexpected", found.map_or("", String::as_str)),
    }))
}
