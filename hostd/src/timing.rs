//! Where the time of an operation goes: spans for `tracing`, made only when the log's filter names their target.
//!
//! `log.filter = "info,hostd::time=debug"` writes a line when each part ends, with its time and the operation that it is
//! a part of. `scripts/bench lifecycle` draws its waterfall from these lines.

use tracing::Span;

/// A whole operation; `object` is what the caller named.
pub(crate) fn operation(method: &str, object: &str) -> Span {
    tracing::debug_span!(target: "hostd::time", "operation", method, object)
}

/// A part of the operation that is under way.
pub(crate) fn part(part: &str) -> Span {
    tracing::debug_span!(target: "hostd::time", "part", part)
}
