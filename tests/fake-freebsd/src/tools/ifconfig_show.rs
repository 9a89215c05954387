//! How ifconfig(8) shows interfaces.

use crate::world::{Interface, World};
use std::fmt::Write;
use std::net::Ipv4Addr;

fn of(world: &World, jid: u32) -> impl Iterator<Item = &Interface> {
    world.interfaces.iter().filter(move |interface| interface.jid == jid)
}

pub(super) fn names(world: &World, jid: u32) -> String {
    let names: Vec<&str> = of(world, jid).map(|interface| interface.name.as_str()).collect();
    format!("{}\n", names.join(" "))
}

pub(super) fn group(world: &World, jid: u32, group: &str) -> String {
    let mut members: Vec<&Interface> = of(world, jid).filter(|interface| interface.group == group).collect();
    members.sort_by_key(|interface| interface.grouped);
    members.iter().map(|interface| format!("{}\n", interface.name)).collect()
}

pub(super) fn all(world: &World, jid: u32) -> String {
    of(world, jid).map(|interface| one(world, interface)).collect()
}

/// The list of a host whose interfaces come and go while it is printed, and what ifconfig complains about.
///
/// ifconfig asks for each detail by a name that may be another one by now: every second row of an interface that moved
/// since the last list lacks the metric and ends after the Ethernet address, and the exit code is 0 all the same.
pub(super) fn all_torn(world: &mut World, jid: u32) -> (String, String) {
    let mut complaints = String::new();
    let mut torn = |text: String| {
        complaints.push_str("ifconfig: ioctl(SIOCGIFINFO_IN6): Device not configured\n");
        let text = text.replacen(" metric 0 mtu", " mtu", 1);
        let end = text.find("\tether ").and_then(|at| Some(at + text[at..].find('\n')? + 1));
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let mut list = String::new();
    let mut chance = world.new_id();
    for interface in of(world, jid) {
        let text = one(world, interface);
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        list.push_str(&if interface.moved && chance >> 63 == 1 { torn(text) } else { text });
    }
    for interface in world.vanished.iter().filter(|interface| interface.jid == jid) {
        list.push_str(&torn(one(world, interface)));
    }
    world.vanished.clear();
    world.interfaces.iter_mut().for_each(|interface| interface.moved = false);
    (list, complaints)
}

fn flags(world: &World, interface: &Interface) -> String {
    let bridged = world.interfaces.iter().any(|bridge| bridge.members.contains_key(&interface.id));
    let (mut bits, mut words) = (0x0100_8802_u32, Vec::new());
    if interface.up {
        (bits, words) = (bits | 0x41, vec!["UP"]);
    }
    words.push("BROADCAST");
    if interface.up {
        words.push("RUNNING");
    }
    if bridged {
        bits |= 0x100;
        words.push("PROMISC");
    }
    words.extend(["SIMPLEX", "MULTICAST", "LOWER_UP"]);
    format!("flags={bits:x}<{}>", words.join(","))
}

pub(super) fn one(world: &World, interface: &Interface) -> String {
    let name = &interface.name;
    if interface.group == "lo" {
        return loopback(interface);
    }
    let mut text = format!("{name}: {} metric 0 mtu 1500\n", flags(world, interface));
    if !interface.description.is_empty() {
        let _ = writeln!(text, "\tdescription: {}", interface.description);
    }
    let bridge = interface.group == "bridge";
    text.push_str(if bridge { "\toptions=0\n" } else { "\toptions=8<VLAN_MTU>\n" });
    let _ = writeln!(text, "\tether {}", interface.ether);
    if interface.ether != interface.hardware {
        let _ = writeln!(text, "\thwaddr {}", interface.hardware);
    }
    interface.addresses.iter().for_each(|address| text.push_str(&inet(address)));
    if bridge {
        text.push_str(
            "\tid 00:00:00:00:00:00 priority 32768 hellotime 2 fwddelay 15\n\
             \tmaxage 20 holdcnt 6 proto rstp maxaddr 2000 timeout 1200\n\
             \troot id 00:00:00:00:00:00 priority 32768 ifcost 0 port 0\n",
        );
        // The newest member first.
        for (id, private) in interface.members.iter().rev() {
            let Some(at) = world.interfaces.iter().position(|member| member.id == *id) else { continue };
            let flags = match private {
                true => "flags=943<LEARNING,DISCOVER,PRIVATE,AUTOEDGE,AUTOPTP>",
                false => "flags=143<LEARNING,DISCOVER,AUTOEDGE,AUTOPTP>",
            };
            let _ = writeln!(text, "\tmember: {} {flags}", world.interfaces[at].name);
            let _ = writeln!(text, "\t        ifmaxaddr 0 port {} priority 128 path cost 2000", at + 1);
        }
    }
    if !interface.group.is_empty() {
        let _ = writeln!(text, "\tgroups: {}", interface.group);
    }
    if bridge {
        text.push_str("\tnd6 options=9<PERFORMNUD,IFDISABLED>\n");
    } else {
        let status = if interface.up { "active" } else { "no carrier" };
        let _ = writeln!(text, "\tmedia: Ethernet 10Gbase-T (10Gbase-T <full-duplex>)\n\tstatus: {status}");
        text.push_str("\tnd6 options=29<PERFORMNUD,IFDISABLED,AUTO_LINKLOCAL>\n");
    }
    text
}

fn loopback(interface: &Interface) -> String {
    let mut text = format!(
        "{}: flags=1008049<UP,LOOPBACK,RUNNING,MULTICAST,LOWER_UP> metric 0 mtu 16384\n\
         \toptions=680003<RXCSUM,TXCSUM,LINKSTATE,RXCSUM_IPV6,TXCSUM_IPV6>\n",
        interface.name
    );
    for address in &interface.addresses {
        let plain = address.split('/').next().unwrap_or_default();
        let _ = writeln!(text, "\tinet {plain} netmask 0xff000000");
    }
    text.push_str("\tgroups: lo\n\tnd6 options=21<PERFORMNUD,AUTO_LINKLOCAL>\n");
    text
}

fn inet(address: &str) -> String {
    let (plain, length) = address.split_once('/').unwrap_or((address, "32"));
    let Ok(plain) = plain.parse::<Ipv4Addr>() else { return format!("\tinet6 {plain} prefixlen {length}\n") };
    let length: u32 = length.parse().unwrap_or(32);
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    let broadcast = Ipv4Addr::from(u32::from(plain) | !mask);
    format!("\tinet {plain} netmask 0x{mask:08x} broadcast {broadcast}\n")
}
