//! System calls that block, on tokio's blocking threads.
//!
//! A thread cannot be cancelled: its work continues when its future is dropped. Its effects could then come after a
//! rollback that has already inspected the host. So abandoned work is counted, and [`settle`] waits for it.

use super::errors::refused;
use crate::host::{HostErrorKind, HostResult};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

static ABANDONED: AtomicUsize = AtomicUsize::new(0);
static ABANDONED_ENDED: Notify = Notify::const_new();

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkState {
    Running,
    Finished,
    Abandoned,
}

/// One piece of work, shared by its thread and its future.
#[derive(Clone)]
struct Work(Arc<Mutex<WorkState>>);

impl Work {
    /// Leave the running state, and return the state before.
    fn leave(&self, next: WorkState) -> WorkState {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *state;
        if before == WorkState::Running {
            *state = next;
            if next == WorkState::Abandoned {
                ABANDONED.fetch_add(1, Ordering::SeqCst);
            }
        }
        before
    }
}

/// Ends the work on its thread, also when it panics.
struct OnThread(Work);

impl Drop for OnThread {
    fn drop(&mut self) {
        if self.0.leave(WorkState::Finished) == WorkState::Abandoned {
            ABANDONED.fetch_sub(1, Ordering::SeqCst);
            ABANDONED_ENDED.notify_waiters();
        }
    }
}

/// Marks the work as abandoned when its future is dropped first.
struct OnFuture(Work);

impl Drop for OnFuture {
    fn drop(&mut self) {
        self.0.leave(WorkState::Abandoned);
    }
}

/// Run something that blocks. It continues if its caller goes away, so every piece must be short.
pub(super) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> HostResult<T> + Send + 'static,
) -> HostResult<T> {
    let shared = Work(Arc::new(Mutex::new(WorkState::Running)));
    let (on_thread, on_future) = (OnThread(shared.clone()), OnFuture(shared));
    let result = tokio::task::spawn_blocking(move || {
        let _on_thread = on_thread;
        work()
    })
    .await;
    drop(on_future);
    result.unwrap_or_else(|panic| Err(refused("hostd", "finish a system call", HostErrorKind::Failed, panic)))
}

/// Wait until no abandoned work is left.
pub(super) async fn settle() {
    loop {
        let ended = ABANDONED_ENDED.notified();
        if ABANDONED.load(Ordering::SeqCst) == 0 {
            return;
        }
        ended.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test]
    async fn settle_waits_for_work_whose_future_was_dropped() {
        let (finish, wait) = mpsc::channel::<()>();
        let work = run(move || Ok(wait.recv().is_ok()));
        assert!(tokio::time::timeout(Duration::from_millis(20), work).await.is_err(), "the work is running");
        assert!(tokio::time::timeout(Duration::from_millis(20), settle()).await.is_err(), "it is abandoned");
        finish.send(()).unwrap();
        settle().await;
        assert_eq!(run(|| Ok(7)).await.unwrap(), 7);
        settle().await;
    }
}
