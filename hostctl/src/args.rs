//! The command line.

use clap::{Args, CommandFactory, Parser, Subcommand};
use hostd::api::{CloneId, CloneName, LONGEST_SECONDS, RequestId, SnapshotName, Tenant, UserAgentPolicy};
use std::path::PathBuf;
use std::time::Duration;
use terminal::Exit;

/// Every exit code and its meaning, for the help and the documentation.
pub const EXIT_CODES: [(Exit, &str); 8] = [
    (Exit::Ok, "done"),
    (Exit::Failure, "tried and failed"),
    (Exit::Usage, "the command line or the request is wrong"),
    (Exit::NotFound, "no such clone, or the name belongs to another clone now"),
    (Exit::Denied, "not allowed"),
    (Exit::Busy, "a limit is reached or the object is busy; try again later"),
    (Exit::Timeout, "no answer in time"),
    (Exit::NotReady, "the host is not ready, or hostd is not running"),
];

/// The definition that help, manual pages, completions and documentation are generated from.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Create, list and destroy disposable browser clones.
///
/// Talks to the daemon hostd over its Unix socket. With --json every command prints one line:
/// {"success":true,"data":…} or {"success":false,"error":{"code":…,"message":…,"hint":…,"retryable":…}}.
#[derive(Debug, Parser)]
#[command(
    name = "hostctl",
    version,
    disable_help_subcommand = true,
    after_help = after_help(),
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Print one line of JSON, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// hostd's socket [default: /run/hostd/hostd.sock, FreeBSD: /var/run/hostd/hostd.sock]
    #[arg(long, global = true, env = "HOSTD_SOCKET", hide_env_values = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// How long to wait for the answer [default: 5m, 30s for commands that only read]
    #[arg(
        long,
        global = true,
        env = "HOSTD_TIMEOUT",
        hide_env_values = true,
        value_name = "DURATION",
        value_parser = duration
    )]
    pub(crate) timeout: Option<Duration>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

fn after_help() -> String {
    let mut text = String::from("Exit codes:\n");
    for (exit, meaning) in EXIT_CODES {
        text.push_str(&format!("  {}  {meaning}\n", exit as u8));
    }
    text + "\nExamples:\n  hostctl create --deadline 30m\n  hostctl ls\n  hostctl destroy browsertask001\n  \
            hostctl reap --dry-run\n  hostctl doctor"
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a clone, or renew the lease of the clone with this request id
    #[command(after_help = "Examples:
  hostctl create
  hostctl create --request-id task-4711 --tenant acme --deadline 2h
  hostctl create --memory 1G --cpu 100 --json

Repeating a --request-id returns the same clone and moves its deadline.")]
    Create(Box<CreateArgs>),

    /// Destroy a clone; destroying an absent clone succeeds
    #[command(after_help = "Examples:
  hostctl destroy browsertask001 0f8a5c1e9d3b4a6f8e7d2c1b0a998877
  hostctl destroy browsertask001
  hostctl destroy --no-wait browsertask001

Scripts should pass the clone id that create returned: then a late call cannot destroy the next clone
of this name. Without it hostctl looks up the current id and prints it.")]
    Destroy(DestroyArgs),

    /// Destroy what is due: unfinished operations, expired clones, orphans
    #[command(after_help = "Examples:
  hostctl reap --dry-run
  hostctl reap
  hostctl reap browsertask001

A ready clone within its deadline is never reaped. With --dry-run nothing is changed and every
decision is explained, one line for each clone.")]
    Reap(ReapArgs),

    /// Force-unmount a clone that is being destroyed (operators only)
    #[command(after_help = "Example:
  hostctl force-unmount browsertask001

Only for a clone whose destroy has begun; `hostctl ls` shows them in state incomplete.")]
    ForceUnmount(CloneArgs),

    /// List the clones: state, age, time left, address, owner
    #[command(after_help = "Examples:
  hostctl ls
  hostctl ls --all --tenant acme
  hostctl ls --json | jq -r '.data.clones[].name'")]
    Ls(LsArgs),

    /// Show the state of the daemon and its host
    Status,

    /// Show the warm pool: members, their age, hits and misses
    #[command(after_help = "Examples:
  hostctl pool
  hostctl pool --json | jq .data.hits

The warm pool is on when pool.size in hostd's configuration is above 0.")]
    Pool,

    /// Check configuration, socket, daemon and host; works when the daemon is down
    #[command(after_help = "Every line is one check: ok, warning or error, and its fix. \
                            Exit code 7 if there is an error.")]
    Doctor(DoctorArgs),

    /// Print the metrics as Prometheus text
    Metrics,

    /// Create, list and remove the templates of clones; works on this host directly
    #[command(after_help = "Examples:
  hostctl template create
  hostctl template create --snapshot 2026-11 --browser /usr/lib/chromium/chromium
  hostctl template ls

A template never changes: create a new snapshot and remove the old one when no clone uses it.")]
    Template(TemplateArgs),

    /// Create a clone, load a page in it, take a screenshot and destroy the clone
    #[command(after_help = "Example:
  hostctl demo --url http://example.org/ --screenshot page.png")]
    Demo(DemoArgs),

    /// Call a method with raw parameters, for debugging
    #[command(after_help = "Examples:
  hostctl call host-status
  hostctl call browser-clone-list '{\"tenant\":\"acme\"}'
  hostctl call rpc.discover | jq '.methods[].name'
  hostctl call browser-clone-reap - < params.json")]
    Call(CallArgs),

    /// Print completions for a shell
    #[command(after_help = "Examples:
  hostctl completions bash > /usr/share/bash-completion/completions/hostctl
  hostctl completions zsh > \"${fpath[1]}/_hostctl\"")]
    Completions(CompletionsArgs),

    /// Print the manual page, or write all of them into a folder
    #[command(after_help = "Examples:
  hostctl man | man -l -
  hostctl man --dir /usr/local/share/man/man1")]
    Man(ManArgs),
}

impl Command {
    /// The default timeout. Commands that only read are answered at once.
    pub(crate) fn timeout(&self) -> Duration {
        match self {
            Command::Ls(_) | Command::Status | Command::Pool | Command::Metrics | Command::Doctor(_) => {
                Duration::from_secs(30)
            }
            _ => Duration::from_secs(300),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The idempotency key of this request; repeat it to renew the lease [default: random]
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<RequestId>,
    /// The tenant that the clone is counted for
    #[arg(long)]
    pub(crate) tenant: Option<Tenant>,
    /// The free slot to use, by its clone name [default: the slot freed longest ago]
    #[arg(long)]
    pub(crate) name: Option<CloneName>,
    /// The template's snapshot [default: as configured]
    #[arg(long)]
    pub(crate) snapshot: Option<SnapshotName>,
    /// The clone's lifetime from now, such as 30m or 2h [default: as configured]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) deadline: Option<Duration>,
    /// Memory of all its processes, such as 1G
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits below the configured ones")]
    pub(crate) memory: Option<u64>,
    /// Number of processes (threads on Linux)
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Limits below the configured ones")]
    pub(crate) processes: Option<u64>,
    /// Open files of one process
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Limits below the configured ones")]
    pub(crate) open_files: Option<u64>,
    /// Processor time: 100 is one core
    #[arg(long, value_name = "PERCENT", value_parser = count, help_heading = "Limits below the configured ones")]
    pub(crate) cpu: Option<u64>,
    /// Disk space it may use beyond its template, such as 4G
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits below the configured ones")]
    pub(crate) disk: Option<u64>,
    /// Bytes read from disk per second, such as 50M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits below the configured ones")]
    pub(crate) read_rate: Option<u64>,
    /// Bytes written to disk per second, such as 50M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits below the configured ones")]
    pub(crate) write_rate: Option<u64>,
    /// Maximum number of open tabs
    #[arg(long, value_name = "N", help_heading = BROWSER)]
    pub(crate) max_tabs: Option<u32>,
    /// The window's size, such as 1600x900
    #[arg(long, value_name = "WIDTHxHEIGHT", help_heading = BROWSER)]
    pub(crate) window: Option<String>,
    /// Languages that pages see, such as de-CH,de
    #[arg(long, value_name = "TAGS", value_delimiter = ',', help_heading = BROWSER)]
    pub(crate) languages: Option<Vec<String>>,
    /// The timezone that pages see, such as Europe/Zurich
    #[arg(long, value_name = "ZONE", help_heading = BROWSER)]
    pub(crate) timezone: Option<String>,
    /// The browser's name that pages see: honest or ordinary
    #[arg(long, value_name = "POLICY", value_parser = user_agent, help_heading = BROWSER)]
    pub(crate) user_agent: Option<UserAgentPolicy>,
    /// Additional Chromium switch from the allowed list (repeatable)
    #[arg(long = "chromium-arg", value_name = "SWITCH", allow_hyphen_values = true, help_heading = BROWSER)]
    pub(crate) chromium_args: Option<Vec<String>>,
}

const BROWSER: &str = "Settings of the browser [default: as configured]";

fn user_agent(text: &str) -> Result<UserAgentPolicy, String> {
    let all = [UserAgentPolicy::Honest, UserAgentPolicy::Ordinary];
    all.into_iter().find(|policy| policy.as_str() == text).ok_or_else(|| "expected honest or ordinary".into())
}

#[derive(Debug, Args)]
pub(crate) struct CloneArgs {
    /// The clone's name, such as browsertask001
    pub(crate) name: CloneName,
    /// Its clone id, as create returned it [default: the current one]
    pub(crate) clone_id: Option<CloneId>,
}

#[derive(Debug, Args)]
pub(crate) struct DestroyArgs {
    #[command(flatten)]
    pub(crate) clone: CloneArgs,
    /// Return as soon as the clone has no network and nothing in it runs; the teardown continues
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReapArgs {
    /// Only this clone
    pub(crate) name: Option<CloneName>,
    /// Change nothing, only show what would be done and why
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Also destroyed clones whose slots are in quarantine
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Also show the clone ids
    #[arg(long)]
    pub(crate) ids: bool,
    /// Only this clone
    #[arg(long)]
    pub(crate) name: Option<CloneName>,
    /// Only the clones of this tenant
    #[arg(long)]
    pub(crate) tenant: Option<Tenant>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// hostd's configuration file [default: /etc/hostd/hostd.toml, FreeBSD: below /usr/local]
    #[arg(long, env = "HOSTD_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    /// hostd's configuration file [default: /etc/hostd/hostd.toml, FreeBSD: below /usr/local]
    #[arg(long, global = true, env = "HOSTD_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) what: TemplateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Create a template with this system's browser
    Create {
        /// The snapshot's name [default: as configured]
        #[arg(long)]
        snapshot: Option<SnapshotName>,
        /// The browser's executable [default: detected, headless_shell first]
        #[arg(long, value_name = "FILE")]
        browser: Option<PathBuf>,
    },
    /// List the templates and whether they can be used
    Ls,
    /// Remove a template that no clone uses
    Rm {
        /// The snapshot's name
        snapshot: SnapshotName,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The page to load; nothing else is contacted
    #[arg(long, required_unless_present = "serve", default_value = "")]
    pub(crate) url: String,
    /// Create no clone, but serve a test page on this address until interrupted
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["url", "screenshot"])]
    pub(crate) serve: Option<std::net::SocketAddr>,
    /// Where to write the screenshot
    #[arg(long, value_name = "FILE", default_value = "screenshot.png")]
    pub(crate) screenshot: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// The method's name, such as host-status
    pub(crate) method: String,
    /// The parameters, a JSON object; - reads them from standard input
    #[arg(value_name = "JSON", default_value = "{}")]
    pub(crate) params: String,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write hostctl.1 and a page for every command into this folder
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(text).map_err(|error| format!("{error}; write 90s, 5m or 2h"))?,
    };
    match duration {
        Duration::ZERO => Err("must be longer than 0".into()),
        _ if duration > Duration::from_secs(LONGEST_SECONDS) => Err("must be at most 366 days".into()),
        _ => Ok(duration),
    }
}

fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a whole number".into()),
    }
}

/// Bytes, with K, M, G or T for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let power = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return Err(format!("unknown unit {unit}; write bytes, or a number with K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| "write bytes, or a number with K, M, G or T".to_owned())?;
    match number.checked_mul(1024u64.pow(power)) {
        Some(0) => Err("must be at least 1".into()),
        Some(bytes) => Ok(bytes),
        None => Err("too large".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_code_has_a_documented_exit_code() {
        assert_eq!(EXIT_CODES.map(|(exit, _)| exit), Exit::ALL);
        for (index, exit) in Exit::ALL.iter().enumerate() {
            assert_eq!(*exit as usize, index);
        }
        for code in hostd::api::ErrorCode::ALL {
            assert_eq!(Exit::from(code.exit_code()) as u8, code.exit_code(), "{code}");
        }
    }

    #[test]
    fn the_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn sizes_and_durations() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("1k"), Ok(1024));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("3MB"), Ok(3 << 20));
        for bad in ["", "G", "0", "1X", "1.5G", "-1", "99999999999T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("366days"), Ok(Duration::from_secs(LONGEST_SECONDS)));
        for bad in ["", "0", "0s", "soon", "-1", "31622401", "18446744073709551615", "99999years"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(count("0").is_err() && count("x").is_err());
    }
}
