//! Runs the calls that the gate lets through.
//!
//! Quick methods are answered at once. The others become a future that the connection runs on a task of its own, so that
//! the call ends even when the caller disconnects.

use super::gate::{Call, CallerSession, Gate, LineDecision};
use super::shares::Share;
use crate::api::*;
use crate::host::Host;
use crate::lifecycle::{Lifecycle, ProgressSink};
use crate::wire;
use futures_util::FutureExt;
use serde::Serialize;
use serde_json::value::RawValue;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The OpenRPC document. It is the same for every caller and costs milliseconds to make.
static DOCUMENT: LazyLock<Box<RawValue>> = LazyLock::new(|| {
    serde_json::value::to_raw_value(&crate::api::openrpc::document()).expect("the document is plain data")
});

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
        session: &CallerSession,
        line: &[u8],
        busy: usize,
        progress: &ProgressLines,
    ) -> Handled {
        let (id, call, share) = match self
            .gate
            .decide(session, line, busy, |request| self.lifecycle.is_known(&session.caller, request))
        {
            LineDecision::Run(id, call, share) => (id, call, share),
            LineDecision::Refuse { line, change } => {
                if let Some((method, code)) = change {
                    self.lifecycle.refused(&session.caller, method, code);
                }
                return Handled::Now { line, served: false };
            }
            LineDecision::Ignore(method) => return Handled::Ignored(method),
        };
        let (server, caller) = (self.clone(), session.caller.clone());
        match *call {
            Call::List(params) => now(&id, &self.lifecycle.list(&session.caller, &params)),
            Call::Discover => now(&id, &*DOCUMENT),
            Call::Status(params) if !params.checks => now(&id, &self.status(params)),
            Call::Status(params) => later(id, share, async move {
                let findings = server.lifecycle.checks().await;
                Ok(StatusResult { findings: Some(findings), ..server.status(params) })
            }),
            Call::Create(params) => {
                let sink = sink(&params.progress_token, progress);
                later(id, share, async move { server.lifecycle.create(&caller, *params, sink).await })
            }
            Call::Destroy(params) => {
                let sink = sink(&params.progress_token, progress);
                later(id, share, async move { server.lifecycle.destroy(&caller, params, sink).await })
            }
            Call::Reap(params) => {
                let sink = sink(&params.progress_token, progress);
                later(id, share, async move { server.lifecycle.reap(&caller, params, sink).await })
            }
            Call::ForceUnmount(params) => {
                let sink = sink(&params.progress_token, progress);
                later(id, share, async move { server.lifecycle.force_unmount(&caller, params, sink).await })
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
    share: Option<Share>,
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
        drop(share);
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
