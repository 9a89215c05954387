//! Starts and stops the daemon. Everything that can be checked is checked before the host is changed, and the instance
//! lock is taken before anything is written.

use super::accept;
use super::access::Access;
use super::dispatch::Server;
use super::gate::Gate;
use super::instance::{Instance, InstanceError};
use super::listener::{ListenError, Listener};
use super::log_writer::LogWriter;
use super::metrics_http::{self, MetricsHttpError};
use super::notify;
use crate::audit::Audit;
use crate::clock::SystemClock;
use crate::config::{Config, ConfigError, HostDriver, LogConfig, LogFormat};
use crate::disk::is_disk_failure;
use crate::host::Host;
use crate::lifecycle::{Lifecycle, OpenError, Setup};
use crate::metrics::Metrics;
use crate::slot::{Slots, SlotsError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How long to wait before the socket is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Others can change a folder or a program that the daemon uses.
    #[error(transparent)]
    Untrusted(#[from] ConfigError),
    /// The slots.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// The Prometheus listener.
    #[error(transparent)]
    Metrics(#[from] MetricsHttpError),
    /// The state folder.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The audit log.
    #[error("the audit log {} cannot be opened: {error}; without it no call may change the host", .path.display())]
    Audit {
        /// The log.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The host.
    #[error("this host cannot be driven: {0}")]
    Host(String),
    /// The records or the first inspection of the host.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A basic system call failed.
    #[error("{what}: {error}")]
    System {
        /// What failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl DaemonError {
    /// The process's exit code: 2 if a restart cannot help, 7 for a host that is not ready.
    pub fn exit_code(&self) -> u8 {
        match self {
            DaemonError::Untrusted(_)
            | DaemonError::Slots(_)
            | DaemonError::Metrics(MetricsHttpError::NotLoopback(_)) => 2,
            _ => 7,
        }
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |error| DaemonError::System { what, error }
}

/// A configuration that was checked, with what follows from it.
#[derive(Debug)]
pub struct CheckedConfig {
    config: Arc<Config>,
    access: Access,
    slots: Slots,
}

/// Check everything that can be checked without changing anything.
pub fn check(config: Config) -> Result<CheckedConfig, DaemonError> {
    config.check_trust()?;
    let access = Access::new(&config.access);
    let slots = Slots::new(&config.pool)?;
    if let Some(address) = config.metrics.listen {
        metrics_http::check(address)?;
    }
    Ok(CheckedConfig { config: Arc::new(config), access, slots })
}

impl CheckedConfig {
    /// What an operator should know although it is not an error.
    pub fn warnings(&self) -> &[String] {
        self.access.warnings()
    }
}

/// Run the daemon until it is told to stop.
pub fn run(checked: CheckedConfig) -> Result<(), DaemonError> {
    crate::platform::spare_memory();
    // One thread: the work of the daemon itself is short, and everything that waits for a disk, the kernel or a command runs
    // on other threads. A second one would cost memory and a wake-up for each step of a call.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("the runtime cannot be started"))?;
    let done = runtime.block_on(run_with_driver(checked));
    // Operations that are still running are recorded; the next start rolls them back.
    runtime.shutdown_background();
    done
}

async fn run_with_driver(checked: CheckedConfig) -> Result<(), DaemonError> {
    match checked.config.host.driver {
        #[cfg(target_os = "linux")]
        HostDriver::Native => {
            run_with_host(checked, |checked| {
                crate::host::linux::LinuxHost::open(&checked.config, &checked.slots)
                    .map_err(|error| DaemonError::Host(format!("{error}; {}", error.hint)))
            })
            .await
        }
        #[cfg(not(target_os = "linux"))]
        HostDriver::Native => run_with_host(checked, open_freebsd).await,
        HostDriver::Freebsd => run_with_host(checked, open_freebsd).await,
        #[cfg(feature = "fake-host")]
        HostDriver::Fake => {
            run_with_host(checked, |checked| {
                let world = checked.config.paths.state.join("fake-world");
                crate::host::fake::FakeHost::persistent(checked.slots.clone(), &world)
                    .map_err(|error| DaemonError::Host(format!("{}: {error}", world.display())))
            })
            .await
        }
    }
}

fn open_freebsd(checked: &CheckedConfig) -> Result<crate::host::freebsd::FreebsdHost, DaemonError> {
    crate::host::freebsd::FreebsdHost::open(&checked.config, &checked.slots)
        .map_err(|error| DaemonError::Host(format!("{error}; {}", error.hint)))
}

/// Run the daemon with a host, which is made only after the lock is held.
pub async fn run_with_host<H: Host>(
    checked: CheckedConfig,
    make_host: impl FnOnce(&CheckedConfig) -> Result<H, DaemonError>,
) -> Result<(), DaemonError> {
    let mut signals = Signals::new().map_err(system("signals cannot be caught"))?;
    for warning in checked.warnings() {
        tracing::warn!("{warning}");
    }
    let config = checked.config.clone();
    raise_open_files(config.server.max_connections);

    let _instance = Instance::lock(&config.paths.state)?;
    let audit = Audit::open(&config.paths.audit)
        .map_err(|error| DaemonError::Audit { path: config.paths.audit.clone(), error })?;
    let audit = Arc::new(audit);
    let metrics = Arc::new(Metrics::new());
    let metrics_listener = match config.metrics.listen {
        Some(address) => Some(metrics_http::bind(address).await?),
        None => None,
    };
    let listener = open_listener(&config)?;
    let clock = Arc::new(SystemClock::new().map_err(system("the boot's name cannot be read"))?);

    let host = make_host(&checked)?;
    let setup = Setup { config: config.clone(), clock, audit: audit.clone(), metrics: metrics.clone() };
    let lifecycle = tokio::select! {
        lifecycle = Lifecycle::open(host, setup) => lifecycle?,
        () = signals.stop(1) => return Ok(()),
    };
    tokio::spawn(lifecycle.clone().run_timers());
    tokio::spawn(lifecycle.clone().run_service_checks());
    if config.pool.size > 0 {
        tokio::spawn(lifecycle.clone().run_pool());
    }
    let listener = match listener {
        Some(listener) => listener,
        // Clones go at their deadline meanwhile.
        None => tokio::select! {
            listener = listen_when_possible(&config) => listener?,
            () = signals.stop(1) => {
                lifecycle.shutdown().await;
                return Ok(());
            }
        },
    };
    let gate = Gate::new(checked.access, config, metrics);
    let server = Arc::new(Server { gate, lifecycle });
    if let Some(listener) = metrics_listener {
        let server = server.clone();
        tokio::spawn(metrics_http::serve(listener, move || server.metrics_text()));
    }
    tokio::spawn(notify::watchdog());
    tokio::spawn(reopen_on_hangup(signals.hangup, audit));

    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %server.gate.config.paths.socket.display(), "serving");
    notify::ready("serving");
    let mut stops = signals.stops.clone();
    let stop = async {
        let _ = stops.wait_for(|count| *count >= 1).await;
        tracing::info!("stopping");
        notify::stopping();
    };
    let mut stops = signals.stops.clone();
    let hurry = async {
        let _ = stops.wait_for(|count| *count >= 2).await;
    };
    let left = accept::serve(server, listener, stop, hurry).await;
    if left > 0 {
        tracing::warn!(left, "operations did not end in time; the next start rolls them back");
    }
    tracing::info!("stopped");
    Ok(())
}

/// The socket, or none while the disk is full or read-only.
fn open_listener(config: &Config) -> Result<Option<Listener>, ListenError> {
    match Listener::open(&config.paths.socket, &config.paths.socket_group) {
        Err(ListenError::Path { path, error }) if is_disk_failure(&error) => {
            tracing::error!(path = %path.display(), %error, "the socket cannot be created yet; clones go at their deadline");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

async fn listen_when_possible(config: &Config) -> Result<Listener, ListenError> {
    loop {
        tokio::time::sleep(RETRY).await;
        if let Some(listener) = open_listener(config)? {
            return Ok(listener);
        }
    }
}

/// TERM and INT stop the daemon, a second one without waiting. HUP reopens the audit log.
struct Signals {
    stops: watch::Receiver<u32>,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (count, stops) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
                count.send_modify(|count| *count += 1);
            }
        });
        Ok(Self { stops, hangup: signal(SignalKind::hangup())? })
    }

    async fn stop(&mut self, least: u32) {
        let _ = self.stops.wait_for(|count| *count >= least).await;
    }
}

async fn reopen_on_hangup(mut hangup: Signal, audit: Arc<Audit>) {
    while hangup.recv().await.is_some() {
        notify::reloading();
        match audit.reopen() {
            Ok(()) => tracing::info!("audit log reopened"),
            Err(error) => {
                tracing::error!(%error, "the audit log cannot be reopened; the old one stays in use")
            }
        }
        notify::ready("serving");
    }
}

/// Raise the limit of open files, so that the cap of connections is reached first.
fn raise_open_files(connections: usize) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok(wanted) = libc::rlim_t::try_from(connections.saturating_add(256)) else { return };
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft < wanted {
        let raised = wanted.min(hard);
        let _ = setrlimit(Resource::RLIMIT_NOFILE, raised, hard);
        if raised < wanted {
            tracing::warn!(limit = raised, wanted, "the limit of open files is below server.max_connections");
        }
    }
}

/// Write the log to standard error, as text or as JSON.
pub fn start_log(config: &LogConfig) {
    let filter: Targets =
        config.filter.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let log = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(LogWriter(config.format))
        // The writer escapes control characters, those of colours too.
        .with_ansi(false)
        .with_target(false)
        // All spans are those of `timing`.
        .with_span_events(FmtSpan::CLOSE);
    match config.format {
        LogFormat::Human => log.finish().with(filter).init(),
        LogFormat::Json => log.json().flatten_event(true).finish().with(filter).init(),
    }
}
