//! Where the daemon's log goes: standard error, one line per event, without hidden characters.
//!
//! Events quote callers, tools and programs inside of clones. Their text must neither control the terminal of whoever
//! reads the log, nor look like another line of it.

use crate::config::LogFormat;
use std::io::{self, Write};
use tracing_subscriber::fmt::MakeWriter;

/// Makes the writer of each event.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogWriter(pub(super) LogFormat);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = EventWriter<io::Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        EventWriter { format: self.0, to: io::stderr() }
    }
}

/// Gets one whole event with its line end in one call.
#[derive(Debug)]
pub(super) struct EventWriter<W> {
    format: LogFormat,
    to: W,
}

impl<W: Write> Write for EventWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let line = match self.format {
            LogFormat::Human => safe_text::line(text),
            LogFormat::Json => safe_text::json(text),
        };
        self.to.write_all(format!("{line}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: LogFormat, event: &str) -> String {
        let mut to = Vec::new();
        EventWriter { format, to: &mut to }.write_all(event.as_bytes()).unwrap();
        String::from_utf8(to).unwrap()
    }

    #[test]
    fn an_event_is_one_line_without_hidden_characters() {
        let event = "INFO said \x1b[2J\u{202e}txt\n2026 ERROR forged\n";
        let shown = written(LogFormat::Human, event);
        assert_eq!(shown, "INFO said \\u{1b}[2J\\u{202e}txt 2026 ERROR forged\n");
        let event = serde_json::json!({ "message": "\u{9b}31m\u{202e}\n" }).to_string() + "\n";
        let shown = written(LogFormat::Json, &event);
        assert_eq!(shown, "{\"message\":\"\\u009b31m\\u202e\\n\"}\n");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            serde_json::from_str::<serde_json::Value>(&event).unwrap()
        );
    }
}
