//! A small asynchronous client for the Chrome DevTools Protocol over the pipe (`--remote-debugging-pipe`), with many
//! sessions in one stream. The crate `cdp_pipe` does the framing.
//!
//! A pipe is used instead of a port because no other process in the clone can open it. One reader task handles all
//! messages in the order Chromium sent them. A call that returns therefore finds all earlier events already applied,
//! and no event queue exists that could fill up.

mod connection;

pub use connection::{CallGuard, Connection, Event, Reply, Session};

use std::time::Duration;

/// Why a CDP call returned no result.
#[derive(Debug, thiserror::Error)]
pub enum CdpError {
    /// Chromium replied with an error.
    #[error("{method}: {message} (code {code})")]
    Protocol {
        /// The CDP method.
        method: String,
        /// Chromium's error code.
        code: i64,
        /// Chromium's error message.
        message: String,
    },
    /// No reply within the call's deadline.
    #[error("{method}: no reply within {} ms", .after.as_millis())]
    Timeout {
        /// The CDP method.
        method: String,
        /// How long the call waited.
        after: Duration,
    },
    /// The session's target was closed or its renderer crashed before the reply arrived.
    #[error("{method}: the target is gone: {reason}")]
    SessionGone {
        /// The CDP method.
        method: String,
        /// What happened to the target.
        reason: String,
    },
    /// The reply was above the connection's size limit and was skipped.
    #[error("{method}: the reply of {bytes} bytes is above the size limit")]
    TooLarge {
        /// The CDP method.
        method: String,
        /// The size of the reply.
        bytes: usize,
    },
    /// The reply does not have the expected form.
    #[error("{method}: unexpected reply")]
    Malformed {
        /// The CDP method.
        method: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The reply has neither a result nor an error.
    #[error("{method}: the reply has neither a result nor an error")]
    EmptyReply {
        /// The CDP method.
        method: String,
    },
    /// The parameters cannot be written as JSON.
    #[error("{method}: cannot encode the parameters")]
    Parameters {
        /// The CDP method.
        method: String,
        /// The serializer's error.
        source: serde_json::Error,
    },
    /// The pipe is closed: the browser ended or was stopped.
    #[error("{method}: the browser has ended")]
    Closed {
        /// The CDP method.
        method: String,
    },
}
