//! The command line.

use super::exit::EXIT_CODES;
use crate::api::{CloneId, CloneName, RequestId, SnapshotName, Tenant};
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// The definition that help, manual pages, completions and documentation are made from.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Make, list and remove disposable browser clones.
///
/// Talks to the daemon hostd over its Unix socket. With --json every command answers one line:
/// {"success":true,"data":…} or {"success":false,"error":{"code":…,"message":…,"hint":…,"retryable":…}}.
#[derive(Debug, Parser)]
#[command(
    name = "hostctl",
    version,
    disable_help_subcommand = true,
    after_help = after_help(),
    max_term_width = 100
)]
pub(super) struct Cli {
    /// Answer one line of JSON, for programs
    #[arg(long, global = true)]
    pub(super) json: bool,

    /// hostd's socket [default: /run/hostd/hostd.sock, FreeBSD: /var/run/hostd/hostd.sock]
    #[arg(long, global = true, env = "HOSTD_SOCKET", hide_env_values = true, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,

    /// How long to wait for the answer [default: 5m, for commands that only look 30s]
    #[arg(
        long,
        global = true,
        env = "HOSTD_TIMEOUT",
        hide_env_values = true,
        value_name = "DURATION",
        value_parser = duration
    )]
    pub(super) timeout: Option<Duration>,

    #[command(subcommand)]
    pub(super) command: Command,
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
pub(super) enum Command {
    /// Make a clone, or renew the lease of the clone that a request id made
    #[command(after_help = "Examples:
  hostctl create
  hostctl create --request-id task-4711 --tenant acme --deadline 2h
  hostctl create --memory 1G --cpu 100 --json

The same --request-id again answers the same clone and moves its deadline.")]
    Create(CreateArgs),

    /// Take a clone away; one that is already gone is a success
    #[command(after_help = "Examples:
  hostctl destroy browsertask001 0f8a5c1e9d3b4a6f8e7d2c1b0a998877
  hostctl destroy browsertask001
  hostctl destroy --no-wait browsertask001

Scripts should give the clone id that create answered: then a late call cannot hit the next clone
of this name. Without it hostctl looks the id up first and says so.")]
    Destroy(DestroyArgs),

    /// Take away what is over: unfinished work, passed deadlines, orphans
    #[command(after_help = "Examples:
  hostctl reap --dry-run
  hostctl reap
  hostctl reap browsertask001

A clone that is ready and within its deadline is never taken. With --dry-run nothing is changed and
every decision is explained, one line a clone.")]
    Reap(ReapArgs),

    /// Force the mounts of a clone that is being destroyed (operators only)
    #[command(after_help = "Example:
  hostctl force-unmount browsertask001

Only for a clone whose destroy was begun; see `hostctl ls` for those in state incomplete.")]
    ForceUnmount(CloneArgs),

    /// List the clones: state, age, time left, address, owner
    #[command(after_help = "Examples:
  hostctl ls
  hostctl ls --all --tenant acme
  hostctl ls --json | jq -r '.data.clones[].name'")]
    Ls(LsArgs),

    /// Tell how the daemon and its host are
    Status,

    /// Tell how the warm pool is: clones made ahead, how old they are, hits and misses
    #[command(after_help = "Examples:
  hostctl pool
  hostctl pool --json | jq .data.hits

The pool is on when pool.size in hostd's configuration is above 0.")]
    Pool,

    /// Check configuration, socket, daemon and host; works when the daemon is down
    #[command(after_help = "Every line is one check: ok, warning or error, and what to do about it. \
                            Exit code 7 when there is an error.")]
    Doctor(DoctorArgs),

    /// Print the metrics as Prometheus text
    Metrics,

    /// Make, list and remove the templates that clones are made from; works on this host directly
    #[command(after_help = "Examples:
  hostctl template create
  hostctl template create --snapshot 2026-11 --browser /usr/lib/chromium/chromium
  hostctl template ls

A template never changes: make a new snapshot and remove the old one when no clone needs it.")]
    Template(TemplateArgs),

    /// Make a clone, load a page in it, take a picture, and take the clone away again
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
    /// How long an answer may take: a question is answered at once, or something is wrong.
    pub(super) fn patience(&self) -> Duration {
        match self {
            Command::Ls(_) | Command::Status | Command::Pool | Command::Metrics | Command::Doctor(_) => {
                Duration::from_secs(30)
            }
            _ => Duration::from_secs(300),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Your name for this request; repeat it to renew the lease [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(super) request_id: Option<RequestId>,
    /// On whose behalf; counted against the tenant's cap
    #[arg(long)]
    pub(super) tenant: Option<Tenant>,
    /// A certain free slot by its clone name [default: the slot freed longest ago]
    #[arg(long)]
    pub(super) name: Option<CloneName>,
    /// The template's snapshot [default: as configured]
    #[arg(long)]
    pub(super) snapshot: Option<SnapshotName>,
    /// How long the clone may live from now on, such as 30m or 2h [default: as configured]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) deadline: Option<Duration>,
    /// Memory of all its processes together, such as 1G
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits below the configured ones")]
    pub(super) memory: Option<u64>,
    /// Number of processes (threads on Linux)
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Limits below the configured ones")]
    pub(super) processes: Option<u64>,
    /// Open files of one process
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Limits below the configured ones")]
    pub(super) open_files: Option<u64>,
    /// Processor time: 100 is one core
    #[arg(long, value_name = "PERCENT", value_parser = count, help_heading = "Limits below the configured ones")]
    pub(super) cpu: Option<u64>,
    /// What it may add to its template on disk, such as 4G
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits below the configured ones")]
    pub(super) disk: Option<u64>,
    /// Read from disk in a second, such as 50M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits below the configured ones")]
    pub(super) read_rate: Option<u64>,
    /// Written to disk in a second, such as 50M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits below the configured ones")]
    pub(super) write_rate: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct CloneArgs {
    /// The clone's name, such as browsertask001
    pub(super) name: CloneName,
    /// Its identity, as create answered it [default: looked up in the list]
    pub(super) clone_id: Option<CloneId>,
}

#[derive(Debug, Args)]
pub(super) struct DestroyArgs {
    #[command(flatten)]
    pub(super) clone: CloneArgs,
    /// Return once the clone is cut off, stopped and recorded; the teardown continues in the background
    #[arg(long)]
    pub(super) no_wait: bool,
}

#[derive(Debug, Args)]
pub(super) struct ReapArgs {
    /// Look at this clone alone
    pub(super) name: Option<CloneName>,
    /// Change nothing, only tell what would be done and why
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct LsArgs {
    /// Also those that are gone and whose slots are kept free for a while
    #[arg(long, short)]
    pub(super) all: bool,
    /// Also show the clones' identities
    #[arg(long)]
    pub(super) ids: bool,
    /// Only this clone
    #[arg(long)]
    pub(super) name: Option<CloneName>,
    /// Only the clones of this tenant
    #[arg(long)]
    pub(super) tenant: Option<Tenant>,
}

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// hostd's configuration file [default: /etc/hostd/hostd.toml, FreeBSD: below /usr/local]
    #[arg(long, env = "HOSTD_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct TemplateArgs {
    /// hostd's configuration file [default: /etc/hostd/hostd.toml, FreeBSD: below /usr/local]
    #[arg(long, global = true, env = "HOSTD_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(super) what: TemplateCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum TemplateCommand {
    /// Make a template of this system's browser
    Create {
        /// The snapshot's name [default: as configured]
        #[arg(long)]
        snapshot: Option<SnapshotName>,
        /// The browser's executable [default: the one that is found, headless_shell first]
        #[arg(long, value_name = "FILE")]
        browser: Option<PathBuf>,
    },
    /// List the templates and whether they can be used
    Ls,
    /// Remove a template that no clone is made from
    Rm {
        /// The snapshot's name
        snapshot: SnapshotName,
    },
}

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// The page to load; nothing else is contacted
    #[arg(long, required_unless_present = "serve", default_value = "")]
    pub(super) url: String,
    /// Make no clone, but serve a page to load on this address, until interrupted
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["url", "screenshot"])]
    pub(super) serve: Option<std::net::SocketAddr>,
    /// Where to write the picture of the page
    #[arg(long, value_name = "FILE", default_value = "screenshot.png")]
    pub(super) screenshot: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct CallArgs {
    /// The method's name, such as host-status
    pub(super) method: String,
    /// The parameters, a JSON object; - reads them from standard input
    #[arg(value_name = "JSON", default_value = "{}")]
    pub(super) params: String,
}

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    pub(super) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write hostctl.1 and a page for every command into this folder
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(text).map_err(|error| format!("{error}; write 90s, 5m or 2h"))?,
    };
    if duration.is_zero() { Err("must be longer than nothing".into()) } else { Ok(duration) }
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
    fn the_definition_is_sound() {
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
        for bad in ["", "0", "0s", "soon", "-1"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(count("0").is_err() && count("x").is_err());
    }
}
