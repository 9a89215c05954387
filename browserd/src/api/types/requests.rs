//! Request types.

use super::Cookie;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The fields that every action on a tab has.
pub trait Action {
    /// The tab; `None` means the active one.
    fn tab(&self) -> Option<&str>;
    /// The requested deadline.
    fn timeout_ms(&self) -> Option<u64>;
    /// Whether to take a screenshot afterwards.
    fn after_screenshot(&self) -> bool;
}

/// Declares the request types of actions. serde cannot combine shared fields (`flatten`) with the refusal of unknown ones,
/// so this macro adds the shared fields to each type.
macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// The tab, for example `t1`; defaults to the active tab.
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
    /// Load a URL, or navigate the tab's history.
    Navigate {
        /// An http, https, about or data URL.
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        /// A step through the history, instead of a URL.
        #[serde(skip_serializing_if = "Option::is_none")]
        history: Option<History>,
        /// The state of loading at which the call returns.
        wait_until: WaitUntil,
        /// The Referer header.
        #[serde(skip_serializing_if = "Option::is_none")]
        referrer: Option<String>,
    }

    /// Take a screenshot of the tab.
    Screenshot {
        /// Capture the whole page instead of the viewport.
        full_page: bool,
        /// The image format.
        format: ImageFormat,
        /// 0 to 100, for JPEG and WebP.
        #[serde(skip_serializing_if = "Option::is_none")]
        quality: Option<u8>,
        /// The part of the page to capture, in CSS pixels from the page's top left corner.
        #[serde(skip_serializing_if = "Option::is_none")]
        clip: Option<Clip>,
    }

    /// Click a point, or the centre of an element. Give x and y, or a selector, or a ref.
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
        /// The mouse button.
        button: Button,
        /// Number of clicks; 2 for a double click.
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u8>,
    }

    /// Type text into the focused element, or into the element of the selector or ref.
    Type {
        /// The text.
        text: String,
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref of the last snapshot, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// Replace the present text.
        clear: bool,
        /// Press Enter afterwards.
        submit: bool,
        /// Send key events for every character instead of inserting the text at once.
        keys: bool,
    }

    /// Press a key or a key combination.
    Press {
        /// The key, for example `Enter`, `ArrowDown`, `a`, `Control+A`, `Shift+Tab`.
        key: String,
    }

    /// Scroll with the mouse wheel, or scroll an element into view.
    Scroll {
        /// Distance to the right in CSS pixels.
        dx: f64,
        /// Distance down in CSS pixels.
        dy: f64,
        /// The pointer's position; defaults to the centre of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        x: Option<f64>,
        /// The pointer's position.
        #[serde(skip_serializing_if = "Option::is_none")]
        y: Option<f64>,
        /// CSS selector of an element to scroll into view; the pointer is placed over it.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref of the last snapshot, instead of the selector.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
    }

    /// Read the page as HTML, including open shadow roots and same-origin frames.
    ReadDom {
        /// Only this element.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// Maximum number of characters (default 100000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
    }

    /// Read the page's visible text.
    Text {
        /// Only this element.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// Maximum number of characters (default 100000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
    }

    /// List the links of the page.
    Links {
        /// Only links inside this element.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// Maximum number of links (default 1000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max: Option<u32>,
    }

    /// Read the accessibility tree, with refs for `click`, `type` and `scroll`.
    Snapshot {
        /// Only interactive elements.
        interactive_only: bool,
        /// Maximum number of characters (default 100000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
    }

    /// Evaluate a JavaScript expression in the page. Promises are awaited.
    Evaluate {
        /// The expression.
        expression: String,
    }

    /// Print the tab to PDF.
    Pdf {
        /// Landscape orientation.
        landscape: bool,
        /// Print background colours and images.
        background: bool,
        /// Paper width in inches (default 8.5).
        #[serde(skip_serializing_if = "Option::is_none")]
        paper_width: Option<f64>,
        /// Paper height in inches (default 11).
        #[serde(skip_serializing_if = "Option::is_none")]
        paper_height: Option<f64>,
    }

    /// Set how the tab's dialogs are answered from now on. By default alert and beforeunload dialogs are accepted,
    /// confirm and prompt dialogs are dismissed.
    Dialogs {
        /// Accept confirm and prompt dialogs.
        accept: bool,
        /// The text to enter in prompt dialogs.
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
    /// The URL to load; defaults to an empty page. The call does not wait until it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Do not activate the new tab.
    pub background: bool,
}

/// Set cookies. The format is Playwright's storageState, or its `cookies` alone.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetCookies {
    /// The cookies.
    pub cookies: Vec<Cookie>,
    /// Must be empty: local storage is not supported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<serde_json::Value>,
}

/// The state of loading to wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WaitUntil {
    /// The response headers arrived and the document is being replaced.
    Commit,
    /// The document is parsed.
    DomContentLoaded,
    /// The document and all its resources are loaded.
    #[default]
    Load,
    /// No network request for half a second.
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

/// Image formats.
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
