//! Lets peers in: credentials, access, caps; then one task for each connection.

use super::connection;
use super::dispatch::{SOON, Server, Session};
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

/// How long to wait before the next try when the system has no file or memory for a connection.
const BREATH: Duration = Duration::from_millis(100);
/// How long the last answers may take to be read when the daemon stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Serve until `stop` is ready, then shut down in order: no new connections, no new operations,
/// running operations to their end (or until `hurry` is ready), their answers, the end.
/// Answers how many operations were left; their records tell the next start what to do.
pub async fn serve<H: Host>(
    server: Arc<Server<H>>,
    listener: Listener,
    stop: impl Future<Output = ()>,
    hurry: impl Future<Output = ()>,
) -> u64 {
    let (closing, _) = watch::channel(());
    // Every connection holds a clone of `alive`; when all are gone the receiver ends.
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
            tracing::warn!("not waiting for operations that are under way; the next start rolls them back");
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
    let mut refusals = LogThrottle::default();
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(BREATH).await;
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
                // A fresh socket has room for one line: this never waits.
                let _ = stream.try_write(&wire::failure(RawValue::NULL, &error));
            }
        }
    }
}

fn admit<H: Host>(
    server: &Arc<Server<H>>,
    stream: &UnixStream,
) -> Result<(Session, super::connections::Ticket), RpcError> {
    let peer = platform::peer(stream.as_fd()).map_err(|error| {
        let message = format!("the system does not tell who is calling: {error}");
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
        let message = format!("too many connections ({limit}), all of them at work");
        RpcError::new(
            ErrorCode::TooManyConnections,
            message,
            "use fewer connections: each takes many requests at once",
        )
        .retry_after(SOON)
    })?;
    Ok((Session::new(&peer, grant), ticket))
}
