//! The policy as a PF anchor for FreeBSD, and the lines that pf.conf needs to use it.
//!
//! Rules are written the way `pfctl -s rules` lists them: one rule a line, no macros, no lists. So what is loaded can
//! be compared with what was rendered, line by line.
//!
//! All clones are behind one bridge. PF sees what enters and leaves the bridge itself; what goes from one member to
//! another it never sees, so the members must be `private` (the caller makes them so).
//!
//! The members' table lives in the main ruleset, where `pfctl -t` finds it without naming an anchor. An anchor's rules
//! that name a table which the anchor does not have mean that one.

use crate::deny;
use crate::policy::Policy;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

/// The anchor's own tables: what is denied, and the host's addresses elsewhere.
pub const DENIED_TABLE: &str = "browser_denied";
/// See [`DENIED_TABLE`].
pub const HOST_TABLE: &str = "browser_host";

/// The file for the anchor.
pub fn render(policy: &Policy) -> String {
    let mut text = String::from(
        "# Egress of browser clones: the rules of the PF anchor. Generated from the policy.\n\
         #\n\
         # pf.conf needs these lines, each among its kind (tables, translation, filtering), the anchor before every\n\
         # other filter rule that is quick:\n\
         #\n",
    );
    for line in pf_conf_lines(policy, "/usr/local/etc/hostd/browser.conf") {
        let _ = writeln!(text, "#   {line}");
    }
    text.push_str(
        "#\n\
         # Load it with `pfctl -f /etc/pf.conf`. Never `service pf restart`: that empties the ruleset first, and rules\n\
         # that are gone block nothing. Members of the bridge must be `private`: PF does not see what they send each other.\n\
         \n\
         # Blocked for members too:\n",
    );
    for range in rendered_ranges(policy) {
        let _ = writeln!(text, "#   {:<20} {}", range.net.to_string(), range.reason);
    }
    let table = |text: &mut String, name: &str, entries: Vec<String>| {
        if !entries.is_empty() {
            let _ = writeln!(text, "table <{name}> const {{ {} }}", entries.join(", "));
        }
    };
    table(&mut text, DENIED_TABLE, denied_table(policy).iter().map(IpNet::to_string).collect());
    table(&mut text, HOST_TABLE, policy.host.iter().map(IpAddr::to_string).collect());
    for rule in nat_rules(policy).into_iter().chain(filter_rules(policy)) {
        text.push_str(&rule);
        text.push('\n');
    }
    text
}

/// What the administrator adds to pf.conf.
pub fn pf_conf_lines(policy: &Policy, anchor_file: &str) -> [String; 4] {
    let anchor = &policy.anchor;
    [
        // Without a list: what was added later survives `pfctl -f`.
        format!("table <{}> persist", policy.set),
        format!("nat-anchor \"{anchor}\""),
        format!("anchor \"{anchor}\""),
        format!("load anchor \"{anchor}\" from \"{anchor_file}\""),
    ]
}

/// Clones speak IPv6 only when their addresses mean something outside: it is not translated here.
fn pool6(policy: &Policy) -> Vec<&IpNet> {
    policy
        .pool
        .iter()
        .filter(|net| matches!(net, IpNet::V6(_)) && deny::denied(net.network()).is_none())
        .collect()
}

fn pool4(policy: &Policy) -> Vec<&IpNet> {
    policy.pool.iter().filter(|net| matches!(net, IpNet::V4(_))).collect()
}

fn rendered_ranges(policy: &Policy) -> Vec<&'static deny::Range> {
    let v6 = !pool6(policy).is_empty();
    policy.denied_ranges().filter(|range| v6 || matches!(range.net, IpNet::V4(_))).collect()
}

/// What [`DENIED_TABLE`] holds: the ranges without those inside others.
pub fn denied_table(policy: &Policy) -> BTreeSet<IpNet> {
    let all: Vec<IpNet> = rendered_ranges(policy).iter().map(|range| range.net).collect();
    let inside = |net: &IpNet| all.iter().any(|other| other != net && other.contains(net));
    all.iter().filter(|net| !inside(net)).copied().collect()
}

/// The translation rules. PF lists them with how it chooses ports behind.
pub fn nat_rules(policy: &Policy) -> Vec<String> {
    let private = pool4(policy).into_iter().any(|net| deny::denied(net.network()).is_some());
    match &policy.external {
        Some(external) if private => {
            vec![format!("nat on {external} inet from <{}> to any -> ({external})", policy.set)]
        }
        _ => Vec::new(),
    }
}

/// The filter rules, in order, as `pfctl -s rules` lists them.
pub fn filter_rules(policy: &Policy) -> Vec<String> {
    let (bridge, set, port) = (&policy.bridge, &policy.set, policy.browserd_port);
    let v6 = !pool6(policy).is_empty();
    let families = if v6 { &["inet", "inet6"][..] } else { &["inet"] };
    let mut rules = Vec::new();
    if v6 {
        for direction in ["in", "out"] {
            for kind in ["neighbrsol", "neighbradv"] {
                rules.push(format!(
                    "pass {direction} quick on {bridge} inet6 proto ipv6-icmp all icmp6-type {kind} no state"
                ));
            }
        }
    } else {
        rules.push(format!("block drop in quick on {bridge} inet6 all"));
    }

    // From the clones.
    if let Some(resolver) = policy.resolver {
        let family = family(resolver);
        if families.contains(&family) {
            let to = format!("pass in quick on {bridge} {family} proto");
            rules.push(format!("{to} tcp from <{set}> to {resolver} port = 53 flags S/SA keep state"));
            rules.push(format!("{to} udp from <{set}> to {resolver} port = 53 keep state"));
        }
    }
    for dns in [53, 853] {
        for protocol in ["tcp", "udp"] {
            rules.push(format!(
                "block drop in quick on {bridge} proto {protocol} from any to any port = {dns}"
            ));
        }
    }
    for family in families {
        let block = format!("block drop in quick on {bridge} {family} from any to");
        rules.push(format!("{block} <{DENIED_TABLE}>"));
        if !policy.host.is_empty() {
            rules.push(format!("{block} <{HOST_TABLE}>"));
        }
        // In brackets: the addresses the host has when the packet comes, not when the rules were loaded.
        rules.push(format!("{block} (self)"));
    }
    let pool: Vec<&IpNet> = pool4(policy).into_iter().chain(pool6(policy)).collect();
    for net in &pool {
        rules.push(format!("block drop in quick on {bridge} {} from any to {net}", family(net.network())));
    }
    for family in families {
        rules.push(format!("pass in quick on {bridge} {family} from <{set}> to any flags S/SA keep state"));
    }
    rules.push(format!("block drop in quick on {bridge} all"));

    // To the clones.
    for caller in &policy.control_plane {
        let local = policy.host.contains(caller) || policy.pool.iter().any(|net| net.contains(caller));
        // Only sockets of this host have a user.
        let users: Vec<String> = match local {
            true => policy.control_users.iter().map(|user| format!(" user = {user}")).collect(),
            false => vec![String::new()],
        };
        for net in pool.iter().filter(|net| net.network().is_ipv4() == caller.is_ipv4()) {
            let family = family(*caller);
            for user in &users {
                rules.push(format!(
                    "pass out quick on {bridge} {family} proto tcp from {caller} to {net} port = {port}{user} \
                     flags S/SA keep state"
                ));
            }
        }
    }
    rules.push(format!("block drop out quick on {bridge} all"));

    // What leaves untranslated has not come through the rules above.
    if let Some(external) = &policy.external {
        for net in pool4(policy).into_iter().filter(|net| deny::denied(net.network()).is_some()) {
            rules.push(format!("block drop out quick on {external} inet from {net} to any"));
        }
    }
    rules
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "inet" } else { "inet6" }
}
