//! The engine: the operations as the server calls them, each audited, joined with an identical one
//! that runs already, and carried to its end even if the caller goes away.

use super::book::Book;
use super::progress::{Listeners, ProgressSink};
use super::refill::Refill;
use crate::api::{
    CloneId, CloneName, CloneState, CreateParams, CreateResult, DestroyParams, DestroyResult, EgressHealth,
    ErrorCode, ForceUnmountParams, ForceUnmountResult, ListParams, ListResult, Method, PoolStatus, ReapParams,
    ReapResult, RequestId, RpcError,
};
use crate::audit::{Actor, Audit, Outcome};
use crate::clock::Clock;
use crate::config::Config;
use crate::host::Host;
use crate::metrics::Metrics;
use crate::record::{Record, Store, StoreError};
use crate::slot::{Slot, Slots, SlotsError};
use crate::timing;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedMutexGuard};
use tracing::Instrument;

/// Who calls, and what that means for the clones they may touch.
#[derive(Debug, Clone)]
pub struct Caller {
    /// For the audit log.
    pub actor: Actor,
    /// The owner of what is created; hostd's own calls have none.
    pub uid: Option<u32>,
    /// May act on everybody's clones.
    pub operator: bool,
}

impl Caller {
    /// A part of the daemon itself.
    pub fn hostd(part: &'static str) -> Caller {
        Caller { actor: Actor::Hostd(part), uid: None, operator: true }
    }
}

/// What an engine is made of besides its host.
pub struct Setup {
    /// The configuration.
    pub config: Arc<Config>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The audit log.
    pub audit: Arc<Audit>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The pool's configuration.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// The state folder.
    #[error("the state folder cannot be used: {0}")]
    Store(#[from] StoreError),
}

/// The engine's share of `host-status`.
#[derive(Debug, Clone)]
pub struct EngineStatus {
    /// Clones by state.
    pub clones: BTreeMap<CloneState, u64>,
    /// Operations under way.
    pub operations: u64,
    /// How the firewall was when last looked at.
    pub egress: EgressHealth,
    /// The warm pool, if there is one.
    pub pool: Option<PoolStatus>,
    /// Things an operator should know.
    pub alarms: Vec<String>,
}

/// The life of all clones of one host. Copies are the same engine.
pub struct Engine<H>(Arc<Inner<H>>);

impl<H> Clone for Engine<H> {
    fn clone(&self) -> Self {
        Engine(self.0.clone())
    }
}

impl<H> std::fmt::Debug for Engine<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

pub(super) struct Inner<H> {
    pub(super) host: H,
    pub(super) pool: Slots,
    pub(super) config: Arc<Config>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) audit: Arc<Audit>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) store: Store,
    book: Mutex<Book>,
    running: Mutex<HashMap<Key, Running>>,
    /// Calls and reaps under way.
    active: AtomicU64,
    /// Something ended; a stopping daemon waits for this.
    ended: Notify,
    /// There may be a nearer deadline than the one the timer sleeps for.
    pub(super) wake: Notify,
    pub(super) refill: Refill,
    stopped: tokio::sync::watch::Sender<bool>,
}

/// Which calls are the same operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Create(RequestId),
    Destroy(CloneName, CloneId),
    ForceUnmount(CloneName, CloneId),
    Reap(bool, Option<CloneName>),
}

#[derive(Clone)]
enum Answer {
    Create(Result<Box<CreateResult>, RpcError>),
    Destroy(Result<DestroyResult, RpcError>),
    ForceUnmount(Result<ForceUnmountResult, RpcError>),
    Reap(Result<ReapResult, RpcError>),
    Died(RpcError),
}

macro_rules! answers {
    ($($variant:ident($result:ty) by $into:ident;)*) => {
        impl Answer {
            $(fn $into(self) -> Result<$result, RpcError> {
                match self {
                    Answer::$variant(result) => result,
                    Answer::Died(error) => Err(error),
                    // A key leads to one kind of answer only.
                    _ => Err(RpcError::new(ErrorCode::Internal, "mixed up two operations", "report this defect")),
                }
            })*
        }
    };
}
answers! {
    Create(Box<CreateResult>) by create;
    Destroy(DestroyResult) by destroy;
    ForceUnmount(ForceUnmountResult) by force_unmount;
    Reap(ReapResult) by reap;
}

struct Running {
    answer: Shared<BoxFuture<'static, Answer>>,
    listeners: Listeners,
}

impl<H: Host> Engine<H> {
    /// Read the records and look at the host. Nothing is done to it before [`Engine::run_timers`] or
    /// the first call, and a host that cannot be looked at yet is an alarm, not the end.
    pub async fn open(host: H, setup: Setup) -> Result<Engine<H>, OpenError> {
        let pool = Slots::new(&setup.config.pool)?;
        let (store, found) = Store::open(&setup.config.paths.state, &pool)?;
        for (slot, found) in &found {
            if let crate::record::StoredRecord::Unreadable(why) = found {
                tracing::error!(%slot, why, "a record cannot be read; its clone is treated as an orphan");
            }
        }
        let Setup { config, clock, audit, metrics } = setup;
        let book = Mutex::new(Book::new(found));
        let inner = Inner {
            host,
            pool,
            config,
            clock,
            audit,
            metrics,
            store,
            book,
            running: Mutex::default(),
            active: AtomicU64::new(0),
            ended: Notify::new(),
            wake: Notify::new(),
            refill: Refill::default(),
            stopped: tokio::sync::watch::Sender::new(false),
        };
        let inner = Arc::new(inner);
        inner.first_look().await;
        Ok(Engine(inner))
    }

    /// The host, for status and checks.
    pub fn host(&self) -> &H {
        &self.0.host
    }

    /// The pool, for names.
    pub fn pool(&self) -> &Slots {
        &self.0.pool
    }

    /// The records' folder, so that tests can die in the middle of a write.
    #[cfg(feature = "fake-host")]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// `browser-clone-create`.
    pub async fn create(
        &self,
        caller: &Caller,
        params: CreateParams,
        progress: Option<ProgressSink>,
    ) -> Result<CreateResult, RpcError> {
        let request = serde_json::to_value(&params);
        let params_id = params.request_id.clone();
        let (inner, who) = (self.0.clone(), caller.clone());
        let name = |result: &CreateResult| result.clone.name.clone();
        let work = async move {
            loop {
                let key = Key::Create(params.request_id.clone());
                let (op, by, wish) = (inner.clone(), who.clone(), params.clone());
                let (answer, joined) = inner.start_or_join(key, progress.clone(), |listeners| async move {
                    Answer::Create(op.create(by, wish, listeners).await.map(Box::new))
                });
                let result = answer.await.create().map(|result| *result);
                // The request that was joined was somebody else's call: now that its clone is there,
                // this call's own deadline, owner and parameters count.
                if !joined || result.is_err() {
                    return result;
                }
            }
        };
        let span = timing::operation("create", params_id.as_str());
        self.0.audited(caller, Method::Create, request, work, name).instrument(span).await
    }

    /// `browser-clone-destroy`.
    pub async fn destroy(
        &self,
        caller: &Caller,
        params: DestroyParams,
        progress: Option<ProgressSink>,
    ) -> Result<DestroyResult, RpcError> {
        let about = params.name.clone();
        let request = serde_json::to_value(&params);
        let (inner, who) = (self.0.clone(), caller.clone());
        let work = async move {
            inner.may_touch(&who, &params.name)?;
            let key = Key::Destroy(params.name.clone(), params.clone_id.clone());
            let op = inner.clone();
            let work = |listeners| async move { Answer::Destroy(op.destroy(who, params, listeners).await) };
            inner.start_or_join(key, progress, work).0.await.destroy()
        };
        let span = timing::operation("destroy", about.as_str());
        self.0
            .audited(caller, Method::Destroy, request, work, |result| result.name.clone())
            .instrument(span)
            .await
    }

    /// `browser-clone-reap`.
    pub async fn reap(
        &self,
        caller: &Caller,
        params: ReapParams,
        progress: Option<ProgressSink>,
    ) -> Result<ReapResult, RpcError> {
        let request = serde_json::to_value(&params);
        let inner = self.0.clone();
        let dry_run = params.dry_run;
        let work = async move {
            let key = Key::Reap(params.dry_run, params.name.clone());
            let op = inner.clone();
            let work = |listeners| async move { Answer::Reap(op.reap(params, listeners).await) };
            inner.start_or_join(key, progress, work).0.await.reap()
        };
        if dry_run {
            // Changes nothing, so there is nothing to audit.
            return self.0.counted(Method::Reap, work).await;
        }
        self.0.audited(caller, Method::Reap, request, work, |_| None).await
    }

    /// `browser-clone-force-unmount`.
    pub async fn force_unmount(
        &self,
        caller: &Caller,
        params: ForceUnmountParams,
        progress: Option<ProgressSink>,
    ) -> Result<ForceUnmountResult, RpcError> {
        let request = serde_json::to_value(&params);
        let inner = self.0.clone();
        let work = async move {
            let key = Key::ForceUnmount(params.name.clone(), params.clone_id.clone());
            let op = inner.clone();
            let work =
                |listeners| async move { Answer::ForceUnmount(op.force_unmount(params, listeners).await) };
            inner.start_or_join(key, progress, work).0.await.force_unmount()
        };
        self.0.audited(caller, Method::ForceUnmount, request, work, |result| result.name.clone()).await
    }

    /// `browser-clone-list`: from the records and the last look at the host; no host command.
    pub fn list(&self, caller: &Caller, params: &ListParams) -> ListResult {
        self.0.list(caller, params)
    }

    /// Its share of `host-status`; no host command.
    pub fn status(&self) -> EngineStatus {
        self.0.status()
    }

    /// Compare the records with the host once and do what that leads to.
    pub async fn reconcile_now(&self) {
        self.0.tick().await;
    }

    /// Run the timers (deadlines, reconcile) until the engine is shut down. Spawn this once.
    pub async fn run_timers(self) {
        let mut stopped = self.0.stopped.subscribe();
        loop {
            self.0.tick().await;
            let pause = self.0.until_next_tick();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.wake.notified() => {}
                () = self.0.host.changed() => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
        }
    }

    /// Keep the warm pool full until the engine is shut down. Spawn this once.
    pub async fn run_pool(self) {
        let mut stopped = self.0.stopped.subscribe();
        loop {
            let (pause, idle) = self.0.refill_in_peace().await;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.refill.wanted(), if idle => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
        }
    }

    /// Fill the warm pool now: at once, to its size, or to the first failure.
    pub async fn refill_now(&self) -> Result<(), RpcError> {
        self.0.refill_all().await
    }

    /// Refuse new operations, drain the warm pool and wait for what runs, at most the configured grace.
    /// Answers how many were still running; their records tell the next start what to do.
    pub async fn shutdown(&self) -> u64 {
        self.0.book().closing = true;
        self.0.stopped.send_replace(true);
        self.0.begin_drain_all("hostd is stopping");
        let grace = Duration::from_secs(self.0.config.lifecycle.shutdown_grace_seconds);
        let all_ended = async {
            loop {
                let ended = self.0.ended.notified();
                if self.0.active.load(Ordering::SeqCst) == 0 {
                    return;
                }
                ended.await;
            }
        };
        let _ = tokio::time::timeout(grace, all_ended).await;
        self.0.host.close();
        self.0.active.load(Ordering::SeqCst)
    }
}

/// Work on one slot: nobody else works on it until this is dropped.
pub(super) struct Working<H> {
    inner: Arc<Inner<H>>,
    slot: Slot,
    _queue: OwnedMutexGuard<()>,
}

impl<H> Drop for Working<H> {
    fn drop(&mut self) {
        self.inner.book.lock().unwrap_or_else(PoisonError::into_inner).working.remove(&self.slot);
    }
}

/// Something a stopping daemon waits for.
pub(super) struct Active<H>(Arc<Inner<H>>);

impl<H> Drop for Active<H> {
    fn drop(&mut self) {
        let left = self.0.active.fetch_sub(1, Ordering::SeqCst) - 1;
        self.0.metrics.set_operations(left);
        self.0.ended.notify_waiters();
    }
}

impl<H: Host> Inner<H> {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn operations(&self) -> u64 {
        self.active.load(Ordering::SeqCst)
    }

    pub(super) fn active(self: &Arc<Self>) -> Active<H> {
        let now = self.active.fetch_add(1, Ordering::SeqCst) + 1;
        self.metrics.set_operations(now);
        Active(self.clone())
    }

    /// Wait for the slot's turn.
    pub(super) async fn work_on(self: &Arc<Self>, slot: Slot) -> Working<H> {
        let queue = self.book().lock_of(slot);
        let guard = queue.lock_owned().await;
        self.book().working.insert(slot);
        Working { inner: self.clone(), slot, _queue: guard }
    }

    /// Take the slot's turn if nobody has it.
    pub(super) fn try_work_on(self: &Arc<Self>, book: &mut Book, slot: Slot) -> Option<Working<H>> {
        let guard = book.lock_of(slot).try_lock_owned().ok()?;
        book.working.insert(slot);
        Some(Working { inner: self.clone(), slot, _queue: guard })
    }

    /// Write a record, then the book.
    pub(super) async fn save(self: &Arc<Self>, record: &Record) -> io::Result<()> {
        let (inner, copy) = (self.clone(), record.clone());
        blocking(move || inner.store.save(&copy)).instrument(timing::part("record")).await?;
        let mut book = self.book();
        book.unreadable.remove(&record.slot);
        book.records.insert(record.slot, record.clone());
        Ok(())
    }

    /// The same operation once: join the one that runs, or start it. Tells whether it was joined.
    fn start_or_join<F>(
        self: &Arc<Self>,
        key: Key,
        progress: Option<ProgressSink>,
        work: impl FnOnce(Listeners) -> F,
    ) -> (Shared<BoxFuture<'static, Answer>>, bool)
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = running.get(&key) {
            there.listeners.add(progress);
            return (there.answer.clone(), true);
        }
        let listeners = Listeners::default();
        listeners.add(progress);
        let task = tokio::spawn(work(listeners.clone()).in_current_span());
        let (inner, own_key) = (self.clone(), key.clone());
        let answer = async move {
            let answer = task.await.unwrap_or_else(|died| {
                tracing::error!(%died, "an operation died; the reaper goes on with what it left");
                Answer::Died(RpcError::new(
                    ErrorCode::Internal,
                    "the operation died inside hostd",
                    "its log says where; what it left is taken away by the reaper",
                ))
            });
            inner.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&own_key);
            answer
        };
        let answer = answer.boxed().shared();
        // Driven by its own task, so that it ends even if every caller goes away.
        tokio::spawn(answer.clone());
        running.insert(key, Running { answer: answer.clone(), listeners });
        (answer, false)
    }

    /// Count a call, and refuse it while stopping.
    async fn counted<T>(
        self: &Arc<Self>,
        method: Method,
        work: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        let active = self.active();
        if self.book().closing {
            return Err(RpcError::new(
                ErrorCode::ShuttingDown,
                "hostd is stopping",
                "try again when it is back",
            )
            .retry_after(Duration::from_secs(1)));
        }
        let result = work.await;
        let word = result.as_ref().map_or_else(|error| error.code().word(), |_| "ok");
        self.metrics.operation(method, word);
        drop(active);
        result
    }

    /// A call that changes the host: one audit line before, one after, run to its end in its own task.
    async fn audited<T: Send + 'static, N: Into<Option<CloneName>>>(
        self: &Arc<Self>,
        caller: &Caller,
        method: Method,
        request: serde_json::Result<serde_json::Value>,
        work: impl Future<Output = Result<T, RpcError>> + Send + 'static,
        name: impl FnOnce(&T) -> N + Send + 'static,
    ) -> Result<T, RpcError> {
        let (inner, actor) = (self.clone(), caller.actor.clone());
        let request = request.unwrap_or_default();
        let whole = async move {
            let began = Instant::now();
            let op = inner.clone();
            inner
                .counted(method, async move {
                    let call = op.audit_before(&actor, method, request).await?;
                    let result = work.await;
                    let (word, about, error) = match &result {
                        Ok(value) => ("ok".to_owned(), name(value).into(), None),
                        Err(error) => {
                            (error.code().word().to_owned(), error.data.name.clone(), Some(error.to_string()))
                        }
                    };
                    let name = about.map(String::from);
                    let seconds = began.elapsed().as_secs_f64();
                    op.audit_after(call, actor, method, Outcome { result: word, name, error, seconds }).await;
                    result
                })
                .await
        };
        match tokio::spawn(whole.in_current_span()).await {
            Ok(result) => result,
            Err(died) if died.is_panic() => std::panic::resume_unwind(died.into_panic()),
            Err(_) => {
                Err(RpcError::new(ErrorCode::ShuttingDown, "hostd stopped", "try again when it is back"))
            }
        }
    }

    /// The line before the first effect; without it there is no effect.
    pub(super) async fn audit_before(
        self: &Arc<Self>,
        actor: &Actor,
        method: Method,
        request: serde_json::Value,
    ) -> Result<u64, RpcError> {
        let (audit, actor) = (self.audit.clone(), actor.clone());
        let written =
            blocking(move || audit.before(&actor, method, &request)).instrument(timing::part("audit"));
        written.await.map_err(|error| {
            self.book().alarms.insert("audit", format!("the audit log cannot be written: {error}"));
            let path = self.config.paths.audit.display();
            RpcError::new(
                ErrorCode::AuditUnavailable,
                format!("{path}: the audit line cannot be written ({error}), so nothing was done"),
                "make room on its disk or mend its permissions, then try again",
            )
        })
    }

    /// The line after. If it cannot be written the next call is refused anyway.
    pub(super) async fn audit_after(
        self: &Arc<Self>,
        call: u64,
        actor: Actor,
        method: Method,
        outcome: Outcome,
    ) {
        let audit = self.audit.clone();
        let written = blocking(move || audit.after(call, &actor, method, &outcome)).await;
        let mut book = self.book();
        match written {
            Ok(()) => drop(book.alarms.remove("audit")),
            Err(error) => {
                tracing::error!(%error, call, "the audit line after a call cannot be written");
                book.alarms.insert("audit", format!("the audit log cannot be written: {error}"));
            }
        }
    }
}

/// Run something that waits for the disk, off the threads that serve callers.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(died) if died.is_panic() => std::panic::resume_unwind(died.into_panic()),
        // The runtime is going away, and with it everybody who could use an answer.
        Err(_) => std::future::pending().await,
    }
}
