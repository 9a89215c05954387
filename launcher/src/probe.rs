//! `probe`: what a compromised browser process could reach.

use std::process::ExitCode;

use crate::config::Config;

pub fn run(_config: &Config, _as_json: bool) -> ExitCode {
    eprintln!("browser-launcher: not built yet");
    ExitCode::FAILURE
}
