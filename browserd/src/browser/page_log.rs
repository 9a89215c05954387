//! The last console messages and network requests of a tab.
//!
//! Chromium reports them only after the domains were enabled, so browserd enables these at the tab's first call of the API.
//! A browser that only raw clients use has neither the cost nor the difference for its pages.

use crate::api::types::{ConsoleLevel, ConsoleMessage, NetworkRequest, NetworkState};
use crate::cdp::Event;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

/// Entries kept for each tab.
const MAX_MESSAGES: usize = 300;
const MAX_REQUESTS: usize = 500;
/// Characters kept of a message and of a URL.
const MAX_TEXT: usize = 2000;
pub(crate) const MAX_URL: usize = 1000;
/// Messages with objects after which the page's objects are released, which Chromium keeps for readers of the console.
const OBJECTS_KEPT: u32 = 50;

/// The calls that make Chromium report. Chromium keeps no bodies.
pub(crate) fn enabling_calls() -> [(&'static str, Value); 3] {
    let sizes = json!({ "maxTotalBufferSize": 0, "maxResourceBufferSize": 0, "maxPostDataSize": 0 });
    [("Network.enable", sizes), ("Runtime.enable", json!({})), ("Log.enable", json!({}))]
}

/// A bounded list of entries with sequence numbers, which increase with each change of an entry.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    entries: VecDeque<T>,
    limit: usize,
    last: u64,
    dropped: u64,
    /// The highest sequence number of an entry that was dropped.
    dropped_seq: u64,
}

/// An entry of a ring.
pub(crate) trait Numbered {
    fn seq(&self) -> u64;
}

impl<T: Numbered> Ring<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), limit, last: 0, dropped: 0, dropped_seq: 0 }
    }

    /// The number of the next entry or change.
    pub(crate) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn push(&mut self, entry: T) {
        if self.entries.len() == self.limit
            && let Some(dropped) = self.entries.pop_front()
        {
            self.dropped += 1;
            self.dropped_seq = self.dropped_seq.max(dropped.seq());
        }
        self.entries.push_back(entry);
    }

    /// Removes the last entry if it is like this.
    pub(crate) fn pop_if(&mut self, is: impl FnOnce(&T) -> bool) {
        if self.entries.back().is_some_and(is) {
            self.entries.pop_back();
        }
    }

    pub(crate) fn after(&self, since: u64) -> impl Iterator<Item = &T> {
        self.entries.iter().filter(move |entry| entry.seq() > since)
    }

    fn latest_mut(&mut self, is: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.entries.iter_mut().rev().find(|entry| is(entry))
    }

    /// The last sequence number.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// How many entries after `since` are not kept any more. Only for entries that never change.
    pub(crate) fn missed(&self, since: u64) -> u64 {
        self.dropped_seq.saturating_sub(since).min(self.dropped)
    }

    /// How many entries are not kept any more.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Numbered for ConsoleMessage {
    fn seq(&self) -> u64 {
        self.seq
    }
}

/// A request with what is needed to find it again.
#[derive(Debug)]
pub(crate) struct KeptRequest {
    id: String,
    /// Chromium's clock in seconds.
    began: f64,
    pub(crate) request: NetworkRequest,
}

impl Numbered for KeptRequest {
    fn seq(&self) -> u64 {
        self.request.seq
    }
}

/// What is kept of one tab.
#[derive(Debug)]
pub(crate) struct PageLog {
    pub(crate) console: Ring<ConsoleMessage>,
    pub(crate) requests: Ring<KeptRequest>,
    objects: u32,
}

impl Default for PageLog {
    fn default() -> Self {
        Self { console: Ring::new(MAX_MESSAGES), requests: Ring::new(MAX_REQUESTS), objects: 0 }
    }
}

#[derive(Deserialize)]
struct ConsoleCalled {
    #[serde(rename = "type")]
    kind: String,
    args: Vec<RemoteValue>,
    timestamp: f64,
    #[serde(rename = "stackTrace", default)]
    stack: Option<Stack>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RemoteValue {
    #[serde(default)]
    value: Option<Value>,
    #[serde(default)]
    unserializable_value: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    object_id: Option<String>,
    #[serde(default)]
    preview: Option<Preview>,
    #[serde(default)]
    subtype: Option<String>,
}

#[derive(Deserialize)]
struct Preview {
    #[serde(default)]
    overflow: bool,
    #[serde(default)]
    properties: Vec<PreviewProperty>,
}

#[derive(Deserialize)]
struct PreviewProperty {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stack {
    #[serde(default)]
    call_frames: Vec<CallFrame>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallFrame {
    url: String,
    line_number: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExceptionThrown {
    timestamp: f64,
    exception_details: ExceptionDetails,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExceptionDetails {
    text: String,
    #[serde(default)]
    line_number: u32,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    exception: Option<RemoteValue>,
    #[serde(rename = "stackTrace", default)]
    stack: Option<Stack>,
}

#[derive(Deserialize)]
struct EntryAdded {
    entry: LogEntry,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogEntry {
    source: String,
    level: String,
    text: String,
    timestamp: f64,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    line_number: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestWillBeSent {
    request_id: String,
    request: SentRequest,
    timestamp: f64,
    wall_time: f64,
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    redirect_response: Option<Response>,
}

#[derive(Deserialize)]
struct SentRequest {
    url: String,
    method: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResponseReceived {
    request_id: String,
    #[serde(rename = "type")]
    kind: String,
    response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    status: u16,
    #[serde(default)]
    mime_type: String,
    #[serde(default)]
    from_disk_cache: bool,
    #[serde(default)]
    from_prefetch_cache: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LoadingFinished {
    request_id: String,
    timestamp: f64,
    encoded_data_length: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LoadingFailed {
    request_id: String,
    timestamp: f64,
    error_text: String,
    #[serde(default)]
    blocked_reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WithId {
    request_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SocketCreated {
    request_id: String,
    url: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SocketAnswered {
    request_id: String,
    response: SocketResponse,
}

#[derive(Deserialize)]
struct SocketResponse {
    status: u16,
}

impl PageLog {
    /// Whether the event belongs to the log.
    pub(crate) fn wants(method: &str) -> bool {
        method.starts_with("Network.") || method.starts_with("Runtime.") || method == "Log.entryAdded"
    }

    /// Records an event. True if the page's objects should be released.
    pub(crate) fn on_event(&mut self, event: &Event<'_>) -> bool {
        self.record(event);
        let release = self.objects >= OBJECTS_KEPT;
        if release {
            self.objects = 0;
        }
        release
    }

    /// The `Option` only serves to return early with `?`.
    fn record(&mut self, event: &Event<'_>) -> Option<()> {
        match event.method {
            "Runtime.consoleAPICalled" => self.on_console(event.parse()?),
            "Runtime.exceptionThrown" => self.on_exception(event.parse()?),
            "Log.entryAdded" => self.on_entry(event.parse::<EntryAdded>()?.entry),
            "Network.requestWillBeSent" => self.on_request(event.parse()?),
            "Network.responseReceived" => {
                let ResponseReceived { request_id, kind, response } = event.parse()?;
                self.change(&request_id, |request, _| {
                    request.kind = kind;
                    request.from_cache |= response.from_disk_cache || response.from_prefetch_cache;
                    request.status = Some(response.status).filter(|status| *status != 0);
                    request.mime_type =
                        Some(shorten(&response.mime_type, 100)).filter(|kind| !kind.is_empty());
                });
            }
            "Network.requestServedFromCache" => {
                self.change(&event.parse::<WithId>()?.request_id, |request, _| request.from_cache = true);
            }
            "Network.loadingFinished" => {
                let LoadingFinished { request_id, timestamp, encoded_data_length } = event.parse()?;
                self.change(&request_id, |request, began| {
                    request.state = NetworkState::Finished;
                    request.size = Some(encoded_data_length.max(0.0) as u64);
                    request.duration_ms = Some(milliseconds(began, timestamp));
                });
            }
            "Network.loadingFailed" => {
                let LoadingFailed { request_id, timestamp, error_text, blocked_reason } = event.parse()?;
                self.change(&request_id, |request, began| {
                    request.state = NetworkState::Failed;
                    request.duration_ms = Some(milliseconds(began, timestamp));
                    let text = match blocked_reason {
                        Some(reason) => format!("{error_text} ({reason})"),
                        None => error_text,
                    };
                    request.failure = Some(shorten(&text, 200));
                });
            }
            "Network.webSocketCreated" => {
                let SocketCreated { request_id, url } = event.parse()?;
                let now = now_ms();
                self.start(request_id, now as f64 / 1000.0, "GET".into(), &url, "WebSocket".into(), now);
            }
            "Network.webSocketHandshakeResponseReceived" => {
                let SocketAnswered { request_id, response } = event.parse()?;
                self.change(&request_id, |request, _| request.status = Some(response.status));
            }
            "Network.webSocketClosed" => {
                let WithId { request_id } = event.parse()?;
                let now = now_ms() as f64 / 1000.0;
                self.change(&request_id, |request, began| {
                    request.state = NetworkState::Finished;
                    request.duration_ms = Some(milliseconds(began, now));
                });
            }
            _ => {}
        }
        Some(())
    }

    fn on_console(&mut self, called: ConsoleCalled) {
        let level = match called.kind.as_str() {
            "error" | "assert" => ConsoleLevel::Error,
            "warning" => ConsoleLevel::Warning,
            "debug" => ConsoleLevel::Debug,
            // Not messages of their own.
            "clear" | "endGroup" => return,
            _ => ConsoleLevel::Info,
        };
        self.objects += u32::from(called.args.iter().any(|value| value.object_id.is_some()));
        let mut text = String::new();
        for value in &called.args {
            if text.len() > MAX_TEXT * 4 {
                break;
            }
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&value.text());
        }
        let place = called.stack.and_then(|stack| stack.call_frames.into_iter().next());
        let (url, line) = place.map_or((None, None), |frame| (Some(frame.url), Some(frame.line_number + 1)));
        self.message(level, "console", &text, url, line, called.timestamp);
    }

    fn on_exception(&mut self, thrown: ExceptionThrown) {
        let ExceptionDetails { text, line_number, url, exception, stack } = thrown.exception_details;
        self.objects += u32::from(exception.as_ref().is_some_and(|value| value.object_id.is_some()));
        let what = exception.map(|value| value.text()).unwrap_or_default();
        let text = if what.is_empty() { text } else { format!("{text} {what}") };
        let frame = stack.and_then(|stack| stack.call_frames.into_iter().next());
        let url = url.or(frame.map(|frame| frame.url));
        self.message(ConsoleLevel::Error, "exception", &text, url, Some(line_number + 1), thrown.timestamp);
    }

    fn on_entry(&mut self, entry: LogEntry) {
        let level = match entry.level.as_str() {
            "error" => ConsoleLevel::Error,
            "warning" => ConsoleLevel::Warning,
            "verbose" => ConsoleLevel::Debug,
            _ => ConsoleLevel::Info,
        };
        let line = entry.line_number.map(|line| line + 1);
        self.message(level, &entry.source, &entry.text, entry.url, line, entry.timestamp);
    }

    fn message(
        &mut self,
        level: ConsoleLevel,
        source: &str,
        text: &str,
        url: Option<String>,
        line: Option<u32>,
        at: f64,
    ) {
        let seq = self.console.next();
        let url = url.filter(|url| !url.is_empty()).map(|url| plain_url(&url));
        self.console.push(ConsoleMessage {
            seq,
            level,
            source: shorten(source, 40),
            text: shorten(text, MAX_TEXT),
            url,
            line,
            at: at.max(0.0) as u64,
        });
    }

    fn on_request(&mut self, sent: RequestWillBeSent) {
        let RequestWillBeSent { request_id, request, timestamp, wall_time, kind, redirect_response } = sent;
        if let Some(response) = redirect_response {
            self.change(&request_id, |request, began| {
                request.state = NetworkState::Redirected;
                request.status = Some(response.status);
                request.duration_ms = Some(milliseconds(began, timestamp));
            });
        }
        let started_at = (wall_time * 1000.0).max(0.0) as u64;
        let kind = kind.unwrap_or_else(|| "Other".into());
        self.start(request_id, timestamp, request.method, &request.url, kind, started_at);
    }

    fn start(&mut self, id: String, began: f64, method: String, url: &str, kind: String, started_at: u64) {
        let request = NetworkRequest {
            seq: self.requests.next(),
            method: shorten(&method, 40),
            url: plain_url(url),
            kind,
            state: NetworkState::Pending,
            status: None,
            mime_type: None,
            size: None,
            from_cache: false,
            started_at,
            duration_ms: None,
            failure: None,
        };
        self.requests.push(KeptRequest { id, began, request });
    }

    /// Changes the latest request with this id, if it is still kept.
    fn change(&mut self, id: &str, change: impl FnOnce(&mut NetworkRequest, f64)) {
        let seq = self.requests.next();
        if let Some(kept) = self.requests.latest_mut(|kept| kept.id == id) {
            kept.request.seq = seq;
            change(&mut kept.request, kept.began);
        }
    }
}

impl RemoteValue {
    /// As the console of the developer tools shows it, in short.
    fn text(&self) -> String {
        if let Some(preview) = &self.preview
            && matches!(self.subtype.as_deref(), None | Some("array"))
            && !preview.properties.is_empty()
        {
            let is_array = self.subtype.is_some();
            let mut parts: Vec<String> = preview
                .properties
                .iter()
                .map(|property| {
                    let value = match property.kind.as_str() {
                        "string" => format!("{:?}", property.value),
                        _ => property.value.clone(),
                    };
                    if is_array { value } else { format!("{}: {value}", property.name) }
                })
                .collect();
            if preview.overflow {
                parts.push("…".into());
            }
            let inner = parts.join(", ");
            return if is_array { format!("[{inner}]") } else { format!("{{{inner}}}") };
        }
        match (&self.value, &self.unserializable_value, &self.description) {
            (Some(Value::String(text)), ..) => text.clone(),
            (Some(value), _, _) if !value.is_object() && !value.is_array() => value.to_string(),
            (_, Some(text), _) | (_, _, Some(text)) => text.clone(),
            (Some(value), ..) => value.to_string(),
            (None, None, None) => "undefined".into(),
        }
    }
}

/// The URL without user, password and fragment, shortened. A data URL has no contents.
pub(crate) fn plain_url(url: &str) -> String {
    let url = url.split('#').next().unwrap_or_default();
    let lower = url.get(..5).unwrap_or_default().to_ascii_lowercase();
    if lower == "data:" {
        let kind = url.split(',').next().unwrap_or_default();
        return format!("{},…", shorten(kind, 100));
    }
    let Some((scheme, rest)) = url.split_once("://") else { return shorten(url, MAX_URL) };
    let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    shorten(&format!("{scheme}://{host}{path}"), MAX_URL)
}

pub(crate) fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn milliseconds(began: f64, ended: f64) -> f64 {
    (((ended - began) * 1e6).round() / 1e3).max(0.0)
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    fn feed(log: &mut PageLog, method: &str, params: Value) -> bool {
        let params = RawValue::from_string(params.to_string()).unwrap();
        log.on_event(&Event { method, session: None, params: &params })
    }

    #[test]
    fn a_redirected_request_has_two_entries_and_changes_are_numbered() {
        let mut log = PageLog::default();
        let sent = |url: &str, redirect: Value| {
            json!({ "requestId": "1", "request": { "url": url, "method": "GET", "headers": { "Cookie": "canary" } },
                    "timestamp": 10.0, "wallTime": 1700000000.5, "type": "Document", "redirectResponse": redirect })
        };
        feed(&mut log, "Network.requestWillBeSent", sent("http://u:canary@a.test/x?y#canary", Value::Null));
        let redirect = json!({ "status": 302, "headers": { "Set-Cookie": "canary" }, "mimeType": "" });
        feed(&mut log, "Network.requestWillBeSent", sent("http://b.test/", redirect));
        let since = log.requests.last();
        let response = json!({ "requestId": "1", "type": "Document", "response": { "status": 200, "mimeType": "text/html" } });
        feed(&mut log, "Network.responseReceived", response);
        feed(
            &mut log,
            "Network.loadingFinished",
            json!({ "requestId": "1", "timestamp": 10.25, "encodedDataLength": 123.0 }),
        );
        let all: Vec<_> = log.requests.after(0).map(|kept| kept.request.clone()).collect();
        assert_eq!((all[0].url.as_str(), all[0].status), ("http://a.test/x?y", Some(302)));
        assert_eq!((all[0].state, all[1].state), (NetworkState::Redirected, NetworkState::Finished));
        assert_eq!(
            (all[1].duration_ms, all[1].size, all[1].started_at),
            (Some(250.0), Some(123), 1700000000500)
        );
        let changed: Vec<_> = log.requests.after(since).map(|kept| kept.request.url.clone()).collect();
        assert_eq!(changed, ["http://b.test/"]);
        assert!(!format!("{log:?}").contains("canary"));
    }

    #[test]
    fn the_log_is_bounded_and_tells_what_was_missed() {
        let mut log = PageLog::default();
        let mut released = 0;
        for number in 0..1000 {
            let args = json!([{ "type": "string", "value": "x".repeat(5000) }, { "type": "object", "objectId": "1",
                "description": "Object", "preview": { "overflow": true, "properties": [
                    { "name": "a", "type": "number", "value": number.to_string() } ] } }]);
            let event = json!({ "type": "log", "args": args, "timestamp": 1.0 });
            released += u32::from(feed(&mut log, "Runtime.consoleAPICalled", event));
        }
        assert_eq!((log.console.after(0).count(), log.console.last()), (MAX_MESSAGES, 1000));
        assert_eq!(log.console.missed(0), 700);
        assert_eq!((log.console.missed(650), log.console.missed(999)), (50, 0));
        assert!(log.console.after(0).all(|message| message.text.chars().count() == MAX_TEXT + 1));
        assert_eq!(released, 1000 / OBJECTS_KEPT);
    }

    #[test]
    fn values_are_shown_in_short() {
        let text = |value: Value| serde_json::from_value::<RemoteValue>(value).unwrap().text();
        assert_eq!(text(json!({ "type": "undefined" })), "undefined");
        assert_eq!(
            text(json!({ "type": "number", "unserializableValue": "NaN", "description": "NaN" })),
            "NaN"
        );
        assert_eq!(text(json!({ "type": "number", "value": 7, "description": "7" })), "7");
        let error = json!({ "type": "object", "subtype": "error", "description": "Error: x\n at y", "objectId": "1",
            "preview": { "properties": [{ "name": "message", "type": "string", "value": "x" }] } });
        assert_eq!(text(error), "Error: x\n at y");
        let array = json!({ "type": "object", "subtype": "array", "description": "Array(2)",
            "preview": { "properties": [{ "name": "0", "type": "string", "value": "x" }, { "name": "1", "type": "number", "value": "2" }] } });
        assert_eq!(text(array), "[\"x\", 2]");
        assert_eq!(plain_url("data:text/html;base64,canary"), "data:text/html;base64,…");
        assert_eq!(plain_url("about:blank"), "about:blank");
        assert_eq!(plain_url("https://a@b@c.test?x=@"), "https://c.test?x=@");
    }
}
