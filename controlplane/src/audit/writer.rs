//! The one task that appends to the log.
//!
//! Rows wait in a queue. The task takes what waits, commits it with one transaction, and answers everyone. If the commit fails,
//! calls that may be refused are refused; the others (outcomes, and the beginnings of closing and revoking) go back to the front
//! of the queue.
//!
//! A commit whose answer was lost may have happened. So after a failure, before the next attempt, the task looks which rows are
//! there.

use super::heads::{Heads, StartError, replace};
use super::verify::{Report, verify};
use crate::config::AuditConfig;
use crate::error::{ApiError, ErrorCode};
use crate::ids::SessionId;
use crate::store::{AuditHead, NewAudit, Store, StoreError};
use crate::time::{Millis, now};
use ed25519_dalek::VerifyingKey;
use serde::{Deserialize, Serialize};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Rows of one transaction.
const BATCH: usize = 512;
/// Calls that may wait for a commit; more are refused.
const MAX_WAITING: usize = 4096;
/// Rows that are kept while the database does not work. A row is at most some 16 KiB long, most have 300 bytes.
const MAX_KEPT: usize = 65_536;
/// The size of all rows that wait.
const MAX_BYTES: usize = 32 << 20;
/// How often the task tries again while the database does not work and nobody calls.
const RETRY: Duration = Duration::from_secs(1);

/// Why a call was refused.
#[derive(Debug, Clone)]
pub(super) enum Refused {
    Stopped,
    Full,
    Store(String),
}

type Answer = oneshot::Sender<Result<(), Refused>>;

/// A row that waits.
pub(super) struct Item {
    row: NewAudit,
    /// Whether it stays in the queue after a failure.
    keep: bool,
    answer: Option<Answer>,
    /// Set when the call was refused: an outcome of it is not written.
    refused: Arc<AtomicBool>,
}

impl Item {
    pub(super) fn kept(row: NewAudit, answer: Option<Answer>, refused: Arc<AtomicBool>) -> Self {
        Self { row, keep: true, answer, refused }
    }

    pub(super) fn refusable(
        row: NewAudit,
        refused: Arc<AtomicBool>,
    ) -> (Self, oneshot::Receiver<Result<(), Refused>>) {
        let (answer, receiver) = oneshot::channel();
        (Self { row, keep: false, answer: Some(answer), refused }, receiver)
    }

    fn size(&self) -> usize {
        // The texts, and about as much as the structure needs.
        let row = &self.row;
        512 + row.params.as_ref().map_or(0, String::len) + row.actor.len() + row.verb.len()
    }

    fn answer(&mut self, result: Result<(), Refused>) {
        if let Some(answer) = self.answer.take() {
            // The caller may be gone.
            let _ = answer.send(result);
        }
    }

    fn refuse(mut self, why: &Refused) {
        self.refused.store(true, Ordering::Release);
        self.answer(Err(why.clone()));
    }
}

struct State {
    waiting: VecDeque<Item>,
    /// Rows that are being committed.
    committing: usize,
    bytes: usize,
    healthy: bool,
    /// Until when the task tries to commit what waits, once it was told to stop.
    stop_at: Option<Instant>,
    /// Nothing is written any more.
    stopped: bool,
    /// The last head that was committed or read.
    head: AuditHead,
    lost: u64,
    /// How many of them the log does not mention yet.
    lost_unsaid: u64,
}

/// What callers and the task share.
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
    task: Mutex<Option<JoinHandle<()>>>,
    store: Store,
    heads_file: PathBuf,
    public_key: VerifyingKey,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    /// Queue a call that may be refused.
    pub(super) fn offer(&self, item: Item) -> Result<(), Refused> {
        let mut state = self.lock();
        let refused = if state.stop_at.is_some() {
            Refused::Stopped
        } else if state.waiting.len() >= MAX_WAITING || state.bytes >= MAX_BYTES {
            Refused::Full
        } else {
            state.bytes += item.size();
            state.waiting.push_back(item);
            drop(state);
            self.wake.notify_one();
            return Ok(());
        };
        drop(state);
        item.refused.store(true, Ordering::Release);
        Err(refused)
    }

    /// Queue a row that must be written.
    pub(super) fn push(&self, mut item: Item) {
        if item.refused.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.lock();
        if state.stopped || state.waiting.len() >= MAX_KEPT || state.bytes >= MAX_BYTES {
            state.lost += 1;
            state.lost_unsaid += 1;
            let stopped = state.stopped;
            drop(state);
            let row = &item.row;
            tracing::error!(verb = %row.verb, event = row.event, actor = %row.actor, outcome = row.outcome, stopped,
                "a row of the audit log was lost, because the log could not be written for too long or is closed");
            item.answer(Err(Refused::Full));
            return;
        }
        state.bytes += item.size();
        state.waiting.push_back(item);
        drop(state);
        self.wake.notify_one();
    }

    pub(super) fn healthy(&self) -> bool {
        self.lock().healthy
    }

    pub(super) fn status(&self) -> super::AuditStatus {
        let state = self.lock();
        super::AuditStatus {
            healthy: state.healthy,
            head: state.head.seq,
            waiting: state.waiting.len() + state.committing,
            lost: state.lost,
        }
    }

    pub(super) async fn verify(&self) -> Result<Report, ApiError> {
        let known = self.lock().head.clone();
        Ok(verify(&self.store, &self.public_key, &self.heads_file, Some(&known)).await?)
    }

    pub(super) async fn stop(&self, wait: Duration) {
        self.lock().stop_at.get_or_insert(Instant::now() + wait);
        self.wake.notify_one();
        let task = self.task.lock().expect("not poisoned").take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the writer of the audit log ended with an error");
        }
    }
}

pub(super) async fn start(
    store: Store,
    heads: Heads,
    folder: &Path,
    config: &AuditConfig,
) -> Result<Arc<Queue>, StartError> {
    let unwritten = folder.join("audit-unwritten.jsonl");
    let file_error = |source| StartError::File { path: unwritten.clone(), source };
    let head = store.audit_head().await?;
    let mut last_known = head.seq;
    let mut waiting = VecDeque::new();
    if let Some((after, rows)) = read_unwritten(&unwritten).map_err(file_error)? {
        last_known = after;
        waiting.extend(rows.into_iter().map(|row| Item::kept(row, None, Arc::default())));
    }
    let has_unwritten = !waiting.is_empty();
    let newest =
        heads.newest_own().map_err(|source| StartError::File { path: heads.path().into(), source })?;
    if let Some(newest) = &newest {
        // The program may have ended between the file and the database.
        store.insert_checkpoint(newest).await?;
        if newest.seq > head.seq || (newest.seq == head.seq && newest.hash != head.hash) {
            tracing::error!(
                signed = newest.seq,
                last = head.seq,
                "the audit log does not have the last row that was signed: rows were removed or replaced, or the database was \
                 restored from a backup; check it with `browserctl audit verify`"
            );
        }
    }
    let queue = Arc::new(Queue {
        state: Mutex::new(State {
            bytes: waiting.iter().map(Item::size).sum(),
            waiting,
            committing: 0,
            healthy: true,
            stop_at: None,
            stopped: false,
            head,
            lost: 0,
            lost_unsaid: 0,
        }),
        wake: Notify::new(),
        task: Mutex::new(None),
        store: store.clone(),
        heads_file: heads.path().to_owned(),
        public_key: heads.public_key(),
    });
    let mut writer = Writer {
        queue: queue.clone(),
        store,
        heads: Some(heads),
        unwritten: unwritten.clone(),
        sign_every: Duration::from_secs(config.sign_every_seconds),
        signed: newest.map_or(0, |newest| newest.seq),
        in_file: None,
        unsure: has_unwritten.then_some(last_known),
        maybe: Vec::new(),
    };
    if has_unwritten {
        while !queue.lock().waiting.is_empty() {
            writer.commit().await?;
        }
        std::fs::remove_file(&unwritten).map_err(file_error)?;
    }
    let task = tokio::spawn(writer.run());
    *queue.task.lock().expect("not poisoned") = Some(task);
    Ok(queue)
}

struct Writer {
    queue: Arc<Queue>,
    store: Store,
    /// None while a head is being written.
    heads: Option<Heads>,
    unwritten: PathBuf,
    sign_every: Duration,
    /// The last row that a head in the file and the database covers.
    signed: i64,
    /// A head that is in the file, but not in the database yet.
    in_file: Option<crate::store::CheckpointRow>,
    /// After a failure: rows after this number may be ours.
    unsure: Option<i64>,
    /// Beginnings that were refused, although they may have been committed.
    maybe: Vec<NewAudit>,
}

impl Writer {
    async fn run(mut self) {
        let mut sign_at = Instant::now() + self.sign_every;
        loop {
            let (any, stop_at) = {
                let state = self.queue.lock();
                (!state.waiting.is_empty() || state.lost_unsaid > 0, state.stop_at)
            };
            let failed = any && self.commit().await.is_err();
            match stop_at {
                Some(_) if !any => break,
                Some(at) if failed && Instant::now() >= at => break,
                _ => {}
            }
            if Instant::now() >= sign_at && !failed {
                sign_at = Instant::now() + self.sign_every;
                self.sign().await;
            }
            if any && !failed {
                continue;
            }
            // Nothing waits, or the database does not work.
            let until = if failed { Instant::now() + RETRY } else { sign_at };
            let until = stop_at.map_or(until, |at| until.min(at));
            tokio::select! {
                () = self.queue.wake.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
        self.finish().await;
    }

    /// Commit what waits. Err: the database does not work; calls that may be refused were refused.
    async fn commit(&mut self) -> Result<(), StoreError> {
        if let Err(error) = self.settle().await {
            self.failed(Vec::new(), &error);
            return Err(error);
        }
        let (batch, seen, lost) = {
            let mut state = self.queue.lock();
            let count = state.waiting.len().min(BATCH);
            let batch: Vec<Item> = state.waiting.drain(..count).collect();
            state.committing = count;
            (batch, state.head.clone(), state.lost_unsaid)
        };
        let mut rows: Vec<NewAudit> = batch.iter().map(|item| item.row.clone()).collect();
        if lost > 0 {
            rows.insert(0, lost_row(lost));
        }
        match self.store.append_audit(&rows, &seen).await {
            Ok(head) => {
                self.committed(batch, head, lost);
                Ok(())
            }
            Err(StoreError::Refused(_)) if !batch.is_empty() => self.one_by_one(batch).await,
            Err(error) => {
                self.failed(batch, &error);
                Err(error)
            }
        }
    }

    fn committed(&mut self, batch: Vec<Item>, head: AuditHead, lost: u64) {
        let mut state = self.queue.lock();
        state.head = head;
        state.lost_unsaid -= lost;
        state.committing -= batch.len();
        state.bytes -= batch.iter().map(Item::size).sum::<usize>();
        let healed = !std::mem::replace(&mut state.healthy, true);
        drop(state);
        for mut item in batch {
            item.answer(Ok(()));
        }
        if healed {
            tracing::info!("the audit log can be written again");
        }
    }

    /// The database refuses one of the rows: the others are committed without it. This cannot happen with the rows that the program
    /// makes; it keeps a defect from stopping the log for ever.
    async fn one_by_one(&mut self, batch: Vec<Item>) -> Result<(), StoreError> {
        let mut batch = VecDeque::from(batch);
        while let Some(item) = batch.pop_front() {
            let seen = self.queue.lock().head.clone();
            match self.store.append_audit(std::slice::from_ref(&item.row), &seen).await {
                Ok(head) => self.committed(vec![item], head, 0),
                Err(StoreError::Refused(error)) => {
                    tracing::error!(%error, row = ?item.row, "the database refuses a row of the audit log");
                    let mut state = self.queue.lock();
                    state.bytes -= item.size();
                    state.committing -= 1;
                    if item.keep {
                        state.lost += 1;
                        state.lost_unsaid += 1;
                    }
                    drop(state);
                    item.refuse(&Refused::Store(error.to_string()));
                }
                Err(error) => {
                    batch.push_front(item);
                    self.failed(batch.into(), &error);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Refuse what may be refused, and keep the rest in its order.
    fn failed(&mut self, batch: Vec<Item>, error: &StoreError) {
        let why = Refused::Store(error.to_string());
        let mut state = self.queue.lock();
        if std::mem::replace(&mut state.healthy, false) {
            tracing::error!(%error, "the audit log cannot be written: calls are refused until it can");
        }
        self.unsure.get_or_insert(state.head.seq);
        state.committing = 0;
        let tried = batch.len();
        let later = std::mem::take(&mut state.waiting);
        let mut refused = Vec::new();
        for (index, mut item) in batch.into_iter().chain(later).enumerate() {
            if item.keep {
                // An outcome whose beginning was refused a moment ago, because its caller went away, has no row to end.
                if !item.refused.load(Ordering::Acquire) {
                    item.answer(Err(why.clone()));
                    state.waiting.push_back(item);
                    continue;
                }
            } else if index < tried && self.maybe.len() < MAX_WAITING {
                self.maybe.push(item.row.clone());
            }
            state.bytes -= item.size();
            item.refused.store(true, Ordering::Release);
            refused.push(item);
        }
        drop(state);
        for item in refused {
            item.refuse(&why);
        }
    }

    /// After a failure: find out which rows were committed after all.
    async fn settle(&mut self) -> Result<(), StoreError> {
        let Some(after) = self.unsure else { return Ok(()) };
        let mut there = HashSet::new();
        let mut last = after;
        loop {
            let rows = self.store.audit_calls_after(last).await?;
            let Some((end, ..)) = rows.last() else { break };
            last = *end;
            there.extend(rows.into_iter().map(|(_, call, event)| (call, event)));
        }
        let is_there = |row: &NewAudit| there.contains(&(row.call.clone(), row.event.to_owned()));

        let mut state = self.queue.lock();
        for mut item in std::mem::take(&mut state.waiting) {
            if is_there(&item.row) {
                state.bytes -= item.size();
                item.answer(Ok(()));
            } else {
                state.waiting.push_back(item);
            }
        }
        // A row says that the call begins, but the call was refused: say so.
        for row in self.maybe.drain(..).filter(is_there) {
            let outcome = Some(ErrorCode::AuditUnavailable.word().to_owned());
            let end = NewAudit { at: now(), event: "end", params: None, outcome, ..row };
            let item = Item::kept(end, None, Arc::default());
            state.bytes += item.size();
            state.waiting.push_back(item);
        }
        self.unsure = None;
        Ok(())
    }

    /// Sign the head, if there are rows that no signed head covers.
    async fn sign(&mut self) {
        let head = self.queue.lock().head.clone();
        // A head before one that was signed belongs to a log that was cut: signing it would help whoever cut it.
        if head.seq <= self.signed && self.in_file.is_none() {
            return;
        }
        if self.in_file.is_none() {
            let Some(mut heads) = self.heads.take() else { return };
            let row = heads.sign(&head);
            let written = tokio::task::spawn_blocking(move || {
                let result = heads.append(&row);
                (heads, row, result)
            });
            let Ok((heads, row, result)) = written.await else { return };
            let path = heads.path().to_owned();
            self.heads = Some(heads);
            if let Err(error) = result {
                tracing::error!(%error, path = %path.display(), "the signed head of the audit log was not written");
                return;
            }
            self.in_file = Some(row);
        }
        if let Some(row) = &self.in_file {
            match self.store.insert_checkpoint(row).await {
                Ok(()) => {
                    self.signed = row.seq;
                    self.in_file = None;
                }
                Err(error) => tracing::error!(%error, "the signed head of the audit log was not stored"),
            }
        }
    }

    async fn finish(mut self) {
        let (left, head) = {
            let mut state = self.queue.lock();
            state.stopped = true;
            (std::mem::take(&mut state.waiting), state.head.clone())
        };
        let rows: Vec<NewAudit> = left.into_iter().map(|item| item.row).collect();
        if rows.is_empty() {
            self.sign().await;
            return;
        }
        let after = self.unsure.unwrap_or(head.seq);
        match write_unwritten(&self.unwritten, after, &rows) {
            Ok(()) => tracing::error!(rows = rows.len(), path = %self.unwritten.display(),
                "rows of the audit log could not be committed; they are in this file and will be committed at the next start"),
            Err(error) => tracing::error!(rows = rows.len(), path = %self.unwritten.display(), %error,
                "rows of the audit log could not be committed, and not be kept in this file: they are lost"),
        }
    }
}

fn lost_row(lost: u64) -> NewAudit {
    NewAudit {
        at: now(),
        call: uuid::Uuid::new_v4().simple().to_string(),
        event: "begin",
        actor: "service".into(),
        tenant: "service".into(),
        session: None,
        verb: "audit_lost".into(),
        params: Some(format!("{{\"rows\":{lost}}}")),
        outcome: None,
    }
}

/// The file of rows that could not be committed: the number of the last row that was known to be committed, then the rows.
#[derive(Serialize, Deserialize)]
struct After {
    after: i64,
}

#[derive(Serialize, Deserialize)]
struct Unwritten {
    at: Millis,
    call: String,
    event: String,
    actor: String,
    tenant: String,
    session: Option<SessionId>,
    verb: String,
    params: Option<String>,
    outcome: Option<String>,
}

fn write_unwritten(path: &Path, after: i64, rows: &[NewAudit]) -> io::Result<()> {
    let mut text = serde_json::to_string(&After { after })?;
    for row in rows {
        let row = row.clone();
        text.push('\n');
        text.push_str(&serde_json::to_string(&Unwritten {
            at: row.at,
            call: row.call,
            event: row.event.into(),
            actor: row.actor,
            tenant: row.tenant,
            session: row.session,
            verb: row.verb,
            params: row.params,
            outcome: row.outcome,
        })?);
    }
    text.push('\n');
    replace(path, text.as_bytes())
}

fn read_unwritten(path: &Path) -> io::Result<Option<(i64, Vec<NewAudit>)>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut lines = text.lines();
    let After { after } = serde_json::from_str(lines.next().unwrap_or_default())?;
    let rows = lines.map(|line| {
        let row: Unwritten = serde_json::from_str(line)?;
        Ok(NewAudit {
            at: row.at,
            call: row.call,
            event: if row.event == "end" { "end" } else { "begin" },
            actor: row.actor,
            tenant: row.tenant,
            session: row.session,
            verb: row.verb,
            params: row.params,
            outcome: row.outcome,
        })
    });
    Ok(Some((after, rows.collect::<io::Result<_>>()?)))
}
