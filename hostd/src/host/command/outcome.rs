//! The result of running a tool.

use super::ToolError;
use crate::host::{HostError, HostErrorKind};
use std::fmt;
use std::io;
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

/// The result of a program that ran to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The tool's name.
    pub tool: &'static str,
    /// The command, for errors and logs.
    pub command: String,
    /// How it ended.
    pub ended: Ended,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error. Bytes that are not UTF-8 are replaced.
    pub stderr: String,
    /// How long it took.
    pub duration: Duration,
}

impl Outcome {
    /// Exit code 0. This does not prove that the command had its effect.
    pub fn success(&self) -> bool {
        self.ended == Ended::Code(0)
    }

    /// Its standard output, if that is UTF-8.
    pub fn text(&self) -> Result<&str, CommandError> {
        std::str::from_utf8(&self.stdout).map_err(|_| CommandError {
            tool: self.tool,
            command: self.command.clone(),
            problem: Problem::NoText,
        })
    }

    /// Its standard error on one line, or how it ended if that is empty.
    pub fn complaint(&self) -> String {
        let words: Vec<&str> = self.stderr.split_whitespace().collect();
        match words.is_empty() {
            true => format!("{} and no error message", self.ended),
            false => words.join(" "),
        }
    }

    /// The failure that this outcome reports, for the source of an error.
    pub fn failed(&self) -> CommandFailed {
        CommandFailed { command: self.command.clone(), complaint: self.complaint() }
    }
}

/// A tool that ran to its end and reported a failure. Kept as the source of a [`HostError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{command}`: {complaint}")]
pub struct CommandFailed {
    /// The command.
    pub command: String,
    /// Its error message.
    pub complaint: String,
}

/// A run that did not end by itself or whose output cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{command}")]
pub struct CommandError {
    /// The tool's name.
    pub tool: &'static str,
    /// The command.
    pub command: String,
    /// What happened.
    #[source]
    pub problem: Problem,
}

/// Why a run has no usable result.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The tool is missing, or others could have changed it.
    #[error(transparent)]
    Tool(ToolError),
    /// The system did not start it.
    #[error("the program cannot be started")]
    Start(#[source] io::Error),
    /// It took too long and was killed.
    #[error("the program took longer than {} s and was killed", .0.as_secs_f32())]
    Deadline(Duration),
    /// It wrote too much and was killed.
    #[error("the program wrote more than {0} bytes and was killed")]
    TooMuch(usize),
    /// Its output is not UTF-8.
    #[error("the output is not UTF-8")]
    NoText,
    /// Waiting for it or reading its output failed.
    #[error("waiting for the program or reading its output failed")]
    Lost(#[source] io::Error),
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
                (HostErrorKind::Timeout, "check the host's load, its disks and hostd's log")
            }
            _ => (HostErrorKind::Failed, "run the command by hand and read its output"),
        };
        HostError::new(kind, error.command, "the command has no result", hint).caused_by(error.problem)
    }
}
