//! service(8): rc.d scripts, of the host or of a jail.
//!
//! What a jail's service does, its script tells, as everything in a clone is the clone's own word. The fake reads these
//! words in it: `endless-stop`, `deaf` (its processes do not listen to TERM), `broken` (it does not start).

use super::command::Ended;
use super::{pfctl, run as run_tool};
use crate::fake::{Caller, Fake, Said};

/// A stop that never ends.
const FOR_EVER: u64 = 86_400;

pub(super) fn run(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["-j", jail, name, action] => {
            let found = fake.change(|world| world.jail(jail).map(|jail| jail.jid));
            match found {
                Some(jid) => wait(act(fake, jid, name, action)),
                None => Said::err(1, format!("jexec: jail \"{jail}\" not found\n")),
            }
        }
        [name, action] if caller.jid != 0 => wait(act(fake, caller.jid, name, action)),
        ["pf", action] => packet_filter(fake, action, caller),
        ["rctl", _] => Said::nothing(),
        [name, _] => no_script(name),
        _ => {
            fake.violation(format!("service {}", words.join(" ")));
            Said::err(1, "usage: service [-j <jail name or id>] <rc.d script> start|stop|etc.\n")
        }
    }
}

fn wait(ended: Ended) -> Said {
    match ended {
        Ended::Said(said) => said,
        Ended::Sleeps(seconds) => {
            std::thread::sleep(std::time::Duration::from_secs(seconds));
            Said::nothing()
        }
        Ended::NoProgram => Said::err(1, ""),
    }
}

fn no_script(name: &str) -> Said {
    let out = format!(
        "{name} does not exist in /etc/rc.d or the local startup\n\
         directories (/usr/local/etc/rc.d), or is not executable\n"
    );
    Said { out, err: String::new(), code: 1 }
}

/// An action of a service inside a jail.
pub(super) fn act(fake: &Fake, jid: u32, name: &str, action: &str) -> Ended {
    if action.ends_with("restart") {
        let Ended::Said(mut said) = act(fake, jid, name, "stop") else { return Ended::Sleeps(FOR_EVER) };
        if let Ended::Said(started) = act(fake, jid, name, "start") {
            said.then(started);
        }
        return Ended::Said(said);
    }
    let system = match name {
        "syslogd" => Some(("/usr/sbin/syslogd -ss", "/var/run/syslog.pid")),
        "cron" => Some(("/usr/sbin/cron -J 60 -s", "/var/run/cron.pid")),
        _ => None,
    };
    fake.change(|world| {
        let Some(jail) = world.jails.iter().find(|jail| jail.jid == jid) else { return Ended::NoProgram };
        let root = world.real(&jail.path);
        let script = ["etc/rc.d", "usr/local/etc/rc.d"]
            .iter()
            .find_map(|folder| std::fs::read_to_string(root.join(folder).join(name)).ok());
        if system.is_none() && script.is_none() {
            return Ended::Said(no_script(name));
        }
        let script = script.unwrap_or_default();
        let pidfile = system.map_or(format!("/var/run/{name}.pid"), |(_, file)| file.to_owned());
        let command = system.map_or(format!("daemon: {name}"), |(command, _)| command.to_owned());
        let running = world
            .processes
            .iter()
            .find(|(_, process)| process.jid == jid && process.command.starts_with(&command))
            .map(|(pid, _)| *pid);
        let word = action.trim_start_matches("one").trim_start_matches("quiet").trim_start_matches("force");
        Ended::Said(match (word, running) {
            ("start", Some(pid)) => Said::err(1, format!("{name} already running?  (pid={pid}).\n")),
            ("start", None) if script.contains("broken") => {
                Said { out: format!("Starting {name}.\n"), err: String::new(), code: 1 }
            }
            ("start", None) => {
                let pid = world.start(jid, 1, &command);
                if system.is_none() {
                    let child = world.start(jid, pid, &format!("/usr/local/libexec/{name}"));
                    for kind in ["", " --type=renderer", " --type=gpu-process"] {
                        world.start(jid, child, &format!("/usr/local/share/chromium/chrome{kind}"));
                    }
                }
                if script.contains("deaf") {
                    let mine = world.processes.values_mut().filter(|process| process.jid == jid);
                    mine.for_each(|process| process.deaf = true);
                }
                // Only where nothing else is: the clone may have put a link there.
                let file = root.join(pidfile.trim_start_matches('/'));
                if file.symlink_metadata().is_err() {
                    let _ = std::fs::write(file, pid.to_string());
                }
                Said::out(format!("Starting {name}.\n"))
            }
            ("stop", _) if script.contains("endless-stop") => return Ended::Sleeps(FOR_EVER),
            ("stop", Some(pid)) => {
                world.processes.retain(|other, process| {
                    process.deaf || process.jid != jid || (*other != pid && system.is_some())
                });
                Said::out(format!("Stopping {name}.\nWaiting for PIDS: {pid}.\n"))
            }
            ("stop", None) => Said::err(1, format!("{name} not running? (check {pidfile}).\n")),
            ("status", Some(pid)) => Said::out(format!("{name} is running as pid {pid}.\n")),
            ("status", None) => {
                Said { out: format!("{name} is not running.\n"), err: String::new(), code: 1 }
            }
            _ => Said::err(1, format!("/etc/rc.d/{name}: unknown directive '{action}'.\n")),
        })
    })
}

/// rc.d/pf: a start empties everything first.
fn packet_filter(fake: &Fake, action: &str, caller: Caller) -> Said {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match action.trim_start_matches("one") {
        "start" | "restart" => {
            let file = fake.change(|world| {
                pfctl::flush_all(world);
                world.pf.file.display().to_string()
            });
            run_tool(fake, "pfctl", &words(&["-f", &file]), caller);
            run_tool(fake, "pfctl", &words(&["-e"]), caller);
            Said::out("Enabling pf.\n")
        }
        "stop" => {
            run_tool(fake, "pfctl", &words(&["-d"]), caller);
            Said::out("Disabling pf.\n")
        }
        "status" => {
            let said = run_tool(fake, "pfctl", &words(&["-s", "info"]), caller);
            let off = said.out.starts_with("Status: Disabled");
            Said { code: i32::from(off), ..said }
        }
        _ => Said::err(1, format!("/etc/rc.d/pf: unknown directive '{action}'.\n")),
    }
}
