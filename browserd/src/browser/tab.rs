//! One tab: what is known of it from events, and how scripts are run in it.

use crate::api::error::{ApiError, CRASHED, ErrorCode};
use crate::api::types::{DialogInfo, WaitUntil};
use crate::cdp::{CdpError, Connection, Session};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Name of the JavaScript world of our own scripts: they see the page's DOM, but the page cannot
/// replace the functions they use.
const WORLD: &str = "browserd";
/// Documents remembered, to tell late events of an old one from a new one.
const REMEMBERED: usize = 8;

/// One tab.
#[derive(Debug)]
pub(crate) struct Tab {
    /// `t1`, `t2`, …
    pub(crate) id: String,
    /// Chromium's id, also that of the main frame.
    pub(crate) target: String,
    pub(crate) session: Session,
    pub(crate) opener: Option<String>,
    pub(crate) cdp: Connection,
    state: Mutex<TabState>,
    /// Raised at every change of the state.
    changed: watch::Sender<u64>,
    /// Actions on one tab happen one after the other; reading does not wait for them.
    pub(crate) turn: tokio::sync::Mutex<()>,
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
    /// Dialogs of the present document, to notice a page that opens them without end.
    pub(crate) dialogs_in_document: u32,
    pub(crate) document: Document,
    /// Frames that live in processes of their own, by their session.
    pub(crate) frames: HashMap<String, OuterFrame>,
    /// What the refs of the last snapshot mean.
    pub(crate) refs: HashMap<u32, Element>,
}

/// How far the present document got.
#[derive(Debug, Default)]
pub(crate) struct Document {
    /// Chromium's id of this load.
    loader: String,
    /// Ids of earlier loads, and of this one.
    known: VecDeque<String>,
    /// How many documents there were, moves within a document included.
    pub(crate) count: u64,
    parsed: bool,
    loaded: bool,
    idle: bool,
    /// Our world in the main frame.
    world: Option<i64>,
}

/// A frame that lives in a process of its own.
#[derive(Debug, Clone)]
pub(crate) struct OuterFrame {
    pub(crate) id: String,
    /// The session of the page or frame that holds it.
    pub(crate) parent: Session,
}

/// An element a ref stands for.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    pub(crate) session: Session,
    pub(crate) backend_node: i64,
}

impl Document {
    fn enter(&mut self, loader: &str) -> bool {
        if self.known.iter().any(|known| known == loader) {
            return false;
        }
        self.known.push_back(loader.to_owned());
        if self.known.len() > REMEMBERED {
            self.known.pop_front();
        }
        self.loader = loader.to_owned();
        self.count += 1;
        (self.parsed, self.loaded, self.idle, self.world) = (false, false, false, None);
        true
    }

    fn reached(&self, wanted: WaitUntil) -> bool {
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
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, TabState> {
        self.state.lock().expect("no panic while held")
    }

    /// Change the state and wake whoever waits for it.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut TabState) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    /// Waits until `done` says so.
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

    /// A page came back from the back/forward cache: it is complete as it is.
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

    /// Waits until the document `loader` (or one that came after it) got as far as `wanted`.
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
            let there = match after {
                After::Loader(loader) => state.document.known.iter().any(|known| known == loader),
                After::Count(count) => state.document.count > count,
            };
            (there && state.document.reached(wanted)).then_some(Ok(()))
        });
        tokio::select! {
            result = wait => result,
            () = self.cdp.closed() => Err(CdpError::Closed { method: "Page.navigate".into() }.into()),
            () = tokio::time::sleep_until(until) => {
                Err(ApiError::new(ErrorCode::NavigationTimeout, format!("the page did not reach {wanted:?} in time")))
            }
        }
    }

    /// Run a function of ours in our own world of the main frame. A document that changes meanwhile
    /// is met by running it again in the new one.
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
            match self.call::<Remote>("Runtime.callFunctionOn", params, until).await {
                Ok(remote) => return remote.value(),
                // The context went away with its document.
                Err(error) if attempt < 5 && error.code == ErrorCode::BrowserError => {
                    self.state().document.world = None;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn world(&self, until: Instant) -> Result<i64, ApiError> {
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

/// After which point a document counts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum After<'a> {
    /// This load or a later one.
    Loader(&'a str),
    /// Any document after so many.
    Count(u64),
}

/// What `Runtime.evaluate` and `Runtime.callFunctionOn` answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remote {
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
    /// The first lines of what the page threw.
    pub(crate) fn message(&self) -> String {
        let said = self.exception.as_ref().and_then(|exception| {
            exception.description.clone().or_else(|| exception.value.as_ref().map(Value::to_string))
        });
        said.unwrap_or_else(|| self.text.clone()).chars().take(2000).collect()
    }
}

impl Remote {
    /// The value of one of our own functions, or the error it reports as `{"error": code}`.
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

/// What is left of the time until then.
pub(crate) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// A shared tab.
pub(crate) type TabRef = Arc<Tab>;
