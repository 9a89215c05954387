//! `hostctl`, the command line of hostd, for people and, with `--json`, for programs.
//!
//! `args.rs` defines the command line; help, manual pages, completions and `docs/cli.md` are generated from it.
//! A command returns a `CommandOutput` or a `Failure`; `output.rs` prints it and chooses the exit code.

mod args;
mod create;
mod demo;
mod destroy;
mod doctor;
mod generate;
mod list;
mod output;
mod pool;
mod progress;
mod reap;
mod remote;
mod status;
mod template;
mod visit;

pub use args::{EXIT_CODES, command};
pub use terminal::Exit;

use args::{Cli, Command};
use clap::Parser;
use output::{CommandOutput, Failure, Output};
use remote::Remote;
use std::process::ExitCode;

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let output = Output::new(cli.json);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return output.finish(Err(Failure::local(Exit::Failure, "internal", error.to_string())));
        }
    };
    let outcome = runtime.block_on(run(cli, &output));
    output.finish(outcome)
}

async fn run(cli: Cli, output: &Output) -> Result<CommandOutput, Failure> {
    let timeout = cli.timeout.unwrap_or_else(|| cli.command.timeout());
    let remote = Remote::new(cli.socket, timeout);
    match cli.command {
        Command::Create(args) => create::run(&remote, output, *args).await,
        Command::Destroy(args) => destroy::destroy(&remote, output, args).await,
        Command::Reap(args) => reap::run(&remote, output, args).await,
        Command::ForceUnmount(args) => destroy::force_unmount(&remote, output, args).await,
        Command::Ls(args) => list::run(&remote, output, args).await,
        Command::Status => status::status(&remote).await,
        Command::Pool => pool::run(&remote, output).await,
        Command::Metrics => status::metrics(&remote).await,
        Command::Doctor(args) => doctor::run(remote, output, args).await,
        Command::Template(args) => template::run(output, args).await,
        Command::Demo(args) => demo::run(&remote, output, args).await,
        Command::Call(args) => status::call(&remote, args).await,
        Command::Completions(args) => generate::completions(args.shell),
        Command::Man(args) => generate::man(args.dir.as_deref()),
    }
}

/// Report a command line that does not parse. Whether it asked for JSON can only be guessed.
fn usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|arg| arg == "--json");
    if !error.use_stderr() || !wants_json {
        // Help and version are not errors: clap prints them to stdout.
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { Exit::Ok as u8 });
    }
    let message = error.render().to_string();
    let message = message.trim_start_matches("error: ").lines().next().unwrap_or_default().to_owned();
    let failure = Failure::local(Exit::Usage, "usage", message).hint("see hostctl --help");
    Output::new(true).finish(Err(failure))
}
