//! Chromium as a process: its command line, its folders, its end.

use crate::config::Config;
use crate::sys;
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

/// Lines of Chromium's standard error kept for the report of its end.
const KEPT_LINES: usize = 8;
const KEPT_LINE_BYTES: u64 = 2048;

/// No port, no first-run pages, nothing that talks to the network of its own accord, and nothing that surprises whoever
/// drives it: a page that comes back from a cache does not pass interception, a prompt on going back waits for a person.
const FIXED_ARGS: [&str; 32] = [
    "--remote-debugging-pipe",
    "--headless",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-component-extensions-with-background-pages",
    "--disable-sync",
    "--disable-quic",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-client-side-phishing-detection",
    "--disable-domain-reliability",
    "--disable-field-trial-config",
    "--disable-search-engine-choice-screen",
    "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider,AutofillServerCommunication,\
     CertificateTransparencyComponentUpdater,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,GlobalMediaControls,\
     NetworkTimeServiceQuerying,PreconnectToSearch,AimEnabled,PaintHolding,AvoidUnnecessaryBeforeUnloadCheckSync,\
     AvoidCorsURLLoaderRestartOnRedirect",
    "--disable-back-forward-cache",
    "--disable-ipc-flooding-protection",
    "--disable-prompt-on-repost",
    "--disable-stack-profiler",
    "--allow-pre-commit-input",
    "--metrics-recording-only",
    "--mute-audio",
    "--hide-scrollbars",
    "--password-store=basic",
    "--disable-hang-monitor",
    "--disable-backgrounding-occluded-windows",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--force-color-profile=srgb",
];

/// Opened by Chromium itself at its start: it comes up while we begin to talk.
const FIRST_PAGE: &str = "about:blank";

/// Variables handed on to Chromium; everything else of browserd's environment stays here.
const KEPT_VARIABLES: [&str; 6] = ["LANG", "LC_ALL", "TZ", "PATH", "FONTCONFIG_FILE", "FONTCONFIG_PATH"];

/// A running Chromium and our end of its pipe.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    errors: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Start Chromium with an empty profile.
    pub(crate) fn start(config: &Config) -> io::Result<(Self, UnixStream)> {
        let folder = config.data_dir.join("browser");
        let downloads = config.data_dir.join("downloads");
        for folder in [&folder, &downloads] {
            empty_folder(folder)?;
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = UnixStream::from_std(ours)?;

        let (width, height) = config.window;
        let mut command = Command::new(&config.chromium);
        command
            .args(FIXED_ARGS)
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .arg(format!("--window-size={width},{height}"))
            .args(&config.chromium_args)
            .arg(FIRST_PAGE)
            .env_clear()
            .envs(KEPT_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .env("HOME", &folder)
            .env("TMPDIR", &folder)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = sys::spawn_with_pipe(&mut command, OwnedFd::from(theirs)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", config.chromium.display()))
        })?;
        std::fs::write(config.data_dir.join("chromium.pid"), format!("{}\n", child.id()))?;

        let errors = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            let pipe = tokio::net::unix::pipe::Receiver::from_owned_fd(OwnedFd::from(stderr))?;
            tokio::spawn(keep_last_lines(pipe, errors.clone()));
        }
        Ok((Self { child, errors }, ours))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until Chromium's main process has ended.
    pub(crate) async fn ended(&self) {
        // Registered before the first look, so that no end falls between the two.
        let Ok(mut changes) = signal(SignalKind::child()) else { return };
        while !sys::has_ended(&self.child) {
            changes.recv().await;
        }
    }

    /// TERM, and KILL when that does not help in time.
    pub(crate) async fn stop(&self, patience: Duration) {
        for step in [Signal::SIGTERM, Signal::SIGKILL] {
            if sys::has_ended(&self.child) {
                return;
            }
            sys::signal(&self.child, step);
            let _ = tokio::time::timeout(patience, self.ended()).await;
        }
    }

    /// End what is left of its process group, reap it, and tell how it ended.
    pub(crate) async fn bury(mut self, config: &Config) -> String {
        sys::signal(&self.child, Signal::SIGKILL);
        let group = sys::pid(&self.child);
        let mut gone = sys::end_family(&mut self.child);
        for _ in 0..100 {
            if gone {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            gone = sys::reap_group(group);
        }
        if !gone {
            tracing::error!(%group, "processes of the browser are still there after KILL");
        }
        let _ = std::fs::remove_file(config.data_dir.join("chromium.pid"));
        let mut report = match self.child.wait() {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (None, Some(number)) => format!("signal {number}"),
                (None, None) => "unknown".into(),
            },
            Err(error) => format!("not known: {error}"),
        };
        for line in self.errors.lock().expect("no panic while held").iter() {
            report.push_str("; ");
            report.push_str(line);
        }
        report
    }
}

/// Make `folder` exist, empty and ours alone.
fn empty_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder).map_err(named)
}

async fn keep_last_lines(pipe: impl tokio::io::AsyncRead + Unpin, kept: Arc<Mutex<VecDeque<String>>>) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without end is cut, not collected.
        match (&mut reader).take(KEPT_LINE_BYTES).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        tracing::debug!(line = %text, "chromium");
        let mut kept = kept.lock().expect("no panic while held");
        if kept.len() == KEPT_LINES {
            kept.pop_front();
        }
        kept.push_back(text);
    }
}
