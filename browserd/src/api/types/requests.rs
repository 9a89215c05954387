//! What callers send.

use super::Cookie;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
