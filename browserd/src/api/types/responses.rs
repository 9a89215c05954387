//! Response types.

use super::{Cookie, ImageFormat};
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
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Chromium's id, which is also the file name in the clone's downloads folder.
    pub guid: String,
    /// The source URL.
    pub url: String,
    /// The file name that the site suggested.
    pub suggested_filename: String,
    /// `in_progress`, `completed` or `canceled`.
    pub state: String,
    /// Bytes received so far.
    pub received_bytes: u64,
    /// Total bytes; 0 while unknown.
    pub total_bytes: u64,
}
