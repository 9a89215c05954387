//! Chromium, confined, with its own sandbox alive.
//!
//! [`Launcher`] starts a browser and returns a [`Browser`] only when the browser answers over its debugging pipe *and*
//! a renderer was seen in a user namespace of its own with a system call filter of its own. The same crate builds
//! `browser-launcher`, which also serves as `executablePath` of Playwright, Puppeteer, Selenium and others.
#![cfg(target_os = "linux")]

mod blueprint;
mod bridge;
pub mod cdp;
pub mod chromium;
pub mod config;
mod display;
pub mod doctor;
pub mod dropin;
pub mod egress;
pub mod flags;
mod folders;
#[doc(hidden)]
pub mod fuzzing;
pub mod inherited;
mod launch;
mod log;
mod paths;
mod peer;
pub mod probe;
mod ready;
mod runfolder;
mod services;

pub use blueprint::{Debugging, browser_files};
pub use config::Config;
pub use folders::FolderError;
pub use launch::{Browser, LaunchError, Launcher, Output, Timings};
pub use ready::{RendererProof, prove_renderer};
