//! A session that has not ended, and the right to use it.

use super::admission::Slot;
use super::browser::Browser;
use super::{CredentialMode, Record, Sessions};
use crate::error::{ApiError, ErrorCode};
use crate::ids::{SessionId, TenantId};
use crate::store::SessionRow;
use crate::time::{self, Millis};
use hostd::api::{CloneId, CloneName};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

/// Where a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its clone is being created.
    Opening,
    /// After a restart: its clone is looked for.
    Finding,
    /// It can be used.
    Open,
    /// Its clone is being destroyed.
    Closing(&'static str),
    /// It has ended. An open that failed has its error.
    Closed { at: Millis, reason: String, error: Option<ApiError> },
}

/// A session's clone.
#[derive(Debug, Clone)]
pub(crate) struct SessionClone {
    pub name: CloneName,
    pub id: CloneId,
}

/// What is known of the clone.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub clone: Option<SessionClone>,
    pub browser: Option<Arc<Browser>>,
    /// The path of the raw CDP WebSocket; it contains the clone's secret.
    pub cdp_path: Option<Secret>,
    pub started_at: Option<Millis>,
    /// When the browser answered or was made, so that an older list of clones says nothing about it.
    pub since: Option<Instant>,
    /// When the lease must be renewed, and when it ends.
    pub renew_at: Option<Instant>,
    pub lease_until: Option<Instant>,
    /// Since when browserd does not accept connections.
    pub silent_since: Option<Instant>,
    pub slot: Option<Slot>,
}

/// A text that is not shown.
pub(crate) struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// A session that has not ended.
#[derive(Debug)]
pub(crate) struct Live {
    pub id: SessionId,
    pub tenant: TenantId,
    pub owner: String,
    pub row: SessionRow,
    pub credential_mode: CredentialMode,
    pub record: Record,
    pub idle: Duration,
    pub deadline: Instant,
    pub phase: watch::Sender<Phase>,
    pub place: Mutex<Place>,
    /// Running uses.
    pub uses: AtomicUsize,
    /// When the last use ended, or the session was made.
    last_used: Mutex<Instant>,
    pub used_at: AtomicI64,
    pub touched_at: AtomicI64,
    /// Callers that wait for the open.
    pub openers: AtomicUsize,
    /// Whether a caller got the session.
    pub delivered: AtomicBool,
    /// A retry with the idempotency key may still ask for it.
    pub keyed: bool,
    pub renewing: AtomicBool,
    calls: Semaphore,
    pending: AtomicUsize,
    most_pending: usize,
    tabs: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// A right to run one call in a session: at most so many at once, and calls of one tab one after the other.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    _pending: Pending<'a>,
    _call: SemaphorePermit<'a>,
    _tab: Option<TabTurn<'a>>,
}

#[derive(Debug)]
struct Pending<'a>(&'a AtomicUsize);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct TabTurn<'a> {
    live: &'a Live,
    tab: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for TabTurn<'_> {
    fn drop(&mut self) {
        drop(self.guard.take());
        // Tabs that nobody uses are forgotten: a page can open any number of them.
        let mut tabs = self.live.tabs.lock().expect("no panic while held");
        if tabs.get(&self.tab).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            tabs.remove(&self.tab);
        }
    }
}

impl Live {
    pub(crate) fn new(row: SessionRow, phase: Phase, keyed: bool, calls: usize) -> Arc<Self> {
        let now = Instant::now();
        let left = u64::try_from(row.deadline_at - time::now()).unwrap_or(0);
        let idle = Duration::from_millis(u64::try_from(row.idle_ms).unwrap_or(0));
        // A session that was found again was idle while the service was not running.
        let unused = Duration::from_millis(u64::try_from(time::now() - row.used_at).unwrap_or(0));
        Arc::new(Self {
            id: row.id.clone(),
            tenant: row.tenant.clone(),
            owner: row.owner.clone(),
            credential_mode: super::word_of(&row.credential_mode).unwrap_or_default(),
            record: super::word_of(&row.record).unwrap_or_default(),
            idle,
            deadline: now + Duration::from_millis(left),
            phase: watch::Sender::new(phase),
            place: Mutex::default(),
            uses: AtomicUsize::new(0),
            last_used: Mutex::new(now.checked_sub(unused).unwrap_or(now)),
            used_at: AtomicI64::new(row.used_at),
            touched_at: AtomicI64::new(row.used_at),
            openers: AtomicUsize::new(0),
            delivered: AtomicBool::new(false),
            keyed,
            renewing: AtomicBool::new(false),
            calls: Semaphore::new(calls),
            pending: AtomicUsize::new(0),
            most_pending: calls * 8,
            tabs: Mutex::default(),
            row,
        })
    }

    pub(crate) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().expect("no panic while held")
    }

    pub(crate) fn now_in(&self) -> Phase {
        self.phase.borrow().clone()
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.phase.borrow() == Phase::Open
    }

    /// Waits until the session ends, and says why.
    pub(crate) async fn ended(&self) -> ApiError {
        let mut phase = self.phase.subscribe();
        let ended = phase.wait_for(|phase| matches!(phase, Phase::Closing(_) | Phase::Closed { .. })).await;
        match ended.as_deref() {
            Ok(Phase::Closing(reason)) => closed(&self.id, reason),
            Ok(Phase::Closed { reason, .. }) => closed(&self.id, reason),
            _ => closed(&self.id, "restart"),
        }
    }

    /// Begin to use the session.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered {
        self.uses.fetch_add(1, Ordering::AcqRel);
        Entered { live: self.clone() }
    }

    /// How long the session was not used; zero while it is.
    pub(crate) fn unused(&self) -> Duration {
        match self.uses.load(Ordering::Acquire) {
            0 => self.last_used.lock().expect("no panic while held").elapsed(),
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn touch(&self) {
        *self.last_used.lock().expect("no panic while held") = Instant::now();
        self.used_at.store(time::now(), Ordering::Relaxed);
    }

    /// Wait for a right to run a call. Calls that name the same tab, and those that name none, run in their order.
    pub(crate) async fn turn(&self, tab: Option<&str>) -> Result<Turn<'_>, ApiError> {
        let pending = self.pending.fetch_add(1, Ordering::Relaxed);
        let guard = Pending(&self.pending);
        if pending >= self.most_pending {
            let message = format!(
                "{pending} calls of session {} are running or waiting (limits.calls_per_session)",
                self.id
            );
            return Err(ApiError::new(ErrorCode::SessionCalls, message).retry_after(Duration::from_secs(1)));
        }
        // The tab comes first: calls that wait for it take no place from calls of other tabs.
        let tab = match tab {
            None => None,
            Some(tab) => {
                let lock =
                    self.tabs.lock().expect("no panic while held").entry(tab.to_owned()).or_default().clone();
                let mut turn = TabTurn { live: self, tab: tab.to_owned(), guard: None };
                turn.guard = Some(lock.lock_owned().await);
                Some(turn)
            }
        };
        let call = self
            .calls
            .acquire()
            .await
            .map_err(|_| ApiError::new(ErrorCode::Internal, "the limit is gone"))?;
        Ok(Turn { _pending: guard, _call: call, _tab: tab })
    }
}

/// The error of a session that has ended.
pub(crate) fn closed(id: &SessionId, reason: &str) -> ApiError {
    let why = match reason {
        "requested" => "it was closed by a call",
        "idle" => "it was not used for its idle time",
        "deadline" => "its deadline passed",
        "clone_lost" => "its clone is gone from the host",
        "browser_lost" => "the browser service in its clone does not answer any more",
        "open_failed" => "it could not be opened",
        "abandoned" => "the caller that opened it went away",
        "restart" => "the service was restarted while it was opened or closed",
        _ => "it has ended",
    };
    ApiError::new(ErrorCode::SessionClosed, format!("session {id} is closed ({reason}): {why}"))
}

/// The right to use a session. Dropping it ends the use.
#[derive(Debug)]
pub struct Entered {
    pub(crate) live: Arc<Live>,
}

impl Entered {
    /// The session.
    pub fn id(&self) -> &SessionId {
        &self.live.id
    }

    /// Waits until the session ends, and says why.
    pub async fn closed(&self) -> ApiError {
        self.live.ended().await
    }

    pub(crate) fn browser(&self) -> Result<Arc<Browser>, ApiError> {
        self.live.place().browser.clone().ok_or_else(|| {
            ApiError::new(ErrorCode::BrowserUnavailable, format!("session {} has no browser", self.live.id))
        })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.live.touch();
        self.live.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A caller that waits for an open. When the last one goes away before it got the session, the session is closed.
#[derive(Debug)]
pub(crate) struct Opener {
    pub sessions: Sessions,
    pub live: Arc<Live>,
}

/// How long a session waits for a retry with its idempotency key.
const RETRY_GRACE: Duration = Duration::from_secs(60);

impl Opener {
    pub(crate) fn new(sessions: &Sessions, live: &Arc<Live>) -> Self {
        live.openers.fetch_add(1, Ordering::AcqRel);
        Self { sessions: sessions.clone(), live: live.clone() }
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        let last = self.live.openers.fetch_sub(1, Ordering::AcqRel) == 1;
        if !last || self.live.delivered.load(Ordering::Acquire) {
            return;
        }
        let (sessions, live) = (self.sessions.clone(), self.live.clone());
        let abandoned =
            move || live.openers.load(Ordering::Acquire) == 0 && !live.delivered.load(Ordering::Acquire);
        let live = self.live.clone();
        match live.keyed {
            false => sessions.begin_close(&live, "abandoned"),
            true => drop(tokio::spawn(async move {
                tokio::time::sleep(RETRY_GRACE).await;
                if abandoned() {
                    sessions.begin_close(&live, "abandoned");
                }
            })),
        }
    }
}
