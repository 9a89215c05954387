//! A small asynchronous client for the Chrome DevTools Protocol over the pipe
//! (`--remote-debugging-pipe`): JSON messages, each ended by a NUL byte, many sessions in one stream.
//!
//! The pipe and not a port, because nobody else in the clone can speak on it. Everything that arrives
//! is handled in the reader's own task, in the order Chromium sent it: first the state changes, then
//! the waiting call. So a call that returns finds all earlier events already applied, and no event
//! queue exists that could fill up.

mod connection;
mod frame;

pub use connection::{Connection, Event, Reply, Session};
pub use frame::{Frame, FrameReader};

use std::time::Duration;

/// Why a CDP call gave no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CdpError {
    /// Chromium answered with an error.
    #[error("{method}: {message} (code {code})")]
    Protocol {
        /// The CDP method.
        method: String,
        /// Chromium's error code.
        code: i64,
        /// Chromium's text.
        message: String,
    },
    /// No answer within the call's deadline.
    #[error("{method}: no answer within {} ms", .after.as_millis())]
    Timeout {
        /// The CDP method.
        method: String,
        /// How long the call waited.
        after: Duration,
    },
    /// The session's target went away (closed tab, crashed renderer) before the answer came.
    #[error("{method}: the target is gone: {reason}")]
    SessionGone {
        /// The CDP method.
        method: String,
        /// What happened to it.
        reason: String,
    },
    /// The answer was larger than the connection accepts and was thrown away.
    #[error("{method}: the answer of {bytes} bytes is larger than accepted")]
    TooLarge {
        /// The CDP method.
        method: String,
        /// Its size.
        bytes: usize,
    },
    /// The answer was not of the expected form.
    #[error("{method}: unexpected answer: {message}")]
    Malformed {
        /// The CDP method.
        method: String,
        /// What was wrong with it.
        message: String,
    },
    /// The browser closed the pipe: it died or was stopped.
    #[error("{method}: the browser is gone")]
    Closed {
        /// The CDP method.
        method: String,
    },
}
