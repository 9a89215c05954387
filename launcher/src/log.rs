//! The browser's error output: its end is kept for error messages, it can be passed on, and it is searched for the
//! line that announces the debugging port.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How many bytes of the end of the log are kept.
const KEPT: usize = 8 * 1024;
const ANNOUNCEMENT: &str = "DevTools listening on ";
/// There is no message bus inside, and the browser reports that dozens of times.
const NOISE: &[&str] = &["ERROR:dbus/bus.cc", "ERROR:dbus/object_proxy.cc"];

#[derive(Debug)]
pub(crate) struct Log {
    reader: Arc<LogReader>,
}

#[derive(Debug, Default)]
struct LogReader {
    state: Mutex<LogContent>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogContent {
    tail: String,
    announced: Option<String>,
    ended: bool,
}

impl Log {
    /// Reads until the browser closes its end. The announcement is not passed on: the launcher makes it after it has
    /// verified the browser.
    pub(crate) fn follow(from: OwnedFd, pass_on: bool) -> std::io::Result<Log> {
        let reader = Arc::new(LogReader::default());
        let writer = Arc::clone(&reader);
        let thread = std::thread::Builder::new().name("browser-log".into()).stack_size(128 * 1024);
        thread.spawn(move || writer.read(BufReader::new(File::from(from)), pass_on))?;
        Ok(Log { reader })
    }

    /// The last lines.
    pub(crate) fn tail(&self) -> String {
        // The last lines of a browser that just ended may not have been read yet.
        let (state, _) = self
            .reader
            .changed
            .wait_timeout_while(self.reader.lock(), Duration::from_millis(200), |state| !state.ended)
            .expect("the log thread does not panic");
        state.tail.trim_end().to_owned()
    }

    /// The address that the browser announced for its debugging port.
    pub(crate) fn announced(&self, limit: Duration) -> Option<String> {
        let waiting = |state: &mut LogContent| state.announced.is_none() && !state.ended;
        let (state, _) = self
            .reader
            .changed
            .wait_timeout_while(self.reader.lock(), limit, waiting)
            .expect("the log thread does not panic");
        state.announced.clone()
    }
}

impl LogReader {
    fn lock(&self) -> MutexGuard<'_, LogContent> {
        self.state.lock().expect("the log thread does not panic")
    }

    fn read(&self, mut from: impl BufRead, pass_on: bool) {
        let mut line = Vec::new();
        // A line longer than the limit is split.
        while let Ok(1..) = std::io::Read::take(&mut from, KEPT as u64).read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line);
            if let Some(address) = text.trim().strip_prefix(ANNOUNCEMENT) {
                self.lock().announced = Some(address.to_owned());
            } else if !NOISE.iter().any(|noise| text.contains(noise)) {
                self.lock().keep(&text);
                if pass_on {
                    // A closed standard error is not a reason to stop reading.
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

impl LogContent {
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
        let log = log_of(b"one\n\nDevTools listening on ws://127.0.0.1:9/devtools/browser/x\ntwo\n");
        assert_eq!(
            log.announced(Duration::from_secs(5)).as_deref(),
            Some("ws://127.0.0.1:9/devtools/browser/x")
        );
        assert_eq!(log.tail(), "one\n\ntwo");
    }

    #[test]
    fn only_the_end_is_kept_and_invalid_utf8_is_accepted() {
        let mut text = "é".repeat(KEPT).into_bytes();
        text.extend_from_slice(b"\xff\xfe\nlast line");
        let log = log_of(&text);
        assert_eq!(log.announced(Duration::from_secs(5)), None);
        let tail = log.tail();
        assert!(tail.len() <= KEPT && tail.ends_with("last line"), "{}", tail.len());
    }
}
