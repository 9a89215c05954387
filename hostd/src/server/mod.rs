//! The daemon around the lifecycle: socket, callers, limits, dispatch.
//!
//! Read in this order: [`daemon`] starts and stops everything, [`listener`] opens the socket, [`accept`] admits peers,
//! [`connection`] serves one of them, [`gate`] decides about a line, [`dispatch`] runs its call. They use [`access`],
//! [`connections`], [`framing`], [`rate`] and [`shares`].

pub mod accept;
pub mod access;
pub mod connection;
pub mod connections;
pub mod daemon;
pub mod dispatch;
pub mod framing;
#[doc(hidden)]
pub mod fuzzing;
pub mod gate;
pub mod instance;
pub mod listener;
pub mod log_throttle;
mod log_writer;
pub mod metrics_http;
pub mod notify;
pub mod rate;
pub mod shares;
