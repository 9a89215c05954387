//! `tracing` spans of the parts of an operation, active only if the log filter names their target.
//!
//! `log.filter = "info,hostd::time=debug"` logs each part at its end with its duration and its operation.
//! `scripts/bench lifecycle` draws its waterfall from these lines.

use tracing::Span;

/// A whole operation on the object that the caller named.
pub(crate) fn operation(method: &str, object: &str) -> Span {
    tracing::debug_span!(target: "hostd::time", "operation", method, object)
}

/// A part of the running operation.
pub(crate) fn part(part: &str) -> Span {
    tracing::debug_span!(target: "hostd::time", "part", part)
}
