//! The timer's removals: in parallel, bounded, and without keeping the timer waiting.

use super::parts::Parts;
use super::slot_task::SlotMessage;
use crate::api::ReapReason;
use crate::host::Host;
use crate::slot::Slot;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// How many clones are removed at the same time for their deadline or as orphans.
const DUE_AT_ONCE: usize = 8;
/// How many unfinished creates and destroys are continued at the same time. They have permits of their own: leftovers that
/// cannot be removed must not keep a clone alive past its deadline.
pub(super) const UNFINISHED_AT_ONCE: usize = 8;

/// The slots that the timer is removing or about to remove.
pub(super) struct Reaping {
    slots: Mutex<BTreeSet<Slot>>,
    due: Semaphore,
    unfinished: Semaphore,
}

impl Default for Reaping {
    fn default() -> Reaping {
        Reaping {
            slots: Mutex::default(),
            due: Semaphore::new(DUE_AT_ONCE),
            unfinished: Semaphore::new(UNFINISHED_AT_ONCE),
        }
    }
}

impl Reaping {
    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.lock().contains(&slot)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permits(&self, reason: ReapReason) -> &Semaphore {
        match reason {
            ReapReason::DeadlinePassed | ReapReason::Orphan => &self.due,
            ReapReason::DestroyUnfinished | ReapReason::CreateUnfinished | ReapReason::PoolDrained => {
                &self.unfinished
            }
        }
    }
}

impl<H: Host> Parts<H> {
    /// Begin to remove what is due. Each removal goes on by itself.
    pub(super) fn start_reaping(self: &Arc<Self>, due: &[(Slot, ReapReason)]) -> Vec<JoinHandle<()>> {
        let mut reaping = self.reaping.lock();
        let fresh = due.iter().filter(|(slot, _)| reaping.insert(*slot));
        fresh.map(|(slot, reason)| tokio::spawn(self.clone().reap_one(*slot, *reason))).collect()
    }

    async fn reap_one(self: Arc<Self>, slot: Slot, reason: ReapReason) {
        let permit = self.reaping.permits(reason).acquire().await;
        if !self.calls.closing()
            && let Some(reply) = self.send_if_idle(slot, SlotMessage::Reap { reason, audited: true })
        {
            // An error means that the operation panicked. The next turn tries again.
            let _ = reply.await;
        }
        drop(permit);
        self.reaping.lock().remove(&slot);
    }
}
