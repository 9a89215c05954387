//! The service. All it does itself is to read its flags.

use clap::{Parser, Subcommand, ValueEnum};
use controlplane::config::Config;
use controlplane::surfaces::{http, service};
use std::path::PathBuf;
use std::process::ExitCode;

/// The service mostly waits for sockets and disks.
const WORKERS: usize = 2;

/// Sessions of browsers for agents and scripts, each in a clone of its own.
///
/// Settings come from the configuration file, then CONTROLPLANE_* variables, then these flags; the later wins.
#[derive(Debug, Parser)]
#[command(name = "controlplane", version, max_term_width = 100)]
struct Flags {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "CONTROLPLANE_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// The Unix socket to serve (paths.socket)
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<String>,
    /// The folder of the embedded database and the audit log's key (paths.state)
    #[arg(long, value_name = "FOLDER", global = true)]
    state_dir: Option<String>,
    /// The form of the log on standard error (log.format)
    #[arg(long, value_name = "FORMAT", value_parser = ["human", "json"], global = true)]
    log_format: Option<String>,
    /// Any setting, such as --set limits.sessions=200; may be given many times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value, global = true)]
    set: Vec<(String, String)>,
    /// Only check the configuration: exit 0 if the service could start with it, else 2
    #[arg(long, global = true)]
    check_config: bool,
    /// Print the settings in effect, one a line, after all layers and checks
    #[arg(long, conflicts_with = "check_config", global = true)]
    print_config: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service until it is told to stop; the default
    Serve,
    /// Print a document that is made from the program
    Generate {
        /// Which one
        what: Document,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Document {
    /// The default configuration with comments
    Config,
    /// The OpenAPI 3.1 document of the HTTP API
    Openapi,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as section.key=value")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

impl Flags {
    /// The named flags as settings, before the general ones.
    fn settings(&self) -> Vec<(String, String)> {
        let named = [
            ("paths.socket", &self.socket),
            ("paths.state", &self.state_dir),
            ("log.format", &self.log_format),
        ];
        let named = named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
        named.chain(self.set.iter().cloned()).collect()
    }
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Some(Command::Generate { what }) = flags.command {
        match what {
            Document::Config => print!("{}", settings::default_toml::<Config>()),
            Document::Openapi => println!("{:#}", http::openapi::document()),
        }
        return ExitCode::SUCCESS;
    }
    let config = match settings::load::<Config>(flags.config.as_deref(), variables(), &flags.settings()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("controlplane: the configuration cannot be used:\n{error}");
            return ExitCode::from(2);
        }
    };
    if flags.print_config {
        print!("{}", settings::effective_toml(&config));
        return ExitCode::SUCCESS;
    }
    if flags.check_config {
        for warning in controlplane::access::PeerRules::new(&config.access).warnings() {
            eprintln!("controlplane: {warning}");
        }
        println!("controlplane: the configuration is valid");
        return ExitCode::SUCCESS;
    }
    hostd::server::daemon::start_log(&config.log);
    hostd::platform::spare_memory();
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return failed(&format!("the runtime cannot be started: {error}")),
        };
    let done = runtime.block_on(service::run(config));
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

/// The host is not ready: a service manager may try again.
fn failed(error: &str) -> ExitCode {
    eprintln!("controlplane: {error}");
    ExitCode::from(7)
}

/// The environment as far as it is text; other variables cannot be ours.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn named_flags_are_settings() {
        let flags = Flags::parse_from([
            "controlplane",
            "serve",
            "--socket",
            "/s",
            "--set",
            "a.b=c=d",
            "--state-dir",
            "/t",
        ]);
        let text: Vec<String> =
            flags.settings().iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(text, ["paths.socket=/s", "paths.state=/t", "a.b=c=d"]);
        assert!(Flags::try_parse_from(["controlplane", "--set", "novalue"]).is_err());
    }
}
