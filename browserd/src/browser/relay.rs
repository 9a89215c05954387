//! Raw CDP for Playwright and Puppeteer: several WebSocket clients share one pipe.
//!
//! Each client gets its own browser session (`Target.attachToBrowserTarget`), so Chromium keeps their auto-attach and
//! discovery settings separate. This module translates message ids and lets a client use only the sessions that were
//! announced to it.

use super::Browser;
use crate::api::error::with_causes;
use crate::cdp::{CdpError, Event, Reply, Session};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Maximum number of pending calls per client.
const MAX_PENDING: usize = 4096;
/// Deadline of attaching and detaching a client.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);

/// The raw clients, by session id.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    by_session: HashMap<String, Arc<Relay>>,
}

/// One raw client.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The session of commands that name none: the browser's, or the page's of a client of one page.
    root: Session,
    /// The browser session in which a page was attached. Its events are not for the client.
    above: Option<Session>,
    /// Session ids below `root`, with their target ids.
    sessions: Mutex<HashMap<String, String>>,
    /// Messages to the client; `None` closes the connection.
    outgoing: mpsc::UnboundedSender<Option<String>>,
    /// Bytes queued for the client. Above the limit it is disconnected, so that it cannot slow down others.
    queued: AtomicUsize,
    limit: usize,
    pending: AtomicUsize,
    /// Whether the client asked for downloads in a folder of its own machine.
    names_folder: AtomicBool,
    /// Why the client has to be disconnected.
    end: watch::Sender<Option<&'static str>>,
}

#[derive(Deserialize)]
struct FromClient<'a> {
    id: i64,
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(rename = "sessionId")]
    session: Option<String>,
}

#[derive(Serialize)]
struct ToClient<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorToClient<'a>>,
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
}

#[derive(Serialize)]
struct ErrorToClient<'a> {
    code: i64,
    message: &'a str,
}

const EMPTY: ToClient<'static> =
    ToClient { id: None, method: None, params: None, result: None, error: None, session: None };

impl Relays {
    /// The number of connected clients.
    pub(crate) fn clients(&self) -> usize {
        self.by_session.values().map(|relay| &*relay.root).collect::<HashSet<_>>().len()
    }

    /// Whether a raw client is attached to this target.
    pub(crate) fn is_attached(&self, target: &str) -> bool {
        self.by_session.values().any(|relay| {
            relay.sessions.lock().expect("no panic while held").values().any(|held| held == target)
        })
    }

    /// Forwards the event if its session belongs to a raw client.
    pub(crate) fn on_event(&mut self, event: &Event<'_>) -> EventDelivery {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Attached {
            session_id: String,
            target_info: TargetId,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct TargetId {
            target_id: String,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Detached {
            session_id: String,
        }
        let Some(relay) = event.session.and_then(|session| self.by_session.get(session)).cloned() else {
            return EventDelivery { for_raw_client: false, lost_session: None };
        };
        if event.session.is_some() && event.session == relay.above.as_deref() {
            if event.method == "Target.detachedFromTarget" {
                relay.end.send_replace(Some("the page was closed"));
            }
            return EventDelivery { for_raw_client: true, lost_session: None };
        }
        let mut lost_session = None;
        match event.method {
            "Target.attachedToTarget" => {
                if let Some(attached) = event.parse::<Attached>() {
                    let mut sessions = relay.sessions.lock().expect("no panic while held");
                    sessions.insert(attached.session_id.clone(), attached.target_info.target_id);
                    drop(sessions);
                    self.by_session.insert(attached.session_id, relay.clone());
                }
            }
            "Target.detachedFromTarget" => {
                if let Some(detached) = event.parse::<Detached>() {
                    relay.sessions.lock().expect("no panic while held").remove(&detached.session_id);
                    self.by_session.remove(&detached.session_id);
                    lost_session = Some(detached.session_id);
                }
            }
            _ => {}
        }
        let session = event.session.filter(|session| **session != *relay.root);
        let changed = relay.not_downloaded(event);
        let params = Some(changed.as_deref().unwrap_or(event.params));
        relay.push(&ToClient { method: Some(event.method), params, session, ..EMPTY });
        EventDelivery { for_raw_client: true, lost_session }
    }
}

/// Whether an event was forwarded.
#[derive(Debug)]
pub(crate) struct EventDelivery {
    /// The event belongs to a raw client.
    pub(crate) for_raw_client: bool,
    /// The session that the event detached. Its pending calls get no reply.
    pub(crate) lost_session: Option<String>,
}

impl Relay {
    /// The event of a finished download as a client gets it that asked for the file in a folder of its own: the file is not
    /// there, so for this client the download failed. Playwright would otherwise return an empty stream.
    fn not_downloaded(&self, event: &Event<'_>) -> Option<Box<RawValue>> {
        let is_progress = matches!(event.method, "Browser.downloadProgress" | "Page.downloadProgress");
        if !is_progress || !self.names_folder.load(Ordering::Relaxed) {
            return None;
        }
        let mut params: serde_json::Value = event.parse()?;
        if params["state"] != "completed" {
            return None;
        }
        params["state"] = json!("canceled");
        serde_json::value::to_raw_value(&params).ok()
    }

    fn push(&self, message: &ToClient<'_>) {
        let Ok(text) = serde_json::to_string(message) else { return };
        let queued = self.queued.fetch_add(text.len(), Ordering::Relaxed) + text.len();
        if queued > self.limit {
            self.end.send_replace(Some("the client reads too slowly"));
        } else {
            // A closed receiver means that the client has disconnected.
            let _ = self.outgoing.send(Some(text));
        }
    }

    fn reply(&self, id: i64, session: Option<&str>, reply: &Reply) {
        match reply {
            Ok(result) => self.push(&ToClient { id: Some(id), result: Some(result), session, ..EMPTY }),
            Err(error) => {
                let text = with_causes(error);
                let (code, message) = match error {
                    CdpError::Protocol { code, message, .. } => (*code, message.as_str()),
                    _ => (-32000, text.as_str()),
                };
                let error = Some(ErrorToClient { code, message });
                self.push(&ToClient { id: Some(id), error, session, ..EMPTY });
            }
        }
    }
}

/// A connected raw client. Dropping it detaches its sessions.
#[derive(Debug)]
pub(crate) struct RawClient {
    browser: Arc<Browser>,
    relay: Arc<Relay>,
    incoming: mpsc::UnboundedReceiver<Option<String>>,
}

impl RawClient {
    /// A new client with its own browser session, or with a session of the page with this target id. It is disconnected when
    /// more than `limit` bytes are queued for it.
    pub(crate) async fn connect(
        browser: Arc<Browser>,
        page: Option<&str>,
        limit: usize,
    ) -> Result<Self, CdpError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Attached {
            session_id: String,
        }
        let attached: Attached =
            browser.cdp.call(None, "Target.attachToBrowserTarget", json!({}), ATTACH_TIMEOUT).await?;
        let above: Session = attached.session_id.as_str().into();
        let root = match page {
            None => above.clone(),
            Some(target) => {
                let params = json!({ "targetId": target, "flatten": true });
                let attach = "Target.attachToTarget";
                let attached: Result<Attached, _> =
                    browser.cdp.call(Some(&above), attach, params, ATTACH_TIMEOUT).await;
                match attached {
                    Ok(attached) => attached.session_id.as_str().into(),
                    Err(error) => {
                        let params = json!({ "sessionId": &*above });
                        let _ = browser
                            .cdp
                            .call_raw(None, "Target.detachFromTarget", &params, ATTACH_TIMEOUT)
                            .await;
                        return Err(error);
                    }
                }
            }
        };
        let (outgoing, incoming) = mpsc::unbounded_channel();
        let sessions = page.map(|target| (root.to_string(), target.to_owned())).into_iter().collect();
        let relay = Arc::new(Relay {
            above: page.map(|_| above.clone()),
            root: root.clone(),
            sessions: Mutex::new(sessions),
            outgoing,
            queued: AtomicUsize::new(0),
            limit,
            pending: AtomicUsize::new(0),
            names_folder: AtomicBool::new(false),
            end: watch::Sender::new(None),
        });
        let mut relays = browser.relays();
        for session in [above, root] {
            relays.by_session.insert(session.to_string(), relay.clone());
        }
        drop(relays);
        Ok(Self { browser, relay, incoming })
    }

    /// The next message for the client, or the reason to disconnect it.
    pub(crate) async fn next(&mut self) -> Result<String, &'static str> {
        tokio::select! {
            message = self.incoming.recv() => {
                let message = message.flatten().ok_or("the client closed the browser")?;
                self.relay.queued.fetch_sub(message.len(), Ordering::Relaxed);
                Ok(message)
            }
            () = self.browser.cdp.closed() => Err("the browser has ended"),
        }
    }

    /// A sender for the client's messages, usable while [`Self::next`] waits.
    pub(crate) fn sender(&self) -> RawSender {
        RawSender { browser: self.browser.clone(), relay: self.relay.clone() }
    }
}

/// Sends one raw client's messages to the browser.
#[derive(Debug)]
pub(crate) struct RawSender {
    browser: Arc<Browser>,
    relay: Arc<Relay>,
}

impl RawSender {
    /// Waits until the client has to be disconnected because it reads too slowly.
    pub(crate) async fn disconnected(&self) -> &'static str {
        let mut end = self.relay.end.subscribe();
        let reason = end.wait_for(Option::is_some).await.ok().and_then(|reason| *reason);
        reason.unwrap_or("closed")
    }

    /// Forwards one message. Waits while the pipe's queue is full.
    pub(crate) async fn forward(&self, message: &str) {
        let relay = &self.relay;
        let Ok(FromClient { id, method, params, session }) = serde_json::from_str::<FromClient<'_>>(message)
        else {
            let error =
                Some(ErrorToClient { code: -32700, message: "Message must be a CDP command in JSON" });
            relay.push(&ToClient { error, ..EMPTY });
            return;
        };
        let refuse = |code, message: &str| {
            let error = Some(ErrorToClient { code, message });
            relay.push(&ToClient { id: Some(id), error, session: session.as_deref(), ..EMPTY });
        };
        let known = match &session {
            None => true,
            Some(session) => relay.sessions.lock().expect("no panic while held").contains_key(session),
        };
        if !known {
            refuse(-32001, "Session with given id not found.");
            return;
        }
        // Other clients use the browser too, so `Browser.close` only disconnects the client that sent it.
        if method == "Browser.close" {
            relay.reply(id, session.as_deref(), &Ok(empty_object()));
            let _ = relay.outgoing.send(None);
            return;
        }
        if relay.pending.load(Ordering::Relaxed) >= MAX_PENDING {
            refuse(-32000, "Too many commands without a reply.");
            return;
        }
        let changed = match self.adjust(&method, params) {
            Adjusted::Unchanged => None,
            Adjusted::Params(params) => Some(params),
            Adjusted::Done => {
                relay.reply(id, session.as_deref(), &Ok(empty_object()));
                return;
            }
            Adjusted::Refused(message) => {
                refuse(-32000, &message);
                return;
            }
        };
        let params = changed.as_deref().or(params);
        relay.pending.fetch_add(1, Ordering::Relaxed);
        let to: Session = session.as_deref().map_or_else(|| relay.root.clone(), Into::into);
        let replying = relay.clone();
        let browser = self.browser.clone();
        let creates_tab = method == "Target.createTarget";
        if creates_tab {
            browser.state.creating.fetch_add(1, Ordering::Relaxed);
        }
        let creates_context = method == "Target.createBrowserContext";
        let on_reply = Box::new(move |reply: Reply| {
            replying.pending.fetch_sub(1, Ordering::Relaxed);
            if creates_tab {
                browser.state.creating.fetch_sub(1, Ordering::Relaxed);
            }
            let context = reply.as_ref().ok().filter(|_| creates_context).and_then(|reply| context_of(reply));
            match context {
                None => replying.reply(id, session.as_deref(), &reply),
                // The client learns of its context when downloads in it arrive.
                Some(context) => drop(tokio::spawn(async move {
                    browser.state.on_new_context(context).await;
                    replying.reply(id, session.as_deref(), &reply);
                })),
            }
        });
        let nothing = empty_object();
        let params = params.unwrap_or(&nothing);
        self.browser.cdp.send(Some(&to), &method, params, on_reply).await.detach();
    }
}

/// What becomes of a raw client's command.
enum Adjusted {
    Unchanged,
    Params(Box<RawValue>),
    /// There is nothing to do.
    Done,
    Refused(String),
}

impl RawSender {
    /// Commands that concern files or limits of the clone.
    ///
    /// A client names folders and files of its own machine. Its downloads go to browserd's folder instead, from which it can
    /// fetch them. A file that does not exist would be an empty file for the page, so the command is refused.
    fn adjust(&self, method: &str, params: Option<&RawValue>) -> Adjusted {
        #[derive(Deserialize)]
        struct Behavior {
            behavior: String,
        }
        #[derive(Deserialize)]
        struct InputFiles {
            files: Vec<String>,
        }
        let params = params.map_or("{}", RawValue::get);
        match method {
            "Browser.setDownloadBehavior" | "Page.setDownloadBehavior" => {
                let allowed = serde_json::from_str::<Behavior>(params)
                    .is_ok_and(|wanted| matches!(wanted.behavior.as_str(), "allow" | "allowAndName"));
                let Ok(serde_json::Value::Object(mut changed)) = serde_json::from_str(params) else {
                    return Adjusted::Unchanged;
                };
                if !allowed {
                    return Adjusted::Unchanged;
                }
                // Files would get the names that sites choose. Downloads are allowed without it.
                if method.starts_with("Page.") {
                    return Adjusted::Done;
                }
                self.relay.names_folder.store(true, Ordering::Relaxed);
                changed.insert("behavior".into(), json!("allowAndName"));
                changed.insert("downloadPath".into(), json!(self.browser.state.downloads_folder));
                match serde_json::value::to_raw_value(&changed) {
                    Ok(params) => Adjusted::Params(params),
                    Err(_) => Adjusted::Unchanged,
                }
            }
            "DOM.setFileInputFiles" => {
                let Ok(InputFiles { files }) = serde_json::from_str(params) else {
                    return Adjusted::Unchanged;
                };
                let missing = files.iter().find(|file| std::fs::metadata(file).is_err());
                missing.map_or(Adjusted::Unchanged, |file| {
                    let short: String = file.chars().take(200).collect();
                    Adjusted::Refused(format!(
                        "The file {short} does not exist in the clone. POST /v1/files puts a file there and returns its path."
                    ))
                })
            }
            "Target.createTarget" => match self.browser.tab_limit_reached() {
                Some(limit) => Adjusted::Refused(format!(
                    "The limit of {limit} open tabs is reached (browserd's max_tabs). Close a tab first."
                )),
                None => Adjusted::Unchanged,
            },
            _ => Adjusted::Unchanged,
        }
    }
}

/// The id of a new context.
fn context_of(reply: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Created {
        browser_context_id: String,
    }
    serde_json::from_str::<Created>(reply.get()).ok().map(|created| created.browser_context_id)
}

pub(super) fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".into()).expect("valid JSON")
}

impl Drop for RawClient {
    fn drop(&mut self) {
        let root = self.relay.above.as_ref().unwrap_or(&self.relay.root).clone();
        let sessions: Vec<String> = self
            .relay
            .sessions
            .lock()
            .expect("no panic while held")
            .drain()
            .map(|(session, _)| session)
            .collect();
        let mut relays = self.browser.relays();
        for session in sessions.iter().map(String::as_str).chain([&*root]) {
            relays.by_session.remove(session);
        }
        drop(relays);
        for session in sessions.iter().map(String::as_str).chain([&*root]) {
            self.browser.cdp.fail_session(session, "the client has disconnected");
        }
        let browser = self.browser.clone();
        tokio::spawn(async move {
            let params = json!({ "sessionId": &*root });
            let _ = browser.cdp.call_raw(None, "Target.detachFromTarget", &params, ATTACH_TIMEOUT).await;
            browser.state.on_client_gone().await;
        });
    }
}
