//! The supervisor: the process that is a clone's jail.
//!
//! It is the daemon's own program, started once per clone in a session of its own, so that hostd can be killed, updated and
//! restarted while its clones run. It holds the lock that identifies it, starts the service when told to, reports by its lock
//! that the service is ready, and ends with the service, or at the clone's deadline. When it ends, for whatever reason, everything inside ends: the
//! sandbox's first process notices and kills the rest.
//!
//! Whatever a clone writes reaches the host only through pipes that the supervisor reads (see [`output`]).

mod browserd;
mod output;
mod relay;
mod service;

pub(super) use output::{last_lines, printable};

use super::jail::{self, deadline::DeadlineTimer, lock::SupervisorLock};
use crate::api::{CloneId, CloneSecret, Limits};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use output::OutputLog;
use serde::{Deserialize, Serialize};
use service::CloneService;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a caller, who can only be hostd, may take to send its request and to read the reply.
const CALLER_TIMEOUT: Duration = Duration::from_secs(5);
/// A pause after an error, so that one that repeats does not keep a processor busy.
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// The exit code of a supervisor whose clone's deadline passed.
const DEADLINE_PASSED: i32 = 4;
/// A request is shorter than this.
const LONGEST_REQUEST: u64 = 4 << 10;

/// The name of browserd's process: the file name by which it is started, wherever its program is on the host.
pub(super) const BROWSERD: &str = "browserd";

/// Above that of ordinary processes (0), below that which Chromium gives its renderers (300).
const OOM_SCORE: &str = "200";

/// What a supervisor is to run, in the file that it locks. Unknown fields are ignored, so that hostd understands the files of
/// supervisors that another version started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) clone_id: CloneId,
    pub(super) name: String,
    /// The user that the clone's processes are on the host.
    pub(super) uid: u32,
    /// The clone's files.
    pub(super) folder: PathBuf,
    /// The clone's network namespace.
    pub(super) network: PathBuf,
    /// The clone's cgroup, if there are cgroups.
    pub(super) cgroup: Option<PathBuf>,
    pub(super) limits: Limits,
    /// The clones' mounts are isolated: standard input is the namespace for [`super::mount_isolation::enter`].
    // Written under its first name: an earlier version reads the orders of this one's supervisors after a downgrade.
    #[serde(default, rename = "apart", alias = "isolated_mounts")]
    pub(super) isolated_mounts: bool,
    /// Whether the browser loads a page of its own first.
    // Not in the orders of supervisors that an earlier version started; they go on after an update.
    #[serde(default)]
    pub(super) warm_up: bool,
    /// The browser's executable.
    pub(super) browser: PathBuf,
    /// browserd's executable and the address it listens on, if there is one.
    pub(super) browserd: Option<(PathBuf, std::net::SocketAddr)>,
    /// The resolver that the clone may ask.
    pub(super) resolver: Option<std::net::IpAddr>,
}

/// A request of hostd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum SupervisorRequest {
    /// Start the service and reply when it is ready.
    Start {
        clone_id: CloneId,
        /// What browserd requires of callers. Not in the orders: it is on disk only in the record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<CloneSecret>,
    },
    /// Report the state of the service.
    Status,
}

/// The supervisor's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "service", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum SupervisorReply {
    /// The service was not started yet.
    Idle,
    /// The service is ready at this endpoint. `took` has the duration of each part of its start.
    Ready {
        endpoint: String,
        // Supervisors that an earlier version started do not send the rest.
        #[serde(default)]
        cdp_endpoint: Option<String>,
        #[serde(default)]
        took: Vec<(String, f64)>,
    },
    /// The service does not run, for this reason.
    Failed { message: String, not_ready: bool },
}

/// Run as a supervisor, if these are the arguments of one.
pub(super) fn main(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != *jail::SUPERVISE {
        return None;
    }
    let run = PathBuf::from(arguments.next()?);
    Some(match supervise(&run) {
        Ok(never) => match never {},
        Err(error) => {
            // Until the ready line hostd reads the standard error.
            eprintln!("supervisor: {}: {error}", run.display());
            ExitCode::FAILURE
        }
    })
}

fn supervise(run: &Path) -> io::Result<std::convert::Infallible> {
    // A session of its own: no signal to hostd's group or terminal reaches the clones.
    nix::unistd::setsid()?;
    let file = OpenOptions::new().read(true).write(true).open(run.join(jail::JAIL))?;
    let lock = SupervisorLock::take(file)?;
    let orders = jail::orders(lock.file())?;
    if let Some(cgroup) = &orders.cgroup {
        // Before anything else runs: everything started from here on is under the limits.
        std::fs::write(cgroup.join("cgroup.procs"), "0")?;
    }
    // When the whole host is out of memory the kernel ends clones first, and never what hostd's unit protects.
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE)?;
    let deadline = DeadlineTimer::start(run)?;
    let log = Arc::new(OutputLog::create(&run.join(jail::LOG))?);
    let listener = UnixListener::bind(run.join(jail::CONTROL))?;
    report_up()?;
    let log_of_panics = log.clone();
    std::panic::set_hook(Box::new(move |panic| log_of_panics.note(panic)));
    let supervisor = Supervisor { run: run.to_owned(), orders, lock, log, service: Mutex::new(None) };
    Arc::new(supervisor).serve(&listener, &deadline)
}

/// Tell hostd that the lock is held and the socket exists, and close the pipes to hostd, which may end at any time.
fn report_up() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(jail::UP)?;
    out.flush()?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(nix::unistd::dup2_stderr(&null)?)
}

struct Supervisor {
    run: PathBuf,
    orders: Orders,
    lock: SupervisorLock,
    log: Arc<OutputLog>,
    /// Started once. Locked while it starts, so that nobody is told of it before it is ready.
    service: Mutex<Option<Result<CloneService, (String, bool)>>>,
}

impl Supervisor {
    fn serve(self: Arc<Supervisor>, listener: &UnixListener, deadline: &DeadlineTimer) -> ! {
        loop {
            self.wait_for_caller(listener, deadline);
            let answered = listener.accept().and_then(|(stream, _)| self.answer(stream));
            if let Err(error) = answered {
                // The caller tries again.
                self.log.note(format_args!("a caller: {error}"));
                std::thread::sleep(ERROR_PAUSE);
            }
        }
    }

    /// Wait until somebody connects. Ends this process, and with it everything inside, when the clone's deadline has passed.
    fn wait_for_caller(&self, listener: &UnixListener, deadline: &DeadlineTimer) {
        let readable = |file: &PollFd<'_>| file.any().unwrap_or_default();
        loop {
            let mut watched =
                [listener.as_fd(), deadline.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            if let Err(error) = poll(&mut watched, PollTimeout::NONE) {
                // A signal, or no memory: the next call shows both.
                self.log.note(format_args!("poll: {error}"));
                std::thread::sleep(ERROR_PAUSE);
                continue;
            }
            if readable(&watched[1]) && deadline.has_passed(crate::platform::monotonic()) {
                self.log.close("its deadline has passed");
                std::process::exit(DEADLINE_PASSED);
            }
            if readable(&watched[0]) {
                return;
            }
        }
    }

    /// Answer one caller. Only the start of the service takes long, so only that has a thread of its own: a supervisor must
    /// report its status also when the clone is at its limit of processes, which counts threads.
    fn answer(self: &Arc<Supervisor>, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(CALLER_TIMEOUT))?;
        stream.set_write_timeout(Some(CALLER_TIMEOUT))?;
        let mut line = Vec::new();
        BufReader::new((&stream).take(LONGEST_REQUEST)).read_until(b'\n', &mut line)?;
        match serde_json::from_slice(&line)? {
            SupervisorRequest::Status => reply(&stream, &self.status()),
            SupervisorRequest::Start { clone_id, .. } if clone_id != self.orders.clone_id => {
                let message = format!("this is the jail of {}", self.orders.clone_id);
                reply(&stream, &SupervisorReply::Failed { message, not_ready: false })
            }
            SupervisorRequest::Start { secret, .. } => {
                let supervisor = self.clone();
                let start = move || {
                    if let Err(error) = reply(&stream, &supervisor.start(secret.as_ref())) {
                        supervisor.log.note(format_args!("a caller: {error}"));
                    }
                };
                std::thread::Builder::new().name("start".into()).spawn(start).map(drop)
            }
        }
    }

    fn start(&self, secret: Option<&CloneSecret>) -> SupervisorReply {
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        let started = service.get_or_insert_with(|| {
            let failed = |error: service::ServiceError| {
                // The log is removed with the clone, so its end is part of the error. Both have lines of the browser.
                let error_text = launcher::error_chain(&error).replace('\n', " | ");
                let message = format!("{}; recent output: {}", printable(&error_text), self.log.recent());
                (message, error.not_ready())
            };
            CloneService::start(&self.orders, &self.run, &self.log, secret).map_err(failed)
        });
        let reply = state(Some(started));
        self.report_ready(&reply);
        reply
    }

    /// The state of the service now, which is also reported by the lock.
    fn status(&self) -> SupervisorReply {
        // A service that is being started is not ready.
        let Ok(mut service) = self.service.try_lock() else { return SupervisorReply::Idle };
        let answers = match &mut *service {
            Some(Ok(running)) => running.is_alive(),
            _ => true,
        };
        let reply = match answers {
            true => state(service.as_ref()),
            false => SupervisorReply::Failed {
                message: "the browser does not answer".to_owned(),
                not_ready: false,
            },
        };
        self.report_ready(&reply);
        reply
    }

    fn report_ready(&self, reply: &SupervisorReply) {
        if let Err(error) = self.lock.set_ready(matches!(reply, SupervisorReply::Ready { .. })) {
            self.log.note(format_args!("the lock of the jail file: {error}"));
        }
    }
}

fn reply(mut stream: &UnixStream, reply: &SupervisorReply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn state(service: Option<&Result<CloneService, (String, bool)>>) -> SupervisorReply {
    match service {
        None => SupervisorReply::Idle,
        Some(Ok(service)) => service.ready(),
        Some(Err((message, not_ready))) => {
            SupervisorReply::Failed { message: message.clone(), not_ready: *not_ready }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_replies_of_an_earlier_version_are_understood() {
        let orders = r#"{"clone_id":"0123456789abcdef0123456789abcdef","name":"browsertask001","uid":61001,"folder":"/c",
            "network":"/n","cgroup":null,"limits":{},"browser":"/b","browserd":null,"resolver":null,"group":7}"#;
        assert!(!serde_json::from_str::<Orders>(orders).unwrap().warm_up);
        let reply: SupervisorReply =
            serde_json::from_str(r#"{"service":"ready","endpoint":"http://10.0.0.1:8080"}"#).unwrap();
        assert!(matches!(reply, SupervisorReply::Ready { cdp_endpoint: None, took, .. } if took.is_empty()));
        assert_eq!(serde_json::to_string(&SupervisorRequest::Status).unwrap(), r#"{"ask":"status"}"#);
    }
}
