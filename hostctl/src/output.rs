//! The result of a command, how it is printed, and its exit code.

use hostd::api::{CloneName, ErrorCode, RpcError};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use terminal::Exit;
use terminal::text::{Paint, Tone, clean, clean_json, duration};

/// The result of a command that succeeded, for programs and for people.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    /// For `--json`.
    pub(crate) data: Value,
    /// For people, with line ends.
    pub(crate) text: String,
}

impl CommandOutput {
    pub(crate) fn new(data: &impl Serialize, text: String) -> CommandOutput {
        CommandOutput { data: serde_json::to_value(data).expect("results are plain data"), text }
    }
}

/// The result of a command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Box<ErrorShape>,
    exit: Exit,
    /// The output that is printed as well, such as the findings of `doctor`.
    output: Option<Box<CommandOutput>>,
}

/// `error` of the JSON shape.
#[derive(Debug, Default, Serialize)]
struct ErrorShape {
    code: String,
    message: String,
    hint: String,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<CloneName>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cleanup: Vec<String>,
}

impl Failure {
    /// A failure that hostctl detected, with a code of its own.
    pub(crate) fn local(exit: Exit, code: &str, message: impl Into<String>) -> Failure {
        let error = ErrorShape { code: code.to_owned(), message: message.into(), ..ErrorShape::default() };
        Failure { error: Box::new(error), exit, output: None }
    }

    /// A failure that hostctl detected, with one of hostd's codes.
    pub(crate) fn of(code: ErrorCode, message: impl Into<String>) -> Failure {
        let mut failure = Failure::local(code.exit_code().into(), code.word(), message);
        failure.error.retryable = code.retryable();
        failure
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.error.hint = hint.into();
        self
    }

    pub(crate) fn retryable(mut self) -> Failure {
        self.error.retryable = true;
        self
    }

    pub(crate) fn with_output(mut self, output: CommandOutput) -> Failure {
        self.output = Some(Box::new(output));
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.error.message
    }

    pub(crate) fn hint_text(&self) -> &str {
        &self.error.hint
    }

    /// Code, exit code and whether it is retryable.
    #[cfg(test)]
    pub(crate) fn classification(self) -> (String, u8, bool) {
        (self.error.code, self.exit as u8, self.error.retryable)
    }
}

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Failure {
        let data = *error.data;
        let shape = ErrorShape {
            code: data.code.word().to_owned(),
            message: error.message,
            hint: data.hint,
            retryable: data.retryable,
            retry_after_ms: data.retry_after_ms,
            step: data.step,
            name: data.name,
            cleanup: data.cleanup,
        };
        Failure { error: Box::new(shape), exit: data.code.exit_code().into(), output: None }
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

    pub(crate) fn finish(&self, outcome: Result<CommandOutput, Failure>) -> ExitCode {
        let (exit, shown) = match outcome {
            Ok(output) if self.json => (Exit::Ok, line(&json!({ "success": true, "data": output.data }))),
            Ok(output) => (Exit::Ok, output.text),
            Err(Failure { error, exit, output }) => {
                if self.json {
                    let mut shape = json!({ "success": false });
                    if let Some(output) = output {
                        shape["data"] = output.data;
                    }
                    shape["error"] = serde_json::to_value(&error).expect("errors are plain data");
                    (exit, line(&shape))
                } else {
                    let shown = output.map(|output| output.text).unwrap_or_default();
                    // The error is printed last, where people look first.
                    if terminal::print(&shown) {
                        explain(&error);
                    }
                    return ExitCode::from(exit as u8);
                }
            }
        };
        // A closed pipe (`| head`) is not a failure; a full disk is.
        if terminal::print(&shown) { ExitCode::from(exit as u8) } else { ExitCode::from(Exit::Failure as u8) }
    }
}

/// Print the error for people to standard error.
fn explain(error: &ErrorShape) {
    let paint = Paint(terminal::stderr_colours());
    let mut text = format!("{} {}\n", paint.paint(Tone::Bad, "error:"), clean(&error.message));
    if let Some(step) = &error.step {
        text.push_str(&format!("  step: {}\n", clean(step)));
    }
    for problem in &error.cleanup {
        text.push_str(&format!("  while cleaning up: {}\n", clean(problem)));
    }
    if !error.hint.is_empty() {
        text.push_str(&format!("{} {}\n", paint.paint(Tone::Good, "hint:"), clean(&error.hint)));
    }
    if let Some(after) = error.retry_after_ms {
        text.push_str(&format!("try again in {}\n", duration(Duration::from_millis(after))));
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn line(value: &Value) -> String {
    format!("{}\n", clean_json(&value.to_string()))
}
