//! The life of a session: open, use, renew, close, and what happens to it after a restart.

mod admission;
mod adopt;
pub(crate) mod browser;
mod close;
mod keeper;
pub(crate) mod live;
mod open;

pub use live::Entered;

use crate::access::{Caller, Scope};
use crate::audit::Audit;
use crate::config::Config;
use crate::error::{ApiError, ErrorCode};
use crate::hosts::HostLink;
use crate::ids::{SessionId, TenantId};
use crate::recording::Recordings;
use crate::store::{SessionFilter, SessionRow, Store};
use crate::time::{Millis, rfc3339};
use admission::Admission;
use governor::DefaultKeyedRateLimiter;
use live::{Live, Phase, closed};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Whether a session has a person's logins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CredentialMode {
    /// An empty browser.
    #[default]
    Clean,
    /// With the logins that a grant allows.
    Operator,
}

/// What of a session is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Nothing.
    Off,
    /// The last screenshots, until the session is closed.
    #[default]
    Transient,
    /// Every screenshot, kept for the configured time.
    Audit,
}

/// Open a session: a browser of its own, with its own files, address and limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenSession {
    /// Whether the session has a person's logins.
    pub credential_mode: CredentialMode,
    /// The host names whose logins are used; only with `credential_mode: operator`.
    pub domains: Vec<String>,
    /// What is recorded; fixed for the session.
    pub record: Record,
    /// The session's lifetime in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// The session is closed when it was not used for so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// Texts for the caller's own use, shown in lists.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Its clone is being created.
    Opening,
    /// It can be used.
    Open,
    /// Its clone is being destroyed.
    Closing,
    /// It has ended.
    Closed,
}

/// A session as its owner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionView {
    /// The session. It is a secret of its owner: whoever knows it still needs the owner's credential.
    pub session_id: SessionId,
    /// Where it is in its life.
    pub state: SessionState,
    /// Its tenant.
    pub tenant: TenantId,
    /// Who opened it.
    pub owner: String,
    /// Whether it has a person's logins.
    pub credential_mode: CredentialMode,
    /// The host names whose logins it has.
    pub domains: Vec<String>,
    /// What is recorded.
    pub record: Record,
    /// Texts of the caller.
    pub labels: BTreeMap<String, String>,
    /// When it was asked for (RFC 3339).
    pub created_at: String,
    /// When it could be used first (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ends at the latest (RFC 3339).
    pub deadline_at: String,
    /// The idle time after which it is closed, in seconds.
    pub idle_seconds: u64,
    /// When it was last used (RFC 3339).
    pub used_at: String,
    /// When it ended (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<String>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub close_reason: Option<String>,
}

/// Reads an enum from its word in the database.
pub(crate) fn word_of<T: DeserializeOwned>(word: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
}

/// The word of an enum in the database.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => unreachable!("the enums of this module are words"),
    }
}

/// Numbers of sessions, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Opens that wait for a free session.
    pub waiting: usize,
    /// Sessions whose clone is being created.
    pub opening: usize,
    /// Sessions that can be used.
    pub open: usize,
    /// Sessions whose clone is looked for after a restart.
    pub finding: usize,
    /// Sessions whose clone is being destroyed.
    pub closing: usize,
}

/// All sessions. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct Sessions(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Arc<Config>,
    store: Store,
    audit: Audit,
    hosts: Arc<dyn HostLink>,
    recordings: Recordings,
    live: Mutex<HashMap<SessionId, Arc<Live>>>,
    /// Ends that could not be written yet.
    unwritten: Mutex<HashMap<SessionId, (Millis, String)>>,
    admission: Arc<Admission>,
    rate: DefaultKeyedRateLimiter<TenantId>,
    /// Opens that found the host full wait here for each other.
    full: tokio::sync::Mutex<()>,
    /// Asks for a look at the host now.
    look: tokio::sync::Notify,
    stopping: CancellationToken,
}

/// How long a call waits for a session that is being opened or looked for.
const WAIT_FOR_OPEN: Duration = Duration::from_secs(5);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Live>>> {
        self.0.live.lock().expect("no panic while held")
    }

    fn all(&self) -> Vec<Arc<Live>> {
        self.lock().values().cloned().collect()
    }

    /// Numbers of sessions.
    pub fn counts(&self) -> SessionCounts {
        let mut counts = SessionCounts { waiting: self.0.admission.waiting(), ..SessionCounts::default() };
        for live in self.all() {
            match *live.phase.borrow() {
                Phase::Opening => counts.opening += 1,
                Phase::Open => counts.open += 1,
                Phase::Finding => counts.finding += 1,
                Phase::Closing(_) => counts.closing += 1,
                Phase::Closed { .. } => {}
            }
        }
        counts
    }

    /// Whether a caller may know of a session.
    fn visible(caller: &Caller, tenant: &TenantId, owner: &str) -> bool {
        caller.tenant == *tenant && (caller.name() == owner || caller.scopes.contains(&Scope::Admin))
    }

    fn no_such(id: &str) -> ApiError {
        let shown: String = id.chars().filter(|c| !c.is_control()).take(80).collect();
        ApiError::new(ErrorCode::NoSuchSession, format!("there is no session {shown:?}"))
    }

    /// A session that has not ended, or the row of one that has.
    async fn find(&self, caller: &Caller, id: &str) -> Result<Result<Arc<Live>, SessionRow>, ApiError> {
        let session: SessionId = id.parse().map_err(|_| Self::no_such(id))?;
        let found = self.lock().get(&session).cloned();
        if let Some(live) = found {
            return if Self::visible(caller, &live.tenant, &live.owner) {
                Ok(Ok(live))
            } else {
                Err(Self::no_such(id))
            };
        }
        match self.0.store.session(&session).await? {
            Some(row) if Self::visible(caller, &row.tenant, &row.owner) => Ok(Err(row)),
            _ => Err(Self::no_such(id)),
        }
    }

    /// Use a session. The errors of a wrong tenant, a wrong owner and an unknown id are the same.
    pub async fn enter(&self, caller: &Caller, id: &str) -> Result<Entered, ApiError> {
        let live = match self.find(caller, id).await? {
            Ok(live) => live,
            Err(row) => return Err(closed(&row.id, row.close_reason.as_deref().unwrap_or("restart"))),
        };
        // Entered before the check, so that the keeper does not find it idle in between.
        let entered = live.enter();
        let phase = live.now_in();
        let phase = match phase {
            Phase::Opening | Phase::Finding => {
                let mut changes = live.phase.subscribe();
                let settled = changes.wait_for(|phase| !matches!(phase, Phase::Opening | Phase::Finding));
                let settled = tokio::time::timeout(WAIT_FOR_OPEN, settled).await;
                match settled {
                    Ok(Ok(phase)) => phase.clone(),
                    _ => phase,
                }
            }
            phase => phase,
        };
        match phase {
            Phase::Open => Ok(entered),
            Phase::Opening => {
                let error = ApiError::new(
                    ErrorCode::BrowserUnavailable,
                    format!("session {id} is still being opened"),
                );
                Err(error.retry_after(Duration::from_secs(1)))
            }
            Phase::Finding => {
                let message =
                    format!("hostd has not answered since the service was started; session {id} is kept");
                Err(ApiError::new(ErrorCode::HostUnavailable, message).retry_after(Duration::from_secs(1)))
            }
            Phase::Closing(reason) => Err(ApiError::new(
                ErrorCode::SessionClosing,
                format!("session {id} is being closed ({reason})"),
            )),
            Phase::Closed { reason, .. } => Err(closed(&live.id, &reason)),
        }
    }

    /// The sessions that a caller sees, the newest first.
    pub async fn list(
        &self,
        caller: &Caller,
        all: bool,
        limit: u32,
        before: Option<SessionId>,
    ) -> Result<Vec<SessionView>, ApiError> {
        let owner = (!caller.scopes.contains(&Scope::Admin)).then(|| caller.name());
        let filter = SessionFilter { tenant: caller.tenant.clone(), owner, open_only: !all, limit, before };
        let rows = self.0.store.sessions(&filter).await?;
        Ok(rows
            .into_iter()
            .map(|row| self.view(row))
            .filter(|view| all || view.state != SessionState::Closed)
            .collect())
    }

    /// A session, also one that has ended.
    pub async fn show(&self, caller: &Caller, id: &str) -> Result<SessionView, ApiError> {
        match self.find(caller, id).await? {
            Ok(live) => Ok(view_of(&live)),
            Err(row) => Ok(self.view(row)),
        }
    }

    /// What a row says, and what is known better.
    fn view(&self, row: SessionRow) -> SessionView {
        let live = self.lock().get(&row.id).cloned();
        live.map_or_else(|| view_of_row(&row), |live| view_of(&live))
    }
}

fn view_of_row(row: &SessionRow) -> SessionView {
    SessionView {
        session_id: row.id.clone(),
        state: word_of(&row.state).unwrap_or(SessionState::Closed),
        tenant: row.tenant.clone(),
        owner: row.owner.clone(),
        credential_mode: word_of(&row.credential_mode).unwrap_or_default(),
        domains: serde_json::from_str(&row.domains).unwrap_or_default(),
        record: word_of(&row.record).unwrap_or_default(),
        labels: serde_json::from_str(&row.labels).unwrap_or_default(),
        created_at: rfc3339(row.created_at),
        started_at: row.started_at.map(rfc3339),
        deadline_at: rfc3339(row.deadline_at),
        idle_seconds: u64::try_from(row.idle_ms / 1000).unwrap_or(0),
        used_at: rfc3339(row.used_at),
        closed_at: row.closed_at.map(rfc3339),
        close_reason: row.close_reason.clone(),
    }
}

fn view_of(live: &Live) -> SessionView {
    let started_at = live.place().started_at.or(live.row.started_at).map(rfc3339);
    let used_at = rfc3339(live.used_at.load(Ordering::Relaxed));
    let view = SessionView { started_at, used_at, ..view_of_row(&live.row) };
    match live.now_in() {
        Phase::Opening => SessionView { state: SessionState::Opening, ..view },
        Phase::Open | Phase::Finding => SessionView { state: SessionState::Open, ..view },
        Phase::Closing(_) => SessionView { state: SessionState::Closing, ..view },
        Phase::Closed { at, reason, .. } => SessionView {
            state: SessionState::Closed,
            closed_at: Some(rfc3339(at)),
            close_reason: Some(reason),
            ..view
        },
    }
}
