//! The kernel's events about changes of the ruleset.

use super::netlink::{Events, NFTABLES, Read};
use super::sets::{DELETE_ELEMENTS, NEW_ELEMENTS};
use super::sockets::Sockets;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// `NFNLGRP_NFTABLES` is group 7.
const RULESET_GROUP: u32 = 1 << (7 - 1);
const NEW_GENERATION: u16 = NFTABLES | 15;
/// `NFTA_GEN_PROC_PID` and `_NAME`
const GENERATION_PID: u16 = 2;
const GENERATION_PROGRAM: u16 = 3;
/// The table's name is the first attribute of every message about it.
const TABLE: u16 = 1;

/// One transaction that touched the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The table, a chain, a rule, a set or an object was added or removed. The rules must be verified.
    pub rules: bool,
    /// Members were added or removed.
    pub members: bool,
    /// Another program did it, or may have.
    pub others: bool,
    /// The program, according to the kernel; empty if events were lost.
    pub by: String,
}

/// Watches one table. Subscribe before the first proof, so that no change between the two is missed.
///
/// The file descriptor is readable when there are events.
#[derive(Debug)]
pub struct Watch {
    events: Events,
    own: Sockets,
    table: String,
    /// What the current transaction, whose end was not received yet, has changed.
    rules: bool,
    members: bool,
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Watch {
    /// Changes through the sockets of `own` are not reported as made by others.
    pub(super) fn new(table: &str, own: Sockets) -> io::Result<Watch> {
        let events = Events::subscribe(RULESET_GROUP)?;
        Ok(Watch { events, own, table: table.into(), rules: false, members: false })
    }

    /// Reads the changes since the last call, without waiting. Several transactions are reported as one change.
    pub fn changes(&mut self) -> io::Result<Option<Change>> {
        let mut change: Option<Change> = None;
        loop {
            let news = match self.events.read()? {
                Read::Messages(news) => news,
                Read::None => return Ok(change),
                // The lost events may have been about this table.
                Read::Lost => {
                    change = Some(Change { rules: true, members: true, others: true, by: String::new() });
                    continue;
                }
            };
            for message in news {
                if message.kind == NEW_GENERATION {
                    if !(self.rules || self.members) {
                        continue;
                    }
                    let program = message.attributes.get_text(GENERATION_PROGRAM).unwrap_or_default();
                    let pid = message.attributes.get(GENERATION_PID).and_then(|pid| pid.try_into().ok());
                    let by = pid.map_or(program.clone(), |pid| {
                        format!("{program} (process {})", u32::from_be_bytes(pid))
                    });
                    let earlier = change.take();
                    change = Some(Change {
                        rules: self.rules || earlier.as_ref().is_some_and(|earlier| earlier.rules),
                        members: self.members || earlier.as_ref().is_some_and(|earlier| earlier.members),
                        others: !self.own.has(message.port)
                            || earlier.as_ref().is_some_and(|earlier| earlier.others),
                        by,
                    });
                    (self.rules, self.members) = (false, false);
                } else if message.attributes.get_text(TABLE).as_deref() == Some(self.table.as_str()) {
                    let elements = matches!(message.kind, NEW_ELEMENTS | DELETE_ELEMENTS);
                    self.members |= elements;
                    self.rules |= !elements;
                }
            }
        }
    }

    /// Waits for a change; `None` if the time is over first.
    pub fn wait(&mut self, patience: Duration) -> io::Result<Option<Change>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(change) = self.changes()? {
                return Ok(Some(change));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.events.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) if left.is_zero() => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
