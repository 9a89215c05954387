//! Applies CDP events to the state of the browser: tabs, downloads, dialogs, raw clients.

use super::INTERNAL_TIMEOUT;
use super::actions::upload::FileChooser;
use super::event_log::{Continuity, event};
use super::page_log::{PageLog, now_ms, plain_url, shorten};
use super::relay::Relays;
use super::tab::{RemoteFrame, Tab, TabRef};
use crate::api::types::{BrowserEvent, DialogInfo, Download, EventKind, RecentDialog};
use crate::cdp::{CdpError, Connection, Event, Session};
use crate::presentation::Overrides;
use crate::transfer::mime_type;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tokio::sync::watch;

/// Number of downloads kept in the list.
const MAX_DOWNLOADS: usize = 100;
/// Number of answered dialogs kept in the list.
const MAX_RECENT_DIALOGS: usize = 100;
/// Number of dialogs after which a document's script is terminated.
const MAX_DIALOGS: u32 = 50;

/// The state of the browser that events update.
#[derive(Debug)]
pub(super) struct BrowserState {
    pub(super) cdp: OnceLock<Connection>,
    /// What is set in each new page, frame and worker.
    pub(super) overrides: OnceLock<Overrides>,
    pub(super) tabs: Mutex<Tabs>,
    pub(super) tabs_changed: watch::Sender<u64>,
    pub(super) downloads: Mutex<VecDeque<Download>>,
    /// Where Chromium puts them.
    pub(super) downloads_folder: PathBuf,
    /// Contexts that raw clients made.
    pub(super) contexts: Mutex<Vec<String>>,
    pub(super) relays: Mutex<Relays>,
    pub(super) dialogs: Mutex<VecDeque<RecentDialog>>,
    pub(super) continuity: Arc<Continuity>,
    /// Whether the browser is ready. What happens before, such as the warm-up, is no event.
    pub(super) announced: AtomicBool,
    /// Tabs that raw clients are opening, which Chromium has not reported yet.
    pub(super) creating: AtomicUsize,
    pub(super) max_tabs: usize,
    pub(super) max_download: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tabs {
    pub(super) open: Vec<TabRef>,
    /// The default target of calls that name no tab.
    pub(super) active: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TargetInfo {
    pub(super) target_id: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) url: String,
    #[serde(default)]
    opener_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttachedToTarget {
    session_id: String,
    target_info: TargetInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DetachedFromTarget {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetInfoChanged {
    target_info: TargetInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetCrashed {
    target_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LifecycleEvent {
    frame_id: String,
    loader_id: String,
    name: String,
}

#[derive(Deserialize)]
struct FrameNavigated {
    frame: Frame,
    #[serde(rename = "type", default)]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Frame {
    id: String,
    loader_id: String,
    #[serde(default)]
    url: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LoadingFrame {
    frame_id: String,
}

#[derive(Deserialize)]
struct DragIntercepted {
    data: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NavigatedWithinDocument {
    frame_id: String,
    url: String,
}

#[derive(Deserialize)]
struct DialogOpening {
    message: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DownloadBegin {
    #[serde(default)]
    frame_id: String,
    guid: String,
    url: String,
    suggested_filename: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DownloadProgress {
    guid: String,
    total_bytes: f64,
    received_bytes: f64,
    state: String,
}

impl BrowserState {
    pub(super) fn tabs(&self) -> MutexGuard<'_, Tabs> {
        self.tabs.lock().expect("no panic while held")
    }

    pub(super) fn relays(&self) -> MutexGuard<'_, Relays> {
        self.relays.lock().expect("no panic while held")
    }

    fn cdp(&self) -> &Connection {
        self.cdp.get().expect("set before the first call is sent")
    }

    fn overrides(&self) -> Overrides {
        self.overrides.get().expect("set before targets are attached").clone()
    }

    fn tab_by_session(&self, session: Option<&str>) -> Option<TabRef> {
        let session = session?;
        self.tabs().open.iter().find(|tab| *tab.session == *session).cloned()
    }

    /// The tab that owns this session, either for its page or for one of its frames.
    fn tab_of_frame(&self, session: &str) -> Option<TabRef> {
        let tabs = self.tabs();
        tabs.open
            .iter()
            .find(|tab| *tab.session == *session || tab.state().frames.contains_key(session))
            .cloned()
    }

    pub(super) fn tab_by_target(&self, target: &str) -> Option<TabRef> {
        self.tabs().open.iter().find(|tab| tab.target == target).cloned()
    }

    pub(super) fn add_event(&self, event: BrowserEvent) {
        if self.announced.load(Ordering::Relaxed) {
            self.continuity.add(event);
        }
    }

    fn add_tab_event(&self, kind: EventKind, tab: &Tab, url: Option<&str>) {
        self.add_event(BrowserEvent { tab: Some(tab.id.clone()), url: url.map(plain_url), ..event(kind) });
    }

    pub(super) fn on_event(&self, event: &Event<'_>) {
        if event.session.is_some() {
            let delivered = self.relays().on_event(event);
            if let Some(session) = delivered.lost_session {
                self.cdp().fail_session(&session, "it was detached");
            }
            if delivered.for_raw_client {
                return;
            }
        }
        self.on_own_event(event);
    }

    /// Handles an event of browserd's own sessions. The `Option` only serves to return early with `?`.
    fn on_own_event(&self, event: &Event<'_>) -> Option<()> {
        match event.method {
            method if PageLog::wants(method) => {
                let session = event.session?;
                let tab = self.tab_of_frame(session)?;
                if tab.log().on_event(event) {
                    let session: Session = session.into();
                    tokio::spawn(async move {
                        let group = json!({ "objectGroup": "console" });
                        let release = "Runtime.releaseObjectGroup";
                        let _ = tab.cdp.call_raw(Some(&session), release, &group, INTERNAL_TIMEOUT).await;
                    });
                }
            }
            "Target.attachedToTarget" => self.on_attached(event.session, event.parse()?),
            "Target.detachedFromTarget" => self.on_detached(&event.parse::<DetachedFromTarget>()?.session_id),
            "Target.targetInfoChanged" => {
                let info = event.parse::<TargetInfoChanged>()?.target_info;
                self.tab_by_target(&info.target_id)?
                    .update(|state| (state.url, state.title) = (info.url, info.title));
            }
            "Target.targetCrashed" => {
                self.continuity.renderer_crashes.fetch_add(1, Ordering::Relaxed);
                let tab = self.tab_by_target(&event.parse::<TargetCrashed>()?.target_id)?;
                tab.on_crashed();
                self.add_tab_event(EventKind::TabCrashed, &tab, None);
            }
            "Page.lifecycleEvent" => {
                let lifecycle: LifecycleEvent = event.parse()?;
                let tab = self.tab_by_session(event.session)?;
                if lifecycle.frame_id == tab.target {
                    tab.on_lifecycle(&lifecycle.loader_id, &lifecycle.name);
                }
            }
            "Page.frameNavigated" => {
                let navigated: FrameNavigated = event.parse()?;
                let tab = self.tab_by_session(event.session)?;
                if navigated.frame.id == tab.target {
                    match navigated.kind.as_str() {
                        "BackForwardCacheRestore" => tab.on_restored(&navigated.frame.loader_id),
                        _ => tab.on_lifecycle(&navigated.frame.loader_id, "commit"),
                    }
                    tab.update(|state| state.url = navigated.frame.url.clone());
                    self.add_tab_event(EventKind::TabNavigated, &tab, Some(&navigated.frame.url));
                }
            }
            "Page.frameStartedLoading" | "Page.frameStoppedLoading" => {
                let frame: LoadingFrame = event.parse()?;
                let tab = self.tab_by_session(event.session)?;
                if frame.frame_id == tab.target {
                    tab.update(|state| state.loading = event.method == "Page.frameStartedLoading");
                }
            }
            "Input.dragIntercepted" => {
                let drag: DragIntercepted = event.parse()?;
                self.tab_by_session(event.session)?.update(|state| state.pointer.dragged = Some(drag.data));
            }
            "Page.navigatedWithinDocument" => {
                let moved: NavigatedWithinDocument = event.parse()?;
                let tab = self.tab_by_session(event.session)?;
                if moved.frame_id == tab.target {
                    tab.on_moved_within_document(&moved.url);
                    self.add_tab_event(EventKind::TabNavigated, &tab, Some(&moved.url));
                }
            }
            "Page.javascriptDialogOpening" => {
                self.on_dialog(&self.tab_by_session(event.session)?, event.parse()?)
            }
            "Browser.downloadWillBegin" => {
                let begin: DownloadBegin = event.parse()?;
                self.add_event(BrowserEvent {
                    guid: Some(begin.guid.clone()),
                    url: Some(plain_url(&begin.url)),
                    suggested_filename: Some(shorten(&begin.suggested_filename, 255)),
                    ..super::event_log::event(EventKind::DownloadStarted)
                });
                let tab = self.tab_by_target(&begin.frame_id).map(|tab| tab.id.clone());
                let mut downloads = self.downloads.lock().expect("no panic while held");
                // Several sessions may report the same one.
                if downloads.iter().any(|download| download.guid == begin.guid) {
                    return None;
                }
                if downloads.len() == MAX_DOWNLOADS
                    && let Some(forgotten) = downloads.pop_front()
                {
                    let _ = std::fs::remove_file(self.downloads_folder.join(forgotten.guid));
                }
                downloads.push_back(Download {
                    mime_type: mime_type(&begin.suggested_filename),
                    removed: false,
                    tab,
                    guid: begin.guid,
                    url: begin.url,
                    suggested_filename: begin.suggested_filename,
                    state: "in_progress".into(),
                    received_bytes: 0,
                    total_bytes: 0,
                });
                drop(downloads);
                self.tabs_changed.send_modify(|count| *count += 1);
            }
            "Page.fileChooserOpened" => {
                let chooser: FileChooser = event.parse()?;
                self.tab_of_frame(event.session?)?.update(|state| state.file_chooser = Some(chooser));
            }
            "Browser.downloadProgress" => self.on_download_progress(event.parse()?),
            _ => {}
        }
        Some(())
    }

    fn on_attached(&self, parent: Option<&str>, attached: AttachedToTarget) {
        let TargetInfo { target_id, kind, url, opener_id, .. } = attached.target_info;
        let overrides = self.overrides();
        if kind.ends_with("worker") {
            let (cdp, session) = (self.cdp().clone(), attached.session_id.into());
            tokio::spawn(async move { set_up_child(&cdp, &session, &overrides).await });
            return;
        }
        if let Some(parent) = parent
            && let Some(tab) = self.tab_of_frame(parent)
        {
            // A frame with its own process. Its frame id equals its target id. It may contain more such frames.
            let session: Session = attached.session_id.as_str().into();
            let frame = RemoteFrame { id: target_id, parent: parent.into() };
            tab.update(|state| state.frames.insert(attached.session_id, frame));
            tokio::spawn(async move {
                if tab.is_recording() {
                    tab.record_session(&session).await;
                }
                set_up_child(&tab.cdp, &session, &overrides).await;
            });
            return;
        }
        if kind != "page" || parent.is_some() {
            return;
        }
        let cdp = self.cdp().clone();
        let session: Session = attached.session_id.into();
        let mut tabs = self.tabs();
        let id = format!("t{}", self.continuity.tabs_opened.fetch_add(1, Ordering::Relaxed) + 1);
        let opener =
            opener_id.as_ref().and_then(|opener| tabs.open.iter().find(|tab| tab.target == *opener)).cloned();
        let tab = Arc::new(Tab::new(id, target_id, session, opener_id, cdp, url));
        let too_many = tabs.open.len() >= self.max_tabs;
        tabs.open.push(tab.clone());
        drop(tabs);
        self.tabs_changed.send_modify(|count| *count += 1);
        let kind = if too_many { EventKind::TabRefused } else { EventKind::TabOpened };
        self.add_event(BrowserEvent {
            tab: Some(tab.id.clone()),
            opener: opener.as_ref().map(|opener| opener.id.clone()),
            url: Some(plain_url(&tab.state().url)),
            ..event(kind)
        });
        tokio::spawn(async move {
            // A popup of a recorded page is recorded from its first request on.
            if opener.is_some_and(|opener| opener.is_recording()) {
                tab.record().await;
            }
            if too_many {
                let params = json!({ "targetId": tab.target });
                let _ = tab.cdp.call_raw(None, "Target.closeTarget", &params, INTERNAL_TIMEOUT).await;
            }
            set_up(&tab, &overrides).await;
        });
    }

    fn on_detached(&self, session: &str) {
        self.cdp().fail_session(session, "it was closed");
        let mut tabs = self.tabs();
        let closed = tabs.open.iter().position(|tab| *tab.session == *session).map(|at| tabs.open.remove(at));
        let others = tabs.open.clone();
        if let Some(closed) = &closed
            && tabs.active.as_ref() == Some(&closed.target)
        {
            tabs.active = tabs.open.last().map(|tab| tab.target.clone());
        }
        drop(tabs);
        match closed {
            Some(tab) => {
                tab.update(|state| state.closed = true);
                self.add_tab_event(EventKind::TabClosed, &tab, None);
                self.tabs_changed.send_modify(|count| *count += 1);
            }
            None => others.iter().for_each(|tab| drop(tab.state().frames.remove(session))),
        }
    }

    /// Answers a dialog at once, because an open dialog blocks the tab. If a raw client is attached to the tab, the client
    /// answers.
    fn on_dialog(&self, tab: &TabRef, dialog: DialogOpening) {
        if self.relays().is_attached(&tab.target) {
            return;
        }
        let (accept, text, endless) = tab.update(|state| {
            let accept = state.accept_dialogs || matches!(dialog.kind.as_str(), "alert" | "beforeunload");
            state.dialogs += 1;
            state.dialogs_in_document += 1;
            let message = dialog.message.chars().take(1000).collect();
            let info = DialogInfo { kind: dialog.kind, message, accepted: accept };
            self.remember_dialog(tab, &info);
            state.last_dialog = Some(info);
            (accept, state.prompt_text.clone().unwrap_or_default(), state.dialogs_in_document > MAX_DIALOGS)
        });
        let tab = tab.clone();
        tokio::spawn(async move {
            let params = json!({ "accept": accept, "promptText": text });
            let session = Some(&tab.session);
            let stop = async {
                if endless {
                    let _ = tab
                        .cdp
                        .call_raw(session, "Runtime.terminateExecution", &json!({}), INTERNAL_TIMEOUT)
                        .await;
                }
            };
            let answer = tab.cdp.call_raw(session, "Page.handleJavaScriptDialog", &params, INTERNAL_TIMEOUT);
            let _ = tokio::join!(stop, answer);
        });
    }

    fn remember_dialog(&self, tab: &Tab, dialog: &DialogInfo) {
        let mut dialogs = self.dialogs.lock().expect("no panic while held");
        if dialogs.len() == MAX_RECENT_DIALOGS {
            dialogs.pop_front();
        }
        dialogs.push_back(RecentDialog { tab: tab.id.clone(), at: now_ms(), dialog: dialog.clone() });
        drop(dialogs);
        let (tab, dialog) = (Some(tab.id.clone()), Some(dialog.clone()));
        self.add_event(BrowserEvent { tab, dialog, ..event(EventKind::Dialog) });
    }

    fn on_download_progress(&self, progress: DownloadProgress) {
        let mut downloads = self.downloads.lock().expect("no panic while held");
        let Some(download) = downloads.iter_mut().find(|download| download.guid == progress.guid) else {
            return;
        };
        download.received_bytes = progress.received_bytes as u64;
        download.total_bytes = progress.total_bytes as u64;
        let ended = match progress.state.as_str() {
            "completed" => Some(EventKind::DownloadCompleted),
            "canceled" => Some(EventKind::DownloadCanceled),
            _ => None,
        };
        download.state = if ended.is_some() { progress.state.clone() } else { "in_progress".into() };
        if let Some(kind) = ended {
            self.add_event(BrowserEvent {
                guid: Some(download.guid.clone()),
                suggested_filename: Some(shorten(&download.suggested_filename, 255)),
                bytes: Some(download.received_bytes),
                ..event(kind)
            });
        }
        if download.received_bytes.max(download.total_bytes) > self.max_download
            && download.state == "in_progress"
        {
            self.cancel_download(&progress.guid);
        }
    }

    /// Cancels a running download. Chromium does not say in which context it is.
    pub(super) fn cancel_download(&self, guid: &str) {
        let mut contexts = vec![json!({ "guid": guid })];
        let made = self.contexts.lock().expect("no panic while held").clone();
        contexts.extend(made.iter().map(|context| json!({ "guid": guid, "browserContextId": context })));
        let cdp = self.cdp().clone();
        tokio::spawn(async move {
            for params in contexts {
                let _ = cdp.call_raw(None, "Browser.cancelDownload", &params, INTERNAL_TIMEOUT).await;
            }
        });
    }

    /// Makes the downloads of a context arrive in browserd's folder, where they are listed and limited.
    pub(super) async fn allow_downloads(&self, context: Option<&str>) -> Result<(), CdpError> {
        let mut params = json!({
            "behavior": "allowAndName", "downloadPath": self.downloads_folder, "eventsEnabled": true
        });
        if let Some(context) = context {
            params["browserContextId"] = json!(context);
        }
        self.cdp().call_raw(None, "Browser.setDownloadBehavior", &params, INTERNAL_TIMEOUT).await.map(drop)
    }

    /// A raw client made a context.
    pub(super) async fn on_new_context(&self, context: String) {
        if let Err(error) = self.allow_downloads(Some(&context)).await {
            tracing::debug!(%error, "downloads of a context are not allowed");
            return;
        }
        self.contexts.lock().expect("no panic while held").push(context);
    }

    /// A raw client is gone. Chromium has removed its contexts and its settings, also those for the default context.
    pub(super) async fn on_client_gone(&self) {
        let made = self.contexts.lock().expect("no panic while held").clone();
        let mut gone = Vec::new();
        for context in made {
            if self.allow_downloads(Some(&context)).await.is_err() {
                gone.push(context);
            }
        }
        self.contexts.lock().expect("no panic while held").retain(|context| !gone.contains(context));
        if let Err(error) = self.allow_downloads(None).await {
            tracing::debug!(%error, "downloads are not allowed");
        }
    }
}

/// Parameters that make Chromium attach to the child frames that have their own process. With overrides, frames and workers
/// wait until these are set.
fn auto_attach_children(overrides: &Overrides) -> Value {
    let filter = match overrides.is_empty() {
        true => json!([{ "type": "iframe" }, { "exclude": true }]),
        false => json!([{ "type": "iframe" }, { "type": "worker" }, { "exclude": true }]),
    };
    json!({
        "autoAttach": true, "waitForDebuggerOnStart": !overrides.is_empty(), "flatten": true, "filter": filter,
    })
}

/// Sets the overrides in a new page, frame or worker. A kind of target that does not know one of them continues without it.
async fn apply(cdp: &Connection, session: &Session, overrides: &Overrides) {
    for (method, params) in &overrides.calls {
        if let Err(error) = cdp.call_raw(Some(session), method, params, INTERNAL_TIMEOUT).await {
            tracing::debug!(method, %error, "not set");
        }
    }
}

/// Sets up a frame with its own process or a worker, and lets it run.
async fn set_up_child(cdp: &Connection, session: &Session, overrides: &Overrides) {
    let attach = auto_attach_children(overrides);
    let attach = cdp.call_raw(Some(session), "Target.setAutoAttach", &attach, INTERNAL_TIMEOUT);
    let _ = tokio::join!(attach, apply(cdp, session, overrides));
    if !overrides.is_empty() {
        let _ = cdp
            .call_raw(Some(session), "Runtime.runIfWaitingForDebugger", &json!({}), INTERNAL_TIMEOUT)
            .await;
    }
}

/// Enables the events of a new tab, then lets its page run.
async fn set_up(tab: &Tab, overrides: &Overrides) {
    let session = Some(&tab.session);
    let call = |method: &'static str, params: Value| async move {
        tab.cdp.call_raw(session, method, &params, INTERNAL_TIMEOUT).await
    };
    apply(&tab.cdp, &tab.session, overrides).await;
    let done = tokio::try_join!(
        call("Page.enable", json!({})),
        call("Page.setLifecycleEventsEnabled", json!({ "enabled": true })),
        call("Emulation.setFocusEmulationEnabled", json!({ "enabled": true })),
        call("Target.setAutoAttach", auto_attach_children(overrides)),
        call("Runtime.runIfWaitingForDebugger", json!({})),
    );
    if let Err(error) = done {
        tracing::debug!(tab = tab.id, %error, "the tab was closed during its setup");
    }
    tab.update(|state| state.set_up = true);
}
