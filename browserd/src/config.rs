//! The command line and the environment variables (`BROWSERD_*`).

use browser_settings::{UserAgentPolicy, parse_chromium_arg, parse_language, parse_timezone, parse_window};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Starts Chromium, controls it over the CDP pipe and serves an HTTP API.
#[derive(Debug, Clone, clap::Parser)]
#[command(version, about)]
pub struct Config {
    /// Address and port to listen on. Port 0 selects a free port, which the log and the file browserd.address contain.
    #[arg(long, env = "BROWSERD_LISTEN", default_value = "127.0.0.1:9230")]
    pub listen: SocketAddr,

    /// Chromium's executable.
    #[arg(long, env = "BROWSERD_CHROMIUM")]
    pub chromium: PathBuf,

    /// Folder for the profile, downloads and PID files, used by this browserd only. The profile is removed at every start
    /// of the browser.
    #[arg(long, env = "BROWSERD_DATA_DIR")]
    pub data_dir: PathBuf,

    /// File for browserd's process id [default: browserd.pid in the data folder].
    #[arg(long, env = "BROWSERD_PID_FILE")]
    pub pid_file: Option<PathBuf>,

    /// Descriptor from which browserd reads its secret, until its end. Without it browserd makes a secret and writes it to
    /// standard output with its address. (Arguments and environment variables are visible to other processes.)
    #[arg(long, value_parser = parse_descriptor)]
    pub secret_fd: Option<i32>,

    /// Addresses that may connect (repeat or separate by commas) [default: all].
    #[arg(long = "allow-peer", env = "BROWSERD_ALLOW_PEER", value_delimiter = ',')]
    pub allow_peers: Vec<IpAddr>,

    /// Names accepted in the Host header in addition to IP addresses and localhost (repeat or separate by commas).
    #[arg(long = "allow-host", env = "BROWSERD_ALLOW_HOST", value_delimiter = ',')]
    pub allow_hosts: Vec<String>,

    /// Disable `evaluate`.
    #[arg(long, env = "BROWSERD_NO_EVALUATE")]
    pub no_evaluate: bool,

    /// Disable raw CDP over WebSocket.
    #[arg(long, env = "BROWSERD_NO_RAW_CDP")]
    pub no_raw_cdp: bool,

    /// Window size in CSS pixels.
    #[arg(long, env = "BROWSERD_WINDOW", default_value = "1280x720", value_parser = parse_window)]
    pub window: (u32, u32),

    /// Languages that pages and servers see, the preferred one first (repeat or separate by commas).
    #[arg(long = "languages", env = "BROWSERD_LANGUAGES", value_delimiter = ',', default_value = "en-US",
          value_parser = parse_language)]
    pub languages: Vec<String>,

    /// Timezone that pages see, such as Europe/Zurich [default: the system's].
    #[arg(long, env = "BROWSERD_TIMEZONE", value_parser = parse_timezone)]
    pub timezone: Option<String>,

    /// The browser's name in the user agent string and in client hints: `honest` contains the word Headless, `ordinary` is
    /// that of an ordinary Chromium of the same version.
    #[arg(long = "user-agent", env = "BROWSERD_USER_AGENT", default_value = "honest", value_parser = parse_user_agent)]
    pub user_agent: UserAgentPolicy,

    /// Additional argument for Chromium (repeatable), from a list of allowed ones.
    #[arg(long = "chromium-arg", allow_hyphen_values = true, value_parser = parse_chromium_arg)]
    pub chromium_args: Vec<String>,

    /// Load a built-in page before the browser is reported ready, so that the first page of the task loads faster. For
    /// browsers that are started ahead of time.
    #[arg(long, env = "BROWSERD_WARM_UP")]
    pub warm_up: bool,

    /// Number of crashes within ten minutes after which the browser is no longer restarted (0: never restart).
    #[arg(long, env = "BROWSERD_MAX_RESTARTS", default_value_t = 5)]
    pub max_restarts: u32,

    /// Maximum size of a request body in bytes.
    #[arg(long, env = "BROWSERD_MAX_REQUEST", default_value_t = 4 << 20)]
    pub max_request: usize,

    /// Maximum size of a response, and of a CDP message, in bytes.
    #[arg(long, env = "BROWSERD_MAX_RESPONSE", default_value_t = 64 << 20)]
    pub max_response: usize,

    /// Maximum number of concurrent calls.
    #[arg(long, env = "BROWSERD_MAX_CALLS", default_value_t = 32)]
    pub max_calls: usize,

    /// Maximum number of connections, including raw CDP.
    #[arg(long, env = "BROWSERD_MAX_CONNECTIONS", default_value_t = 64)]
    pub max_connections: usize,

    /// Maximum number of open tabs; a popup above the limit is closed at once.
    #[arg(long, env = "BROWSERD_MAX_TABS", default_value_t = 32)]
    pub max_tabs: usize,

    /// Default deadline of a call in milliseconds.
    #[arg(long, env = "BROWSERD_DEFAULT_TIMEOUT_MS", default_value_t = 30_000)]
    pub default_timeout_ms: u64,

    /// Maximum deadline of a call in milliseconds.
    #[arg(long, env = "BROWSERD_MAX_TIMEOUT_MS", default_value_t = 300_000)]
    pub max_timeout_ms: u64,

    /// Maximum number of pixels of a screenshot.
    #[arg(long, env = "BROWSERD_MAX_PIXELS", default_value_t = 50_000_000)]
    pub max_pixels: u64,

    /// Maximum size of a download in bytes; a larger one is cancelled.
    #[arg(long, env = "BROWSERD_MAX_DOWNLOAD", default_value_t = 256 << 20)]
    pub max_download: u64,

    /// Maximum size in bytes of all files together that callers put into the clone.
    #[arg(long, env = "BROWSERD_MAX_FILES", default_value_t = 256 << 20)]
    pub max_files: u64,

    /// Time for Chromium to open its first page, in milliseconds.
    #[arg(long, env = "BROWSERD_START_TIMEOUT_MS", default_value_t = 30_000)]
    pub start_timeout_ms: u64,

    /// Time for Chromium to stop before it is killed, in milliseconds.
    #[arg(long, env = "BROWSERD_STOP_TIMEOUT_MS", default_value_t = 4_000)]
    pub stop_timeout_ms: u64,
}

impl Config {
    /// The deadline for a call that requests `wanted` milliseconds.
    pub fn deadline(&self, wanted: Option<u64>) -> Duration {
        Duration::from_millis(wanted.unwrap_or(self.default_timeout_ms).min(self.max_timeout_ms))
    }
}

/// Standard output and standard error are in use.
fn parse_descriptor(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(number) if number == 0 || number > 2 => Ok(number),
        _ => Err("expected the number of an open descriptor other than 1 and 2".into()),
    }
}

fn parse_user_agent(text: &str) -> Result<UserAgentPolicy, String> {
    let all = [UserAgentPolicy::Honest, UserAgentPolicy::Ordinary];
    all.into_iter().find(|policy| policy.as_str() == text).ok_or_else(|| "expected honest or ordinary".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn parse(extra: &[&str]) -> Result<Config, clap::Error> {
        let base = ["browserd", "--chromium", "/c", "--data-dir", "/d"];
        Config::try_parse_from(base.iter().chain(extra))
    }

    #[test]
    fn deadlines_default_and_are_limited() {
        let config = parse(&[]).unwrap();
        assert_eq!(config.window, (1280, 720));
        assert_eq!(config.deadline(None), Duration::from_secs(30));
        assert_eq!(config.deadline(Some(5)), Duration::from_millis(5));
        assert_eq!(config.deadline(Some(u64::MAX)), Duration::from_secs(300));
    }

    #[test]
    fn dangerous_chromium_arguments_and_invalid_values_are_refused() {
        for bad in ["1", "2", "-1", "x", ""] {
            assert!(parse(&["--secret-fd", bad]).is_err(), "{bad}");
        }
        assert_eq!(parse(&["--secret-fd=3"]).unwrap().secret_fd, Some(3));
        for bad in [
            "--no-sandbox",
            "--No-Sandbox=1",
            "--remote-debugging-port=1",
            "--user-data-dir=/x",
            "--lang=de",
            "x",
            "-x",
        ] {
            assert!(parse(&["--chromium-arg", bad]).is_err(), "{bad}");
        }
        let allowed = "--force-device-scale-factor=2";
        assert_eq!(parse(&["--chromium-arg", allowed]).unwrap().chromium_args, [allowed]);
        assert_eq!(parse(&["--languages=de-CH,de"]).unwrap().languages, ["de-CH", "de"]);
        for bad in ["--languages=de_CH", "--languages=", "--timezone=Nowhere", "--user-agent=Firefox"] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
        for bad in ["0x5", "1280", "9000x1", "-1x4"] {
            assert!(parse(&[&format!("--window={bad}")]).is_err(), "{bad}");
        }
    }
}
