//! What a command answers, how it is printed, and which exit code it means.

use super::exit::Exit;
use super::text::{Paint, Tone, clean, clean_json, duration};
use crate::api::{CloneName, ErrorCode, RpcError};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// What a command that worked answers: the same thing for programs and for people.
#[derive(Debug)]
pub(super) struct Answer {
    /// For `--json`.
    pub(super) data: Value,
    /// For people, with its line ends.
    pub(super) text: String,
}

impl Answer {
    pub(super) fn new(data: &impl Serialize, text: String) -> Answer {
        Answer { data: serde_json::to_value(data).expect("answers are plain data"), text }
    }
}

/// What a command that failed answers.
#[derive(Debug)]
pub(super) struct Failure {
    error: Box<ErrorShape>,
    exit: Exit,
    /// What was answered all the same, such as the findings of a doctor who is not content.
    answer: Option<Box<Answer>>,
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
    /// A failure that hostctl itself found, with a code of its own.
    pub(super) fn local(exit: Exit, code: &str, message: impl Into<String>) -> Failure {
        let error = ErrorShape { code: code.to_owned(), message: message.into(), ..ErrorShape::default() };
        Failure { error: Box::new(error), exit, answer: None }
    }

    /// A failure that hostctl itself found, with one of hostd's codes.
    pub(super) fn of(code: ErrorCode, message: impl Into<String>) -> Failure {
        let mut failure = Failure::local(code.exit_code().into(), code.word(), message);
        failure.error.retryable = code.retryable();
        failure
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.error.hint = hint.into();
        self
    }

    pub(super) fn retryable(mut self) -> Failure {
        self.error.retryable = true;
        self
    }

    pub(super) fn with(mut self, answer: Answer) -> Failure {
        self.answer = Some(Box::new(answer));
        self
    }

    pub(super) fn message(&self) -> &str {
        &self.error.message
    }

    pub(super) fn advice(&self) -> &str {
        &self.error.hint
    }

    /// Code, exit code and whether a retry makes sense.
    #[cfg(test)]
    pub(super) fn verdict(self) -> (String, u8, bool) {
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
        Failure { error: Box::new(shape), exit: data.code.exit_code().into(), answer: None }
    }
}

/// Where answers go.
#[derive(Debug)]
pub(super) struct Output {
    json: bool,
    paint: Paint,
}

impl Output {
    pub(super) fn new(json: bool) -> Output {
        Output { json, paint: Paint(!json && colours(std::io::stdout().is_terminal())) }
    }

    pub(super) fn json(&self) -> bool {
        self.json
    }

    /// Colours for standard output.
    pub(super) fn paint(&self) -> Paint {
        self.paint
    }

    /// A remark beside the answer, on standard error; programs do not get any.
    pub(super) fn note(&self, text: &str) {
        if !self.json {
            let _ = writeln!(std::io::stderr(), "{}", clean(text));
        }
    }

    pub(super) fn finish(&self, outcome: Result<Answer, Failure>) -> ExitCode {
        let (exit, shown) = match outcome {
            Ok(answer) if self.json => (Exit::Ok, line(&json!({ "success": true, "data": answer.data }))),
            Ok(answer) => (Exit::Ok, answer.text),
            Err(Failure { error, exit, answer }) => {
                if self.json {
                    let mut shape = json!({ "success": false });
                    if let Some(answer) = answer {
                        shape["data"] = answer.data;
                    }
                    shape["error"] = serde_json::to_value(&error).expect("errors are plain data");
                    (exit, line(&shape))
                } else {
                    let shown = answer.map(|answer| answer.text).unwrap_or_default();
                    // The answer first, so that the failure is the last thing to be read.
                    if print(&shown) {
                        explain(&error);
                    }
                    return ExitCode::from(exit as u8);
                }
            }
        };
        // A reader that went away (`| head`) is no failure; a full disk is.
        if print(&shown) { ExitCode::from(exit as u8) } else { ExitCode::from(Exit::Failure as u8) }
    }
}

/// The error for people, on standard error.
fn explain(error: &ErrorShape) {
    let paint = Paint(colours(std::io::stderr().is_terminal()));
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

/// Whether a stream gets colours: terminals, unless <https://no-color.org> says no.
pub(super) fn colours(terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

fn line(value: &Value) -> String {
    format!("{}\n", clean_json(&value.to_string()))
}

/// Print to standard output. False: it could not be written.
fn print(text: &str) -> bool {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => true,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: cannot write the answer: {error}");
            false
        }
    }
}
