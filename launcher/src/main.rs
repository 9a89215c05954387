//! `browser-launcher`: the command line and the drop-in browser.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use launcher::chromium::{Chromium, Flavor};
use launcher::config::Config;
use launcher::flags::Strictness;
use launcher::{LaunchError, Launcher, doctor, dropin, inherited};

/// Starts Chromium in a sandbox and keeps Chromium's own sandbox active.
///
/// Under any other name than `browser-launcher` (for instance `chromium-sandboxed`), or if the first argument is a
/// browser switch, it behaves like the browser itself: use it as `executablePath` of Playwright or Puppeteer, as
/// `binary` of Selenium, as `Bin` of go-rod.
#[derive(Parser)]
#[command(name = "browser-launcher", version, max_term_width = 100)]
struct Cli {
    /// Configuration file instead of the usual ones
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start the confined browser and wait until it ends
    Run {
        /// Switches and addresses for the browser
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// List what the browser would see and be allowed to do; start nothing
    Explain {
        /// Switches and addresses for the browser
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Check whether this machine can confine a browser, and how to fix it if not
    Doctor {
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Run the escape attempts of a compromised browser in the browser's place and report what they reached
    Probe {
        /// For programs
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    // Comes first, because files that are opened later could get these numbers.
    let client = inherited::debugging_pipe();
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let called = Path::new(&name).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let rest: Vec<_> = arguments.collect();
    if !is_drop_in(&called, rest.first().and_then(|first| first.to_str())) {
        return command_line(client);
    }
    let mut texts = Vec::with_capacity(rest.len());
    for argument in rest {
        match argument.into_string() {
            Ok(text) => texts.push(text),
            Err(argument) => {
                return failed(&LaunchError::Argument(format!(
                    "{}: not valid UTF-8",
                    argument.to_string_lossy()
                )));
            }
        }
    }
    match Config::load() {
        Ok(config) if texts.iter().any(|text| text == "--version" || text == "--product-version") => {
            print_version(&config)
        }
        Ok(config) => finished(dropin::run(config, &texts, Strictness::DropClientDefaults, client)),
        Err(error) => failed(&error),
    }
}

/// Whether the program was started under a browser's name or with a browser's switches.
fn is_drop_in(called: &str, first: Option<&str>) -> bool {
    let own_switches = ["--config", "--help", "-h", "--version", "-V"];
    let browser_switch = |text: &str| {
        text.starts_with('-') && !own_switches.iter().any(|own| text == *own || text.starts_with("--config="))
    };
    called != "browser-launcher" || first.is_some_and(browser_switch)
}

fn command_line(client: Option<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)>) -> ExitCode {
    let cli = Cli::parse();
    let config = match &cli.config {
        Some(path) => Config::from_file(path),
        None => Config::load(),
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => return failed(&error),
    };
    match cli.command {
        Action::Run { arguments } => finished(dropin::run(config, &arguments, Strictness::Refuse, client)),
        Action::Explain { arguments } => {
            match Launcher::new(config).arguments(arguments).and_then(Launcher::explain) {
                Ok(text) => {
                    println!("{}", safe_text::lines(&text));
                    ExitCode::SUCCESS
                }
                Err(error) => launch_failed(&error),
            }
        }
        Action::Doctor { json } => doctor::run(&config, json),
        Action::Probe { json } => launcher::probe::run(&config, json),
    }
}

/// Prints the browser's version; some clients query it before they start the browser.
fn print_version(config: &Config) -> ExitCode {
    let chromium = match Chromium::find(config.browser.as_deref(), Flavor::Full) {
        Ok(chromium) => chromium,
        Err(error) => return failed(&error),
    };
    match chromium.version() {
        Ok(version) => {
            println!("{}", safe_text::line(&version));
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

fn finished(result: Result<u8, LaunchError>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => launch_failed(&error),
    }
}

fn launch_failed(error: &LaunchError) -> ExitCode {
    launcher::say(&launcher::error_chain(error));
    ExitCode::from(error.exit_code())
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    launcher::say(&launcher::error_chain(error));
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::is_drop_in;

    #[test]
    fn the_name_or_a_browser_switch_selects_the_drop_in() {
        assert!(is_drop_in("chromium-sandboxed", Some("--headless")));
        assert!(is_drop_in("chrome", None));
        assert!(is_drop_in("browser-launcher", Some("--disable-field-trial-config")));
        for first in [
            None,
            Some("run"),
            Some("doctor"),
            Some("--help"),
            Some("--version"),
            Some("--config"),
            Some("--config=x"),
        ] {
            assert!(!is_drop_in("browser-launcher", first), "{first:?}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}
