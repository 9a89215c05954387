//! One running browser: its tabs, downloads and raw clients, kept up to date by its events.

pub(crate) mod actions;
pub(crate) mod keys;
pub(crate) mod process;
pub(crate) mod relay;
pub(crate) mod supervisor;
pub(crate) mod tab;

use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{DialogInfo, Download, TabInfo};
use crate::cdp::{CdpError, Connection, Event, Session};
use crate::config::Config;
use relay::Relays;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tab::{OuterFrame, Tab, TabRef, left};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// Deadline of the small calls browserd makes for itself.
const SHORT: Duration = Duration::from_secs(10);
/// How long closing a tab may take.
const CLOSE: Duration = Duration::from_secs(5);
/// Downloads remembered.
const MAX_DOWNLOADS: usize = 100;
/// Dialogs of one document after which its script is stopped.
const MAX_DIALOGS: u32 = 50;

/// One running browser.
#[derive(Debug)]
pub(crate) struct Browser {
    pub(crate) cdp: Connection,
    pub(crate) version: BrowserVersion,
    shared: Arc<Shared>,
}

/// What Chromium says of itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BrowserVersion {
    pub(crate) protocol_version: String,
    pub(crate) product: String,
    pub(crate) user_agent: String,
    pub(crate) js_version: String,
}

/// What the events change.
#[derive(Debug)]
struct Shared {
    cdp: OnceLock<Connection>,
    tabs: Mutex<Tabs>,
    tabs_changed: watch::Sender<u64>,
    downloads: Mutex<VecDeque<Download>>,
    relays: Mutex<Relays>,
    renderer_crashes: Arc<AtomicU64>,
    max_tabs: usize,
    max_download: u64,
}

#[derive(Debug, Default)]
struct Tabs {
    open: Vec<TabRef>,
    /// The target calls mean when they name no tab.
    active: Option<String>,
    opened: u64,
}

impl Browser {
    /// Speak to a browser that was just started, and open a page in it.
    pub(crate) async fn connect(
        pipe: UnixStream,
        config: &Config,
        renderer_crashes: Arc<AtomicU64>,
    ) -> Result<Arc<Self>, ApiError> {
        let shared = Arc::new(Shared {
            cdp: OnceLock::new(),
            tabs: Mutex::default(),
            tabs_changed: watch::Sender::new(0),
            downloads: Mutex::default(),
            relays: Mutex::default(),
            renderer_crashes,
            max_tabs: config.max_tabs,
            max_download: config.max_download,
        });
        let (input, output) = pipe.into_split();
        let on_event = {
            let shared = shared.clone();
            move |event: &Event<'_>| shared.on_event(event)
        };
        let cdp = Connection::new(input, output, config.max_response, on_event);
        shared.cdp.set(cdp.clone()).expect("set once, here");

        let until = Instant::now() + Duration::from_millis(config.start_timeout_ms);
        let pages = json!([{ "type": "page" }, { "exclude": true }]);
        let downloads = config.data_dir.join("downloads");
        let version = cdp.call(None, "Browser.getVersion", json!({}), left(until));
        let discover = json!({ "discover": true, "filter": pages });
        let discover = cdp.call_raw(None, "Target.setDiscoverTargets", &discover, left(until));
        // Pages wait for us, so that no dialog opens before we listen.
        let attach = json!({
            "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true, "filter": pages
        });
        let attach = cdp.call_raw(None, "Target.setAutoAttach", &attach, left(until));
        let behaviour = json!({
            "behavior": "allowAndName", "downloadPath": downloads, "eventsEnabled": true
        });
        let behaviour = cdp.call_raw(None, "Browser.setDownloadBehavior", &behaviour, left(until));
        let (version, ..) = tokio::try_join!(version, discover, attach, behaviour)?;

        let browser = Arc::new(Self { cdp, version, shared });
        // Ready means that a page can be opened and runs script.
        let tab = browser.open_tab(None, false, until).await?;
        let one: u32 = tab.run("function() { return 1 }", &[], until).await?;
        debug_assert_eq!(one, 1);
        Ok(browser)
    }

    // ---- tabs

    /// Open a tab; `url` begins to load, nobody waits for it.
    pub(crate) async fn open_tab(
        &self,
        url: Option<&str>,
        background: bool,
        until: Instant,
    ) -> Result<TabRef, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Created {
            target_id: String,
        }
        if self.shared.tabs().open.len() >= self.shared.max_tabs {
            let limit = self.shared.max_tabs;
            return Err(ApiError::new(
                ErrorCode::TooManyTabs,
                format!("{limit} tabs are open, no more are allowed"),
            ));
        }
        let params = json!({ "url": url.unwrap_or("about:blank"), "background": background });
        let created: Created = self.cdp.call(None, "Target.createTarget", params, left(until)).await?;
        let mut changes = self.shared.tabs_changed.subscribe();
        let find = async {
            loop {
                changes.mark_unchanged();
                if let Some(tab) = self.shared.tab_by_target(&created.target_id) {
                    tab.wait_for(|state| (state.set_up || state.closed).then_some(())).await;
                    return tab;
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let tab = tokio::select! {
            tab = find => tab,
            () = self.cdp.closed() => return Err(CdpError::Closed { method: "Target.createTarget".into() }.into()),
            () = tokio::time::sleep_until(until) => {
                return Err(ApiError::new(ErrorCode::Timeout, "the new tab did not come up in time"));
            }
        };
        let mut tabs = self.shared.tabs();
        if !background || tabs.active.is_none() {
            tabs.active = Some(tab.target.clone());
        }
        Ok(tab)
    }

    /// The tab a call means.
    pub(crate) fn tab(&self, id: Option<&str>) -> Result<TabRef, ApiError> {
        let tabs = self.shared.tabs();
        let found = match id {
            Some(id) => tabs.open.iter().find(|tab| tab.id == id || tab.target == id),
            None => tabs
                .open
                .iter()
                .find(|tab| Some(&tab.target) == tabs.active.as_ref())
                .or_else(|| tabs.open.last()),
        };
        found.cloned().ok_or_else(|| {
            let message = id.map_or("no tab is open".into(), |id| {
                format!("no tab {:?}", id.chars().take(40).collect::<String>())
            });
            ApiError::new(ErrorCode::NoSuchTab, message)
        })
    }

    pub(crate) async fn close_tab(&self, id: &str) -> Result<(), ApiError> {
        let tab = self.tab(Some(id))?;
        let params = json!({ "targetId": tab.target });
        let _: Value = self.cdp.call(None, "Target.closeTarget", params, SHORT).await?;
        let gone = tab.wait_for(|state| state.closed.then_some(()));
        tokio::time::timeout(CLOSE, gone)
            .await
            .map_err(|_| ApiError::new(ErrorCode::Timeout, format!("tab {id} did not close in time")))
    }

    pub(crate) async fn activate_tab(&self, id: &str) -> Result<(), ApiError> {
        let tab = self.tab(Some(id))?;
        let params = json!({ "targetId": tab.target });
        let _: Value = self.cdp.call(None, "Target.activateTarget", params, SHORT).await?;
        self.shared.tabs().active = Some(tab.target.clone());
        Ok(())
    }

    /// How many tabs are open.
    pub(crate) fn tab_count(&self) -> usize {
        self.shared.tabs().open.len()
    }

    /// All open tabs. Asks Chromium for their titles, which no event tells when a page sets them late.
    pub(crate) async fn tab_infos(&self) -> Result<Vec<TabInfo>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Targets {
            target_infos: Vec<TargetInfo>,
        }
        let known: Targets = self.cdp.call(None, "Target.getTargets", json!({}), SHORT).await?;
        for info in known.target_infos {
            if let Some(tab) = self.shared.tab_by_target(&info.target_id) {
                let mut state = tab.state();
                (state.url, state.title) = (info.url, info.title);
            }
        }
        let active = self.tab(None).ok().map(|tab| tab.target.clone());
        let tabs = self.shared.tabs().open.clone();
        let id_of = |target: &String| tabs.iter().find(|tab| tab.target == *target).map(|tab| tab.id.clone());
        let infos = tabs
            .iter()
            .map(|tab| {
                let state = tab.state();
                TabInfo {
                    tab: tab.id.clone(),
                    url: state.url.clone(),
                    title: state.title.clone(),
                    active: active.as_ref() == Some(&tab.target),
                    opener: tab.opener.as_ref().and_then(id_of),
                    crashed: state.crashed,
                    dialogs: state.dialogs,
                    last_dialog: state.last_dialog.clone(),
                    target_id: tab.target.clone(),
                }
            })
            .collect();
        Ok(infos)
    }

    pub(crate) fn downloads(&self) -> Vec<Download> {
        self.shared.downloads.lock().expect("no panic while held").iter().cloned().collect()
    }

    pub(crate) fn relays(&self) -> MutexGuard<'_, Relays> {
        self.shared.relays()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetInfo {
    target_id: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    url: String,
    #[serde(default)]
    opener_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attached {
    session_id: String,
    target_info: TargetInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detached {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InfoChanged {
    target_info: TargetInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Crashed {
    target_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
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
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WithinDocument {
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

impl Shared {
    fn tabs(&self) -> MutexGuard<'_, Tabs> {
        self.tabs.lock().expect("no panic while held")
    }

    fn relays(&self) -> MutexGuard<'_, Relays> {
        self.relays.lock().expect("no panic while held")
    }

    fn cdp(&self) -> &Connection {
        self.cdp.get().expect("set before the first message can arrive")
    }

    fn tab_by_session(&self, session: Option<&str>) -> Option<TabRef> {
        let session = session?;
        self.tabs().open.iter().find(|tab| *tab.session == *session).cloned()
    }

    /// The tab whose page, or one of whose frames, has this session.
    fn tab_of_frame(&self, session: &str) -> Option<TabRef> {
        let tabs = self.tabs();
        tabs.open
            .iter()
            .find(|tab| *tab.session == *session || tab.state().frames.contains_key(session))
            .cloned()
    }

    fn tab_by_target(&self, target: &str) -> Option<TabRef> {
        self.tabs().open.iter().find(|tab| tab.target == target).cloned()
    }

    fn on_event(&self, event: &Event<'_>) {
        if event.session.is_some() {
            let delivered = self.relays().on_event(event);
            if let Some(session) = delivered.lost_session {
                self.cdp().fail_session(&session, "it was detached");
            }
            if delivered.taken {
                return;
            }
        }
        self.on_own_event(event);
    }

    /// An event of browserd's own sessions. `None` only ends the function early.
    fn on_own_event(&self, event: &Event<'_>) -> Option<()> {
        match event.method {
            "Target.attachedToTarget" => self.on_attached(event.session, event.parse()?),
            "Target.detachedFromTarget" => self.on_detached(&event.parse::<Detached>()?.session_id),
            "Target.targetInfoChanged" => {
                let info = event.parse::<InfoChanged>()?.target_info;
                self.tab_by_target(&info.target_id)?
                    .update(|state| (state.url, state.title) = (info.url, info.title));
            }
            "Target.targetCrashed" => {
                self.renderer_crashes.fetch_add(1, Ordering::Relaxed);
                self.tab_by_target(&event.parse::<Crashed>()?.target_id)?.on_crashed();
            }
            "Page.lifecycleEvent" => {
                let lifecycle: Lifecycle = event.parse()?;
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
                }
            }
            "Page.navigatedWithinDocument" => {
                let moved: WithinDocument = event.parse()?;
                let tab = self.tab_by_session(event.session)?;
                if moved.frame_id == tab.target {
                    tab.on_moved_within_document(&moved.url);
                }
            }
            "Page.javascriptDialogOpening" => {
                self.on_dialog(&self.tab_by_session(event.session)?, event.parse()?)
            }
            "Browser.downloadWillBegin" => {
                let begin: DownloadBegin = event.parse()?;
                let mut downloads = self.downloads.lock().expect("no panic while held");
                if downloads.len() == MAX_DOWNLOADS {
                    downloads.pop_front();
                }
                downloads.push_back(Download {
                    guid: begin.guid,
                    url: begin.url,
                    suggested_filename: begin.suggested_filename,
                    state: "in_progress".into(),
                    received_bytes: 0,
                    total_bytes: 0,
                });
            }
            "Browser.downloadProgress" => self.on_download_progress(event.parse()?),
            _ => {}
        }
        Some(())
    }

    fn on_attached(&self, parent: Option<&str>, attached: Attached) {
        let TargetInfo { target_id, kind, url, opener_id, .. } = attached.target_info;
        if let Some(parent) = parent
            && let Some(tab) = self.tab_of_frame(parent)
        {
            // A frame in a process of its own; its id is its target's. It may hold more of them.
            let session: Session = attached.session_id.as_str().into();
            let frame = OuterFrame { id: target_id, parent: parent.into() };
            tab.update(|state| state.frames.insert(attached.session_id, frame));
            tokio::spawn(async move {
                let _ =
                    tab.cdp.call_raw(Some(&session), "Target.setAutoAttach", &frames_of_page(), SHORT).await;
            });
            return;
        }
        if kind != "page" || parent.is_some() {
            return;
        }
        let cdp = self.cdp().clone();
        let session: Session = attached.session_id.into();
        let mut tabs = self.tabs();
        tabs.opened += 1;
        let id = format!("t{}", tabs.opened);
        let tab = Arc::new(Tab::new(id, target_id, session, opener_id, cdp, url));
        let too_many = tabs.open.len() >= self.max_tabs;
        tabs.open.push(tab.clone());
        drop(tabs);
        self.tabs_changed.send_modify(|count| *count += 1);
        tokio::spawn(async move {
            if too_many {
                let params = json!({ "targetId": tab.target });
                let _ = tab.cdp.call_raw(None, "Target.closeTarget", &params, SHORT).await;
            }
            set_up(&tab).await;
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
                self.tabs_changed.send_modify(|count| *count += 1);
            }
            None => others.iter().for_each(|tab| drop(tab.state().frames.remove(session))),
        }
    }

    /// Answer the dialog at once, whatever the page's script is waiting for: an open dialog blocks
    /// everything else in the tab. Where a raw client is attached, dialogs are its own business.
    fn on_dialog(&self, tab: &TabRef, dialog: DialogOpening) {
        if self.relays().holds(&tab.target) {
            return;
        }
        let (accept, text, endless) = tab.update(|state| {
            let accept = state.accept_dialogs || matches!(dialog.kind.as_str(), "alert" | "beforeunload");
            state.dialogs += 1;
            state.dialogs_in_document += 1;
            let message = dialog.message.chars().take(1000).collect();
            state.last_dialog = Some(DialogInfo { kind: dialog.kind, message, accepted: accept });
            (accept, state.prompt_text.clone().unwrap_or_default(), state.dialogs_in_document > MAX_DIALOGS)
        });
        let tab = tab.clone();
        tokio::spawn(async move {
            let params = json!({ "accept": accept, "promptText": text });
            let session = Some(&tab.session);
            let stop = async {
                if endless {
                    let _ = tab.cdp.call_raw(session, "Runtime.terminateExecution", &json!({}), SHORT).await;
                }
            };
            let answer = tab.cdp.call_raw(session, "Page.handleJavaScriptDialog", &params, SHORT);
            let _ = tokio::join!(stop, answer);
        });
    }

    fn on_download_progress(&self, progress: DownloadProgress) {
        let mut downloads = self.downloads.lock().expect("no panic while held");
        let Some(download) = downloads.iter_mut().find(|download| download.guid == progress.guid) else {
            return;
        };
        download.received_bytes = progress.received_bytes as u64;
        download.total_bytes = progress.total_bytes as u64;
        download.state = match progress.state.as_str() {
            "completed" => "completed".into(),
            "canceled" => "canceled".into(),
            _ => "in_progress".into(),
        };
        if download.received_bytes.max(download.total_bytes) > self.max_download
            && download.state == "in_progress"
        {
            let cdp = self.cdp().clone();
            tokio::spawn(async move {
                let params = json!({ "guid": progress.guid });
                let _ = cdp.call_raw(None, "Browser.cancelDownload", &params, SHORT).await;
            });
        }
    }
}

/// Tells Chromium to announce the frames of a page or frame that live in processes of their own.
fn frames_of_page() -> Value {
    json!({
        "autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true,
        "filter": [{ "type": "iframe" }, { "exclude": true }],
    })
}

/// Listen to a new tab, then let its page run.
async fn set_up(tab: &Tab) {
    let session = Some(&tab.session);
    let call = |method: &'static str, params: Value| async move {
        tab.cdp.call_raw(session, method, &params, SHORT).await
    };
    let done = tokio::try_join!(
        call("Page.enable", json!({})),
        call("Page.setLifecycleEventsEnabled", json!({ "enabled": true })),
        call("Emulation.setFocusEmulationEnabled", json!({ "enabled": true })),
        call("Target.setAutoAttach", frames_of_page()),
        call("Runtime.runIfWaitingForDebugger", json!({})),
    );
    if let Err(error) = done {
        tracing::debug!(tab = tab.id, %error, "the tab went away while it was set up");
    }
    tab.update(|state| state.set_up = true);
}
