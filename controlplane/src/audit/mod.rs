//! The audit log: a row is committed before an action is forwarded, and its outcome afterwards.
//!
//! Rows are appended by one writer, which commits everything that waits with one transaction. Each row has the hash of the row
//! before it, and the head of the chain is signed from time to time.

mod heads;
mod redact;
mod verify;
mod writer;

pub use heads::StartError;
pub use redact::redact;
pub use verify::{Problem, Report, verify};

use crate::access::Caller;
use crate::config::AuditConfig;
use crate::error::{ApiError, ErrorCode};
use crate::ids::SessionId;
use crate::store::{NewAudit, Store};
use crate::time::now;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use writer::{Item, Queue, Refused};

/// What is written before an action.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Who: [`Caller::name`], or `service` for what the service does by itself.
    pub actor: String,
    /// The tenant.
    pub tenant: String,
    /// The session, for verbs that have one.
    pub session: Option<SessionId>,
    /// The verb.
    pub verb: String,
    /// The parameters, redacted.
    pub params: Value,
}

impl Entry {
    /// An entry of this caller.
    pub fn of(caller: &Caller, verb: &str, session: Option<&SessionId>, params: Value) -> Self {
        Self {
            actor: caller.name(),
            tenant: caller.tenant.to_string(),
            session: session.cloned(),
            verb: verb.to_owned(),
            params,
        }
    }
}

/// A row that was begun and needs an outcome. Dropping it writes the outcome `cancelled`.
pub struct Begun {
    queue: Arc<Queue>,
    /// The row of the outcome; taken when it was written.
    end: Option<NewAudit>,
    /// Set by the writer when the call was refused: there is no outcome then.
    refused: Arc<AtomicBool>,
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").field("verb", &self.end.as_ref().map(|end| &end.verb)).finish_non_exhaustive()
    }
}

impl Begun {
    /// Write the outcome: `ok`, or the error's code. It does not wait for the commit.
    pub fn end(mut self, outcome: Result<(), &ApiError>) {
        self.write(outcome.map_or_else(ApiError::code, |()| "ok"));
    }

    /// The session, if the verb made it: `open_session` has none when it begins.
    pub fn set_session(&mut self, session: &SessionId) {
        if let Some(end) = &mut self.end {
            end.session = Some(session.clone());
        }
    }

    fn write(&mut self, outcome: &str) {
        if let Some(mut end) = self.end.take() {
            end.at = now();
            end.outcome = Some(outcome.to_owned());
            self.queue.push(Item::kept(end, None, self.refused.clone()));
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.write(ErrorCode::Cancelled.word());
    }
}

/// How the audit log is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditStatus {
    /// Whether the last commit succeeded.
    pub healthy: bool,
    /// The number of the last row.
    pub head: i64,
    /// Rows that are not committed yet.
    pub waiting: usize,
    /// Rows that were given up since the start because too many waited. A row with the verb `audit_lost` says so in the log.
    pub lost: u64,
}

/// The writer of the audit log. Clones share it.
#[derive(Debug, Clone)]
pub struct Audit {
    queue: Arc<Queue>,
}

/// How long [`Audit::begin_always`] waits for a commit.
const ALWAYS_WAIT: Duration = Duration::from_secs(1);

impl Audit {
    /// Start the writer. The state folder has the signing key `audit-key`, the signed heads `audit-heads.jsonl`, and rows that could
    /// not be written before the last stop, `audit-unwritten.jsonl`.
    pub async fn start(store: Store, state_folder: &Path, config: &AuditConfig) -> Result<Self, StartError> {
        let heads = heads::Heads::open(state_folder)?;
        let queue = writer::start(store, heads, state_folder, config).await?;
        Ok(Self { queue })
    }

    /// Commit an entry. Nothing may be forwarded before this returns Ok. Err is `audit_unavailable`.
    pub async fn begin(&self, entry: Entry) -> Result<Begun, ApiError> {
        let (begin, begun) = self.rows(entry);
        let (item, answer) = Item::refusable(begin, begun.refused.clone());
        let refused = match self.queue.offer(item) {
            Err(refused) => refused,
            Ok(()) => match answer.await {
                Ok(Ok(())) => return Ok(begun),
                Ok(Err(refused)) => refused,
                Err(_) => Refused::Stopped,
            },
        };
        Err(match refused {
            Refused::Stopped => ApiError::new(ErrorCode::ShuttingDown, "the service is stopping"),
            Refused::Full => {
                ApiError::new(ErrorCode::AuditUnavailable, "too many calls wait for the audit log")
                    .retry_after(Duration::from_secs(1))
            }
            Refused::Store(message) => ApiError::new(
                ErrorCode::AuditUnavailable,
                format!("the audit log cannot be written, so nothing was done: {message}"),
            )
            .retry_after(Duration::from_secs(1)),
        })
    }

    /// Like `begin`, for closing and revoking, which go on if the log cannot be written: the row is kept in memory (bounded)
    /// and written when it works again.
    pub async fn begin_always(&self, entry: Entry) -> Begun {
        let (begin, begun) = self.rows(entry);
        let (answer, committed) = tokio::sync::oneshot::channel();
        self.queue.push(Item::kept(begin, Some(answer), begun.refused.clone()));
        if self.queue.healthy() {
            // The first attempt is answered also when it fails; the row is kept then.
            let _ = tokio::time::timeout(ALWAYS_WAIT, committed).await;
        }
        begun
    }

    /// How the log is.
    pub fn status(&self) -> AuditStatus {
        self.queue.status()
    }

    /// Check the whole log and its signed heads.
    pub async fn verify(&self) -> Result<Report, ApiError> {
        self.queue.verify().await
    }

    /// Commit what waits, sign the head, and stop. What cannot be committed within the time is written to a file beside the
    /// signing key and committed at the next start. Later calls of `begin` are refused.
    pub async fn stop(&self, wait: Duration) {
        self.queue.stop(wait).await;
    }

    fn rows(&self, entry: Entry) -> (NewAudit, Begun) {
        let begin = NewAudit {
            at: now(),
            call: uuid::Uuid::new_v4().simple().to_string(),
            event: "begin",
            actor: entry.actor,
            tenant: entry.tenant,
            session: entry.session,
            verb: entry.verb,
            params: Some(redact::bounded(&entry.params)),
            outcome: None,
        };
        let end = NewAudit { event: "end", params: None, ..begin.clone() };
        (begin, Begun { queue: self.queue.clone(), end: Some(end), refused: Arc::default() })
    }
}
