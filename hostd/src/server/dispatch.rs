//! From a line to an operation: parse, authorise, limit, call.
//!
//! [`Gate`] decides without waiting what becomes of a line, so the order of the checks can be read in one place and fuzzed
//! without a host. [`Server`] runs the call that the gate lets through. Quick methods are answered at once; the others
//! become a future that the connection runs on its own task, so that it ends even when the caller disconnects.

use super::access::{Access, Grant};
use super::connections::Connections;
use super::log_throttle::LogThrottle;
use super::rate::CreateRate;
use crate::api::*;
use crate::audit::Actor;
use crate::config::Config;
use crate::host::Host;
use crate::lifecycle::{Caller, Lifecycle, ProgressSink};
use crate::metrics::Metrics;
use crate::platform::Peer;
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many callers may have the host's checks run at the same time.
const CHECKS_AT_ONCE: usize = 2;

/// What callers are told to wait when the real time is not known.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// Who may call what, and how much. All connections share it.
#[derive(Debug)]
pub struct Gate {
    /// Who may call what.
    pub access: Access,
    /// All connections.
    pub connections: Arc<Connections>,
    /// The configuration.
    pub config: Arc<Config>,
    metrics: Arc<Metrics>,
    started: Instant,
    creates: Mutex<CreateRate>,
    operations: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    stopping: AtomicBool,
}

/// A call that may be run: authorised, within the limits, its parameters parsed.
#[derive(Debug)]
pub enum Call {
    /// `browser-clone-create`.
    Create(CreateParams),
    /// `browser-clone-destroy`.
    Destroy(DestroyParams),
    /// `browser-clone-reap`.
    Reap(ReapParams),
    /// `browser-clone-force-unmount`.
    ForceUnmount(ForceUnmountParams),
    /// `browser-clone-list`.
    List(ListParams),
    /// `host-status`.
    Status(StatusParams),
    /// `rpc.discover`.
    Discover,
}

impl Call {
    fn parse(method: Method, params: &str) -> Result<Call, RpcError> {
        Ok(match method {
            Method::Create => Call::Create(wire::params(method, params)?),
            Method::Destroy => Call::Destroy(wire::params(method, params)?),
            Method::Reap => Call::Reap(wire::params(method, params)?),
            Method::ForceUnmount => Call::ForceUnmount(wire::params(method, params)?),
            Method::List => Call::List(wire::params(method, params)?),
            Method::Status => Call::Status(wire::params(method, params)?),
            Method::Discover => {
                let DiscoverParams {} = wire::params(method, params)?;
                Call::Discover
            }
        })
    }

    /// Its method.
    pub fn method(&self) -> Method {
        match self {
            Call::Create(_) => Method::Create,
            Call::Destroy(_) => Method::Destroy,
            Call::Reap(_) => Method::Reap,
            Call::ForceUnmount(_) => Method::ForceUnmount,
            Call::List(_) => Method::List,
            Call::Status(_) => Method::Status,
            Call::Discover => Method::Discover,
        }
    }
}

/// What the gate decides about a line.
#[derive(Debug)]
pub enum Decision {
    /// Run the call and answer it under this id. The permit counts it against the host's cap until it ends.
    Run(Box<RawValue>, Box<Call>, Option<OwnedSemaphorePermit>),
    /// Refuse it with this line.
    Refuse(Vec<u8>),
    /// A notification. By the protocol it is never answered, so it is never executed either: hostd makes no change of the
    /// host that it cannot report.
    Ignore(String),
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

/// How a line is answered.
pub enum Handled {
    /// At once: a line to write. `served` is false for a refusal.
    Now {
        /// The line.
        line: Vec<u8>,
        /// Whether a call was run.
        served: bool,
    },
    /// Run this to its end, then write the line.
    Later(Pending),
    /// Not at all: it is a notification of this method.
    Ignored(String),
}

impl std::fmt::Debug for Handled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Handled::Now { .. } => "Now",
            Handled::Later(_) => "Later",
            Handled::Ignored(_) => "Ignored",
        })
    }
}

/// Takes progress lines without waiting; drops them when the caller reads too slowly.
pub type ProgressLines = Arc<dyn Fn(Vec<u8>) + Send + Sync>;

impl Gate {
    /// A gate for this configuration.
    pub fn new(access: Access, config: Arc<Config>, metrics: Arc<Metrics>) -> Self {
        let server = &config.server;
        let connections =
            Connections::new(server.max_connections, server.max_connections_per_user, metrics.clone());
        Self {
            access,
            connections,
            started: Instant::now(),
            creates: Mutex::new(CreateRate::new(server.creates_per_minute, server.create_burst)),
            operations: Arc::new(Semaphore::new(server.max_operations.clamp(1, Semaphore::MAX_PERMITS))),
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

    /// Decide about a line. `busy` is how many requests of this connection are under way.
    pub fn decide(&self, session: &Session, line: &[u8], busy: usize) -> Decision {
        match wire::parse(line) {
            Err(refusal) => Decision::Refuse(wire::failure(refusal.id, &refusal.error)),
            Ok(Message::Notification { method }) => Decision::Ignore(method.into_owned()),
            Ok(Message::Call { id, method, params }) => match self.admit(session, method, params, busy) {
                Ok((call, permit)) => Decision::Run(id.to_owned(), Box::new(call), permit),
                Err(error) => Decision::Refuse(wire::failure(id, &error)),
            },
        }
    }

    /// Authorise first, then check the limits: a caller learns nothing about a method it may not use.
    fn admit(
        &self,
        session: &Session,
        method: Method,
        params: &str,
        busy: usize,
    ) -> Result<(Call, Option<OwnedSemaphorePermit>), RpcError> {
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
        let call = Call::parse(method, params)?;
        if let Call::Create(_) = call {
            self.take_create_token(&session.caller)?;
        }
        let permit = match &call {
            Call::Status(params) if params.checks => {
                Some(self.checks.clone().try_acquire_owned().map_err(|_| {
                    let message = "the host is being checked for another caller".to_owned();
                    self.limited("checks", ErrorCode::TooManyRequests, message, "try again", SOON)
                })?)
            }
            call if call.method().mutates() => {
                Some(self.operations.clone().try_acquire_owned().map_err(|_| {
                    let most = self.config.server.max_operations;
                    let message = format!("{most} operations are under way on this host");
                    self.limited("operations", ErrorCode::TooManyRequests, message, "try again", SOON)
                })?)
            }
            _ => None,
        };
        Ok((call, permit))
    }

    fn take_create_token(&self, caller: &Caller) -> Result<(), RpcError> {
        let Some(uid) = caller.uid else { return Ok(()) };
        let mut creates = self.creates.lock().unwrap_or_else(PoisonError::into_inner);
        creates.take(uid, self.started.elapsed()).map_err(|wait| {
            let per_minute = self.config.server.creates_per_minute;
            let message = format!("user {uid} creates more than {per_minute} clones a minute");
            let hint = "wait as long as retry_after_ms says";
            self.limited("create_rate", ErrorCode::RateLimited, message, hint, wait)
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
}

/// The gate and the lifecycle behind it. All connections share it.
#[derive(Debug)]
pub struct Server<H> {
    /// Who may call what, and how much.
    pub gate: Gate,
    /// What the calls do.
    pub lifecycle: Lifecycle<H>,
}

impl<H: Host> Server<H> {
    /// Decide about a line and answer it.
    pub fn handle(
        self: &Arc<Self>,
        session: &Session,
        line: &[u8],
        busy: usize,
        progress: &ProgressLines,
    ) -> Handled {
        let (id, call, permit) = match self.gate.decide(session, line, busy) {
            Decision::Run(id, call, permit) => (id, call, permit),
            Decision::Refuse(line) => return Handled::Now { line, served: false },
            Decision::Ignore(method) => return Handled::Ignored(method),
        };
        let (server, caller) = (self.clone(), session.caller.clone());
        match *call {
            Call::List(params) => now(&id, &self.lifecycle.list(&session.caller, &params)),
            Call::Discover => now(&id, &crate::api::openrpc::document()),
            Call::Status(params) if !params.checks => now(&id, &self.status(params)),
            Call::Status(params) => later(id, permit, async move {
                let findings = server.lifecycle.host().checks().await;
                Ok(StatusResult { findings: Some(findings), ..server.status(params) })
            }),
            Call::Create(params) => {
                let sink = sink(&params.progress_token, progress);
                later(id, permit, async move { server.lifecycle.create(&caller, params, sink).await })
            }
            Call::Destroy(params) => {
                let sink = sink(&params.progress_token, progress);
                later(id, permit, async move { server.lifecycle.destroy(&caller, params, sink).await })
            }
            Call::Reap(params) => {
                let sink = sink(&params.progress_token, progress);
                later(id, permit, async move { server.lifecycle.reap(&caller, params, sink).await })
            }
            Call::ForceUnmount(params) => {
                let sink = sink(&params.progress_token, progress);
                later(id, permit, async move { server.lifecycle.force_unmount(&caller, params, sink).await })
            }
        }
    }

    fn status(&self, params: StatusParams) -> StatusResult {
        let status = self.lifecycle.status();
        let pool = &self.gate.config.pool;
        StatusResult {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.lifecycle.host().drivers(),
            pool: match pool.subnet6 {
                Some(subnet6) => format!("{}, {subnet6}", pool.subnet),
                None => pool.subnet.to_string(),
            },
            slots: self.slots(),
            max_clones: self.most_clones(),
            clones: status.clones,
            operations: status.operations,
            connections: self.gate.connections.count() as u64,
            egress: status.egress,
            warm_pool: status.pool,
            uptime_seconds: self.gate.started.elapsed().as_secs(),
            alarms: status.alarms,
            findings: None,
            metrics: params.metrics.then(|| self.metrics_text()),
        }
    }

    /// All metrics, with current gauges.
    pub fn metrics_text(&self) -> String {
        let (status, metrics) = (self.lifecycle.status(), &self.gate.metrics);
        // Members of the warm pool are evicted when a caller needs their slot.
        let taken = status.clones.iter().filter(|(state, _)| **state != CloneState::Pooled);
        let clones: u64 = taken.map(|(_, count)| count).sum();
        metrics.set_clones(&status.clones);
        metrics.set_egress_ok(status.egress == EgressHealth::Ok);
        if let Some(refused) = self.lifecycle.host().refused_packets() {
            metrics.set_egress_refused(refused);
        }
        if let Some(pool) = &status.pool {
            metrics.set_pool(pool);
        }
        metrics.set_pool_available(self.most_clones().saturating_sub(clones));
        metrics.text()
    }

    fn slots(&self) -> u64 {
        self.lifecycle.slots().len() as u64
    }

    fn most_clones(&self) -> u64 {
        self.gate.config.server.max_clones.min(self.slots())
    }
}

fn now<R: Serialize>(id: &RawValue, result: &R) -> Handled {
    Handled::Now { line: wire::success(id, result), served: true }
}

/// The answer of a future, even if it panics: a caller must not wait for ever because of a defect.
fn later<R: Serialize>(
    id: Box<RawValue>,
    permit: Option<OwnedSemaphorePermit>,
    running: impl Future<Output = Result<R, RpcError>> + Send + 'static,
) -> Handled {
    Handled::Later(Box::pin(async move {
        let result = AssertUnwindSafe(running).catch_unwind().await.unwrap_or_else(|_| {
            Err(RpcError::new(
                ErrorCode::Internal,
                "hostd has a defect: the operation panicked",
                "the daemon's log says where; browser-clone-reap cleans up",
            ))
        });
        drop(permit);
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
