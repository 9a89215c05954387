//! A tab: its state, as reported by events, and the execution of scripts in it.

use super::actions::pointer::Pointer;
use super::actions::upload::FileChooser;
use super::page_log::{PageLog, enabling_calls};
use super::refs::Refs;
use crate::api::error::{ApiError, CRASHED, ErrorCode};
use crate::api::types::{DialogInfo, WaitUntil};
use crate::cdp::{CdpError, Connection, Session};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Name of the isolated world for browserd's scripts. They see the page's DOM, but the page cannot replace the functions
/// they use.
const WORLD: &str = "browserd";
/// Number of loader ids kept, to recognise late events of earlier documents.
const KNOWN_LOADERS: usize = 8;

/// A tab.
#[derive(Debug)]
pub(crate) struct Tab {
    /// `t1`, `t2`, …
    pub(crate) id: String,
    /// Chromium's target id, which is also the main frame's id.
    pub(crate) target: String,
    pub(crate) session: Session,
    pub(crate) opener: Option<String>,
    pub(crate) cdp: Connection,
    state: Mutex<TabState>,
    /// Incremented at every change of the state.
    changed: watch::Sender<u64>,
    /// Serializes the actions on the tab. Reading does not take it.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Console and network, from the tab's first call on.
    log: Mutex<PageLog>,
    recording: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct TabState {
    pub(crate) url: String,
    pub(crate) title: String,
    pub(crate) crashed: bool,
    pub(crate) closed: bool,
    pub(crate) set_up: bool,
    pub(crate) dialogs: u64,
    pub(crate) last_dialog: Option<DialogInfo>,
    pub(crate) accept_dialogs: bool,
    pub(crate) prompt_text: Option<String>,
    /// Dialogs of the current document, to detect a page that opens them in a loop.
    pub(crate) dialogs_in_document: u32,
    pub(crate) document: Document,
    /// Frames with their own process, by session id.
    pub(crate) frames: HashMap<String, RemoteFrame>,
    /// The elements that have a ref.
    pub(crate) refs: Refs,
    /// Whether a document is being loaded, also before its first byte.
    pub(crate) loading: bool,
    pub(crate) pointer: Pointer,
    /// The file chooser that a page opened while browserd asked for it.
    pub(crate) file_chooser: Option<FileChooser>,
}

/// The loading progress of the current document.
#[derive(Debug, Default)]
pub(crate) struct Document {
    /// Chromium's id of this load (loader id).
    loader: String,
    /// Loader ids of earlier loads and of this one.
    known: VecDeque<String>,
    /// Number of documents so far, including navigations within a document.
    pub(crate) count: u64,
    parsed: bool,
    loaded: bool,
    idle: bool,
    /// The isolated world in the main frame.
    world: Option<i64>,
}

/// A frame with its own process.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFrame {
    pub(crate) id: String,
    /// The session of the page or frame that contains it.
    pub(crate) parent: Session,
}

impl Document {
    /// Starts a new document unless this load is already known.
    fn enter(&mut self, loader: &str) -> bool {
        if self.known.iter().any(|known| known == loader) {
            return false;
        }
        self.known.push_back(loader.to_owned());
        if self.known.len() > KNOWN_LOADERS {
            self.known.pop_front();
        }
        self.loader = loader.to_owned();
        self.count += 1;
        (self.parsed, self.loaded, self.idle, self.world) = (false, false, false, None);
        true
    }

    pub(crate) fn reached(&self, wanted: WaitUntil) -> bool {
        match wanted {
            WaitUntil::Commit => true,
            WaitUntil::DomContentLoaded => self.parsed,
            WaitUntil::Load => self.loaded,
            WaitUntil::NetworkIdle => self.idle,
        }
    }
}

impl Tab {
    pub(crate) fn new(
        id: String,
        target: String,
        session: Session,
        opener: Option<String>,
        cdp: Connection,
        url: String,
    ) -> Self {
        Self {
            id,
            target,
            session,
            opener,
            cdp,
            state: Mutex::new(TabState { url, ..TabState::default() }),
            changed: watch::Sender::new(0),
            turn: tokio::sync::Mutex::new(()),
            log: Mutex::default(),
            recording: AtomicBool::new(false),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, TabState> {
        self.state.lock().expect("no panic while held")
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, PageLog> {
        self.log.lock().expect("no panic while held")
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    /// Begins to record console and network, unless that is done already. Does not wait for Chromium's replies: Chromium
    /// handles the calls of a session in their order.
    pub(crate) async fn record(&self) {
        if self.recording.swap(true, Ordering::Relaxed) {
            return;
        }
        let frames: Vec<Session> =
            self.state().frames.keys().map(|session| session.as_str().into()).collect();
        for session in std::iter::once(&self.session).chain(&frames) {
            self.record_session(session).await;
        }
    }

    /// Begins to record the page's session, or that of a frame with its own process.
    pub(crate) async fn record_session(&self, session: &Session) {
        for (method, params) in enabling_calls() {
            self.cdp.send(Some(session), method, &params, Box::new(drop)).await.detach();
        }
    }

    /// Changes the state and wakes all waiters.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut TabState) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    /// Waits until `done` returns a value.
    pub(crate) async fn wait_for<T>(&self, mut done: impl FnMut(&mut TabState) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(result) = done(&mut self.state()) {
                return result;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    // ---- events

    pub(crate) fn on_lifecycle(&self, loader: &str, name: &str) {
        self.update(|state| {
            if state.document.enter(loader) {
                state.refs.clear();
                state.dialogs_in_document = 0;
            }
            if state.document.loader != loader {
                return;
            }
            match name {
                "DOMContentLoaded" => state.document.parsed = true,
                "load" => state.document.loaded = true,
                "networkIdle" => state.document.idle = true,
                _ => {}
            }
        });
    }

    /// Handles a page that was restored from the back/forward cache: it is already loaded.
    pub(crate) fn on_restored(&self, loader: &str) {
        self.update(|state| {
            state.document.known.retain(|known| known != loader);
            state.document.enter(loader);
            state.refs.clear();
            let document = &mut state.document;
            (document.parsed, document.loaded, document.idle) = (true, true, true);
        });
    }

    pub(crate) fn on_moved_within_document(&self, url: &str) {
        self.update(|state| {
            state.document.count += 1;
            state.url = url.to_owned();
        });
    }

    pub(crate) fn on_crashed(&self) {
        self.update(|state| {
            state.crashed = true;
            state.refs.clear();
            state.frames.clear();
            state.loading = false;
            state.pointer = Pointer::default();
        });
        self.cdp.fail_session(&self.session, CRASHED);
    }

    // ---- calls

    /// A CDP call in the tab's session.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        params: Value,
        until: Instant,
    ) -> Result<T, ApiError> {
        self.refuse_if_crashed()?;
        Ok(self.cdp.call(Some(&self.session), method, params, left(until)).await?)
    }

    pub(crate) fn refuse_if_crashed(&self) -> Result<(), ApiError> {
        if self.state().crashed {
            return Err(ApiError::new(ErrorCode::RendererCrashed, format!("tab {}: {CRASHED}", self.id)));
        }
        Ok(())
    }

    /// Waits until the document of `after`, or a later one, has reached `wanted`.
    pub(crate) async fn loaded(
        &self,
        after: After<'_>,
        wanted: WaitUntil,
        until: Instant,
    ) -> Result<(), ApiError> {
        let wait = self.wait_for(|state| {
            if state.crashed {
                return Some(Err(ApiError::new(
                    ErrorCode::RendererCrashed,
                    format!("tab {}: {CRASHED}", self.id),
                )));
            }
            if state.closed {
                return Some(Err(ApiError::new(ErrorCode::NoSuchTab, format!("tab {} was closed", self.id))));
            }
            let exists = match after {
                After::Loader(loader) => state.document.known.iter().any(|known| known == loader),
                After::Count(count) => state.document.count > count,
            };
            (exists && state.document.reached(wanted)).then_some(Ok(()))
        });
        tokio::select! {
            result = wait => result,
            () = self.cdp.closed() => Err(CdpError::Closed { method: "Page.navigate".into() }.into()),
            () = tokio::time::sleep_until(until) => {
                Err(ApiError::new(ErrorCode::NavigationTimeout, format!("the page did not reach {wanted:?} in time")))
            }
        }
    }

    /// Runs one of browserd's functions in the isolated world of the main frame. If the document changes meanwhile, the
    /// function runs again in the new document.
    pub(crate) async fn run<T: DeserializeOwned>(
        &self,
        function: &str,
        arguments: &[Value],
        until: Instant,
    ) -> Result<T, ApiError> {
        let arguments: Vec<Value> = arguments.iter().map(|value| json!({ "value": value })).collect();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let world = match self.world(until).await {
                Err(error) if attempt < 5 && error.code == ErrorCode::BrowserError => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                world => world?,
            };
            let params = json!({
                "functionDeclaration": function,
                "executionContextId": world,
                "arguments": arguments,
                "returnByValue": true,
                "awaitPromise": true,
                "userGesture": true,
            });
            match self.call::<ScriptResult>("Runtime.callFunctionOn", params, until).await {
                Ok(result) => return result.value(),
                // The document was replaced and its context destroyed.
                Err(error) if attempt < 5 && error.code == ErrorCode::BrowserError => {
                    self.state().document.world = None;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The isolated world of the main frame.
    pub(crate) async fn world(&self, until: Instant) -> Result<i64, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct World {
            execution_context_id: i64,
        }
        let count = {
            let state = self.state();
            if let Some(world) = state.document.world {
                return Ok(world);
            }
            state.document.count
        };
        let params = json!({ "frameId": self.target, "worldName": WORLD });
        let world: World = self.call("Page.createIsolatedWorld", params, until).await?;
        let mut state = self.state();
        if state.document.count == count {
            state.document.world = Some(world.execution_context_id);
        }
        Ok(world.execution_context_id)
    }
}

/// The document to wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum After<'a> {
    /// This load or a later one.
    Loader(&'a str),
    /// Any document after the given count.
    Count(u64),
}

/// The result of `Runtime.evaluate` and `Runtime.callFunctionOn`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScriptResult {
    pub(crate) result: RemoteObject,
    #[serde(default)]
    pub(crate) exception_details: Option<Exception>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RemoteObject {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) value: Value,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Exception {
    text: String,
    #[serde(default)]
    exception: Option<ExceptionObject>,
}

#[derive(Debug, Deserialize)]
struct ExceptionObject {
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    value: Option<Value>,
}

impl Exception {
    /// The text of the exception, truncated.
    pub(crate) fn message(&self) -> String {
        let thrown = self.exception.as_ref().and_then(|exception| {
            exception.description.clone().or_else(|| exception.value.as_ref().map(Value::to_string))
        });
        thrown.unwrap_or_else(|| self.text.clone()).chars().take(2000).collect()
    }
}

impl ScriptResult {
    /// The value that one of browserd's functions returned, or the error that it reported as `{"error": code}`.
    pub(crate) fn value<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        if let Some(exception) = self.exception_details {
            return Err(ApiError::new(ErrorCode::BrowserError, exception.message()));
        }
        if let Some(code) = self.result.value.get("error") {
            let code = ErrorCode::deserialize(code).unwrap_or(ErrorCode::Internal);
            let message = self.result.value.get("message").and_then(Value::as_str).unwrap_or(code.as_str());
            return Err(ApiError::new(code, message));
        }
        serde_json::from_value(self.result.value)
            .map_err(|error| ApiError::new(ErrorCode::BrowserError, format!("unexpected result: {error}")))
    }
}

/// The time left until the deadline.
pub(crate) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// A shared tab.
pub(crate) type TabRef = Arc<Tab>;
