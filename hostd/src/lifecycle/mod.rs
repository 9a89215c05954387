//! The life of a clone: create, the one destroy walk, reap, force-unmount, reconcile.

mod engine;

pub use engine::{Caller, Engine, EngineStatus, ProgressSink, Setup};
