//! A plain client: one JSON message a line, threads and blocking sockets, nothing shared with the daemon's own client.
//! The tests over the fake FreeBSD use it too. How long it waits is its user's `PATIENCE`.

use super::PATIENCE;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// An error answer.
#[derive(Debug)]
pub struct Refused {
    pub code: String,
    pub message: String,
    pub hint: String,
}

/// Why a call has no result.
#[derive(Debug)]
pub enum CallError {
    /// The daemon is not there, or went away before it answered.
    Gone(io::Error),
    /// It answered with an error.
    Refused(Refused),
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    lines: BufReader<UnixStream>,
    last_id: u64,
}

impl Wire {
    /// Connect once.
    pub fn connect(socket: &Path) -> io::Result<Wire> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE * 5))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Wire { lines: BufReader::new(stream), last_id: 0 })
    }

    /// One request, one answer; notifications in between are skipped.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, CallError> {
        self.last_id += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params});
        self.lines.get_mut().write_all(format!("{request}\n").as_bytes()).map_err(CallError::Gone)?;
        loop {
            let mut answer = self.read_line().map_err(CallError::Gone)?;
            if answer["id"] != self.last_id {
                continue;
            }
            if let Some(error) = answer.get("error") {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                return Err(CallError::Refused(Refused {
                    code: text(&error["data"]["code"]),
                    message: text(&error["message"]),
                    hint: text(&error["data"]["hint"]),
                }));
            }
            return Ok(answer["result"].take());
        }
    }

    fn read_line(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        let length = self.lines.read_line(&mut line)?;
        if length == 0 || !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}

/// Ask until there is an answer, for as long as [`PATIENCE`].
pub fn wait_for<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if began.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
