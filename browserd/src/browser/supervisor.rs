//! Supervises Chromium: starts it, restarts it after a crash, and stops it.

use super::Browser;
use super::event_log::{Continuity, event};
use super::process::Process;
use crate::api::error::with_causes;
use crate::api::types::{BrowserEvent, EventKind};
use crate::config::Config;
use crate::presentation::{self, Presentation};
use browser_settings::UserAgentPolicy;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Crashes older than this do not count towards the restart limit.
const CRASH_WINDOW: Duration = Duration::from_secs(600);

/// The state of the browser.
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
    /// It crashed too often or cannot be started. It is not restarted any more.
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

/// Runs the browser and publishes its state.
#[derive(Debug)]
pub(crate) struct Supervisor {
    status: watch::Sender<Status>,
    browser: Mutex<Option<Arc<Browser>>>,
    pub(crate) continuity: Arc<Continuity>,
    stop: watch::Sender<bool>,
}

impl Supervisor {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            status: watch::Sender::default(),
            browser: Mutex::default(),
            continuity: Arc::default(),
            stop: watch::Sender::new(false),
        })
    }

    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The browser, if it is ready.
    pub(crate) fn browser(&self) -> Option<Arc<Browser>> {
        self.browser.lock().expect("no panic while held").clone().filter(|browser| !browser.cdp.is_closed())
    }

    /// Waits until the browser is ready or has failed for good.
    pub(crate) async fn settled(&self) -> Status {
        let mut status = self.status.subscribe();
        let settled = status.wait_for(|status| matches!(status.phase, Phase::Ready | Phase::Failed)).await;
        settled.expect("self owns the sender").clone()
    }

    /// Makes [`Self::run`] stop the browser and return.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Runs the browser until [`Self::stop`].
    pub(crate) async fn run(&self, config: &Config) {
        let mut stop = self.stop.subscribe();
        let mut crashes: VecDeque<Instant> = VecDeque::new();
        loop {
            self.run_once(config, &mut stop).await;
            if *stop.borrow() {
                return;
            }
            let now = Instant::now();
            crashes.push_back(now);
            crashes.retain(|crash| now - *crash < CRASH_WINDOW);
            if crashes.len() as u32 > config.max_restarts {
                tracing::error!(
                    crashes = crashes.len(),
                    "the browser crashed too often and is not restarted"
                );
                self.status.send_modify(|status| status.phase = Phase::Failed);
                let _ = stop.wait_for(|stop| *stop).await;
                return;
            }
            // The first restart is immediate, later ones have exponential backoff.
            let pause = Duration::from_millis(250 * ((1 << (crashes.len() - 1).min(6)) - 1));
            let _ = tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await;
            if *stop.borrow() {
                return;
            }
            self.status.send_modify(|status| status.restarts += 1);
        }
    }

    /// Starts the browser, waits for its end and reaps it.
    async fn run_once(&self, config: &Config, stop: &mut watch::Receiver<bool>) {
        let started = Instant::now();
        let start = async {
            let presentation = presentation_of(config).await.map_err(|error| with_causes(&error))?;
            self.continuity.generation.fetch_add(1, Ordering::Relaxed);
            let started = Process::start(config, &presentation).map_err(|error| with_causes(&error))?;
            Ok::<_, String>((presentation, started))
        };
        let (presentation, (process, pipe)) = match start.await {
            Ok(started) => started,
            Err(error) => {
                tracing::error!(error, "the browser could not be started");
                self.status.send_modify(|status| {
                    status.phase = Phase::Restarting;
                    status.last_exit = Some(error);
                });
                return;
            }
        };
        self.status.send_modify(|status| status.pid = Some(process.pid()));
        let mut problem = None;
        tokio::select! {
            () = process.ended() => {}
            _ = stop.wait_for(|stop| *stop) => {}
            error = self.connect(pipe, config, &presentation, started) => problem = Some(error),
        }
        let browser = self.browser.lock().expect("no panic while held").take();
        let phase = if *stop.borrow() { Phase::Stopping } else { Phase::Restarting };
        self.status.send_modify(|status| status.phase = phase);
        let timeout = Duration::from_millis(config.stop_timeout_ms) / 3;
        if let Some(browser) = browser {
            if phase == Phase::Stopping {
                let close = async {
                    let _ = browser.cdp.call_raw(None, "Browser.close", &json!({}), timeout).await;
                    process.ended().await;
                };
                let _ = tokio::time::timeout(timeout, close).await;
            }
            browser.cdp.close();
        }
        process.stop(timeout).await;
        let mut report = process.reap(config).await;
        if let Some(problem) = problem {
            report = format!("{problem}; {report}");
        }
        if phase == Phase::Restarting {
            tracing::error!(exit = report, "the browser ended");
            let reason = Some(report.clone());
            self.continuity.add(BrowserEvent { reason, ..event(EventKind::BrowserEnded) });
        }
        self.status.send_modify(|status| {
            status.pid = None;
            status.last_exit = Some(report);
        });
    }

    /// Connects to the browser and watches the pipe. Returns only when the browser does not work.
    async fn connect(
        &self,
        pipe: tokio::net::UnixStream,
        config: &Config,
        presentation: &Presentation,
        started: Instant,
    ) -> String {
        let timeout = Duration::from_millis(config.start_timeout_ms);
        let connect = Browser::connect(pipe, config, presentation, self.continuity.clone());
        let browser = match tokio::time::timeout(timeout, connect).await {
            Ok(Ok(browser)) => browser,
            Ok(Err(error)) => {
                // If the process has ended, its exit status is the better report: leave time for it to be noticed.
                tokio::time::sleep(Duration::from_millis(200)).await;
                return format!("no page could be opened: {error}");
            }
            Err(_) => return format!("no page could be opened within {} ms", timeout.as_millis()),
        };
        let version = browser.version.product.clone();
        tracing::info!(milliseconds = started.elapsed().as_millis() as u64, version, "the browser is ready");
        *self.browser.lock().expect("no panic while held") = Some(browser.clone());
        self.status.send_modify(|status| status.phase = Phase::Ready);
        browser.cdp.closed().await;
        // The pipe closes shortly before the process ends. If the process is still running, only the pipe is broken.
        tokio::time::sleep(Duration::from_secs(2)).await;
        "the debugging pipe was closed".into()
    }
}

/// What pages see of the next browser.
async fn presentation_of(config: &Config) -> Result<Presentation, presentation::VersionError> {
    let ordinary = match config.user_agent {
        UserAgentPolicy::Honest => None,
        UserAgentPolicy::Ordinary => Some(presentation::chromium_version(&config.chromium).await?),
    };
    let (languages, timezone) = (config.languages.clone(), config.timezone.clone());
    Ok(Presentation { languages, timezone, window: config.window, ordinary })
}
