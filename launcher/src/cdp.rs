//! A small blocking client for the Chrome DevTools Protocol over the debugging pipe.
//!
//! It does what the launcher needs: check that the browser answers, open a page and inspect it. Callers with a client of
//! their own take the two ends with [`Connection::into_parts`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use cdp_pipe::{Decoder, FloodGuard, MessageTooLarge};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

/// The largest message accepted. A screenshot or PDF file is one message.
pub(crate) const MAX_MESSAGE: usize = 256 << 20;
/// How many events, and how many bytes of them, are kept for a later [`Connection::wait_event`]. Beyond that the oldest are
/// dropped, because a hostile browser sends events without end.
const KEPT_EVENTS: usize = 16 * 1024;
const KEPT_EVENT_BYTES: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CdpError {
    #[error("the browser closed the debugging pipe")]
    Closed,
    #[error("the browser did not answer `{0}` in time")]
    Timeout(String),
    #[error("the browser refused `{method}`: {message}")]
    Refused { method: String, message: String },
    #[error("the browser sent a message that is not JSON")]
    Malformed(#[source] serde_json::Error),
    #[error(transparent)]
    TooLarge(#[from] MessageTooLarge),
    #[error("reading or writing the debugging pipe failed")]
    Io(#[from] io::Error),
}

impl CdpError {
    /// The error and its causes in one line, for a report that stores text.
    pub(crate) fn with_causes(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }
}

/// An open debugging pipe.
#[derive(Debug)]
pub struct Connection {
    from_browser: File,
    to_browser: File,
    decoder: Decoder,
    flood: FloodGuard,
    events: KeptEvents,
    last_id: u64,
}

/// The two ends of the pipe and the bytes that were read but not used.
#[derive(Debug)]
pub struct Parts {
    pub from_browser: OwnedFd,
    pub to_browser: OwnedFd,
    /// Complete messages and possibly the start of one, framed as on the pipe.
    pub unread: Vec<u8>,
}

impl Connection {
    pub fn new(from_browser: OwnedFd, to_browser: OwnedFd) -> Self {
        Connection {
            from_browser: from_browser.into(),
            to_browser: to_browser.into(),
            decoder: Decoder::new(MAX_MESSAGE),
            flood: FloodGuard::new(Instant::now()),
            events: KeptEvents::default(),
            last_id: 0,
        }
    }

    /// Calls a method of the browser and waits for its reply.
    pub fn call(&mut self, method: &str, params: Value, limit: Duration) -> Result<Value, CdpError> {
        self.call_in(None, method, params, limit)
    }

    /// Calls a method in the session of an attached page.
    pub fn call_in(
        &mut self,
        session: Option<&str>,
        method: &str,
        params: Value,
        limit: Duration,
    ) -> Result<Value, CdpError> {
        let id = self.send(session, method, params)?;
        let deadline = Instant::now() + limit;
        loop {
            let (mut message, size) = self.receive(deadline, method)?;
            if message.get("id").and_then(Value::as_u64) != Some(id) {
                // Replies to calls that timed out are dropped; events are kept.
                if message.get("id").is_none() {
                    self.events.keep(message, size);
                }
                continue;
            }
            if let Some(error) = message.get("error") {
                let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
                return Err(CdpError::Refused { method: method.to_owned(), message: message.to_owned() });
            }
            return Ok(message.get_mut("result").map(Value::take).unwrap_or_default());
        }
    }

    /// Sends a call without waiting for its reply. Returns its id.
    pub fn send(&mut self, session: Option<&str>, method: &str, params: Value) -> Result<u64, CdpError> {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        self.to_browser.write_all(&cdp_pipe::encode(message.to_string()))?;
        Ok(self.last_id)
    }

    /// Returns the first event of this name, or waits for one.
    pub fn wait_event(&mut self, method: &str, limit: Duration) -> Result<Value, CdpError> {
        let is_wanted = |event: &Value| event.get("method").and_then(Value::as_str) == Some(method);
        if let Some(event) = self.events.take(is_wanted) {
            return Ok(event);
        }
        let deadline = Instant::now() + limit;
        loop {
            let (message, size) = self.receive(deadline, method)?;
            if is_wanted(&message) {
                return Ok(message);
            }
            if message.get("id").is_none() {
                self.events.keep(message, size);
            }
        }
    }

    /// The next message and its size.
    fn receive(&mut self, deadline: Instant, waiting_for: &str) -> Result<(Value, usize), CdpError> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                let payload = message.payload();
                self.flood.message(payload);
                let message = serde_json::from_slice(payload).map_err(CdpError::Malformed)?;
                return Ok((message, payload.len()));
            }
            if let Some(pause) = self.flood.pause(Instant::now()) {
                std::thread::sleep(pause.time.min(deadline.saturating_duration_since(Instant::now())));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CdpError::Timeout(waiting_for.to_owned()));
            }
            let millis = u16::try_from(left.as_millis().max(1)).unwrap_or(u16::MAX);
            let mut wait = [PollFd::new(self.from_browser.as_fd(), PollFlags::POLLIN)];
            match poll(&mut wait, PollTimeout::from(millis)) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(CdpError::Io(errno.into())),
            }
            let mut chunk = [0; 64 * 1024];
            match self.from_browser.read(&mut chunk) {
                Ok(0) => return Err(CdpError::Closed),
                Ok(length) => {
                    self.flood.read(length);
                    self.decoder.feed(&chunk[..length]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Hands the pipe over to another client, together with the kept events and the unread bytes.
    pub fn into_parts(self) -> Parts {
        let mut unread: Vec<u8> =
            self.events.all().flat_map(|event| cdp_pipe::encode(event.to_string())).collect();
        unread.extend(self.decoder.into_unread());
        Parts { from_browser: self.from_browser.into(), to_browser: self.to_browser.into(), unread }
    }
}

/// Events that no caller has waited for yet.
#[derive(Debug, Default)]
struct KeptEvents {
    /// Each with the size of its message.
    events: VecDeque<(Value, usize)>,
    bytes: usize,
}

impl KeptEvents {
    fn keep(&mut self, event: Value, size: usize) {
        self.bytes += size;
        self.events.push_back((event, size));
        while self.events.len() > KEPT_EVENTS || self.bytes > KEPT_EVENT_BYTES {
            let Some((_, size)) = self.events.pop_front() else { return };
            self.bytes -= size;
        }
    }

    fn take(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let at = self.events.iter().position(|(event, _)| is_wanted(event))?;
        let (event, size) = self.events.remove(at)?;
        self.bytes -= size;
        Some(event)
    }

    fn all(&self) -> impl Iterator<Item = &Value> {
        self.events.iter().map(|(event, _)| event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::thread::JoinHandle;

    /// A fake browser that replies to each message with the given bytes (`ID` is replaced by the message's id).
    fn scripted_browser(answers: &'static [&'static [u8]]) -> (Connection, JoinHandle<()>) {
        let (to_read, to_write) = nix::unistd::pipe().expect("pipe");
        let (from_read, from_write) = nix::unistd::pipe().expect("pipe");
        let browser = std::thread::spawn(move || {
            let mut input = BufReader::new(File::from(to_read));
            let mut output = File::from(from_write);
            for answer in answers {
                let mut message = Vec::new();
                input.read_until(0, &mut message).expect("a message");
                let message: Value = serde_json::from_slice(&message[..message.len() - 1]).expect("json");
                let answer = String::from_utf8_lossy(answer).replace("ID", &message["id"].to_string());
                // Written in two parts, because a read may end inside a message.
                let (first, second) = answer.as_bytes().split_at(answer.len() / 2);
                output.write_all(first).expect("write");
                std::thread::sleep(Duration::from_millis(5));
                output.write_all(second).expect("write");
            }
        });
        (Connection::new(from_read, to_write), browser)
    }

    const LIMIT: Duration = Duration::from_secs(5);

    #[test]
    fn replies_reach_their_calls_and_events_are_kept() {
        let (mut cdp, browser) = scripted_browser(&[
            b"{\"method\":\"Target.targetCreated\",\"params\":{\"n\":1}}\0{\"id\":ID,\"result\":{\"product\":\"X\"}}\0",
            b"{\"id\":99,\"result\":{}}\0{\"id\":ID,\"error\":{\"message\":\"no such thing\"}}\0",
        ]);
        assert_eq!(cdp.call("Browser.getVersion", json!({}), LIMIT).expect("version")["product"], "X");
        let error = cdp.call("Nope", json!({}), LIMIT).expect_err("refused");
        assert!(matches!(error, CdpError::Refused { message, .. } if message == "no such thing"));
        assert_eq!(cdp.wait_event("Target.targetCreated", LIMIT).expect("event")["params"]["n"], 1);
        browser.join().expect("script");
        assert!(matches!(cdp.call("Late", json!({}), LIMIT), Err(CdpError::Closed | CdpError::Io(_))));
    }

    #[test]
    fn silence_is_a_timeout_and_an_invalid_message_is_an_error() {
        let (mut cdp, _browser) = scripted_browser(&[b"", b"not json\0"]);
        let started = Instant::now();
        assert!(
            matches!(cdp.call("A", json!({}), Duration::from_millis(50)), Err(CdpError::Timeout(method)) if method == "A")
        );
        assert!(started.elapsed() < LIMIT);
        assert!(matches!(cdp.call("B", json!({}), LIMIT), Err(CdpError::Malformed(_))));
    }

    #[test]
    fn handing_the_pipe_over_loses_no_bytes() {
        let (mut cdp, browser) =
            scripted_browser(&[b"{\"method\":\"E\"}\0{\"id\":ID,\"result\":{}}\0{\"id\":7,\"re"]);
        cdp.call("A", json!({}), LIMIT).expect("a reply");
        browser.join().expect("script");
        // The rest may still be in the pipe, or was read together with the reply.
        let parts = cdp.into_parts();
        let mut rest = parts.unread;
        File::from(parts.from_browser).read_to_end(&mut rest).expect("rest");
        assert_eq!(rest, b"{\"method\":\"E\"}\0{\"id\":7,\"re");
    }

    #[test]
    fn a_flood_of_events_keeps_only_the_last_ones() {
        let mut kept = KeptEvents::default();
        for number in 0..KEPT_EVENTS + 10 {
            kept.keep(json!({ "method": "E", "n": number }), 20);
        }
        assert_eq!(kept.all().count(), KEPT_EVENTS);
        assert_eq!(kept.take(|event| event["method"] == "E").expect("an event")["n"], 10);
        kept.keep(json!({ "method": "large" }), KEPT_EVENT_BYTES - 100);
        assert!(kept.bytes <= KEPT_EVENT_BYTES, "{} bytes", kept.bytes);
        assert!(kept.take(|event| event["method"] == "large").is_some());
        kept.keep(json!({ "method": "too large" }), KEPT_EVENT_BYTES + 1);
        assert_eq!((kept.all().count(), kept.bytes), (0, 0));
    }

    #[test]
    fn a_browser_that_sends_events_for_ever_is_a_timeout() {
        let (to_read, to_write) = nix::unistd::pipe().expect("pipe");
        let (from_read, from_write) = nix::unistd::pipe().expect("pipe");
        let browser = std::thread::spawn(move || {
            let mut output = File::from(from_write);
            let events = b"{\"method\":\"E\",\"params\":{}}\0".repeat(100);
            while output.write_all(&events).is_ok() {}
            drop(to_read);
        });
        let mut cdp = Connection::new(from_read, to_write);
        let reply = cdp.call("A", json!({}), Duration::from_millis(300));
        assert!(matches!(reply, Err(CdpError::Timeout(_))), "{reply:?}");
        assert!(cdp.events.all().count() <= KEPT_EVENTS);
        drop(cdp);
        browser.join().expect("the browser ends with its pipe");
    }
}
