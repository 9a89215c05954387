//! Response types.

use super::{ConsoleLevel, Cookie, ImageFormat};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of browserd and its browser.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `starting`, `ready`, `restarting`, `failed` (no longer restarted) or `stopping`.
    pub status: String,
    /// Chromium's process id while it runs.
    pub browser_pid: Option<u32>,
    /// How often Chromium was restarted after a crash.
    pub restarts: u32,
    /// How Chromium last ended, if it did.
    pub last_exit: Option<String>,
    /// Renderer processes that crashed since browserd started.
    pub renderer_crashes: u64,
    /// Open tabs.
    pub tabs: usize,
    /// Calls running now.
    pub calls: usize,
    /// Connected raw CDP clients.
    pub raw_clients: usize,
    /// Number of the browser's profile, from 1. Each start of Chromium has a new, empty profile, so a higher number means that
    /// the tabs, cookies, downloads and files of before are gone.
    #[serde(default)]
    pub browser_generation: u64,
}

/// Versions and enabled features.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    /// browserd's version.
    pub browserd: String,
    /// Chromium's product and version.
    pub browser: String,
    /// The CDP version.
    pub protocol: String,
    /// The browser's User-Agent.
    pub user_agent: String,
    /// Whether `evaluate` is enabled.
    pub evaluate: bool,
    /// Whether raw CDP is enabled.
    pub raw_cdp: bool,
}

/// An open tab.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TabInfo {
    /// The tab's id, for example `t1`.
    pub tab: String,
    /// Its URL.
    pub url: String,
    /// Its title.
    pub title: String,
    /// Whether this is the default for calls that name no tab.
    pub active: bool,
    /// The tab that opened it.
    pub opener: Option<String>,
    /// Whether its renderer crashed. Navigate the tab again or close it.
    pub crashed: bool,
    /// Number of dialogs its pages opened.
    pub dialogs: u64,
    /// The last dialog.
    pub last_dialog: Option<DialogInfo>,
    /// The target id in raw CDP.
    pub target_id: String,
}

/// A dialog that was answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DialogInfo {
    /// `alert`, `confirm`, `prompt` or `beforeunload`.
    pub kind: String,
    /// Its text, truncated to 1000 characters.
    pub message: String,
    /// Whether it was accepted.
    pub accepted: bool,
}

/// All open tabs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Tabs {
    /// The tabs, in the order they were opened.
    pub tabs: Vec<TabInfo>,
    /// Number of the browser's profile, see `health`.
    #[serde(default)]
    pub browser_generation: u64,
}

/// The call succeeded.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// Always true.
    pub success: bool,
}

/// The result of a navigation.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Navigated {
    /// Always true.
    pub success: bool,
    /// HTTP status of the document; absent if there is none (about:, a download).
    pub status: Option<u16>,
    /// The URL after redirects.
    pub final_url: String,
    /// The document's title.
    pub title: String,
    /// The tab's id.
    pub tab: String,
    /// Whether the URL was a download; see `downloads`.
    pub download: bool,
    /// The download's id, if Chromium reported it in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_guid: Option<String>,
    /// The requested screenshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// A screenshot.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Picture {
    /// The file's bytes.
    pub image_base64: String,
    /// The file format.
    pub format: ImageFormat,
    /// Width in image pixels.
    pub width: u32,
    /// Height in image pixels.
    pub height: u32,
    /// Milliseconds since 1970.
    pub captured_at: u64,
}

/// The result of an action.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Acted {
    /// Always true.
    pub success: bool,
    /// The position in the viewport, for actions that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// The requested screenshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// A position in CSS pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

/// The result of scrolling.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Scrolled {
    /// Always true.
    pub success: bool,
    /// The scroll position: the viewport's top left corner on the page.
    pub position: Point,
    /// The requested screenshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// The page as HTML.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Dom {
    /// The HTML.
    pub html: String,
    /// Present if the result is truncated: the number of characters returned.
    pub truncated_to: Option<u32>,
}

/// The page's text.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PageText {
    /// The text.
    pub text: String,
    /// Present if the result is truncated: the number of characters returned.
    pub truncated_to: Option<u32>,
}

/// The page's links.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PageLinks {
    /// The links, in document order.
    pub links: Vec<Link>,
    /// Present if the list is truncated: the number of links returned.
    pub truncated_to: Option<u32>,
}

/// One link.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// The absolute URL.
    pub url: String,
    /// Its text.
    pub text: String,
}

/// The page's accessibility tree.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PageSnapshot {
    /// One element per line, indented: `- button "Save" [ref=@e1]`.
    pub snapshot: String,
    /// The elements by ref.
    pub refs: BTreeMap<String, RefInfo>,
    /// Present if the result is truncated: the number of characters returned.
    pub truncated_to: Option<u32>,
}

/// The elements that `find` found.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// The elements, in the order of the page.
    pub elements: Vec<FoundElement>,
    /// Present if the list is truncated: the number of elements returned.
    pub truncated_to: Option<u32>,
}

/// An element that `find` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundElement {
    /// Its ref for actions.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Its role.
    pub role: String,
    /// Its accessible name, or its text.
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// The state of a form control after `set_value`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ValueSet {
    /// Always true.
    pub success: bool,
    /// The control's value.
    pub value: String,
    /// The values of the chosen options of a select.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
    /// The state of a checkbox or radio button.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<bool>,
    /// The requested screenshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// The conditions of `wait_for` hold.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Waited {
    /// Always true.
    pub success: bool,
    /// The tab's URL.
    pub url: String,
    /// How long the call waited.
    pub waited_ms: u64,
    /// The requested screenshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// Where a tab is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PageUrl {
    /// The tab's id.
    pub tab: String,
    /// The URL after redirects.
    pub url: String,
    /// The document's title.
    pub title: String,
    /// Whether a document is being loaded.
    pub loading: bool,
}

/// The messages of a tab's console.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ConsoleLog {
    /// The messages, the earliest first.
    pub messages: Vec<ConsoleMessage>,
    /// The sequence number of the tab's last message; `since` of the next call.
    pub last: u64,
    /// Messages after `since` that are not kept any more.
    pub missed: u64,
}

/// One message of the console, or an uncaught exception.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConsoleMessage {
    /// Its sequence number in the tab.
    pub seq: u64,
    /// Its level.
    pub level: ConsoleLevel,
    /// `console` (the page's script), `exception` (an uncaught one), or Chromium's source, for example `network`, `security`.
    pub source: String,
    /// Its text, truncated to 2000 characters.
    pub text: String,
    /// The script or document that caused it, truncated to 1000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The line in it, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Milliseconds since 1970.
    pub at: u64,
}

/// A tab's network requests.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct NetworkLog {
    /// The requests, in the order of their last changes.
    pub requests: Vec<NetworkRequest>,
    /// The sequence number of the tab's last change; `since` of the next call.
    pub last: u64,
    /// Requests that are not kept any more.
    pub missed: u64,
}

/// One network request. Headers and bodies are never recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkRequest {
    /// The sequence number of its last change: its start, its response, its end.
    pub seq: u64,
    /// The HTTP method.
    pub method: String,
    /// The URL without user and password, truncated to 1000 characters.
    pub url: String,
    /// What it is for: `Document`, `Script`, `Image`, `Fetch`, `XHR`, `WebSocket`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Its state.
    pub state: NetworkState,
    /// The HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The media type of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Bytes received over the network, with headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Whether the response came from a cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_cache: bool,
    /// Milliseconds since 1970.
    pub started_at: u64,
    /// From the start to the end, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// Why it failed, for example `net::ERR_NAME_NOT_RESOLVED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The state of a network request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum NetworkState {
    Pending,
    /// Answered with a redirect; the next request is an entry of its own.
    Redirected,
    Finished,
    Failed,
}

/// What happened in the browser.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct EventList {
    /// The events, the earliest first.
    pub events: Vec<BrowserEvent>,
    /// The sequence number of the last event returned, or `since`; `since` of the next call.
    pub last: u64,
    /// Events after `since` that are not kept any more.
    pub missed: u64,
    /// Number of the browser's profile, see `health`.
    pub browser_generation: u64,
}

/// One event. Fields that its kind does not have are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BrowserEvent {
    /// Its sequence number. The numbers continue when the browser is restarted.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub at: u64,
    /// What happened.
    pub kind: EventKind,
    /// The tab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tab: Option<String>,
    /// The tab that opened it, of `tab_opened`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opener: Option<String>,
    /// The URL, truncated to 1000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The download's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guid: Option<String>,
    /// The file name that the site suggested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggested_filename: Option<String>,
    /// The size of the download.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The dialog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialog: Option<DialogInfo>,
    /// How the browser ended, of `browser_ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The browser is ready, with an empty profile.
    BrowserReady,
    /// The browser ended unexpectedly.
    BrowserEnded,
    /// A tab was opened, by a call, a page or a raw client.
    TabOpened,
    /// A tab was closed because `--max-tabs` are open.
    TabRefused,
    /// A tab has another document, or moved within its document.
    TabNavigated,
    /// A tab's renderer crashed.
    TabCrashed,
    /// A tab was closed.
    TabClosed,
    /// A download started.
    DownloadStarted,
    /// A download is complete.
    DownloadCompleted,
    /// A download was cancelled or failed.
    DownloadCanceled,
    /// A dialog was answered.
    Dialog,
}

/// The dialogs of all tabs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RecentDialogs {
    /// The last 100 dialogs that browserd answered, the earliest first.
    pub dialogs: Vec<RecentDialog>,
}

/// A dialog that browserd answered.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RecentDialog {
    /// The tab.
    pub tab: String,
    /// Milliseconds since 1970.
    pub at: u64,
    /// The dialog.
    #[serde(flatten)]
    pub dialog: DialogInfo,
}

/// An interactive element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefInfo {
    /// Its role.
    pub role: String,
    /// Its accessible name.
    pub name: String,
}

/// The result of an expression.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Evaluated {
    /// Always true.
    pub success: bool,
    /// The value as JSON; null for undefined and for values that JSON cannot represent.
    pub value: serde_json::Value,
    /// JavaScript's `typeof`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The requested screenshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// A page as PDF.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PdfFile {
    /// The file's bytes.
    pub pdf_base64: String,
}

/// All cookies of the browser.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct Cookies {
    /// The cookies, in the format of Playwright's storageState.
    pub cookies: Vec<Cookie>,
}

/// The result of setting cookies.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CookiesSet {
    /// Always true.
    pub success: bool,
    /// How many of the cookies the browser accepted.
    pub set: usize,
    /// The cookies it did not keep, for example expired ones, by their index in the request.
    pub not_kept: Vec<usize>,
}

/// All downloads.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Downloads {
    /// The last 100 downloads, in the order they started.
    pub downloads: Vec<Download>,
}

/// One download.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Download {
    /// Chromium's id. `GET /v1/downloads/{guid}` returns the file.
    pub guid: String,
    /// The tab that started it, if that is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tab: Option<String>,
    /// The source URL.
    pub url: String,
    /// The file name that the site suggested.
    pub suggested_filename: String,
    /// `in_progress`, `completed` or `canceled`.
    pub state: String,
    /// The media type, which follows from the name's ending.
    #[serde(default)]
    pub mime_type: String,
    /// Whether the file was removed, by a caller or because it was fetched with `delete=true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// Bytes received so far.
    pub received_bytes: u64,
    /// Total bytes; 0 while unknown.
    pub total_bytes: u64,
}

/// The files that callers put into the clone. They stay when the browser is restarted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ClientFiles {
    /// The files, in the order they arrived.
    pub files: Vec<ClientFile>,
    /// The sizes of all files together.
    pub bytes: u64,
    /// The limit of `bytes`.
    pub max_bytes: u64,
}

/// A file that a caller put into the clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientFile {
    /// Its id.
    pub file: String,
    /// Its name, which pages see.
    pub name: String,
    /// Its path in the clone, for `upload`, for CDP's `DOM.setFileInputFiles` and for clients that pass a path to it.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
}
