//! The host's processes and the jails they are in, as `ps` lists them.
//!
//! A process belongs to a clone only if the kernel reports the clone's jail for it. Names, users and PID files inside the
//! clone are not trusted.

use super::errors::{Unreadable, digits, unreadable, whole};
use std::collections::BTreeSet;

/// A process and its jail; 0 is the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) jid: u32,
    /// Stopped by SIGSTOP.
    pub(super) stopped: bool,
}

/// Read `ps -axo pid,jid,state`. Zombies are left out.
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
    // The list contains at least ps itself.
    if found.is_empty() {
        return unreadable("ps", text, "at least one process");
    }
    Ok(found)
}

/// Whether this jail has processes and all of them are stopped.
pub(super) fn frozen(processes: &[Process], jid: u32) -> bool {
    let mut inside = processes.iter().filter(|process| process.jid == jid && jid != 0).peekable();
    inside.peek().is_some() && inside.all(|process| process.stopped)
}

/// The processes inside this jail.
pub(super) fn inside(processes: &[Process], jid: u32) -> BTreeSet<u32> {
    // The host itself is jail 0. The kernel, init and hostd are never in a clone, whatever the list says.
    let own = std::process::id();
    let inside = processes.iter().filter(|process| process.jid == jid && process.jid != 0);
    inside.map(|process| process.pid).filter(|pid| *pid > 1 && *pid != own).collect()
}
