//! Commands that tools start: inside a jail, where almost nothing is, and on the host.

use super::{run, service};
use crate::fake::{Caller, Fake, Said};
use std::time::Duration;

/// How a command ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// By itself.
    Said(Said),
    /// It would go on for so many seconds.
    Sleeps(u64),
    /// There is no such program.
    NoProgram,
}

/// Split a line into words; quotes hold them together.
pub(super) fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (blank, None) if blank.is_whitespace() => words.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Run a command line inside a jail.
pub(super) fn inside(fake: &Fake, jid: u32, line: &str) -> Ended {
    run_inside(fake, jid, &words(line))
}

/// Run a command inside a jail.
pub(super) fn run_inside(fake: &Fake, jid: u32, words: &[String]) -> Ended {
    let Some((program, arguments)) = words.split_first() else { return Ended::Said(Said::nothing()) };
    let caller = Caller { jid, nobody: false };
    let name = program.rsplit('/').next().unwrap_or_default();
    let plain: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if program.contains("/rc.d/") {
        return service::act(fake, jid, name, plain.first().copied().unwrap_or_default());
    }
    let said = match (name, &plain[..]) {
        ("sh", ["-c", script]) => return shell(fake, jid, script),
        ("sh", ["/etc/rc"]) => {
            fake.change(|world| {
                world.start(jid, 1, "/usr/sbin/syslogd -ss");
                world.start(jid, 1, "/usr/sbin/cron -J 60 -s");
            });
            Said::out("Starting syslogd.\nStarting cron.\n")
        }
        ("sh", ["/etc/rc.shutdown"]) | ("true", _) => Said::nothing(),
        ("false", _) => Said::err(1, ""),
        ("echo", words) => Said::out(format!("{}\n", words.join(" "))),
        ("sleep", [seconds]) => return Ended::Sleeps(seconds.parse().unwrap_or(0)),
        ("exit", [code]) => Said::err(code.parse().unwrap_or(2), ""),
        ("kill", ["-9", "$$"]) => Said::err(137, ""),
        ("service", [name, action]) => return service::act(fake, jid, name, action),
        ("ifconfig" | "route" | "ps" | "kill", _) => run(fake, name, arguments, caller),
        _ => return Ended::NoProgram,
    };
    Ended::Said(said)
}

/// As much of a shell as start scripts need: commands joined by `&&`, one in the background in brackets.
fn shell(fake: &Fake, jid: u32, script: &str) -> Ended {
    let mut said = Said::nothing();
    for part in script.split("&&").map(str::trim) {
        if let Some((command, _)) = part.strip_prefix('(').and_then(|part| part.split_once('&')) {
            fake.change(|world| world.start(jid, 1, command.trim()));
            continue;
        }
        match inside(fake, jid, part) {
            Ended::Said(next) => said.then(next),
            Ended::NoProgram => {
                let program = part.split_whitespace().next().unwrap_or_default();
                said.then(Said::err(127, format!("/bin/sh: {program}: not found\n")));
            }
            sleeps => return sleeps,
        }
        if said.code != 0 {
            break;
        }
    }
    Ended::Said(said)
}

/// Run a command line on the host, as jail(8) does for `exec.prestart` and the like.
pub(super) fn on_host(fake: &Fake, line: &str) -> Said {
    let folder = fake.tools_folder();
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", line]).env_clear().env("PATH", path).stdin(std::process::Stdio::null());
    match command.output() {
        Ok(done) => Said {
            out: String::from_utf8_lossy(&done.stdout).into_owned(),
            err: String::from_utf8_lossy(&done.stderr).into_owned(),
            code: done.status.code().unwrap_or(255),
        },
        Err(error) => Said::err(255, format!("/bin/sh: {error}\n")),
    }
}

pub(super) fn jexec(fake: &Fake, arguments: &[String]) -> Said {
    const USAGE: &str = "usage: jexec [-l] [-u username | -U username] jail [command ...]\n";
    let given = match crate::options::Options::parse(arguments, "dlu:U:") {
        Ok(given) => given,
        Err(why) => return super::refused(fake, "jexec", arguments, why, USAGE),
    };
    let Some((key, command)) = given.operands.split_first() else { return Said::err(1, USAGE) };
    let quoted = if key.parse::<u32>().is_ok() { key.clone() } else { format!("\"{key}\"") };
    let found = fake.change(|world| match (world.jail(key), world.dying(key)) {
        (Some(jail), _) => {
            // Its root may have been unmounted under it.
            let root = world.real(&jail.path);
            let gone = !root.is_dir()
                || world.datasets.keys().any(|name| {
                    world.mount_of(name).is_none() && super::zfs::mountpoint_of(world, name) == jail.path
                });
            Ok((jail.jid, gone))
        }
        (None, Some(_)) => Err(format!("jexec: jail {quoted} is dying\n")),
        (None, None) => Err(format!("jexec: jail {quoted} not found\n")),
    });
    let jid = match found {
        Ok((jid, true)) => return Said::err(1, format!("jexec: jail_attach({jid}): Not a directory\n")),
        Ok((jid, false)) => jid,
        Err(text) => return Said::err(1, text),
    };
    match run_inside(fake, jid, command) {
        Ended::Said(said) => said,
        Ended::Sleeps(seconds) => {
            std::thread::sleep(Duration::from_secs(seconds));
            Said::nothing()
        }
        Ended::NoProgram => {
            let program = command.first().map_or("", String::as_str);
            Said::err(1, format!("jexec: execvp: {program}: No such file or directory\n"))
        }
    }
}
