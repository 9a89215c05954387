//! The teardown: destroy, reap and rollback all remove a clone by this one walk.
//!
//! It starts at the top every time. Absent is success, every error is collected, and none stops the walk. Success is
//! decided by inspecting the host afterwards, not by the steps' results. Only what the ownership covers is touched.

use super::host_calls::Settled;
use super::ownership::{self, Ownership};
use super::progress::Progress;
use super::removal_errors::RemovalErrors;
use super::slot_task::SlotWorker;
use crate::api::{CloneId, StageTiming};
use crate::host::{Host, HostErrorKind, HostResult, ObservedClone, Part, Unmount};
use std::time::Duration;

/// How a teardown ended.
#[derive(Debug)]
pub(super) enum TeardownEnd {
    /// The host shows nothing of the clone.
    Gone,
    /// Only a dying jail is left, and nothing can hasten its end.
    Dying,
    /// Something is left.
    Incomplete,
}

/// The result of a teardown.
#[derive(Debug)]
pub(super) struct Teardown {
    pub(super) end: TeardownEnd,
    /// What the host showed of the slot at the end, including what belongs to others.
    pub(super) left: ObservedClone,
    pub(super) errors: Vec<String>,
    pub(super) stages: Vec<StageTiming>,
}

/// How often the walk is repeated when all steps succeeded but something is left: a tool reported success without effect,
/// or a late packet made a new connection state.
const PASSES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<H: Host> SlotWorker<H> {
    /// Remove everything in the slot that the ownership covers. `halted` is called as soon as egress is cut and nothing in
    /// the clone can run any more.
    pub(super) async fn tear_down(
        &self,
        ownership: Ownership<'_>,
        progress: Progress,
        halted: impl FnOnce() + Send,
    ) -> Teardown {
        let mut walk =
            Walk { worker: self, ownership, progress: &progress, errors: RemovalErrors::default() };
        let (end, left) = walk.run(halted).await;
        let errors = walk.errors.texts();
        let name = &self.names.name;
        match end {
            TeardownEnd::Incomplete => {
                tracing::warn!(clone = %name, ?errors, "not gone yet; the reaper continues")
            }
            _ if errors.is_empty() => {}
            _ => tracing::info!(clone = %name, ?errors, "gone, after errors"),
        }
        Teardown { end, left, errors, stages: progress.stages() }
    }
}

struct Walk<'a, H> {
    worker: &'a SlotWorker<H>,
    ownership: Ownership<'a>,
    progress: &'a Progress,
    errors: RemovalErrors,
}

impl<H: Host> Walk<'_, H> {
    async fn run(&mut self, halted: impl FnOnce() + Send) -> (TeardownEnd, ObservedClone) {
        let (host, names) = (&self.worker.parts.host.host, &self.worker.names);
        // The network first: whatever the clone does from here on reaches nothing.
        self.step("egress", host.cut_egress(names)).await;
        let mut halted = Some(halted);
        let mut observed = ObservedClone::default();
        for pass in 0..=PASSES {
            observed = match self.inspect(Part::ALL).await {
                Some(observed) => observed,
                None => return (TeardownEnd::Incomplete, observed),
            };
            let owned = self.ownership.filter(&observed);
            let failed = !self.errors.is_empty();
            if owned.is_absent() || ownership::only_dying(&owned) {
                match self.worker.parts.host.settle().await {
                    Ok(Settled::NothingWasRunning) => {}
                    // An abandoned call may have made something after the inspection.
                    Ok(Settled::Waited) => continue,
                    Err(error) => {
                        self.errors.add("wait", &error);
                        return (TeardownEnd::Incomplete, observed);
                    }
                }
                let end = if owned.is_absent() { TeardownEnd::Gone } else { TeardownEnd::Dying };
                return (end, observed);
            }
            if pass == PASSES || (pass > 0 && failed) {
                let parts: Vec<&str> = owned.parts().into_iter().map(Part::word).collect();
                self.errors.note(format!("the host still shows: {}", parts.join(", ")));
                break;
            }
            if pass > 0 && (owned.egress || owned.connections) {
                self.step("egress", host.cut_egress(names)).await;
            }
            let running = owned.jail.as_ref().is_some_and(|jail| !jail.dying);
            if running || !owned.processes.is_empty() {
                self.step("processes", host.end_processes(names)).await;
            }
            if self.errors.is_empty()
                && let Some(halted) = halted.take()
            {
                halted();
            }
            self.remove_parts(&observed, &owned, running).await;
        }
        (TeardownEnd::Incomplete, observed)
    }

    /// Remove what is there, from the outside to the inside: what holds something else goes first.
    async fn remove_parts(&mut self, observed: &ObservedClone, owned: &ObservedClone, running: bool) {
        let (host, names) = (&self.worker.parts.host.host, &self.worker.names);
        let held = self.ownership.held(observed);
        let held = held.filter(|_| !owned.mounts.is_empty() || owned.storage.is_some());
        match &held {
            Some(why) => self.errors.note(format!("{}: {why}", names.name)),
            None if owned.mounts.is_empty() => {}
            None => self.step("mounts", host.unmount(names, Unmount::Gentle)).await,
        }
        if owned.network.is_some() {
            self.step("network", host.remove_network(names)).await;
        }
        if running || !owned.processes.is_empty() {
            self.step("jail", host.stop_jail(names)).await;
        }
        if owned.limits.is_some() {
            self.step("limits", host.remove_limits(names)).await;
        }
        if owned.storage.is_some() && held.is_none() {
            self.remove_storage().await;
        }
    }

    /// Destroy the storage. If it is busy: back off, force the mounts, try again, move it aside.
    async fn remove_storage(&mut self) {
        let (host, names) = (&self.worker.parts.host.host, &self.worker.names);
        let timeout = Duration::from_millis(self.worker.parts.config.lifecycle.busy_patience_ms);
        let (mut pause, mut waited) = (FIRST_PAUSE, Duration::ZERO);
        loop {
            match self.try_storage().await {
                StorageTry::Gone => return,
                StorageTry::Failed => break,
                StorageTry::Busy if waited >= timeout => break,
                // Nobody uses it: the kernel holds it for closed connections, for up to a minute.
                StorageTry::Busy if self.only_held_by_dying_jail().await => break,
                StorageTry::Busy => {}
            }
            tokio::time::sleep(pause).await;
            waited += pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.step("force-unmount", host.unmount(names, Unmount::Force)).await;
        if let StorageTry::Gone = self.try_storage().await {
            return;
        }
        let Some(observed) = self.inspect(&[Part::Storage]).await else { return };
        // hostd may have crashed before the dataset was marked: then the record's identity is used.
        let id = match (ownership::mark(&observed), self.ownership) {
            (Some(id), _) | (None, Ownership::Clone(id)) => id.clone(),
            (None, Ownership::Slot) => CloneId::random(),
        };
        self.step("move-aside", host.move_storage_aside(names, &id)).await;
    }

    async fn only_held_by_dying_jail(&mut self) -> bool {
        let parts = [Part::Jail, Part::Processes, Part::Mounts, Part::Storage];
        let observed = self.inspect(&parts).await.map(|observed| self.ownership.filter(&observed));
        observed.is_some_and(|owned| {
            owned.jail.is_some_and(|jail| jail.dying) && owned.processes.is_empty() && owned.mounts.is_empty()
        })
    }

    /// One try. A success is verified by the next inspection of the walk.
    async fn try_storage(&mut self) -> StorageTry {
        let (host, names) = (&self.worker.parts.host, &self.worker.names);
        let destroy = host.run(&names.dataset, host.host.destroy_storage(names));
        let Err(error) = self.progress.step("storage", destroy).await else { return StorageTry::Gone };
        // The storage may be gone although the tool failed or timed out.
        let left = self.inspect(&[Part::Storage]).await.map(|observed| self.ownership.filter(&observed));
        if left.is_some_and(|left| left.storage.is_none()) {
            return StorageTry::Gone;
        }
        self.errors.add("storage", &error);
        if error.kind == HostErrorKind::Busy { StorageTry::Busy } else { StorageTry::Failed }
    }

    /// One step of the walk. Its error is collected, and the walk continues.
    async fn step(&mut self, step: &str, work: impl Future<Output = HostResult<()>>) {
        if let Err(error) = self.progress.step(step, self.worker.parts.host.run(step, work)).await {
            self.errors.add(step, &error);
        }
    }

    /// What is in the slot. `None`: the host cannot be inspected, so nothing may be touched.
    async fn inspect(&mut self, parts: &[Part]) -> Option<ObservedClone> {
        let observed = self.worker.parts.host.inspect(&self.worker.names, parts).await;
        observed.inspect_err(|error| self.errors.add("inspect", error)).ok()
    }
}

enum StorageTry {
    Gone,
    Busy,
    Failed,
}
