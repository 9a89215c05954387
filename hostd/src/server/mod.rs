//! The daemon around the lifecycle: socket, callers, limits, dispatch.
//!
//! Read in this order: [`daemon`] starts and stops everything, [`listener`] makes the socket,
//! [`accept`] lets peers in, [`connection`] talks to one of them, [`dispatch`] turns a line into an
//! operation. The rest are the parts they use: [`access`], [`rate`], [`connections`], [`framing`].

pub mod accept;
pub mod access;
pub mod connection;
pub mod connections;
pub mod daemon;
pub mod dispatch;
pub mod framing;
#[doc(hidden)]
pub mod fuzzing;
pub mod instance;
pub mod listener;
pub mod log_throttle;
pub mod metrics_http;
pub mod notify;
pub mod operations;
pub mod rate;
