//! Clones that stand still: by the kernel's freezer where the clone has a cgroup, else by stopping each process.
//!
//! A create waits for the thaw and for the proof that the browser is well, so both are prepared when the clone is frozen.
//! Its processes are held by descriptors, which never mean another process; what stands still can neither start one nor
//! end by itself. So a service that answered before, and none of whose processes was killed while it stood, still answers:
//! the kernel tells it at once, and nobody has to wait until a dozen processes have found their feet. After a restart of
//! hostd the descriptors are gone; then the processes are looked for and the service is asked.

use super::errors::ErrorContext;
use super::limits::LimitBackend;
use super::processes::{self, ProcessHandles, is_stopped};
use super::{cgroup, jail};
use crate::host::{HostError, HostResult};
use crate::slot::{Slot, SlotNames};
use kernel::pidfd::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long it may take until everything stands still; a process that waits for a disk does so first.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// The clones that this process froze.
#[derive(Debug, Default)]
pub(super) struct Freezer(Mutex<BTreeMap<Slot, Known>>);

/// What is known of a clone.
#[derive(Debug)]
enum Known {
    /// It stands still: its processes, and whether its service answered before.
    Still { held: ProcessHandles, answered: bool },
    /// It goes on again: whether its service is well, if that could be told when it did. Not looked at later: a process
    /// that had nothing left to do but to end does so as soon as it may.
    Woken { well: Option<bool> },
}

/// One clone to freeze or thaw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) names: &'a SlotNames,
    pub(super) run: &'a Path,
    pub(super) limits: &'a LimitBackend,
}

impl Subject<'_> {
    fn name(&self) -> &str {
        self.names.name.as_str()
    }

    fn processes(&self) -> io::Result<BTreeSet<u32>> {
        processes::inside(self.name(), self.run, self.limits)
    }

    fn hold(&self) -> io::Result<ProcessHandles> {
        ProcessHandles::open(self.name(), self.run, self.limits)
    }

    fn failed(&self, what: &str, error: io::Error) -> HostError {
        let object = format!("processes of {}", self.name());
        ErrorContext { object, hint: "look at them with ps" }.failed(what, error)
    }

    /// Whether the clone stands still: its cgroup, or its supervisor, which is stopped with the rest.
    pub(super) fn is_frozen(&self) -> io::Result<bool> {
        match self.limits.cgroup(self.name()) {
            Some(own) => cgroup::is_frozen(&own),
            None => Ok(jail::supervisor(self.run)?.is_some_and(is_stopped)),
        }
    }
}

impl Freezer {
    /// Freeze everything in the clone, and see that it stands still.
    pub(super) fn freeze(&self, subject: Subject<'_>) -> HostResult<()> {
        let began = Instant::now();
        loop {
            match self.try_freeze(subject, began) {
                Ok(true) => return Ok(()),
                Ok(false) if began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                Ok(false) => {
                    let error = io::Error::new(io::ErrorKind::TimedOut, "processes in it come and go");
                    return Err(subject.failed("cannot be frozen", error));
                }
                Err(error) => return Err(subject.failed("cannot be frozen", error)),
            }
        }
    }

    /// One try. False: a process ended meanwhile, so whether the service was well is not known any more.
    fn try_freeze(&self, subject: Subject<'_>, began: Instant) -> io::Result<bool> {
        let before = subject.processes()?;
        // Asked after the look: whoever answers was there.
        let answered = jail::is_ready(subject.run);
        let held = loop {
            let held = self.stop(subject)?;
            if let Some(held) = held {
                break held;
            }
            if began.elapsed() > PATIENCE {
                self.thaw_all(subject)?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, "something in it goes on"));
            }
            std::thread::sleep(PAUSE);
        };
        let still: BTreeSet<u32> = held.pids().collect();
        if answered && !before.is_subset(&still) {
            self.thaw_all(subject)?;
            return Ok(false);
        }
        self.lock().insert(subject.names.slot, Known::Still { held, answered });
        Ok(true)
    }

    /// Stop everything. `None`: not yet.
    fn stop(&self, subject: Subject<'_>) -> io::Result<Option<ProcessHandles>> {
        if let Some(own) = subject.limits.cgroup(subject.name()) {
            cgroup::set_frozen(&own, true)?;
            return if cgroup::is_frozen(&own)? { subject.hold().map(Some) } else { Ok(None) };
        }
        let held = subject.hold()?;
        held.signal(Signal::STOP)?;
        // One that was started by another before that was stopped is not held.
        let known: BTreeSet<u32> = held.pids().collect();
        let all_stopped = subject.processes()?.iter().all(|pid| known.contains(pid) && is_stopped(*pid));
        Ok(all_stopped.then_some(held))
    }

    /// Let everything in the clone go on.
    pub(super) fn thaw(&self, subject: Subject<'_>) -> HostResult<()> {
        let known = self.lock().remove(&subject.names.slot);
        let thawed = match known {
            Some(Known::Still { held, answered }) => self.wake(subject, &held, answered),
            _ => self.thaw_all(subject),
        };
        thawed.map_err(|error| subject.failed("cannot be thawed", error))
    }

    fn wake(&self, subject: Subject<'_>, held: &ProcessHandles, answered: bool) -> io::Result<()> {
        let well = if answered { Some(held.all_running()?) } else { None };
        match subject.limits.cgroup(subject.name()) {
            Some(own) => cgroup::set_frozen(&own, false)?,
            None => held.signal(Signal::CONT)?,
        }
        self.lock().insert(subject.names.slot, Known::Woken { well });
        Ok(())
    }

    fn thaw_all(&self, subject: Subject<'_>) -> io::Result<()> {
        match subject.limits.cgroup(subject.name()) {
            Some(own) => cgroup::set_frozen(&own, false),
            None => subject.hold()?.signal(Signal::CONT),
        }
    }

    /// Whether the service of a clone is well that was just thawed, if that could be told. For one thaw only: from then on
    /// the clone lives, and what was known of it grows old.
    pub(super) fn woken_well(&self, names: &SlotNames) -> Option<bool> {
        match self.lock().remove(&names.slot) {
            Some(Known::Woken { well }) => well,
            _ => None,
        }
    }

    /// What is known of a clone is over.
    pub(super) fn forget(&self, names: &SlotNames) {
        drop(self.lock().remove(&names.slot));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Slot, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
