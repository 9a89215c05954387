//! How a session is opened.

use super::admission::{Admitted, Slot};
use super::browser::Browser;
use super::live::{Live, Opener, Phase, Secret, SessionClone, closed};
use super::{CredentialMode, OpenSession, Record, SessionView, Sessions, view_of, word};
use crate::access::Caller;
use crate::error::{ApiError, ErrorCode};
use crate::hosts::{HostError, MadeClone, WantedClone};
use crate::ids::{SessionId, TenantId};
use crate::store::{Inserted, SessionRow};
use crate::time::{self, Millis};
use governor::clock::{Clock, DefaultClock};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest deadline and idle time.
const MIN_SECONDS: u64 = 1;
const MAX_DOMAINS: usize = 100;
const MAX_LABELS: usize = 32;
const MAX_LABEL: usize = 256;
const MAX_KEY: usize = 255;
/// How often an open asks a full host again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message)
}

impl Sessions {
    /// What a caller asked for, with defaults, or what is wrong with it.
    pub(crate) fn check(&self, wanted: &OpenSession) -> Result<(Duration, Duration), ApiError> {
        let limits = &self.0.config.sessions;
        if wanted.credential_mode == CredentialMode::Operator {
            let message = "credential_mode operator needs an operator_grant_token";
            return Err(ApiError::new(ErrorCode::GrantRequired, message));
        }
        if !wanted.domains.is_empty() {
            return Err(bad(
                "domains: only with credential_mode operator; a clean session has no logins and reaches every \
                            public host",
            ));
        }
        if wanted.domains.len() > MAX_DOMAINS {
            return Err(bad(format!("domains: at most {MAX_DOMAINS}")));
        }
        if wanted.labels.len() > MAX_LABELS {
            return Err(bad(format!("labels: at most {MAX_LABELS}")));
        }
        for (name, value) in &wanted.labels {
            if name.is_empty() || name.len() > MAX_LABEL || value.len() > MAX_LABEL {
                return Err(bad(format!(
                    "labels: names have 1 to {MAX_LABEL} bytes, texts at most {MAX_LABEL}"
                )));
            }
            if name.chars().chain(value.chars()).any(char::is_control) {
                return Err(bad("labels: no control characters"));
            }
        }
        let seconds = |name: &str, asked: Option<u64>, default: u64, most: u64| match asked {
            None => Ok(Duration::from_secs(default.min(most))),
            Some(seconds) if seconds < MIN_SECONDS => Err(bad(format!("{name}: at least {MIN_SECONDS}"))),
            Some(seconds) if seconds > most => {
                Err(bad(format!("{name}: at most {most} (sessions.max_{name})")))
            }
            Some(seconds) => Ok(Duration::from_secs(seconds)),
        };
        let deadline = seconds(
            "deadline_seconds",
            wanted.deadline_seconds,
            limits.deadline_seconds,
            limits.max_deadline_seconds,
        )?;
        let idle =
            seconds("idle_seconds", wanted.idle_seconds, limits.idle_seconds, limits.max_idle_seconds)?;
        Ok((deadline, idle))
    }

    /// Open a session. A caller that goes away leaves no session behind.
    pub async fn open(
        &self,
        caller: &Caller,
        wanted: OpenSession,
        idempotency_key: Option<&str>,
    ) -> Result<SessionView, ApiError> {
        let (deadline, idle) = self.check(&wanted)?;
        if let Some(key) = idempotency_key
            && (key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(bad(format!("Idempotency-Key: 1 to {MAX_KEY} visible ASCII characters")));
        }
        if self.0.stopping.is_cancelled() {
            return Err(ApiError::new(ErrorCode::ShuttingDown, "the service is stopping"));
        }
        self.check_rate(&caller.tenant)?;
        if wanted.record == Record::Audit {
            self.0.recordings.check_quota()?;
        }
        let until = Instant::now() + Duration::from_secs(self.0.config.limits.queue_wait_seconds);
        // With a key the row comes first: its session may exist already, whatever the limits say now.
        let admitted = match idempotency_key {
            None => Some(self.0.admission.enter(&caller.tenant, until)?),
            Some(_) => None,
        };
        let row = new_row(caller, &wanted, deadline, idle);
        let hash = Sha256::digest(serde_json::to_vec(&wanted).unwrap_or_default());
        let key = idempotency_key.map(|key| (key, hash.as_slice()));
        // In the table before the row is in the database, so that a row never exists without its session.
        let live =
            Live::new(row, Phase::Opening, key.is_some(), self.0.config.limits.calls_per_session as usize);
        self.lock().insert(live.id.clone(), live.clone());
        let opener = Opener::new(self, &live);
        let sessions = self.clone();
        let key = key.map(|(key, hash)| (key.to_owned(), hash.to_owned()));
        // In a task of its own: a caller that goes away must not stop half way.
        let begun = tokio::spawn(async move { sessions.insert(live, admitted, key, until).await });
        match begun
            .await
            .unwrap_or_else(|panic| Err(ApiError::new(ErrorCode::Internal, panic.to_string())))?
        {
            None => Self::opened(opener).await,
            Some(existing) => {
                // This session was never opened: the other one is the caller's.
                opener.live.delivered.store(true, Ordering::Release);
                drop(opener);
                self.join(&existing).await
            }
        }
    }

    fn check_rate(&self, tenant: &TenantId) -> Result<(), ApiError> {
        self.0.rate.check_key(tenant).map_err(|not_until| {
            let wait = not_until.wait_time_from(DefaultClock::default().now());
            let limit = self.0.config.limits.opens_per_minute;
            let message = format!(
                "tenant {tenant} opens more than {limit} sessions per minute (limits.opens_per_minute)"
            );
            ApiError::new(ErrorCode::OpenRate, message).retry_after(wait)
        })
    }

    /// Insert the row and begin to open, or find the session of the idempotency key.
    async fn insert(
        &self,
        live: Arc<Live>,
        admitted: Option<Admitted>,
        key: Option<(String, Vec<u8>)>,
        until: Instant,
    ) -> Result<Option<SessionRow>, ApiError> {
        let forget = |live: &Live| drop(self.lock().remove(&live.id));
        let key = key.as_ref().map(|(key, hash)| (key.as_str(), hash.as_slice()));
        match self.0.store.insert_session(&live.row, key).await {
            Err(error) => {
                // The commit may have happened all the same: the next look at the database closes the row.
                self.end_unopened(&live, error.into());
                let error = match live.now_in() {
                    Phase::Closed { error: Some(error), .. } => error,
                    _ => ApiError::new(ErrorCode::StoreUnavailable, "the session could not be written"),
                };
                return Err(error);
            }
            Ok(Inserted::Conflict) => {
                forget(&live);
                let message = "this Idempotency-Key was used with other parameters";
                return Err(ApiError::new(ErrorCode::IdempotencyConflict, message));
            }
            Ok(Inserted::Existing(row)) => {
                forget(&live);
                return Ok(Some(*row));
            }
            Ok(Inserted::New) => {}
        }
        let admitted = match admitted {
            Some(admitted) => admitted,
            None => match self.0.admission.enter(&live.tenant, until) {
                Ok(admitted) => admitted,
                Err(error) => {
                    self.fail_open(&live, None, error.clone()).await;
                    return Err(error);
                }
            },
        };
        let sessions = self.clone();
        tokio::spawn(async move { sessions.make(live, admitted, until).await });
        Ok(None)
    }

    /// Wait for the slot and the clone.
    async fn make(&self, live: Arc<Live>, admitted: Admitted, until: Instant) {
        let mut phase = live.phase.subscribe();
        let given_up = async { phase.wait_for(|phase| *phase != Phase::Opening).await.is_ok() };
        let slot = tokio::select! {
            slot = admitted.slot() => slot,
            _ = given_up => {
                self.finish(&live, None).await;
                return;
            }
        };
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => return self.fail_open(&live, None, error).await,
        };
        match self.create(&live, slot, until).await {
            Err(error) => self.fail_open(&live, None, error).await,
            Ok((made, slot)) => self.opened_clone(&live, made, slot).await,
        }
    }

    /// Create the clone. A full host is asked again until the end of the wait, by one open after the other.
    async fn create(&self, live: &Live, slot: Slot, until: Instant) -> Result<(MadeClone, Slot), ApiError> {
        let mut line = None;
        loop {
            let error = match self.0.hosts.create(self.wanted(live)).await {
                Ok(made) => return Ok((made, slot)),
                Err(error) => error,
            };
            let again = matches!(error, HostError::Full(_) | HostError::Busy(_)) && Instant::now() < until;
            if !again || *live.phase.borrow() != Phase::Opening {
                return Err(error.into());
            }
            if matches!(error, HostError::Full(_)) && line.is_none() {
                match tokio::time::timeout_at(until, self.0.full.lock()).await {
                    Ok(guard) => line = Some(guard),
                    Err(_) => return Err(error.into()),
                }
            }
            let wait = error.retry_after().unwrap_or(ASK_AGAIN).clamp(ASK_AGAIN, Duration::from_secs(2));
            tokio::time::sleep_until((Instant::now() + wait).min(until)).await;
        }
    }

    /// The clone that a session needs from now on.
    pub(super) fn wanted(&self, live: &Live) -> WantedClone {
        let left = live.deadline.saturating_duration_since(Instant::now()) + Duration::from_secs(5);
        let lease = Duration::from_secs(self.0.config.sessions.lease_seconds).min(left);
        WantedClone { session: live.id.clone(), tenant: live.tenant.clone(), lease }
    }

    /// Note the clone's addresses and its lease.
    pub(super) fn settle(&self, live: &Live, made: &MadeClone, lease_begin: Instant) -> Result<(), ApiError> {
        let idle = self.0.config.limits.calls_per_session as usize;
        let lease = self.wanted(live).lease;
        let mut place = live.place();
        place.clone = Some(SessionClone { name: made.name.clone(), id: made.id.clone() });
        place.renew_at = Some(lease_begin + lease / 2);
        place.lease_until = Some(lease_begin + lease);
        place.since = Some(Instant::now());
        if place.browser.is_none() {
            let browser = Browser::new(&made.endpoint, made.secret.as_str(), idle).ok_or_else(|| {
                let message = format!("the clone {} has no browser service at an HTTP address", made.name);
                ApiError::new(ErrorCode::CloneFailed, message)
            })?;
            place.browser = Some(Arc::new(browser));
            place.cdp_path = made.cdp.as_ref().and_then(|url| path_of(url)).map(Secret);
        }
        Ok(())
    }

    async fn opened_clone(&self, live: &Arc<Live>, made: MadeClone, slot: Slot) {
        let clone = SessionClone { name: made.name.clone(), id: made.id.clone() };
        live.place().slot = Some(slot);
        if let Err(error) = self.settle(live, &made, Instant::now()) {
            return self.fail_open(live, Some(clone), error).await;
        }
        let started_at = time::now();
        let stored =
            self.0.store.set_session_open(&live.id, made.name.as_str(), made.id.as_str(), started_at).await;
        match stored {
            Err(error) => return self.fail_open(live, Some(clone), error.into()).await,
            Ok(_) => live.place().started_at = Some(started_at),
        }
        live.touch();
        let opened = live.phase.send_if_modified(|phase| {
            let opening = *phase == Phase::Opening;
            if opening {
                *phase = Phase::Open;
            }
            opening
        });
        if !opened {
            // It was closed meanwhile, and whoever did so left the rest to us.
            self.finish(live, None).await;
        }
    }

    async fn fail_open(&self, live: &Arc<Live>, clone: Option<SessionClone>, error: ApiError) {
        if live.keyed
            && let Err(error) = self.0.store.forget_idempotency(&live.id).await
        {
            tracing::warn!(session = %live.id, %error, "cannot forget the idempotency key of an open that failed");
        }
        if let Some(clone) = clone {
            live.place().clone = Some(clone);
        }
        live.phase.send_if_modified(|phase| {
            let first = *phase == Phase::Opening;
            if first {
                *phase = Phase::Closing("open_failed");
            }
            first
        });
        self.finish(live, Some(error)).await;
    }

    /// The row may or may not be in the database.
    fn end_unopened(&self, live: &Arc<Live>, error: ApiError) {
        self.later(live, time::now(), "open_failed");
        live.phase.send_replace(Phase::Closed {
            at: time::now(),
            reason: "open_failed".into(),
            error: Some(error),
        });
    }

    /// Wait until the session is open.
    async fn opened(opener: Opener) -> Result<SessionView, ApiError> {
        let mut phase = opener.live.phase.subscribe();
        let settled = phase.wait_for(|phase| matches!(phase, Phase::Open | Phase::Closed { .. })).await;
        match settled.as_deref() {
            Ok(Phase::Closed { error: Some(error), .. }) => Err(error.clone()),
            Ok(Phase::Closed { reason, .. }) => Err(closed(&opener.live.id, reason)),
            Ok(_) => {
                opener.live.delivered.store(true, Ordering::Release);
                Ok(view_of(&opener.live))
            }
            Err(_) => Err(ApiError::new(ErrorCode::ShuttingDown, "the service is stopping")),
        }
    }

    /// The session of an idempotency key that was used before.
    async fn join(&self, row: &SessionRow) -> Result<SessionView, ApiError> {
        let found = self.lock().get(&row.id).cloned();
        match found {
            None => Err(closed(&row.id, row.close_reason.as_deref().unwrap_or("restart"))),
            Some(live) if *live.phase.borrow() == Phase::Finding => Ok(view_of(&live)),
            Some(live) => Self::opened(Opener::new(self, &live)).await,
        }
    }
}

fn new_row(caller: &Caller, wanted: &OpenSession, deadline: Duration, idle: Duration) -> SessionRow {
    let now: Millis = time::now();
    let text = |value: serde_json::Result<String>| value.expect("texts are JSON");
    SessionRow {
        id: SessionId::random(),
        tenant: caller.tenant.clone(),
        owner: caller.name(),
        state: "opening".into(),
        credential_mode: word(&wanted.credential_mode),
        domains: text(serde_json::to_string(&wanted.domains)),
        record: word(&wanted.record),
        labels: text(serde_json::to_string(&wanted.labels)),
        created_at: now,
        started_at: None,
        deadline_at: now + time::millis(deadline),
        idle_ms: time::millis(idle),
        used_at: now,
        clone_name: None,
        clone_id: None,
        closed_at: None,
        close_reason: None,
    }
}

/// `/SECRET/devtools/…` of `ws://ADDRESS:PORT/SECRET/devtools/…`.
fn path_of(url: &str) -> Option<String> {
    let rest = url.strip_prefix("ws://")?;
    Some(rest[rest.find('/')?..].to_owned())
}
