//! What browserd answers.

use super::{Cookie, ImageFormat};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether browserd and its browser are well.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `starting`, `ready`, `restarting`, `failed` (given up) or `stopping`.
    pub status: String,
    /// Chromium's process id while it runs.
    pub browser_pid: Option<u32>,
    /// How often it was started again after a crash.
    pub restarts: u32,
    /// How it last ended, if it did.
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

/// Who answers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    /// browserd's version.
    pub browserd: String,
    /// Chromium's product and version.
    pub browser: String,
    /// The CDP version.
    pub protocol: String,
    /// The User-Agent the browser sends.
    pub user_agent: String,
    /// Whether `evaluate` is allowed.
    pub evaluate: bool,
    /// Whether raw CDP is allowed.
    pub raw_cdp: bool,
}

/// An open tab.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TabInfo {
    /// For example `t1`.
    pub tab: String,
    /// Its URL.
    pub url: String,
    /// Its title.
    pub title: String,
    /// Whether calls that name no tab mean this one.
    pub active: bool,
    /// The tab whose page opened it.
    pub opener: Option<String>,
    /// Its renderer crashed; navigate it again or close it.
    pub crashed: bool,
    /// Dialogs its pages opened.
    pub dialogs: u64,
    /// The last one.
    pub last_dialog: Option<DialogInfo>,
    /// Chromium's id of the target, as raw CDP shows it.
    pub target_id: String,
}

/// A dialog that was answered.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DialogInfo {
    /// `alert`, `confirm`, `prompt` or `beforeunload`.
    pub kind: String,
    /// Its text, cut after 1000 characters.
    pub message: String,
    /// Whether it was accepted.
    pub accepted: bool,
}

/// All open tabs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Tabs {
    /// In the order of their opening.
    pub tabs: Vec<TabInfo>,
}

/// A tab was closed, activated or changed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// Always true.
    pub success: bool,
}

/// A page was loaded.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Navigated {
    /// Always true.
    pub success: bool,
    /// HTTP status of the document; absent where there is none (about:, a download).
    pub status: Option<u16>,
    /// The URL after redirects.
    pub final_url: String,
    /// The document's title.
    pub title: String,
    /// The tab.
    pub tab: String,
    /// The URL was a download: see `downloads`.
    pub download: bool,
    /// The picture asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// A picture.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Picture {
    /// The file's bytes.
    pub image_base64: String,
    /// Its format.
    pub format: ImageFormat,
    /// In pixels of the picture.
    pub width: u32,
    /// In pixels of the picture.
    pub height: u32,
    /// Milliseconds since 1970.
    pub captured_at: u64,
}

/// An action was done.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Acted {
    /// Always true.
    pub success: bool,
    /// Where in the viewport it happened, for actions with a place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// The picture asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// A place in CSS pixels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

/// The page was scrolled.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Scrolled {
    /// Always true.
    pub success: bool,
    /// Where the page's top left corner of the viewport is now.
    pub position: Point,
    /// The picture asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// The page as HTML.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Dom {
    /// HTML.
    pub html: String,
    /// Present when the page holds more: so many characters were kept.
    pub truncated_to: Option<u32>,
}

/// The page's text.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PageText {
    /// Text.
    pub text: String,
    /// Present when the page holds more: so many characters were kept.
    pub truncated_to: Option<u32>,
}

/// The page's links.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PageLinks {
    /// In document order.
    pub links: Vec<Link>,
    /// Present when the page holds more: so many were kept.
    pub truncated_to: Option<u32>,
}

/// One link.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// The absolute URL.
    pub url: String,
    /// What it says.
    pub text: String,
}

/// The page's accessibility tree.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PageSnapshot {
    /// One element a line, indented: `- button "Save" [ref=@e1]`.
    pub snapshot: String,
    /// What each ref is.
    pub refs: BTreeMap<String, RefInfo>,
    /// Present when the page holds more: so many characters were kept.
    pub truncated_to: Option<u32>,
}

/// An element that can be acted on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefInfo {
    /// Its role.
    pub role: String,
    /// Its accessible name.
    pub name: String,
}

/// What the expression gave.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Evaluated {
    /// Always true.
    pub success: bool,
    /// The value as JSON; null also for undefined and for what JSON cannot hold.
    pub value: serde_json::Value,
    /// JavaScript's `typeof`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The picture asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_screenshot: Option<Picture>,
}

/// A printed page.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PdfFile {
    /// The file's bytes.
    pub pdf_base64: String,
}

/// All cookies of the browser.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct Cookies {
    /// In storageState's shape.
    pub cookies: Vec<Cookie>,
}

/// Cookies were set.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CookiesSet {
    /// Always true.
    pub success: bool,
    /// How many the browser holds now.
    pub set: usize,
    /// Those it did not keep (expired ones, for example), by their place in the request.
    pub not_kept: Vec<usize>,
}

/// All downloads.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Downloads {
    /// In the order of their start; the last 100.
    pub downloads: Vec<Download>,
}

/// One download.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Download {
    /// Chromium's id, also the file's name in the clone's downloads folder.
    pub guid: String,
    /// Where it came from.
    pub url: String,
    /// The name the site gave.
    pub suggested_filename: String,
    /// `in_progress`, `completed` or `canceled`.
    pub state: String,
    /// Bytes so far.
    pub received_bytes: u64,
    /// Bytes in all; 0 while unknown.
    pub total_bytes: u64,
}
