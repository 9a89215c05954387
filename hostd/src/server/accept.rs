//! Accepts connections: checks credentials, access rules and caps, then starts one task for each connection.

use super::connection;
use super::dispatch::{SOON, Session, Shared};
use super::listener::Listener;
use super::log_throttle::LogThrottle;
use super::operations::Operations;
use crate::api::{ErrorCode, RpcError};
use crate::platform;
use crate::wire;
use serde_json::value::RawValue;
use std::future::Future;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

/// The delay before the next accept(2) when the system is out of descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long clients may take to read the last answers when the daemon stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Serve until `stop` is ready, then shut down: refuse new connections and operations, wait for running operations (or
/// until `hurry` is ready), and send their answers. Returns how many operations were not finished; the next start
/// continues from their records.
pub async fn serve<O: Operations>(
    shared: Arc<Shared<O>>,
    listener: Listener,
    stop: impl Future<Output = ()>,
    hurry: impl Future<Output = ()>,
) -> u64 {
    let (closing, _) = watch::channel(());
    // Every connection holds a clone of `alive`; when all are dropped, the receiver ends.
    let (alive, mut all_gone) = mpsc::channel::<()>(1);
    tokio::select! {
        () = accept(&shared, &listener, &closing, &alive) => {}
        () = stop => {}
    }
    drop(listener);
    drop(alive);
    shared.stop();
    let left = tokio::select! {
        left = shared.operations.shutdown() => left,
        () = hurry => {
            tracing::warn!("not waiting for running operations; the next start rolls them back");
            shared.operations.status().operations
        }
    };
    drop(closing);
    let _ = tokio::time::timeout(LAST_ANSWERS, all_gone.recv()).await;
    left
}

async fn accept<O: Operations>(
    shared: &Arc<Shared<O>>,
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
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        match admit(shared, &stream) {
            Ok((session, ticket)) => {
                let served = connection::serve(shared.clone(), stream, session, ticket, closing.subscribe());
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
                // The buffer of a new socket has room for one line, so this never blocks.
                let _ = stream.try_write(&wire::failure(RawValue::NULL, &error));
            }
        }
    }
}

fn admit<O: Operations>(
    shared: &Arc<Shared<O>>,
    stream: &UnixStream,
) -> Result<(Session, super::connections::Ticket), RpcError> {
    let peer = platform::peer(stream.as_fd()).map_err(|error| {
        let message = format!("cannot read the peer's credentials: {error}");
        RpcError::new(ErrorCode::Denied, message, "connect over hostd's Unix socket on this host")
    })?;
    let grant = shared.access.grant(&peer).ok_or_else(|| {
        RpcError::new(
            ErrorCode::Denied,
            format!("user {} may not call anything", peer.uid),
            "add an access rule to hostd's configuration",
        )
    })?;
    let ticket = shared.connections.admit(peer.uid).map_err(|limit| {
        let message = format!("too many connections ({limit}), and none is idle");
        RpcError::new(
            ErrorCode::TooManyConnections,
            message,
            "use fewer connections: one connection carries many requests",
        )
        .retry_after(SOON)
    })?;
    Ok((Session::new(&peer, grant), ticket))
}
