//! One connection: read lines, answer the quick ones, start the others, write what comes back.
//!
//! One task does all of that, so a peer that does not read its answers stops being read as well and
//! is given up after a while; nobody else waits for it. Operations run on tasks of their own and
//! hand their answers back through a queue; if the connection is gone by then, the answer is dropped
//! and the operation has still been done.

use super::connections::Ticket;
use super::dispatch::{Handled, Pending, ProgressLines, SOON, Server, Session, shutting_down};
use super::framing::{LineReader, LineWriter};
use super::log_throttle::LogThrottle;
use crate::api::{ErrorCode, RpcError};
use crate::host::Host;
use crate::wire;
use serde_json::value::RawValue;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

/// Progress lines and answers that wait to be written; progress beyond that is dropped.
const QUEUE: usize = 256;

/// A line to write, and whether it ends a request.
enum Outgoing {
    Progress(Vec<u8>),
    Answer(Vec<u8>),
}

/// Serve one connection to its end. When the sender of `closing` is dropped, hand out what is left and close.
pub async fn serve<H: Host>(
    server: Arc<Server<H>>,
    mut stream: UnixStream,
    session: Session,
    ticket: Ticket,
    closing: watch::Receiver<()>,
) {
    let (number, uid) = (ticket.id(), session.caller.uid);
    tracing::debug!(connection = number, uid, "open");
    match talk(&server, &mut stream, &session, &ticket, closing).await {
        Ok(()) => tracing::debug!(connection = number, "closed"),
        Err(error) => tracing::debug!(connection = number, %error, "broken"),
    }
}

async fn talk<H: Host>(
    server: &Arc<Server<H>>,
    stream: &mut UnixStream,
    session: &Session,
    ticket: &Ticket,
    mut closing: watch::Receiver<()>,
) -> io::Result<()> {
    let limits = &server.gate.config.server;
    let patience = Duration::from_secs(limits.line_timeout_seconds.max(1));
    let (read, write) = stream.split();
    let mut lines = LineReader::new(read, limits.max_line_bytes, patience);
    let mut writer = LineWriter::new(write, patience);
    let (queue, mut finished) = mpsc::channel(QUEUE);
    let progress = progress_lines(&queue);
    let mut ignored = LogThrottle::default();

    // Until a reason to close comes; then the last line the peer gets, if it gets one.
    let last_word = loop {
        tokio::select! {
            Some(outgoing) = finished.recv() => deliver(&mut writer, ticket, outgoing).await?,
            line = lines.next() => match line {
                Ok(Some(line)) => {
                    ticket.touch();
                    match server.handle(session, line, ticket.under_way(), &progress) {
                        Handled::Now { line, served } => {
                            if served {
                                ticket.served();
                            }
                            writer.write(&line).await?;
                        }
                        Handled::Later(pending) => {
                            ticket.served();
                            start(ticket, &queue, pending);
                        }
                        Handled::Ignored(method) => {
                            if let Some(left_out) = ignored.may_log(Instant::now()) {
                                let uid = session.caller.uid;
                                tracing::warn!(connection = ticket.id(), uid, %method, left_out, "a notification is not executed");
                            }
                        }
                    }
                }
                Ok(None) => break None,
                Err(error) => {
                    tracing::info!(connection = ticket.id(), uid = session.caller.uid, %error, "refused");
                    break Some(error.refusal().ok_or_else(|| io::Error::other(error.to_string()))?);
                }
            },
            () = ticket.evicted() => break Some(evicted()),
            _ = closing.changed() => break Some(shutting_down()),
        }
    };
    // Calls that are under way still get their answers, also after the peer has ended its side.
    while ticket.under_way() > 0 {
        let Some(outgoing) = finished.recv().await else { break };
        deliver(&mut writer, ticket, outgoing).await?;
    }
    match last_word {
        Some(error) => writer.write(&wire::failure(RawValue::NULL, &error)).await,
        None => Ok(()),
    }
}

fn start(ticket: &Ticket, queue: &mpsc::Sender<Outgoing>, pending: Pending) {
    ticket.begin();
    let queue = queue.clone();
    tokio::spawn(async move {
        let answer = pending.await;
        // The connection may be gone by now; the operation is done all the same.
        let _ = queue.send(Outgoing::Answer(answer)).await;
    });
}

async fn deliver<W: tokio::io::AsyncWrite + Unpin>(
    writer: &mut LineWriter<W>,
    ticket: &Ticket,
    outgoing: Outgoing,
) -> io::Result<()> {
    match outgoing {
        Outgoing::Progress(line) => writer.write(&line).await,
        Outgoing::Answer(line) => {
            ticket.end();
            writer.write(&line).await
        }
    }
}

/// Weak, so that the queue ends when no operation of the connection is left.
fn progress_lines(queue: &mpsc::Sender<Outgoing>) -> ProgressLines {
    let queue = queue.downgrade();
    Arc::new(move |line| {
        if let Some(queue) = queue.upgrade() {
            let _ = queue.try_send(Outgoing::Progress(line));
        }
    })
}

fn evicted() -> RpcError {
    let message = "this connection was idle longest and its place is needed";
    let hint = "connect again when there is something to ask, and close connections that are done";
    RpcError::new(ErrorCode::TooManyConnections, message, hint).retry_after(SOON)
}
