//! sysctl(8), kernel modules, and route(8) inside a jail.

use crate::fake::{Caller, Fake, Said};
use crate::options::Options;

pub(super) fn sysctl(fake: &Fake, arguments: &[String]) -> Said {
    let given = match Options::parse(arguments, "aneiqN") {
        Ok(given) => given,
        Err(why) => {
            return super::refused(fake, "sysctl", arguments, why, "usage: sysctl [-n] name[=value] ...\n");
        }
    };
    fake.change(|world| {
        let mut said = Said::nothing();
        for word in &given.operands {
            let (name, new) = match word.split_once('=') {
                Some((name, new)) => (name, Some(new)),
                None => (word.as_str(), None),
            };
            match (world.sysctl.get(name), new) {
                (None, _) if given.has('i') => {}
                (None, _) => {
                    said.err.push_str(&format!("sysctl: unknown oid '{name}'\n"));
                    said.code = 1;
                }
                (Some(_), Some(_)) if name == "kern.racct.enable" => {
                    said.err.push_str(&format!(
                        "sysctl: oid '{name}' is a read only tunable\n\
                         sysctl: Tunable values are set in /boot/loader.conf\n"
                    ));
                    said.code = 1;
                }
                (Some(old), Some(new)) => {
                    said.out.push_str(&format!("{name}: {old} -> {new}\n"));
                    world.sysctl.insert(name.to_owned(), new.to_owned());
                }
                (Some(value), None) if given.has('n') => said.out.push_str(&format!("{value}\n")),
                (Some(value), None) => said.out.push_str(&format!("{name}: {value}\n")),
            }
        }
        said
    })
}

/// Only the packet filter is a module here.
pub(super) fn kld(fake: &Fake, tool: &str, arguments: &[String]) -> Said {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    fake.change(|world| match (tool, &words[..]) {
        ("kldload", ["pf"]) if world.pf.loaded => {
            Said::err(1, "kldload: can't load pf: module already loaded or in kernel\n")
        }
        ("kldload", ["pf"]) => {
            world.pf.loaded = true;
            Said::nothing()
        }
        ("kldunload", ["pf"]) => {
            super::pfctl::flush_all(world);
            (world.pf.loaded, world.pf.enabled) = (false, false);
            Said::nothing()
        }
        ("kldload", ["ipfw"]) => {
            world.ipfw_loaded = true;
            Said::nothing()
        }
        ("kldunload", ["ipfw"]) => {
            world.ipfw_loaded = false;
            world.ipfw.clear();
            Said::nothing()
        }
        ("kldunload", ["pflog"]) => Said::nothing(),
        ("kldstat", ["-m", "pf"]) if world.pf.loaded => Said::out("Id  Refs Name\n124    1 pf\n"),
        ("kldstat", ["-m", module]) => {
            Said::err(1, format!("kldstat: can't find module {module}: No such file or directory\n"))
        }
        _ => {
            world.violations.push(format!("{tool} {}: not known to the fake", words.join(" ")));
            Said::err(1, format!("{tool}: not known to the fake\n"))
        }
    })
}

/// The default route of a jail. Its gateway must be in a network that the jail has.
pub(super) fn route(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let words: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    fake.change(|world| match &words[..] {
        ["add", "default", gateway] if caller.jid != 0 && gateway.parse::<std::net::IpAddr>().is_ok() => {
            let addressed = world.interfaces.iter().any(|interface| {
                interface.jid == caller.jid && interface.group != "lo" && !interface.addresses.is_empty()
            });
            match addressed {
                true => Said::nothing(),
                false => {
                    Said::err(1, format!("add net default: gateway {gateway} fib 0: Invalid argument\n"))
                }
            }
        }
        _ => {
            world.violations.push(format!("route {}: not known to the fake", words.join(" ")));
            Said::err(1, "route: not known to the fake\n")
        }
    })
}
