//! arp(8): the host's permanent entries.

use crate::fake::{Fake, Said};
use crate::world::World;
use std::net::Ipv4Addr;

pub(super) fn run(fake: &Fake, arguments: &[String]) -> Said {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    fake.change(|world| match &words[..] {
        ["-f", file] => match std::fs::read_to_string(file) {
            Ok(text) => text.lines().fold(Said::nothing(), |mut said, line| {
                if let Err(error) = set(world, line) {
                    said.then(error);
                }
                said
            }),
            Err(_) => Said::err(1, format!("arp: cannot open {file}: No such file or directory\n")),
        },
        ["-an"] => Said::out(list(world)),
        _ => {
            world.violations.push(format!("arp {}: not known to the fake", words.join(" ")));
            Said::err(1, "usage: arp [-n] [-i interface] hostname\n")
        }
    })
}

/// One entry. It belongs to the interface whose network has the address.
fn set(world: &mut World, line: &str) -> Result<(), Said> {
    let mut words = line.split_whitespace();
    let (Some(ip), Some(mac), None) = (words.next(), words.next(), words.next()) else {
        return Err(Said::err(1, format!("arp: bad line: {line}\n")));
    };
    let Ok(address) = ip.parse::<Ipv4Addr>() else {
        return Err(Said::err(1, format!("arp: {ip}: Unknown host\n")));
    };
    let near = |given: &String| {
        let (plain, length) = given.split_once('/').unwrap_or((given, "32"));
        let mask = length.parse().ok().and_then(|length: u32| u32::MAX.checked_shl(32 - length)).unwrap_or(0);
        plain.parse::<Ipv4Addr>().is_ok_and(|plain| u32::from(plain) & mask == u32::from(address) & mask)
    };
    let interface = world.interfaces.iter().find(|it| it.jid == 0 && it.addresses.iter().any(near));
    let Some(interface) = interface.map(|interface| interface.id) else {
        return Err(Said::err(1, format!("arp: cannot intuit interface index and type for {ip}\n")));
    };
    world.arp.insert(ip.to_owned(), (mac.to_owned(), interface));
    Ok(())
}

fn list(world: &World) -> String {
    let line = |(ip, (mac, interface)): (&String, &(String, u64))| {
        let found = world.interfaces.iter().find(|it| it.id == *interface)?;
        let kind = if found.group == "bridge" { "bridge" } else { "ethernet" };
        Some(format!("? ({ip}) at {mac} on {} permanent [{kind}]\n", found.name))
    };
    world.arp.iter().filter_map(line).collect()
}
