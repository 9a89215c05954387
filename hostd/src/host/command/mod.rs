//! Runs the system's tools. hostd starts other programs only here.
//!
//! A [`Tool`] is located once, in the configured folders (never in a caller's `PATH`), and only if root alone can replace
//! it. It runs without a shell, with a fixed environment, `/` as its working directory, an empty standard input, a process
//! group of its own, a deadline and bounded output. The whole group is killed if the run is ended early: by the deadline,
//! by too much output, or because the caller drops the future. A run that ends by itself leaves its group alone, because
//! `jail -c` starts daemons that must survive it. They may keep the pipes open, so the output is what was written when the
//! program itself ended.
//!
//! An exit code is an outcome, not an error: only the caller knows what a tool's codes and messages mean.

mod outcome;

pub use outcome::{CommandError, CommandFailed, Ended, Outcome, Problem};

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

/// The default deadline of a command.
const DEADLINE: Duration = Duration::from_secs(60);
/// The default limit of a command's standard output and standard error, each.
const MOST_OUTPUT: usize = 4 << 20;
/// How long a process group gets after SIGTERM, and after SIGKILL.
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

    /// The deadline of each run, unless the command sets another.
    #[must_use]
    pub fn within(self, deadline: Duration) -> Tools {
        Tools { deadline, ..self }
    }

    /// Locate a tool. A tool that is missing or not trusted is reported by [`Tool::path`] and by each run.
    pub fn find(&self, name: &'static str) -> Tool {
        let path = self.locate(name).map(Into::into);
        if let Err(error) = &path {
            tracing::warn!(%error, "the tool cannot be used");
        }
        Tool { name, path, search: self.search().into(), deadline: self.deadline }
    }

    fn locate(&self, name: &'static str) -> Result<PathBuf, ToolError> {
        for folder in self.folders.iter() {
            match settings::trusted_path::executable(&folder.join(name)) {
                Ok(path) => return Ok(path),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(ToolError::Untrusted { name, why: error.to_string() }),
            }
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
        /// The folders that were searched.
        folders: String,
    },
    /// Users other than root can change it.
    #[error("{name} is not run as root: {why}")]
    Untrusted {
        /// The tool.
        name: &'static str,
        /// The reason.
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
        // Boxed: an inspection of the host awaits many commands at once, and their futures would overflow a worker's stack.
        let result = Box::pin(self.run_to_end(began)).await;
        let milliseconds = began.elapsed().as_millis();
        match &result {
            Ok(outcome) if outcome.success() => {
                tracing::debug!(command = %self, milliseconds, "the command succeeded")
            }
            Ok(outcome) => {
                let said = outcome.complaint();
                tracing::debug!(command = %self, milliseconds, ended = %outcome.ended, said, "the command failed");
            }
            Err(error) => tracing::debug!(%error, milliseconds, "the command has no result"),
        }
        result
    }

    async fn run_to_end(&self, began: Instant) -> Result<Outcome, CommandError> {
        let problem = |problem| CommandError { tool: self.tool.name, command: self.to_string(), problem };
        let lost = |error: io::Error| problem(Problem::Lost(error));
        let path = self.tool.path.as_deref().map_err(|error| problem(Problem::Tool(error.clone())))?;
        let (mut stdout, out) = BoundedOutput::new(self.most_output).map_err(lost)?;
        let (mut stderr, err) = BoundedOutput::new(self.most_output).map_err(lost)?;
        let mut running = Running::start(path, &self.arguments, &self.tool.search, out, err)
            .map_err(|error| problem(Problem::Start(error)))?;
        RUNS.get_or_create(&ToolLabel { tool: self.tool.name }).inc();

        let ended = {
            let reading = async {
                match tokio::try_join!(stdout.read_until_closed(), stderr.read_until_closed()) {
                    Err(over) => over,
                    // The program closed both and still runs: wait for its end or the deadline.
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
        // All output of the program itself is in the pipes now. Its children may still write; that is not awaited.
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

/// A running program. Dropping it kills its whole process group.
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

    /// End the group by SIGTERM, then SIGKILL.
    async fn end(&mut self) {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            self.signal(signal);
            if tokio::time::timeout(END_TIMEOUT, self.0.wait()).await.is_ok() && signal == Signal::SIGKILL {
                return;
            }
        }
    }

    /// Signal the group. Its number cannot be reused before its leader has been waited for.
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
    /// The program wrote more than that.
    over: bool,
}

impl BoundedOutput {
    /// The reading side, and the writing side for the program.
    fn new(most: usize) -> io::Result<(BoundedOutput, Stdio)> {
        let (writer, reader) = pipe::pipe()?;
        let writer = writer.into_blocking_fd()?;
        Ok((BoundedOutput { pipe: reader, bytes: Vec::new(), most, over: false }, writer.into()))
    }

    /// Read until all writers have closed the pipe.
    async fn read_until_closed(&mut self) -> Result<(), Problem> {
        loop {
            self.pipe.readable().await.map_err(Problem::Lost)?;
            let mut piece = [0; 8192];
            match self.pipe.try_read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => self.take(&piece[..count])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Problem::Lost(error)),
            }
        }
    }

    /// Read what the pipe holds now, by read(2): the runtime may not have been notified of the last bytes yet.
    fn drain(&mut self) -> Result<(), Problem> {
        self.take(&[])?;
        loop {
            let mut piece = [0; 8192];
            match nix::unistd::read(&self.pipe, &mut piece) {
                Ok(0) | Err(nix::errno::Errno::EAGAIN) => return Ok(()),
                Ok(count) => self.take(&piece[..count])?,
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(Problem::Lost(error.into())),
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
