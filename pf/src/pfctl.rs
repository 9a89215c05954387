//! `pfctl`: the arguments for each operation, and strict readers of what it says.
//!
//! Nothing is run here. What must be known about it (recorded on FreeBSD 14.1):
//! - adding to a table that does not exist makes it, with success; only a line on stderr tells. Rules do not refer to
//!   such a table, so membership has no effect: hence [`Change::table_created`] and [`prove`];
//! - an address that is not one is taken for a host name and looked up, for minutes: only parsed addresses go in;
//! - listing an anchor that does not exist succeeds, with an error on stderr;
//! - deleting a member keeps its connections, and ending those by address keeps the translated ones: `-M` takes both.

use crate::pf_conf;
use crate::policy::Policy;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Arguments, without the program.
pub type Arguments = Vec<String>;

fn arguments(words: &[&str]) -> Arguments {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Lets addresses out.
pub fn add(policy: &Policy, members: &[IpAddr]) -> Arguments {
    table_command(policy, "add", members)
}

/// Cuts addresses off. Their connections stay: [`kill_states`] comes next.
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

/// Ends the connections an address made, translated ones too, and those made to it: one command each.
pub fn kill_states(address: IpAddr) -> [Arguments; 2] {
    let everybody = if address.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let address = address.to_string();
    [arguments(&["-M", "-k", &address]), arguments(&["-M", "-k", everybody, "-k", &address])]
}

/// Whether PF is on.
pub fn info() -> Arguments {
    arguments(&["-s", "info"])
}

/// The tables of the main ruleset and whether rules refer to them.
pub fn tables() -> Arguments {
    arguments(&["-vvsT"])
}

/// The rules of the main ruleset.
pub fn main_rules() -> Arguments {
    arguments(&["-sr"])
}

/// The translation of the main ruleset.
pub fn main_nat() -> Arguments {
    arguments(&["-sn"])
}

/// The anchor's rules, ports as numbers.
pub fn anchor_rules(policy: &Policy) -> Arguments {
    arguments(&["-a", &policy.anchor, "-P", "-sr"])
}

/// The anchor's translation.
pub fn anchor_nat(policy: &Policy) -> Arguments {
    arguments(&["-a", &policy.anchor, "-P", "-sn"])
}

/// The clones' bridge as PF knows it, and whether it is told to leave it alone.
pub fn bridge(policy: &Policy) -> Arguments {
    arguments(&["-v", "-s", "Interfaces", "-i", &policy.bridge])
}

/// What the anchor denies.
pub fn anchor_denied(policy: &Policy) -> Arguments {
    arguments(&["-a", &policy.anchor, "-t", pf_conf::DENIED_TABLE, "-T", "show"])
}

/// Checks the anchor's file without loading it.
pub fn check_anchor(policy: &Policy, file: &str) -> Arguments {
    arguments(&["-a", &policy.anchor, "-nf", file])
}

/// Loads the anchor's rules and nothing else. The members stay.
pub fn load_anchor(policy: &Policy, file: &str) -> Arguments {
    arguments(&["-a", &policy.anchor, "-f", file])
}

/// What `pfctl` said could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pfctl {command}: cannot read {line:?}: {expected} was expected")]
pub struct ReadError {
    /// Which output.
    pub command: &'static str,
    /// The line that is not understood.
    pub line: String,
    /// What should have been there.
    pub expected: &'static str,
}

fn unreadable<T>(command: &'static str, line: &str, expected: &'static str) -> Result<T, ReadError> {
    Err(ReadError { command, line: line.to_owned(), expected })
}

/// Why `pfctl` failed, from its stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// No such table.
    NoTable,
    /// No such anchor. Comes with exit status 0.
    NoAnchor,
    /// The kernel module is not loaded.
    NoDevice,
    /// Not root.
    Permission,
    /// `-e` while it is on.
    AlreadyEnabled,
    /// `-d` while it is off.
    NotEnabled,
    /// An argument is no address.
    NotAnAddress,
    /// The rules' file has an error; nothing was loaded.
    Syntax,
    /// Anything else.
    Other(String),
}

/// Classifies stderr; None if nothing in it is an error.
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
            // Counts, "pf enabled", "No ALTQ support in kernel": no errors.
            _ => continue,
        };
        return Some(known);
    }
    other
}

/// Reads `-s info`: whether PF is on.
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

/// Reads `-v -s Interfaces`: whether PF passes everything on this interface, whatever the rules say (`set skip on`).
pub fn read_skipped(stdout: &str, interface: &str) -> Result<bool, ReadError> {
    for line in stdout.lines() {
        let (name, note) = line.split_once(' ').unwrap_or((line, ""));
        if name != interface {
            continue;
        }
        return match note {
            "" => Ok(false),
            "(skip)" => Ok(true),
            _ => unreadable("-s Interfaces", line, "a name, and perhaps (skip)"),
        };
    }
    // PF knows every interface that a rule names; one it does not know is in no loaded rule, which the rules show.
    Ok(false)
}

/// Reads `-T show`: addresses and networks.
pub fn read_members(stdout: &str) -> Result<BTreeSet<IpNet>, ReadError> {
    let mut members = BTreeSet::new();
    for line in stdout.lines() {
        let Some(entry) = line.strip_prefix("   ") else {
            return unreadable("-T show", line, "three spaces and an address");
        };
        let net = match (entry.parse::<IpNet>(), entry.parse::<IpAddr>()) {
            (Ok(net), _) => net,
            (_, Ok(address)) => IpNet::from(address),
            // Negated entries too: nobody here makes them.
            _ => return unreadable("-T show", line, "an address or a network"),
        };
        if !members.insert(net) {
            return unreadable("-T show", line, "each entry once");
        }
    }
    Ok(members)
}

/// What a `-T add` or `-T delete` did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The table did not exist: no rule refers to it, and the membership means nothing.
    pub table_created: bool,
    /// How many entries really changed.
    pub changed: usize,
    /// How many were given.
    pub given: usize,
}

/// Reads the stderr of `-T add` and `-T delete`.
pub fn read_change(stderr: &str) -> Result<Change, ReadError> {
    const EXPECTED: &str = "\"1/1 addresses added.\"";
    let command = "-T add|delete";
    let mut table_created = false;
    let mut lines = spoken(stderr).peekable();
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
        return unreadable(command, line, "no more changed than given");
    }
    match lines.next() {
        Some(extra) => unreadable(command, extra, "nothing more"),
        None => Ok(Change { table_created, changed, given }),
    }
}

/// What pfctl says to stderr, without what it says in every run on a kernel that has no ALTQ.
fn spoken(stderr: &str) -> impl Iterator<Item = &str> {
    const NO_ALTQ: [&str; 2] = ["No ALTQ support in kernel", "ALTQ related functions disabled"];
    stderr.lines().filter(|line| !NO_ALTQ.contains(line))
}

/// Digits only: no sign, no spaces.
fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Reads the stderr of `-k`: how many states were ended.
pub fn read_killed(stderr: &str) -> Result<usize, ReadError> {
    let line = spoken(stderr).next().unwrap_or_default();
    let killed = line.strip_prefix("killed ").and_then(|rest| rest.split_once(" states from "));
    match killed.and_then(|(killed, _)| number(killed)) {
        Some(killed) => Ok(killed),
        None => unreadable("-k", line, "\"killed 1 states from\""),
    }
}

/// A table as `-vvsT` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name, which may contain spaces.
    pub name: String,
    /// The anchor it belongs to; empty for the main ruleset.
    pub anchor: String,
    /// It stays when no rule refers to it.
    pub persist: bool,
    /// Its contents cannot change.
    pub constant: bool,
    /// It is in use rather than a shadow of a reload.
    pub active: bool,
    /// Number of entries.
    pub addresses: usize,
    /// How many anchors' rules refer to it.
    pub referring_anchors: usize,
    /// How many rules of its own ruleset refer to it.
    pub referring_rules: usize,
}

impl Table {
    /// Whether anything depends on who is in it.
    pub fn is_referred_to(&self) -> bool {
        self.referring_anchors + self.referring_rules > 0
    }
}

/// Reads `-vvsT`.
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

/// Reads `-sr` or `-sn`: one rule a line, in the form that [`pf_conf`] renders.
///
/// Its stderr decides whether the anchor exists at all, because the exit status does not.
pub fn read_rules(stdout: &str, stderr: &str) -> Result<Vec<String>, Failure> {
    match failure(stderr) {
        Some(failure) => Err(failure),
        None => Ok(stdout.lines().map(plain).filter(|line| !line.is_empty()).collect()),
    }
}

/// A rule without what the administrator's settings may add and what means the same.
fn plain(line: &str) -> String {
    // `set state-policy if-bound` in pf.conf shows in every rule.
    let mut words: Vec<&str> = line.split_whitespace().filter(|word| *word != "(if-bound)").collect();
    for at in 2..words.len() {
        if words[at - 2..at] == ["port", "="] {
            // The names of our ports, should `-P` not be known.
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

/// Everything a proof looks at, read.
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
    /// From [`anchor_rules`]; none if there is no such anchor.
    pub anchor_rules: Vec<String>,
    /// From [`anchor_nat`].
    pub anchor_nat: Vec<String>,
    /// From [`anchor_denied`].
    pub denied: BTreeSet<IpNet>,
    /// From [`tables`].
    pub tables: Vec<Table>,
}

/// What is wrong with the loaded rules. Any of them means: the clones' bridge goes down until it is gone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// PF is off.
    #[error("PF is off and blocks nothing: `service pf start`")]
    Disabled,
    /// PF does not look at the clones' bridge.
    #[error(
        "pf.conf says `set skip on {0}`, so that no rule counts there: remove it and run `pfctl -f /etc/pf.conf`"
    )]
    Skipped(String),
    /// The main ruleset does not use the anchor.
    #[error("the loaded pf.conf does not contain `{0}`: add it and run `pfctl -f /etc/pf.conf`")]
    NotCalled(String),
    /// A rule before the anchor can decide first.
    #[error("the rule `{0}` comes before the anchor and is quick: move it behind")]
    Shadowed(String),
    /// The anchor's rules are not the rendered ones.
    #[error("the anchor's rules are not the rendered ones ({0}): load it again")]
    Anchor(String),
    /// The table's declaration is missing or nothing refers to it.
    #[error("table <{table}> {why}")]
    Table {
        /// The table.
        table: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Whether what is loaded does what was rendered. Nothing found: proved.
pub fn prove(policy: &Policy, observed: &Observed) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !observed.enabled {
        findings.push(Finding::Disabled);
    }
    if observed.skipped {
        findings.push(Finding::Skipped(policy.bridge.clone()));
    }
    let anchor = format!("anchor \"{}\" all", policy.anchor);
    match observed.main_rules.iter().position(|rule| *rule == anchor) {
        None => findings.push(Finding::NotCalled(format!("anchor \"{}\"", policy.anchor))),
        Some(at) => {
            let quick = |rule: &&String| rule.split_whitespace().any(|word| word == "quick");
            findings.extend(observed.main_rules[..at].iter().find(quick).cloned().map(Finding::Shadowed));
        }
    }
    let nat = pf_conf::nat_rules(policy);
    let nat_anchor = format!("nat-anchor \"{}\"", policy.anchor);
    if !nat.is_empty() && !observed.main_nat.contains(&format!("{nat_anchor} all")) {
        findings.push(Finding::NotCalled(nat_anchor));
    }
    let rules = pf_conf::filter_rules(policy);
    if let Some(at) = (0..rules.len().max(observed.anchor_rules.len()))
        .find(|&at| rules.get(at) != observed.anchor_rules.get(at))
    {
        findings.push(Finding::Anchor(match (rules.get(at), observed.anchor_rules.get(at)) {
            (Some(rule), Some(found)) => format!("`{found}` instead of `{rule}`"),
            (Some(rule), None) => format!("`{rule}` is missing"),
            (None, found) => format!("`{}` is too much", found.map_or("", String::as_str)),
        }));
    }
    let nat_fits = nat.len() == observed.anchor_nat.len()
        && nat.iter().zip(&observed.anchor_nat).all(|(rule, found)| {
            // How a port is chosen is PF's affair: `round-robin` and the like follow.
            found.strip_prefix(rule.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
    if !nat_fits {
        findings.push(Finding::Anchor("its translation differs".into()));
    }
    if observed.denied != pf_conf::denied_table(policy) {
        findings.push(Finding::Anchor(format!("<{}> has other entries", pf_conf::DENIED_TABLE)));
    }
    let table = |why| Finding::Table { table: policy.set.clone(), why };
    match observed.tables.iter().find(|found| found.name == policy.set && found.anchor.is_empty()) {
        None => findings.push(table("does not exist: `pfctl -f /etc/pf.conf`")),
        Some(found) if !found.active || !found.persist => {
            findings.push(table("was not declared `persist` by pf.conf: declare it so and load again"));
        }
        Some(found) if !found.is_referred_to() => {
            findings.push(table("is in no rule, so membership means nothing: load the anchor"));
        }
        Some(_) => {}
    }
    findings
}
