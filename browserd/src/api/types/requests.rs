//! Request types.

use super::{Cookie, Point};
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
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The mouse button.
        button: Button,
        /// Number of clicks; 2 for a double click.
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u8>,
        /// Keys that are held meanwhile.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        modifiers: Vec<Modifier>,
    }

    /// Move the pointer over a point, or over the centre of an element. Give x and y, or a selector, or a ref.
    Hover {
        /// CSS pixels from the left of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        x: Option<f64>,
        /// CSS pixels from the top of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        y: Option<f64>,
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// Keys that are held meanwhile.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        modifiers: Vec<Modifier>,
    }

    /// Drag with the mouse: press at `from`, move along `path` to `to`, release. Also drags elements that are `draggable`.
    Drag {
        /// Where the drag starts.
        from: Place,
        /// Where it ends.
        to: Place,
        /// Points in between, in order.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        path: Vec<Point>,
        /// The mouse button.
        button: Button,
        /// Keys that are held meanwhile.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        modifiers: Vec<Modifier>,
    }

    /// One step of the mouse. `down` and `up` without a position happen where the pointer is. A button stays down until `up`.
    Mouse {
        /// What to do.
        action: MouseAction,
        /// CSS pixels from the left of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        x: Option<f64>,
        /// CSS pixels from the top of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        y: Option<f64>,
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The mouse button of `down` and `up`.
        button: Button,
        /// Number of the click in a series; 2 for the second one of a double click.
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u8>,
        /// Keys that are held meanwhile.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        modifiers: Vec<Modifier>,
    }

    /// Set the value of a form control: the chosen options of a select, the state of a checkbox or radio button, or the value
    /// of an input or textarea, also of kinds into which nobody types (date, colour, range). Give `value`, `values` or
    /// `checked`.
    SetValue {
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The value. For a select, the value or the label of an option.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<String>,
        /// The options of a select, each by its value or its label. An empty list deselects all of a multiple select.
        #[serde(skip_serializing_if = "Option::is_none")]
        values: Option<Vec<String>>,
        /// The state of a checkbox or radio button.
        #[serde(skip_serializing_if = "Option::is_none")]
        checked: Option<bool>,
    }

    /// Type text into the focused element, or into the element of the selector or ref.
    Type {
        /// The text.
        text: String,
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// Replace the present text.
        clear: bool,
        /// Press Enter afterwards.
        submit: bool,
        /// Send key events for every character instead of inserting the text at once.
        keys: bool,
    }

    /// Give files to a file input. Another element is clicked, and the file chooser that it opens gets the files.
    Upload {
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The files, by the path or the id that `put_file` returned. An empty list removes the chosen files.
        files: Vec<String>,
    }

    /// Press a key or a key combination.
    Press {
        /// The key, for example `Enter`, `ArrowDown`, `a`, `Control+A`, `Shift+Tab`.
        key: String,
        /// How often to press it, 1 to 1000 (default 1).
        #[serde(skip_serializing_if = "Option::is_none")]
        repeat: Option<u32>,
        /// How long to hold it in milliseconds, at most 60000. The key repeats as on a keyboard.
        #[serde(skip_serializing_if = "Option::is_none")]
        hold_ms: Option<u32>,
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
        /// A ref from `snapshot` or `find`, instead of the selector.
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

    /// Read the accessibility tree, with refs for actions. An element keeps its ref as long as its document exists.
    Snapshot {
        /// Only interactive elements.
        interactive_only: bool,
        /// Only this element and what is below it.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// Maximum number of levels; deeper parts are marked with `[more]`.
        #[serde(skip_serializing_if = "Option::is_none")]
        depth: Option<u32>,
        /// Maximum number of characters (default 100000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
    }

    /// Find elements by what a person sees. All given conditions must match. Elements in cross-site frames are found too.
    Find {
        /// Text that the element's accessible name or value contains, in any case.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The element's role, for example `button`, `link`, `textbox`, `heading`.
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// Text that the placeholder contains, in any case.
        #[serde(skip_serializing_if = "Option::is_none")]
        placeholder: Option<String>,
        /// The texts must be equal, also in case.
        exact: bool,
        /// Maximum number of elements (default 20, at most 200).
        #[serde(skip_serializing_if = "Option::is_none")]
        max: Option<u32>,
    }

    /// Wait until all given conditions hold at the same time.
    WaitFor {
        /// A visible element matches this CSS selector.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// The element of this ref is visible.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The page's visible text contains this.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The tab's URL contains this, or matches all of it if it contains `*`, which stands for any characters.
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        /// The document has reached this state of loading.
        #[serde(skip_serializing_if = "Option::is_none")]
        load: Option<WaitUntil>,
        /// Wait until the element or the text is not visible any more. The other conditions are not reversed.
        gone: bool,
    }

    /// Read the tab's address, title and whether it is loading.
    Url {}

    /// Read the messages of the tab's console and its uncaught exceptions. browserd records them from the tab's first call on.
    Console {
        /// Only entries after this sequence number (`last` of an earlier answer).
        #[serde(skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
        /// Only messages of at least this level.
        #[serde(skip_serializing_if = "Option::is_none")]
        level: Option<ConsoleLevel>,
        /// Maximum number of messages; the latest are returned (default 100).
        #[serde(skip_serializing_if = "Option::is_none")]
        max: Option<u32>,
    }

    /// Read the tab's network requests, without headers and bodies. browserd records them from the tab's first call on.
    Network {
        /// Only entries that changed after this sequence number (`last` of an earlier answer).
        #[serde(skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
        /// Only requests whose URL contains this.
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        /// Only requests that failed or were answered with a status of 400 or above.
        failed_only: bool,
        /// Maximum number of requests; the latest are returned (default 100).
        #[serde(skip_serializing_if = "Option::is_none")]
        max: Option<u32>,
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

/// Read what happened in the browser: tabs, downloads, dialogs, starts of the browser.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Only events after this sequence number (`last` of an earlier answer).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Maximum number of events; the earliest are returned (default 100, at most 500).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// If there is none yet, wait for one, at most so many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
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

/// Keys that change the meaning of a click.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Modifier {
    Alt,
    Control,
    Meta,
    Shift,
}

/// What the mouse does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum MouseAction {
    #[default]
    Move,
    Down,
    Up,
}

/// Levels of console messages, from the least to the most important.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum ConsoleLevel {
    Debug,
    Info,
    Warning,
    Error,
}

/// A place in the page. Give x and y, or a selector, or a ref.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Place {
    /// CSS pixels from the left of the viewport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<f64>,
    /// CSS pixels from the top of the viewport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y: Option<f64>,
    /// CSS selector; open shadow roots and same-origin frames are searched too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// A ref from `snapshot` or `find`, for example `@e1`.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
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
