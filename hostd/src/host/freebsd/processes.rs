//! The host's processes and the jails they are in, as the kernel tells by `ps`.
//!
//! A process is a clone's when its jail's number is that of the clone's jail, and for no other reason: no name, no user
//! and no number from a file inside the clone is believed.

use super::errors::{Unreadable, digits, unreadable, whole};
use std::collections::BTreeSet;

/// A process and its jail; 0 is the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) jid: u32,
    /// It stands still.
    pub(super) stopped: bool,
}

/// Read `ps -axo pid,jid,state`. The dead that nobody waited for are left out.
pub(super) fn read(text: &str) -> Result<Vec<Process>, Unreadable> {
    let mut lines = whole("ps", text)?.lines();
    let header = lines.next().unwrap_or_default();
    if header.split_whitespace().collect::<Vec<_>>() != ["PID", "JID", "STAT"] {
        return unreadable("ps", header, "the columns PID, JID and STAT");
    }
    let mut found = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let process = match words[..] {
            [pid, jid, state] => {
                let stopped = state.starts_with('T');
                digits(pid).zip(digits(jid)).map(|(pid, jid)| (Process { pid, jid, stopped }, state))
            }
            _ => None,
        };
        let Some((process, state)) = process else {
            return unreadable("ps", line, "two numbers and a state");
        };
        if !state.starts_with('Z') {
            found.push(process);
        }
    }
    // A list without even the one that made it is no list.
    if found.is_empty() {
        return unreadable("ps", text, "at least one process");
    }
    Ok(found)
}

/// Whether all that runs in this jail stands still, if anything does.
pub(super) fn frozen(processes: &[Process], jid: u32) -> bool {
    let mut theirs = processes.iter().filter(|process| process.jid == jid && jid != 0).peekable();
    theirs.peek().is_some() && theirs.all(|process| process.stopped)
}

/// The processes inside this jail.
pub(super) fn inside(processes: &[Process], jid: u32) -> BTreeSet<u32> {
    // Never the kernel, init or hostd itself, whatever a list says.
    let own = std::process::id();
    let theirs = processes.iter().filter(|process| process.jid == jid && process.jid != 0);
    theirs.map(|process| process.pid).filter(|pid| *pid > 1 && *pid != own).collect()
}
