//! What the browser writes to its standard error: kept for error messages, passed on if wanted, and searched for the
//! line by which port clients learn the address.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Enough for the last words of a browser, not for its life story.
const KEPT: usize = 8 * 1024;
const ANNOUNCEMENT: &str = "DevTools listening on ";
/// There is no message bus inside, by design; the browser does without and says so dozens of times.
const NOISE: &[&str] = &["ERROR:dbus/bus.cc", "ERROR:dbus/object_proxy.cc"];

#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    tail: String,
    announced: Option<String>,
    ended: bool,
}

impl Log {
    /// Reads until the browser closes its end. The announcement is never passed on: it is the launcher's to make, when
    /// the browser has proved itself.
    pub(crate) fn follow(from: OwnedFd, pass_on: bool) -> std::io::Result<Log> {
        let shared = Arc::new(Shared::default());
        let writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("browser-log".into())
            .stack_size(128 * 1024);
        thread.spawn(move || writer.read(BufReader::new(File::from(from)), pass_on))?;
        Ok(Log { shared })
    }

    /// The last lines.
    pub(crate) fn tail(&self) -> String {
        // The last words of a browser that just ended may still be on their way.
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), Duration::from_millis(200), |state| {
                !state.ended
            })
            .expect("the log thread does not panic");
        state.tail.trim_end().to_owned()
    }

    /// The address that the browser announced for its debugging port.
    pub(crate) fn announced(&self, limit: Duration) -> Option<String> {
        let waiting = |state: &mut State| state.announced.is_none() && !state.ended;
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), limit, waiting)
            .expect("the log thread does not panic");
        state.announced.clone()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the log thread does not panic")
    }

    fn read(&self, mut from: impl BufRead, pass_on: bool) {
        let mut line = Vec::new();
        // A line without end is cut rather than collected.
        while let Ok(1..) = std::io::Read::take(&mut from, KEPT as u64).read_until(b'\n', &mut line)
        {
            let text = String::from_utf8_lossy(&line);
            if let Some(address) = text.trim().strip_prefix(ANNOUNCEMENT) {
                self.lock().announced = Some(address.to_owned());
            } else if !NOISE.iter().any(|noise| text.contains(noise)) {
                self.lock().keep(&text);
                if pass_on {
                    // Nobody to tell when our own standard error is gone.
                    let _ = std::io::stderr().write_all(&line);
                }
            }
            self.changed.notify_all();
            line.clear();
        }
        self.lock().ended = true;
        self.changed.notify_all();
    }
}

impl State {
    fn keep(&mut self, text: &str) {
        self.tail.push_str(text);
        if self.tail.len() > KEPT {
            let mut cut = self.tail.len() - KEPT;
            while !self.tail.is_char_boundary(cut) {
                cut += 1;
            }
            self.tail.drain(..cut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(text: &[u8]) -> Log {
        let (read, write) = nix::unistd::pipe().expect("pipe");
        let log = Log::follow(read, false).expect("thread");
        File::from(write).write_all(text).expect("write");
        log
    }

    #[test]
    fn the_announcement_is_found_and_the_rest_kept() {
        let log =
            log_of(b"one\n\nDevTools listening on ws://127.0.0.1:9/devtools/browser/x\ntwo\n");
        assert_eq!(
            log.announced(Duration::from_secs(5)).as_deref(),
            Some("ws://127.0.0.1:9/devtools/browser/x")
        );
        assert_eq!(log.tail(), "one\n\ntwo");
    }

    #[test]
    fn only_the_end_is_kept_and_bad_text_does_no_harm() {
        let mut text = "é".repeat(KEPT).into_bytes();
        text.extend_from_slice(b"\xff\xfe\nlast words");
        let log = log_of(&text);
        assert_eq!(log.announced(Duration::from_secs(5)), None);
        let tail = log.tail();
        assert!(
            tail.len() <= KEPT && tail.ends_with("last words"),
            "{}",
            tail.len()
        );
    }
}
