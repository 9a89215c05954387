//! The Linux part: inspects the machine, starts bubblewrap and manages the running sandbox.

pub mod battery;
mod bubblewrap;
mod embedded;
mod facts;
mod fixes;
mod handle;
mod ipc;
mod launch;
mod limits;
mod namespace;
mod pages;
pub mod preflight;
mod seccomp;
mod stages;
mod start;

pub use handle::{LayerState, Sandbox, Timings};
pub use launch::{Launch, Stdio};
pub use limits::LimitEnforcer;

use crate::Error;

/// Wraps a system error with the failed operation.
fn doing(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}
