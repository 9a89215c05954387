//! Renders a second barrier for FreeBSD: ipfw rules that hold while PF is off, flushed or not loaded.
//!
//! The rules keep no state and are the same for all clones, like [`crate::clone_rules`] on Linux. They only deny, so they grant
//! nothing that the administrator's own rules forbid. They apply to packets that enter the host from the clones' bridge, and
//! they are on the host: a jail's root cannot change them. Set 31 survives `ipfw flush`. Their numbers precede those of
//! rc.firewall, which begin at 100.

use crate::policy::Policy;
use ipnet::IpNet;

/// The first number of the rules.
pub const FIRST: u32 = 20;
/// Packets that the barrier does not concern continue here. No rule of the barrier has this number.
pub const END: u32 = 60;

/// The rules without numbers, in order.
fn bodies(policy: &Policy) -> Vec<String> {
    let from_clones = format!("in recv {}", policy.bridge);
    let skip = format!("skipto {END}");
    let mut bodies = Vec::new();
    let is_v4 = |net: &IpNet| matches!(net, IpNet::V4(_));
    let v6 = policy.networks.iter().any(|net| !is_v4(net));
    match v6 {
        true => bodies.push(format!("{skip} ipv6-icmp from any to any icmp6types 135,136 {from_clones}")),
        false => bodies.push(format!("deny ip6 from any to any {from_clones}")),
    }
    // Answers of browserd: every packet of a connection but the first has ACK or RST.
    for v4 in [true, false] {
        let list: Vec<String> = policy.callers(v4).collect();
        if !list.is_empty() {
            let answer = format!("tcp from any {} to {} established", policy.browserd_port, list.join(","));
            bodies.push(format!("{skip} {answer} {from_clones}"));
        }
    }
    for protocol in ["udp", "tcp"] {
        if let Some(resolver) = policy.resolver {
            bodies.push(format!("{skip} {protocol} from any to {resolver} 53 {from_clones}"));
        }
        bodies.push(format!("deny {protocol} from any to any 53,853 {from_clones}"));
    }
    let closed = policy
        .denied_ranges()
        .map(|range| range.net)
        .chain(policy.networks.iter().copied())
        .chain(policy.host.iter().copied().map(IpNet::from));
    let (closed4, closed6): (Vec<IpNet>, Vec<IpNet>) =
        IpNet::aggregate(&closed.collect()).into_iter().partition(is_v4);
    for (wanted, protocol, nets, me) in [(true, "ip", closed4, "me"), (v6, "ip6", closed6, "me6")] {
        if wanted {
            let list: Vec<String> = nets.iter().map(IpNet::to_string).collect();
            bodies.push(format!("deny {protocol} from any to {} {from_clones}", list.join(",")));
            bodies.push(format!("deny {protocol} from any to {me} {from_clones}"));
        }
    }
    bodies
}

/// The mark of one rule: a comment that ipfw keeps and lists. It changes with the text of any rule.
fn mark(bodies: &[String], at: usize) -> String {
    // FNV-1a.
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bodies.join("\n").bytes().fold(0xcbf2_9ce4_8422_2325, fold);
    format!("// hostd {hash:016x} {at}")
}

/// Renders the file that `ipfw -f -q FILE` loads. It replaces older rules of the barrier.
pub fn render(policy: &Policy) -> String {
    let bodies = bodies(policy);
    let mut text = format!("-f -q delete {FIRST}-{}\n", END - 1);
    for (at, (number, body)) in (FIRST..END).zip(&bodies).enumerate() {
        text.push_str(&format!("-q add {number} set 31 {body} {}\n", mark(&bodies, at)));
    }
    text
}

/// Compares `ipfw list` with the rendered rules. `None` if the barrier is complete and first.
///
/// ipfw prints addresses and options in forms that differ between releases, so rules are recognised by number, action and
/// mark.
pub fn prove(policy: &Policy, listed: &str) -> Option<String> {
    let bodies = bodies(policy);
    let mut found = Vec::new();
    for line in listed.lines() {
        let mut words = line.split_whitespace();
        let Some(number) = words.next().and_then(|word| word.parse::<u32>().ok()) else { continue };
        if number < FIRST {
            return Some(format!("the rule `{line}` precedes the barrier"));
        }
        if number < END {
            found.push((number, words.next().unwrap_or_default(), line.trim_end()));
        }
    }
    for (at, (number, body)) in (FIRST..END).zip(&bodies).enumerate() {
        let action = body.split(' ').next().unwrap_or_default();
        let own = |(other, listed, line): &(u32, &str, &str)| {
            *other == number && *listed == action && line.ends_with(&mark(&bodies, at))
        };
        if !found.iter().any(own) {
            return Some(format!("rule {number} (`{body}`) is missing"));
        }
    }
    match found.len() > bodies.len() {
        true => Some(format!("there are other rules with numbers from {FIRST} to {}", END - 1)),
        false => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::PolicySpec;
    use std::net::IpAddr;

    fn policy(change: impl FnOnce(&mut PolicySpec)) -> Policy {
        let mut spec = PolicySpec::new(vec!["10.87.64.0/22".parse().unwrap()]);
        spec.resolver = Some(IpAddr::from([10, 87, 64, 1]));
        spec.control_plane = vec![IpAddr::from([10, 87, 64, 1]).into()];
        change(&mut spec);
        spec.try_into().unwrap()
    }

    #[test]
    fn the_rules_are_read_by_ipfw() {
        let policy = policy(|_| {});
        let text = render(&policy);
        let rules: Vec<&str> = text.lines().map(|line| line.split(" //").next().unwrap()).collect();
        assert_eq!(
            rules,
            [
                "-f -q delete 20-59",
                "-q add 20 set 31 deny ip6 from any to any in recv bridge72",
                "-q add 21 set 31 skipto 60 tcp from any 8080 to 10.87.64.1 established in recv bridge72",
                "-q add 22 set 31 skipto 60 udp from any to 10.87.64.1 53 in recv bridge72",
                "-q add 23 set 31 deny udp from any to any 53,853 in recv bridge72",
                "-q add 24 set 31 skipto 60 tcp from any to 10.87.64.1 53 in recv bridge72",
                "-q add 25 set 31 deny tcp from any to any 53,853 in recv bridge72",
                "-q add 26 set 31 deny ip from any to 0.0.0.0/8,10.0.0.0/8,100.64.0.0/10,127.0.0.0/8,168.63.129.16/32,\
                 169.254.0.0/16,172.16.0.0/12,192.0.0.0/24,192.88.99.0/24,192.168.0.0/16,198.18.0.0/15,224.0.0.0/3 \
                 in recv bridge72",
                "-q add 27 set 31 deny ip from any to me in recv bridge72",
            ]
        );
    }

    #[test]
    fn every_missing_or_changed_rule_is_noticed() {
        let policy = policy(|_| {});
        let lines: Vec<String> = render(&policy)
            .lines()
            .skip(1)
            .map(|line| {
                let rest = line.strip_prefix("-q add ").unwrap().replace(" set 31", "");
                format!("000{rest}")
            })
            .collect();
        let listed = |lines: &[String]| format!("{}\n65535 allow ip from any to any\n", lines.join("\n"));
        assert_eq!(prove(&policy, &listed(&lines)), None);
        for at in 0..lines.len() {
            let mut fewer = lines.clone();
            let gone = fewer.remove(at);
            assert!(prove(&policy, &listed(&fewer)).is_some(), "without {gone}");
            fewer.insert(at, gone.replacen("deny", "allow", 1).replacen("skipto 60", "allow", 1));
            assert!(prove(&policy, &listed(&fewer)).is_some(), "changed: {gone}");
        }
        let first = format!("00001 allow ip from any to any\n{}", listed(&lines));
        assert!(prove(&policy, &first).unwrap().contains("precedes"));
        let other = format!("{}00040 allow ip from any to any\n", listed(&lines));
        assert!(prove(&policy, &other).is_some());
        assert!(prove(&policy, "65535 allow ip from any to any\n").is_some());
    }

    #[test]
    fn a_pool_with_both_families_has_rules_for_both() {
        let policy = policy(|spec| spec.networks.push("2001:db8:1::/64".parse().unwrap()));
        let text = render(&policy);
        assert!(text.contains("icmp6types 135,136") && text.contains("to me6 in recv"), "{text}");
        assert!(!text.contains("deny ip6 from any to any"), "{text}");
    }
}
