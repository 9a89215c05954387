//! hostd gives every browser task its own disposable clone of a browser and takes it away again
//! without leaving anything behind, whatever crashes in between.
//!
//! The contract is in [`api`], the life of a clone in [`lifecycle`], what the system must be able to
//! do in [`host`], and the daemon around them in [`server`]. `docs/architecture.md` has the picture.

pub mod api;
pub mod audit;
pub mod client;
pub mod clock;
pub mod config;
mod disk;
pub mod host;
pub mod lifecycle;
pub mod metrics;
pub mod platform;
pub mod record;
pub mod server;
pub mod slot;
mod timing;
pub mod wire;
