//! What runs in a clone: browserd, or without it the browser itself with its debugging pipe as a socket.

use super::{Answer, Orders, browserd, relay};
use crate::host::linux::template::{DOWNLOADS, MEDIA, PROFILE};
use crate::host::linux::{jail, mount_isolation};
use launcher::{Browser, Config, LaunchError, Launcher};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use sandbox::Sandbox;
use std::fs::{File, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The exit code of a supervisor whose browser ended by itself.
const BROWSER_ENDED: i32 = 3;

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    #[error("{what}")]
    Io { what: String, source: io::Error },
}

impl ServiceError {
    /// Whether the host lacks something, so that trying again cannot help.
    pub(super) fn not_ready(&self) -> bool {
        match self {
            ServiceError::Launch(error) => error.exit_code() == 7,
            ServiceError::Sandbox(error) => error.missing_layer().is_some(),
            ServiceError::Io { .. } => false,
        }
    }
}

pub(super) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServiceError {
    let what = what.into();
    move |source| ServiceError::Io { what, source }
}

/// A service that is ready. It ends with the supervisor.
pub(super) struct Service {
    endpoint: String,
    cdp_endpoint: Option<String>,
    took: Vec<(String, f64)>,
    /// Dropping it would end it.
    running: Running,
}

enum Running {
    Browser(Box<Browser>),
    Browserd(Box<Sandbox>, SocketAddr),
}

impl Service {
    /// Start it and wait until it is ready. For a thread that ends then: it leaves the other clones' mounts behind.
    pub(super) fn start(orders: &Orders, run: &Path) -> Result<Service, ServiceError> {
        if let (None, Some(processes)) = (&orders.cgroup, orders.limits.processes) {
            // Counted per user, and the clone's user is its own. Inherited by everything that is started from here.
            setrlimit(Resource::RLIMIT_NPROC, processes, processes)
                .map_err(|error| io_error("RLIMIT_NPROC")(error.into()))?;
        }
        let network = File::open(&orders.network).map_err(io_error(orders.network.display().to_string()))?;
        if orders.isolated_mounts {
            mount_isolation::enter(io::stdin().as_fd(), &orders.folder)
                .map_err(io_error("the mounts of other clones cannot be left behind"))?;
        }
        match &orders.browserd {
            Some((program, address)) => {
                let browserd::Started { sandbox, cdp_endpoint, took } =
                    browserd::start(orders, run, network, program, *address)?;
                follow(&sandbox)?;
                Ok(Service {
                    endpoint: format!("http://{address}"),
                    cdp_endpoint,
                    took,
                    running: Running::Browserd(Box::new(sandbox), *address),
                })
            }
            None => Service::start_browser(orders, network, run),
        }
    }

    fn start_browser(orders: &Orders, network: File, run: &Path) -> Result<Service, ServiceError> {
        let folder = |name: &str| orders.folder.join(name);
        let config = Config {
            browser: Some(orders.browser.clone()),
            media: Some(folder(MEDIA)),
            downloads: Some(folder(DOWNLOADS)),
            ..Config::default()
        };
        let mut launcher = Launcher::new(config)
            .arguments(["--headless"])?
            .profile(folder(PROFILE))
            .host_uid(orders.uid)
            .network_namespace(network.into());
        if let Some(resolver) = orders.resolver {
            launcher = launcher.resolver(resolver);
        }
        if let Some(files) = orders.limits.open_files {
            launcher = launcher.open_files(files);
        }
        let mut browser = launcher.launch()?;
        jail::note_program(run, browser.pid(), false).map_err(io_error("the run folder"))?;
        eprintln!(
            "supervisor: {} as process {} with {:?}",
            browser.version(),
            browser.pid(),
            browser.layers()
        );
        let socket = run.join(jail::CDP);
        let listener = listen(&socket, orders.group).map_err(io_error(socket.display().to_string()))?;
        let pipe = browser.take_cdp().expect("nobody took it before").into_parts();
        relay::start(listener, pipe.from_browser, pipe.to_browser, || {
            eprintln!("supervisor: the browser ended");
            std::process::exit(BROWSER_ENDED);
        })
        .map_err(io_error("the threads of the browser's socket"))?;
        Ok(Service {
            endpoint: format!("cdp+unix://{}", socket.display()),
            cdp_endpoint: None,
            took: Vec::new(),
            running: Running::Browser(Box::new(browser)),
        })
    }

    /// Whether it still answers. Its end is noticed anyway, but a moment later: a clone that stood still for an hour must
    /// not be called well because nobody had the time yet to see that its browser is dead.
    pub(super) fn is_alive(&mut self) -> bool {
        match &mut self.running {
            Running::Browser(browser) => matches!(browser.try_wait(), Ok(None)),
            Running::Browserd(sandbox, address) => {
                matches!(sandbox.try_wait(), Ok(None)) && browserd::ask_ready(*address).is_ok()
            }
        }
    }

    /// What is told of it.
    pub(super) fn ready(&self) -> Answer {
        Answer::Ready {
            endpoint: self.endpoint.clone(),
            cdp_endpoint: self.cdp_endpoint.clone(),
            took: self.took.clone(),
        }
    }
}

/// End with the sandbox.
fn follow(sandbox: &Sandbox) -> Result<(), ServiceError> {
    let ended = sandbox.pidfd().try_clone_to_owned().map_err(io_error("browserd's process"))?;
    let wait = move || {
        let mut watched = [PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        while !matches!(poll(&mut watched, PollTimeout::NONE), Ok(count) if count > 0) {}
        eprintln!("supervisor: browserd ended");
        std::process::exit(BROWSER_ENDED);
    };
    std::thread::Builder::new().name("browserd".into()).spawn(wait).map(drop).map_err(io_error("a thread"))
}

/// A socket for root and, if there is one, hostd's group.
fn listen(path: &Path, group: Option<u32>) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    // The folder around it is root's alone, so nobody connects before this is done.
    std::fs::set_permissions(path, Permissions::from_mode(0o660))?;
    chown(path, None, group)?;
    Ok(listener)
}
