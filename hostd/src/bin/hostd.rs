//! The daemon. All it does itself is to read its flags.

use clap::Parser;
use hostd::config;
use hostd::server::daemon;
use std::path::PathBuf;
use std::process::ExitCode;

/// Gives every browser task its own disposable clone and takes it away again.
///
/// Settings come from the configuration file, then HOSTD_* variables, then these flags; the later wins.
#[derive(Debug, Parser)]
#[command(name = "hostd", version, max_term_width = 100)]
struct Flags {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "HOSTD_CONFIG")]
    config: Option<PathBuf>,
    /// The Unix socket to serve (paths.socket)
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    /// The folder for records and the instance lock (paths.state)
    #[arg(long, value_name = "FOLDER")]
    state_dir: Option<String>,
    /// The form of the log on standard error (log.format)
    #[arg(long, value_name = "FORMAT", value_parser = ["human", "json"])]
    log_format: Option<String>,
    /// Any setting, such as --set server.max_clones=10; may be given many times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
    /// Only check the configuration: exit 0 if the daemon could start with it, else 2
    #[arg(long)]
    check_config: bool,
    /// Print the default configuration with comments
    #[arg(long, conflicts_with = "check_config")]
    print_default_config: bool,
    /// Print the settings in effect, one a line, after all layers and checks
    #[arg(long, conflicts_with_all = ["check_config", "print_default_config"])]
    print_config: bool,
    /// Print the clones' rules for FreeBSD's packet filter: the file that pf.conf loads
    #[arg(long, conflicts_with_all = ["check_config", "print_default_config", "print_config"])]
    print_pf: bool,
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
    if let Some(done) = hostd::host::helper(std::env::args_os()) {
        return done;
    }
    let flags = Flags::parse();
    if flags.print_default_config {
        print!("{}", settings::default_toml::<config::Config>());
        return ExitCode::SUCCESS;
    }
    let config =
        match settings::load::<config::Config>(flags.config.as_deref(), variables(), &flags.settings()) {
            Ok(config) => config,
            Err(error) => {
                eprintln!("hostd: the configuration cannot be used:\n{error}");
                return ExitCode::from(2);
            }
        };
    if flags.print_config {
        print!("{}", settings::effective_toml(&config));
        return ExitCode::SUCCESS;
    }
    if flags.print_pf {
        return match pf_rules(&config) {
            Ok(rules) => {
                print!("{rules}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("hostd: {error}");
                ExitCode::from(2)
            }
        };
    }
    let log = config.log.clone();
    let checked = match daemon::check(config) {
        Ok(checked) => checked,
        Err(error) => return failed(&error),
    };
    if flags.check_config {
        for warning in checked.warnings() {
            eprintln!("hostd: {warning}");
        }
        println!("hostd: the configuration is valid");
        return ExitCode::SUCCESS;
    }
    daemon::start_log(&log);
    match daemon::run(checked) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// The anchor that this configuration means. It can be made on any system.
fn pf_rules(config: &config::Config) -> Result<String, String> {
    let pool = hostd::slot::Slots::new(&config.pool).map_err(|error| error.to_string())?;
    let policy = hostd::host::freebsd::egress::policy(config, &pool)
        .map_err(|error| format!("{error}; {}", error.hint))?;
    Ok(pf::pf_conf::render(&policy))
}

fn failed(error: &daemon::DaemonError) -> ExitCode {
    eprintln!("hostd: {error}");
    ExitCode::from(error.exit_code())
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
    use hostd::config::LogFormat;

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn named_flags_are_settings() {
        let flags = Flags::parse_from([
            "hostd",
            "--socket",
            "/s",
            "--set",
            "a.b=c=d",
            "--state-dir",
            "/t",
            "--log-format",
            "json",
        ]);
        let settings = flags.settings();
        let text: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(text, ["paths.socket=/s", "paths.state=/t", "log.format=json", "a.b=c=d"]);
        assert!(Flags::try_parse_from(["hostd", "--set", "novalue"]).is_err());
    }

    #[test]
    fn the_forms_of_the_log_are_those_of_the_configuration() {
        for (word, form) in [("human", LogFormat::Human), ("json", LogFormat::Json)] {
            assert_eq!(serde_json::to_value(form).expect("a word"), word);
        }
    }
}
