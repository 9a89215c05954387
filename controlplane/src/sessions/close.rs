//! How a session ends. Taking away never waits for writing.

use super::Sessions;
use super::live::{Live, Phase, closed};
use crate::access::Caller;
use crate::actions::ClosedSession;
use crate::audit::Entry;
use crate::error::{ApiError, ErrorCode};
use crate::time::{self, Millis, rfc3339};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a close waits for the database before it answers.
const WRITE_WAIT: Duration = Duration::from_secs(2);
/// How long a caller waits for the end. The close goes on by itself.
const CLOSE_WAIT: Duration = Duration::from_secs(30);
/// hostd removes a clone by itself when its lease has ended; so much later it is certainly gone or hostd is.
const LEASE_MARGIN: Duration = Duration::from_secs(30);

impl Sessions {
    /// Close a session. Several callers at once get the same answer; closing a closed session succeeds.
    pub async fn close(&self, caller: &Caller, id: &str) -> Result<ClosedSession, ApiError> {
        let live = match self.find(caller, id).await? {
            Ok(live) => live,
            Err(row) => {
                let closed_at = row.closed_at.unwrap_or(row.used_at);
                let close_reason = row.close_reason.unwrap_or_else(|| "restart".into());
                return Ok(ClosedSession { closed_at: rfc3339(closed_at), close_reason });
            }
        };
        self.begin_close(&live, "requested");
        let mut phase = live.phase.subscribe();
        let ended = phase.wait_for(|phase| matches!(phase, Phase::Closed { .. }));
        match tokio::time::timeout(CLOSE_WAIT, ended).await.ok().and_then(Result::ok).as_deref() {
            Some(Phase::Closed { at, reason, .. }) => {
                Ok(ClosedSession { closed_at: rfc3339(*at), close_reason: reason.clone() })
            }
            _ => {
                let message = format!(
                    "hostd does not answer; session {id} is unusable and is closed when hostd answers"
                );
                Err(ApiError::new(ErrorCode::HostUnavailable, message).retry_after(Duration::from_secs(5)))
            }
        }
    }

    /// Close a session for a reason of the service, and write it to the audit log.
    pub fn close_by_service(&self, id: &crate::ids::SessionId, reason: &'static str) {
        let found = self.lock().get(id).cloned();
        if let Some(live) = found {
            self.begin_close(&live, reason);
        }
    }

    /// The first reason wins. The rest happens in a task of its own.
    pub(crate) fn begin_close(&self, live: &Arc<Live>, reason: &'static str) {
        let mut opening = false;
        let first = live.phase.send_if_modified(|phase| {
            let first = matches!(phase, Phase::Opening | Phase::Finding | Phase::Open);
            if first {
                opening = *phase == Phase::Opening;
                *phase = Phase::Closing(reason);
            }
            first
        });
        if !first {
            return;
        }
        tracing::info!(session = %live.id, reason, "closing a session");
        let (sessions, live) = (self.clone(), live.clone());
        if reason != "requested" {
            let (audit, entry) = (self.0.audit.clone(), entry(&live, reason));
            let watched = live.clone();
            tokio::spawn(async move {
                let begun = audit.begin_always(entry).await;
                let _ =
                    watched.phase.subscribe().wait_for(|phase| matches!(phase, Phase::Closed { .. })).await;
                begun.end(Ok(()));
            });
        }
        // While it is opened, the task that opens it has the clone, and ends it.
        if !opening {
            tokio::spawn(async move { sessions.finish(&live, None).await });
        }
    }

    /// Destroy the clone, then write the end, then forget the session. Called once for each session.
    pub(super) async fn finish(&self, live: &Arc<Live>, error: Option<ApiError>) {
        let reason = match live.now_in() {
            Phase::Closing(reason) => reason,
            _ => "open_failed",
        };
        let (sessions, id) = (self.clone(), live.id.clone());
        let noted = tokio::spawn(async move {
            if let Err(error) = sessions.0.store.set_session_closing(&id).await {
                tracing::warn!(session = %id, %error, "cannot write that a session is being closed");
            }
        });
        self.take_away(live).await;
        {
            let mut place = live.place();
            place.browser = None;
            place.cdp_path = None;
            place.slot = None;
        }
        let at = time::now();
        let written = async {
            // In this order, so that the row is not `closing` again afterwards.
            let _ = noted.await;
            self.0.store.set_session_closed(&live.id, at, reason).await
        };
        let written = tokio::time::timeout(WRITE_WAIT, written).await;
        self.0.recordings.session_ended(&live.tenant, &live.id, &live.row.record).await;
        if matches!(written, Ok(Ok(_))) {
            self.lock().remove(&live.id);
        } else {
            tracing::warn!(session = %live.id, "the end of a session is written when the database works again");
            self.later(live, at, reason);
        }
        live.phase.send_replace(Phase::Closed { at, reason: reason.to_owned(), error });
    }

    /// Destroy the clone. It is tried until hostd confirms, or the lease has ended for certain.
    async fn take_away(&self, live: &Live) {
        let (clone, lease_until) = {
            let place = live.place();
            (place.clone.clone(), place.lease_until)
        };
        let Some(clone) = clone else { return };
        let lease = Duration::from_secs(self.0.config.sessions.lease_seconds);
        let until = lease_until.unwrap_or_else(|| Instant::now() + lease) + LEASE_MARGIN;
        let mut pause = Duration::from_millis(100);
        while let Err(error) = self.0.hosts.destroy(clone.name.clone(), clone.id.clone()).await {
            tracing::warn!(session = %live.id, clone = %clone.name, %error, "cannot destroy the clone of a session yet");
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// Write the end when the database works again.
    pub(super) fn later(&self, live: &Live, at: Millis, reason: &str) {
        let mut unwritten = self.0.unwritten.lock().expect("no panic while held");
        unwritten.insert(live.id.clone(), (at, reason.to_owned()));
    }

    /// Write the ends that could not be written.
    pub(super) async fn write_ends(&self) {
        let ends: Vec<_> = {
            let unwritten = self.0.unwritten.lock().expect("no panic while held");
            unwritten.iter().map(|(id, (at, reason))| (id.clone(), *at, reason.clone())).collect()
        };
        for (id, at, reason) in ends {
            match self.0.store.set_session_closed(&id, at, &reason).await {
                Ok(_) => {
                    self.0.unwritten.lock().expect("no panic while held").remove(&id);
                    self.lock().remove(&id);
                }
                Err(_) => return,
            }
        }
    }

    /// The error that a call in a session gets when the session ended meanwhile.
    pub(crate) fn ended(live: &Live) -> Option<ApiError> {
        match &*live.phase.borrow() {
            Phase::Closing(reason) => Some(closed(&live.id, reason)),
            Phase::Closed { reason, .. } => Some(closed(&live.id, reason)),
            _ => None,
        }
    }
}

/// The audit entry of a close by the service.
fn entry(live: &Live, reason: &str) -> Entry {
    Entry {
        actor: "service".into(),
        tenant: live.tenant.to_string(),
        session: Some(live.id.clone()),
        verb: "close_session".into(),
        params: json!({ "reason": reason }),
    }
}
