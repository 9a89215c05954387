//! The audit log: one JSON line before and one after every call that changes the host.
//!
//! The line before a create is on disk before the first effect; a create whose line cannot be written is refused. Removing
//! a clone never waits for a disk that works: lines that cannot be written are kept in a bounded [`reserve`] and written
//! later, in order. Then a line with the phase `resumed` says how many did not fit. Refused calls are counted, and each
//! flush writes one line per caller, method and result.
//!
//! Nothing in a request is secret by design, so requests are logged completely.

mod file;
mod reserve;

use crate::api::Method;
use file::LogFile;
use reserve::Reserve;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many kinds of refusals are counted apart until the next flush. More are counted together.
const MOST_REFUSALS: usize = 1000;

/// Who asked: a peer on the socket, or hostd itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// A caller, identified by the kernel.
    Peer {
        /// User id.
        uid: u32,
        /// Process id, where known.
        pid: Option<i32>,
    },
    /// A part of the daemon, such as the deadline timer.
    Hostd(&'static str),
}

#[derive(Serialize)]
struct Line<'a, T> {
    time: String,
    call: u64,
    phase: &'static str,
    actor: &'a Actor,
    method: Method,
    #[serde(flatten)]
    detail: T,
}

#[derive(Serialize)]
struct Before<'a> {
    request: &'a serde_json::Value,
}

/// How a call ended, for its second line.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// `ok` or the error's code.
    pub result: String,
    /// The clone it was about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The error's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long the call took.
    pub seconds: f64,
}

/// The number of refused calls by caller, method and error. Callers beyond the limit are counted as one.
type Refusals = BTreeMap<(Option<Actor>, Method, &'static str), u64>;

/// The log.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    log: Mutex<Log>,
    refusals: Mutex<Refusals>,
    calls: AtomicU64,
}

/// What one writer at a time uses.
#[derive(Debug, Default)]
struct Log {
    /// `None`: it could not be opened or written, and the next write opens it again.
    file: Option<LogFile>,
    /// The last write failed. The next one that succeeds marks the gap.
    failing: bool,
    reserve: Reserve,
}

impl Audit {
    /// Open or make the log, readable by its owner only. A disk that is full or read-only is no error here: creates are
    /// refused until the log can be written.
    pub fn open(path: &Path) -> io::Result<Audit> {
        let file = match LogFile::open(path) {
            Ok(file) => Some(file),
            Err(error) if crate::disk::is_disk_failure(&error) => {
                tracing::error!(path = %path.display(), %error, "the audit log cannot be opened; creates are refused");
                None
            }
            Err(error) => return Err(error),
        };
        let log = Mutex::new(Log { failing: file.is_none(), file, reserve: Reserve::default() });
        Ok(Audit { path: path.to_owned(), log, refusals: Mutex::default(), calls: AtomicU64::new(0) })
    }

    /// Open the path again, after the log was rotated.
    pub fn reopen(&self) -> io::Result<()> {
        let file = LogFile::open(&self.path)?;
        self.lock().file = Some(file);
        Ok(())
    }

    /// The line before a create, on disk when this returns. Its number goes into the line after.
    pub fn before(&self, actor: &Actor, method: Method, request: &serde_json::Value) -> io::Result<u64> {
        let call = self.next_call();
        let line = line("before", call, actor, method, Before { request })?;
        self.lock().write(&self.path, &line)?.sync_data()?;
        Ok(call)
    }

    /// The line before a removal. If it cannot be written, it is kept for later and the error is returned beside its number.
    pub fn before_removal(
        &self,
        actor: &Actor,
        method: Method,
        request: &serde_json::Value,
    ) -> (u64, io::Result<()>) {
        let call = self.next_call();
        let written = line("before", call, actor, method, Before { request })
            .and_then(|line| self.write_or_keep(line))
            .and_then(|file| file.sync_data());
        (call, written)
    }

    /// The line after the call. If it cannot be written, it is kept for later. It is not synced: a loss of power may take
    /// it, as it may take the end of the call itself, and the line before says that there was one.
    pub fn after(&self, call: u64, actor: &Actor, method: Method, outcome: &Outcome) -> io::Result<()> {
        line("after", call, actor, method, outcome).and_then(|line| self.write_or_keep(line)).map(drop)
    }

    /// Count a call that was refused before it changed anything. The next [`Audit::flush`] writes the number.
    pub fn refused(&self, actor: &Actor, method: Method, result: &'static str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let actor = match actor {
            // The process does not matter: a caller may use a new one for every call.
            Actor::Peer { uid, .. } => Actor::Peer { uid: *uid, pid: None },
            hostd => hostd.clone(),
        };
        let key = (Some(actor), method, result);
        let key = match refusals.contains_key(&key) || refusals.len() < MOST_REFUSALS {
            true => key,
            false => (None, method, result),
        };
        *refusals.entry(key).or_default() += 1;
    }

    /// Write what waits: lines that could not be written before, and the numbers of refused calls.
    pub fn flush(&self) -> io::Result<()> {
        let mut log = self.lock();
        log.catch_up(&self.path)?;
        let refusals = std::mem::take(&mut *self.refusals.lock().unwrap_or_else(PoisonError::into_inner));
        for ((actor, method, result), count) in refusals {
            let line = json_line(&serde_json::json!({
                "time": now(), "phase": "refused", "actor": actor, "method": method, "result": result, "count": count,
            }))?;
            if log.write(&self.path, &line).is_err() {
                log.reserve.keep(line);
            }
        }
        Ok(())
    }

    /// Why the log cannot be written now, if it cannot. Nothing is written.
    pub fn problem(&self) -> Option<String> {
        let mut log = self.lock();
        let opened = log.open(&self.path).map(drop);
        let (waiting, lost) = (log.reserve.waiting(), log.reserve.lost());
        match opened {
            Err(error) => Some(error.to_string()),
            Ok(()) if log.failing => {
                Some(format!("the last write failed; {waiting} lines wait, {lost} are lost"))
            }
            Ok(()) => None,
        }
    }

    /// How many lines wait in memory, and how many did not fit.
    pub fn waiting(&self) -> (usize, u64) {
        let log = self.lock();
        (log.reserve.waiting(), log.reserve.lost())
    }

    fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_or_keep(&self, line: Vec<u8>) -> io::Result<Arc<File>> {
        let mut log = self.lock();
        let written = log.write(&self.path, &line);
        if written.is_err() && !log.reserve.keep(line) {
            tracing::error!("an audit line is lost: the reserve is full");
        }
        written
    }
}

impl Log {
    /// Append a line after those that wait. Returns the file, to sync it without keeping other writers waiting.
    fn write(&mut self, path: &Path, line: &[u8]) -> io::Result<Arc<File>> {
        self.catch_up(path)?;
        self.append(path, line)
    }

    /// Write the lines that wait.
    fn catch_up(&mut self, path: &Path) -> io::Result<()> {
        while let Some(line) = self.reserve.oldest().map(<[u8]>::to_vec) {
            self.append(path, &line)?;
            self.reserve.remove_oldest();
        }
        if self.failing {
            let lost = self.reserve.lost();
            self.append(
                path,
                &json_line(&serde_json::json!({ "time": now(), "phase": "resumed", "lost": lost }))?,
            )?;
            self.reserve.forget_lost();
            self.failing = false;
        }
        Ok(())
    }

    fn append(&mut self, path: &Path, line: &[u8]) -> io::Result<Arc<File>> {
        let appended = self.open(path).and_then(|file| file.append(line).map(|()| file.handle()));
        if appended.is_err() {
            // The next write opens and checks it again.
            self.file = None;
            self.failing = true;
        }
        appended
    }

    fn open(&mut self, path: &Path) -> io::Result<&mut LogFile> {
        let file = match self.file.take().filter(LogFile::has_name) {
            Some(file) => file,
            None => LogFile::open(path)?,
        };
        Ok(self.file.insert(file))
    }
}

fn line<T: Serialize>(
    phase: &'static str,
    call: u64,
    actor: &Actor,
    method: Method,
    detail: T,
) -> io::Result<Vec<u8>> {
    json_line(&Line { time: now(), call, phase, actor, method, detail })
}

/// One line. Hidden characters are escaped: people read this log on terminals.
fn json_line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = safe_text::json(&serde_json::to_string(value)?).into_owned();
    line.push('\n');
    Ok(line.into_bytes())
}

fn now() -> String {
    humantime::format_rfc3339_micros(std::time::SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests;
