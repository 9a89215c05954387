//! The drop-in: behaves like the browser itself.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::blueprint::Debugging;
use crate::bridge;
use crate::chromium::{Chromium, Flavor};
use crate::client;
use crate::config::{Config, OnMissing};
use crate::flags::{Flags, Strictness};
use crate::launch::{Browser, LaunchError, Launcher, Output};
use crate::say;

/// How long a browser may take to end after SIGTERM. Clients wait at least 5 s before they kill.
const GRACE: Duration = Duration::from_secs(4);
/// How long the launcher may take to pass on the last output after a signal.
const OUTPUT_PATIENCE: Duration = Duration::from_millis(500);

/// Runs the browser until it ends, a signal arrives or the client has ended; returns its exit code.
///
/// `client` is the caller's debugging pipe, if any.
pub fn run(
    config: Config,
    arguments: &[String],
    strictness: Strictness,
    client: Option<(OwnedFd, OwnedFd)>,
) -> Result<u8, LaunchError> {
    let flags = Flags::parse(arguments, strictness)?;
    if !config.enabled {
        say("enabled = false: the browser runs WITHOUT this sandbox");
        return Err(run_bare(&config, flags, client.as_ref()));
    }
    let wants_pipe = flags.has("remote-debugging-pipe");
    if wants_pipe && client.is_none() {
        return Err(LaunchError::Argument(
            "--remote-debugging-pipe needs the open descriptors 3 and 4".into(),
        ));
    }
    let launcher = Launcher::new(config.clone()).flags(flags.clone())?.output(Output::PassOn).stage_files();
    // Handlers are installed first: signals that arrive during the start are handled after it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|source| LaunchError::Io { what: "the signal loop".into(), source })?;
    let mut ends = {
        let _guard = runtime.enter();
        EndSignals::new()?
    };
    let parent =
        client::watch().map_err(|source| LaunchError::Io { what: "watching the client".into(), source })?;
    let mut browser = match launcher.launch() {
        Err(error) if error.missing_layer().is_some() && config.on_missing == OnMissing::Warn => {
            say(&crate::error_chain(&error));
            say("on_missing = \"warn\": the browser runs WITHOUT this sandbox");
            return Err(run_bare(&config, flags, client.as_ref()));
        }
        other => other?,
    };
    browser.notices().iter().for_each(|notice| say(notice));
    for (layer, state) in browser.layers() {
        if let sandbox::LayerState::Missing(reason) = state {
            say(&format!("layer {layer} is missing: {reason}"));
        }
    }
    let io = |source| LaunchError::Io { what: "the browser".into(), source };
    let (status, patience) = match begin(&mut browser, client.filter(|_| wants_pipe))? {
        Some(status) => (status, Duration::MAX),
        None if runtime.block_on(ends.wait(&browser, parent)).map_err(io)? => {
            (browser.stop(GRACE).map_err(io)?, OUTPUT_PATIENCE)
        }
        None => (browser.wait().map_err(io)?, Duration::MAX),
    };
    if let Some(rewriter) = browser.rewriter() {
        rewriter.downloads().move_and_report();
    }
    runtime.block_on(finish_output(&mut browser, &mut ends, patience));
    Ok(exit_code(status))
}

/// Waits until everything that the browser wrote was passed on. Nobody may be reading, so a signal ends the wait.
async fn finish_output(browser: &mut Browser, ends: &mut EndSignals, patience: Duration) {
    if let Some(passed_on) = browser.take_passed_on() {
        tokio::select! {
            _ = passed_on => {}
            () = ends.signal() => {}
            () = tokio::time::sleep(patience) => {}
        }
    }
    browser.wait_for_log();
}

/// Connects the caller to the verified browser. Returns a status if a headless command has already ended.
fn begin(
    browser: &mut Browser,
    client: Option<(OwnedFd, OwnedFd)>,
) -> Result<Option<ExitStatus>, LaunchError> {
    match (browser.blueprint().debugging, client) {
        (Debugging::Command, _) => return browser.prove_while_running(),
        (Debugging::Port(_), _) => announce(browser)?,
        (Debugging::Pipe, Some((input, output))) => {
            let rewriter = browser.rewriter().expect("it was asked for");
            let pipe = browser.take_cdp().expect("a new browser has its pipe");
            bridge::start(input, output, pipe, rewriter)
                .map_err(|source| LaunchError::Io { what: "the debugging pipe".into(), source })?;
        }
        // No client, for example a user with a window. The pipe stays open, because closing it ends the browser.
        (Debugging::Pipe, None) => {}
    }
    Ok(None)
}

/// Announces the port in the two ways that Chromium itself uses.
fn announce(browser: &Browser) -> Result<(), LaunchError> {
    let endpoint = browser.endpoint().expect("a port was asked for");
    if let Some(profile) = &browser.blueprint().profile {
        write_active_port(profile, endpoint)?;
    }
    // One write, because clients search for the complete line.
    let _ = std::io::stderr().write_all(format!("\nDevTools listening on {endpoint}\n").as_bytes());
    Ok(())
}

/// Writes `DevToolsActivePort`: the port, and the path of the browser's own target. The browser can write to the folder,
/// so the file is created under a new name and renamed: a planted link is replaced, not followed.
fn write_active_port(profile: &Path, endpoint: &str) -> Result<(), LaunchError> {
    let file_path = profile.join("DevToolsActivePort");
    let io = |source| LaunchError::Io { what: file_path.display().to_string(), source };
    let address = endpoint.strip_prefix("ws://").and_then(|rest| rest.split_once('/'));
    let Some((port, path)) = address.and_then(|(host, path)| Some((host.rsplit_once(':')?.1, path))) else {
        return Err(LaunchError::Browser {
            problem: format!("it announced {endpoint}, which is not an address"),
            log: String::new(),
        });
    };
    let mut file = tempfile::NamedTempFile::new_in(profile).map_err(io)?;
    write!(file, "{port}\n/{path}").map_err(io)?;
    file.persist(&file_path).map(drop).map_err(|error| io(error.error))
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The signals that end a run.
struct EndSignals {
    signals: [tokio::signal::unix::Signal; 3],
}

impl EndSignals {
    fn new() -> Result<EndSignals, LaunchError> {
        let listen =
            |kind| signal(kind).map_err(|source| LaunchError::Io { what: "a signal handler".into(), source });
        Ok(EndSignals {
            signals: [
                listen(SignalKind::terminate())?,
                listen(SignalKind::interrupt())?,
                listen(SignalKind::hangup())?,
            ],
        })
    }

    /// `true` after a signal or the end of the client, `false` if the browser ended by itself.
    async fn wait(&mut self, browser: &Browser, client: Option<OwnedFd>) -> std::io::Result<bool> {
        let ended = when_ended(browser.pidfd().try_clone()?)?;
        let client = client.map(when_ended).transpose()?;
        let client_ended = async {
            match client {
                Some(ended) => drop(ended.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = ended => Ok(false),
            () = self.signal() => Ok(true),
            () = client_ended => Ok(true),
        }
    }

    async fn signal(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.signals;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Completes when a process has ended.
fn when_ended(pidfd: OwnedFd) -> std::io::Result<oneshot::Receiver<()>> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("process-end".into()).stack_size(64 * 1024);
    thread.spawn(move || {
        while let Err(nix::errno::Errno::EINTR) =
            poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)
        {}
        // Fails if a signal came first and the receiver is dropped.
        let _ = sender.send(());
    })?;
    Ok(receiver)
}

/// Replaces this process with the browser, without this sandbox. Switches are still filtered, because Chromium's own
/// sandbox is then the only one. Returns only on failure.
fn run_bare(config: &Config, flags: Flags, client: Option<&(OwnedFd, OwnedFd)>) -> LaunchError {
    let chromium = match Chromium::find(config.browser.as_deref(), Flavor::Full) {
        Ok(chromium) => chromium,
        Err(error) => return error.into(),
    };
    for end in client.iter().flat_map(|(input, output)| [input, output]) {
        // The client's pipe already has the numbers that Chromium expects; it only must survive exec.
        if let Err(errno) = fcntl(end, FcntlArg::F_SETFD(FdFlag::empty())) {
            return LaunchError::Io { what: "the debugging pipe".into(), source: errno.into() };
        }
    }
    let source = Command::new(&chromium.executable).args(flags.to_arguments()).exec();
    LaunchError::Io { what: chromium.executable.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_port_file_replaces_a_planted_link() {
        let profile = tempfile::tempdir().expect("folder");
        let victim = tempfile::NamedTempFile::new().expect("file");
        std::os::unix::fs::symlink(victim.path(), profile.path().join("DevToolsActivePort")).expect("link");
        write_active_port(profile.path(), "ws://127.0.0.1:4567/devtools/browser/abc").expect("written");
        let text = std::fs::read_to_string(profile.path().join("DevToolsActivePort")).expect("read");
        assert_eq!(text, "4567\n/devtools/browser/abc");
        assert_eq!(victim.path().metadata().expect("meta").len(), 0);
        assert!(write_active_port(profile.path(), "nonsense").is_err());
    }

    #[test]
    fn a_signal_gives_exit_code_128_plus_its_number() {
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
    }
}
