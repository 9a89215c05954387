//! `browserctl`, the command line of the control plane, for people and, with `--json`, for programs.
//!
//! `args.rs` defines the commands of the service, `verbs.rs` makes the commands of the browser from the table of verbs; help,
//! manual pages, completions and `docs/browserctl.md` are generated from both. A command returns a `CommandOutput` or a
//! `Failure`; `output.rs` prints it and chooses the exit code.

mod args;
mod audit;
mod doctor;
mod generate;
mod keys;
mod mcp;
mod output;
mod params;
mod recording;
mod remote;
mod show;
mod status;
mod verbs;

pub use args::{EXIT_CODES, command};

use args::{AuditCommand, Command, Globals, KeyCommand, RecordingCommand};
use clap::{ArgMatches, FromArgMatches};
use output::{CommandOutput, Failure, Output};
use remote::Remote;
use std::process::ExitCode;
use terminal::Exit;

/// The whole program.
pub fn main() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let output = Output::new(matches.get_flag("json"));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return output.finish(Err(Failure::local(Exit::Failure, "internal", error.to_string())));
        }
    };
    let outcome = runtime.block_on(run(&matches, &output));
    // A read of standard input that is under way must not delay the end.
    runtime.shutdown_background();
    output.finish(outcome)
}

async fn run(matches: &ArgMatches, output: &Output) -> Result<CommandOutput, Failure> {
    let globals = Globals::from_arg_matches(matches).map_err(|error| Failure::usage(&error))?;
    let remote = Remote::new(&globals, matches)?;
    if let Some((name, given)) = matches.subcommand()
        && let Some(verb) = verbs::find(name)
    {
        return verbs::run(&remote, output, verb, given, &globals).await;
    }
    match Command::from_arg_matches(matches).map_err(|error| Failure::usage(&error))? {
        Command::Cdp => status::cdp(&remote, &globals).await,
        Command::Whoami => status::whoami(&remote).await,
        Command::Status => status::status(&remote, output).await,
        Command::Doctor => doctor::run(&remote, output).await,
        Command::Key(KeyCommand::Issue(args)) => keys::issue(&remote, args).await,
        Command::Key(KeyCommand::Ls) => keys::list(&remote, output).await,
        Command::Key(KeyCommand::Revoke { key }) => keys::revoke(&remote, &key).await,
        Command::Audit(AuditCommand::Tail(args)) => audit::tail(&remote, output, args).await,
        Command::Audit(AuditCommand::Export(args)) => audit::export(&remote, output, args).await,
        Command::Audit(AuditCommand::Verify) => audit::verify(&remote, output).await,
        Command::Recording(RecordingCommand::Ls) => recording::list(&remote, output).await,
        Command::Recording(RecordingCommand::Export(args)) => recording::export(&remote, args).await,
        Command::Mcp(args) => mcp::run(&remote, args).await,
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { dir } => generate::man(dir.as_deref()),
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
    Output::new(true).finish(Err(Failure::usage(error)))
}
