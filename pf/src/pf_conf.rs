//! Renders the policy as a PF anchor for FreeBSD, and the lines that pf.conf needs to use it.
//!
//! Rules are written as `pfctl -s rules` lists them: one rule per line, no macros, no lists. The loaded rules can thus be
//! compared with the rendered ones line by line. Every rule has a label: `pfctl -s labels` shows counters for it, and
//! pfctl's optimiser neither moves nor merges rules with labels.
//!
//! All clones are on one bridge. PF filters packets that enter or leave the bridge interface. It never sees packets
//! between two members, so the caller must make the members `private`.
//!
//! The table of members belongs to the main ruleset, where `pfctl -t` finds it without an anchor. Rules of an anchor use
//! the main ruleset's table if the anchor has no table of that name.

use crate::deny;
use crate::policy::{ConnectionLimits, Policy, shown};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

/// The anchor's table of denied ranges.
pub const DENIED_TABLE: &str = "browser_denied";
/// The anchor's table of host addresses that are not on the host's interfaces.
pub const HOST_TABLE: &str = "browser_host";

/// States of queries to the resolver, as a share of a clone's other states.
const RESOLVER_SHARE: u64 = 4;

/// Renders the anchor's file.
pub fn render(policy: &Policy) -> String {
    let mut text = String::from(
        "# Egress of browser clones: the rules of the PF anchor. Generated from the policy.\n\
         #\n\
         # pf.conf needs these lines, each in its section (tables, translation, filtering). The anchor must precede\n\
         # all other `quick` filter rules:\n\
         #\n",
    );
    for line in pf_conf_lines(policy, "/usr/local/etc/hostd/browser.conf") {
        let _ = writeln!(text, "#   {line}");
    }
    text.push_str(
        "#\n\
         # Load it with `pfctl -f /etc/pf.conf`. Never use `service pf restart`: it flushes the rules first, and for a\n\
         # moment nothing is blocked. Members of the bridge must be `private`: PF does not see packets between them.\n\
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

/// The lines that the administrator adds to pf.conf.
pub fn pf_conf_lines(policy: &Policy, anchor_file: &str) -> [String; 4] {
    let anchor = &policy.anchor;
    [
        // Without a list of addresses, `pfctl -f` keeps the present members.
        format!("table <{}> persist", policy.set),
        format!("nat-anchor \"{anchor}\""),
        format!("anchor \"{anchor}\""),
        format!("load anchor \"{anchor}\" from \"{anchor_file}\""),
    ]
}

/// The IPv6 networks of the clones that are publicly routable. IPv6 is not translated, so others are not used.
fn networks6(policy: &Policy) -> Vec<&IpNet> {
    policy
        .networks
        .iter()
        .filter(|net| matches!(net, IpNet::V6(_)) && deny::denied(net.network()).is_none())
        .collect()
}

fn networks4(policy: &Policy) -> Vec<&IpNet> {
    policy.networks.iter().filter(|net| matches!(net, IpNet::V4(_))).collect()
}

fn rendered_ranges(policy: &Policy) -> Vec<&'static deny::Range> {
    let v6 = !networks6(policy).is_empty();
    policy.denied_ranges().filter(|range| v6 || matches!(range.net, IpNet::V4(_))).collect()
}

/// The content of [`DENIED_TABLE`]: the denied ranges that no other range contains.
pub fn denied_table(policy: &Policy) -> BTreeSet<IpNet> {
    let all: Vec<IpNet> = rendered_ranges(policy).iter().map(|range| range.net).collect();
    let inside = |net: &IpNet| all.iter().any(|other| other != net && other.contains(net));
    all.iter().filter(|net| !inside(net)).copied().collect()
}

/// The translation rules. PF lists them with the port selection appended.
pub fn nat_rules(policy: &Policy) -> Vec<String> {
    let private = networks4(policy).into_iter().any(|net| deny::denied(net.network()).is_some());
    match &policy.external {
        Some(external) if private => {
            vec![format!("nat on {external} inet from <{}> to any -> ({external})", policy.set)]
        }
        _ => Vec::new(),
    }
}

/// The filter rules, in order, as `pfctl -s rules` lists them.
///
/// Refused packets are answered at once (`return`: a TCP reset or an ICMP error), so that nobody waits. The answer is the same
/// whatever is at the address.
pub fn filter_rules(policy: &Policy) -> Vec<String> {
    let (bridge, set, port) = (&policy.bridge, &policy.set, policy.browserd_port);
    let v6 = !networks6(policy).is_empty();
    let families = if v6 { &["inet", "inet6"][..] } else { &["inet"] };
    let networks: Vec<&IpNet> = networks4(policy).into_iter().chain(networks6(policy)).collect();
    let mut rules = Vec::new();
    let mut rule = |text: String, label: &str| rules.push(format!("{text} label \"{label}\""));
    if v6 {
        for direction in ["in", "out"] {
            for kind in ["neighbrsol", "neighbradv"] {
                let on = format!("pass {direction} quick on {bridge}");
                rule(format!("{on} inet6 proto ipv6-icmp all icmp6-type {kind} no state"), "neighbours");
            }
        }
    } else {
        rule(format!("block drop in quick on {bridge} inet6 all"), "no_ipv6");
    }

    // Packets from the clones.
    let (limited, asking) = (limited_state(&policy.connections), resolver_state(&policy.connections));
    if let Some(resolver) = policy.resolver
        && families.contains(&family(resolver))
    {
        for (protocol, flags) in [("tcp", "flags S/SA "), ("udp", "")] {
            let on = format!("pass in quick on {bridge} {} proto {protocol}", family(resolver));
            rule(format!("{on} from <{set}> to {resolver} port = 53 {flags}{asking}"), "resolver");
        }
    }
    for dns in [53, 853] {
        for protocol in ["tcp", "udp"] {
            let on = format!("block return in quick on {bridge} proto {protocol}");
            rule(format!("{on} from any to any port = {dns}"), "foreign_resolver");
        }
    }
    for family in families {
        let to = format!("block return in quick on {bridge} {family} from any to");
        rule(format!("{to} <{DENIED_TABLE}>"), "denied_range");
        if !policy.host.is_empty() {
            rule(format!("{to} <{HOST_TABLE}>"), "host_address");
        }
        // Parentheses: PF uses the host's current addresses, not those at load time.
        rule(format!("{to} (self)"), "host_address");
    }
    for net in &networks {
        let on = format!("block return in quick on {bridge} {}", family(net.network()));
        rule(format!("{on} from any to {net}"), "pool");
    }
    for family in families {
        let on = format!("pass in quick on {bridge} {family}");
        rule(format!("{on} from <{set}> to any flags S/SA {limited}"), "member");
    }
    rule(format!("block return in quick on {bridge} all"), "not_a_member");

    // Packets to the clones.
    for caller in &policy.control_plane {
        let own = |address: &IpAddr| IpNet::from(*address) == *caller;
        let local = policy.host.iter().any(own) || policy.networks.iter().any(|net| net.contains(caller));
        // PF knows the user only for sockets of this host.
        let users: Vec<String> = match local {
            true => policy.control_users.iter().map(|user| format!(" user = {user}")).collect(),
            false => vec![String::new()],
        };
        let on = format!("pass out quick on {bridge} {} proto tcp", family(caller.addr()));
        for net in networks.iter().filter(|net| net.network().is_ipv4() == caller.addr().is_ipv4()) {
            for user in &users {
                let caller = shown(caller);
                let call = format!("from {caller} to {net} port = {port}{user} flags S/SA keep state");
                rule(format!("{on} {call}"), "control_plane");
            }
        }
    }
    rule(format!("block return out quick on {bridge} all"), "not_the_control_plane");

    // Packets that were not translated did not pass the rules above.
    if let Some(external) = &policy.external {
        for net in networks4(policy).into_iter().filter(|net| deny::denied(net.network()).is_some()) {
            let on = format!("block drop out quick on {external} inet");
            rule(format!("{on} from {net} to any"), "untranslated");
        }
    }
    rules
}

/// `keep state` with limits for each clone, as pfctl lists it.
///
/// States include closed connections, which PF keeps for up to a minute and a half, so the limit of states is the one for
/// tracked connections. `max-src-conn-rate` counts TCP connections whose handshake is complete and drops further ones. Its
/// count decays over the given seconds: at most the whole limit at once, and the limit divided by the seconds on average. PF
/// has no rate for other protocols. pfctl adds a `src.track` timeout of the same length to a rule with a rate.
fn limited_state(limits: &ConnectionLimits) -> String {
    let seconds = limits.burst.div_ceil(limits.new_per_second.max(1)).max(1);
    let rate = u64::from(limits.new_per_second) * u64::from(seconds);
    let states = limits.tracked();
    format!(
        "keep state (source-track rule, max-src-states {states}, max-src-conn-rate {rate}/{seconds}, src.track {seconds})"
    )
}

/// The same for the resolver's rules, which share a count of their own: PF refuses a rate in rules that share a count.
fn resolver_state(limits: &ConnectionLimits) -> String {
    format!("keep state (source-track global, max-src-states {})", limits.tracked().div_ceil(RESOLVER_SHARE))
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "inet" } else { "inet6" }
}
