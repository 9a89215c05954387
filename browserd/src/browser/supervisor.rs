//! Keeps one Chromium running: starts it, notices its end, starts it again, and stops it for good.

use super::Browser;
use super::process::Process;
use crate::config::Config;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Crashes older than this do not count against a restart.
const WINDOW: Duration = Duration::from_secs(600);

/// What the browser is doing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) phase: Phase,
    pub(crate) pid: Option<u32>,
    pub(crate) restarts: u32,
    pub(crate) last_exit: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Starting,
    Ready,
    Restarting,
    /// It crashed too often, or cannot be started: nobody tries any more.
    Failed,
    Stopping,
}

impl Phase {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Restarting => "restarting",
            Self::Failed => "failed",
            Self::Stopping => "stopping",
        }
    }
}

/// The supervisor's public side.
#[derive(Debug)]
pub(crate) struct Supervisor {
    status: watch::Sender<Status>,
    browser: Mutex<Option<Arc<Browser>>>,
    pub(crate) renderer_crashes: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
}

impl Supervisor {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            status: watch::Sender::default(),
            browser: Mutex::default(),
            renderer_crashes: Arc::default(),
            stop: watch::Sender::new(false),
        })
    }

    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The browser, when it is ready.
    pub(crate) fn browser(&self) -> Option<Arc<Browser>> {
        self.browser.lock().expect("no panic while held").clone().filter(|browser| !browser.cdp.is_closed())
    }

    /// How the first start went: waits until the browser is ready, or nobody tries any more.
    pub(crate) async fn settled(&self) -> Status {
        let mut status = self.status.subscribe();
        let settled = status.wait_for(|status| matches!(status.phase, Phase::Ready | Phase::Failed)).await;
        settled.expect("the sender lives in self").clone()
    }

    /// Make [`Self::run`] stop the browser and return.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Run the browser until [`Self::stop`].
    pub(crate) async fn run(&self, config: &Config) {
        let mut stop = self.stop.subscribe();
        let mut crashes: VecDeque<Instant> = VecDeque::new();
        loop {
            self.live(config, &mut stop).await;
            if *stop.borrow() {
                return;
            }
            let now = Instant::now();
            crashes.push_back(now);
            crashes.retain(|crash| now - *crash < WINDOW);
            if crashes.len() as u32 > config.max_restarts {
                tracing::error!(crashes = crashes.len(), "the browser is not started again");
                self.status.send_modify(|status| status.phase = Phase::Failed);
                let _ = stop.wait_for(|stop| *stop).await;
                return;
            }
            // The first restart at once, later ones after a growing pause.
            let pause = Duration::from_millis(250 * ((1 << (crashes.len() - 1).min(6)) - 1));
            let _ = tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await;
            if *stop.borrow() {
                return;
            }
            self.status.send_modify(|status| status.restarts += 1);
        }
    }

    /// One life of the browser, from start to grave.
    async fn live(&self, config: &Config, stop: &mut watch::Receiver<bool>) {
        let started = Instant::now();
        let (process, pipe) = match Process::start(config) {
            Ok(started) => started,
            Err(error) => {
                tracing::error!(%error, "the browser could not be started");
                self.status.send_modify(|status| {
                    status.phase = Phase::Restarting;
                    status.last_exit = Some(error.to_string());
                });
                return;
            }
        };
        self.status.send_modify(|status| status.pid = Some(process.pid()));
        let mut problem = None;
        tokio::select! {
            () = process.ended() => {}
            _ = stop.wait_for(|stop| *stop) => {}
            error = self.serve(pipe, config, started) => problem = Some(error),
        }
        let browser = self.browser.lock().expect("no panic while held").take();
        let phase = if *stop.borrow() { Phase::Stopping } else { Phase::Restarting };
        self.status.send_modify(|status| status.phase = phase);
        let patience = Duration::from_millis(config.stop_timeout_ms) / 3;
        if let Some(browser) = browser {
            if phase == Phase::Stopping {
                let close = async {
                    let _ = browser.cdp.call_raw(None, "Browser.close", &json!({}), patience).await;
                    process.ended().await;
                };
                let _ = tokio::time::timeout(patience, close).await;
            }
            browser.cdp.close();
        }
        process.stop(patience).await;
        let mut report = process.bury(config).await;
        if let Some(problem) = problem {
            report = format!("{problem}; {report}");
        }
        if phase == Phase::Restarting {
            tracing::error!(exit = report, "the browser ended");
        }
        self.status.send_modify(|status| {
            status.pid = None;
            status.last_exit = Some(report);
        });
    }

    /// Connects, then waits for ever; returns only when the browser does not work.
    async fn serve(&self, pipe: tokio::net::UnixStream, config: &Config, started: Instant) -> String {
        let patience = Duration::from_millis(config.start_timeout_ms);
        let connect = Browser::connect(pipe, config, self.renderer_crashes.clone());
        let browser = match tokio::time::timeout(patience, connect).await {
            Ok(Ok(browser)) => browser,
            Ok(Err(error)) => {
                // The process' own end tells more, if that is the cause: give it a moment to be seen.
                tokio::time::sleep(Duration::from_millis(200)).await;
                return format!("no page could be opened: {error}");
            }
            Err(_) => return format!("no page could be opened within {} ms", patience.as_millis()),
        };
        let version = browser.version.product.clone();
        tracing::info!(milliseconds = started.elapsed().as_millis() as u64, version, "the browser is ready");
        *self.browser.lock().expect("no panic while held") = Some(browser.clone());
        self.status.send_modify(|status| status.phase = Phase::Ready);
        browser.cdp.closed().await;
        // The pipe closes a moment before the process ends; without its end the pipe alone is broken.
        tokio::time::sleep(Duration::from_secs(2)).await;
        "the pipe was closed".into()
    }
}
