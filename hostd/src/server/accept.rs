//! Admits peers by credentials, access rules and caps, and starts one task for each connection.

use super::connection;
use super::dispatch::Server;
use super::gate::{CallerSession, SOON};
use super::listener::Listener;
use super::log_throttle::LogThrottle;
use crate::api::{ErrorCode, RpcError};
use crate::host::Host;
use crate::platform;
use crate::wire;
use serde_json::value::RawValue;
use std::future::Future;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

/// The pause before the next accept(2) if the system has no file or memory for a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long a stopping daemon waits until its last answers are read.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Serve until `stop` is ready, then shut down: accept no connections, refuse new operations, wait for the running ones
/// (or until `hurry` is ready), write their answers. Returns how many operations were still running; the next start rolls
/// them back from their records.
pub async fn serve<H: Host>(
    server: Arc<Server<H>>,
    listener: Listener,
    stop: impl Future<Output = ()>,
    hurry: impl Future<Output = ()>,
) -> u64 {
    let (closing, _) = watch::channel(());
    // Every connection holds a clone of `alive`. The receiver ends when all are dropped.
    let (alive, mut all_gone) = mpsc::channel::<()>(1);
    tokio::select! {
        () = accept(&server, &listener, &closing, &alive) => {}
        () = stop => {}
    }
    drop(listener);
    drop(alive);
    server.gate.stop();
    let left = tokio::select! {
        left = server.lifecycle.shutdown() => left,
        () = hurry => {
            tracing::warn!("not waiting for running operations; the next start rolls them back");
            server.lifecycle.status().operations
        }
    };
    drop(closing);
    let _ = tokio::time::timeout(LAST_ANSWERS, all_gone.recv()).await;
    left
}

async fn accept<H: Host>(
    server: &Arc<Server<H>>,
    listener: &Listener,
    closing: &watch::Sender<()>,
    alive: &mpsc::Sender<()>,
) {
    let (mut refusals, mut failures) = (LogThrottle::default(), LogThrottle::default());
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                if let Some(left_out) = failures.may_log(Instant::now()) {
                    tracing::warn!(%error, left_out, "cannot accept a connection");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        match admit(server, &stream) {
            Ok((session, ticket)) => {
                let served = connection::serve(server.clone(), stream, session, ticket, closing.subscribe());
                let alive = alive.clone();
                tokio::spawn(async move {
                    served.await;
                    drop(alive);
                });
            }
            Err(error) => {
                if let Some(left_out) = refusals.may_log(Instant::now()) {
                    tracing::warn!(%error, left_out, "connection refused");
                }
                // A new socket's buffer has room for one line, so this does not wait.
                let _ = stream.try_write(&wire::failure(RawValue::NULL, &error));
            }
        }
    }
}

fn admit<H: Host>(
    server: &Arc<Server<H>>,
    stream: &UnixStream,
) -> Result<(CallerSession, super::connections::ConnectionTicket), RpcError> {
    let peer = platform::peer(stream.as_fd()).map_err(|error| {
        let message = format!("the peer's credentials cannot be read: {error}");
        RpcError::new(ErrorCode::Denied, message, "connect over hostd's Unix socket on this host")
    })?;
    let grant = server.gate.access.grant(&peer).ok_or_else(|| {
        RpcError::new(
            ErrorCode::Denied,
            format!("user {} may not call anything", peer.uid),
            "the administrator allows it with an access rule in hostd's configuration",
        )
    })?;
    let ticket = server.gate.connections.admit(peer.uid).map_err(|limit| {
        let message = format!("too many connections ({limit}), all with running requests");
        RpcError::new(
            ErrorCode::TooManyConnections,
            message,
            "use fewer connections: one carries many concurrent requests",
        )
        .retry_after(SOON)
    })?;
    Ok((CallerSession::new(&peer, grant), ticket))
}
