//! Ending a clone's processes, and releasing what depends on their end.
//!
//! A killed process cannot execute another instruction, but the kernel needs some milliseconds to release its memory. A
//! destroy uses that time for its next steps: [`LinuxHostState::end_processes`] kills, and
//! [`LinuxHostState::wait_for_processes`] waits later. Until then the pidfds are kept here.

use super::LinuxHostState;
use super::errors::ErrorContext;
use super::network::{self, LinkTable};
use super::processes::{self, ProcessHandles};
use crate::host::{HostError, HostErrorKind, HostResult};
use crate::slot::{Slot, SlotNames};
use kernel::pidfd::Exit;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the kernel may take to release killed processes.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Processes that were killed and are not known to have exited.
#[derive(Debug, Default)]
pub(super) struct KilledProcesses(Mutex<BTreeMap<Slot, ProcessHandles>>);

impl KilledProcesses {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Slot, ProcessHandles>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, slot: Slot, killed: ProcessHandles) {
        self.lock().entry(slot).or_default().extend(killed);
    }
}

impl LinuxHostState {
    /// Kill every process of the clone, and wait for browserd's exit. That exit closes the connections of browserd's
    /// callers, who would otherwise wait for packets from a link that is gone.
    pub(super) fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        let killed = processes::kill(self.clone_ref(names, &self.run(names)));
        let killed = killed.map_err(|error| context(names).failed("cannot be killed", error))?;
        let waited = killed.wait_for_browserd(Instant::now() + EXIT_TIMEOUT);
        // Also after an error: `wait_for_processes` has to know them.
        self.killed.add(names.slot, killed);
        exited(names, waited)
    }

    /// Wait until the kernel has released the processes that [`LinuxHostState::end_processes`] killed.
    pub(super) fn wait_for_processes(&self, names: &SlotNames) -> HostResult<()> {
        let Some(killed) = self.killed.lock().remove(&names.slot) else { return Ok(()) };
        let waited = killed.wait(Instant::now() + EXIT_TIMEOUT);
        if !matches!(waited, Ok(Exit::Exited)) {
            self.killed.add(names.slot, killed);
        }
        exited(names, waited)
    }

    /// Whether this hostd killed processes of the clone and has not waited for them yet.
    pub(super) fn has_killed(&self, names: &SlotNames) -> bool {
        self.killed.lock().contains_key(&names.slot)
    }

    /// The killed processes that have not exited yet.
    pub(super) fn killed_and_running(&self, names: &SlotNames) -> HostResult<BTreeSet<u32>> {
        let killed = self.killed.lock();
        let running = killed.get(&names.slot).map_or_else(|| Ok(BTreeSet::new()), ProcessHandles::running);
        running.map_err(|error| context(names).failed("cannot be inspected", error))
    }

    /// Release the network namespace of a clone whose link and processes are gone. Until then its mount stays, because it
    /// proves which clone a surviving process belongs to, also to the next hostd.
    pub(super) fn release_namespace(&self, names: &SlotNames) -> HostResult<()> {
        match self.killed_and_running(names)?.is_empty()
            && !LinkTable::read(Some(names))?.has(&names.interface)
        {
            true => network::release_namespace(names, &self.run(names)),
            false => Ok(()),
        }
    }

    /// Delete the kernel's tracked connections of a clone that has neither egress nor a link.
    pub(super) fn end_connections(&self, names: &SlotNames) -> HostResult<()> {
        let began = self.egress.moment();
        if !self.egress.members_of(names)?.is_empty() || LinkTable::read(Some(names))?.has(&names.interface) {
            return Ok(());
        }
        self.egress.end_connections(names, began)
    }
}

fn exited(names: &SlotNames, waited: io::Result<Exit>) -> HostResult<()> {
    let what = context(names);
    match waited {
        Ok(Exit::Exited) => Ok(()),
        Ok(Exit::TimedOut) => {
            let message = format!("they were killed, but did not exit within {} s", EXIT_TIMEOUT.as_secs());
            Err(HostError::new(HostErrorKind::Timeout, what.object, message, what.hint))
        }
        Err(error) => Err(what.failed("cannot be waited for", error)),
    }
}

fn context(names: &SlotNames) -> ErrorContext {
    ErrorContext {
        object: format!("processes of {}", names.name),
        hint: "inspect them with ps; a process in state D waits for a disk",
    }
}
