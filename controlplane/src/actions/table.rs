//! The rows of the table.

use super::parse::{self, Prepared};
use super::types::*;
use super::{Effect, Pictures, Target, Verb};
use crate::access::Scope;
use crate::error::ApiError;
use crate::sessions::{OpenSession, SessionView};
use axum::http::Method;
use browserd::api::types as b;
use schemars::JsonSchema;
use serde_json::{Value, json};

/// A JSON schema in which every picture may say where it was recorded.
fn schema<T: JsonSchema>() -> Value {
    let mut schema = schemars::schema_for!(T).to_value();
    if let Some(picture) = schema.pointer_mut("/$defs/Picture/properties").and_then(Value::as_object_mut) {
        let description = "The file on the control plane's disk, if the session is recorded.";
        picture.insert("persisted_path".into(), json!({"type": "string", "description": description}));
    }
    schema
}

type Prepare = fn(&str) -> Result<Prepared, ApiError>;

/// Declares rows. The path of a verb is `/v1/sessions/{session_id}/VERB` by POST, unless it is given.
macro_rules! rows {
    ($($name:literal $summary:literal, $scope:ident $target:ident $effect:ident $params:ty => $result:ty,
        $prepare:expr $(, at $method:ident $path:literal)? $(, redact $redact:expr)? $(, pictures $pictures:ident)? $(, core $core:literal)?;)*) => {
        vec![$({
            #[allow(unused_mut)]
            let mut row = Verb {
                name: $name,
                summary: $summary,
                method: Method::POST,
                path: concat!("/v1/sessions/{session_id}/", $name),
                scope: Scope::$scope,
                target: Target::$target,
                effect: Effect::$effect,
                core: false,
                redact: &[],
                pictures: Pictures::None,
                params: schema::<$params>,
                result: schema::<$result>,
                prepare: { let prepare: Prepare = $prepare; prepare },
            };
            $((row.method, row.path) = (Method::$method, $path);)?
            $(row.redact = &$redact;)?
            $(row.pictures = Pictures::$pictures;)?
            $(row.core = $core;)?
            row
        },)*]
    };
}

/// A verb that is one call of browserd on a tab.
macro_rules! tab {
    ($path:literal, $type:ty) => {
        |text| parse::on_tab::<$type, $type>($path, text)
    };
    ($path:literal, $params:ty => $body:ty) => {
        |text| parse::on_tab::<$params, $body>($path, text)
    };
}

pub(super) fn table() -> Vec<Verb> {
    rows! {
        "open_session" "Open a session: a browser of its own, with its own files, address and limits",
            Write Service Change OpenSession => SessionView, parse::open_session, at POST "/v1/sessions", core true;
        "sessions" "List your sessions, the newest first",
            Read Service Read ListSessions => SessionList, parse::list_sessions, at GET "/v1/sessions", core true;
        "session" "Show a session",
            Read Session Read Nothing => SessionView, parse::show_session, at GET "/v1/sessions/{session_id}";
        "close_session" "Close a session and destroy its browser",
            Write Session Destructive Nothing => ClosedSession, parse::close_session, at DELETE "/v1/sessions/{session_id}", core true;

        "navigate" "Load a URL, or navigate the tab's history",
            Write Tab Destructive b::Navigate => b::Navigated, tab!("/v1/navigate", b::Navigate), pictures After, core true;
        "back" "Go back in the tab's history",
            Write Tab Destructive Back => b::Navigated, tab!("/v1/navigate", Back => b::Navigate), pictures After, core true;
        "forward" "Go forward in the tab's history",
            Write Tab Destructive Forward => b::Navigated, tab!("/v1/navigate", Forward => b::Navigate), pictures After;
        "reload" "Load the page again",
            Write Tab Destructive Reload => b::Navigated, tab!("/v1/navigate", Reload => b::Navigate), pictures After;
        "wait_for" "Wait for an element, a text, a URL or a state of loading",
            Read Tab Read b::WaitFor => b::Waited, tab!("/v1/wait_for", b::WaitFor), pictures After, core true;

        "snapshot" "Read the accessibility tree, with refs for actions",
            Read Tab Read b::Snapshot => b::PageSnapshot, tab!("/v1/snapshot", b::Snapshot), core true;
        "screenshot" "Take a screenshot of the viewport, the page or a part of it",
            Read Tab Read b::Screenshot => ScreenshotResult, tab!("/v1/screenshot", b::Screenshot), pictures Result, core true;
        "read_dom" "Read the page as HTML",
            Read Tab Read b::ReadDom => b::Dom, tab!("/v1/read_dom", b::ReadDom);
        "html" "Read the page as HTML; the same as read_dom",
            Read Tab Read Html => b::Dom, tab!("/v1/read_dom", Html => b::ReadDom);
        "text" "Read the page's visible text",
            Read Tab Read b::Text => b::PageText, tab!("/v1/text", b::Text), core true;
        "links" "List the page's links",
            Read Tab Read b::Links => b::PageLinks, tab!("/v1/links", b::Links);
        "find" "Find elements by text, role or placeholder",
            Read Tab Read b::Find => b::Found, tab!("/v1/find", b::Find), core true;
        "url" "Read the tab's URL, title and whether it is loading",
            Read Tab Read b::Url => b::PageUrl, tab!("/v1/url", b::Url);
        "pdf" "Print the page to PDF",
            Read Tab Read b::Pdf => b::PdfFile, tab!("/v1/pdf", b::Pdf);
        "console" "Read the tab's console messages and uncaught exceptions",
            Read Tab Read b::Console => b::ConsoleLog, tab!("/v1/console", b::Console);
        "network" "Read the tab's network requests, without headers and bodies",
            Read Tab Read b::Network => b::NetworkLog, tab!("/v1/network", b::Network);

        "click" "Click a point or an element",
            Write Tab Destructive b::Click => b::Acted, tab!("/v1/click", b::Click), pictures After, core true;
        "hover" "Move the pointer over a point or an element",
            Write Tab Change b::Hover => b::Acted, tab!("/v1/hover", b::Hover), pictures After;
        "drag" "Drag from one place to another",
            Write Tab Destructive b::Drag => b::Acted, tab!("/v1/drag", b::Drag), pictures After;
        "mouse_move" "Move the mouse to a point or an element",
            Write Tab Change MouseMove => b::Acted, tab!("/v1/mouse", MouseMove => b::Mouse), pictures After;
        "mouse_down" "Press a mouse button",
            Write Tab Destructive MouseDown => b::Acted, tab!("/v1/mouse", MouseDown => b::Mouse), pictures After;
        "mouse_up" "Release a mouse button",
            Write Tab Destructive MouseUp => b::Acted, tab!("/v1/mouse", MouseUp => b::Mouse), pictures After;
        "scroll" "Scroll by a distance, or to an element",
            Write Tab Change b::Scroll => b::Scrolled, tab!("/v1/scroll", b::Scroll), pictures After, core true;
        "type" "Type text into the focused element or another one",
            Write Tab Destructive b::Type => b::Acted, tab!("/v1/type", b::Type), redact ["text"], pictures After, core true;
        "fill" "Replace the text of a field",
            Write Tab Destructive Fill => b::Acted, tab!("/v1/type", Fill => b::Type), redact ["text"], pictures After;
        "press" "Press a key or a key combination",
            Write Tab Destructive b::Press => b::Acted, tab!("/v1/press", b::Press), redact ["key"], pictures After, core true;
        "select" "Choose options of a select",
            Write Tab Destructive Select => b::ValueSet, tab!("/v1/set_value", Select => b::SetValue),
            redact ["values"], pictures After, core true;
        "set_value" "Set the value of a form control: a select, a checkbox, a radio button, a date, a range",
            Write Tab Destructive b::SetValue => b::ValueSet, tab!("/v1/set_value", b::SetValue),
            redact ["value", "values"], pictures After;
        "evaluate" "Run JavaScript in the page",
            Evaluate Tab Destructive b::Evaluate => b::Evaluated, tab!("/v1/evaluate", b::Evaluate),
            redact ["expression"], pictures After;

        "new_tab" "Open a tab",
            Write Session Change b::NewTab => b::TabInfo, parse::new_tab, core true;
        "tabs" "List the open tabs",
            Read Session Read Nothing => b::Tabs, |text| parse::get("/v1/tabs", text), core true;
        "activate_tab" "Make a tab the one that calls use by default",
            Write Session Change OneTab => b::Done, parse::activate_tab;
        "close_tab" "Close a tab",
            Write Session Destructive OneTab => b::Done, parse::close_tab, core true;
        "dialogs" "Set how the tab's dialogs are answered from now on",
            Write Tab Change b::Dialogs => b::Done, tab!("/v1/dialogs", b::Dialogs), redact ["prompt_text"];
        "recent_dialogs" "List the last dialogs that pages opened, and how they were answered",
            Read Session Read Nothing => b::RecentDialogs, |text| parse::get("/v1/dialogs", text);
        "events" "Read what happened in the browser: tabs, downloads, dialogs",
            Read Session Read b::Events => b::EventList, parse::events;

        "downloads" "List the downloads",
            Read Session Read Nothing => b::Downloads, |text| parse::get("/v1/downloads", text);
        "download" "Read the content of a finished download",
            Files Session Read GetDownload => DownloadedFile, parse::download;
        "delete_download" "Remove a download's file, or cancel a running download",
            Files Session Destructive OneDownload => b::Done, parse::delete_download;
    "upload" "Give files to a file input, or to the file chooser that an element opens",
            Files Tab Destructive UploadFiles => b::Acted, parse::upload, redact ["content_base64"], pictures After;
        "put_file" "Put a file into the session, for uploads",
            Files Session Change PutFile => FileInSession, parse::put_file, redact ["content_base64"];
        "files" "List the files that were put into the session",
            Files Session Read Nothing => b::ClientFiles, |text| parse::get("/v1/files", text),
            at GET "/v1/sessions/{session_id}/files";
        "delete_file" "Remove a file that was put into the session",
            Files Session Destructive OneFile => b::Done, parse::delete_file;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_routes_are_unique() {
        let table = table();
        let names: BTreeSet<_> = table.iter().map(|verb| verb.name).collect();
        let routes: BTreeSet<_> = table.iter().map(|verb| format!("{} {}", verb.method, verb.path)).collect();
        assert_eq!((names.len(), routes.len()), (table.len(), table.len()));
        for verb in &table {
            assert_eq!(verb.path.contains("{session_id}"), verb.target != Target::Service, "{}", verb.name);
        }
    }

    #[test]
    fn schemas_are_objects_and_have_every_redacted_field() {
        for verb in table() {
            let (params, result) = ((verb.params)(), (verb.result)());
            assert_eq!(params["type"], "object", "{}", verb.name);
            assert_eq!(result["type"], "object", "{}", verb.name);
            assert_eq!(params["additionalProperties"], false, "{}", verb.name);
            for field in verb.redact {
                assert!(
                    params.to_string().contains(&format!("\"{field}\":")),
                    "{} has no {field}",
                    verb.name
                );
            }
        }
    }

    #[test]
    fn parameters_are_strict_and_refusals_do_not_repeat_values() {
        for verb in table() {
            for text in [r#"{"unknown":1}"#, "[]", "null", "1", "{", "\"x\""] {
                assert!(verb.check(text).is_err(), "{} accepts {text}", verb.name);
            }
        }
        let verb = crate::actions::verb("type").unwrap();
        for text in [
            r#"{"text":{"canary-7":1}}"#,
            r#"{"text":"a","clear":"canary-7"}"#,
            r#"{"text":"a","x":"canary-7"}"#,
        ] {
            let error = verb.check(text).unwrap_err();
            assert!(!error.to_string().contains("canary"), "{error}");
        }
        assert!(verb.check(r#"{"text":"a"}"#).is_ok());
    }

    #[test]
    fn ids_that_become_a_path_are_checked() {
        for (verb, field) in
            [("close_tab", "tab"), ("activate_tab", "tab"), ("delete_file", "file"), ("download", "guid")]
        {
            let verb = crate::actions::verb(verb).unwrap();
            for bad in ["", "../cookies", "a/b", "t1?x=y", "t 1", "t1\r\nX: y", "ä"] {
                assert!(verb.check(&json!({field: bad}).to_string()).is_err(), "{verb:?} {bad:?}");
            }
            assert!(verb.check(&json!({field: "t1"}).to_string()).is_ok(), "{verb:?}");
        }
    }
}
