//! Renders the policy as an nftables ruleset: readable text that `nft -f` loads as one transaction.
//!
//! It fails closed:
//! - every packet of a clone is looked up in the set of members, not only the first of a connection. Removing a clone
//!   from the set also cuts its established connections, whatever connection tracking contains;
//! - each link belongs to exactly one clone, and only that clone's addresses are accepted as sources;
//! - links are matched by name and not by pattern, so two daemons with different slots never match each other's links.
//!
//! `accept` only ends the evaluation of this table. An administrator's rules in other tables can still drop the packet.

use crate::policy::{CLOSED_SECONDS, ConnectionLimits, Policy};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::net::IpAddr;

/// DNS, and DNS over TLS or QUIC: blocked except to the configured resolver.
const DNS_PORTS: &str = "{ 53, 853 }";

/// The set of users on this host that may call browserd.
pub(crate) const CALLERS: &str = "callers";

/// Renders the ruleset with these members and these callers beside the policy's. Loading it replaces the whole table atomically.
///
/// Addresses that belong to no slot are left out: the anti-spoofing rules would drop their packets anyway.
pub fn render<'a>(
    policy: &Policy,
    members: impl IntoIterator<Item = &'a IpAddr>,
    callers: &BTreeSet<u32>,
) -> String {
    let table = &policy.table;
    let members: Vec<IpAddr> =
        members.into_iter().copied().filter(|ip| policy.is_slot_address(*ip)).collect();
    let mut text = format!(
        "# Egress of browser clones. Generated from the policy. Loading it replaces the table atomically.\n\
         table inet {table}\n\
         delete table inet {table}\n\
         table inet {table} {{\n"
    );
    objects(&mut text);
    sets(&mut text, policy, &members);
    let users: BTreeSet<u32> = policy.control_users.iter().chain(callers).copied().collect();
    set(&mut text, CALLERS, "uid", "", users.iter());
    chains(&mut text, policy);
    text.push_str("}\n");
    text
}

/// The counter of packets refused because their clone opens connections too fast.
pub const OVER_RATE: &str = "over_rate";
/// The counter of packets refused because their clone has too many connections.
pub const OVER_COUNT: &str = "over_count";
/// The sets in which the kernel keeps each clone's rate and number of connections.
pub(crate) const LIMIT_SETS: [&str; 2] = ["connection_rate", "connection_count"];

/// Writes the counters and the times that connection tracking keeps a clone's connections.
///
/// The kernel's limit does not count closed TCP connections. They are forgotten soon, so that the rate bounds them.
fn objects(text: &mut String) {
    for counter in [OVER_RATE, OVER_COUNT] {
        let _ = writeln!(text, "    counter {counter} {{\n    }}");
    }
    for (family, digit) in [("ip", 4), ("ip6", 6)] {
        let closed = format!("time_wait: {CLOSED_SECONDS}, close: {CLOSED_SECONDS}");
        for (protocol, policy) in [("tcp", closed.as_str()), ("udp", "unreplied: 20, replied: 60")] {
            let _ = writeln!(
                text,
                "    ct timeout {protocol}{digit} {{\n        protocol {protocol}\n        l3proto {family}\n        policy = {{ {policy} }}\n    }}"
            );
        }
    }
}

/// Writes a set whose elements the kernel adds itself, at most one for each slot.
fn dynamic_set(text: &mut String, policy: &Policy, name: &str) {
    let size = policy.slots.len().max(1);
    let _ = writeln!(
        text,
        "    set {name} {{\n        type ifname\n        size {size}\n        flags dynamic\n    }}"
    );
}

fn sets(text: &mut String, policy: &Policy, members: &[IpAddr]) {
    let slots = &policy.slots;
    for name in LIMIT_SETS {
        dynamic_set(text, policy, name);
    }
    let quoted = |name: &str| format!("\"{name}\"");
    set(text, "links", "ifname", "constant", slots.iter().map(|slot| quoted(&slot.interface)));
    let own4 = slots.iter().map(|slot| format!("{} . {}", quoted(&slot.interface), slot.ip));
    set(text, "own4", "ifname . ipv4_addr", "constant", own4);
    let own6 =
        slots.iter().filter_map(|slot| slot.ip6.map(|ip6| format!("{} . {ip6}", quoted(&slot.interface))));
    set(text, "own6", "ifname . ipv6_addr", "constant", own6);

    set(text, &policy.set, "ipv4_addr", "", members.iter().filter(|ip| ip.is_ipv4()));
    set(text, &policy.set6(), "ipv6_addr", "", members.iter().filter(|ip| ip.is_ipv6()));

    for (family, v4) in [("4", true), ("6", false)] {
        let kind = if v4 { "ipv4_addr" } else { "ipv6_addr" };
        let nets = policy.networks.iter().filter(|net| is_v4(net) == v4);
        set(text, &format!("pool{family}"), kind, "constant, interval", nets);
        let host = policy.host.iter().filter(|ip| ip.is_ipv4() == v4);
        set(text, &format!("host{family}"), kind, "constant", host);
        set(text, &format!("control{family}"), kind, "constant, interval", policy.callers(v4));
        denied(text, policy, v4);
    }
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

/// Writes a named set with four elements per line.
fn set<T: Display>(
    text: &mut String,
    name: &str,
    kind: &str,
    flags: &str,
    elements: impl Iterator<Item = T>,
) {
    let _ = writeln!(text, "    set {name} {{\n        type {kind}");
    if !flags.is_empty() {
        let _ = writeln!(text, "        flags {flags}");
    }
    let elements: Vec<String> = elements.map(|element| element.to_string()).collect();
    // nft rejects an empty list. A set without a list is empty.
    if !elements.is_empty() {
        text.push_str("        elements = {\n");
        for line in elements.chunks(4) {
            let _ = writeln!(text, "            {},", line.join(", "));
        }
        text.push_str("        }\n");
    }
    text.push_str("    }\n");
}

/// Writes the denied ranges, each with its reason as a comment.
fn denied(text: &mut String, policy: &Policy, v4: bool) {
    let (name, kind) = if v4 { ("denied4", "ipv4_addr") } else { ("denied6", "ipv6_addr") };
    // Some ranges contain others, because each has its own reason. auto-merge joins them.
    let _ = writeln!(
        text,
        "    set {name} {{\n        type {kind}\n        flags constant, interval\n        auto-merge\n        elements = {{"
    );
    for range in policy.denied_ranges().filter(|range| is_v4(&range.net) == v4) {
        let element = format!("{},", range.net);
        let _ = writeln!(text, "            {element:<22} # {}", range.reason);
    }
    text.push_str("        }\n    }\n");
}

fn chains(text: &mut String, policy: &Policy) {
    let port = policy.browserd_port;
    let (members4, members6) = (&policy.set, policy.set6());
    let neighbours = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept";
    let icmp_errors = "ct state related meta l4proto { icmp, ipv6-icmp } accept";
    let answers = format!("tcp sport {port} ct state established ct direction reply");
    let resolver = policy.resolver.map(|resolver| (family(resolver), resolver));

    // Priority raw runs before connection tracking, so packets with forged sources create no entries.
    chain(
        text,
        "prerouting",
        Some("filter hook prerouting priority raw"),
        [
            "iifname @links goto check_source".into(),
            "iifname != \"lo\" ip saddr @pool4 counter drop comment \"clone address from another link\""
                .into(),
            "iifname != \"lo\" ip6 saddr @pool6 counter drop comment \"clone address from another link\""
                .into(),
        ],
    );
    chain(
        text,
        "check_source",
        None,
        [
            // Neighbour discovery uses these source addresses. Neither is ever a member.
            format!("ip6 saddr {{ ::, fe80::/10 }} {neighbours}"),
            // A source route changes the destination after these rules have checked it.
            "ip hdrlength > 5 counter drop comment \"IP options\"".into(),
            "iifname . ip saddr @own4 accept".into(),
            "iifname . ip6 saddr @own6 accept".into(),
            "counter drop comment \"not this clone's address\"".into(),
        ],
    );

    chain(
        text,
        "forward",
        Some("filter hook forward priority filter"),
        [
            "iifname @links goto from_clone".into(),
            "oifname @links goto to_clone".into(),
            // Without its link a packet for a clone would take the default route. Only the control plane is answered.
            "ip saddr @control4 ip daddr @pool4 goto refuse".into(),
            "ip6 saddr @control6 ip6 daddr @pool6 goto refuse".into(),
            "ip daddr @pool4 counter drop comment \"no clone at this address\"".into(),
            "ip6 daddr @pool6 counter drop comment \"no clone at this address\"".into(),
        ],
    );
    chain(
        text,
        "from_clone",
        None,
        [
            "oifname @links counter goto refuse comment \"clone to clone\"".into(),
            format!("ip daddr @control4 {answers} accept"),
            format!("ip6 daddr @control6 {answers} accept"),
            format!("ip saddr @{members4} goto member"),
            format!("ip6 saddr @{members6} goto member"),
            "counter goto refuse comment \"not a member\"".into(),
        ],
    );
    let mut member = vec!["ct state invalid counter drop".into()];
    if let Some((family, resolver)) = resolver {
        member.push(format!(
            "{family} daddr {resolver} meta l4proto {{ tcp, udp }} th dport 53 goto limit_connections"
        ));
    }
    member.extend([
        format!("meta l4proto {{ tcp, udp }} th dport {DNS_PORTS} counter goto refuse comment \"foreign resolver\""),
        "ip daddr @denied4 counter goto refuse comment \"denied range\"".into(),
        "ip6 daddr @denied6 counter goto refuse comment \"denied range\"".into(),
        "ip daddr @pool4 counter goto refuse comment \"pool\"".into(),
        "ip6 daddr @pool6 counter goto refuse comment \"pool\"".into(),
        "ip daddr @host4 counter goto refuse comment \"host address\"".into(),
        "ip6 daddr @host6 counter goto refuse comment \"host address\"".into(),
    ]);
    if let Some(external) = &policy.external {
        member.push(format!(
            "oifname != \"{external}\" counter goto refuse comment \"not the external interface\""
        ));
    }
    member.push("goto limit_connections".into());
    chain(text, "member", None, member);
    chain(text, "limit_connections", None, limit_connections(policy));
    chain(
        text,
        "to_clone",
        None,
        [
            format!(
                "ip saddr @control4 oifname . ip daddr @own4 tcp dport {port} ct direction original accept"
            ),
            format!(
                "ip6 saddr @control6 oifname . ip6 daddr @own6 tcp dport {port} ct direction original accept"
            ),
            format!(
                "ip daddr @{members4} oifname . ip daddr @own4 ct state established ct direction reply accept"
            ),
            format!(
                "ip6 daddr @{members6} oifname . ip6 daddr @own6 ct state established ct direction reply accept"
            ),
            format!("ip daddr @{members4} oifname . ip daddr @own4 {icmp_errors}"),
            format!("ip6 daddr @{members6} oifname . ip6 daddr @own6 {icmp_errors}"),
            "counter drop comment \"not a permitted caller\"".into(),
        ],
    );

    chain(
        text,
        "input",
        Some("filter hook input priority filter"),
        ["iifname @links goto clone_to_host".into()],
    );
    let mut to_host = vec![neighbours.into(), format!("{answers} accept")];
    if let Some((family, resolver)) = resolver {
        let members = if resolver.is_ipv4() { members4 } else { &members6 };
        to_host.push(format!(
            "{family} saddr @{members} {family} daddr {resolver} meta l4proto {{ tcp, udp }} th dport 53 \
             goto limit_connections"
        ));
    }
    to_host.push("counter goto refuse comment \"the host itself\"".into());
    chain(text, "clone_to_host", None, to_host);

    chain(
        text,
        "output",
        Some("filter hook output priority filter"),
        [
            "oifname @links goto host_to_clone".into(),
            // A client of a destroyed clone retries for minutes. Without the link, its packets take the default route:
            // they must neither leave the host nor enter connection tracking.
            "oifname != \"lo\" ip daddr @pool4 counter goto no_clone".into(),
            "oifname != \"lo\" ip6 daddr @pool6 counter goto no_clone".into(),
        ],
    );
    let no_clone = ["meta l4proto tcp reject with tcp reset", "reject with icmpx admin-prohibited"];
    chain(text, "no_clone", None, no_clone.map(str::to_owned));
    // Before connection tracking: neither these packets nor their refusals enter it.
    let untracked = ["ip daddr @pool4", "ip6 daddr @pool6"]
        .map(|to| format!("oifname != \"lo\" oifname != @links {to} notrack"));
    chain(text, "output_raw", Some("filter hook output priority raw"), untracked);
    let mut from_host = vec![
        neighbours.into(),
        format!("tcp dport {port} ct state established ct direction original accept"),
        icmp_errors.into(),
        // The refusals of these rules. No process of the host can send them without privileges.
        "icmp type destination-unreachable icmp code admin-prohibited accept".into(),
        "icmpv6 type destination-unreachable icmpv6 code admin-prohibited accept".into(),
        format!("ip saddr @control4 meta skuid @{CALLERS} tcp dport {port} accept"),
        format!("ip6 saddr @control6 meta skuid @{CALLERS} tcp dport {port} accept"),
    ];
    if let Some((family, resolver)) = resolver {
        let members = if resolver.is_ipv4() { members4 } else { &members6 };
        from_host.push(format!(
            "{family} saddr {resolver} {family} daddr @{members} meta l4proto {{ tcp, udp }} th sport 53 \
             ct state established ct direction reply accept"
        ));
    }
    from_host.push("counter goto refuse comment \"not the control plane\"".into());
    chain(text, "host_to_clone", None, from_host);

    // Who is refused is told so at once instead of waiting for an answer. The refusal is the same whatever is at the address, so
    // it tells nothing about it. Packets with forged sources, and those over the limits of connections, get no answer. A TCP
    // reset would enter the refused connection into connection tracking, an ICMP error does not.
    chain(text, "refuse", None, ["reject with icmpx admin-prohibited".to_owned()]);

    // Publicly routable addresses need no translation.
    let private = |net: &&IpNet| crate::deny::denied(net.network()).is_some();
    let masquerade = policy.networks.iter().filter(private).map(|net| {
        let (family, members) = if is_v4(net) { ("ip", members4) } else { ("ip6", &members6) };
        format!("{family} saddr {net} {family} saddr @{members} oifname != @links masquerade")
    });
    chain(text, "postrouting", Some("nat hook postrouting priority srcnat"), masquerade);
}

/// Accepts packets of known connections, and new ones within their clone's limits.
///
/// A connection enters the kernel's table when its first packet has passed all hooks (`confirmed`). A packet that is dropped
/// here leaves nothing behind. The key is the link, so both families of a clone share its limits.
fn limit_connections(policy: &Policy) -> Vec<String> {
    let [rate, count] = LIMIT_SETS;
    let ConnectionLimits { open, new_per_second, burst } = policy.connections;
    let mut rules = vec![
        "ct status & confirmed == confirmed accept".into(),
        // The rate first: it also bounds how often the kernel has to count.
        format!(
            "add @{rate} {{ iifname limit rate over {new_per_second}/second burst {burst} packets }} \
             counter name \"{OVER_RATE}\" drop"
        ),
        format!("add @{count} {{ iifname ct count over {open} }} counter name \"{OVER_COUNT}\" drop"),
    ];
    for (family, digit) in [("ipv4", 4), ("ipv6", 6)] {
        for protocol in ["tcp", "udp"] {
            rules.push(format!(
                "meta nfproto {family} meta l4proto {protocol} ct timeout set \"{protocol}{digit}\""
            ));
        }
    }
    rules.push("accept".into());
    rules
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip6" }
}

fn chain(text: &mut String, name: &str, hook: Option<&str>, rules: impl IntoIterator<Item = String>) {
    let _ = writeln!(text, "    chain {name} {{");
    if let Some(hook) = hook {
        let _ = writeln!(text, "        type {hook}; policy accept;");
    }
    for rule in rules {
        let _ = writeln!(text, "        {rule}");
    }
    text.push_str("    }\n");
}
