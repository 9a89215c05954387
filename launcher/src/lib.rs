//! Starts Chromium in a sandbox and keeps Chromium's own sandbox active inside it.
//!
//! [`Launcher`] returns a [`Browser`] only after the browser responds over its debugging pipe *and* a renderer was
//! observed in its own user namespace with its own system call filter. The same crate builds `browser-launcher`, which
//! can be the `executablePath` of Playwright, Puppeteer, Selenium and others.
#![cfg(target_os = "linux")]

use std::io::Write;

mod blueprint;
mod bridge;
pub mod cdp;
pub mod chromium;
mod client;
pub mod config;
mod display;
pub mod doctor;
mod downloads;
pub mod dropin;
pub mod egress;
pub mod flags;
mod folders;
#[doc(hidden)]
pub mod fuzzing;
pub mod inherited;
mod launch;
mod log;
mod messages;
mod output;
mod paths;
mod peer;
pub mod probe;
mod ready;
mod relay;
mod runfolder;
mod services;
mod uploads;

pub use blueprint::{Debugging, browser_files};
pub use config::Config;
pub use folders::FolderError;
pub use launch::{Browser, LaunchError, Launcher, Output, Timings};
pub use ready::{RendererProof, prove_renderer};
pub use sandbox::error_chain;

/// Prints a message of the launcher to standard error. Parts of it may come from the browser or from the caller.
pub fn say(text: &str) {
    // A closed standard error is not a reason to stop.
    let _ = writeln!(std::io::stderr(), "browser-launcher: {}", safe_text::lines(text));
}
