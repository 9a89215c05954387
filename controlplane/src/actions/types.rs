//! Parameters and results that are not browserd's own.

use crate::sessions::SessionView;
use browserd::api::types::{
    Button, ClientFile, History, ImageFormat, Modifier, Mouse, MouseAction, Navigate, ReadDom, SetValue,
    Type, Upload, WaitUntil,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// No parameters.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Which sessions to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ListSessions {
    /// Also sessions that have ended.
    pub all: bool,
    /// Maximum number of sessions (default 100, at most 1000).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// Only sessions older than this one: the last of an earlier answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<crate::ids::SessionId>,
}

/// Sessions, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionList {
    /// The sessions.
    pub sessions: Vec<SessionView>,
}

/// A session that has ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ClosedSession {
    /// When it ended (RFC 3339).
    pub closed_at: String,
    /// Why it ended; `requested` unless something else was first.
    pub close_reason: String,
}

/// A screenshot.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ScreenshotResult {
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
    /// The file on the control plane's disk, if the session is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persisted_path: Option<String>,
}

/// Declares the parameters of verbs on a tab, and the request of browserd that each of them is.
macro_rules! on_a_tab {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? } => |$it:ident| $request:ident $body:tt)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
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

        impl From<$name> for $request {
            #[allow(clippy::needless_update, reason = "a request may have no other field")]
            fn from($it: $name) -> $request {
                let (tab, timeout_ms, after_screenshot) = ($it.tab.clone(), $it.timeout_ms, $it.after_screenshot);
                on_a_tab!(@body $request, tab, timeout_ms, after_screenshot, $body)
            }
        }
    )*};
    (@body $request:ident, $tab:ident, $timeout:ident, $after:ident, { $($field:ident: $value:expr),* $(,)? }) => {
        $request { $($field: $value,)* tab: $tab, timeout_ms: $timeout, after_screenshot: $after, ..Default::default() }
    };
}

on_a_tab! {
    /// Go back in the tab's history.
    Back {
        /// The state of loading at which the call returns.
        wait_until: WaitUntil,
    } => |it| Navigate { history: Some(History::Back), wait_until: it.wait_until }

    /// Go forward in the tab's history.
    Forward {
        /// The state of loading at which the call returns.
        wait_until: WaitUntil,
    } => |it| Navigate { history: Some(History::Forward), wait_until: it.wait_until }

    /// Load the page again.
    Reload {
        /// The state of loading at which the call returns.
        wait_until: WaitUntil,
    } => |it| Navigate { history: Some(History::Reload), wait_until: it.wait_until }

    /// Replace the text of a field. Give a selector or a ref.
    Fill {
        /// The text.
        text: String,
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// Press Enter afterwards.
        submit: bool,
    } => |it| Type {
        text: it.text, selector: it.selector, reference: it.reference, clear: true, submit: it.submit,
    }

    /// Choose options of a select. Give a selector or a ref.
    Select {
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The options, each by its value or its label. An empty list deselects all of a multiple select.
        values: Vec<String>,
    } => |it| SetValue { selector: it.selector, reference: it.reference, values: Some(it.values) }

    /// Move the mouse to a point or an element.
    MouseMove {
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
    } => |it| Mouse {
        action: MouseAction::Move, x: it.x, y: it.y, selector: it.selector, reference: it.reference, modifiers: it.modifiers,
    }

    /// Press a mouse button, where the pointer is or at a point. It stays down until `mouse_up`.
    MouseDown {
        /// CSS pixels from the left of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        x: Option<f64>,
        /// CSS pixels from the top of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        y: Option<f64>,
        /// The mouse button.
        button: Button,
        /// Number of the click in a series; 2 for the second one of a double click.
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u8>,
        /// Keys that are held meanwhile.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        modifiers: Vec<Modifier>,
    } => |it| Mouse {
        action: MouseAction::Down, x: it.x, y: it.y, button: it.button, count: it.count, modifiers: it.modifiers,
    }

    /// Release a mouse button, where the pointer is or at a point.
    MouseUp {
        /// CSS pixels from the left of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        x: Option<f64>,
        /// CSS pixels from the top of the viewport.
        #[serde(skip_serializing_if = "Option::is_none")]
        y: Option<f64>,
        /// The mouse button.
        button: Button,
        /// Number of the click in a series; 2 for the second one of a double click.
        #[serde(skip_serializing_if = "Option::is_none")]
        count: Option<u8>,
        /// Keys that are held meanwhile.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        modifiers: Vec<Modifier>,
    } => |it| Mouse {
        action: MouseAction::Up, x: it.x, y: it.y, button: it.button, count: it.count, modifiers: it.modifiers,
    }

    /// Give files to a file input, or to the file chooser that an element opens. Give a selector or a ref.
    UploadFiles {
        /// CSS selector; open shadow roots and same-origin frames are searched too.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A ref from `snapshot` or `find`, for example `@e1`.
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// Files with their contents.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        files: Vec<NewFile>,
        /// Files that were put into the session before, by the id that `POST …/files` returned.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        file_ids: Vec<String>,
    } => |it| Upload { selector: it.selector, reference: it.reference, files: it.file_ids }

    /// Read the page as HTML, including open shadow roots and same-origin frames.
    Html {
        /// Only this element.
        #[serde(skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// Maximum number of characters (default 100000).
        #[serde(skip_serializing_if = "Option::is_none")]
        max_chars: Option<u32>,
    } => |it| ReadDom { selector: it.selector, max_chars: it.max_chars }
}

/// A file with its content.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewFile {
    /// Its name, which the page sees; without folders.
    pub name: String,
    /// Its content.
    pub content_base64: String,
}

/// A tab.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OneTab {
    /// The tab, for example `t1`.
    pub tab: String,
}

/// A download.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetDownload {
    /// The download's id from `downloads`.
    pub guid: String,
    /// Remove the file from the session when all of it was read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete: bool,
}

/// A file that a page downloaded.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct DownloadedFile {
    /// The download's id.
    pub guid: String,
    /// The file name that the site suggested.
    pub name: String,
    /// The media type.
    pub mime_type: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its content.
    pub content_base64: String,
}

/// A download.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OneDownload {
    /// The download's id from `downloads`.
    pub guid: String,
}

/// A file that was put into the session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OneFile {
    /// Its id from `files`.
    pub file: String,
}

/// Put a file into the session, for `upload` and for file inputs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutFile {
    /// Its name, which pages see; without folders.
    pub name: String,
    /// Its content. `POST …/files?name=NAME` takes the bytes themselves.
    pub content_base64: String,
}

/// A file that was put into the session.
pub type FileInSession = ClientFile;
