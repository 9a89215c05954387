//! Checks the rendered anchor: its grammar, and that it decides like the rules that were recorded with packets on FreeBSD.

#![allow(clippy::unwrap_used)] // The tests parse their own constants.

mod grammar;

use grammar::{Hosts, Packet, Ruleset};
use pf::{Policy, PolicySpec, deny, pf_conf};
use std::net::IpAddr;

const RECORDED: &str = include_str!("../transcripts/l-pf-shape.txt");

fn spec() -> PolicySpec {
    let mut spec = PolicySpec::new(vec!["192.168.72.0/24".parse().unwrap()]);
    spec.resolver = Some("192.168.72.1".parse().unwrap());
    spec.control_plane = vec!["192.168.72.1/32".parse().unwrap()];
    spec.external = Some("e0a_inet".into());
    spec
}

fn rendered(spec: PolicySpec) -> Ruleset {
    let policy = Policy::try_from(spec).expect("a valid policy");
    let text = pf_conf::render(&policy);
    Ruleset::read(&text, true).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The rules that were loaded during the recording.
fn recorded_rules() -> Ruleset {
    let text = RECORDED.split_once("$ cat pf.conf\n").unwrap().1.split_once("--- end of file").unwrap().0;
    // The final `pass all` belongs to the main ruleset.
    Ruleset::read(text, false).unwrap()
}

/// The probes of one section: source, target, and whether it was reached.
fn recorded_probes(section: &str) -> Vec<(String, String, bool)> {
    let section = RECORDED.split_once(&format!("== {section}\n")).unwrap().1;
    let lines = section.lines().take_while(|line| !line.starts_with("== "));
    let probe = |line: &str| {
        let (who, rest) = line.strip_prefix("  ")?.split_once(" -> ")?;
        let (target, result) = rest.split_once(' ')?;
        assert!(result == "REACHED" || result == "blocked", "{line}");
        Some((who.to_owned(), target.to_owned(), result == "REACHED"))
    };
    lines.filter_map(probe).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Whether the connection would be established on the recorded host: it must pass every interface on its path.
fn connects(rules: &Ruleset, members: &[IpAddr], who: &str, target: &str) -> bool {
    let host = [ip("192.168.72.1"), ip("10.0.2.15"), ip("203.0.113.254")];
    let (to, port) = target.rsplit_once(':').unwrap();
    let (to, port) = (ip(to), port.parse().unwrap());
    let passes = |direction, interface, from, user| {
        let packet = Packet { direction, interface, protocol: "tcp", from, to, port, user };
        rules.passes(&packet, members, &host)
    };
    let nobody = 65534;
    match who {
        "c1" if host.contains(&to) => passes("in", "bridge72", ip("192.168.72.101"), nobody),
        "c1" => {
            let from = ip("192.168.72.101");
            let translated = rules.nat.iter().any(|nat| {
                nat.interface == "e0a_inet"
                    && nat.from == Hosts::Table("browser_tasks".into())
                    && members.contains(&from)
            });
            let public = to == ip("203.0.113.1");
            let (way_out, source) = if public && translated {
                ("e0a_inet", host[2])
            } else if public {
                ("e0a_inet", from)
            } else {
                ("e0a_lan", from)
            };
            passes("in", "bridge72", from, nobody)
                && passes("out", way_out, source, nobody)
                // Without translation nothing comes back from the Internet.
                && (!public || translated)
        }
        "host" => passes("out", "bridge72", host[0], 0),
        "inet" => {
            let from = ip("203.0.113.1");
            passes("in", "e0a_inet", from, nobody) && passes("out", "bridge72", from, nobody)
        }
        other => panic!("{other}"),
    }
}

#[test]
fn rendered_rules_decide_like_the_recorded_ones() {
    let (recorded, current) = (recorded_rules(), rendered(spec()));
    let member = [ip("192.168.72.101")];
    let mut compared = 0;
    println!("{:<8} {:<24} {:>8} {:>8} {:>8}", "who", "target", "recorded", "model", "rendered");
    for (section, members) in [("rules loaded, table empty", &[][..]), ("c1 is a member", &member)] {
        println!("{section}");
        for (who, target, reached) in recorded_probes(section) {
            // PF does not see packets between clones; `private` bridge members block them.
            if who == "c2" || target.starts_with("192.168.72.102") {
                continue;
            }
            let model = connects(&recorded, members, &who, &target);
            let rendered = connects(&current, members, &who, &target);
            println!("{who:<8} {target:<24} {reached:>8} {model:>8} {rendered:>8}");
            assert_eq!(model, reached, "the model of PF is wrong about {who} -> {target} ({section})");
            assert_eq!(rendered, reached, "{who} -> {target} ({section})");
            compared += 1;
        }
    }
    assert_eq!(compared, 18);
}

#[test]
fn every_denied_range_is_blocked_and_public_addresses_are_not() {
    for deny_documentation in [false, true] {
        let mut spec = spec();
        spec.networks.push("2a00:1450::/64".parse().unwrap());
        spec.deny_documentation = deny_documentation;
        let rules = rendered(spec);
        let members = [ip("192.168.72.101"), ip("2a00:1450::65")];
        let member_passes = |to: IpAddr, protocol, port| {
            let from = if to.is_ipv4() { members[0] } else { members[1] };
            let packet =
                Packet { direction: "in", interface: "bridge72", protocol, from, to, port, user: 65534 };
            rules.passes(&packet, &members, &[])
        };
        for range in deny::ranges() {
            let blocked = deny_documentation || range.reason.kind != deny::Kind::Documentation;
            for to in [range.net.network(), range.net.broadcast()] {
                assert_eq!(!member_passes(to, "tcp", 443), blocked, "{to} of {}", range.net);
            }
        }
        for to in ["93.184.216.34", "1.1.1.1", "2606:4700::1111"] {
            for (protocol, port, open) in
                [("tcp", 443, true), ("udp", 443, true), ("udp", 53, false), ("tcp", 853, false)]
            {
                assert_eq!(member_passes(ip(to), protocol, port), open, "{protocol} {to}:{port}");
            }
        }
        assert!(member_passes(ip("192.168.72.1"), "udp", 53), "the resolver");
        assert!(!member_passes(ip("192.168.72.1"), "tcp", 80), "the resolver's machine");
        assert!(!member_passes(ip("2a00:1450::66"), "tcp", 8080), "a neighbour");
    }
}

#[test]
fn only_configured_users_and_addresses_can_call_browserd() {
    let mut spec = spec();
    spec.control_plane.push(ip("10.50.0.2").into());
    spec.control_users = vec![0, 977];
    let rules = rendered(spec);
    let call = |from: &str, user, port| {
        let (from, to) = (ip(from), ip("192.168.72.101"));
        let packet =
            Packet { direction: "out", interface: "bridge72", protocol: "tcp", from, to, port, user };
        rules.passes(&packet, &[to], &[ip("192.168.72.1")])
    };
    let nobody = u32::MAX;
    assert!(call("192.168.72.1", 0, 8080) && call("192.168.72.1", 977, 8080));
    assert!(!call("192.168.72.1", 65534, 8080), "another user");
    assert!(!call("192.168.72.1", 0, 80), "another port");
    assert!(call("10.50.0.2", nobody, 8080), "a remote caller has no local user");
    assert!(!call("10.50.0.3", nobody, 8080), "another machine");
    assert!(!call("93.184.216.34", nobody, 8080), "the Internet");
}

#[test]
fn the_rendered_rules_fail_closed() {
    for (name, rules) in [
        ("with one family", rendered(spec())),
        ("with everything", {
            let mut spec = spec();
            spec.networks.push("2a00:1450::/64".parse().unwrap());
            spec.host = vec![ip("198.51.100.77"), ip("2a00:1450:1::77")];
            spec.control_plane =
                ["192.168.72.1", "10.50.0.2", "2a00:1450::1"].map(|caller| ip(caller).into()).to_vec();
            spec.deny_documentation = true;
            rendered(spec)
        }),
    ] {
        assert!(rules.rules.iter().all(|rule| rule.quick), "{name}: a later rule could override it");
        assert!(
            rules.rules.iter().all(|rule| rule.label.is_some()),
            "{name}: the optimiser could move a rule"
        );
        assert!(
            rules.rules.iter().all(|rule| rule.interface.is_some()),
            "{name}: a rule applies to other interfaces"
        );
        assert!(rules.tables.values().all(|table| table.constant && !table.entries.is_empty()), "{name}");
        assert!(
            !rules.tables.contains_key("browser_tasks"),
            "{name}: the table of members belongs to the main ruleset"
        );
        // The last rule of each direction on the bridge blocks everything.
        for direction in ["in", "out"] {
            let on_bridge = |rule: &&grammar::Rule| {
                rule.interface.as_deref() == Some("bridge72") && rule.direction.as_deref() == Some(direction)
            };
            let last = rules.rules.iter().rfind(on_bridge).expect("rules for both directions");
            let whole =
                (&last.from, &last.to, &last.protocol, last.v4) == (&Hosts::Any, &Hosts::Any, &None, None);
            assert!(!last.pass && whole, "{name}: {direction} ends with {last:?}");
        }
        // Every pass rule requires membership or a control plane address.
        for rule in rules.rules.iter().filter(|rule| rule.pass && rule.icmp6.is_none()) {
            let member = rule.from == Hosts::Table("browser_tasks".into());
            let control = rule.direction.as_deref() == Some("out") && matches!(rule.from, Hosts::Net(_));
            assert!(member || control, "{name}: {rule:?}");
        }
    }
}

#[test]
fn ipv6_stays_blocked_for_private_ipv6_networks() {
    let mut spec = spec();
    spec.networks.push("fd87::/64".parse().unwrap());
    let rules = rendered(spec);
    assert_eq!(rules, rendered(self::spec()));
    let first = &rules.rules[0];
    assert!(!first.pass && first.v4 == Some(false) && first.from == Hosts::Any, "{first:?}");
}

#[test]
fn the_parser_refuses_unknown_input() {
    for bad in [
        "pass",
        "pass in quick on bridge72 inet from",
        "block in quick on bridge72 all",
        "pass in quick on bridge72 inet6 from any to 10.0.0.0/8",
        "pass in quick on bridge72 from any to any port = 53",
        "pass in quick on bridge72 proto tcp from any to any port = domain",
        "pass in quick on bridge72 proto gre all",
        "pass in quick on bridge72 all frobnicate",
        "pass in quick on bridge72 all label \"open",
        "table <> const { 10.0.0.0/8 }",
        "table <a> const { 10.0.0.0/8",
        "table <a> const { not-an-address }",
        "pass all\nnat on em0 inet from <a> to any -> (em0)",
        "nat on em0 inet from <a> to any -> (em1)",
        "pass in quick proto { tcp udp } all",
        "x = \"y\"",
        "anchor \"browser\"",
    ] {
        assert!(Ruleset::read(bad, true).is_err(), "{bad}");
    }
}

#[test]
fn the_lines_for_pf_conf_declare_the_table_and_both_anchors() {
    let policy = Policy::try_from(spec()).unwrap();
    assert_eq!(
        pf_conf::pf_conf_lines(&policy, "/usr/local/etc/hostd/browser.conf"),
        [
            "table <browser_tasks> persist",
            "nat-anchor \"browser\"",
            "anchor \"browser\"",
            "load anchor \"browser\" from \"/usr/local/etc/hostd/browser.conf\"",
        ]
    );
}
