//! The Linux part: looking at the machine, starting bubblewrap, watching over what it started.

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
pub use limits::LimitKeeper;

use crate::Error;

/// Turns an error of the system into ours, saying what was being done.
fn doing(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}
