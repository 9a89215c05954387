//! The result of a command, how it is printed, and its exit code.

use controlplane::client::ClientError;
use controlplane::error::{ErrorCode, ErrorDetail};
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;
use terminal::Exit;
use terminal::text::{Paint, Tone, clean, clean_json};

/// The result of a command that succeeded, for programs and for people.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    /// For `--json`.
    pub(crate) data: Value,
    /// For people, with line ends.
    pub(crate) text: String,
}

impl CommandOutput {
    /// No output, for commands that have written theirs.
    pub(crate) fn none() -> CommandOutput {
        CommandOutput { data: Value::Null, text: String::new() }
    }
}

/// The result of a command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Box<ErrorDetail>,
    exit: Exit,
    /// The output that is printed as well, such as the findings of `doctor`.
    output: Option<Box<CommandOutput>>,
}

impl Failure {
    /// A failure that browserctl detected.
    pub(crate) fn local(exit: Exit, code: &str, message: impl Into<String>) -> Failure {
        let error = ErrorDetail {
            code: code.to_owned(),
            message: message.into(),
            hint: String::new(),
            retryable: false,
            retry_after_seconds: None,
        };
        Failure { error: Box::new(error), exit, output: None }
    }

    /// A command line that is wrong.
    pub(crate) fn wrong(message: impl Into<String>) -> Failure {
        Failure::local(Exit::Usage, "usage", message)
    }

    /// A command line that does not parse.
    pub(crate) fn usage(error: &clap::Error) -> Failure {
        let message = error.render().to_string();
        let message = message.trim_start_matches("error: ").lines().next().unwrap_or_default().to_owned();
        Failure::wrong(message).hint("see browserctl --help")
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.error.hint = hint.into();
        self
    }

    fn retryable(mut self) -> Failure {
        self.error.retryable = true;
        self
    }

    pub(crate) fn with_output(mut self, output: CommandOutput) -> Failure {
        self.output = Some(Box::new(output));
        self
    }

    pub(crate) fn detail(&self) -> &ErrorDetail {
        &self.error
    }
}

/// The exit code of an error of the service. Errors of actions have browserd's codes, which are failures of the action.
fn exit(error: &ErrorDetail) -> Exit {
    let known = ErrorCode::ALL.iter().find(|code| code.word() == error.code);
    known.map_or(Exit::Failure, |code| code.exit_code().into())
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let message = error.to_string();
        match error {
            ClientError::Api(detail) => Failure { exit: exit(&detail), error: Box::new(detail), output: None },
            ClientError::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Failure::local(Exit::Denied, "denied", message)
                    .hint("join the group that owns the socket and log in again; browserctl doctor checks more")
            }
            ClientError::Connect { .. } => Failure::local(Exit::NotReady, "unreachable", message)
                .hint("start the service controlplane; --socket or --server name another one, browserctl doctor checks more")
                .retryable(),
            ClientError::Closed(_) => Failure::local(Exit::NotReady, "disconnected", message)
                .hint("the service was stopped or restarted; what was called may have been done: look, then repeat it")
                .retryable(),
            ClientError::Timeout(_) => Failure::local(Exit::Timeout, "timeout", message)
                .hint("the call was cancelled; wait longer with --timeout")
                .retryable(),
            ClientError::Protocol(_) => Failure::local(Exit::Failure, "protocol", message)
                .hint("is it the control plane's address? install browserctl and controlplane of the same version"),
            ClientError::Address(_) => Failure::wrong(message),
        }
    }
}

/// Prints results to standard output and notes to standard error.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    paint: Paint,
}

impl Output {
    pub(crate) fn new(json: bool) -> Output {
        Output { json, paint: Paint(!json && terminal::stdout_colours()) }
    }

    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Colours for standard output.
    pub(crate) fn paint(&self) -> Paint {
        self.paint
    }

    /// Print a note to standard error, but not with `--json`.
    pub(crate) fn note(&self, text: &str) {
        if !self.json {
            let _ = writeln!(std::io::stderr(), "{}", clean(text));
        }
    }

    /// Print the outcome and return the exit code.
    pub(crate) fn finish(&self, outcome: Result<CommandOutput, Failure>) -> ExitCode {
        let (exit, shown) = match outcome {
            Ok(output) if self.json && output.data.is_null() => (Exit::Ok, String::new()),
            Ok(output) if self.json => (Exit::Ok, line(&json!({ "success": true, "data": output.data }))),
            Ok(output) => (Exit::Ok, output.text),
            Err(Failure { error, exit, output }) if self.json => {
                let mut shape = json!({ "success": false });
                if let Some(output) = output {
                    shape["data"] = output.data;
                }
                shape["error"] = serde_json::to_value(&error).expect("errors are plain data");
                (exit, line(&shape))
            }
            Err(Failure { error, exit, output }) => {
                let shown = output.map(|output| output.text).unwrap_or_default();
                // The error is printed last, where people look first.
                if terminal::print(&shown) {
                    explain(&error);
                }
                return ExitCode::from(exit as u8);
            }
        };
        if terminal::print(&shown) { ExitCode::from(exit as u8) } else { ExitCode::from(Exit::Failure as u8) }
    }
}

/// Print the error for people to standard error.
fn explain(error: &ErrorDetail) {
    let paint = Paint(terminal::stderr_colours());
    let mut text = format!("{} {}\n", paint.paint(Tone::Bad, "error:"), clean(&error.message));
    if !error.hint.is_empty() {
        text.push_str(&format!("{} {}\n", paint.paint(Tone::Good, "hint:"), clean(&error.hint)));
    }
    if let Some(seconds) = error.retry_after_seconds {
        text.push_str(&format!("try again in {seconds}s\n"));
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

pub(crate) fn line(value: &Value) -> String {
    format!("{}\n", clean_json(&value.to_string()))
}
