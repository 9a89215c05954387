//! The HTTP server inside a clone: it starts Chromium, controls it over the CDP pipe and serves an HTTP API to the control
//! plane.
//!
//! - [`cdp`]: an asynchronous CDP client for the debugging pipe
//! - [`api`]: requests, responses, errors, the table of operations and the OpenAPI document
//! - [`client`]: a typed client for the API
//! - [`Config`] and [`run`]: the program itself

#![warn(missing_docs)]

pub mod api;
mod browser;
pub mod cdp;
pub mod client;
mod config;
mod presentation;
mod program;
mod protocol;
mod secret;
mod server;
mod sys;
mod transfer;

pub use api::error::with_causes;
pub use config::Config;
pub use presentation::UserAgentPolicy;
pub use program::{RunError, protect_process, run};
pub use secret::{InvalidSecret, Secret};
