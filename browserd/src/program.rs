//! From start to stop: lock, PID file, listener, browser, signals.

use crate::browser::supervisor::{Phase, Status, Supervisor};
use crate::config::Config;
use crate::server::{App, serve};
use crate::sys;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Why browserd does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The data folder cannot be used.
    #[error("data folder {folder}: {error}; give browserd a folder of its own that it can write")]
    DataFolder {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        error: io::Error,
    },
    /// Another browserd has it.
    #[error("data folder {0} is used by another browserd; give each its own")]
    InUse(PathBuf),
    /// A file cannot be written.
    #[error("{file}: {error}")]
    File {
        /// The file.
        file: PathBuf,
        /// What failed.
        error: io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}; choose another address or port")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What failed.
        error: io::Error,
    },
    /// The operating system refused something basic.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What failed.
        error: io::Error,
    },
}

/// A file that is removed when browserd ends in good order.
struct Removed(PathBuf);

impl Removed {
    fn write(file: PathBuf, text: String) -> Result<Self, RunError> {
        // Written whole or not at all: readers poll for it.
        let fresh = file.with_extension("new");
        std::fs::write(&fresh, text)
            .and_then(|()| std::fs::rename(&fresh, &file))
            .map_err(|error| RunError::File { file: file.clone(), error })?;
        Ok(Self(file))
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Tell whoever started us, by one line on standard output, that `/readyz` says yes from now on and where raw CDP is,
/// or that it never will. Nobody has to ask again and again.
async fn announce(app: Arc<App>, address: std::net::SocketAddr) {
    let line = match app.supervisor.settled().await {
        Status { phase: Phase::Ready, .. } if app.config.no_raw_cdp => format!("ready http://{address}\n"),
        Status { phase: Phase::Ready, .. } => {
            format!("ready http://{address} {}\n", app.raw_endpoint(&address.to_string()))
        }
        Status { last_exit, .. } => {
            // One line, whatever the browser's last words were.
            let why = last_exit.unwrap_or_default().replace(char::is_control, " ");
            format!("failed {why}\n")
        }
    };
    let mut out = io::stdout();
    // A reader that has gone away did not want to know.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Run until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<(), RunError> {
    let system = |what| move |error| RunError::System { what, error };
    let folder = config.data_dir.clone();
    let in_folder = |error| RunError::DataFolder { folder: folder.clone(), error };
    std::fs::create_dir_all(&config.data_dir).map_err(in_folder)?;
    let lock = File::create(config.data_dir.join("browserd.lock")).map_err(in_folder)?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
        .map_err(|_| RunError::InUse(config.data_dir.clone()))?;

    // A browserd that was killed may have left it; whoever reads it shall not find the old one's address.
    let address_file = config.data_dir.join("browserd.address");
    let _ = std::fs::remove_file(&address_file);

    let mut terminate = signal(SignalKind::terminate()).map_err(system("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("signals"))?;
    sys::adopt_orphans().map_err(system("adopting the browser's orphans"))?;

    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| RunError::Listen { address: config.listen, error })?;
    let address = listener.local_addr().map_err(system("the listener's address"))?;
    let pid_file = config.pid_file.clone().unwrap_or_else(|| config.data_dir.join("browserd.pid"));
    let _pid_file = Removed::write(pid_file, format!("{}\n", std::process::id()))?;
    let _address_file = Removed::write(address_file, format!("{address}\n"))?;
    tracing::info!(%address, "listening");

    let config = Arc::new(config);
    let supervisor = Supervisor::new();
    let app = App::new(config.clone(), supervisor.clone());
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
    // Its own deadlines bound it; a panic in it was reported already.
    let _ = browser.await;
    server.abort();
    Ok(())
}
