//! `browserd`: see `docs/browserd.md`.

use browserd::Config;
use clap::Parser;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    if let Err(error) = browserd::protect_process() {
        eprintln!("browserd: cannot protect its process from others: {error}");
        return ExitCode::FAILURE;
    }
    let config = Config::parse();
    let filter = EnvFilter::try_from_env("BROWSERD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match browserd::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("browserd: {}", browserd::with_causes(&error));
            ExitCode::FAILURE
        }
    }
}
