//! Renders the rules for the inside of a clone's network namespace (Linux): a second barrier beside the host's table.
//!
//! The rules are the same for all clones and keep no state. They allow less than the host's table forbids: what a clone can
//! send when the host has no rules at all is limited to public addresses, the resolver, and answers to the control plane.

use crate::policy::Policy;
use ipnet::IpNet;
use std::fmt::Write;

/// The table's name inside the namespace.
pub const TABLE_NAME: &str = "egress";
/// The sets of the host's addresses outside the denied ranges. They are filled when the clone is created.
pub const HOST4: &str = "host4";
/// See [`HOST4`].
pub const HOST6: &str = "host6";

/// Renders the rules.
pub fn render(policy: &Policy) -> String {
    let mut text = format!(
        "# What a clone may send, in its own network namespace. Generated from the policy.\ntable inet {TABLE_NAME} {{\n"
    );
    let is_v4 = |net: &IpNet| matches!(net, IpNet::V4(_));
    let closed: Vec<IpNet> = policy
        .denied_ranges()
        .map(|range| range.net)
        .chain(policy.networks.iter().copied())
        .chain(policy.host.iter().copied().map(IpNet::from))
        .collect();
    for (digit, v4, host) in [(4, true, HOST4), (6, false, HOST6)] {
        let kind = if v4 { "ipv4_addr" } else { "ipv6_addr" };
        let nets = closed.iter().filter(|net| is_v4(net) == v4).map(IpNet::to_string);
        set(&mut text, &format!("closed{digit}"), kind, "flags constant, interval; auto-merge", nets);
        set(&mut text, &format!("control{digit}"), kind, "flags constant, interval", policy.callers(v4));
        set(&mut text, host, kind, "", std::iter::empty());
    }
    // The refusal is the same whatever is at the address. A TCP client sees an ICMP error of IPv4 at once, and one of IPv6 only
    // after its first retransmission. Here the kernel does not limit the rate of ICMP errors: they stay in the namespace.
    text.push_str(
        "    chain refuse {\n\
         \x20       meta nfproto ipv6 meta l4proto tcp reject with tcp reset\n\
         \x20       reject with icmpx admin-prohibited\n    }\n",
    );
    text.push_str("    chain output {\n        type filter hook output priority filter; policy drop;\n");
    for rule in rules(policy) {
        let _ = writeln!(text, "        {rule}");
    }
    text.push_str("    }\n}\n");
    text
}

fn set(text: &mut String, name: &str, kind: &str, flags: &str, elements: impl Iterator<Item = String>) {
    let _ = writeln!(text, "    set {name} {{\n        type {kind}; {flags}");
    let elements: Vec<String> = elements.collect();
    // nft rejects an empty list.
    if !elements.is_empty() {
        let _ = writeln!(text, "        elements = {{ {} }}", elements.join(", "));
    }
    text.push_str("    }\n");
}

/// The rules, without nameless sets: those would need a name for each load.
fn rules(policy: &Policy) -> Vec<String> {
    let mut rules = vec!["oifname \"lo\" accept".to_owned()];
    for kind in ["nd-neighbor-solicit", "nd-neighbor-advert"] {
        rules.push(format!("icmpv6 type {kind} ip6 hoplimit 255 accept"));
    }
    // Answers of browserd. A first packet of a connection has SYN and not ACK.
    for (family, digit) in [("ip", 4), ("ip6", 6)] {
        let answer = format!("tcp sport {} tcp flags & (syn | ack) != syn accept", policy.browserd_port);
        rules.push(format!("{family} daddr @control{digit} {answer}"));
    }
    if let Some(resolver) = policy.resolver {
        let family = if resolver.is_ipv4() { "ip" } else { "ip6" };
        for protocol in ["tcp", "udp"] {
            rules.push(format!("{family} daddr {resolver} {protocol} dport 53 accept"));
        }
    }
    for protocol in ["tcp", "udp"] {
        for port in [53, 853] {
            rules.push(format!("{protocol} dport {port} goto refuse"));
        }
    }
    for (family, protocol, digit) in [("ip", "ipv4", 4), ("ip6", "ipv6", 6)] {
        rules.push(format!("{family} daddr @closed{digit} goto refuse"));
        rules.push(format!("{family} daddr @host{digit} goto refuse"));
        rules.push(format!("meta nfproto {protocol} accept"));
    }
    rules
}
