//! Clones that stand still: by the kernel's freezer where the clone has a cgroup, else by stopping each process.
//!
//! Nothing that stands still can start another process, so the descriptors of those that were stopped are all there is to
//! continue, and no descriptor ever means another process. They are kept: finding a clone's processes again takes a walk
//! through all of the host's, and a create waits for the thaw. After a restart of hostd they are found anew.

use super::errors::Doing;
use super::limits::{self, Keeper};
use super::processes::{Held, Table, is_stopped};
use super::{HostResult, jail};
use crate::slot::{Slot, SlotNames};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long it may take until everything stands still; a process that waits for a disk does so first.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// The processes that were stopped.
#[derive(Debug, Default)]
pub(super) struct Freezer(Mutex<BTreeMap<Slot, Held>>);

impl Freezer {
    /// Freeze everything in the clone, and see that it stands still.
    pub(super) fn freeze(&self, names: &SlotNames, run: &Path, keeper: &Keeper) -> HostResult<()> {
        let name = names.name.as_str();
        let what = doing(names);
        let cannot = |error: io::Error| what.failed("cannot be frozen", &error);
        let began = Instant::now();
        if let Some(cgroup) = keeper.cgroup(name) {
            limits::set_frozen(&cgroup, true).map_err(cannot)?;
        }
        loop {
            let done = match keeper.cgroup(name) {
                Some(cgroup) => limits::is_frozen(&cgroup).map_err(cannot)?,
                None => self.stop(names, run, keeper).map_err(cannot)?,
            };
            if done {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(cannot(io::Error::new(io::ErrorKind::TimedOut, "something in it goes on")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Stop all processes. False: there may be more, started by one before it was stopped.
    fn stop(&self, names: &SlotNames, run: &Path, keeper: &Keeper) -> io::Result<bool> {
        let name = names.name.as_str();
        let held = Held::take(name, run, keeper)?;
        held.signal(libc::SIGSTOP)?;
        let all = Table::now()?.of(name, run, keeper)?;
        let complete = all.iter().all(|pid| held.pids().any(|held| held == *pid) && is_stopped(*pid));
        if complete {
            self.held().insert(names.slot, held);
        }
        Ok(complete)
    }

    /// Let everything in the clone go on.
    pub(super) fn thaw(&self, names: &SlotNames, run: &Path, keeper: &Keeper) -> HostResult<()> {
        let what = doing(names);
        let name = names.name.as_str();
        let thaw = || match keeper.cgroup(name) {
            Some(cgroup) => limits::set_frozen(&cgroup, false),
            None => {
                let kept = self.held().remove(&names.slot);
                let held = kept.map_or_else(|| Held::take(name, run, keeper), Ok)?;
                held.signal(libc::SIGCONT)
            }
        };
        thaw().map_err(|error| what.failed("cannot be thawed", &error))
    }

    /// What was stopped is over.
    pub(super) fn forget(&self, names: &SlotNames) {
        drop(self.held().remove(&names.slot));
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Slot, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the clone stands still: its cgroup, or its supervisor, which is stopped with the rest.
pub(super) fn is_frozen(name: &str, run: &Path, keeper: &Keeper) -> io::Result<bool> {
    match keeper.cgroup(name) {
        Some(cgroup) => limits::is_frozen(&cgroup),
        None => Ok(jail::supervisor(run)?.is_some_and(is_stopped)),
    }
}

fn doing(names: &SlotNames) -> Doing {
    Doing { object: format!("processes of {}", names.name), hint: "look at them with ps" }
}
