//! Asks the browser services of ready clones, one after the other, whether they answer.
//!
//! An inspection of the host sees files, jails and interfaces, and all of them can be whole while the service is not: after a
//! zpool came back, a clone's browserd runs from files that are gone and resets every connection. Such a clone is shown as
//! broken. Nothing is taken from it: its owner decides, as with every broken clone.

use super::parts::Parts;
use crate::api::CloneId;
use crate::host::{Host, Part};
use crate::record::{Phase, Record};
use crate::slot::Slot;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// After so many failures in a row a service counts as silent. One alone may be a browser that is restarted.
const FAILURES: u32 = 2;
/// The pause without clones, and the shortest one between two clones.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// How often in a row each clone's service has not answered.
#[derive(Debug, Default)]
pub(super) struct ServiceWatch(Mutex<BTreeMap<Slot, (CloneId, u32)>>);

impl ServiceWatch {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Slot, (CloneId, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong with a ready clone's service, if it was silent when it was asked last.
    pub(super) fn problem(&self, record: &Record) -> Option<String> {
        let silent = self
            .lock()
            .get(&record.slot)
            .is_some_and(|(clone_id, failures)| *clone_id == record.clone_id && *failures >= FAILURES);
        silent.then(|| "its browser service does not answer".to_owned())
    }

    fn answered(&self, record: &Record, answers: bool) {
        let mut failed = self.lock();
        let before = match failed.get(&record.slot) {
            Some((clone_id, failures)) if *clone_id == record.clone_id => *failures,
            _ => 0,
        };
        if answers {
            failed.remove(&record.slot);
        } else {
            failed.insert(record.slot, (record.clone_id.clone(), before.saturating_add(1)));
        }
        match (answers, before) {
            (true, FAILURES..) => {
                tracing::info!(slot = %record.slot, "the clone's browser service answers again")
            }
            (false, before) if before + 1 == FAILURES => {
                tracing::warn!(slot = %record.slot, "the clone's browser service does not answer")
            }
            _ => {}
        }
    }
}

impl<H: Host> Parts<H> {
    /// Ask every ready clone's service once, spread over the interval.
    pub(super) async fn check_services(&self, interval: Duration) {
        let ready: Vec<Slot> = {
            let state = self.registry.read();
            let is_ready = |record: &&Record| matches!(record.phase, Phase::Ready { .. });
            let ready: Vec<&Record> = state.records.values().filter(is_ready).collect();
            self.services.lock().retain(|slot, (clone_id, _)| {
                ready.iter().any(|record| record.slot == *slot && record.clone_id == *clone_id)
            });
            ready.into_iter().map(|record| record.slot).collect()
        };
        let pause = interval / u32::try_from(ready.len()).unwrap_or(u32::MAX).max(1);
        for slot in &ready {
            tokio::time::sleep(pause.max(SHORTEST_PAUSE)).await;
            if self.tasks.is_busy(*slot) {
                continue;
            }
            let Some(record) = self.registry.record(*slot) else { continue };
            if !matches!(record.phase, Phase::Ready { .. }) {
                continue;
            }
            let names = self.slots.names(*slot);
            // An inspection that fails says nothing about the service.
            if let Ok(seen) = self.host.inspect(&names, &[Part::Service]).await
                && !self.tasks.is_busy(*slot)
            {
                self.services.answered(&record, seen.service_ready);
            }
        }
        if ready.is_empty() {
            tokio::time::sleep(interval.max(SHORTEST_PAUSE)).await;
        }
    }
}
