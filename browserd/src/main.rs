//! `browserd`: see `docs/browserd.md`.

use browserd::Config;
use clap::Parser;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let config = Config::parse();
    let filter = EnvFilter::try_from_env("BROWSERD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    // One thread: it only passes messages on, it keeps memory small, and the kernel ties the browser's
    // life to the thread that started it.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("browserd: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(browserd::run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("browserd: {error}");
            ExitCode::FAILURE
        }
    }
}
