//! How a run of a tool ends, well or not.

use super::ToolError;
use crate::host::{HostError, HostErrorKind};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Ended {
        match (status.code(), status.signal()) {
            (Some(code), _) => Ended::Code(code),
            (None, signal) => Ended::Signal(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Code(code) => write!(f, "exit code {code}"),
            Ended::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// What a program that ran to its end left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The tool's name.
    pub tool: &'static str,
    /// The command, for errors and logs.
    pub command: String,
    /// How it ended.
    pub ended: Ended,
    /// What it wrote, byte by byte.
    pub stdout: Vec<u8>,
    /// What it complained about. Bytes that are no text are replaced.
    pub stderr: String,
    /// How long it took.
    pub duration: Duration,
}

impl Outcome {
    /// Exit code 0. Whether it did what it was asked to is another question.
    pub fn success(&self) -> bool {
        self.ended == Ended::Code(0)
    }

    /// What it wrote, if that is text.
    pub fn text(&self) -> Result<&str, CommandError> {
        std::str::from_utf8(&self.stdout).map_err(|_| CommandError {
            tool: self.tool,
            command: self.command.clone(),
            problem: Problem::NoText,
        })
    }

    /// How it ended and its complaint on one line, for errors.
    pub fn complaint(&self) -> String {
        let words: Vec<&str> = self.stderr.split_whitespace().collect();
        match words.is_empty() {
            true => format!("{} and no word of why", self.ended),
            false => words.join(" "),
        }
    }
}

/// A run without an outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{command}: {problem}")]
pub struct CommandError {
    /// The tool's name.
    pub tool: &'static str,
    /// The command.
    pub command: String,
    /// What happened.
    pub problem: Problem,
}

/// What can happen to a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The tool is missing, or others could have changed it.
    #[error(transparent)]
    Tool(ToolError),
    /// The system did not start it.
    #[error("cannot be started: {0}")]
    Start(String),
    /// It took too long and was ended.
    #[error("took longer than {} s and was ended", .0.as_secs_f32())]
    Deadline(Duration),
    /// It wrote too much and was ended.
    #[error("wrote more than {0} bytes and was ended")]
    TooMuch(usize),
    /// What it wrote is no text.
    #[error("wrote something that is no text")]
    NoText,
    /// Its end or its output could not be followed.
    #[error("was lost sight of: {0}")]
    Lost(String),
}

impl From<CommandError> for HostError {
    fn from(error: CommandError) -> HostError {
        let (kind, hint) = match &error.problem {
            Problem::Tool(ToolError::Missing { .. }) => {
                (HostErrorKind::NotReady, "install it, or name its folder in host.tool_folders")
            }
            Problem::Tool(ToolError::Untrusted { .. }) => (
                HostErrorKind::NotReady,
                "give the file and the folders above it to root, writable by nobody else",
            ),
            Problem::Deadline(_) => {
                (HostErrorKind::Timeout, "look at the host's load, its disks and hostd's log")
            }
            _ => (HostErrorKind::Failed, "run the command by hand and look at what it says"),
        };
        HostError::new(kind, error.command, error.problem.to_string(), hint)
    }
}
