//! Chromium, confined, with its own sandbox alive.
#![cfg(target_os = "linux")]

pub mod cdp;
pub mod chromium;
pub mod config;
pub mod egress;
pub mod flags;
#[doc(hidden)]
pub mod flags_oracle;
