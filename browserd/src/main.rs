//! `browserd`: see `docs/browserd.md`.

use browserd::Config;
use clap::Parser;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let config = Config::parse();
    let filter = EnvFilter::try_from_env("BROWSERD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    // One thread: the work is I/O, memory stays small, and PR_SET_PDEATHSIG kills Chromium when the thread that started it
    // ends.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("browserd: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(browserd::run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("browserd: {}", browserd::with_causes(&error));
            ExitCode::FAILURE
        }
    }
}
