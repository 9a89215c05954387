//! How many sessions may be open, and who is next when one ends.

use crate::config::LimitConfig;
use crate::error::{ApiError, ErrorCode};
use crate::ids::TenantId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// When a caller that was refused may expect another answer.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The limits of open sessions, and the queue for them. The queue serves tenants in turn, and each tenant in order.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: LimitConfig,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: u32,
    of_tenant: HashMap<TenantId, u32>,
    /// Tenants with waiting opens, the next one first.
    turn: VecDeque<TenantId>,
    queues: HashMap<TenantId, VecDeque<(u64, oneshot::Sender<Slot>)>>,
    waiting: usize,
    last_ticket: u64,
}

/// The place of one open session. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Slot {
    admission: Arc<Admission>,
    tenant: TenantId,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        state.open -= 1;
        if let Some(count) = state.of_tenant.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                state.of_tenant.remove(&self.tenant);
            }
        }
        self.admission.grant(&mut state);
    }
}

/// The place of an open in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    admission: Arc<Admission>,
    tenant: TenantId,
    ticket: u64,
    slot: oneshot::Receiver<Slot>,
    until: Instant,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        let Some(queue) = state.queues.get_mut(&self.tenant) else { return };
        let before = queue.len();
        queue.retain(|(ticket, _)| *ticket != self.ticket);
        let left = before - queue.len();
        if queue.is_empty() {
            state.queues.remove(&self.tenant);
            state.turn.retain(|tenant| *tenant != self.tenant);
        }
        state.waiting -= left;
    }
}

/// What an open got.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// It may go on.
    Now(Slot),
    /// It waits.
    Later(Waiter),
}

impl Admitted {
    /// The slot, after a bounded wait.
    pub(crate) async fn slot(self) -> Result<Slot, ApiError> {
        let mut waiter = match self {
            Admitted::Now(slot) => return Ok(slot),
            Admitted::Later(waiter) => waiter,
        };
        match tokio::time::timeout_at(waiter.until, &mut waiter.slot).await {
            Ok(Ok(slot)) => Ok(slot),
            _ => Err(waiter.admission.timed_out(&waiter.tenant)),
        }
    }
}

impl Admission {
    pub(crate) fn new(limits: LimitConfig) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    fn count(state: &State, tenant: &TenantId) -> u32 {
        state.of_tenant.get(tenant).copied().unwrap_or(0)
    }

    fn take(self: &Arc<Self>, state: &mut State, tenant: &TenantId) -> Slot {
        state.open += 1;
        *state.of_tenant.entry(tenant.clone()).or_insert(0) += 1;
        Slot { admission: self.clone(), tenant: tenant.clone() }
    }

    /// A slot for a session that is open already, whatever the limits are.
    pub(crate) fn keep(self: &Arc<Self>, tenant: &TenantId) -> Slot {
        let mut state = self.lock();
        self.take(&mut state, tenant)
    }

    /// A slot, or a place in the queue. `until` is the end of the wait.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &TenantId, until: Instant) -> Result<Admitted, ApiError> {
        let mut state = self.lock();
        let free = self.is_free(&state, tenant);
        // Whoever waits already goes first.
        if free && !state.queues.contains_key(tenant) {
            return Ok(Admitted::Now(self.take(&mut state, tenant)));
        }
        if self.limits.queue == 0 || self.limits.queue_wait_seconds == 0 {
            return Err(self.refusal(&state, tenant));
        }
        let of_tenant = state.queues.get(tenant).map_or(0, VecDeque::len);
        if state.waiting >= self.limits.queue as usize {
            let message = format!("{} opens are waiting already (limits.queue)", state.waiting);
            return Err(ApiError::new(ErrorCode::QueueFull, message).retry_after(RETRY_AFTER));
        }
        // One tenant must not fill the queue of all.
        if of_tenant >= self.limits.sessions_per_tenant as usize {
            let message = format!(
                "{of_tenant} opens of tenant {tenant} are waiting already: as many as it may have sessions \
                 (limits.sessions_per_tenant)"
            );
            return Err(ApiError::new(ErrorCode::QueueFull, message).retry_after(RETRY_AFTER));
        }
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        let (sender, slot) = oneshot::channel();
        state.waiting += 1;
        if !state.queues.contains_key(tenant) {
            state.turn.push_back(tenant.clone());
        }
        state.queues.entry(tenant.clone()).or_default().push_back((ticket, sender));
        Ok(Admitted::Later(Waiter { admission: self.clone(), tenant: tenant.clone(), ticket, slot, until }))
    }

    fn is_free(&self, state: &State, tenant: &TenantId) -> bool {
        state.open < self.limits.sessions && Self::count(state, tenant) < self.limits.sessions_per_tenant
    }

    /// Lets the next ones in.
    fn grant(self: &Arc<Self>, state: &mut State) {
        while let Some(at) = state.turn.iter().position(|tenant| self.is_free(state, tenant)) {
            let tenant = state.turn.remove(at).expect("just found");
            let Some(queue) = state.queues.get_mut(&tenant) else { continue };
            let next = queue.pop_front();
            if queue.is_empty() {
                state.queues.remove(&tenant);
            } else {
                state.turn.push_back(tenant.clone());
            }
            let Some((_, sender)) = next else { continue };
            state.waiting -= 1;
            let slot = self.take(state, &tenant);
            if let Err(slot) = sender.send(slot) {
                // Nobody waits any more. Its Drop would lock again.
                std::mem::forget(slot);
                state.open -= 1;
                if let Some(count) = state.of_tenant.get_mut(&tenant) {
                    *count -= 1;
                }
            }
        }
    }

    fn refusal(&self, state: &State, tenant: &TenantId) -> ApiError {
        let count = Self::count(state, tenant);
        let error = if count >= self.limits.sessions_per_tenant {
            let message = format!("tenant {tenant} has {count} sessions (limits.sessions_per_tenant)");
            ApiError::new(ErrorCode::TenantSessions, message)
        } else {
            let message = format!("{} sessions are open (limits.sessions)", state.open);
            ApiError::new(ErrorCode::HostSessions, message)
        };
        error.retry_after(RETRY_AFTER)
    }

    fn timed_out(&self, tenant: &TenantId) -> ApiError {
        let state = self.lock();
        let why = self.refusal(&state, tenant);
        let message = format!(
            "nothing became free within {} seconds (limits.queue_wait_seconds): {}",
            self.limits.queue_wait_seconds,
            why.message()
        );
        ApiError::new(ErrorCode::QueueTimeout, message).retry_after(RETRY_AFTER)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        name.parse().unwrap()
    }

    fn admission(sessions: u32, per_tenant: u32, queue: u32) -> Arc<Admission> {
        Admission::new(LimitConfig {
            sessions,
            sessions_per_tenant: per_tenant,
            queue,
            queue_wait_seconds: 5,
            ..LimitConfig::default()
        })
    }

    fn until() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn now(admitted: Admitted) -> Slot {
        match admitted {
            Admitted::Now(slot) => slot,
            Admitted::Later(_) => panic!("must not wait"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_are_served_in_turn_and_each_in_order() {
        let admission = admission(1, 1, 10);
        let slot = now(admission.enter(&tenant("a"), until()).unwrap());
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        let admission = Admission::new(LimitConfig { sessions_per_tenant: 9, ..admission.limits.clone() });
        drop(slot);
        let slot = now(admission.enter(&tenant("a"), until()).unwrap());
        for (index, name) in ["a", "a", "a", "b", "c", "b"].into_iter().enumerate() {
            let (admitted, sender) = (admission.enter(&tenant(name), until()).unwrap(), sender.clone());
            tokio::spawn(async move {
                let slot = admitted.slot().await.unwrap();
                sender.send(format!("{name}{index}")).unwrap();
                drop(slot);
            });
        }
        assert_eq!(admission.waiting(), 6);
        drop((slot, sender));
        let mut served = Vec::new();
        while let Some(one) = order.recv().await {
            served.push(one);
        }
        assert_eq!(served, ["a0", "b3", "c4", "a1", "b5", "a2"]);
        assert_eq!((admission.waiting(), admission.lock().open), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn every_refusal_names_its_limit_and_a_time() {
        let check = |error: ApiError, code: ErrorCode, limit: &str| {
            assert!(error.is(code), "{error}");
            assert!(error.message().contains(limit), "{error}");
            assert!(error.retry_after_seconds().is_some(), "{error}");
        };
        let full = admission(1, 1, 0);
        let _slot = now(full.enter(&tenant("a"), until()).unwrap());
        check(
            full.enter(&tenant("a"), until()).unwrap_err(),
            ErrorCode::TenantSessions,
            "limits.sessions_per_tenant",
        );
        check(full.enter(&tenant("b"), until()).unwrap_err(), ErrorCode::HostSessions, "limits.sessions");

        let short = admission(1, 1, 1);
        let _slot = now(short.enter(&tenant("a"), until()).unwrap());
        let waiting = short.enter(&tenant("b"), until()).unwrap();
        check(short.enter(&tenant("c"), until()).unwrap_err(), ErrorCode::QueueFull, "limits.queue");
        check(waiting.slot().await.unwrap_err(), ErrorCode::QueueTimeout, "limits.queue_wait_seconds");

        let greedy = admission(1, 1, 100);
        let _slot = now(greedy.enter(&tenant("a"), until()).unwrap());
        let _one = greedy.enter(&tenant("a"), until()).unwrap();
        check(
            greedy.enter(&tenant("a"), until()).unwrap_err(),
            ErrorCode::QueueFull,
            "limits.sessions_per_tenant",
        );
        assert!(greedy.enter(&tenant("b"), until()).is_ok(), "another tenant still has room");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_the_queue_gives_the_place_back() {
        let admission = admission(1, 9, 10);
        let slot = now(admission.enter(&tenant("a"), until()).unwrap());
        let gone = admission.enter(&tenant("a"), until()).unwrap();
        let stays = admission.enter(&tenant("a"), until()).unwrap();
        drop(gone);
        drop(slot);
        let slot = stays.slot().await.unwrap();
        // A slot that was given but not taken is given to the next.
        let late = admission.enter(&tenant("a"), until()).unwrap();
        let next = admission.enter(&tenant("b"), until()).unwrap();
        drop(slot);
        drop(late);
        drop(next.slot().await.unwrap());
        assert_eq!((admission.waiting(), admission.lock().open), (0, 0));
    }
}
