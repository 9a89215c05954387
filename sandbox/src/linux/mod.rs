//! The Linux part: looking at the machine, starting bubblewrap, watching over what it started.

mod facts;
mod handle;
mod launch;
pub mod preflight;

pub use handle::{LayerState, LimitKeeper, Sandbox, Timings};
pub use launch::{Launch, Stdio};
