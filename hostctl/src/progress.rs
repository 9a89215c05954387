//! Progress of a running operation: one line for each step, on standard error.

use crate::output::Output;
use hostd::api::{Progress, ProgressState};
use std::io::{IsTerminal, Write};
use terminal::text::{Paint, Tone, clean, seconds};

/// The lines of one operation.
#[derive(Debug)]
pub(crate) struct Steps {
    wanted: bool,
    terminal: bool,
    shown: bool,
    /// The last line has no line end yet.
    open: bool,
}

impl Steps {
    /// Programs get no lines, terminals a live line, pipes plain lines.
    pub(crate) fn new(output: &Output) -> Steps {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = std::io::stderr().is_terminal() && !dumb;
        Steps { wanted: !output.json(), terminal, shown: false, open: false }
    }

    /// Whether every step and its duration was shown on a terminal.
    pub(crate) fn seen(&self) -> bool {
        self.shown && self.terminal
    }

    pub(crate) fn show(&mut self, progress: &Progress) {
        if !self.wanted {
            return;
        }
        let line = self.line(progress);
        self.open = self.terminal && progress.state == ProgressState::Started;
        self.shown |= !line.is_empty();
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn line(&self, progress: &Progress) -> String {
        let step = clean(&progress.step);
        let time = seconds(progress.seconds);
        let name = &progress.name;
        let paint = Paint(self.terminal && terminal::stderr_colours());
        let state = match progress.state {
            ProgressState::Started if self.terminal => {
                return format!("\r\x1b[K{name}  {step} …");
            }
            ProgressState::Started => return String::new(),
            ProgressState::Done => paint.paint(Tone::Good, "done"),
            ProgressState::Failed => paint.paint(Tone::Bad, "failed"),
        };
        let restart = if self.terminal { "\r\x1b[K" } else { "" };
        format!("{restart}{name}  {step:<16}  {time:>10}  {state}\n")
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if self.open {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_get_plain_lines_and_terminals_a_live_one() {
        let mut progress = Progress {
            progress_token: "t".parse().unwrap(),
            name: "browsertask001".parse().unwrap(),
            step: "storage".into(),
            state: ProgressState::Started,
            seconds: 0.0,
        };
        let pipe = Steps { wanted: true, terminal: false, shown: false, open: false };
        let terminal = Steps { wanted: true, terminal: true, shown: false, open: false };
        assert_eq!(pipe.line(&progress), "");
        assert_eq!(terminal.line(&progress), "\r\x1b[Kbrowsertask001  storage …");
        progress.state = ProgressState::Done;
        progress.seconds = 0.25;
        assert_eq!(pipe.line(&progress), "browsertask001  storage              0.250 s  done\n");
        assert!(terminal.line(&progress).starts_with("\r\x1b[Kbrowsertask001  storage "));
    }
}
