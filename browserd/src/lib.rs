//! The plain HTTP program inside a clone: it starts Chromium, drives it over the CDP pipe and offers an
//! HTTP API to the control plane.
//!
//! - [`cdp`]: the CDP client, of use to anyone who has a pipe to a browser
//! - [`api`]: requests, answers, errors, the table of operations and the OpenAPI document
//! - [`client`]: a typed client of the API
//! - [`Config`] and [`run`]: the program itself

#![warn(missing_docs)]

pub mod api;
mod browser;
pub mod cdp;
pub mod client;
mod config;
mod program;
mod server;
mod sys;

pub use config::Config;
pub use program::{RunError, run};
