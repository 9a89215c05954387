//! Starts a browser: `Launcher` and `Browser`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;
use sandbox::{Launch, Layer, LayerState, LimitEnforcer, Network, Sandbox, Stdio};
use serde::Serialize;
use serde_json::json;
use tokio::sync::oneshot;

use crate::blueprint::{Blueprint, Debugging, LaunchRequest};
use crate::cdp::{CdpError, Connection};
use crate::chromium::{Chromium, DiscoveryError, Flavor};
use crate::config::{Config, NetworkMode};
use crate::downloads::{self, Downloads};
use crate::egress::{EgressRules, HostNetwork, Proxy};
use crate::flags::{FlagError, Flags, Strictness};
use crate::folders::FolderError;
use crate::log::{Log, port_of};
use crate::messages::Rewriter;
use crate::output;
use crate::ready::{Observer, RendererProof, RendererState};
use crate::relay::Relay;
use crate::services::Services;
use crate::uploads::Uploads;

/// How long a browser may take to respond, even on a busy machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(180);
const RENDERER_LIMIT: Duration = Duration::from_secs(120);

/// Why a browser could not be started. Everything that was started has ended when this is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("{0}")]
    Argument(String),
    #[error("no display: {0}")]
    Display(String),
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    #[error("the debugging port {port} cannot be opened on 127.0.0.1")]
    Port { port: u16, source: std::io::Error },
    #[error("the browser did not start: {problem}{}", log_excerpt(.log))]
    Browser { problem: String, log: String },
    #[error("Chromium's own sandbox is not active: {seen}; the browser was killed{}", log_excerpt(.log))]
    InnerSandbox { seen: String, log: String },
    #[error("{what}")]
    Io { what: String, source: std::io::Error },
}

impl LaunchError {
    /// The layer of the sandbox that this machine lacks, if that is the cause.
    pub fn missing_layer(&self) -> Option<Layer> {
        match self {
            LaunchError::Sandbox(error) => error.missing_layer(),
            _ => None,
        }
    }

    /// The exit code of the command line: 2 wrong use, 7 the host is not ready, 1 anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::Flag(_)
            | LaunchError::Argument(_)
            | LaunchError::Folder(FolderError::Refused { .. }) => 2,
            LaunchError::Discovery(_) | LaunchError::Display(_) => 7,
            error if error.missing_layer().is_some() => 7,
            _ => 1,
        }
    }
}

fn log_excerpt(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\nThe end of its log:\n{log}") }
}

fn io_error(what: &str) -> impl FnOnce(std::io::Error) -> LaunchError {
    move |source| LaunchError::Io { what: what.to_owned(), source }
}

/// The destination of the browser's standard output and standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Discarded, except for the end of the error log, which is kept for messages.
    #[default]
    Discard,
    /// Passed on to the launcher's own. The browser itself gets pipes, never a descriptor of the launcher.
    PassOn,
}

/// A browser to be started.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use launcher::{Config, Launcher};
/// use std::time::Duration;
///
/// let mut browser = Launcher::new(Config::load()?).arguments(["--headless"])?.launch()?;
/// println!("{} with {:?}", browser.version(), browser.layers());
/// let targets = browser.cdp().call("Target.getTargets", serde_json::json!({}), Duration::from_secs(5))?;
/// # drop(targets);
/// browser.stop(Duration::from_secs(5))?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Launcher {
    config: Config,
    request: LaunchRequest,
    output: Output,
    network_namespace: Option<OwnedFd>,
    cgroup_parent: Option<PathBuf>,
}

impl Launcher {
    pub fn new(config: Config) -> Self {
        Launcher {
            config,
            request: LaunchRequest::default(),
            output: Output::Discard,
            network_namespace: None,
            cgroup_parent: None,
        }
    }

    /// The switches and addresses for the browser. Refused switches are errors.
    pub fn arguments<S: AsRef<str>>(
        self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Self, LaunchError> {
        let arguments: Vec<S> = arguments.into_iter().collect();
        self.flags(Flags::parse(&arguments, Strictness::Refuse)?)
    }

    /// Arguments that were filtered already.
    pub(crate) fn flags(mut self, mut flags: Flags) -> Result<Self, LaunchError> {
        self.request.debugging = Debugging::take_from(&mut flags)?;
        self.request.flags = flags;
        Ok(self)
    }

    /// The preferred build; the full browser by default.
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.request.flavor = Some(flavor);
        self
    }

    /// The folder of the profile. Without one the profile is in memory and lost when the browser ends.
    pub fn profile(mut self, folder: impl Into<PathBuf>) -> Self {
        self.request.profile = Some(folder.into());
        self
    }

    /// The uid of the browser outside, for launchers that run as root. By default a free private uid.
    pub fn host_uid(mut self, uid: u32) -> Self {
        self.request.host_uid = Some(uid);
        self
    }

    /// A network namespace that the caller prepared and filters. Overrides the configured mode.
    pub fn network_namespace(mut self, namespace: OwnedFd) -> Self {
        self.network_namespace = Some(namespace);
        self.request.filtered = true;
        self
    }

    /// The DNS resolver in that namespace. Without one the browser resolves no names.
    pub fn resolver(mut self, address: std::net::IpAddr) -> Self {
        self.request.resolver = Some(address);
        self
    }

    /// Maximum number of open files of one browser process.
    pub fn open_files(mut self, most: u64) -> Self {
        self.request.open_files = Some(most);
        self
    }

    /// A delegated cgroup v2 folder for the limits.
    pub fn cgroup_parent(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cgroup_parent = Some(folder.into());
        self
    }

    /// The destination of the browser's output.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    pub(crate) fn stage_files(mut self) -> Self {
        self.request.stage_files = self.request.debugging != Debugging::Command;
        self
    }

    /// Lists what the browser will see and may do, with the exact arguments. Starts nothing.
    pub fn explain(mut self) -> Result<String, LaunchError> {
        self.request.only_explain = true;
        let allow = self.config.allow.clone();
        let blueprint = Blueprint::new(&self.config, self.request)?;
        let mut text = format!("Browser: {}\n", blueprint.chromium.executable.display());
        for notice in &blueprint.notices {
            text.push_str(&format!("Note: {notice}\n"));
        }
        if let Network::Proxy { port } = blueprint.policy.network {
            text.push_str(&format!("Egress: an HTTP proxy on port {port} inside; public addresses only"));
            for allowed in &allow {
                text.push_str(&format!(", and {allowed}"));
            }
            text.push('\n');
        }
        text.push_str(&format!("Arguments: {}\n\n", blueprint.program.arguments.join(" ")));
        text.push_str(&blueprint.plan()?.explain());
        Ok(text)
    }

    /// Starts the browser. Ok means that it responds and that a renderer was observed in Chromium's own sandbox.
    pub fn launch(mut self) -> Result<Browser, LaunchError> {
        let started = Instant::now();
        let relay = self.open_relay()?;
        let rules =
            EgressRules::new(self.config.allow.clone()).without_port(relay.as_ref().map(|relay| relay.port));
        let debugging = self.request.debugging;
        let blueprint = Blueprint::new(&self.config, self.request)?;
        let plan = blueprint.plan()?;
        let rewriter = rewriter(&self.config, &blueprint)?;

        let pipe =
            || pipe2(OFlag::O_CLOEXEC).map_err(|errno| io_error("a pipe to the browser")(errno.into()));
        let ((browser_in, to_browser), (from_browser, browser_out), (log_in, log_out)) =
            (pipe()?, pipe()?, pipe()?);
        let mut launch = Launch::new(plan).stderr(Stdio::Descriptor(log_out));
        let mut passed_on = None;
        if self.output == Output::PassOn {
            let (output_in, output_out) = pipe()?;
            launch = launch.stdout(Stdio::Descriptor(output_out));
            passed_on = Some(output::pass_on(output_in).map_err(io_error("the output thread"))?);
        }
        if debugging != Debugging::Command {
            launch = launch.descriptor(3, browser_in).descriptor(4, browser_out);
        }
        if let Some(path) = &self.config.bwrap_path {
            launch = launch.bubblewrap(path);
        }
        for (path, point) in &blueprint.shown.0 {
            launch = launch.show_at(path, point);
        }
        if let Some(namespace) = self.network_namespace {
            launch = launch.network_namespace(namespace);
        }
        if let Some(folder) = self.cgroup_parent {
            launch = launch.cgroup_parent(folder);
        }
        let log = Log::follow(log_in, self.output == Output::PassOn).map_err(io_error("the log thread"))?;
        let spawned = Instant::now();
        let mut sandbox = launch.spawn()?;
        let confined = spawned.elapsed();

        let proxy = Proxy { rules, network: HostNetwork, upstream: blueprint.upstream.clone() };
        let egress = sandbox.take_proxy_listener().map(|listener| (listener, proxy));
        let pidfd = sandbox.pidfd().try_clone_to_owned().map_err(io_error("the browser's pidfd"))?;
        let pid = sandbox.program_pid();
        let sandbox = Arc::new(Mutex::new(sandbox));
        let services = Services::start(egress).map_err(io_error("the service thread"))?;
        let mut browser = Browser {
            sandbox,
            pidfd,
            pid,
            cdp: None,
            version: String::new(),
            renderer: None,
            endpoint: None,
            timings: Timings {
                prepare: spawned - started,
                confine: confined,
                answer: Duration::ZERO,
                verify: Duration::ZERO,
            },
            log,
            passed_on,
            blueprint,
            rewriter,
            services,
        };
        if debugging == Debugging::Command {
            return Ok(browser);
        }
        browser.cdp = Some(Connection::new(from_browser, to_browser));
        browser.prove(started)?;
        if let Some(relay) = relay {
            let (sandbox, rewriter) = (Arc::clone(&browser.sandbox), browser.rewriter.clone());
            browser.services.relay(relay, sandbox, rewriter).map_err(io_error("the debugging port"))?;
        }
        Ok(browser)
    }

    /// Port clients connect outside; the browser listens inside. Both use the same port, so that addresses in the
    /// browser's responses are valid outside too.
    fn open_relay(&mut self) -> Result<Option<Relay>, LaunchError> {
        let Debugging::Port(wanted) = self.request.debugging else {
            return Ok(None);
        };
        if self.config.network == NetworkMode::Host && !self.request.filtered {
            return Ok(None);
        }
        let failed = |source| LaunchError::Port { port: wanted, source };
        let relay = Relay::reserve(wanted).map_err(failed)?;
        self.request.debugging = Debugging::Port(relay.port);
        Ok(Some(relay))
    }
}

/// Rewrites messages that name files of the host.
fn rewriter(config: &Config, blueprint: &Blueprint) -> Result<Option<Arc<Rewriter>>, LaunchError> {
    let Some(staging) = &blueprint.staging else {
        return Ok(None);
    };
    let (shared, profile) = (&blueprint.shared, &blueprint.profile);
    let failed = || io_error("the staging folder");
    let owner = blueprint.policy.identity.host_uid;
    let downloads =
        Downloads::new(&staging.downloads, shared.clone(), profile.clone(), owner).map_err(failed())?;
    let readable = config.extra_ro_bind.clone();
    let uploads = Uploads::new(staging.uploads.clone(), shared.clone(), readable, profile.clone());
    let one_proxy = matches!(blueprint.policy.network, Network::Proxy { .. });
    let rewriter = Arc::new(Rewriter::new(downloads, uploads, one_proxy));
    downloads::follow(Arc::clone(&rewriter)).map_err(io_error("the download thread"))?;
    Ok(Some(rewriter))
}

/// The duration of each phase of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timings {
    /// Finding the browser, checking folders, planning.
    pub prepare: Duration,
    /// From there to the execution of the browser.
    pub confine: Duration,
    /// From the beginning to the browser's first response.
    pub answer: Duration,
    /// From the beginning to the proof that a renderer is confined.
    pub verify: Duration,
}

/// A confined browser. Dropping it kills the browser.
#[derive(Debug)]
pub struct Browser {
    sandbox: Arc<Mutex<Sandbox>>,
    pidfd: OwnedFd,
    pid: u32,
    cdp: Option<Connection>,
    version: String,
    renderer: Option<RendererProof>,
    endpoint: Option<String>,
    timings: Timings,
    log: Log,
    /// Completes when the whole standard output was passed on.
    passed_on: Option<oneshot::Receiver<()>>,
    blueprint: Blueprint,
    /// Rewrites messages that name files of the host, if the launcher was asked to.
    rewriter: Option<Arc<Rewriter>>,
    services: Services,
}

impl Browser {
    /// Waits for the browser's response and for a renderer in Chromium's own sandbox.
    fn prove(&mut self, started: Instant) -> Result<(), LaunchError> {
        let version = self
            .cdp()
            .call("Browser.getVersion", json!({}), ANSWER_LIMIT)
            .map_err(|error| self.failed(&error))?;
        self.timings.answer = started.elapsed();
        self.version = version["product"].as_str().unwrap_or_default().to_owned();
        self.renderer = Some(self.prove_renderer()?);
        if let Debugging::Port(wanted) = self.blueprint.debugging {
            let announced = self.log.announced(ANSWER_LIMIT);
            let is_wanted = |address: &String| wanted == 0 || port_of(address) == Some(wanted);
            let problem = || LaunchError::Browser {
                problem: "it did not open its debugging port".into(),
                log: self.log.tail(),
            };
            self.endpoint = Some(announced.filter(is_wanted).ok_or_else(problem)?);
        }
        self.timings.verify = started.elapsed();
        Ok(())
    }

    fn prove_renderer(&mut self) -> Result<RendererProof, LaunchError> {
        let observer = Observer::new(self.pid).map_err(io_error("inspecting the browser process"))?;
        if let RendererState::Confined(proof) = observer.inspect() {
            return Ok(proof);
        }
        let limit = RENDERER_LIMIT;
        let targets =
            self.cdp().call("Target.getTargets", json!({}), limit).map_err(|error| self.failed(&error))?;
        let has_page = targets["targetInfos"]
            .as_array()
            .is_some_and(|list| list.iter().any(|target| target["type"] == "page"));
        // A browser without a page has no renderer, so a blank page is opened temporarily.
        let blank = match has_page {
            true => None,
            false => {
                let created = self.cdp().call("Target.createTarget", json!({ "url": "about:blank" }), limit);
                Some(created.map_err(|error| self.failed(&error))?["targetId"].clone())
            }
        };
        let proof = observer.wait(limit);
        if let Some(id) = blank {
            self.cdp()
                .call("Target.closeTarget", json!({ "targetId": id }), limit)
                .map_err(|error| self.failed(&error))?;
        }
        proof.map_err(|seen| LaunchError::InnerSandbox { seen, log: self.log.tail() })
    }

    /// The error for a browser that was executed but does not respond.
    fn failed(&self, error: &CdpError) -> LaunchError {
        let log = self.log.tail();
        match log.contains("No usable sandbox") {
            true => LaunchError::InnerSandbox { seen: "it found no usable sandbox".into(), log },
            false => LaunchError::Browser { problem: error.with_causes(), log },
        }
    }

    fn sandbox(&self) -> MutexGuard<'_, Sandbox> {
        self.sandbox.lock().expect("no holder of the lock panics")
    }

    /// The debugging pipe. Panics after `take_cdp` and for a headless command, which has none.
    pub fn cdp(&mut self) -> &mut Connection {
        self.cdp.as_mut().expect("the pipe was taken, or there is none")
    }

    /// Takes the debugging pipe. The browser ends when the writing end is closed.
    pub fn take_cdp(&mut self) -> Option<Connection> {
        self.cdp.take()
    }

    /// Product and version as reported by the browser.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The executable.
    pub fn chromium(&self) -> &Chromium {
        &self.blueprint.chromium
    }

    /// Every layer of the sandbox and its state.
    pub fn layers(&self) -> Vec<(Layer, LayerState)> {
        self.sandbox().layers().to_vec()
    }

    /// What enforces the limits.
    pub fn limits(&self) -> LimitEnforcer {
        self.sandbox().limits().clone()
    }

    /// The renderer that proved Chromium's own sandbox; `None` for a headless command.
    pub fn renderer(&self) -> Option<&RendererProof> {
        self.renderer.as_ref()
    }

    /// The address for port clients.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// Notices for the user.
    pub fn notices(&self) -> &[String] {
        &self.blueprint.notices
    }

    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// The browser's process id on the host.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The guard process: a child of this process that ends after the whole sandbox.
    pub fn guard_pid(&self) -> u32 {
        self.sandbox().guard_pid()
    }

    /// The duration of each phase of the sandbox's own start.
    pub fn sandbox_timings(&self) -> sandbox::Timings {
        self.sandbox().timings()
    }

    /// The end of the browser's error output.
    pub fn log_tail(&self) -> String {
        self.log.tail()
    }

    /// Waits until the error output of a browser that has ended was read, but only for a moment.
    pub(crate) fn wait_for_log(&self) {
        drop(self.log.settled());
    }

    /// Completes when the whole standard output was passed on; `None` if it is discarded or was taken before.
    pub(crate) fn take_passed_on(&mut self) -> Option<oneshot::Receiver<()>> {
        self.passed_on.take()
    }

    pub(crate) fn rewriter(&self) -> Option<Arc<Rewriter>> {
        self.rewriter.clone()
    }

    pub(crate) fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Readable once the browser and everything it started have ended.
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Waits for the end of the browser.
    pub fn wait(&mut self) -> std::io::Result<ExitStatus> {
        loop {
            let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ended, PollTimeout::NONE) {
                Ok(_) => return self.sandbox().wait(),
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The exit status, if the browser has ended.
    pub fn try_wait(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.sandbox().try_wait()
    }

    /// Asks the browser to end, waits for `grace`, then kills it and everything it started.
    pub fn stop(&mut self, grace: Duration) -> std::io::Result<ExitStatus> {
        self.sandbox().stop(grace)
    }

    /// For headless commands: inspects the renderers while the command runs, and fails if none becomes confined.
    pub(crate) fn prove_while_running(&mut self) -> Result<Option<ExitStatus>, LaunchError> {
        let observer = Observer::new(self.pid);
        let deadline = Instant::now() + RENDERER_LIMIT;
        loop {
            if let Some(status) = self.try_wait().map_err(io_error("the browser"))? {
                return Ok(Some(status));
            }
            let seen = match observer.as_ref().map(Observer::inspect) {
                Ok(RendererState::Confined(proof)) => {
                    self.renderer = Some(proof);
                    return Ok(None);
                }
                Ok(RendererState::NotConfined(seen)) => seen,
                // The browser had already ended when the observer was created.
                Err(error) => error.to_string(),
            };
            if Instant::now() >= deadline {
                return Err(LaunchError::InnerSandbox { seen, log: self.log.tail() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Browser {
    /// Kills the sandbox immediately; other threads may still hold a reference to it.
    fn drop(&mut self) {
        if let Ok(mut sandbox) = self.sandbox.lock() {
            // An error means that it has already ended.
            let _ = sandbox.kill();
        }
    }
}
