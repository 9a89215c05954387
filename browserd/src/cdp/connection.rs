//! Calls, replies and events on one pipe.

use super::CdpError;
use cdp_pipe::{Decoder, FloodGuard, Frame};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// Messages queued for the pipe. When Chromium stops reading, callers wait for space in the queue and time out there.
const OUTGOING: usize = 64;
/// The id that no call uses.
const NO_CALL: u64 = 0;

/// The id of a flat session. A call without a session addresses the browser itself.
pub type Session = Arc<str>;
/// The result of a call.
pub type Reply = Result<Box<RawValue>, CdpError>;
/// Called once with the reply, from the reader task.
type OnReply = Box<dyn FnOnce(Reply) + Send>;

/// One event as received.
#[derive(Debug)]
pub struct Event<'a> {
    /// For example `Page.lifecycleEvent`.
    pub method: &'a str,
    /// The session it happened in.
    pub session: Option<&'a str>,
    /// Its parameters, unparsed.
    pub params: &'a RawValue,
}

impl Event<'_> {
    /// Parses the parameters. `None` if they do not fit the type, which only a changed protocol can cause.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_str(self.params.get())
            .inspect_err(|error| {
                // Once per process: a hostile browser decides how many follow.
                static WARNED: Once = Once::new();
                WARNED.call_once(|| tracing::warn!(method = self.method, %error, "cannot parse an event"));
            })
            .ok()
    }
}

struct PendingCall {
    method: String,
    session: Option<Session>,
    on_reply: OnReply,
}

struct ConnectionState {
    outgoing: mpsc::Sender<Vec<u8>>,
    /// Calls without a reply, by id. `None` once the connection is closed.
    pending: Mutex<Option<HashMap<u64, PendingCall>>>,
    next_id: AtomicU64,
    closed: watch::Sender<bool>,
    has_warned: AtomicBool,
}

/// One pipe to one browser. Clones share it.
#[derive(Clone)]
pub struct Connection(Arc<ConnectionState>);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("closed", &self.is_closed()).finish()
    }
}

#[derive(Serialize)]
struct Outgoing<'a, P: ?Sized> {
    id: u64,
    method: &'a str,
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    params: &'a P,
}

#[derive(Deserialize)]
struct Incoming<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "sessionId")]
    session: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<ProtocolError>,
}

#[derive(Deserialize)]
struct ProtocolError {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(default)]
    data: Option<serde_json::Value>,
}

impl Connection {
    /// Starts the reader and the writer task. `on_event` runs in the reader task, so it must not block.
    /// Messages above `limit` bytes are skipped; the call they answer fails with `TooLarge`.
    pub fn new<R, W>(
        mut input: R,
        mut output: W,
        limit: usize,
        on_event: impl Fn(&Event<'_>) + Send + 'static,
    ) -> Self
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (outgoing, mut queue) = mpsc::channel::<Vec<u8>>(OUTGOING);
        let connection = Self(Arc::new(ConnectionState {
            outgoing,
            pending: Mutex::new(Some(HashMap::new())),
            next_id: AtomicU64::new(1),
            closed: watch::Sender::new(false),
            has_warned: AtomicBool::new(false),
        }));

        let mut closed = connection.0.closed.subscribe();
        let writer = connection.clone();
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = queue.recv() => message,
                    _ = closed.wait_for(|closed| *closed) => None,
                };
                let Some(message) = message else { return };
                if output.write_all(&message).await.is_err() {
                    writer.close();
                    return;
                }
            }
        });

        let reader = connection.clone();
        let mut closed = connection.0.closed.subscribe();
        tokio::spawn(async move {
            let mut decoder = Decoder::new(limit);
            let mut flood = FloodGuard::new(Instant::now().into_std());
            loop {
                while let Some(frame) = decoder.next_frame() {
                    let is_useful = match frame {
                        Frame::Message(message) => {
                            flood.message(message.payload());
                            reader.on_message(message.payload(), &on_event)
                        }
                        Frame::Skipped { prefix, bytes } => reader.on_skipped(prefix, bytes),
                    };
                    if !is_useful {
                        flood.useless_message();
                    }
                }
                if let Some(pause) = flood.pause(Instant::now().into_std()) {
                    if pause.is_first {
                        tracing::warn!("the browser floods its debugging pipe; it is read more slowly");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause.time) => {}
                        _ = closed.wait_for(|closed| *closed) => break,
                    }
                }
                let read = tokio::select! {
                    read = input.read_buf(decoder.read_buffer()) => read,
                    _ = closed.wait_for(|closed| *closed) => break,
                };
                match read {
                    Ok(bytes @ 1..) => flood.read(bytes),
                    // 0 bytes: Chromium closed its end.
                    _ => break,
                }
            }
            reader.close();
        });
        connection
    }

    /// Calls a method and waits for its result, at most `deadline`.
    pub async fn call<T: DeserializeOwned>(
        &self,
        session: Option<&Session>,
        method: &str,
        params: impl Serialize,
        deadline: Duration,
    ) -> Result<T, CdpError> {
        let raw = self.call_raw(session, method, &params, deadline).await?;
        serde_json::from_str(raw.get())
            .map_err(|source| CdpError::Malformed { method: method.into(), source })
    }

    /// Like [`Self::call`], with an unparsed result.
    pub async fn call_raw<P: Serialize + ?Sized>(
        &self,
        session: Option<&Session>,
        method: &str,
        params: &P,
        deadline: Duration,
    ) -> Reply {
        let (tx, rx) = oneshot::channel();
        let work = async {
            let _guard = self.send(session, method, params, Box::new(|reply| drop(tx.send(reply)))).await;
            rx.await.unwrap_or_else(|_| Err(CdpError::Closed { method: method.into() }))
        };
        tokio::time::timeout(deadline, work)
            .await
            .unwrap_or_else(|_| Err(CdpError::Timeout { method: method.into(), after: deadline }))
    }

    /// Sends a call. The reader task passes the reply to `on_reply`, in the order of Chromium's messages. Dropping the
    /// returned guard cancels the call.
    pub async fn send<P: Serialize + ?Sized>(
        &self,
        session: Option<&Session>,
        method: &str,
        params: &P,
        on_reply: OnReply,
    ) -> CallGuard {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let guard = CallGuard { connection: self.clone(), id };
        let closed = || CdpError::Closed { method: method.into() };
        let outgoing = Outgoing { id, method, session: session.map(|s| &**s), params };
        let message = match serde_json::to_vec(&outgoing) {
            Ok(json) => cdp_pipe::encode(json),
            Err(source) => {
                on_reply(Err(CdpError::Parameters { method: method.into(), source }));
                return guard;
            }
        };
        // Reserves queue space before the call is registered: a call that is cancelled while it waits was never sent.
        let Ok(permit) = self.0.outgoing.reserve().await else {
            on_reply(Err(closed()));
            return guard;
        };
        {
            let mut pending = self.0.pending.lock().expect("no panic while held");
            let Some(pending) = pending.as_mut() else {
                on_reply(Err(closed()));
                return guard;
            };
            pending.insert(id, PendingCall { method: method.into(), session: session.cloned(), on_reply });
        }
        permit.send(message);
        guard
    }

    /// Fails every pending call of this session, because its target no longer exists.
    pub fn fail_session(&self, session: &str, reason: &str) {
        let failed: Vec<PendingCall> = {
            let mut pending = self.0.pending.lock().expect("no panic while held");
            let Some(pending) = pending.as_mut() else { return };
            let ids: Vec<u64> = pending
                .iter()
                .filter(|(_, call)| call.session.as_deref() == Some(session))
                .map(|(id, _)| *id)
                .collect();
            ids.iter().filter_map(|id| pending.remove(id)).collect()
        };
        for call in failed {
            (call.on_reply)(Err(CdpError::SessionGone { method: call.method, reason: reason.into() }));
        }
    }

    /// The number of calls without a reply.
    pub fn pending_calls(&self) -> usize {
        self.0.pending.lock().expect("no panic while held").as_ref().map_or(0, HashMap::len)
    }

    /// Whether the pipe is closed.
    pub fn is_closed(&self) -> bool {
        *self.0.closed.borrow()
    }

    /// Waits until the pipe is closed.
    pub async fn closed(&self) {
        let mut closed = self.0.closed.subscribe();
        // An error means that the sender was dropped, which also means closed.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Closes the connection. All pending and later calls fail with `Closed`.
    pub fn close(&self) {
        let pending = self.0.pending.lock().expect("no panic while held").take();
        self.0.closed.send_replace(true);
        for call in pending.into_iter().flat_map(HashMap::into_values) {
            (call.on_reply)(Err(CdpError::Closed { method: call.method }));
        }
    }

    /// Handles a message. False if it is none that a browser sends.
    fn on_message(&self, message: &[u8], on_event: &impl Fn(&Event<'_>)) -> bool {
        let incoming: Incoming<'_> = match serde_json::from_slice(message) {
            Ok(incoming) => incoming,
            Err(error) => {
                self.warn_once(|| {
                    tracing::warn!(%error, bytes = message.len(), "cannot parse a message from the browser");
                });
                return false;
            }
        };
        let Some(id) = incoming.id else {
            if let (Some(method), Some(params)) = (&incoming.method, incoming.params) {
                on_event(&Event { method, session: incoming.session.as_deref(), params });
            }
            return true;
        };
        // The caller may have given up.
        let Some(call) = self.remove_pending(id) else { return true };
        let reply = match (incoming.result, incoming.error) {
            (Some(result), _) => Ok(result.to_owned()),
            (None, Some(ProtocolError { code, mut message, data })) => {
                if let Some(serde_json::Value::String(data)) = data {
                    message = format!("{message}: {data}");
                }
                Err(CdpError::Protocol { method: call.method, code, message })
            }
            (None, None) => Err(CdpError::EmptyReply { method: call.method }),
        };
        (call.on_reply)(reply);
        true
    }

    /// Fails the call that a skipped message answers. Chromium writes the id first, so the prefix contains it. False if it
    /// answers none.
    fn on_skipped(&self, prefix: &[u8], bytes: usize) -> bool {
        let digits: String = prefix
            .strip_prefix(b"{\"id\":")
            .map(|rest| {
                rest.iter().take_while(|byte| byte.is_ascii_digit()).map(|byte| *byte as char).collect()
            })
            .unwrap_or_default();
        match digits.parse().ok().and_then(|id| self.remove_pending(id)) {
            Some(call) => {
                (call.on_reply)(Err(CdpError::TooLarge { method: call.method, bytes }));
                true
            }
            None => {
                self.warn_once(|| tracing::warn!(bytes, "an event above the size limit was dropped"));
                false
            }
        }
    }

    /// Logs the first message of this pipe that cannot be used. The browser decides how many follow.
    fn warn_once(&self, warn: impl FnOnce()) {
        if !self.0.has_warned.swap(true, Ordering::Relaxed) {
            warn();
        }
    }

    fn remove_pending(&self, id: u64) -> Option<PendingCall> {
        self.0.pending.lock().expect("no panic while held").as_mut()?.remove(&id)
    }
}

/// Cancels a call when dropped, so that it does not stay in the list of pending calls.
#[derive(Debug)]
pub struct CallGuard {
    connection: Connection,
    id: u64,
}

impl CallGuard {
    /// Keeps the call pending without this guard.
    pub fn detach(mut self) {
        self.id = NO_CALL;
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if self.id != NO_CALL {
            self.connection.remove_pending(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tokio::io::{DuplexStream, ReadHalf, WriteHalf};

    const LONG: Duration = Duration::from_secs(60);

    /// The browser's end of the pipe, driven by the test.
    struct FakeBrowser {
        input: ReadHalf<DuplexStream>,
        decoder: Decoder,
        output: WriteHalf<DuplexStream>,
    }

    impl FakeBrowser {
        async fn receive(&mut self) -> Value {
            loop {
                if let Some(message) = self.decoder.next_message().unwrap() {
                    return serde_json::from_slice(message.payload()).unwrap();
                }
                assert_ne!(self.input.read_buf(self.decoder.read_buffer()).await.unwrap(), 0, "closed");
            }
        }

        async fn send(&mut self, message: Value) {
            self.output.write_all(&cdp_pipe::encode(message.to_string())).await.unwrap();
        }
    }

    fn pair(on_event: impl Fn(&Event<'_>) + Send + 'static) -> (Connection, FakeBrowser) {
        let (client, browser) = tokio::io::duplex(4096);
        let (client_in, client_out) = tokio::io::split(client);
        let (input, output) = tokio::io::split(browser);
        let browser = FakeBrowser { input, decoder: Decoder::new(1 << 20), output };
        (Connection::new(client_in, client_out, 10_000, on_event), browser)
    }

    #[tokio::test]
    async fn replies_in_any_order_reach_their_calls_after_earlier_events() {
        let (events_tx, mut events) = mpsc::unbounded_channel();
        let (connection, mut browser) = pair(move |event| {
            drop(events_tx.send((event.method.to_owned(), event.session.map(str::to_owned))))
        });
        let session: Session = "S".into();
        let (one, two, ()) = tokio::join!(
            connection.call::<Value>(None, "One.do", json!({"x": 1}), LONG),
            connection.call::<Value>(Some(&session), "Two.do", json!({}), LONG),
            async {
                let (a, b) = (browser.receive().await, browser.receive().await);
                assert_eq!((a["method"].clone(), a["params"].clone()), (json!("One.do"), json!({"x": 1})));
                assert_eq!(a.get("sessionId"), None);
                assert_eq!(b["sessionId"], "S");
                browser.send(json!({"method": "E.v", "params": {}, "sessionId": "S"})).await;
                browser.send(json!({"id": b["id"], "result": {"n": 2}, "sessionId": "S"})).await;
                browser
                    .send(json!({"id": a["id"], "error": {"code": -32000, "message": "no", "data": "why"}}))
                    .await;
            }
        );
        assert_eq!(two.unwrap(), json!({"n": 2}));
        assert_eq!(events.try_recv().unwrap(), ("E.v".into(), Some("S".into())));
        assert!(
            matches!(one, Err(CdpError::Protocol { code: -32000, message, .. }) if message == "no: why"),
            "the message includes the error's data"
        );
        assert_eq!(connection.pending_calls(), 0);
    }

    #[tokio::test]
    async fn a_closed_pipe_fails_pending_and_later_calls() {
        let (connection, mut browser) = pair(|_| ());
        let (reply, ()) = tokio::join!(connection.call::<Value>(None, "A.b", json!({}), LONG), async {
            browser.receive().await;
            drop(browser);
        });
        assert!(matches!(reply, Err(CdpError::Closed { .. })), "{reply:?}");
        connection.closed().await;
        let reply = connection.call::<Value>(None, "A.b", json!({}), LONG).await;
        assert!(matches!(reply, Err(CdpError::Closed { .. })), "{reply:?}");
    }

    #[tokio::test]
    async fn a_lost_session_fails_only_its_own_calls() {
        let (connection, mut browser) = pair(|_| ());
        let (lost, kept): (Session, Session) = ("L".into(), "K".into());
        let (a, b, ()) = tokio::join!(
            connection.call::<Value>(Some(&lost), "A.b", json!({}), LONG),
            connection.call::<Value>(Some(&kept), "A.b", json!({}), LONG),
            async {
                let (_, second) = (browser.receive().await, browser.receive().await);
                connection.fail_session("L", "closed");
                browser.send(json!({"id": second["id"], "result": {}})).await;
            }
        );
        assert!(matches!(a, Err(CdpError::SessionGone { reason, .. }) if reason == "closed"));
        b.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn calls_to_a_silent_browser_time_out_and_leave_nothing_pending() {
        let (connection, _browser) = pair(|_| ());
        // More calls than the queue and the pipe can hold: the rest times out while it waits for queue space.
        let calls =
            (0..500).map(|_| connection.call::<Value>(None, "A.b", json!({"x": "y".repeat(100)}), LONG));
        for reply in futures_util::future::join_all(calls).await {
            assert!(matches!(reply, Err(CdpError::Timeout { .. })), "{reply:?}");
        }
        assert_eq!(connection.pending_calls(), 0);
    }

    #[tokio::test]
    async fn an_oversized_reply_fails_its_call_and_invalid_messages_are_ignored() {
        let (connection, mut browser) = pair(|_| ());
        let (reply, ()) = tokio::join!(connection.call::<Value>(None, "A.b", json!({}), LONG), async {
            let id = browser.receive().await["id"].clone();
            browser.output.write_all(b"not json\0").await.unwrap();
            browser.send(json!({"id": 999_999, "result": {}})).await;
            let large = format!("{{\"id\":{id},\"result\":\"{}\"}}\0", "x".repeat(50_000));
            browser.output.write_all(large.as_bytes()).await.unwrap();
        });
        assert!(matches!(reply, Err(CdpError::TooLarge { bytes, .. }) if bytes > 50_000), "{reply:?}");
        let (reply, ()) = tokio::join!(connection.call::<Value>(None, "A.c", json!({}), LONG), async {
            let id = browser.receive().await["id"].clone();
            browser.send(json!({"id": id, "result": {"ok": true}})).await;
        });
        assert_eq!(reply.unwrap(), json!({"ok": true}));
    }
    /// A hostile browser: it sends this for ever, and answers a call in between.
    async fn flood(part: &'static [u8]) {
        let (connection, mut browser) = pair(|_| ());
        let sent = Arc::new(AtomicU64::new(0));
        let counter = sent.clone();
        let (reply, ()) = tokio::join!(connection.call::<Value>(None, "A.b", json!({}), LONG), async {
            let id = browser.receive().await["id"].clone();
            browser.send(json!({"id": id, "result": {}})).await;
        });
        reply.unwrap();
        tokio::spawn(async move {
            while browser.output.write_all(part).await.is_ok() {
                counter.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
        });
        // Time is paused and only advances when every task waits, so a reader that never pauses would never let it pass.
        tokio::time::sleep(LONG).await;
        let sent = sent.load(Ordering::Relaxed);
        let most = (256 << 20) + LONG.as_secs() * (128 << 20);
        assert!(sent < most, "{sent} bytes were read in {LONG:?}");
        connection.close();
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_empty_messages_is_read_slowly() {
        flood(&[0; 4096]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_invalid_messages_is_read_slowly() {
        flood(b"not json\0").await;
    }
}
