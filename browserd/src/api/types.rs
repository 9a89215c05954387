//! Requests and answers of the API. The OpenAPI document is made from these types.

use super::error::{ApiError, ErrorCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest selector, URL and other short text, in bytes.
const MAX_SELECTOR: usize = 4096;
const MAX_URL: usize = 2 << 20;
const MAX_SHORT: usize = 1024;
/// Schemes a caller may navigate to. `file:` would read the clone's files, `chrome:` and `devtools:`
/// pages hold more rights than a web page.
const SCHEMES: [&str; 4] = ["http", "https", "about", "data"];

/// What every request can do: say whether it makes sense, before anything is done.
pub trait Check {
    /// An error that names the field.
    fn check(&self) -> Result<(), ApiError> {
        Ok(())
    }
}

/// What every action on a tab carries.
pub trait Action {
    /// The tab; the active one when `None`.
    fn tab(&self) -> Option<&str>;
    /// The wanted deadline.
    fn timeout_ms(&self) -> Option<u64>;
    /// Whether a screenshot is wanted afterwards.
    fn after_screenshot(&self) -> bool;
}

/// Declares request types of actions: serde cannot both share fields (`flatten`) and refuse unknown
/// ones, so the shared fields are written here once.
macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// The tab, for example `t1`; the active tab when left out.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub tab: Option<String>,
            /// Deadline of the call in milliseconds.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub timeout_ms: Option<u64>,
            /// Return a screenshot of the viewport taken after the action.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pub after_screenshot: bool,
        }
        impl Action for $name {
            fn tab(&self) -> Option<&str> { self.tab.as_deref() }
            fn timeout_ms(&self) -> Option<u64> { self.timeout_ms }
            fn after_screenshot(&self) -> bool { self.after_screenshot }
        }
    )*};
}

actions! {
    /// Load a URL, or go through the tab's history.
    Navigate {
        /// An http, https, about or data URL.
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        /// Instead of a URL.
        #[serde(skip_serializing_if = "Option::is_none")]
        history: Option<History>,
        /// When the call returns.
        wait_until: WaitUntil,
        /// The Referer to send.
        #[serde(skip_serializing_if = "Option::is_none")]
        referrer: Option<String>,
    }

    /// Take a picture of the tab.
    Screenshot {
        /// The whole page instead of the viewport.
        full_page: bool,
        /// The picture's format.
        format: ImageFormat,
        /// 0 to 100, for JPEG and WebP.
        #[serde(skip_serializing_if = "Option::is_none")]
        quality: Option<u8>,
        /// A part of the page, in CSS pixels from the page's top left corner.
        #[serde(skip_serializing_if = "Option::is_none")]
        clip: Option<Clip>,
    }

    /// Click at a point, or at the middle of an element. Name x and y, or a selector, or a ref.
    Click {
        /// CSS pixels from the left of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        x: Option<f64>,
        /// CSS pixels from the top of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        y: Option<f64>,
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref of the last snapshot, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// Which button.
        button: Button,
        /// 2 for a double click.
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u8>,
    }

    /// Type text into the focused element, or into the one named.
    Type {
        /// The text.
        text: String,
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref of the last snapshot, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// Replace what is there.
        clear: bool,
        /// Press Enter afterwards.
        submit: bool,
        /// Send a key down and up for every character instead of inserting the text at once.
        keys: bool,
    }

    /// Press a key or a combination.
    Press {
        /// For example `Enter`, `ArrowDown`, `a`, `Control+A`, `Shift+Tab`.
        key: String,
    }

    /// Turn the wheel, or bring an element into view.
    Scroll {
        /// CSS pixels to the right.
        dx: f64,
        /// CSS pixels down.
        dy: f64,
        /// Where the wheel turns; the middle of the viewport when left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        x: Option<f64>,
        /// Where the wheel turns.
        #[serde(skip_serializing_if = "Option::is_none")]
        y: Option<f64>,
        /// CSS selector of an element to bring into view and to turn the wheel over.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// The same by a ref of the last snapshot.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
    }

    /// Read the page as HTML, open shadow roots and same-origin frames included.
    ReadDom {
        /// Only this element.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// Cut the answer after so many characters (default 100000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
    }

    /// Read the text a person would see.
    Text {
        /// Only this element.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// Cut the answer after so many characters (default 100000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
    }

    /// List the links of the page.
    Links {
        /// Only below this element.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// At most so many (default 1000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max: Option<u32>,
    }

    /// Read the accessibility tree, with refs for `click`, `type` and `scroll`.
    Snapshot {
        /// Only elements that can be acted on.
        interactive_only: bool,
        /// Cut the answer after so many characters (default 100000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
    }

    /// Evaluate a JavaScript expression in the page; a promise is waited for.
    Evaluate {
        /// The expression.
        expression: String,
    }

    /// Print the tab to PDF.
    Pdf {
        /// Turned by 90 degrees.
        landscape: bool,
        /// With background colours and pictures.
        background: bool,
        /// Paper width in inches (default 8.5).
        #[serde(skip_serializing_if = "Option::is_none")]
        paper_width: Option<f64>,
        /// Paper height in inches (default 11).
        #[serde(skip_serializing_if = "Option::is_none")]
        paper_height: Option<f64>,
    }

    /// How the tab's dialogs are answered from now on. Without this, alerts are accepted, leaving a
    /// page is allowed, and confirm and prompt are dismissed.
    Dialogs {
        /// Accept confirm and prompt dialogs.
        accept: bool,
        /// The answer to prompts.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_text: Option<String>,
    }
}

/// A request without fields.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Open a tab.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewTab {
    /// Loaded at once; an empty page when left out. The call does not wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Leave the active tab as it is.
    pub background: bool,
}

/// Set cookies: Playwright's storageState, or its `cookies` alone.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetCookies {
    /// The cookies.
    pub cookies: Vec<Cookie>,
    /// Accepted only when empty: local storage is not injected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<serde_json::Value>,
}

/// A cookie as in Playwright's storageState.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Cookie {
    /// Its name.
    pub name: String,
    /// Its value; never logged.
    pub value: String,
    /// `example.org` is host-only and stays so, `.example.org` includes every host below.
    pub domain: String,
    /// For example `/`.
    #[serde(default = "root_path")]
    pub path: String,
    /// Seconds since 1970; -1 for a session cookie.
    #[serde(default = "session_cookie")]
    pub expires: f64,
    /// Hidden from scripts.
    #[serde(default)]
    pub http_only: bool,
    /// Sent over TLS only.
    #[serde(default)]
    pub secure: bool,
    /// When it is sent from other sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_site: Option<SameSite>,
    /// The top-level site of a partitioned cookie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    /// Whether that partition is of a page with a cross-site ancestor.
    #[serde(default, rename = "_crHasCrossSiteAncestor", skip_serializing_if = "Option::is_none")]
    pub has_cross_site_ancestor: Option<bool>,
}

fn root_path() -> String {
    "/".into()
}

fn session_cookie() -> f64 {
    -1.0
}

// By hand: a cookie's value must not reach a log by way of `{:?}`.
impl std::fmt::Debug for Cookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cookie({} of {}{})", self.name, self.domain, self.path)
    }
}

impl std::fmt::Debug for SetCookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.cookies).finish()
    }
}

/// When a cookie is sent from other sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum SameSite {
    Strict,
    Lax,
    None,
}

/// Which moment of loading to wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WaitUntil {
    /// The answer's headers are in and the document is being replaced.
    Commit,
    /// The document is parsed.
    DomContentLoaded,
    /// Everything the document names is loaded.
    #[default]
    Load,
    /// No request for half a second.
    NetworkIdle,
}

/// A step through the tab's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum History {
    Back,
    Forward,
    Reload,
}

/// Formats of pictures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum ImageFormat {
    #[default]
    Png,
    Jpeg,
    Webp,
}

/// Mouse buttons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Button {
    #[default]
    Left,
    Middle,
    Right,
}

/// A rectangle in CSS pixels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Clip {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

// ---- answers

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

impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.cookies).finish()
    }
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

// ---- checks

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message)
}

fn check_url(url: &str) -> Result<(), ApiError> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    match scheme {
        _ if url.len() > MAX_URL => Err(bad("url: too long")),
        Some(scheme) if SCHEMES.contains(&scheme.as_str()) => Ok(()),
        Some(scheme) if scheme.len() <= 20 => Err(bad(format!("url: scheme {scheme:?} is not allowed"))),
        _ => Err(bad("url: give a whole URL, for example https://example.org/")),
    }
}

fn check_selector(selector: &Option<String>) -> Result<(), ApiError> {
    match selector {
        Some(text) if text.trim().is_empty() => Err(bad("selector: empty")),
        Some(text) if text.len() > MAX_SELECTOR => Err(bad("selector: too long")),
        _ => Ok(()),
    }
}

/// `@e12` or `e12` → 12.
pub(crate) fn parse_ref(reference: &str) -> Option<u32> {
    let digits = reference.strip_prefix('@').unwrap_or(reference).strip_prefix('e')?;
    if digits.starts_with('+') { None } else { digits.parse().ok() }
}

fn check_ref(reference: &Option<String>) -> Result<(), ApiError> {
    match reference {
        Some(text) if parse_ref(text).is_none() => {
            Err(bad("ref: give it as the snapshot shows it, for example @e1"))
        }
        _ => Ok(()),
    }
}

fn check_number(
    name: &str,
    value: Option<f64>,
    range: std::ops::RangeInclusive<f64>,
) -> Result<(), ApiError> {
    match value {
        Some(value) if !range.contains(&value) => {
            Err(bad(format!("{name}: from {} to {}", range.start(), range.end())))
        }
        _ => Ok(()),
    }
}

/// Coordinates beyond this are a mistake, not a place on a page.
const FAR: std::ops::RangeInclusive<f64> = -1e6..=1e6;

impl Check for Nothing {}

impl Check for NewTab {
    fn check(&self) -> Result<(), ApiError> {
        self.url.as_deref().map_or(Ok(()), check_url)
    }
}

impl Check for Navigate {
    fn check(&self) -> Result<(), ApiError> {
        match (&self.url, &self.history) {
            (Some(url), None) => check_url(url)?,
            (None, Some(_)) => {}
            _ => return Err(bad("give either url or history")),
        }
        self.referrer.as_deref().map_or(Ok(()), check_url)
    }
}

impl Check for Screenshot {
    fn check(&self) -> Result<(), ApiError> {
        if self.full_page && self.clip.is_some() {
            return Err(bad("give either full_page or clip"));
        }
        if self.quality.is_some() && self.format == ImageFormat::Png {
            return Err(bad("quality: only for jpeg and webp"));
        }
        check_number("quality", self.quality.map(f64::from), 0.0..=100.0)?;
        if let Some(clip) = self.clip {
            check_number("clip.x", Some(clip.x), FAR)?;
            check_number("clip.y", Some(clip.y), FAR)?;
            check_number("clip.width", Some(clip.width), 1.0..=1e6)?;
            check_number("clip.height", Some(clip.height), 1.0..=1e6)?;
        }
        Ok(())
    }
}

impl Check for Click {
    fn check(&self) -> Result<(), ApiError> {
        match (self.x, self.y, &self.selector, &self.reference) {
            (Some(_), Some(_), None, None) | (None, None, Some(_), None) | (None, None, None, Some(_)) => {}
            _ => return Err(bad("give x and y, or a selector, or a ref")),
        }
        check_number("x", self.x, FAR)?;
        check_number("y", self.y, FAR)?;
        check_number("count", self.count.map(f64::from), 1.0..=3.0)?;
        check_selector(&self.selector)?;
        check_ref(&self.reference)
    }
}

impl Check for Type {
    fn check(&self) -> Result<(), ApiError> {
        if self.selector.is_some() && self.reference.is_some() {
            return Err(bad("give a selector or a ref, not both"));
        }
        if self.keys && self.text.chars().count() > 10_000 {
            return Err(bad("text: at most 10000 characters with keys"));
        }
        check_selector(&self.selector)?;
        check_ref(&self.reference)
    }
}

impl Check for Press {
    fn check(&self) -> Result<(), ApiError> {
        crate::browser::keys::parse(&self.key).map(drop).map_err(|message| bad(format!("key: {message}")))
    }
}

impl Check for Scroll {
    fn check(&self) -> Result<(), ApiError> {
        let places =
            [self.x.is_some() && self.y.is_some(), self.selector.is_some(), self.reference.is_some()];
        if places.iter().filter(|given| **given).count() > 1 || self.x.is_some() != self.y.is_some() {
            return Err(bad("give x and y, or a selector, or a ref, or none of them"));
        }
        if self.dx == 0.0 && self.dy == 0.0 && self.selector.is_none() && self.reference.is_none() {
            return Err(bad("give dx or dy, or an element to bring into view"));
        }
        for (name, value) in [("dx", Some(self.dx)), ("dy", Some(self.dy)), ("x", self.x), ("y", self.y)] {
            check_number(name, value, FAR)?;
        }
        check_selector(&self.selector)?;
        check_ref(&self.reference)
    }
}

impl Check for ReadDom {
    fn check(&self) -> Result<(), ApiError> {
        check_selector(&self.selector)
    }
}

impl Check for Text {
    fn check(&self) -> Result<(), ApiError> {
        check_selector(&self.selector)
    }
}

impl Check for Links {
    fn check(&self) -> Result<(), ApiError> {
        check_selector(&self.selector)
    }
}

impl Check for Snapshot {}

impl Check for Evaluate {
    fn check(&self) -> Result<(), ApiError> {
        if self.expression.trim().is_empty() { Err(bad("expression: empty")) } else { Ok(()) }
    }
}

impl Check for Pdf {
    fn check(&self) -> Result<(), ApiError> {
        check_number("paper_width", self.paper_width, 1.0..=100.0)?;
        check_number("paper_height", self.paper_height, 1.0..=100.0)
    }
}

impl Check for Dialogs {
    fn check(&self) -> Result<(), ApiError> {
        match &self.prompt_text {
            Some(text) if text.len() > MAX_SHORT => Err(bad("prompt_text: too long")),
            Some(_) if !self.accept => Err(bad("prompt_text: only together with accept")),
            _ => Ok(()),
        }
    }
}

impl Check for SetCookies {
    fn check(&self) -> Result<(), ApiError> {
        if !self.origins.is_empty() {
            return Err(bad("origins: local storage is not injected; send cookies only"));
        }
        for (index, cookie) in self.cookies.iter().enumerate() {
            cookie.check().map_err(|what| {
                ApiError::new(ErrorCode::InvalidCookie, format!("cookies[{index}] {:?}: {what}", cookie.name))
            })?;
        }
        Ok(())
    }
}

impl Cookie {
    /// What Chromium would refuse, said with the field's name. Never contains the value.
    fn check(&self) -> Result<(), &'static str> {
        let host = self.domain.strip_prefix('.').unwrap_or(&self.domain);
        let control = |text: &str| text.chars().any(|c| c.is_control());
        if self.name.is_empty() && self.value.is_empty() {
            Err("name and value are empty")
        } else if self.name.len() + self.value.len() > 4096 {
            Err("name and value together have more than 4096 bytes")
        } else if control(&self.name)
            || control(&self.value)
            || self.name.contains([';', '='])
            || self.value.contains(';')
        {
            Err("name or value holds a character that cookies cannot have")
        } else if host.is_empty()
            || host.len() > 253
            || host.starts_with('.')
            || host.contains(['/', ' ', '@', '\\'])
        {
            Err("domain is not a host name")
        } else if !self.path.starts_with('/') || self.path.len() > MAX_SHORT || control(&self.path) {
            Err("path must start with /")
        } else if !(self.expires == -1.0 || (0.0..=1e11).contains(&self.expires)) {
            Err("expires must be -1 or seconds since 1970")
        } else if self.same_site == Some(SameSite::None) && !self.secure {
            Err("sameSite None needs secure")
        } else if self.name.starts_with("__Secure-") && !self.secure {
            Err("__Secure- needs secure")
        } else if self.name.starts_with("__Host-")
            && (!self.secure || self.path != "/" || self.domain.starts_with('.'))
        {
            Err("__Host- needs secure, path / and a host-only domain")
        } else {
            Ok(())
        }
    }
}
