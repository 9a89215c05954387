//! The Chrome DevTools Protocol over the debugging pipe: JSON messages, each ended by a zero byte.
//!
//! Small and blocking on purpose: enough to know that the browser answers, to open a page and look at it. Callers with a
//! client of their own take the two ends with [`Connection::into_parts`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

/// Screenshots and PDF files arrive as one message; nothing sensible is larger.
const MAX_MESSAGE: usize = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CdpError {
    #[error("the browser closed the debugging pipe")]
    Closed,
    #[error("the browser did not answer `{0}` in time")]
    Timeout(String),
    #[error("the browser refused `{method}`: {message}")]
    Refused { method: String, message: String },
    #[error("the browser sent something that is not a message: {0}")]
    Malformed(String),
    #[error("the debugging pipe failed: {0}")]
    Io(#[from] io::Error),
}

/// An open debugging pipe.
#[derive(Debug)]
pub struct Connection {
    from_browser: File,
    to_browser: File,
    buffer: Vec<u8>,
    /// How much of `buffer` is known to hold no end of message.
    searched: usize,
    events: VecDeque<Value>,
    last_id: u64,
}

/// The two ends, and what was read but not yet used.
#[derive(Debug)]
pub struct Parts {
    pub from_browser: OwnedFd,
    pub to_browser: OwnedFd,
    /// Complete messages and the start of one, exactly as the browser sent them.
    pub unread: Vec<u8>,
}

impl Connection {
    pub fn new(from_browser: OwnedFd, to_browser: OwnedFd) -> Self {
        Connection {
            from_browser: from_browser.into(),
            to_browser: to_browser.into(),
            buffer: Vec::new(),
            searched: 0,
            events: VecDeque::new(),
            last_id: 0,
        }
    }

    /// Calls a method of the browser and waits for its answer.
    pub fn call(
        &mut self,
        method: &str,
        params: Value,
        limit: Duration,
    ) -> Result<Value, CdpError> {
        self.call_in(None, method, params, limit)
    }

    /// Calls a method in a session, which is an attached page.
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
            let mut message = self.receive(deadline, method)?;
            if message.get("id").and_then(Value::as_u64) != Some(id) {
                // Answers to calls that timed out are dropped; events are kept.
                if message.get("id").is_none() {
                    self.events.push_back(message);
                }
                continue;
            }
            if let Some(error) = message.get("error") {
                let message = error
                    .get("message")
                    .and_then(Value::as_str)
                    .unwrap_or("no reason given");
                return Err(CdpError::Refused {
                    method: method.to_owned(),
                    message: message.to_owned(),
                });
            }
            return Ok(message
                .get_mut("result")
                .map(Value::take)
                .unwrap_or_default());
        }
    }

    /// Sends a call without waiting for its answer; returns its id.
    pub fn send(
        &mut self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<u64, CdpError> {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to_browser.write_all(&bytes)?;
        Ok(self.last_id)
    }

    /// Waits for an event by its name, among those already here first.
    pub fn wait_event(&mut self, method: &str, limit: Duration) -> Result<Value, CdpError> {
        let is_wanted = |event: &Value| event.get("method").and_then(Value::as_str) == Some(method);
        if let Some(at) = self.events.iter().position(is_wanted) {
            return Ok(self.events.remove(at).expect("the position was just found"));
        }
        let deadline = Instant::now() + limit;
        loop {
            let message = self.receive(deadline, method)?;
            if is_wanted(&message) {
                return Ok(message);
            }
            if message.get("id").is_none() {
                self.events.push_back(message);
            }
        }
    }

    fn receive(&mut self, deadline: Instant, waiting_for: &str) -> Result<Value, CdpError> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(message);
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
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn next_message(&mut self) -> Result<Option<Value>, CdpError> {
        match self.buffer[self.searched..]
            .iter()
            .position(|byte| *byte == 0)
        {
            Some(at) => {
                let end = self.searched + at;
                let message = serde_json::from_slice(&self.buffer[..end])
                    .map_err(|error| CdpError::Malformed(error.to_string()))?;
                self.buffer.drain(..=end);
                self.searched = 0;
                Ok(Some(message))
            }
            None if self.buffer.len() > MAX_MESSAGE => {
                Err(CdpError::Malformed("a message without end".into()))
            }
            None => {
                self.searched = self.buffer.len();
                Ok(None)
            }
        }
    }

    /// Gives the pipe to a client of the caller's own. Events that were kept go with it.
    pub fn into_parts(self) -> Parts {
        let mut unread = Vec::new();
        for event in &self.events {
            unread.extend_from_slice(event.to_string().as_bytes());
            unread.push(0);
        }
        unread.extend_from_slice(&self.buffer);
        Parts {
            from_browser: self.from_browser.into(),
            to_browser: self.to_browser.into(),
            unread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::thread::JoinHandle;

    /// A browser that answers every message with the given bytes (`ID` replaced by the message's id).
    fn scripted(answers: &'static [&'static [u8]]) -> (Connection, JoinHandle<()>) {
        let (to_read, to_write) = nix::unistd::pipe().expect("pipe");
        let (from_read, from_write) = nix::unistd::pipe().expect("pipe");
        let browser = std::thread::spawn(move || {
            let mut input = BufReader::new(File::from(to_read));
            let mut output = File::from(from_write);
            for answer in answers {
                let mut message = Vec::new();
                input.read_until(0, &mut message).expect("a message");
                let message: Value =
                    serde_json::from_slice(&message[..message.len() - 1]).expect("json");
                let answer =
                    String::from_utf8_lossy(answer).replace("ID", &message["id"].to_string());
                // Byte by byte in two parts: messages do not arrive whole.
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
    fn answers_are_matched_and_events_kept() {
        let (mut cdp, browser) = scripted(&[
            b"{\"method\":\"Target.targetCreated\",\"params\":{\"n\":1}}\0{\"id\":ID,\"result\":{\"product\":\"X\"}}\0",
            b"{\"id\":99,\"result\":{}}\0{\"id\":ID,\"error\":{\"message\":\"no such thing\"}}\0",
        ]);
        assert_eq!(
            cdp.call("Browser.getVersion", json!({}), LIMIT)
                .expect("version")["product"],
            "X"
        );
        let error = cdp.call("Nope", json!({}), LIMIT).expect_err("refused");
        assert!(matches!(error, CdpError::Refused { message, .. } if message == "no such thing"));
        assert_eq!(
            cdp.wait_event("Target.targetCreated", LIMIT)
                .expect("event")["params"]["n"],
            1
        );
        browser.join().expect("script");
        assert!(matches!(
            cdp.call("Late", json!({}), LIMIT),
            Err(CdpError::Closed | CdpError::Io(_))
        ));
    }

    #[test]
    fn silence_is_a_timeout_and_garbage_an_error() {
        let (mut cdp, _browser) = scripted(&[b"", b"not json\0"]);
        let started = Instant::now();
        assert!(
            matches!(cdp.call("A", json!({}), Duration::from_millis(50)), Err(CdpError::Timeout(method)) if method == "A")
        );
        assert!(started.elapsed() < LIMIT);
        assert!(matches!(
            cdp.call("B", json!({}), LIMIT),
            Err(CdpError::Malformed(_))
        ));
    }

    #[test]
    fn nothing_is_lost_when_the_pipe_is_handed_on() {
        let (mut cdp, browser) =
            scripted(&[b"{\"method\":\"E\"}\0{\"id\":ID,\"result\":{}}\0{\"id\":7,\"re"]);
        cdp.call("A", json!({}), LIMIT).expect("answer");
        browser.join().expect("script");
        // What is still in the pipe may or may not have been read along with the answer.
        let parts = cdp.into_parts();
        let mut rest = parts.unread;
        File::from(parts.from_browser)
            .read_to_end(&mut rest)
            .expect("rest");
        assert_eq!(rest, b"{\"method\":\"E\"}\0{\"id\":7,\"re");
    }
}
