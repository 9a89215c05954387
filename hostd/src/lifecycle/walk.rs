//! The one walk that takes a clone away: destroy, reap and rollback are all this.
//!
//! Always from the top, absent is success, every error is collected and none stops the walk. What
//! counts is what the host shows at the end. Only what is ours is touched.

use super::engine::Inner;
use super::ours::{self, Claim};
use super::progress::Progress;
use crate::api::{CloneId, StageTiming};
use crate::host::{Host, HostError, HostErrorKind, HostResult, ObservedClone, Part, Unmount};
use crate::slot::SlotNames;
use crate::timing;
use std::time::Duration;
use tracing::Instrument;

/// How a walk ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The host shows nothing of it.
    Gone,
    /// Nothing but a jail that is dying, which nobody can hasten.
    Dying,
    /// Something is left.
    Incomplete,
}

/// A walk's result.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) ended: Ended,
    /// What the host showed of the slot at the end, whosever it is.
    pub(super) left: ObservedClone,
    pub(super) errors: Vec<String>,
    pub(super) stages: Vec<StageTiming>,
}

/// Everything but the processes: to find them all of the host's are read, and a jail that runs is stopped anyway.
const FIRST_LOOK: [Part; 6] =
    [Part::Storage, Part::Mounts, Part::Limits, Part::Network, Part::Egress, Part::Jail];
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<H: Host> Inner<H> {
    /// Take away everything in the slot that the claim covers.
    pub(super) async fn walk(&self, names: &SlotNames, claim: Claim<'_>, progress: Progress) -> Walked {
        let left = ObservedClone::default();
        let mut walk = Walk { inner: self, names, claim, progress: &progress, errors: Vec::new(), left };
        let ended = walk.run().await;
        let Walk { errors, left, .. } = walk;
        let stages = progress.stages();
        match ended {
            Ended::Gone | Ended::Dying if errors.is_empty() => {}
            Ended::Gone | Ended::Dying => {
                tracing::info!(clone = %names.name, ?errors, "gone, though not everything went smoothly")
            }
            Ended::Incomplete => {
                tracing::warn!(clone = %names.name, ?errors, "not gone yet; the reaper goes on")
            }
        }
        Walked { ended, left, errors, stages }
    }
}

struct Walk<'a, H> {
    inner: &'a Inner<H>,
    names: &'a SlotNames,
    claim: Claim<'a>,
    progress: &'a Progress,
    errors: Vec<String>,
    left: ObservedClone,
}

impl<H: Host> Walk<'_, H> {
    async fn run(&mut self) -> Ended {
        let (inner, names) = (self.inner, self.names);
        let host = &inner.host;
        // First the network: whatever the clone does from here on, it does alone.
        self.step("egress", host.cut_egress(names)).await;

        let Some(first) = self.look_at_all(&FIRST_LOOK).await else { return Ended::Incomplete };
        let seen = self.claim.ours(&first);
        let jail_runs = seen.jail.as_ref().is_some_and(|jail| !jail.dying);
        if jail_runs || self.has_processes().await {
            self.step("processes", host.end_processes(names)).await;
        }
        // The jail may have gone with what ran in it.
        let later = self.look_at_all(&[Part::Mounts, Part::Storage, Part::Jail]).await.unwrap_or(first);
        let held = self.claim.held(&later);
        let later = self.claim.ours(&later);
        let held = held.filter(|_| !later.mounts.is_empty() || later.storage.is_some());
        match &held {
            Some(why) => self.errors.push(format!("{}: {why}", names.name)),
            None if later.mounts.is_empty() => {}
            None => self.step("mounts", host.unmount(names, Unmount::Gentle)).await,
        }
        if later.jail.is_some_and(|jail| !jail.dying) {
            self.step("jail", host.stop_jail(names)).await;
        }
        // A jail's end gives its interface back to the host, so this looks again.
        if self.look(&[Part::Network]).await.is_some_and(|seen| seen.network.is_some()) {
            self.step("network", host.remove_network(names)).await;
        }
        if seen.limits.is_some() {
            self.step("limits", host.remove_limits(names)).await;
        }
        if seen.storage.is_some() && held.is_none() {
            self.end_storage().await;
        }
        if self.look(&[Part::Egress]).await.is_some_and(|seen| seen.egress || seen.connections) {
            self.step("egress", host.cut_egress(names)).await;
        }
        self.verify().await
    }

    async fn has_processes(&mut self) -> bool {
        self.look(&[Part::Processes, Part::Jail]).await.is_some_and(|seen| !seen.processes.is_empty())
    }

    /// The busy ladder: back off, force the mounts, try again, move aside.
    async fn end_storage(&mut self) {
        let (inner, names) = (self.inner, self.names);
        let host = &inner.host;
        let patience = Duration::from_millis(inner.config.lifecycle.busy_patience_ms);
        let mut pause = FIRST_PAUSE;
        let mut waited = Duration::ZERO;
        loop {
            match self.try_storage().await {
                Tried::Gone => return,
                Tried::Failed => break,
                Tried::Busy if waited >= patience => break,
                // Nobody uses it: the kernel holds it for connections that nobody has any more, for up to a minute.
                Tried::Busy if self.only_held_by_the_dying().await => break,
                Tried::Busy => {}
            }
            tokio::time::sleep(pause).await;
            waited += pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.step("force-unmount", host.unmount(names, Unmount::Force)).await;
        if let Tried::Gone = self.try_storage().await {
            return;
        }
        // Identity may only have been on the way to the dataset when hostd died: use the record's.
        let Some(seen) = self.look(&[Part::Storage]).await else { return };
        let id = match (ours::mark(&seen), self.claim) {
            (Some(id), _) | (None, Claim::Clone(id)) => id.clone(),
            (None, Claim::Slot) => CloneId::random(),
        };
        self.step("move-aside", host.move_storage_aside(names, &id)).await;
    }

    async fn only_held_by_the_dying(&mut self) -> bool {
        let seen = self.look(&[Part::Jail, Part::Processes, Part::Mounts, Part::Storage]).await;
        seen.is_some_and(|seen| {
            seen.jail.is_some_and(|jail| jail.dying) && seen.processes.is_empty() && seen.mounts.is_empty()
        })
    }

    async fn try_storage(&mut self) -> Tried {
        let (inner, names) = (self.inner, self.names);
        let tried = self
            .progress
            .step("storage", inner.bounded(&names.dataset, inner.host.destroy_storage(names)))
            .await;
        let still_there = self.look(&[Part::Storage]).await.is_none_or(|seen| seen.storage.is_some());
        match tried {
            _ if !still_there => Tried::Gone,
            // A tool that says it did what it did not is tried again like a busy one.
            Ok(()) => Tried::Busy,
            Err(error) => {
                let busy = error.kind == HostErrorKind::Busy;
                self.errors.push(format!("storage: {error}"));
                self.errors.dedup();
                if busy { Tried::Busy } else { Tried::Failed }
            }
        }
    }

    async fn verify(&mut self) -> Ended {
        let Some(left) = self.look_at_all(Part::ALL).await else { return Ended::Incomplete };
        self.left = left;
        let left = self.claim.ours(&self.left);
        if left.is_absent() {
            return Ended::Gone;
        }
        if ours::only_dying(&left) {
            return Ended::Dying;
        }
        let parts: Vec<&str> = left.parts().into_iter().map(Part::word).collect();
        self.errors.push(format!("the host still shows: {}", parts.join(", ")));
        Ended::Incomplete
    }

    /// One step of the walk; its error is kept and the walk goes on.
    async fn step(&mut self, step: &str, work: impl Future<Output = HostResult<()>>) {
        if let Err(error) = self.progress.step(step, self.inner.bounded(step, work)).await {
            self.errors.push(format!("{step}: {error}"));
        }
    }

    /// What of the clone is there and ours. `None`: the host cannot be looked at, so nothing may be touched.
    async fn look(&mut self, parts: &[Part]) -> Option<ObservedClone> {
        self.look_at_all(parts).await.map(|seen| self.claim.ours(&seen))
    }

    /// What is there, whosever it is.
    async fn look_at_all(&mut self, parts: &[Part]) -> Option<ObservedClone> {
        self.inner
            .look(self.names, parts)
            .await
            .inspect_err(|error| self.errors.push(format!("look: {error}")))
            .ok()
    }
}

enum Tried {
    Gone,
    Busy,
    Failed,
}

impl<H: Host> Inner<H> {
    /// Look at a slot, in bounded time. What a look at some parts leaves out, it leaves out of the answer.
    pub(super) async fn look(&self, names: &SlotNames, parts: &[Part]) -> HostResult<ObservedClone> {
        self.bounded(names.name.as_str(), self.host.look(names, parts)).instrument(timing::part("look")).await
    }

    /// No call to the host lasts longer than a step may.
    pub(super) async fn bounded<T>(
        &self,
        object: &str,
        work: impl Future<Output = HostResult<T>>,
    ) -> HostResult<T> {
        let limit = Duration::from_secs(self.config.lifecycle.step_timeout_seconds);
        match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => Err(HostError::new(
                HostErrorKind::Timeout,
                object,
                format!("no answer within {} s", limit.as_secs()),
                "look at the host's load and at hostd's log; raise lifecycle.step_timeout_seconds if it is just slow",
            )),
        }
    }
}
