//! The Chromium process: command line, folders, termination.

use crate::config::Config;
use crate::presentation::Presentation;
use crate::sys;
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

/// Lines of Chromium's standard error kept for the exit report.
const KEPT_LINES: usize = 8;
const KEPT_LINE_BYTES: u64 = 2048;

/// No debugging port, no first-run pages, no background network traffic, and no behaviour that breaks automation: a page
/// restored from the back/forward cache bypasses interception, and a prompt on repost waits for a person.
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

/// Chromium opens this page at startup, in parallel with the first CDP calls.
const FIRST_PAGE: &str = "about:blank";

/// Environment variables passed to Chromium. All others are removed.
const KEPT_VARIABLES: [&str; 5] = ["LANG", "TZ", "PATH", "FONTCONFIG_FILE", "FONTCONFIG_PATH"];

/// Why Chromium could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("cannot empty the folder {}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("cannot create the debugging pipe")]
    Pipe(#[source] io::Error),
    #[error("cannot confine Chromium: on Linux, browserd needs Landlock ABI 6 (Linux 6.12)")]
    Confine(#[source] io::Error),
    #[error("cannot start {}", program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("cannot write {}", file.display())]
    PidFile { file: PathBuf, source: io::Error },
    #[error("cannot read Chromium's standard error")]
    Stderr(#[source] io::Error),
}

/// A running Chromium.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// The last lines of its standard error.
    errors: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Starts Chromium with an empty profile. Returns browserd's end of the debugging pipe.
    pub(crate) fn start(
        config: &Config,
        presentation: &Presentation,
    ) -> Result<(Self, UnixStream), StartError> {
        let folder = config.data_dir.join("browser");
        let downloads = config.data_dir.join("downloads");
        for folder in [&folder, &downloads] {
            empty_folder(folder).map_err(|source| StartError::Folder { folder: folder.clone(), source })?;
        }
        let (pipe, chromium_end) = debugging_pipe().map_err(StartError::Pipe)?;

        let mut command = Command::new(&config.chromium);
        command
            .args(FIXED_ARGS)
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .args(presentation.switches())
            .args(&config.chromium_args)
            .arg(FIRST_PAGE)
            .env_clear()
            .envs(KEPT_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .envs(presentation.timezone.iter().map(|zone| ("TZ", zone)))
            // Chromium cannot open a file with other characters than ASCII in its name in a locale without them.
            .env("LC_CTYPE", "C.UTF-8")
            .env("HOME", &folder)
            .env("TMPDIR", &folder)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let confinement = sys::Confinement::prepare().map_err(StartError::Confine)?;
        let mut child = sys::spawn_with_pipe(&mut command, chromium_end, confinement)
            .map_err(|source| StartError::Spawn { program: config.chromium.clone(), source })?;
        let file = config.data_dir.join("chromium.pid");
        std::fs::write(&file, format!("{}\n", child.id()))
            .map_err(|source| StartError::PidFile { file, source })?;

        let errors = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            let stderr = tokio::net::unix::pipe::Receiver::from_owned_fd(OwnedFd::from(stderr))
                .map_err(StartError::Stderr)?;
            tokio::spawn(keep_last_lines(stderr, errors.clone()));
        }
        Ok((Self { child, errors }, pipe))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until Chromium's main process has ended.
    pub(crate) async fn ended(&self) {
        // The SIGCHLD handler is registered before the first check, so that no exit is missed in between.
        let Ok(mut changes) = signal(SignalKind::child()) else { return };
        while !sys::has_ended(&self.child) {
            changes.recv().await;
        }
    }

    /// Sends SIGTERM, and SIGKILL if the process has not ended within `timeout`.
    pub(crate) async fn stop(&self, timeout: Duration) {
        for step in [Signal::SIGTERM, Signal::SIGKILL] {
            if sys::has_ended(&self.child) {
                return;
            }
            sys::signal(&self.child, step);
            let _ = tokio::time::timeout(timeout, self.ended()).await;
        }
    }

    /// Kills the rest of the process group, reaps it, and reports how Chromium ended.
    pub(crate) async fn reap(mut self, config: &Config) -> String {
        sys::signal(&self.child, Signal::SIGKILL);
        let group = sys::pid(&self.child);
        let mut reaped = sys::kill_group(&mut self.child);
        for _ in 0..100 {
            if reaped {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            reaped = sys::reap_group(group);
        }
        if !reaped {
            tracing::error!(%group, "processes of the browser still exist after SIGKILL");
        }
        let _ = std::fs::remove_file(config.data_dir.join("chromium.pid"));
        let mut report = match self.child.wait() {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (None, Some(number)) => format!("signal {number}"),
                (None, None) => "unknown exit status".into(),
            },
            Err(error) => format!("unknown exit status: {error}"),
        };
        for line in self.errors.lock().expect("no panic while held").iter() {
            report.push_str("; ");
            report.push_str(line);
        }
        report
    }
}

/// browserd's end of the pipe, which is non-blocking, and Chromium's, which is not.
fn debugging_pipe() -> io::Result<(UnixStream, OwnedFd)> {
    let (pipe, chromium_end) = std::os::unix::net::UnixStream::pair()?;
    pipe.set_nonblocking(true)?;
    Ok((UnixStream::from_std(pipe)?, chromium_end.into()))
}

/// Removes the folder and creates it again, accessible only to browserd's user.
fn empty_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder)
}

async fn keep_last_lines(pipe: impl tokio::io::AsyncRead + Unpin, kept: Arc<Mutex<VecDeque<String>>>) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        // Long lines are split, so that the buffer stays bounded.
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
