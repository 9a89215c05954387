//! One connection: reads lines, answers quick calls, starts the others, writes their answers.
//!
//! One task does all of that. So the lines of a peer that does not read its answers are not read either, and the peer is
//! disconnected after a timeout. Nobody else waits for it. Operations run on tasks of their own and send their answers
//! through a queue. If the connection is gone by then, the answer is dropped; the operation is done all the same.

use super::connections::ConnectionTicket;
use super::dispatch::{Handled, Pending, ProgressLines, Server};
use super::framing::{LineReader, LineWriter};
use super::gate::{CallerSession, SOON, shutting_down};
use crate::api::{ErrorCode, RpcError};
use crate::host::Host;
use crate::wire;
use serde_json::value::RawValue;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

/// How many progress lines and answers wait to be written. Further progress lines are dropped.
const QUEUE: usize = 256;

/// A line to write, and whether it ends a request.
enum OutgoingLine {
    Progress(Vec<u8>),
    Answer(Vec<u8>),
}

/// Serve one connection to its end. When the sender of `closing` is dropped, write the remaining answers and close.
pub async fn serve<H: Host>(
    server: Arc<Server<H>>,
    mut stream: UnixStream,
    session: CallerSession,
    ticket: ConnectionTicket,
    closing: watch::Receiver<()>,
) {
    let (number, uid) = (ticket.id(), session.uid);
    tracing::debug!(connection = number, uid, "open");
    match talk(&server, &mut stream, &session, &ticket, closing).await {
        Ok(()) => tracing::debug!(connection = number, "closed"),
        Err(error) => tracing::debug!(connection = number, %error, "broken"),
    }
}

async fn talk<H: Host>(
    server: &Arc<Server<H>>,
    stream: &mut UnixStream,
    session: &CallerSession,
    ticket: &ConnectionTicket,
    mut closing: watch::Receiver<()>,
) -> io::Result<()> {
    let limits = &server.gate.config.server;
    let timeout = Duration::from_secs(limits.line_timeout_seconds.max(1));
    let (read, write) = stream.split();
    let mut lines = LineReader::new(read, limits.max_line_bytes, timeout);
    let mut writer = LineWriter::new(write, timeout);
    let (queue, mut finished) = mpsc::channel(QUEUE);
    let progress = progress_lines(&queue);

    // Ends with a reason to close; its value is the last line to the peer, if there is one.
    let last_line = loop {
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
                            if let Some(left_out) = server.gate.may_log_refusal(session.uid) {
                                tracing::warn!(uid = session.uid, ?method, left_out, "a notification is not executed");
                            }
                        }
                    }
                }
                Ok(None) => break None,
                Err(error) => {
                    if let Some(left_out) = server.gate.may_log_refusal(session.uid) {
                        tracing::info!(uid = session.uid, left_out, "refused: {error}");
                    }
                    break Some(error.refusal().ok_or_else(|| io::Error::other(error.to_string()))?);
                }
            },
            () = ticket.evicted() => break Some(evicted()),
            _ = closing.changed() => break Some(shutting_down()),
        }
    };
    // Running calls still get their answers, also after the peer has closed its side.
    while ticket.under_way() > 0 {
        let Some(outgoing) = finished.recv().await else { break };
        deliver(&mut writer, ticket, outgoing).await?;
    }
    match last_line {
        Some(error) => writer.write(&wire::failure(RawValue::NULL, &error)).await,
        None => Ok(()),
    }
}

fn start(ticket: &ConnectionTicket, queue: &mpsc::Sender<OutgoingLine>, pending: Pending) {
    ticket.begin();
    let queue = queue.clone();
    tokio::spawn(async move {
        let answer = pending.await;
        // An error means that the connection is gone.
        let _ = queue.send(OutgoingLine::Answer(answer)).await;
    });
}

async fn deliver<W: tokio::io::AsyncWrite + Unpin>(
    writer: &mut LineWriter<W>,
    ticket: &ConnectionTicket,
    outgoing: OutgoingLine,
) -> io::Result<()> {
    match outgoing {
        OutgoingLine::Progress(line) => writer.write(&line).await,
        OutgoingLine::Answer(line) => {
            ticket.end();
            writer.write(&line).await
        }
    }
}

/// Weak, so that the queue ends when no operation of the connection is left.
fn progress_lines(queue: &mpsc::Sender<OutgoingLine>) -> ProgressLines {
    let queue = queue.downgrade();
    Arc::new(move |line| {
        if let Some(queue) = queue.upgrade() {
            let _ = queue.try_send(OutgoingLine::Progress(line));
        }
    })
}

fn evicted() -> RpcError {
    let message = "this connection was idle longest and was closed for a new one";
    let hint = "connect again when needed, and close connections that are not needed";
    RpcError::new(ErrorCode::TooManyConnections, message, hint).retry_after(SOON)
}
