//! ps(1), kill(1) and pkill(1).

use crate::fake::{Caller, Fake, Said};
use crate::options::Options;
use crate::world::{Process, World};
use std::fmt::Write;

/// A column: its keyword, its header, whether it stands on the right.
type Column<'a> = (&'a str, String, bool);

fn column(word: &str) -> Option<Column<'_>> {
    let (name, header) = match word.split_once('=') {
        Some((name, header)) => (name, Some(header.to_owned())),
        None => (word, None),
    };
    let (usual, right) = match name {
        "pid" => ("PID", true),
        "ppid" => ("PPID", true),
        "jid" => ("JID", true),
        "uid" => ("UID", true),
        "state" | "stat" => ("STAT", false),
        "command" | "args" | "comm" | "ucomm" => ("COMMAND", false),
        _ => return None,
    };
    Some((name, header.unwrap_or_else(|| usual.to_owned()), right))
}

fn value(name: &str, pid: u32, process: &Process) -> String {
    match name {
        "pid" => pid.to_string(),
        "ppid" => process.parent.to_string(),
        "jid" => process.jid.to_string(),
        "uid" => "0".to_owned(),
        "state" | "stat" => match (process.jid, process.stopped) {
            (0, _) => "Is".to_owned(),
            (_, false) => "SsJ".to_owned(),
            (_, true) => "TsJ".to_owned(),
        },
        "comm" | "ucomm" => {
            let program = process.command.split_whitespace().next().unwrap_or_default();
            program.rsplit('/').next().unwrap_or_default().to_owned()
        }
        _ => process.command.clone(),
    }
}

pub(super) fn ps(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    const USAGE: &str = "usage: ps [-aCcdefHhjlmrSTuvwXxZ] [-O fmt | -o fmt]\n";
    let given = match Options::parse(arguments, "aAcCdeHhjlmrSTuvwXxo:O:J:p:") {
        Ok(given) => given,
        Err(why) => return super::refused(fake, "ps", arguments, why, USAGE),
    };
    fake.change(|world| {
        arrive(world);
        let words: Vec<&str> = given.values('o').iter().flat_map(|list| list.split([',', ' '])).collect();
        let mut columns = Vec::new();
        for word in words {
            match column(word) {
                Some(column) => columns.push(column),
                None => {
                    world.violations.push(format!("ps -o {word}: not known to the fake"));
                    return Said::err(1, format!("ps: {word}: keyword not found\n"));
                }
            }
        }
        if columns.is_empty() || !given.operands.is_empty() {
            world.violations.push(format!("ps {}: not known to the fake", arguments.join(" ")));
            return Said::err(1, USAGE);
        }
        let jail = match given.value('J') {
            None => None,
            Some(key) => match world.jail(key) {
                Some(jail) => Some(jail.jid),
                None => return Said::err(1, format!("ps: Invalid jail ID: {key}\n")),
            },
        };
        let shown = |process: &Process| {
            (caller.jid == 0 || process.jid == caller.jid) && jail.is_none_or(|jail| process.jid == jail)
        };
        let rows: Vec<Vec<String>> = world
            .processes
            .iter()
            .filter(|(_, process)| shown(process))
            .map(|(pid, process)| columns.iter().map(|(name, ..)| value(name, *pid, process)).collect())
            .collect();
        Said { code: i32::from(rows.is_empty()), ..Said::out(table(&columns, &rows)) }
    })
}

fn table(columns: &[Column<'_>], rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    let headers: Vec<String> = columns.iter().map(|(_, header, _)| header.clone()).collect();
    let width = |at: usize| {
        let widest = rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
        widest.max(headers[at].len())
    };
    let with_header = headers.iter().any(|header| !header.is_empty());
    for row in with_header.then_some(&headers).into_iter().chain(rows) {
        let mut line = String::new();
        for (at, (cell, (_, _, right))) in row.iter().zip(columns).enumerate() {
            let width = width(at);
            let space = if at == 0 { "" } else { " " };
            let _ = match (right, at + 1 == columns.len()) {
                (true, _) => write!(line, "{space}{cell:>width$}"),
                (false, true) => write!(line, "{space}{cell}"),
                (false, false) => write!(line, "{space}{cell:<width$}"),
            };
        }
        let _ = writeln!(text, "{line}");
    }
    text
}

pub(super) fn kill(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let (signal, pids) = match arguments {
        [first, pids @ ..] if first == "-s" => match pids {
            [signal, pids @ ..] => (signal.trim_start_matches("SIG").to_owned(), pids),
            [] => return Said::err(2, "kill: option requires an argument -- s\n"),
        },
        [first, pids @ ..] if first.starts_with('-') => {
            (first[1..].trim_start_matches("SIG").to_owned(), pids)
        }
        pids => ("TERM".to_owned(), pids),
    };
    fake.change(|world| {
        if !["0", "TERM", "KILL", "STOP", "CONT", "15", "9"].contains(&signal.as_str()) || pids.is_empty() {
            world.violations.push(format!("kill {}", arguments.join(" ")));
            return Said::err(2, "usage: kill [-s signal_name] pid ...\n");
        }
        let mut said = Said::nothing();
        for word in pids {
            let known = word.parse().ok().filter(|pid| world.processes.contains_key(pid));
            let Some(pid) = known.filter(|pid| caller.jid == 0 || world.processes[pid].jid == caller.jid)
            else {
                said.err.push_str(&format!("kill: {word}: No such process\n"));
                said.code = 1;
                continue;
            };
            end(world, pid, &signal);
        }
        said
    })
}

/// pkill(1), as far as it signals everything in one jail.
pub(super) fn pkill(fake: &Fake, arguments: &[String]) -> Said {
    const USAGE: &str = "usage: pkill [-signal] [-ILfilnovx] [-F pidfile] [-G gid] [-M core] [-N system]\n\
                         \u{20}            [-P ppid] [-U uid] [-c class] [-g pgrp] [-j jail]\n\
                         \u{20}            [-s sid] [-t tty] [-u euid] pattern ...\n";
    fake.change(|world| {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (signal, jid) = match &words[..] {
            [signal @ ("-KILL" | "-STOP" | "-CONT"), "-j", jid] => (&signal[1..], jid.parse::<u32>()),
            _ => {
                world.violations.push(format!("pkill {}: not known to the fake", words.join(" ")));
                return Said::err(2, USAGE);
            }
        };
        let Ok(jid) = jid else {
            return Said::err(2, format!("pkill: Invalid jail ID or name `{}'\n", words[2]));
        };
        if jid == 0 {
            world.violations.push("pkill -j 0 signals every jail".to_owned());
        }
        let pids: Vec<u32> =
            world.processes.iter().filter(|(_, process)| process.jid == jid).map(|(pid, _)| *pid).collect();
        for pid in &pids {
            match world.sluggish {
                // A resumed process needs no processor to be resumed.
                true if signal != "CONT" => {
                    let process = world.processes.get_mut(pid).expect("it was just listed");
                    let known = process.awaiting.as_ref().is_some_and(|(awaited, _)| awaited == signal);
                    if !known {
                        process.awaiting = Some((signal.to_owned(), 1 + pid % 4));
                    }
                }
                _ => {
                    if let Some(process) = world.processes.get_mut(pid) {
                        process.awaiting = None;
                    }
                    end(world, *pid, signal);
                }
            }
        }
        Said { code: i32::from(pids.is_empty()), ..Said::nothing() }
    })
}

/// Signals come nearer to the processes that wait for them.
fn arrive(world: &mut World) {
    let mut arrived = Vec::new();
    for (pid, process) in &mut world.processes {
        if let Some((signal, looks)) = process.awaiting.take() {
            match looks {
                0 | 1 => arrived.push((*pid, signal)),
                _ => process.awaiting = Some((signal, looks - 1)),
            }
        }
    }
    for (pid, signal) in arrived {
        end(world, pid, &signal);
    }
}

/// A signal reaches a process.
fn end(world: &mut World, pid: u32, signal: &str) {
    let Some(process) = world.processes.get_mut(&pid) else { return };
    if process.jid == 0 && signal != "0" {
        let what = format!("the host's process {pid} ({}) was sent {signal}", process.command);
        world.violations.push(what);
        return;
    }
    match signal {
        "STOP" => process.stopped = true,
        "CONT" => process.stopped = false,
        "TERM" | "15" => process.condemned |= !process.deaf,
        _ => {}
    }
    if (process.condemned && !process.stopped) || ["9", "KILL"].contains(&signal) {
        world.processes.remove(&pid);
    }
}
