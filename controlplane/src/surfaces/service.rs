//! Starts and stops the service. Everything that can be checked is checked first.

use super::Surface;
use super::http;
use super::http::serve::{Door, Server};
use crate::access::Access;
use crate::access::keys::Keys;
use crate::app::App;
use crate::audit::Audit;
use crate::config::Config;
use crate::error::ApiError;
use crate::hosts::{HostLink, Hostd};
use crate::store::Store;
use hostd::server::instance::{Instance, InstanceError};
use hostd::server::listener::{ListenError, Listener};
use hostd::server::notify;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a stop waits for running calls, and then for the audit log.
const STOP_TIME: Duration = Duration::from_secs(15);
const AUDIT_TIME: Duration = Duration::from_secs(5);

/// Why the service does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The state folder.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The database.
    #[error(transparent)]
    Store(#[from] crate::store::OpenError),
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] crate::audit::StartError),
    /// The sessions of the last run.
    #[error("the sessions of the last run cannot be looked at: {0}")]
    Sessions(ApiError),
    /// The Unix socket.
    #[error(transparent)]
    Socket(#[from] ListenError),
    /// The HTTP listener.
    #[error(
        "http.listen: the address {address} cannot be used: {error}; set another one, or \"\" for no listener"
    )]
    Http {
        /// The address.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// A folder.
    #[error("the folder {} cannot be created: {error}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A basic system call failed.
    #[error("{what}: {error}")]
    System {
        /// What failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// The running service: listeners, store, sessions.
#[derive(Debug)]
pub struct Service {
    surface: Arc<Surface>,
    tasks: TaskTracker,
    /// Cancelled to stop accepting.
    accepting: CancellationToken,
    _instance: Instance,
}

impl Service {
    /// Open the store, connect to hostd, find the sessions again, and listen.
    pub async fn start(config: Config) -> Result<Self, ServiceError> {
        let hosts = Arc::new(Hostd::new(&config.paths.hostd));
        Self::start_with(config, hosts).await
    }

    /// The same with another host of clones.
    pub async fn start_with(config: Config, hosts: Arc<dyn HostLink>) -> Result<Self, ServiceError> {
        let config = Arc::new(config);
        let state = &config.paths.state;
        folder(state)?;
        let instance = Instance::lock(state)?;
        let store = Store::open(&config.store, state).await?;
        let audit = Audit::start(store.clone(), state, &config.audit).await?;
        // The listeners are opened before the sessions are touched: a second service fails here.
        let http = match config.http.listen.as_str() {
            "" => None,
            address => Some(bind(address).await?),
        };
        let socket = Listener::open(&config.paths.socket, &config.paths.socket_group)?;
        let app =
            App::start(config.clone(), store.clone(), audit, hosts).await.map_err(ServiceError::Sessions)?;
        let access = Access::new(&config, Keys::new(store));
        for warning in access.warnings() {
            tracing::warn!("{warning}");
        }
        let http_address = http.as_ref().and_then(|listener| listener.local_addr().ok());
        let surface = Arc::new(Surface::new(app, access, http_address));
        let router = http::router(surface.clone());
        let (tasks, accepting) = (TaskTracker::new(), CancellationToken::new());
        let server =
            Server { surface: surface.clone(), router, stop: accepting.clone(), tasks: tasks.clone() };
        tokio::spawn(server.clone().serve(Door::Unix(socket)));
        if let Some(listener) = http {
            tokio::spawn(server.serve(Door::Tcp(listener)));
        }
        Ok(Self { surface, tasks, accepting, _instance: instance })
    }

    /// The address of the HTTP listener, if there is one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.surface.http_address
    }

    /// Refuse new calls, let running ones end (bounded), and write what is left to write. Sessions stay open.
    pub async fn stop(self) {
        // Streams and CDP connections end by this; calls go on.
        self.surface.stop.cancel();
        self.accepting.cancel();
        self.tasks.close();
        let calls = async {
            self.tasks.wait().await;
            self.surface.relays.ended().await;
        };
        if tokio::time::timeout(STOP_TIME, calls).await.is_err() {
            tracing::warn!("calls did not end in time; they are cut off");
        }
        self.surface.app.stop().await;
        self.surface.app.audit.stop(AUDIT_TIME).await;
        self.surface.app.store.close().await;
    }
}

fn folder(path: &Path) -> Result<(), ServiceError> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| ServiceError::Folder { path: path.to_owned(), error })
}

async fn bind(address: &str) -> Result<TcpListener, ServiceError> {
    TcpListener::bind(address)
        .await
        .map_err(|error| ServiceError::Http { address: address.to_owned(), error })
}

/// Run the service until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<(), ServiceError> {
    let system = |error| ServiceError::System { what: "signals cannot be caught", error };
    let mut terminate = signal(SignalKind::terminate()).map_err(system)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system)?;
    let socket = config.paths.socket.clone();
    let service = tokio::select! {
        service = Service::start(config) => service?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let http = service.http_address().map(|address| address.to_string()).unwrap_or_default();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %socket.display(), http, "serving");
    tokio::spawn(notify::watchdog());
    notify::ready("serving");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    notify::stopping();
    service.stop().await;
    tracing::info!("stopped");
    Ok(())
}
