//! Calls, answers and events on one pipe.

use super::{CdpError, Frame, FrameReader};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};

/// Messages waiting for the pipe. When Chromium stops reading, callers wait here and then time out.
const OUTGOING: usize = 64;
/// An id that no call has.
const NO_CALL: u64 = 0;

/// A flat session's id; `None` in a call means the browser itself.
pub type Session = Arc<str>;
/// What a call gets.
pub type Reply = Result<Box<RawValue>, CdpError>;
/// Called once with the answer, from the reader's task.
type OnReply = Box<dyn FnOnce(Reply) + Send>;

/// One event as it arrived.
#[derive(Debug)]
pub struct Event<'a> {
    /// For example `Page.lifecycleEvent`.
    pub method: &'a str,
    /// The session it happened in.
    pub session: Option<&'a str>,
    /// Its parameters, not parsed yet.
    pub params: &'a RawValue,
}

impl Event<'_> {
    /// The parameters as a type; `None` when they do not fit, which only a changed protocol can cause.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_str(self.params.get())
            .inspect_err(|error| tracing::warn!(method = self.method, %error, "event not understood"))
            .ok()
    }
}

struct Waiting {
    method: String,
    session: Option<Session>,
    on_reply: OnReply,
}

struct Inner {
    outgoing: mpsc::Sender<Vec<u8>>,
    waiting: Mutex<Option<HashMap<u64, Waiting>>>,
    next_id: AtomicU64,
    closed: watch::Sender<bool>,
}

/// One pipe to one browser. Clones share it.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

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
    /// Start reading and writing. `on_event` runs in the reader's task, so it must not wait.
    /// Messages above `limit` bytes are thrown away; the call they answer fails with `TooLarge`.
    pub fn new<R, W>(
        input: R,
        mut output: W,
        limit: usize,
        on_event: impl Fn(&Event<'_>) + Send + 'static,
    ) -> Self
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (outgoing, mut queue) = mpsc::channel::<Vec<u8>>(OUTGOING);
        let inner = Arc::new(Inner {
            outgoing,
            waiting: Mutex::new(Some(HashMap::new())),
            next_id: AtomicU64::new(1),
            closed: watch::Sender::new(false),
        });
        let connection = Self(inner);

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
            let mut frames = FrameReader::new(input, limit);
            loop {
                let frame = tokio::select! {
                    frame = frames.next() => frame,
                    _ = closed.wait_for(|closed| *closed) => break,
                };
                match frame {
                    Ok(Some(Frame::Whole(message))) => reader.take(message, &on_event),
                    Ok(Some(Frame::TooLarge { prefix, bytes })) => reader.take_too_large(prefix, bytes),
                    Ok(None) | Err(_) => break,
                }
            }
            reader.close();
        });
        connection
    }

    /// Call a method and wait for its result, at most `deadline`.
    pub async fn call<T: DeserializeOwned>(
        &self,
        session: Option<&Session>,
        method: &str,
        params: impl Serialize,
        deadline: Duration,
    ) -> Result<T, CdpError> {
        let raw = self.call_raw(session, method, &params, deadline).await?;
        serde_json::from_str(raw.get())
            .map_err(|error| CdpError::Malformed { method: method.into(), message: error.to_string() })
    }

    /// The same, with the result not parsed.
    pub async fn call_raw<P: Serialize + ?Sized>(
        &self,
        session: Option<&Session>,
        method: &str,
        params: &P,
        deadline: Duration,
    ) -> Reply {
        let (tx, rx) = oneshot::channel();
        let work = async {
            let _forget = self.send(session, method, params, Box::new(|reply| drop(tx.send(reply)))).await;
            rx.await.unwrap_or_else(|_| Err(CdpError::Closed { method: method.into() }))
        };
        tokio::time::timeout(deadline, work)
            .await
            .unwrap_or_else(|_| Err(CdpError::Timeout { method: method.into(), after: deadline }))
    }

    /// Send a call whose answer goes to `on_reply`, called in the reader's task and in the order of
    /// Chromium's messages. Dropping the returned guard forgets the call.
    pub async fn send<P: Serialize + ?Sized>(
        &self,
        session: Option<&Session>,
        method: &str,
        params: &P,
        on_reply: OnReply,
    ) -> Forget {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let forget = Forget { connection: self.clone(), id };
        let closed = || CdpError::Closed { method: method.into() };
        let outgoing = Outgoing { id, method, session: session.map(|s| &**s), params };
        let mut message = match serde_json::to_vec(&outgoing) {
            Ok(message) => message,
            Err(error) => {
                on_reply(Err(CdpError::Malformed { method: method.into(), message: error.to_string() }));
                return forget;
            }
        };
        message.push(0);
        // The place in the queue first: a call that gives up while waiting was never sent.
        let Ok(place) = self.0.outgoing.reserve().await else {
            on_reply(Err(closed()));
            return forget;
        };
        {
            let mut waiting = self.0.waiting.lock().expect("no panic while held");
            let Some(waiting) = waiting.as_mut() else {
                on_reply(Err(closed()));
                return forget;
            };
            waiting.insert(id, Waiting { method: method.into(), session: session.cloned(), on_reply });
        }
        place.send(message);
        forget
    }

    /// Fail every call that waits for an answer from this session: its target will not give one.
    pub fn fail_session(&self, session: &str, reason: &str) {
        let gone: Vec<Waiting> = {
            let mut waiting = self.0.waiting.lock().expect("no panic while held");
            let Some(waiting) = waiting.as_mut() else { return };
            let ids: Vec<u64> = waiting
                .iter()
                .filter(|(_, call)| call.session.as_deref() == Some(session))
                .map(|(id, _)| *id)
                .collect();
            ids.iter().filter_map(|id| waiting.remove(id)).collect()
        };
        for call in gone {
            (call.on_reply)(Err(CdpError::SessionGone { method: call.method, reason: reason.into() }));
        }
    }

    /// Calls that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.0.waiting.lock().expect("no panic while held").as_ref().map_or(0, HashMap::len)
    }

    /// Whether the browser's side of the pipe is gone.
    pub fn is_closed(&self) -> bool {
        *self.0.closed.borrow()
    }

    /// Waits until the pipe is closed.
    pub async fn closed(&self) {
        let mut closed = self.0.closed.subscribe();
        // An error means that the sender is gone, which means closed as well.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Stop: every waiting and every later call fails with `Closed`.
    pub fn close(&self) {
        let gone = self.0.waiting.lock().expect("no panic while held").take();
        self.0.closed.send_replace(true);
        for call in gone.into_iter().flat_map(HashMap::into_values) {
            (call.on_reply)(Err(CdpError::Closed { method: call.method }));
        }
    }

    fn take(&self, message: &[u8], on_event: &impl Fn(&Event<'_>)) {
        let incoming: Incoming<'_> = match serde_json::from_slice(message) {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::warn!(%error, bytes = message.len(), "message on the pipe not understood");
                return;
            }
        };
        let Some(id) = incoming.id else {
            if let (Some(method), Some(params)) = (&incoming.method, incoming.params) {
                on_event(&Event { method, session: incoming.session.as_deref(), params });
            }
            return;
        };
        let Some(call) = self.forget(id) else { return };
        let reply = match (incoming.result, incoming.error) {
            (Some(result), _) => Ok(result.to_owned()),
            (None, Some(ProtocolError { code, mut message, data })) => {
                if let Some(serde_json::Value::String(data)) = data {
                    message = format!("{message}: {data}");
                }
                Err(CdpError::Protocol { method: call.method, code, message })
            }
            (None, None) => {
                Err(CdpError::Malformed { method: call.method, message: "neither result nor error".into() })
            }
        };
        (call.on_reply)(reply);
    }

    /// The id stands first in Chromium's answers, so the start of a message tells whose it was.
    fn take_too_large(&self, prefix: &[u8], bytes: usize) {
        let digits: String = prefix
            .strip_prefix(b"{\"id\":")
            .map(|rest| {
                rest.iter().take_while(|byte| byte.is_ascii_digit()).map(|byte| *byte as char).collect()
            })
            .unwrap_or_default();
        match digits.parse().ok().and_then(|id| self.forget(id)) {
            Some(call) => (call.on_reply)(Err(CdpError::TooLarge { method: call.method, bytes })),
            None => tracing::warn!(bytes, "an event was too large and was dropped"),
        }
    }

    fn forget(&self, id: u64) -> Option<Waiting> {
        self.0.waiting.lock().expect("no panic while held").as_mut()?.remove(&id)
    }
}

/// Forgets a call when dropped, so that a cancelled call leaves nothing behind.
#[derive(Debug)]
pub struct Forget {
    connection: Connection,
    id: u64,
}

impl Forget {
    /// Keep the call waiting although nobody holds this guard.
    pub fn keep(mut self) {
        self.id = NO_CALL;
    }
}

impl Drop for Forget {
    fn drop(&mut self) {
        if self.id != NO_CALL {
            self.connection.forget(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

    const LONG: Duration = Duration::from_secs(60);

    /// The browser's end of the pipe, played by the test.
    struct Far {
        input: BufReader<ReadHalf<DuplexStream>>,
        output: WriteHalf<DuplexStream>,
    }

    impl Far {
        async fn next(&mut self) -> Value {
            let mut message = Vec::new();
            self.input.read_until(0, &mut message).await.unwrap();
            assert_eq!(message.pop(), Some(0), "ended by NUL");
            serde_json::from_slice(&message).unwrap()
        }

        async fn say(&mut self, message: Value) {
            let mut bytes = serde_json::to_vec(&message).unwrap();
            bytes.push(0);
            self.output.write_all(&bytes).await.unwrap();
        }
    }

    fn pair(on_event: impl Fn(&Event<'_>) + Send + 'static) -> (Connection, Far) {
        let (near, far) = tokio::io::duplex(4096);
        let (near_in, near_out) = tokio::io::split(near);
        let (input, output) = tokio::io::split(far);
        (Connection::new(near_in, near_out, 10_000, on_event), Far { input: BufReader::new(input), output })
    }

    #[tokio::test]
    async fn answers_find_their_calls_in_any_order_and_events_come_first() {
        let (events_tx, mut events) = mpsc::unbounded_channel();
        let (connection, mut far) = pair(move |event| {
            drop(events_tx.send((event.method.to_owned(), event.session.map(str::to_owned))))
        });
        let session: Session = "S".into();
        let (one, two, ()) = tokio::join!(
            connection.call::<Value>(None, "One.do", json!({"x": 1}), LONG),
            connection.call::<Value>(Some(&session), "Two.do", json!({}), LONG),
            async {
                let (a, b) = (far.next().await, far.next().await);
                assert_eq!((a["method"].clone(), a["params"].clone()), (json!("One.do"), json!({"x": 1})));
                assert_eq!(a.get("sessionId"), None);
                assert_eq!(b["sessionId"], "S");
                far.say(json!({"method": "E.v", "params": {}, "sessionId": "S"})).await;
                far.say(json!({"id": b["id"], "result": {"n": 2}, "sessionId": "S"})).await;
                far.say(json!({"id": a["id"], "error": {"code": -32000, "message": "no", "data": "why"}}))
                    .await;
            }
        );
        assert_eq!(two.unwrap(), json!({"n": 2}));
        assert_eq!(events.try_recv().unwrap(), ("E.v".into(), Some("S".into())));
        assert!(
            matches!(one, Err(CdpError::Protocol { code: -32000, message, .. }) if message == "no: why"),
            "error with its data"
        );
        assert_eq!(connection.waiting(), 0);
    }

    #[tokio::test]
    async fn a_browser_that_dies_fails_waiting_and_later_calls() {
        let (connection, mut far) = pair(|_| ());
        let (reply, ()) = tokio::join!(connection.call::<Value>(None, "A.b", json!({}), LONG), async {
            far.next().await;
            drop(far);
        });
        assert!(matches!(reply, Err(CdpError::Closed { .. })), "{reply:?}");
        connection.closed().await;
        let reply = connection.call::<Value>(None, "A.b", json!({}), LONG).await;
        assert!(matches!(reply, Err(CdpError::Closed { .. })), "{reply:?}");
    }

    #[tokio::test]
    async fn a_lost_session_fails_its_own_calls_only() {
        let (connection, mut far) = pair(|_| ());
        let (lost, kept): (Session, Session) = ("L".into(), "K".into());
        let (a, b, ()) = tokio::join!(
            connection.call::<Value>(Some(&lost), "A.b", json!({}), LONG),
            connection.call::<Value>(Some(&kept), "A.b", json!({}), LONG),
            async {
                let (_, second) = (far.next().await, far.next().await);
                connection.fail_session("L", "closed");
                far.say(json!({"id": second["id"], "result": {}})).await;
            }
        );
        assert!(matches!(a, Err(CdpError::SessionGone { reason, .. }) if reason == "closed"));
        b.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_browser_is_a_timeout_and_nothing_stays_behind() {
        let (connection, _far) = pair(|_| ());
        // Far more than the queue and the pipe hold: the rest waits for a place, and gives up there.
        let calls =
            (0..500).map(|_| connection.call::<Value>(None, "A.b", json!({"x": "y".repeat(100)}), LONG));
        for reply in futures_util::future::join_all(calls).await {
            assert!(matches!(reply, Err(CdpError::Timeout { .. })), "{reply:?}");
        }
        assert_eq!(connection.waiting(), 0);
    }

    #[tokio::test]
    async fn a_too_large_answer_fails_its_call_and_rubbish_is_ignored() {
        let (connection, mut far) = pair(|_| ());
        let (reply, ()) = tokio::join!(connection.call::<Value>(None, "A.b", json!({}), LONG), async {
            let id = far.next().await["id"].clone();
            far.output.write_all(b"not json\0").await.unwrap();
            far.say(json!({"id": 999_999, "result": {}})).await;
            let large = format!("{{\"id\":{id},\"result\":\"{}\"}}\0", "x".repeat(50_000));
            far.output.write_all(large.as_bytes()).await.unwrap();
        });
        assert!(matches!(reply, Err(CdpError::TooLarge { bytes, .. }) if bytes > 50_000), "{reply:?}");
        let (reply, ()) = tokio::join!(connection.call::<Value>(None, "A.c", json!({}), LONG), async {
            let id = far.next().await["id"].clone();
            far.say(json!({"id": id, "result": {"ok": true}})).await;
        });
        assert_eq!(reply.unwrap(), json!({"ok": true}));
    }
}
