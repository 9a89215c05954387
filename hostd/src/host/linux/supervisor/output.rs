//! The recent output of a clone: what its programs write to their standard error, and the supervisor's own messages.
//!
//! A program in a clone may be hostile, so it holds the write end of a pipe and never a file of the host. The supervisor
//! reads the pipe at a limited rate and keeps the last lines, with control characters escaped. It writes them to the file
//! `log` of the run folder, which is therefore never larger than [`KEPT`]. A program that writes without end waits for the
//! reader; the supervisor neither waits nor grows.

use cdp_pipe::Throttle;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much of the output is kept, in memory and in the file.
pub(in crate::host::linux) const KEPT: usize = 64 << 10;
/// Empty lines take memory, too.
const KEPT_LINES: usize = 1024;
/// A longer line is split.
const LONGEST_LINE: usize = 4 << 10;
/// How many of the last lines an error message has, and how long they may be together.
const LINES_IN_ERRORS: usize = 5;
const BYTES_IN_ERRORS: usize = 4 << 10;
/// How fast a clone's output is read.
const BYTES_PER_SECOND: u64 = 256 << 10;
const BURST: u64 = 1 << 20;
/// How often the output of a clone is written to the file at most.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a failed start waits for the rest of the output of processes that were killed.
const REST_TIMEOUT: Duration = Duration::from_millis(200);

/// The recent output, in memory and in the file.
#[derive(Debug)]
pub(super) struct OutputLog {
    file: File,
    state: Mutex<LogState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct LogState {
    /// Each ends with a line break.
    lines: VecDeque<String>,
    bytes: usize,
    /// The beginning of a line.
    unfinished: Vec<u8>,
    /// Whether the output of a program is being read.
    is_reading: bool,
}

impl OutputLog {
    /// An empty log in this file.
    pub(super) fn create(path: &Path) -> io::Result<OutputLog> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        Ok(OutputLog { file, state: Mutex::default(), ended: Condvar::new() })
    }

    /// Record a message of the supervisor itself.
    pub(super) fn note(&self, message: impl std::fmt::Display) {
        let line = format!("supervisor: {message}");
        self.lock().push(line.as_bytes());
        self.write();
    }

    /// The last lines, for an error message. For a program that has ended.
    pub(super) fn recent(&self) -> String {
        last_lines(self.rest().lines.iter().map(String::as_str))
    }

    /// Wait for the output that a program left in the pipe when it ended.
    fn rest(&self) -> MutexGuard<'_, LogState> {
        let waited = self.ended.wait_timeout_while(self.lock(), REST_TIMEOUT, |state| state.is_reading);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Record why the supervisor ends, after everything that its program wrote.
    pub(super) fn close(&self, reason: &str) {
        drop(self.rest());
        self.note(reason);
    }

    /// Read the output of a sandbox's program on a thread of its own until the last process has closed its end.
    pub(super) fn follow(log: &Arc<OutputLog>, pipe: OwnedFd) -> io::Result<()> {
        log.lock().is_reading = true;
        let log = log.clone();
        let thread = std::thread::Builder::new().name("output".into()).stack_size(128 << 10);
        let throttle = Throttle::new(BYTES_PER_SECOND, BURST, Instant::now());
        thread.spawn(move || log.read(pipe.into(), throttle, std::thread::sleep)).map(drop)
    }

    fn read(&self, mut pipe: File, mut throttle: Throttle, pause: impl Fn(Duration)) {
        let mut chunk = vec![0; 16 << 10];
        let mut written = Instant::now() - WRITE_INTERVAL;
        let mut is_written = true;
        loop {
            let due = WRITE_INTERVAL.saturating_sub(written.elapsed());
            if !is_written && (due.is_zero() || !is_readable(&pipe, due)) {
                self.write();
                (written, is_written) = (Instant::now(), true);
                continue;
            }
            match pipe.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    self.lock().append(&chunk[..count]);
                    is_written = false;
                    pause(throttle.spend(count as u64, Instant::now()));
                }
            }
        }
        let mut state = self.lock();
        state.finish_line();
        state.is_reading = false;
        drop(state);
        self.ended.notify_all();
        self.write();
    }

    /// Write the log to its file.
    fn write(&self) {
        let text: String = {
            let state = self.lock();
            state.lines.iter().map(String::as_str).collect()
        };
        // A full disk costs the log and nothing else.
        let _ =
            self.file.write_all_at(text.as_bytes(), 0).and_then(|()| self.file.set_len(text.len() as u64));
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_readable(pipe: &File, limit: Duration) -> bool {
    let milliseconds = u16::try_from(limit.as_millis()).unwrap_or(u16::MAX).max(1);
    let mut watched = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    // After an error the read tells what is wrong.
    poll(&mut watched, PollTimeout::from(milliseconds)) != Ok(0)
}

impl LogState {
    fn append(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in part.chunks(LONGEST_LINE) {
                self.unfinished.extend_from_slice(piece);
                if piece.ends_with(b"\n") || self.unfinished.len() >= LONGEST_LINE {
                    self.finish_line();
                }
            }
        }
    }

    fn finish_line(&mut self) {
        let line = std::mem::take(&mut self.unfinished);
        if !line.is_empty() {
            self.push(&line);
        }
    }

    fn push(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut line = printable(&String::from_utf8_lossy(line));
        line.push('\n');
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > KEPT || self.lines.len() > KEPT_LINES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }
}

/// The text with everything escaped that could change what a terminal shows: control characters, and those that are not
/// visible or change the direction of writing.
pub(in crate::host::linux) fn printable(text: &str) -> String {
    safe_text::line(text).into_owned()
}

/// The last of some lines, in one line.
pub(in crate::host::linux) fn last_lines<'a>(lines: impl DoubleEndedIterator<Item = &'a str>) -> String {
    let mut last: Vec<&str> = lines.rev().take(LINES_IN_ERRORS).map(str::trim_end).collect();
    last.reverse();
    let mut text = last.join(" | ");
    if text.is_empty() {
        return "(no output)".into();
    }
    let mut start = text.len().saturating_sub(BYTES_IN_ERRORS);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.split_off(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::io::Write;

    fn log() -> (tempfile::TempDir, std::path::PathBuf, Arc<OutputLog>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Arc::new(OutputLog::create(&path).unwrap());
        (folder, path, log)
    }

    fn pipe() -> (OwnedFd, File) {
        let (read, write) = nix::unistd::pipe().unwrap();
        (read, write.into())
    }

    #[test]
    fn the_last_lines_are_kept_and_escaped() {
        let (_folder, path, log) = log();
        let (read, mut write) = pipe();
        OutputLog::follow(&log, read).unwrap();
        write
            .write_all("one\n\x1b]0;title\x07 and \u{202e}backwards é \"quoted\"\nno end".as_bytes())
            .unwrap();
        drop(write);
        assert_eq!(log.recent(), "one | \\u{1b}]0;title\\u{7} and \\u{202e}backwards é \"quoted\" | no end");
        log.note("the browser ended");
        let file = std::fs::read_to_string(path).unwrap();
        assert!(file.ends_with("no end\nsupervisor: the browser ended\n"), "{file:?}");
    }

    #[test]
    fn output_without_end_is_bounded_and_read_slowly() {
        let (_folder, path, log) = log();
        for part in [&b"line\n"[..], b"no line break ever", b"\0", "\u{202e}".as_bytes(), b"\n"] {
            let (read, mut write) = pipe();
            let flood = part.repeat((64 << 10) / part.len());
            let writer = std::thread::spawn(move || {
                for _ in 0..64 {
                    write.write_all(&flood).unwrap();
                }
            });
            let paused = Cell::new(Duration::ZERO);
            // The time of the test stands still for the throttle's purposes: what is spent is never refilled.
            let throttle = Throttle::new(BYTES_PER_SECOND, 0, Instant::now() + Duration::from_secs(3600));
            log.read(read.into(), throttle, |time| paused.set(paused.get() + time));
            writer.join().unwrap();
            assert!(paused.get() > Duration::from_secs(10), "{:?}", paused.get());
            let state = log.lock();
            assert!(
                state.bytes <= KEPT && state.unfinished.capacity() <= 2 * LONGEST_LINE,
                "{}",
                state.bytes
            );
            assert!(std::fs::metadata(&path).unwrap().len() <= KEPT as u64);
            drop(state);
            assert!(log.recent().len() <= BYTES_IN_ERRORS);
        }
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, path) = (folder.path().join("victim"), folder.path().join("log"));
        std::fs::write(&victim, "content").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert_eq!(OutputLog::create(&path).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "content");
    }
}
