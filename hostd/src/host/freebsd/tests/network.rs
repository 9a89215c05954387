//! Interfaces and pairs.

use super::{id, names, recorded, runs, slots};
use crate::host::Identity;
use crate::host::freebsd::{interfaces, network};
use crate::slot::Slot;

#[test]
fn every_recorded_list_of_interfaces_is_read() {
    let mut read = 0;
    for run in runs().into_iter().filter(|run| run.command.starts_with("ifconfig ") && run.exit == 0) {
        if !run.stdout.contains(": flags=") {
            continue;
        }
        let found = interfaces::read(&run.stdout, &run.stderr)
            .unwrap_or_else(|error| panic!("{}: {error}", run.command));
        let headers = run.stdout.lines().filter(|line| line.contains(": flags=") && !line.starts_with('\t'));
        assert_eq!(found.len(), headers.count(), "{}", run.command);
        read += 1;
    }
    assert!(read >= 3, "{read} were recorded");
    let bridge = interfaces::read(&recorded("ifconfig bridge72").stdout, "").unwrap().remove(0);
    assert_eq!(bridge.name, "bridge72");
    assert!(bridge.up && bridge.groups.contains("bridge"));
    assert!(bridge.addresses.contains(&[192, 168, 72, 1].into()));
    assert_eq!(bridge.members.keys().collect::<Vec<_>>(), ["e0a_vj"]);
    assert!(!bridge.members["e0a_vj"].contains("PRIVATE") && bridge.members["e0a_vj"].contains("LEARNING"));
    let end = interfaces::read(&recorded("ifconfig e0a_vj").stdout, "").unwrap().remove(0);
    assert_eq!(end.ether.as_deref(), Some("02:e4:98:65:ca:0a"));
    assert_eq!(end.description, None);
}

/// The recorded bridge and end, as they are for a clone of own.
pub(super) fn pair(description: Option<&str>, member: &str) -> String {
    let names = names();
    let describe = description.map(|text| format!("\tdescription: {text}\n")).unwrap_or_default();
    let end = recorded("ifconfig e0a_vj").stdout.replace("e0a_vj", &names.epair_host);
    let end = end.replace("02:e4:98:65:ca:0a", &names.mac_host.to_string());
    let (header, rest) = end.split_once('\n').unwrap();
    let bridge = recorded("ifconfig bridge72").stdout.replace("e0a_vj", &names.epair_host);
    let bridge = bridge.replace("flags=143<LEARNING,DISCOVER,AUTOEDGE,AUTOPTP>", member);
    format!("{bridge}{header}\n{describe}{rest}")
}

pub(super) const PRIVATE: &str = "flags=943<LEARNING,DISCOVER,PRIVATE,AUTOEDGE,AUTOPTP>";

#[test]
fn a_pair_is_complete_if_it_is_up_private_and_named() {
    let plan = network::PairNames { bridge: "bridge72".into(), base: 10_000 };
    let seen = |text: &str| plan.observed(&interfaces::read(text, "").unwrap(), &names());
    let mark = format!("hostd:{}", id('a'));
    let whole = pair(Some(&mark), PRIVATE);
    let found = seen(&whole).unwrap();
    assert!(found.complete);
    assert_eq!(found.identity, Identity::Clone(id('a')));

    let open = pair(Some(&mark), "flags=143<LEARNING,DISCOVER,AUTOEDGE,AUTOPTP>");
    assert!(!seen(&open).unwrap().complete, "without `private` clones reach each other");
    let other_mac = whole.replace(&names().mac_host.to_string(), "02:00:00:00:00:01");
    assert!(!seen(&other_mac).unwrap().complete);
    let down = whole.replace("e0a_bt001: flags=1008943<UP,", "e0a_bt001: flags=1008942<");
    assert_ne!(down, whole);
    assert!(!seen(&down).unwrap().complete);
    let unnamed = format!(
        "{whole}{}",
        whole.split("\ne0a_bt001: ").nth(1).map(|rest| format!("epair10001b: {rest}")).unwrap()
    );
    assert!(!seen(&unnamed).unwrap().complete, "the other end still has its first name");

    assert_eq!(seen(&pair(None, PRIVATE)).unwrap().identity, Identity::Unmarked);
    let theirs = seen(&pair(Some("vnet0 host interface for Bastille jail browser"), PRIVATE)).unwrap();
    assert!(matches!(theirs.identity, Identity::Foreign(_)));
    let tap = whole.replace("groups: epair", "groups: tap");
    assert!(matches!(seen(&tap).unwrap().identity, Identity::Foreign(_)));
    assert_eq!(
        plan.observed(&interfaces::read(&recorded("ifconfig bridge72").stdout, "").unwrap(), &names()),
        None
    );
}

#[test]
fn interface_names_are_mapped_to_slots() {
    let plan = network::PairNames { bridge: "bridge72".into(), base: 10_000 };
    let slots = slots();
    for (name, slot) in [
        ("e0a_bt001", Slot::new(1)),
        ("e0b_bt017", Slot::new(17)),
        ("epair10001a", Slot::new(1)),
        ("epair10900b", Slot::new(900)),
        ("epair10901b", None),
        ("epair10000a", None),
        ("epair1a", None),
        ("epair10001", None),
        ("epair10001c", None),
        ("epair+10001a", None),
        ("bt001", None),
        ("e0a_browser", None),
        ("bridge72", None),
    ] {
        assert_eq!(plan.slot_of_name(&slots, name), slot, "{name}");
    }
}

/// Two torn listings as recorded: the host's end lost its metric, the clone's end appears under its first name.
const TORN: [&str; 2] = [
    "e0a_bt001: flags=1008842<BROADCAST,RUNNING,SIMPLEX,MULTICAST,LOWER_UP> mtu 1500\n\
     \tdescription: hostd:MARK\n\toptions=8<VLAN_MTU>\n\tether 02:90:2f:11:b2:0a\n",
    "e0a_bt001: flags=1008842<BROADCAST,RUNNING,SIMPLEX,MULTICAST,LOWER_UP> metric 0 mtu 1500\n\
     \toptions=8<VLAN_MTU>\n\tether 02:69:2f:10:58:0a\n",
];

#[test]
fn a_torn_interface_is_incomplete_and_never_foreign() {
    let plan = network::PairNames { bridge: "bridge72".into(), base: 10_000 };
    let whole = recorded("ifconfig bridge72").stdout;
    let complaint = "ifconfig: ioctl(SIOCGIFINFO_IN6): Device not configured\n";
    for (torn, expected) in TORN.iter().zip([Identity::Clone(id('a')), Identity::Unmarked]) {
        let text = format!("{whole}{}", torn.replace("MARK", id('a').as_str()));
        let all = interfaces::read(&text, complaint).unwrap();
        assert_eq!(all.len(), 2, "the rest of the list is read");
        assert!(!all[0].torn && all[1].torn, "{all:?}");
        let observed = plan.observed(&all, &names()).unwrap();
        assert!(!observed.complete);
        assert_eq!(observed.identity, expected);
    }
    // Without a complaint an interface without a group is of another kind.
    let all = interfaces::read(&format!("{whole}{}", TORN[1]), "").unwrap();
    assert!(matches!(plan.observed(&all, &names()).unwrap().identity, Identity::Foreign(_)));
    // A line that is no first line of an interface stays an error.
    let broken = TORN[0].replace(": flags=", " flags=");
    assert!(interfaces::read(&format!("{whole}{broken}"), complaint).is_err());
}

/// What later releases may add or write in another way. Nothing of it makes an interface look better than it is.
#[test]
fn unknown_words_of_one_interface_do_not_hide_the_others() {
    let plan = network::PairNames { bridge: "bridge72".into(), base: 10_000 };
    let mark = format!("hostd:{}", id('a'));
    let whole = pair(Some(&mark), PRIVATE);
    let newer = "vlan3: flags=1008843<UP,BROADCAST,stp-ok> metric 0 mtu 1500 fib 2\n\
                 \tbridge flags=1<VLANFILTER>\n\tinet6 not-an-address prefixlen 64\n\
                 other0: flags=zz\n";
    let members =
        "\tmember: e0a_www flags=943<LEARNING,DISCOVER,PRIVATE> untagged 3 tagged 4-5\n\tmember: e0a_x\n";
    let bridge = whole.replace("\tgroups: bridge\n", &format!("{members}\tgroups: bridge\n"));
    assert_ne!(bridge, whole);
    let all = interfaces::read(&format!("{bridge}{newer}"), "").unwrap();
    assert!(plan.observed(&all, &names()).unwrap().complete);
    let other = all.iter().find(|one| one.name == "other0").unwrap();
    assert!(other.torn && !other.up);
    let found = plan.bridge(&all).unwrap();
    assert!(found.members["e0a_www"].contains("PRIVATE") && found.members["e0a_x"].is_empty());
    // An own end whose flags cannot be read is not complete.
    let unreadable = whole.replace("PRIVATE,", "private,");
    assert!(!plan.observed(&interfaces::read(&unreadable, "").unwrap(), &names()).unwrap().complete);
}

#[test]
fn a_renamed_end_is_found_by_its_ethernet_address() {
    let plan = network::PairNames { bridge: "bridge72".into(), base: 10_000 };
    let mark = format!("hostd:{}", id('a'));
    let renamed = pair(Some(&mark), PRIVATE).replace("e0a_bt001", "mine0");
    let all = interfaces::read(&renamed, "").unwrap();
    let observed = plan.observed(&all, &names()).unwrap();
    assert_eq!(observed.identity, Identity::Clone(id('a')));
    assert!(!observed.complete, "it has another name");
    assert_eq!(all.iter().find_map(|one| plan.slot_of(&slots(), one)), Slot::new(1));
    let foreign = renamed.replace(&mark, "my own");
    let observed = plan.observed(&interfaces::read(&foreign, "").unwrap(), &names()).unwrap();
    assert!(matches!(observed.identity, Identity::Foreign(_)), "somebody else's interface with this address");
}
