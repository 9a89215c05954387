//! The command line, except for the commands of the browser, which `verbs.rs` makes.

use crate::verbs;
use clap::{Args, Parser, Subcommand};
use controlplane::surfaces::mcp::ToolSet;
use std::path::PathBuf;
use std::time::Duration;
use terminal::Exit;

/// Every exit code and its meaning, for the help and the documentation. The numbers mean the same as those of hostctl.
pub const EXIT_CODES: [(Exit, &str); 8] = [
    (Exit::Ok, "done"),
    (Exit::Failure, "tried and failed"),
    (Exit::Usage, "the command line or the request is wrong"),
    (Exit::NotFound, "no such session, or it has ended"),
    (Exit::Denied, "not allowed"),
    (Exit::Busy, "a limit is reached; try again later"),
    (Exit::Timeout, "no answer in time"),
    (Exit::NotReady, "the service is not ready, or not running"),
];

/// The definition that help, manual pages, completions and documentation are generated from.
pub fn command() -> clap::Command {
    use clap::CommandFactory;
    Cli::command().subcommands(verbs::commands())
}

/// Open disposable browsers and use them: sessions of the control plane.
///
/// Talks to the control plane over its Unix socket, where the login is your user, or over HTTP with a key. With --json every
/// command prints one line: {"success":true,"data":…} or
/// {"success":false,"error":{"code":…,"message":…,"hint":…,"retryable":…}}.
#[derive(Debug, Parser)]
#[command(
    name = "browserctl",
    version,
    disable_help_subcommand = true,
    after_help = after_help(),
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Globals {
    /// Print one line of JSON, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// The session to use, as `open` printed it
    #[arg(
        long,
        short,
        global = true,
        env = "BROWSERCTL_SESSION",
        hide_env_values = true,
        value_name = "SESSION_ID"
    )]
    pub(crate) session: Option<String>,

    /// The control plane's socket [default: /run/controlplane/controlplane.sock, FreeBSD: below /var/run]
    #[arg(long, global = true, env = "BROWSERCTL_SOCKET", hide_env_values = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// The control plane's HTTP address, such as http://127.0.0.1:9480; the key is read from BROWSERCTL_KEY or --key-file
    #[arg(long, global = true, env = "BROWSERCTL_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) server: Option<String>,

    /// A file with the key for --server
    #[arg(long, global = true, env = "BROWSERCTL_KEY_FILE", hide_env_values = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,

    /// How long the call may take [default: as the service decides, at most 5m]
    #[arg(
        long,
        global = true,
        env = "BROWSERCTL_TIMEOUT",
        hide_env_values = true,
        value_name = "DURATION",
        value_parser = duration
    )]
    pub(crate) timeout: Option<Duration>,
}

fn after_help() -> String {
    let mut text = String::from("Exit codes:\n");
    for (exit, meaning) in EXIT_CODES {
        text.push_str(&format!("  {}  {meaning}\n", exit as u8));
    }
    text + "\nExamples:\n  export BROWSERCTL_SESSION=$(browserctl open)\n  browserctl navigate https://example.org/\n  \
            browserctl snapshot\n  browserctl click @e1\n  browserctl screenshot -o page.png\n  browserctl close"
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print an address for CDP clients: whoever has it can drive this one session
    #[command(after_help = "Examples:
  browserctl cdp
  playwright-mcp --cdp-endpoint \"$(browserctl cdp)\"

A client that can send a header should use the path /v1/sessions/SESSION_ID/cdp and its key instead.")]
    Cdp,

    /// Show who you are for the service, and what you may do
    Whoami,

    /// Show the state of the service
    Status,

    /// Check the connection, the service, its database, hostd, the disk and the clocks
    #[command(after_help = "Every line is one check: ok, warning or error, and what to do. \
                            Exit code 7 if there is an error.")]
    Doctor,

    /// Issue, list and revoke API keys (scope admin)
    #[command(subcommand, arg_required_else_help = true)]
    Key(KeyCommand),

    /// Read and check the audit log (scope admin)
    #[command(subcommand, arg_required_else_help = true)]
    Audit(AuditCommand),

    /// List and export recordings of sessions
    #[command(subcommand, arg_required_else_help = true)]
    Recording(RecordingCommand),

    /// Serve MCP on standard input and output, for desktop clients
    #[command(after_help = "Example, for a client's configuration:
  {\"command\": \"browserctl\", \"args\": [\"mcp\"]}

docs/mcp.md has the configuration of each client. It has no state of its own: calls go to the service.")]
    Mcp(McpArgs),

    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },

    /// Print the manual page, or write all of them into a folder
    Man {
        /// Write browserctl.1 and a page for every command into this folder
        #[arg(long)]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Issue a key; it is shown once
    #[command(after_help = "Examples:
  browserctl key issue --label crawler --scope read --scope write --expires 90d
  browserctl key issue --json | jq -r .data.key")]
    Issue(IssueArgs),
    /// List the keys of your tenant
    Ls,
    /// Revoke a key; it is refused from then on
    Revoke {
        /// The key's id, such as key_0f8a…
        key: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct IssueArgs {
    /// A name for people
    #[arg(long, default_value = "")]
    pub(crate) label: String,
    /// A right; repeat for more [default: read, write, files, cdp]
    #[arg(long = "scope", value_parser = ["read", "write", "evaluate", "files", "cdp", "admin"])]
    pub(crate) scopes: Vec<String>,
    /// How long it is valid, such as 90d [default: for ever]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) expires: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Show the last rows
    #[command(after_help = "Examples:
  browserctl audit tail -n 50
  browserctl audit tail --follow")]
    Tail(TailArgs),
    /// Print rows as JSON lines, the oldest first
    #[command(after_help = "Example:
  browserctl audit export > audit.jsonl")]
    Export(ExportArgs),
    /// Check the hash chain; names the first row that was changed, removed or reordered
    Verify,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// How many rows
    #[arg(short = 'n', long = "lines", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) lines: u32,
    /// Go on with new rows until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only the rows of one session
    #[arg(long = "of", value_name = "SESSION_ID")]
    pub(crate) of: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only rows after this number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) after: i64,
    /// Only the rows of one session
    #[arg(long = "of", value_name = "SESSION_ID")]
    pub(crate) of: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecordingCommand {
    /// List the recordings that exist
    Ls,
    /// Write a recording as one HTML page with a time line
    #[command(after_help = "Example:
  browserctl recording export ses_… -o task.html")]
    Export(RecordingArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RecordingArgs {
    /// The session
    pub(crate) id: String,
    /// Where to write the page
    #[arg(long, short, value_name = "FILE", default_value = "recording.html")]
    pub(crate) output: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// The tools that clients are offered: core, or all
    #[arg(long, default_value = "core", value_name = "SET", value_parser = parse_tools)]
    pub(crate) tools: ToolSet,
}

fn parse_tools(word: &str) -> Result<ToolSet, String> {
    word.parse()
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(text).map_err(|error| format!("{error}; write 90s, 5m or 2h"))?,
    };
    match duration {
        Duration::ZERO => Err("must be longer than 0".into()),
        _ if duration > Duration::from_secs(100 * 366 * 86_400) => Err("must be at most 100 years".into()),
        _ => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn every_error_code_has_a_documented_exit_code() {
        assert_eq!(EXIT_CODES.map(|(exit, _)| exit), Exit::ALL);
        for code in controlplane::error::ErrorCode::ALL {
            assert_eq!(Exit::from(code.exit_code()) as u8, code.exit_code(), "{code}");
        }
    }
}
