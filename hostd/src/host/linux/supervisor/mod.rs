//! The supervisor: the process that is a clone's jail.
//!
//! It is the daemon's own program, started once per clone in a session of its own, so that hostd can be killed, updated
//! and started again while its clones go on. It holds the lock that says who it is, starts the service when told to, and
//! ends with it. Ending it, by whatever signal, ends everything inside: the sandbox's first process sees the line to its
//! launcher break and kills the rest.

mod browserd;
mod relay;
mod service;

use super::jail;
use crate::api::{CloneId, Limits};
use serde::{Deserialize, Serialize};
use service::Service;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a caller, who is hostd and nobody else, may take to say what it wants.
const CALLER_PATIENCE: Duration = Duration::from_secs(5);

/// What browserd's process is called: the file name that it is started by, wherever its program came from.
pub(super) const BROWSERD: &str = "browserd";

/// Above that of ordinary processes (0), below that which Chromium gives its renderers (300).
const OOM_SCORE: &str = "200";

/// What a supervisor is told, in the file that it locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// The group that may use the browser's debugging socket.
    pub(super) group: Option<u32>,
}

/// What hostd asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// Start the service and answer when it is ready.
    Start { clone_id: CloneId },
    /// How is the service?
    Status,
}

/// What the supervisor answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "service", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    /// Nobody asked for it yet.
    Idle,
    /// It answers here; its start took this long, part by part.
    Ready {
        endpoint: String,
        // A supervisor that an earlier version started does not tell the rest.
        #[serde(default)]
        cdp_endpoint: Option<String>,
        #[serde(default)]
        took: Vec<(String, f64)>,
    },
    /// It does not run, for this reason.
    Failed { message: String, not_ready: bool },
}

/// Be a supervisor, if these are the arguments of one.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != *jail::SUPERVISE {
        return None;
    }
    let run = PathBuf::from(arguments.next()?);
    Some(match supervise(&run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("supervisor: {}: {error}", run.display());
            ExitCode::FAILURE
        }
    })
}

fn supervise(run: &Path) -> io::Result<()> {
    // A session of its own: no signal to hostd's group or terminal reaches the clones.
    nix::unistd::setsid()?;
    let file = OpenOptions::new().read(true).write(true).open(run.join(jail::JAIL))?;
    jail::lock(&file)?;
    let orders = jail::orders(&file)?;
    if let Some(cgroup) = &orders.cgroup {
        // Before anything else runs: everything started from here on is under the limits.
        std::fs::write(cgroup.join("cgroup.procs"), "0")?;
    }
    // When the whole host is out of memory a clone goes first, and never what hostd's unit protects.
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE)?;
    let listener = UnixListener::bind(run.join(jail::CONTROL))?;
    say_up()?;
    let supervisor = Arc::new(Supervisor { run: run.to_owned(), orders, service: Mutex::new(None) });
    for stream in listener.incoming() {
        // A caller that cannot be served is told nothing and asks again: the clone may be full of processes.
        if let Err(error) = Supervisor::serve(&supervisor, stream?) {
            eprintln!("supervisor: a caller: {error}");
        }
    }
    drop(file);
    Ok(())
}

/// Tell hostd that the lock is held and the socket is there, and close the line to it.
fn say_up() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(jail::UP)?;
    out.flush()?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null).map_err(io::Error::from)
}

struct Supervisor {
    run: PathBuf,
    orders: Orders,
    /// Started once; held while it starts, so that nobody hears of it before it is ready.
    service: Mutex<Option<Result<Service, (String, bool)>>>,
}

impl Supervisor {
    /// Answer one caller. Only the start of the service takes long, so only that has a thread of its own: a supervisor
    /// that is asked how it is must answer also when the clone is at its limit of processes, which counts threads.
    fn serve(supervisor: &Arc<Supervisor>, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(CALLER_PATIENCE))?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        match serde_json::from_str(&line)? {
            Request::Status => reply(&stream, &supervisor.status()),
            Request::Start { clone_id } if clone_id != supervisor.orders.clone_id => {
                let message = format!("this is the jail of {}", supervisor.orders.clone_id);
                reply(&stream, &Answer::Failed { message, not_ready: false })
            }
            Request::Start { .. } => {
                let supervisor = supervisor.clone();
                let start = move || {
                    if let Err(error) = reply(&stream, &supervisor.start()) {
                        eprintln!("supervisor: a caller: {error}");
                    }
                };
                std::thread::Builder::new().name("start".into()).spawn(start).map(drop)
            }
        }
    }

    fn start(&self) -> Answer {
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        answer(Some(service.get_or_insert_with(|| {
            Service::start(&self.orders, &self.run)
                .map_err(|error| (launcher::error_chain(&error), error.not_ready()))
        })))
    }

    fn status(&self) -> Answer {
        // One that is just starting is not ready.
        let Ok(mut service) = self.service.try_lock() else { return Answer::Idle };
        if let Some(Ok(running)) = &mut *service
            && !running.is_alive()
        {
            return Answer::Failed { message: "the browser ended".to_owned(), not_ready: false };
        }
        answer(service.as_ref())
    }
}

fn reply(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn answer(service: Option<&Result<Service, (String, bool)>>) -> Answer {
    match service {
        None => Answer::Idle,
        Some(Ok(service)) => service.ready(),
        Some(Err((message, not_ready))) => Answer::Failed { message: message.clone(), not_ready: *not_ready },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_version_left_is_understood() {
        let orders = r#"{"clone_id":"0123456789abcdef0123456789abcdef","name":"browsertask001","uid":61001,"folder":"/c",
            "network":"/n","cgroup":null,"limits":{},"browser":"/b","browserd":null,"resolver":null,"group":null}"#;
        assert!(!serde_json::from_str::<Orders>(orders).unwrap().warm_up);
        let answer: Answer =
            serde_json::from_str(r#"{"service":"ready","endpoint":"http://10.0.0.1:8080"}"#).unwrap();
        assert!(matches!(answer, Answer::Ready { cdp_endpoint: None, took, .. } if took.is_empty()));
    }
}
