//! bastille 1.4.4, with its lies: a start or stop that fails still ends with 0.

use super::jail_conf;
use crate::fake::{Caller, Fake, Said};
use std::path::PathBuf;

pub(super) fn run(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let own = std::process::id();
    // It has no lock of its own: two at once use the same files in /tmp and delete them under each other.
    fake.change(|world| {
        if !world.bastilles.is_empty() {
            world.violations.push(format!("bastille {} while another runs", arguments.join(" ")));
        }
        world.bastilles.insert(own);
    });
    let said = act(fake, arguments, caller);
    fake.change(|world| world.bastilles.remove(&own));
    said
}

fn act(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if caller.nobody {
        return Said {
            out: "\n".into(),
            err: "Bastille: Permission Denied\nroot / sudo / doas required\n".into(),
            code: 1,
        };
    }
    match words[..] {
        ["--version" | "-v" | "version"] => Said::err(0, "1.4.4\n"),
        ["list", "jails"] => Said::out(jails(fake).iter().map(|name| format!("{name}\n")).collect::<String>()),
        ["list", "-j"] => list_json(fake),
        [command @ ("start" | "stop"), target] => match resolve(fake, target) {
            None => Said::err(1, format!("Jail not found \"{target}\"\n")),
            Some(name) => start_or_stop(fake, command, &name),
        },
        [command @ ("start" | "stop")] => Said {
            out: "\n    Options:\n\n    -b | --boot            Respect jail boot setting.\n    -d | --delay VALUE     Time (seconds) to wait after starting each jail.\n    -v | --verbose         Enable verbose mode.\n    -x | --debug           Enable debug mode.\n\n".into(),
            err: format!("Usage: bastille {command} [option(s)] TARGET\n"),
            code: 1,
        },
        _ => {
            fake.violation(format!("bastille {}: not known to the fake", words.join(" ")));
            Said::err(1, format!("bastille: {}: not known to the fake\n", words.join(" ")))
        }
    }
}

fn folder(fake: &Fake) -> (PathBuf, PathBuf) {
    fake.change(|world| {
        let jails = world.bastille.join("jails");
        (world.real(&jails), jails)
    })
}

/// Every folder with a jail.conf.
fn jails(fake: &Fake) -> Vec<String> {
    let (real, _) = folder(fake);
    let entries = std::fs::read_dir(real).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("jail.conf").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A target is the beginning of a name, or a jail's number.
fn resolve(fake: &Fake, target: &str) -> Option<String> {
    let names = jails(fake);
    let by_number = || fake.change(|world| world.jail(target).map(|jail| jail.name.clone()));
    let whole = names.iter().find(|name| *name == target);
    whole.or_else(|| names.iter().find(|name| name.starts_with(target))).cloned().or_else(by_number)
}

fn start_or_stop(fake: &Fake, command: &str, name: &str) -> Said {
    let (real, shown) = folder(fake);
    let mut said = Said::err(0, format!("\n[{name}]:\n"));
    let running = fake.change(|world| world.jail(name).is_some());
    match (command, running) {
        ("start", true) => said.err.push_str("Jail is already running.\n"),
        ("stop", false) => said.err.push_str("Jail is already stopped.\n"),
        _ => {}
    }
    // A stop writes settings into every jail's folder that has none.
    if command == "stop" {
        for folder in std::fs::read_dir(&real).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let settings = folder.join("settings.conf");
            if folder.is_dir() && settings.symlink_metadata().is_err() {
                let _ = std::fs::write(settings, "boot=\"on\"\ndepend=\"\"\npriority=\"99\"\n");
            }
        }
    }
    if (command == "start") != running {
        let conf = shown.join(name).join("jail.conf").display().to_string();
        // `bastille list` and the like look for this line.
        let text = std::fs::read_to_string(real.join(name).join("jail.conf")).unwrap_or_default();
        if !text.lines().any(|line| line == format!("{name} {{")) {
            fake.violation(format!(
                "{conf} has no line \"{name} {{\": Bastille does not find the jail in it"
            ));
        }
        let letter = if command == "start" { "-c" } else { "-r" };
        let words = ["-f".to_owned(), conf, letter.to_owned(), name.to_owned()];
        let done = super::run(fake, "jail", &words, Caller::default());
        // Whatever jail(8) says, the end is good.
        said.then(Said { code: 0, ..done });
    }
    said
}

fn list_json(fake: &Fake) -> Said {
    let (real, _) = folder(fake);
    let mut rows = Vec::new();
    for name in jails(fake) {
        let jid = fake.change(|world| world.jail(&name).map(|jail| jail.jid.to_string()));
        let state = if jid.is_some() { "Up" } else { "Down" };
        let jid = jid.unwrap_or_else(|| "-".to_owned());
        let rc = std::fs::read_to_string(real.join(&name).join("root/etc/rc.conf")).unwrap_or_default();
        let address = rc.lines().find_map(|line| line.strip_prefix("ifconfig_vnet0=\"inet "));
        let address = address.and_then(|rest| rest.split('/').next()).unwrap_or("-");
        let conf = std::fs::read_to_string(real.join(&name).join("jail.conf")).unwrap_or_default();
        let parsed = jail_conf::parse(&conf).and_then(|mut jails| jails.remove(&name)).unwrap_or_default();
        let release = parsed.text("osrelease").unwrap_or("-").to_owned();
        let cloned = fake.change(|world| {
            let of = |(dataset, found): (&String, &crate::Dataset)| {
                dataset.ends_with(&format!("/jails/{name}")) && found.origin.is_some()
            };
            world.datasets.iter().any(of)
        });
        let kind = if cloned { "clone" } else { "thick" };
        rows.push(format!(
            "  {{\"JID\":\"{jid}\",\"Name\":\"{name}\",\"Boot\":\"on\",\"Prio\":\"99\",\"State\":\"{state}\",\
             \"Type\":\"{kind}\",\"IP Address\":\"{address}\",\"Published Ports\":\"-\",\"Release\":\"{release}\",\
             \"Tags\":\"-\"}}"
        ));
    }
    Said::out(format!("[\n{}\n]\n", rows.join(",\n")))
}
