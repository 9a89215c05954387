//! Freezing and thawing a clone: with the kernel's freezer if it has a cgroup, else with SIGSTOP and SIGCONT.
//!
//! A create waits for the thaw and for the proof that the browser works, so both are prepared when the clone is frozen: its
//! processes are held by pidfds, and the files that show their states are open. A frozen process can neither start nor end
//! another one, nor end by itself. So a service that answered right before the freeze, and none of whose processes was
//! killed since then, still works. A process that was killed is not frozen any more when `kill` returns, which one read of
//! its state shows. Nobody has to wait until a dozen processes have been scheduled again. After a restart of hostd the
//! descriptors are gone; then the processes are searched for and the service is asked.

use super::cgroup;
use super::errors::ErrorContext;
use super::jail;
use super::processes::{self, CloneRef, ProcessHandles, ProcessStates, is_stopped};
use crate::host::{HostError, HostResult};
use crate::slot::{Slot, SlotNames};
use kernel::pidfd::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long it may take until every process is frozen. One that waits for a disk is frozen afterwards.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// The clones that this hostd froze.
#[derive(Debug, Default)]
pub(super) struct Freezer(Mutex<BTreeMap<Slot, FreezerState>>);

#[derive(Debug)]
enum FreezerState {
    /// The clone is frozen: its processes, and the files with their states if its service answered before.
    Frozen { held: ProcessHandles, states: Option<ProcessStates> },
    /// The clone was thawed: whether its service works, if that was known then. It is not checked again later: a process
    /// that was about to end when it was frozen ends as soon as it runs.
    Thawed { works: Option<bool> },
}

fn failed(clone: CloneRef<'_>, what: &str, error: io::Error) -> HostError {
    let object = format!("processes of {}", clone.names.name);
    ErrorContext { object, hint: "look at them with ps" }.failed(what, error)
}

/// Whether a clone with this supervisor is frozen: its cgroup, or its supervisor, which is stopped with the rest.
pub(super) fn is_frozen(clone: CloneRef<'_>, supervisor: u32) -> io::Result<bool> {
    match clone.cgroup() {
        Some(own) => cgroup::is_frozen(&own),
        None => Ok(is_stopped(supervisor)),
    }
}

impl Freezer {
    /// Freeze every process of the clone, and verify it.
    pub(super) fn freeze(&self, clone: CloneRef<'_>) -> HostResult<()> {
        let began = Instant::now();
        loop {
            match self.try_freeze(clone, began) {
                Ok(true) => return Ok(()),
                Ok(false) if began.elapsed() < FREEZE_TIMEOUT => std::thread::sleep(PAUSE),
                Ok(false) => {
                    let error = io::Error::new(io::ErrorKind::TimedOut, "its processes keep changing");
                    return Err(failed(clone, "cannot be frozen", error));
                }
                Err(error) => return Err(failed(clone, "cannot be frozen", error)),
            }
        }
    }

    /// One attempt. False: a process ended meanwhile, so it is not known any more whether the service works.
    fn try_freeze(&self, clone: CloneRef<'_>, began: Instant) -> io::Result<bool> {
        let before = processes::inside(clone)?;
        // Asked after the listing: the processes that answer are in it.
        let answered = jail::answers(clone.run);
        let held = loop {
            let held = self.stop(clone)?;
            if let Some(held) = held {
                break held;
            }
            if began.elapsed() > FREEZE_TIMEOUT {
                self.thaw_all(clone)?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a process keeps running"));
            }
            std::thread::sleep(PAUSE);
        };
        let frozen: BTreeSet<u32> = held.pids().collect();
        let states = match answered && before.is_subset(&frozen) {
            true => held.open_states()?,
            false => None,
        };
        if answered && states.is_none() {
            self.thaw_all(clone)?;
            return Ok(false);
        }
        self.lock().insert(clone.names.slot, FreezerState::Frozen { held, states });
        Ok(true)
    }

    /// Stop every process. `None`: one of them is still running.
    fn stop(&self, clone: CloneRef<'_>) -> io::Result<Option<ProcessHandles>> {
        if let Some(own) = clone.cgroup() {
            cgroup::set_frozen(&own, true)?;
            return if cgroup::is_frozen(&own)? { ProcessHandles::open(clone).map(Some) } else { Ok(None) };
        }
        let held = ProcessHandles::open(clone)?;
        held.signal(Signal::STOP)?;
        // A process that was started between the listing and the signal is not held.
        let known: BTreeSet<u32> = held.pids().collect();
        let all_stopped = processes::inside(clone)?.iter().all(|pid| known.contains(pid) && is_stopped(*pid));
        Ok(all_stopped.then_some(held))
    }

    /// Thaw every process of the clone.
    pub(super) fn thaw(&self, clone: CloneRef<'_>) -> HostResult<()> {
        let state = self.lock().remove(&clone.names.slot);
        let thawed = match state {
            Some(FreezerState::Frozen { held, states }) => self.thaw_held(clone, &held, states.as_ref()),
            _ => self.thaw_all(clone),
        };
        thawed.map_err(|error| failed(clone, "cannot be thawed", error))
    }

    fn thaw_held(
        &self,
        clone: CloneRef<'_>,
        held: &ProcessHandles,
        states: Option<&ProcessStates>,
    ) -> io::Result<()> {
        // At the last moment before they run: from then on a process that was killed cannot be told from one that works.
        let works = states.map(ProcessStates::all_suspended);
        match clone.cgroup() {
            Some(own) => cgroup::set_frozen(&own, false)?,
            None => held.signal(Signal::CONT)?,
        }
        self.lock().insert(clone.names.slot, FreezerState::Thawed { works });
        Ok(())
    }

    fn thaw_all(&self, clone: CloneRef<'_>) -> io::Result<()> {
        match clone.cgroup() {
            Some(own) => cgroup::set_frozen(&own, false),
            None => ProcessHandles::open(clone)?.signal(Signal::CONT),
        }
    }

    /// Whether the service of a clone that was just thawed works, if that is known. Answered once for each thaw, because it
    /// is out of date soon.
    pub(super) fn works_after_thaw(&self, names: &SlotNames) -> Option<bool> {
        match self.lock().remove(&names.slot) {
            Some(FreezerState::Thawed { works }) => works,
            _ => None,
        }
    }

    /// Release what is held of a clone.
    pub(super) fn forget(&self, names: &SlotNames) {
        drop(self.lock().remove(&names.slot));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Slot, FreezerState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
