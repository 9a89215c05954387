//! The life of a clone: create, the one destroy walk, reap, force-unmount, reconcile.
//!
//! Intent is recorded before the first effect, every effect is verified by looking, and whatever is
//! not finished after a crash is rolled back by the same walk that a destroy is.

mod book;
mod build;
mod claim;
mod create;
mod destroy;
mod drain;
mod engine;
mod ours;
mod place;
mod pool_wish;
mod progress;
mod reap;
pub mod reconcile;
mod refill;
mod step;
mod tally;
mod view;
mod walk;

pub use engine::{Caller, Engine, EngineStatus, OpenError, Setup};
pub use progress::ProgressSink;
pub use step::Step;
