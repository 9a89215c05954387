//! The browser's error output: its end is kept for error messages, it can be passed on, and it is searched for the
//! line that announces the debugging port.
//!
//! Pages and a compromised browser choose parts of it. Hidden characters are escaped, and only a bounded amount is
//! passed on, because the launcher's standard error may be a terminal or a file on a disk.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How many bytes of the end of the log are kept.
const KEPT: usize = 8 * 1024;
/// How many bytes are passed on at once, and how many more each second.
const BURST: usize = 1 << 20;
const BYTES_PER_SECOND: usize = 64 * 1024;
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
pub(crate) struct LogContent {
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
        self.settled().tail.trim_end().to_owned()
    }

    /// Waits a moment: the last lines of a browser that just ended may not have been read yet.
    pub(crate) fn settled(&self) -> impl Deref<Target = LogContent> {
        let (state, _) = self
            .reader
            .changed
            .wait_timeout_while(self.reader.lock(), Duration::from_millis(200), |state| !state.ended)
            .expect("the log thread does not panic");
        state
    }

    /// The address that the browser announced first for its debugging port.
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
        let mut allowance = Allowance::new(Instant::now());
        // A line longer than the limit is split.
        while let Ok(1..) = std::io::Read::take(&mut from, KEPT as u64).read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line);
            if let Some(address) = text.trim().strip_prefix(ANNOUNCEMENT) {
                // Later announcements are text of a page.
                let mut state = self.lock();
                if state.announced.is_none() && port_of(address).is_some() {
                    state.announced = Some(address.to_owned());
                }
            } else if !NOISE.iter().any(|noise| text.contains(noise)) {
                let text = safe_text::lines(&text);
                self.lock().keep(&text);
                if pass_on {
                    let shown = allowance.take(&text, Instant::now());
                    // A closed standard error is not a reason to stop reading.
                    let _ = std::io::stderr().write_all(shown.as_bytes());
                }
            }
            self.changed.notify_all();
            line.clear();
        }
        self.lock().ended = true;
        self.changed.notify_all();
    }
}

/// The port of an address as Chromium announces it: `ws://127.0.0.1:PORT/devtools/browser/ID`. `None` for any other text.
pub(crate) fn port_of(address: &str) -> Option<u16> {
    let (port, path) = address.strip_prefix("ws://127.0.0.1:")?.split_once('/')?;
    let id = path.strip_prefix("devtools/browser/")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let valid = (1..=100).contains(&id.len()) && id.bytes().all(plain);
    valid.then(|| port.parse().ok())?
}

/// How much may still be passed on.
#[derive(Debug)]
struct Allowance {
    left: usize,
    updated: Instant,
    omitted: usize,
}

impl Allowance {
    fn new(now: Instant) -> Allowance {
        Allowance { left: BURST, updated: now, omitted: 0 }
    }

    /// The text to pass on: nothing if the allowance is used up, and a notice before the first text afterwards.
    fn take(&mut self, text: &str, now: Instant) -> String {
        let seconds = now.duration_since(self.updated).as_secs();
        self.updated += Duration::from_secs(seconds);
        let earned = usize::try_from(seconds).unwrap_or(usize::MAX).saturating_mul(BYTES_PER_SECOND);
        self.left = self.left.saturating_add(earned).min(BURST);
        if text.len() > self.left {
            self.omitted += text.len();
            return String::new();
        }
        self.left -= text.len();
        match std::mem::take(&mut self.omitted) {
            0 => text.to_owned(),
            omitted => {
                format!("browser-launcher: {omitted} bytes of the browser's log were left out\n{text}")
            }
        }
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
    fn only_an_address_of_this_machine_is_an_announcement() {
        let log = log_of(
            b"DevTools listening on ws://evil.example:9/devtools/browser/x\n\
              DevTools listening on ws://127.0.0.1:7/devtools/browser/real\n\
              DevTools listening on ws://127.0.0.1:8/devtools/browser/later\n",
        );
        log.tail();
        let first = log.announced(Duration::from_secs(5));
        assert_eq!(first.as_deref(), Some("ws://127.0.0.1:7/devtools/browser/real"));
        assert_eq!(port_of("ws://127.0.0.1:7/devtools/browser/real"), Some(7));
        for wrong in [
            "ws://127.0.0.1:70000/devtools/browser/x",
            "ws://127.0.0.1:7@evil/devtools/browser/x",
            "ws://127.0.0.1:7/devtools/browser/",
            "ws://127.0.0.1:7/devtools/browser/x\x1b[2J",
            "ws://127.0.0.1:7/devtools/browser/../../x",
        ] {
            assert_eq!(port_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hidden_characters_are_escaped() {
        let log = log_of("\x1b[2J\u{9b}31m \u{202e}moc.elgoog\n".as_bytes());
        assert_eq!(log.announced(Duration::from_secs(5)), None);
        assert_eq!(log.tail(), "\\u{1b}[2J\\u{9b}31m \\u{202e}moc.elgoog");
    }

    #[test]
    fn a_flood_is_not_passed_on() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        let line = "x".repeat(1000);
        let passed: usize = (0..100_000).map(|_| allowance.take(&line, start).len()).sum();
        assert!((BURST - 1000..=BURST).contains(&passed), "{passed}");
        let later = allowance.take("later\n", start + Duration::from_secs(2));
        assert!(later.starts_with("browser-launcher: ") && later.ends_with("left out\nlater\n"), "{later}");
        assert_eq!(allowance.left, 2 * BYTES_PER_SECOND - 6 + BURST % 1000);
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
