//! A running browser with its tabs, downloads and raw clients.

pub(crate) mod actions;
pub(crate) mod event_log;
mod events;
pub(crate) mod keys;
pub(crate) mod page_log;
pub(crate) mod process;
pub(crate) mod refs;
pub(crate) mod relay;
pub(crate) mod supervisor;
pub(crate) mod tab;
mod warm_up;

use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{BrowserEvent, Download, EventKind, RecentDialog, TabInfo};
use crate::cdp::{CdpError, Connection, Event};
use crate::config::Config;
use crate::presentation::Presentation;
use crate::transfer::OutgoingFile;
use event_log::{Continuity, event};
use events::{BrowserState, TargetInfo};
use relay::{Relays, empty_object};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tab::{TabRef, left};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// Deadline of internal calls.
const INTERNAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long closing a tab may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A running browser.
#[derive(Debug)]
pub(crate) struct Browser {
    pub(crate) cdp: Connection,
    pub(crate) version: BrowserVersion,
    state: Arc<BrowserState>,
}

/// The result of `Browser.getVersion`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BrowserVersion {
    pub(crate) protocol_version: String,
    pub(crate) product: String,
    pub(crate) user_agent: String,
    pub(crate) js_version: String,
    #[serde(default)]
    pub(crate) revision: String,
}

impl Browser {
    /// Connects to a browser that was just started and waits until its first page runs scripts.
    pub(crate) async fn connect(
        pipe: UnixStream,
        config: &Config,
        presentation: &Presentation,
        continuity: Arc<Continuity>,
    ) -> Result<Arc<Self>, ApiError> {
        let state = Arc::new(BrowserState {
            cdp: OnceLock::new(),
            overrides: OnceLock::new(),
            tabs: Mutex::default(),
            tabs_changed: watch::Sender::new(0),
            downloads: Mutex::default(),
            relays: Mutex::default(),
            dialogs: Mutex::default(),
            downloads_folder: config.data_dir.join("downloads"),
            contexts: Mutex::default(),
            creating: AtomicUsize::new(0),
            continuity,
            announced: AtomicBool::new(false),
            max_tabs: config.max_tabs,
            max_download: config.max_download,
        });
        let (input, output) = pipe.into_split();
        let on_event = {
            let state = state.clone();
            move |event: &Event<'_>| state.on_event(event)
        };
        let cdp = Connection::new(input, output, config.max_response, on_event);
        state.cdp.set(cdp.clone()).expect("set only here");

        let until = Instant::now() + Duration::from_millis(config.start_timeout_ms);
        let pages = json!([{ "type": "page" }, { "exclude": true }]);
        let version: BrowserVersion = cdp.call(None, "Browser.getVersion", json!({}), left(until)).await?;
        let number = version.product.split_once('/').map_or("", |(_, number)| number);
        let overrides = presentation.overrides(&version.user_agent, number);
        // Workers of several pages are attached here, the others in the session of their page.
        let attached = match overrides.is_empty() {
            true => pages.clone(),
            false => json!([
                { "type": "page" }, { "type": "shared_worker" }, { "type": "service_worker" }, { "exclude": true }
            ]),
        };
        state.overrides.set(overrides).expect("set only here");
        let discover = json!({ "discover": true, "filter": pages });
        let discover = cdp.call_raw(None, "Target.setDiscoverTargets", &discover, left(until));
        // New pages wait until their tab is set up, so that no dialog opens before its events are enabled.
        let attach = json!({
            "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true, "filter": attached
        });
        let attach = cdp.call_raw(None, "Target.setAutoAttach", &attach, left(until));
        let downloads = async { state.allow_downloads(None).await.map(|()| empty_object()) };
        // A page that asks reads what a request would get: nobody is there to answer a prompt.
        let denied = json!({ "permission": { "name": "notifications" }, "setting": "denied" });
        let denied = cdp.call_raw(None, "Browser.setPermission", &denied, left(until));
        tokio::try_join!(discover, attach, downloads, denied)?;

        let browser = Arc::new(Self { cdp, version, state });
        // The browser is ready when its first page runs a script.
        let tab = browser.first_tab(until).await?;
        let one: u32 = tab.run("function() { return 1 }", &[], until).await?;
        debug_assert_eq!(one, 1);
        if config.warm_up {
            warm_up::run(&browser, &tab, until).await?;
        }
        browser.state.announced.store(true, Ordering::Relaxed);
        let ready = BrowserEvent { tab: Some(tab.id.clone()), ..event(EventKind::BrowserReady) };
        browser.state.add_event(ready);
        Ok(browser)
    }

    // ---- tabs

    /// The tab that Chromium opens at startup.
    async fn first_tab(&self, until: Instant) -> Result<TabRef, ApiError> {
        let first = |browser: &Self| browser.state.tabs().open.first().cloned();
        let tab = self.wait_for_tab(first, until).await?;
        self.state.tabs().active = Some(tab.target.clone());
        Ok(tab)
    }

    /// Waits until the tab exists and is set up.
    async fn wait_for_tab(
        &self,
        find: impl Fn(&Self) -> Option<TabRef>,
        until: Instant,
    ) -> Result<TabRef, ApiError> {
        let mut changes = self.state.tabs_changed.subscribe();
        let found = async {
            loop {
                changes.mark_unchanged();
                if let Some(tab) = find(self) {
                    tab.wait_for(|state| (state.set_up || state.closed).then_some(())).await;
                    return tab;
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            tab = found => Ok(tab),
            () = self.cdp.closed() => Err(CdpError::Closed { method: "Target.createTarget".into() }.into()),
            () = tokio::time::sleep_until(until) => {
                Err(ApiError::new(ErrorCode::Timeout, "the new tab was not ready in time"))
            }
        }
    }

    /// Opens a tab. Does not wait until `url` is loaded.
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
        if let Some(limit) = self.tab_limit_reached() {
            return Err(ApiError::new(
                ErrorCode::TooManyTabs,
                format!("the limit of {limit} open tabs is reached"),
            ));
        }
        let params = json!({ "url": url.unwrap_or("about:blank"), "background": background });
        let created: Created = self.cdp.call(None, "Target.createTarget", params, left(until)).await?;
        let tab = self.wait_for_tab(|browser| browser.state.tab_by_target(&created.target_id), until).await?;
        let mut tabs = self.state.tabs();
        if !background || tabs.active.is_none() {
            tabs.active = Some(tab.target.clone());
        }
        Ok(tab)
    }

    /// The tab with this id, or the default tab.
    pub(crate) fn tab(&self, id: Option<&str>) -> Result<TabRef, ApiError> {
        let tabs = self.state.tabs();
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
        let _: Value = self.cdp.call(None, "Target.closeTarget", params, INTERNAL_TIMEOUT).await?;
        let closed = tab.wait_for(|state| state.closed.then_some(()));
        tokio::time::timeout(CLOSE_TIMEOUT, closed)
            .await
            .map_err(|_| ApiError::new(ErrorCode::Timeout, format!("tab {id} did not close in time")))
    }

    pub(crate) async fn activate_tab(&self, id: &str) -> Result<(), ApiError> {
        let tab = self.tab(Some(id))?;
        let params = json!({ "targetId": tab.target });
        let _: Value = self.cdp.call(None, "Target.activateTarget", params, INTERNAL_TIMEOUT).await?;
        self.state.tabs().active = Some(tab.target.clone());
        Ok(())
    }

    /// How many tabs are open.
    pub(crate) fn tab_count(&self) -> usize {
        self.state.tabs().open.len()
    }

    /// All open tabs. Queries their titles, because Chromium sends no event when a page changes its title later.
    pub(crate) async fn tab_infos(&self) -> Result<Vec<TabInfo>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Targets {
            target_infos: Vec<TargetInfo>,
        }
        let known: Targets = self.cdp.call(None, "Target.getTargets", json!({}), INTERNAL_TIMEOUT).await?;
        for info in known.target_infos {
            if let Some(tab) = self.state.tab_by_target(&info.target_id) {
                let mut state = tab.state();
                (state.url, state.title) = (info.url, info.title);
            }
        }
        let active = self.tab(None).ok().map(|tab| tab.target.clone());
        let tabs = self.state.tabs().open.clone();
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
        self.state.downloads.lock().expect("no panic while held").iter().cloned().collect()
    }

    fn download(&self, guid: &str) -> Result<Download, ApiError> {
        let found = self.downloads().into_iter().find(|download| download.guid == guid);
        found.ok_or_else(|| {
            let short: String = guid.chars().take(40).collect();
            ApiError::new(ErrorCode::NoSuchDownload, format!("no download {short:?}"))
        })
    }

    /// Opens the file of a finished download.
    pub(crate) async fn download_file(&self, guid: &str, delete: bool) -> Result<OutgoingFile, ApiError> {
        let download = self.download(guid)?;
        let error = |code, message: &str| Err(ApiError::new(code, format!("{}: {message}", download.guid)));
        match download.state.as_str() {
            _ if download.removed => error(ErrorCode::NoSuchDownload, "the file was removed"),
            "completed" => {
                let path = self.state.downloads_folder.join(&download.guid);
                if delete {
                    self.mark_removed(&download.guid);
                }
                OutgoingFile::open(path, &download.suggested_filename, delete).await
            }
            "canceled" => error(ErrorCode::DownloadFailed, "it was cancelled or failed"),
            _ => error(ErrorCode::DownloadNotComplete, "it is still running"),
        }
    }

    /// Removes the file of a download, and cancels a running one.
    pub(crate) async fn delete_download(&self, guid: &str) -> Result<(), ApiError> {
        let download = self.download(guid)?;
        if download.state == "in_progress" {
            self.state.cancel_download(&download.guid);
            return Ok(());
        }
        self.mark_removed(&download.guid);
        match tokio::fs::remove_file(self.state.downloads_folder.join(&download.guid)).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ApiError::new(ErrorCode::StorageFailed, format!("cannot remove the file: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn mark_removed(&self, guid: &str) {
        let mut downloads = self.state.downloads.lock().expect("no panic while held");
        if let Some(download) = downloads.iter_mut().find(|download| download.guid == guid) {
            download.removed = true;
        }
    }

    /// The download that the tab started last, as soon as Chromium has reported one after the first `known` ones.
    pub(crate) async fn started_download(
        &self,
        tab: &str,
        known: &[String],
        until: Instant,
    ) -> Option<String> {
        let mut changes = self.state.tabs_changed.subscribe();
        let started = async {
            loop {
                changes.mark_unchanged();
                let new =
                    self.downloads().into_iter().rev().find(|download| {
                        download.tab.as_deref() == Some(tab) && !known.contains(&download.guid)
                    });
                if let Some(download) = new {
                    return download.guid;
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout_at(until, started).await.ok()
    }

    /// Whether another tab may be opened, with those that raw clients are just opening.
    pub(crate) fn tab_limit_reached(&self) -> Option<usize> {
        let open = self.state.tabs().open.len() + self.state.creating.load(Ordering::Relaxed);
        (open >= self.state.max_tabs).then_some(self.state.max_tabs)
    }

    /// The last dialogs that browserd answered.
    pub(crate) fn dialogs(&self) -> Vec<RecentDialog> {
        self.state.dialogs.lock().expect("no panic while held").iter().cloned().collect()
    }

    pub(crate) fn relays(&self) -> MutexGuard<'_, Relays> {
        self.state.relays()
    }
}
