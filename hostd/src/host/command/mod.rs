//! The one way in which hostd runs another program.
//!
//! A [`Tool`] is found once, in the folders that the configuration names (never in a caller's `PATH`), and only if nobody
//! but root could have put it there. It gets its arguments as a list, a fixed environment, `/` as its folder, nothing to
//! read, a process group of its own, a deadline, and room for so much output and no more. Whatever ends the run early (the
//! deadline, too much output, a caller that drops the future) ends the whole group. A run that ends by itself leaves the
//! group alone: `jail -c` starts daemons that must live on, and they may keep its pipes open, so what counts is what was
//! written when the program itself ended.
//!
//! An exit code is an outcome, not an error: only the driver of a tool knows what its codes and words mean.

mod outcome;
mod trusted;

pub use outcome::{CommandError, Ended, Outcome, Problem};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::net::unix::pipe;
use tokio::process::Child;

/// How long a command may take when nobody says.
const DEADLINE: Duration = Duration::from_secs(60);
/// How much a command may write on each of its two outputs when its driver does not say.
const MOST_OUTPUT: usize = 4 << 20;
/// How long a group gets to end after it was asked to, and to disappear after it was killed.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// Which tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ToolLabel {
    tool: &'static str,
}

static RUNS: LazyLock<Family<ToolLabel, Counter>> = LazyLock::new(Family::default);

/// How often this process started each tool.
pub fn runs() -> &'static Family<ToolLabel, Counter> {
    &RUNS
}

/// How often this process started one tool.
pub fn runs_of(tool: &'static str) -> u64 {
    RUNS.get_or_create(&ToolLabel { tool }).get()
}

/// Where the tools are.
#[derive(Debug, Clone)]
pub struct Tools {
    folders: Arc<[PathBuf]>,
    deadline: Duration,
}

impl Tools {
    /// Tools in these folders, the first one first.
    pub fn new(folders: &[PathBuf]) -> Tools {
        Tools { folders: folders.into(), deadline: DEADLINE }
    }

    /// How long each run of such a tool may take, unless it is told otherwise.
    #[must_use]
    pub fn within(self, deadline: Duration) -> Tools {
        Tools { deadline, ..self }
    }

    /// Find a tool. One that is missing or not to be trusted says so when it is run, and to who asks for its path.
    pub fn find(&self, name: &'static str) -> Tool {
        let path = self.locate(name).map(Into::into);
        if let Err(error) = &path {
            tracing::warn!(%error, "a tool cannot be used");
        }
        Tool { name, path, search: self.search().into(), deadline: self.deadline }
    }

    fn locate(&self, name: &'static str) -> Result<PathBuf, ToolError> {
        for folder in self.folders.iter() {
            let path = match folder.join(name).canonicalize() {
                Ok(path) => path,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(ToolError::Untrusted { name, why: error.to_string() }),
            };
            return match trusted::executable(&path) {
                Ok(()) => Ok(path),
                Err(why) => Err(ToolError::Untrusted { name, why }),
            };
        }
        Err(ToolError::Missing { name, folders: self.search() })
    }

    /// The folders as a search path, for tools that start others.
    fn search(&self) -> String {
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.to_string_lossy()).collect();
        folders.join(":")
    }
}

/// Why a tool cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// In none of the folders.
    #[error("no {name} in {folders}")]
    Missing {
        /// The tool.
        name: &'static str,
        /// Where it was looked for.
        folders: String,
    },
    /// Others could have changed it.
    #[error("{name} is not run as root: {why}")]
    Untrusted {
        /// The tool.
        name: &'static str,
        /// Who could have.
        why: String,
    },
}

/// A program on this host.
#[derive(Debug, Clone)]
pub struct Tool {
    name: &'static str,
    path: Result<Arc<Path>, ToolError>,
    search: Arc<str>,
    deadline: Duration,
}

impl Tool {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Where it is.
    pub fn path(&self) -> Result<&Path, &ToolError> {
        self.path.as_deref()
    }

    /// A run of it with these arguments.
    pub fn with<A: Into<String>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        Command {
            tool: self.clone(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            deadline: self.deadline,
            most_output: MOST_OUTPUT,
        }
    }
}

/// One run of a tool, about to be made.
#[derive(Debug, Clone)]
pub struct Command {
    tool: Tool,
    arguments: Vec<String>,
    deadline: Duration,
    most_output: usize,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tool.name)?;
        self.arguments.iter().try_for_each(|argument| match argument {
            plain if !plain.is_empty() && !plain.contains(|c: char| c.is_whitespace() || c.is_control()) => {
                write!(f, " {plain}")
            }
            other => write!(f, " {other:?}"),
        })
    }
}

impl Command {
    /// It must have ended after this time.
    #[must_use]
    pub fn within(self, deadline: Duration) -> Command {
        Command { deadline, ..self }
    }

    /// It may write this many bytes on each of its outputs.
    #[must_use]
    pub fn at_most(self, most_output: usize) -> Command {
        Command { most_output, ..self }
    }

    /// The arguments, without the tool's name.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Run it to its end.
    pub async fn run(self) -> Result<Outcome, CommandError> {
        let began = Instant::now();
        // On the heap: a look at the host waits for many commands at once, and all of them in one future would not fit
        // on a worker's stack.
        let result = Box::pin(self.run_to_end(began)).await;
        let milliseconds = began.elapsed().as_millis();
        match &result {
            Ok(outcome) if outcome.success() => tracing::debug!(command = %self, milliseconds, "ran"),
            Ok(outcome) => {
                let said = outcome.complaint();
                tracing::debug!(command = %self, milliseconds, ended = %outcome.ended, said, "ran and refused");
            }
            Err(error) => tracing::debug!(%error, milliseconds, "did not run to its end"),
        }
        result
    }

    async fn run_to_end(&self, began: Instant) -> Result<Outcome, CommandError> {
        let problem = |problem| CommandError { tool: self.tool.name, command: self.to_string(), problem };
        let lost = |error: io::Error| problem(Problem::Lost(error.to_string()));
        let path = self.tool.path.as_deref().map_err(|error| problem(Problem::Tool(error.clone())))?;
        let (mut stdout, out) = BoundedOutput::new(self.most_output).map_err(lost)?;
        let (mut stderr, err) = BoundedOutput::new(self.most_output).map_err(lost)?;
        let mut running = Running::start(path, &self.arguments, &self.tool.search, out, err)
            .map_err(|error| problem(Problem::Start(error.to_string())))?;
        RUNS.get_or_create(&ToolLabel { tool: self.tool.name }).inc();

        let ended = {
            let reading = async {
                match tokio::try_join!(stdout.read_until_closed(), stderr.read_until_closed()) {
                    Err(over) => over,
                    // Both closed by a program that goes on: only its end or the deadline counts.
                    Ok(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ended = running.0.wait() => Ok(ended),
                over = reading => Err(over),
                () = tokio::time::sleep(self.deadline) => Err(Problem::Deadline(self.deadline)),
            }
        };
        let ended = match ended {
            Ok(ended) => Ended::from(ended.map_err(lost)?),
            Err(why) => {
                running.end().await;
                return Err(problem(why));
            }
        };
        // What the program itself wrote is in the pipes by now; its children may write on, and are not waited for.
        stdout.drain().and_then(|()| stderr.drain()).map_err(problem)?;
        Ok(Outcome {
            tool: self.tool.name,
            command: self.to_string(),
            ended,
            stdout: stdout.bytes,
            stderr: String::from_utf8_lossy(&stderr.bytes).into_owned(),
            duration: began.elapsed(),
        })
    }
}

/// A program with its process group. Dropped before its end, the whole group is killed.
struct Running(Child);

impl Running {
    fn start(path: &Path, arguments: &[String], search: &str, out: Stdio, err: Stdio) -> io::Result<Running> {
        tokio::process::Command::new(path)
            .args(arguments)
            .env_clear()
            .envs([("PATH", search), ("LC_ALL", "C"), ("HOME", "/")])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map(Running)
    }

    /// Ask the group to end, then end it.
    async fn end(&mut self) {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            self.signal(signal);
            if tokio::time::timeout(END_TIMEOUT, self.0.wait()).await.is_ok() && signal == Signal::SIGKILL {
                return;
            }
        }
    }

    /// Signal the group. Its number is nobody else's as long as its leader was not waited for.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = killpg(Pid::from_raw(group), signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

/// One output of a program, with a bound.
struct BoundedOutput {
    pipe: pipe::Receiver,
    bytes: Vec<u8>,
    most: usize,
    /// There was more than that.
    over: bool,
}

impl BoundedOutput {
    /// The reading side, and the writing side for the program.
    fn new(most: usize) -> io::Result<(BoundedOutput, Stdio)> {
        let (writer, reader) = pipe::pipe()?;
        let writer = writer.into_blocking_fd()?;
        Ok((BoundedOutput { pipe: reader, bytes: Vec::new(), most, over: false }, writer.into()))
    }

    /// Read until everybody has closed the other side.
    async fn read_until_closed(&mut self) -> Result<(), Problem> {
        loop {
            self.pipe.readable().await.map_err(|error| Problem::Lost(error.to_string()))?;
            let mut piece = [0; 8192];
            match self.pipe.try_read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => self.take(&piece[..count])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Problem::Lost(error.to_string())),
            }
        }
    }

    /// Read what is there now. Asks the kernel and not the runtime, which may not have heard of the last bytes yet.
    fn drain(&mut self) -> Result<(), Problem> {
        self.take(&[])?;
        loop {
            let mut piece = [0; 8192];
            match nix::unistd::read(&self.pipe, &mut piece) {
                Ok(0) | Err(nix::errno::Errno::EAGAIN) => return Ok(()),
                Ok(count) => self.take(&piece[..count])?,
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(Problem::Lost(error.to_string())),
            }
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), Problem> {
        self.over |= self.bytes.len() + piece.len() > self.most;
        if self.over {
            return Err(Problem::TooMuch(self.most));
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
