//! What happens to sessions by itself: leases are renewed, idle and expired sessions are closed, lost clones are noticed.

use super::Sessions;
use super::live::{Live, Phase};
use crate::hosts::HostError;
use crate::time::{self, Millis};
use hyper::Method;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

const TICK: Duration = Duration::from_millis(250);
/// How often the host is asked for its clones.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often the times of use are written.
const TOUCH_EVERY: Duration = Duration::from_secs(5);
/// How often old rows and recordings are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How long a browserd may refuse connections before its session is closed. browserd starts a crashed browser again by
/// itself, so only a clone without browserd is silent for so long.
const SILENT_FOR: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the rows of closed sessions are kept.
const KEEP_ROWS_MS: Millis = 90 * 24 * 3600 * 1000;

impl Sessions {
    /// Begin to look after sessions.
    pub(super) fn keep(&self) {
        let tasks: [fn(Sessions) -> futures_util::future::BoxFuture<'static, ()>; 3] = [
            |sessions| Box::pin(async move { sessions.watch_times().await }),
            |sessions| Box::pin(async move { sessions.watch_host().await }),
            |sessions| Box::pin(async move { sessions.write_down().await }),
        ];
        for task in tasks {
            let (sessions, stopping) = (self.clone(), self.0.stopping.clone());
            tokio::spawn(async move { stopping.run_until_cancelled(task(sessions)).await });
        }
    }

    /// Stop looking after sessions; they stay open. Times of use are written once more.
    pub async fn stop(&self) {
        self.0.stopping.cancel();
        self.write_times().await;
        self.write_ends().await;
    }

    /// Ask for a look at the host now: a clone does not answer.
    pub(crate) fn suspect(&self, live: &Live) {
        live.place().silent_since.get_or_insert_with(Instant::now);
        self.0.look.notify_one();
    }

    async fn watch_times(&self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = Instant::now();
            for live in self.all() {
                let phase = live.now_in();
                if !matches!(phase, Phase::Open | Phase::Finding | Phase::Opening) {
                    continue;
                }
                if now >= live.deadline {
                    self.begin_close(&live, "deadline");
                } else if phase == Phase::Open && live.unused() >= live.idle {
                    self.begin_close(&live, "idle");
                } else if phase == Phase::Open && live.place().renew_at.is_some_and(|at| now >= at) {
                    self.renew(live);
                }
            }
        }
    }

    /// Renew the lease in a task of its own, one at a time for each session.
    fn renew(&self, live: Arc<Live>) {
        if live.renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        let sessions = self.clone();
        tokio::spawn(async move {
            let begin = Instant::now();
            let outcome = sessions.0.hosts.create(sessions.wanted(&live)).await;
            let known = live.place().clone.as_ref().map(|clone| clone.id.clone());
            match outcome {
                Ok(made) if made.renewed && Some(&made.id) == known.as_ref() => {
                    if !live.is_open() {
                        // It was closed meanwhile; the destroy may have come before the renewal.
                        let _ = sessions.0.hosts.destroy(made.name, made.id).await;
                    } else if let Err(error) = sessions.settle(&live, &made, begin) {
                        tracing::warn!(session = %live.id, %error, "cannot use the answer of a renewal");
                    }
                }
                Ok(made) => sessions.lost_with(&live, made).await,
                Err(HostError::Finished(_)) => sessions.begin_close(&live, "clone_lost"),
                Err(error) => {
                    tracing::warn!(session = %live.id, %error, "cannot renew the lease of a session's clone yet");
                    let pause = error.retry_after().unwrap_or(Duration::from_secs(1));
                    live.place().renew_at = Some(Instant::now() + pause.max(Duration::from_secs(1)));
                }
            }
            live.renewing.store(false, Ordering::Release);
        });
    }

    async fn watch_host(&self) {
        loop {
            if let Err(error) = self.look().await {
                tracing::warn!(%error, "cannot list the clones of the host");
            }
            for live in self.all() {
                if live.is_open() && live.place().silent_since.is_some() {
                    self.probe(&live).await;
                }
            }
            let asked = tokio::time::timeout(LOOK_EVERY, self.0.look.notified()).await.is_ok();
            if asked {
                // Many calls may fail at once.
                tokio::time::sleep(TICK).await;
            }
        }
    }

    /// Whether the browserd of a session answers again.
    async fn probe(&self, live: &Arc<Live>) {
        let (browser, since) = {
            let place = live.place();
            (place.browser.clone(), place.silent_since)
        };
        let (Some(browser), Some(since)) = (browser, since) else { return };
        let body = super::browser::whole(bytes::Bytes::new());
        let answer = browser.send(Method::GET, "/healthz", "application/json", body);
        match tokio::time::timeout(PROBE_TIMEOUT, answer).await {
            Ok(Ok(_)) => live.place().silent_since = None,
            _ if since.elapsed() >= SILENT_FOR => self.begin_close(live, "browser_lost"),
            _ => {}
        }
    }

    async fn write_down(&self) {
        let mut tick = interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut touched, mut swept) = (Instant::now(), None::<Instant>);
        loop {
            tick.tick().await;
            self.write_ends().await;
            if touched.elapsed() >= TOUCH_EVERY {
                touched = Instant::now();
                self.write_times().await;
            }
            if swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY) {
                swept = Some(Instant::now());
                self.0.recordings.sweep().await;
                if let Err(error) = self.0.store.forget_sessions(time::now() - KEEP_ROWS_MS).await {
                    tracing::warn!(%error, "cannot remove the rows of old sessions");
                }
                self.0.rate.retain_recent();
            }
        }
    }

    async fn write_times(&self) {
        let mut used = Vec::new();
        for live in self.all() {
            let at = live.used_at.load(Ordering::Relaxed);
            let at = if live.uses.load(Ordering::Acquire) > 0 { time::now() } else { at };
            if live.is_open() && at > live.touched_at.load(Ordering::Relaxed) {
                used.push((live, at));
            }
        }
        let rows: Vec<_> = used.iter().map(|(live, at)| (live.id.clone(), *at)).collect();
        match self.0.store.touch_sessions(&rows).await {
            Ok(()) => used.iter().for_each(|(live, at)| live.touched_at.store(*at, Ordering::Relaxed)),
            Err(error) => tracing::warn!(%error, "cannot write when sessions were used"),
        }
    }
}
