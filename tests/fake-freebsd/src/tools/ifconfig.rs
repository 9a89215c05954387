//! ifconfig(8): interfaces, pairs and bridges.

use super::ifconfig_show as show;
use crate::fake::{Caller, Fake, Said};
use crate::world::{Interface, World};

/// `IFNAMSIZ` without the terminating NUL.
const LONGEST_NAME: usize = 15;

pub(super) fn run(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    fake.change(|world| {
        let mut jid = caller.jid;
        if let ["-j", jail, rest @ ..] = &words[..] {
            jid = match world.jail(jail) {
                Some(jail) => jail.jid,
                None => return Said::err(1, format!("ifconfig: jail \"{jail}\" not found\n")),
            };
            words = rest.to_vec();
        }
        match &words[..] {
            [] | ["-a"] if world.tears => {
                let (out, err) = show::all_torn(world, jid);
                Said { out, err, code: 0 }
            }
            [] | ["-a"] => Said::out(show::all(world, jid)),
            ["-l"] => Said::out(show::names(world, jid)),
            ["-g", group] => Said::out(show::group(world, jid, group)),
            [option, ..] if option.starts_with('-') => {
                world.violations.push(format!("ifconfig {}: not known to the fake", words.join(" ")));
                Said::err(1, format!("ifconfig: {option}: not known to the fake\n"))
            }
            [name] => match world.interface(jid, name) {
                Some(interface) => Said::out(show::one(world, interface)),
                None => no_interface(name),
            },
            [name, verbs @ ..] => change(world, jid, name, verbs),
        }
    })
}

fn no_interface(name: &str) -> Said {
    Said::err(1, format!("ifconfig: interface {name} does not exist\n"))
}

/// Do one verb after the other; the first failure ends it, and what was done stays.
fn change(world: &mut World, jid: u32, name: &str, verbs: &[&str]) -> Said {
    let mut name = name.to_owned();
    let mut said = Said::nothing();
    let mut verbs = verbs;
    if verbs[0] == "create" || verbs[0] == "plumb" {
        match create(world, jid, &name) {
            Ok(made) => name = made,
            Err(said) => return said,
        }
        // A name that the kernel chose is told.
        said.out = format!("{name}\n");
        verbs = &verbs[1..];
    } else if world.interface(jid, &name).is_none() && verbs[0] != "-vnet" {
        return no_interface(&name);
    }
    while let [verb, rest @ ..] = verbs {
        let taken = match one(world, jid, &mut name, verb, rest, &mut said) {
            Ok(taken) => taken,
            Err(error) => {
                said.then(error);
                return said;
            }
        };
        verbs = &rest[taken.min(rest.len())..];
    }
    said
}

/// A new pair or bridge; answers the name of its first side.
fn create(world: &mut World, jid: u32, name: &str) -> Result<String, Said> {
    let group = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    if !["epair", "bridge"].contains(&group) {
        return Err(Said::err(1, format!("ifconfig: SIOCIFCREATE2 ({name}): Invalid argument\n")));
    }
    let side = |unit: u32, side: &str| match group {
        "epair" => format!("epair{unit}{side}"),
        _ => format!("{group}{unit}"),
    };
    let taken = |world: &World, unit: u32| world.interfaces.iter().any(|it| it.made_as == side(unit, "a"));
    let unit = match name[group.len()..].parse() {
        Ok(unit) if taken(world, unit) => {
            return Err(Said::err(1, format!("ifconfig: interface {name} already exists\n")));
        }
        Ok(unit) => unit,
        Err(_) => (0..).find(|unit| !taken(world, *unit)).expect("a unit is free"),
    };
    let sides: &[&str] = if group == "epair" { &["a", "b"] } else { &["a"] };
    let newest = world.new_id() + 10;
    world.last.id = newest;
    for (place, letter) in sides.iter().enumerate() {
        let (id, name) = (world.new_id(), side(unit, letter));
        let hardware = match group {
            "epair" => format!("02:{:02x}:{:02x}:00:{:02x}:0{letter}", id / 256 % 256, id % 256, unit % 256),
            _ => format!("58:9c:fc:10:{:02x}:{:02x}", id / 256 % 256, id % 256),
        };
        world.interfaces.push(Interface {
            id,
            name: name.clone(),
            made_as: name,
            jid,
            group: group.to_owned(),
            grouped: newest - place as u64,
            moved: true,
            ether: hardware.clone(),
            hardware,
            ..Interface::default()
        });
    }
    Ok(side(unit, "a"))
}

/// One verb; answers how many words it took after itself.
fn one(
    world: &mut World,
    jid: u32,
    name: &mut String,
    verb: &str,
    rest: &[&str],
    said: &mut Said,
) -> Result<usize, Said> {
    let unknown = |world: &mut World| {
        world.violations.push(format!("ifconfig {name} {verb} {}", rest.join(" ")));
        Err(Said::err(1, format!("ifconfig: {verb}: bad value\n")))
    };
    let argument = rest.first().copied();
    match (verb, argument) {
        ("up" | "down", _) => {
            interface(world, jid, name).up = verb == "up";
            Ok(0)
        }
        ("destroy", _) => {
            let found = interface(world, jid, name);
            if found.group == "lo" || found.group.is_empty() {
                return Err(Said::err(1, "ifconfig: SIOCIFDESTROY: Invalid argument\n"));
            }
            let (id, copy) = (found.id, found.clone());
            world.remove_interface(id);
            if world.tears {
                world.vanished.push(copy);
            }
            Ok(rest.len())
        }
        ("name", Some(new)) => {
            let failed =
                |why: &str| Err(Said::err(1, format!("ifconfig: ioctl SIOCSIFNAME (set name): {why}\n")));
            if new.len() > LONGEST_NAME {
                return failed("File name too long");
            }
            if world.interface(jid, new).is_some() {
                return failed("File exists");
            }
            let renamed = interface(world, jid, name);
            (renamed.name, renamed.moved) = (new.to_owned(), true);
            // The last name is told, and only that.
            *name = new.to_owned();
            said.out = format!("{new}\n");
            Ok(1)
        }
        ("ether" | "link" | "lladdr", Some(address)) => {
            let parts: Vec<&str> = address.split(':').collect();
            if parts.len() != 6 || parts.iter().any(|part| u8::from_str_radix(part, 16).is_err()) {
                return unknown(world);
            }
            interface(world, jid, name).ether = address.to_owned();
            Ok(1)
        }
        ("description" | "descr", Some(text)) => {
            interface(world, jid, name).description = text.to_owned();
            Ok(1)
        }
        ("-description" | "-descr", _) => {
            interface(world, jid, name).description.clear();
            Ok(0)
        }
        ("no_dad", _) => Ok(0),
        ("inet" | "inet6", Some(address)) => {
            let plain = address.split('/').next().unwrap_or_default();
            if plain.parse::<std::net::IpAddr>().is_err() {
                return unknown(world);
            }
            let found = interface(world, jid, name);
            // An address brings the interface up.
            (found.up, found.addresses) = (true, {
                let mut all = std::mem::take(&mut found.addresses);
                all.retain(|known| known != address);
                all.push(address.to_owned());
                all
            });
            match rest.get(1..3) {
                Some(["netmask", _]) => Ok(3),
                _ => Ok(1),
            }
        }
        ("mtu", Some(_)) => Ok(1),
        ("vnet", Some(jail)) => {
            let Some(target) = world.jail(jail).map(|jail| jail.jid) else {
                return Err(Said::err(1, format!("ifconfig: jail \"{jail}\" not found\n")));
            };
            hand_over(world, jid, name, target);
            Ok(rest.len())
        }
        ("-vnet", Some(jail)) => {
            let Some(from) = world.jail(jail).map(|jail| jail.jid) else {
                return Err(Said::err(1, format!("ifconfig: jail \"{jail}\" not found\n")));
            };
            hand_over(world, from, name, jid);
            Ok(rest.len())
        }
        ("addm" | "deletem" | "private" | "-private", Some(member)) => {
            bridge(world, jid, name, verb, member)?;
            Ok(1)
        }
        ("static", Some(member)) => {
            bridge(world, jid, name, verb, member)?;
            match rest.get(1) {
                Some(address) if address.split(':').count() == 6 => Ok(2),
                _ => unknown(world),
            }
        }
        ("alias", _) => Ok(0),
        _ => unknown(world),
    }
}

/// The interface under change, which was looked up before.
fn interface<'a>(world: &'a mut World, jid: u32, name: &str) -> &'a mut Interface {
    world.interface_mut(jid, name).expect("it is there")
}

/// Move an interface into a jail or back.
fn hand_over(world: &mut World, from: u32, name: &str, to: u32) {
    let Some(at) = world.interfaces.iter().position(|it| it.jid == from && it.name == name) else { return };
    let mut moved = world.interfaces.remove(at);
    for bridge in &mut world.interfaces {
        bridge.members.remove(&moved.id);
    }
    (moved.jid, moved.up) = (to, false);
    moved.addresses.clear();
    moved.grouped = world.new_id();
    world.interfaces.push(moved);
}

fn bridge(world: &mut World, jid: u32, name: &str, verb: &str, member: &str) -> Result<(), Said> {
    let request = match verb {
        "addm" => "BRDGADD",
        "deletem" => "BRDGDEL",
        "static" => "BRDGSADDR",
        _ => "BRDGGIFFLGS",
    };
    let failed = |why: &str| Err(Said::err(1, format!("ifconfig: {request} {member}: {why}\n")));
    if interface(world, jid, name).group != "bridge" {
        return failed("Invalid argument");
    }
    let Some(id) = world.interface(jid, member).map(|member| member.id) else {
        return failed("No such file or directory");
    };
    let bridged =
        world.interfaces.iter().find(|bridge| bridge.members.contains_key(&id)).map(|bridge| bridge.id);
    let members = &mut interface(world, jid, name).members;
    match verb {
        "addm" if members.contains_key(&id) => return failed("File exists"),
        "addm" if bridged.is_some() => return failed("Device busy"),
        "addm" => drop(members.insert(id, false)),
        "deletem" => match members.remove(&id) {
            Some(_) => {}
            None => return failed("No such file or directory"),
        },
        "static" if members.contains_key(&id) => {}
        "static" => return failed("No such file or directory"),
        _ => match members.get_mut(&id) {
            Some(private) => *private = verb == "private",
            None => return failed("No such file or directory"),
        },
    }
    Ok(())
}
