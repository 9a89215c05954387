//! What the command lines of the workspace have in common: tables, colours, exit codes, and safe output.

mod exit;
pub mod text;

pub use exit::Exit;

use std::io::{IsTerminal, Write};

/// Whether standard output gets colours.
pub fn stdout_colours() -> bool {
    colours(std::io::stdout().is_terminal())
}

/// Whether standard error gets colours.
pub fn stderr_colours() -> bool {
    colours(std::io::stderr().is_terminal())
}

/// Whether a stream gets colours: terminals do, unless `NO_COLOR` is set (<https://no-color.org>).
fn colours(terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Print to standard output. A closed pipe (`| head`) is not a failure; a full disk is. Returns false if it failed.
pub fn print(text: &str) -> bool {
    print_bytes(text.as_bytes())
}

/// Print bytes to standard output, like [`print`].
pub fn print_bytes(bytes: &[u8]) -> bool {
    let mut stdout = std::io::stdout();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => true,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: cannot write to standard output: {error}");
            false
        }
    }
}
