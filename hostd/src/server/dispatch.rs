//! From a line to an operation: parse, authorise, limit, call.
//!
//! Everything up to the operation itself is decided here at once and without waiting, so the order of
//! the checks can be read in one place and fuzzed. Quick methods are answered on the spot; the
//! others become a future that the connection runs on its own task, so that it ends even when the
//! caller goes away.

use super::access::{Access, Grant};
use super::connections::Connections;
use super::log_throttle::LogThrottle;
use super::operations::Operations;
use super::rate::CreateRate;
use crate::api::*;
use crate::audit::Actor;
use crate::config::Config;
use crate::lifecycle::{Caller, ProgressSink};
use crate::metrics::Metrics;
use crate::platform::Peer;
use crate::slot::Slots;
use crate::wire::{self, Message};
use futures_util::FutureExt;
use serde::Serialize;
use serde_json::value::RawValue;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How many callers may have the host's checks run at the same time.
const CHECKS_AT_ONCE: usize = 2;

/// What callers are told to wait when the real time is unknown.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// What all connections share.
#[derive(Debug)]
pub struct Shared<O> {
    /// The lifecycle.
    pub operations: O,
    /// Who may call what.
    pub access: Access,
    /// All connections.
    pub connections: Arc<Connections>,
    /// The configuration.
    pub config: Arc<Config>,
    metrics: Arc<Metrics>,
    slots: u64,
    started: Instant,
    creates: Mutex<CreateRate>,
    under_way: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    stopping: AtomicBool,
}

/// One caller: the peer of a connection with what it may do.
#[derive(Debug)]
pub struct Session {
    /// What it may do.
    pub grant: Grant,
    /// As the lifecycle sees it.
    pub caller: Caller,
    denials: Mutex<LogThrottle>,
}

impl Session {
    /// The session of a peer.
    pub fn new(peer: &Peer, grant: Grant) -> Self {
        let caller = Caller {
            actor: Actor::Peer { uid: peer.uid, pid: peer.pid },
            uid: Some(peer.uid),
            operator: grant.operator(),
        };
        Self { grant, caller, denials: Mutex::default() }
    }
}

impl Session {
    fn denied(&self, method: Method) -> RpcError {
        let uid = self.caller.uid.unwrap_or_default();
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = denials.may_log(Instant::now()) {
            tracing::warn!(uid, %method, left_out, "denied");
        }
        let hint = if method == Method::ForceUnmount {
            "only operators may: an access rule with operator = true"
        } else {
            "the administrator allows it with an access rule in hostd's configuration"
        };
        RpcError::new(ErrorCode::Denied, format!("user {uid} may not call {method}"), hint)
    }
}

/// An answer that takes a while.
pub type Pending = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// What becomes of a line.
pub enum Handled {
    /// Answered on the spot: a line to write.
    Now(Vec<u8>),
    /// Under way: run it to its end, then write the line.
    Later(Pending),
    /// Refused: a line to write.
    Refused(Vec<u8>),
    /// A notification. By the protocol it is never answered, so it is never executed either:
    /// a change of the host that nobody can be told about is not made.
    Ignored(String),
}

impl std::fmt::Debug for Handled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Handled::Now(_) => "Now",
            Handled::Later(_) => "Later",
            Handled::Refused(_) => "Refused",
            Handled::Ignored(_) => "Ignored",
        })
    }
}

/// Takes progress lines without waiting; drops them when the caller reads too slowly.
pub type ProgressLines = Arc<dyn Fn(Vec<u8>) + Send + Sync>;

impl<O: Operations> Shared<O> {
    /// Everything ready to take calls.
    pub fn new(
        operations: O,
        access: Access,
        config: Arc<Config>,
        pool: &Slots,
        metrics: Arc<Metrics>,
    ) -> Self {
        let server = &config.server;
        Self {
            operations,
            access,
            connections: Connections::new(
                server.max_connections,
                server.max_connections_per_user,
                metrics.clone(),
            ),
            slots: pool.len() as u64,
            started: Instant::now(),
            creates: Mutex::new(CreateRate::new(server.creates_per_minute, server.create_burst)),
            under_way: Arc::new(Semaphore::new(server.max_operations.clamp(1, Semaphore::MAX_PERMITS))),
            checks: Arc::new(Semaphore::new(CHECKS_AT_ONCE)),
            stopping: AtomicBool::new(false),
            metrics,
            config,
        }
    }

    /// From now on refuse what would change the host.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Decide what becomes of a line. `busy` is how many requests of this connection are under way.
    pub fn handle(
        self: &Arc<Self>,
        session: &Session,
        line: &[u8],
        busy: usize,
        progress: &ProgressLines,
    ) -> Handled {
        match wire::parse(line) {
            Err(refusal) => Handled::Refused(wire::failure(refusal.id, &refusal.error)),
            Ok(Message::Notification { method }) => Handled::Ignored(method.into_owned()),
            Ok(Message::Call { id, method, params }) => self
                .call(session, id, method, params, busy, progress)
                .unwrap_or_else(|error| Handled::Refused(wire::failure(id, &error))),
        }
    }

    /// Authorise, then check the limits, then call: a caller learns nothing about a method it may not use.
    fn call(
        self: &Arc<Self>,
        session: &Session,
        id: &RawValue,
        method: Method,
        params: &str,
        busy: usize,
        progress: &ProgressLines,
    ) -> Result<Handled, RpcError> {
        if !session.grant.allows(method) {
            return Err(session.denied(method));
        }
        if method.mutates() && self.stopping.load(Ordering::Relaxed) {
            return Err(shutting_down());
        }
        let most = self.config.server.max_requests_per_connection;
        if busy >= most {
            let message = format!("{busy} requests are under way on this connection");
            let hint = format!("wait for an answer: at most {most} may be under way on one connection");
            return Err(self.limited("requests", ErrorCode::TooManyRequests, message, hint, SOON));
        }
        let handled = match method {
            Method::Create => {
                let params: CreateParams = wire::params(method, params)?;
                let sink = sink(&params.progress_token, progress);
                self.take_create_token(&session.caller)?;
                self.operation(id, session, move |shared, caller| async move {
                    shared.operations.create(&caller, params, sink).await
                })?
            }
            Method::Destroy => {
                let params: DestroyParams = wire::params(method, params)?;
                let sink = sink(&params.progress_token, progress);
                self.operation(id, session, move |shared, caller| async move {
                    shared.operations.destroy(&caller, params, sink).await
                })?
            }
            Method::Reap => {
                let params: ReapParams = wire::params(method, params)?;
                let sink = sink(&params.progress_token, progress);
                self.operation(id, session, move |shared, caller| async move {
                    shared.operations.reap(&caller, params, sink).await
                })?
            }
            Method::ForceUnmount => {
                let params: ForceUnmountParams = wire::params(method, params)?;
                let sink = sink(&params.progress_token, progress);
                self.operation(id, session, move |shared, caller| async move {
                    shared.operations.force_unmount(&caller, params, sink).await
                })?
            }
            Method::List => {
                let params: ListParams = wire::params(method, params)?;
                now(id, &self.operations.list(&session.caller, &params))
            }
            Method::Status => {
                let params: StatusParams = wire::params(method, params)?;
                if params.checks { self.checked_status(id, params)? } else { now(id, &self.status(params)) }
            }
            Method::Discover => {
                let DiscoverParams {} = wire::params(method, params)?;
                now(id, &crate::api::openrpc::document())
            }
        };
        Ok(handled)
    }

    /// An operation under way, counted against the host's cap until it ends.
    fn operation<F, R>(
        self: &Arc<Self>,
        id: &RawValue,
        session: &Session,
        run: impl FnOnce(Arc<Self>, Caller) -> F,
    ) -> Result<Handled, RpcError>
    where
        F: Future<Output = Result<R, RpcError>> + Send + 'static,
        R: Serialize,
    {
        let permit = self.under_way.clone().try_acquire_owned().map_err(|_| {
            let most = self.config.server.max_operations;
            let message = format!("{most} operations are under way on this host");
            self.limited("operations", ErrorCode::TooManyRequests, message, "try again", SOON)
        })?;
        let running = run(self.clone(), session.caller.clone());
        Ok(later(id, async move {
            let result = running.await;
            drop(permit);
            result
        }))
    }

    fn take_create_token(&self, caller: &Caller) -> Result<(), RpcError> {
        let Some(uid) = caller.uid else { return Ok(()) };
        let mut creates = self.creates.lock().unwrap_or_else(PoisonError::into_inner);
        creates.take(uid, self.started.elapsed()).map_err(|wait| {
            let per_minute = self.config.server.creates_per_minute;
            let message = format!("user {uid} creates more than {per_minute} clones a minute");
            self.limited(
                "create_rate",
                ErrorCode::RateLimited,
                message,
                "wait as long as retry_after_ms says",
                wait,
            )
        })
    }

    fn limited(
        &self,
        limit: &'static str,
        code: ErrorCode,
        message: String,
        hint: impl Into<String>,
        wait: Duration,
    ) -> RpcError {
        self.metrics.limit_rejection(limit);
        RpcError::new(code, message, hint).retry_after(wait)
    }

    fn status(&self, params: StatusParams) -> StatusResult {
        let engine = self.operations.status();
        let pool = &self.config.pool;
        StatusResult {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.operations.drivers(),
            pool: match pool.subnet6 {
                Some(subnet6) => format!("{}, {subnet6}", pool.subnet),
                None => pool.subnet.to_string(),
            },
            slots: self.slots,
            max_clones: self.most_clones(),
            clones: engine.clones,
            operations: engine.operations,
            connections: self.connections.count() as u64,
            egress: engine.egress,
            warm_pool: engine.pool,
            uptime_seconds: self.started.elapsed().as_secs(),
            alarms: engine.alarms,
            findings: None,
            metrics: params.metrics.then(|| self.metrics_text()),
        }
    }

    fn checked_status(self: &Arc<Self>, id: &RawValue, params: StatusParams) -> Result<Handled, RpcError> {
        let permit = self.checks.clone().try_acquire_owned().map_err(|_| {
            let message = "the host is being checked for somebody else".to_owned();
            self.limited("checks", ErrorCode::TooManyRequests, message, "try again", SOON)
        })?;
        let shared = self.clone();
        Ok(later(id, async move {
            let findings = shared.operations.checks().await;
            drop(permit);
            Ok(StatusResult { findings: Some(findings), ..shared.status(params) })
        }))
    }

    /// All metrics, with the gauges brought up to date.
    pub fn metrics_text(&self) -> String {
        let status = self.operations.status();
        // Clones made ahead give their places up.
        let taken = status.clones.iter().filter(|(state, _)| **state != CloneState::Pooled);
        let clones: u64 = taken.map(|(_, count)| count).sum();
        self.metrics.set_clones(&status.clones);
        self.metrics.set_egress_ok(status.egress == EgressHealth::Ok);
        if let Some(pool) = &status.pool {
            self.metrics.set_pool(pool);
        }
        self.metrics.set_pool_available(self.most_clones().saturating_sub(clones));
        self.metrics.text()
    }

    fn most_clones(&self) -> u64 {
        self.config.server.max_clones.min(self.slots)
    }
}

fn now<R: Serialize>(id: &RawValue, result: &R) -> Handled {
    Handled::Now(wire::success(id, result))
}

/// The answer of a future, even if it panics: a caller must not wait for ever for a defect.
fn later<R: Serialize>(
    id: &RawValue,
    running: impl Future<Output = Result<R, RpcError>> + Send + 'static,
) -> Handled {
    let id = id.to_owned();
    Handled::Later(Box::pin(async move {
        let result = AssertUnwindSafe(running).catch_unwind().await.unwrap_or_else(|_| {
            Err(RpcError::new(
                ErrorCode::Internal,
                "hostd has a defect: the operation panicked",
                "the daemon's log tells where; browser-clone-reap cleans up",
            ))
        });
        match result {
            Ok(result) => wire::success(&id, &result),
            Err(error) => wire::failure(&id, &error),
        }
    }))
}

fn sink(token: &Option<ProgressToken>, lines: &ProgressLines) -> Option<ProgressSink> {
    let token = token.clone()?;
    let lines = lines.clone();
    Some(Arc::new(move |name: &CloneName, step: &str, state, elapsed: Duration| {
        lines(wire::progress(&Progress {
            progress_token: token.clone(),
            name: name.clone(),
            step: step.to_owned(),
            state,
            seconds: elapsed.as_secs_f64(),
        }));
    }))
}

pub(super) fn shutting_down() -> RpcError {
    RpcError::new(ErrorCode::ShuttingDown, "hostd is stopping", "try again when it is back")
        .retry_after(5 * SOON)
}
