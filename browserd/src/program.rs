//! The program: lock, PID file, listener, browser, signals.

use crate::browser::supervisor::{Phase, Status, Supervisor};
use crate::config::Config;
use crate::secret::Secret;
use crate::server::{App, serve};
use crate::sys;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Why browserd cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The data folder cannot be used.
    #[error("cannot use the data folder {}; give browserd a folder that it can write", folder.display())]
    DataFolder {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// Another browserd uses the data folder.
    #[error("the data folder {} is used by another browserd; give each its own folder", .0.display())]
    InUse(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// The address is not available.
    #[error("cannot listen on {address}; choose another address or port")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What failed.
        source: io::Error,
    },
    /// The secret cannot be read or made.
    #[error("cannot get the secret; --secret-fd names an open descriptor with a secret")]
    Secret(#[source] io::Error),
    /// A system call failed.
    #[error("{what} failed")]
    System {
        /// The operation.
        what: &'static str,
        /// What failed.
        source: io::Error,
    },
}

/// A file that is removed when browserd stops.
struct RunFile(PathBuf);

impl RunFile {
    fn write(file: PathBuf, text: String) -> Result<Self, RunError> {
        // Renamed into place, because readers poll for it and must not see a partial file.
        let new = file.with_extension("new");
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &file))
            .map_err(|source| RunError::File { file: file.clone(), source })?;
        Ok(Self(file))
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Protects the secret and the browser's data from other processes of the same user, which is also Chromium's: none of them
/// may trace this process, read its memory or take its descriptors. Called before anything else.
pub fn protect_process() -> io::Result<()> {
    sys::forbid_tracing()
}

/// Writes one line to standard output when the browser is ready, with the URL of raw CDP, or when it has failed. The parent
/// process does not have to poll `/readyz`. The URLs contain the secret only if the parent process did not choose it.
async fn announce(app: Arc<App>, address: std::net::SocketAddr) {
    let secret = if app.config.secret_fd.is_some() { String::new() } else { app.secret_path() };
    let line = match app.supervisor.settled().await {
        Status { phase: Phase::Ready, .. } if app.config.no_raw_cdp => {
            format!("ready http://{address}{secret}\n")
        }
        Status { phase: Phase::Ready, .. } => {
            format!("ready http://{address}{secret} ws://{address}{secret}{}\n", app.raw_path())
        }
        Status { last_exit, .. } => {
            // Chromium's output may contain line breaks.
            let why = last_exit.unwrap_or_default().replace(char::is_control, " ");
            format!("failed {why}\n")
        }
    };
    let mut out = io::stdout();
    // An error means that the parent closed the pipe.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Runs until SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<(), RunError> {
    // Before the runtime opens descriptors: one that was not passed must not be mistaken for one of the runtime's.
    let secret = match config.secret_fd {
        Some(number) => sys::take_descriptor(number).and_then(|held| Secret::read(File::from(held))),
        None => Secret::random(),
    };
    let secret = secret.map_err(RunError::Secret)?;
    // One thread: the work is I/O, memory stays small, and PR_SET_PDEATHSIG kills Chromium when the thread that started it
    // ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RunError::System { what: "starting the runtime", source })?;
    runtime.block_on(run_in_runtime(config, secret))
}

async fn run_in_runtime(config: Config, secret: Secret) -> Result<(), RunError> {
    let system = |what| move |source| RunError::System { what, source };
    let folder = config.data_dir.clone();
    let in_folder = |source| RunError::DataFolder { folder: folder.clone(), source };
    std::fs::create_dir_all(&config.data_dir).map_err(in_folder)?;
    let lock = File::create(config.data_dir.join("browserd.lock")).map_err(in_folder)?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
        .map_err(|_| RunError::InUse(config.data_dir.clone()))?;

    // A killed browserd leaves this file behind. Readers must not find the old address.
    let address_file = config.data_dir.join("browserd.address");
    let _ = std::fs::remove_file(&address_file);

    let mut terminate = signal(SignalKind::terminate()).map_err(system("registering a signal handler"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("registering a signal handler"))?;
    sys::become_subreaper().map_err(system("becoming the reaper of the browser's orphans"))?;

    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|source| RunError::Listen { address: config.listen, source })?;
    let address = listener.local_addr().map_err(system("reading the listener's address"))?;
    let pid_file = config.pid_file.clone().unwrap_or_else(|| config.data_dir.join("browserd.pid"));
    let _pid_file = RunFile::write(pid_file, format!("{}\n", std::process::id()))?;
    let _address_file = RunFile::write(address_file, format!("{address}\n"))?;
    tracing::info!(%address, "listening");

    let config = Arc::new(config);
    let supervisor = Supervisor::new();
    let app = App::new(config.clone(), supervisor.clone(), secret);
    let server = tokio::spawn(serve(app.clone(), listener));
    let browser = {
        let supervisor = supervisor.clone();
        tokio::spawn(async move { supervisor.run(&config).await })
    };
    tokio::spawn(announce(app, address));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    supervisor.stop();
    // The supervisor's own deadlines limit this. An error means a panic, which was already reported.
    let _ = browser.await;
    server.abort();
    Ok(())
}
