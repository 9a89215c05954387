//! Text for terminals: hidden characters escaped, columns aligned, colours.

use std::fmt::Write;
use std::time::Duration;

/// The daemon may quote text of a program inside a clone or of another caller, which must not control the terminal.
pub use safe_text::{json as clean_json, line as clean};

/// A duration in at most two units: `2h 5m`.
pub fn ago(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// A step's time: `0.123 s`.
pub fn seconds(seconds: f64) -> String {
    format!("{seconds:.3} s")
}

/// The same for a duration.
pub fn duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// The name of a user, or the uid if it has none.
pub fn user(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| clean(&user.name).into_owned())
}

/// A colour by its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// No colour.
    Plain,
    /// Healthy.
    Good,
    /// In progress, or a warning.
    Attention,
    /// An error.
    Bad,
    /// Less important.
    Faint,
}

/// Colours text if the stream supports it.
#[derive(Debug, Clone, Copy)]
pub struct Paint(pub bool);

impl Paint {
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Attention => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Rows of aligned cells.
#[derive(Debug, Default)]
pub struct Table(Vec<Vec<(Tone, String)>>);

impl Table {
    pub fn header(names: &[&str]) -> Table {
        Table(vec![names.iter().map(|name| (Tone::Faint, (*name).to_owned())).collect()])
    }

    pub fn row(&mut self, cells: Vec<(Tone, String)>) {
        self.0.push(cells.into_iter().map(|(tone, text)| (tone, clean(&text).into_owned())).collect());
    }

    /// The rows as text. A column without any value is omitted.
    pub fn render(&self, paint: Paint) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.0.iter().filter_map(|row| row.get(column)).map(|(_, text)| text.chars().count()).max()
        };
        let used: Vec<(usize, usize)> = (0..columns)
            .filter(|column| {
                self.0.iter().skip(1).any(|row| row.get(*column).is_some_and(|c| !c.1.is_empty()))
            })
            .map(|column| (column, width(column).unwrap_or(0)))
            .collect();
        let mut text = String::new();
        for row in &self.0 {
            let mut line = String::new();
            // Padding is written before the next cell, so that no line ends with spaces.
            let mut padding = 0;
            for (column, width) in &used {
                let Some((tone, cell)) = row.get(*column) else { continue };
                let length = cell.chars().count();
                if length > 0 {
                    let _ = write!(line, "{:padding$}{}", "", paint.paint(*tone, cell));
                    padding = 0;
                }
                padding += width - length + 2;
            }
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_no_hidden_characters() {
        let mut table = Table::header(&["NAME", "PROBLEM"]);
        table.row(vec![(Tone::Plain, "one".into()), (Tone::Bad, "a\x1b[2Jb\u{202e}c\nd".into())]);
        assert_eq!(table.render(Paint(false)), "NAME  PROBLEM\none   a\\u{1b}[2Jb\\u{202e}c d\n");
    }

    #[test]
    fn durations_have_at_most_two_units() {
        assert_eq!(
            [0, 59, 60, 3599, 3600, 86_399, 90_000].map(ago),
            ["0s", "59s", "1m 0s", "59m 59s", "1h 0m", "23h 59m", "1d 1h"]
        );
    }

    #[test]
    fn tables_align_and_drop_empty_columns() {
        let mut table = Table::header(&["NAME", "TENANT", "STATE"]);
        table.row(vec![
            (Tone::Plain, "one".into()),
            (Tone::Plain, String::new()),
            (Tone::Good, "ready".into()),
        ]);
        table.row(vec![
            (Tone::Plain, "three3".into()),
            (Tone::Plain, String::new()),
            (Tone::Bad, "x".into()),
        ]);
        assert_eq!(table.render(Paint(false)), "NAME    STATE\none     ready\nthree3  x\n");
        assert!(table.render(Paint(true)).contains("\x1b[32mready\x1b[0m"));
    }
}
