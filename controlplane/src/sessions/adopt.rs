//! Sessions of an earlier run.

use super::live::{Live, Phase, SessionClone};
use super::{Inner, Sessions};
use crate::audit::Audit;
use crate::config::Config;
use crate::error::ApiError;
use crate::hosts::{HostError, HostLink};
use crate::ids::SessionId;
use crate::recording::Recordings;
use crate::store::{SessionRow, Store};
use governor::{Quota, RateLimiter};
use hostd::api::{CloneInfo, CloneState};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long the start waits for hostd before it goes on without.
const FIRST_LOOK: Duration = Duration::from_secs(5);

impl Sessions {
    /// Find the sessions of an earlier run, and begin to look after sessions.
    pub(crate) async fn start(
        config: Arc<Config>,
        store: Store,
        audit: Audit,
        hosts: Arc<dyn HostLink>,
        recordings: Recordings,
    ) -> Result<Self, ApiError> {
        let limits = &config.limits;
        let some = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_minute(some(limits.opens_per_minute)).allow_burst(some(limits.open_burst));
        let rows = store.unclosed_sessions().await?;
        let sessions = Self(Arc::new(Inner {
            admission: super::admission::Admission::new(limits.clone()),
            rate: RateLimiter::keyed(quota),
            config,
            store,
            audit,
            hosts,
            recordings,
            live: Mutex::default(),
            unwritten: Mutex::default(),
            full: tokio::sync::Mutex::default(),
            look: tokio::sync::Notify::new(),
            stopping: CancellationToken::new(),
        }));
        for row in rows {
            sessions.remember(row);
        }
        let _ = tokio::time::timeout(FIRST_LOOK, sessions.look()).await;
        sessions.keep();
        Ok(sessions)
    }

    /// Put a row of an earlier run into the table.
    fn remember(&self, row: SessionRow) {
        let clone = match (&row.clone_name, &row.clone_id) {
            (Some(name), Some(id)) => name.parse().ok().zip(id.parse().ok()),
            _ => None,
        };
        // Nobody waits for an open of an earlier run, and a close that was begun goes on.
        let phase =
            if row.state == "open" && clone.is_some() { Phase::Finding } else { Phase::Closing("restart") };
        let calls = self.0.config.limits.calls_per_session as usize;
        let live = Live::new(row, phase, false, calls);
        {
            let mut place = live.place();
            place.clone = clone.map(|(name, id)| SessionClone { name, id });
            place.slot = Some(self.0.admission.keep(&live.tenant));
        }
        live.delivered.store(true, std::sync::atomic::Ordering::Release);
        self.lock().insert(live.id.clone(), live);
    }

    /// Compare the sessions with the clones of the host: find those of an earlier run, close those whose clone is lost, and
    /// destroy clones whose session has ended.
    pub(super) async fn look(&self) -> Result<(), HostError> {
        let before = Instant::now();
        let clones = self.0.hosts.list().await?;
        let by_session: HashMap<SessionId, CloneInfo> = clones
            .into_iter()
            .filter_map(|clone| Some((clone.request_id.as_ref()?.as_str().parse().ok()?, clone)))
            .collect();
        for live in self.all() {
            match live.now_in() {
                Phase::Finding => self.adopt(&live, by_session.get(&live.id)).await?,
                Phase::Closing("restart") => self.end_interrupted(&live, by_session.get(&live.id)),
                Phase::Open => {
                    let place = live.place();
                    let known = place.clone.as_ref().map(|clone| clone.id.clone());
                    let newer = place.since.is_none_or(|since| since >= before);
                    drop(place);
                    if !newer && !is_ready(by_session.get(&live.id), known.as_ref()) {
                        self.begin_close(&live, "clone_lost");
                    }
                }
                _ => {}
            }
        }
        for (session, clone) in by_session {
            let live = self.lock().contains_key(&session);
            if !live && matches!(clone.state, CloneState::Ready | CloneState::Creating | CloneState::Broken) {
                self.destroy_stray(&session, clone).await;
            }
        }
        Ok(())
    }

    /// A clone whose session is not in the table. Its row was written before it was made, so a row that is closed says that the
    /// clone is a leftover. Without a row it is not ours; its lease ends it.
    async fn destroy_stray(&self, session: &SessionId, clone: CloneInfo) {
        let Some(id) = clone.clone_id else { return };
        match self.0.store.session(session).await {
            Ok(Some(row)) if row.state == "closed" => {
                tracing::warn!(%session, clone = %clone.name, "a clone of a closed session is destroyed");
                if let Err(error) = self.0.hosts.destroy(clone.name, id).await {
                    tracing::warn!(%session, %error, "cannot destroy the clone of a closed session yet");
                }
            }
            _ => {}
        }
    }

    /// A session that was opened or closed when the service ended.
    fn end_interrupted(&self, live: &Arc<Live>, clone: Option<&CloneInfo>) {
        // Once: `finish` is running when the slot is with it.
        if live.renewing.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return;
        }
        if let Some(clone) = clone
            && let Some(id) = &clone.clone_id
        {
            live.place().clone = Some(SessionClone { name: clone.name.clone(), id: id.clone() });
        }
        let (sessions, live) = (self.clone(), live.clone());
        tokio::spawn(async move { sessions.finish(&live, None).await });
    }

    /// A session is found again only if the host has its very clone, ready. To renew without that check would make a new clone
    /// for a session whose browser is gone.
    async fn adopt(&self, live: &Arc<Live>, clone: Option<&CloneInfo>) -> Result<(), HostError> {
        let known = live.place().clone.as_ref().map(|clone| clone.id.clone());
        if !is_ready(clone, known.as_ref()) {
            self.begin_close(live, "clone_lost");
            return Ok(());
        }
        let begin = Instant::now();
        match self.0.hosts.create(self.wanted(live)).await {
            Ok(made) if made.renewed && Some(&made.id) == known.as_ref() => {
                if let Err(error) = self.settle(live, &made, begin) {
                    tracing::warn!(session = %live.id, %error, "cannot use the clone of a session");
                    self.begin_close(live, "clone_lost");
                    return Ok(());
                }
                live.place().started_at = live.row.started_at;
                live.phase.send_if_modified(|phase| {
                    let finding = *phase == Phase::Finding;
                    if finding {
                        *phase = Phase::Open;
                    }
                    finding
                });
                tracing::info!(session = %live.id, clone = %made.name, "a session was found again");
                Ok(())
            }
            Ok(made) => {
                self.lost_with(live, made).await;
                Ok(())
            }
            Err(HostError::Finished(_) | HostError::Failed(_)) => {
                self.begin_close(live, "clone_lost");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// A renewal made another clone: the browser of the session is gone.
    pub(super) async fn lost_with(&self, live: &Arc<Live>, made: crate::hosts::MadeClone) {
        self.begin_close(live, "clone_lost");
        if let Err(error) = self.0.hosts.destroy(made.name.clone(), made.id).await {
            tracing::warn!(session = %live.id, clone = %made.name, %error, "cannot destroy a needless clone; its lease ends it");
        }
    }
}

fn is_ready(clone: Option<&CloneInfo>, known: Option<&hostd::api::CloneId>) -> bool {
    clone.is_some_and(|clone| {
        clone.state == CloneState::Ready && clone.clone_id.is_some() && clone.clone_id.as_ref() == known
    })
}
