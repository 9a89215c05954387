//! Passes the browser's standard output on to the launcher's own.
//!
//! The browser gets a pipe. The launcher's own descriptor may be the user's terminal, from which a compromised browser
//! could read what is typed, and which it could control by escape sequences. On a terminal hidden characters are escaped;
//! a file or a pipe gets the bytes unchanged, for example the document of `--dump-dom`.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;

use tokio::sync::oneshot;

/// How many bytes are passed on. More than a document, less than a disk.
const MAX_BYTES: u64 = 1 << 30;

/// Starts a thread that passes everything on. The receiver completes when the browser has closed its end.
pub(crate) fn pass_on(from: OwnedFd) -> io::Result<oneshot::Receiver<()>> {
    let (done, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("browser-output".into()).stack_size(256 * 1024);
    thread.spawn(move || {
        let stdout = io::stdout();
        let escape = stdout.is_terminal();
        // An error means that nobody reads the launcher's output. The browser then finds its pipe closed.
        if let Ok(false) = copy(File::from(from), stdout, escape, MAX_BYTES) {
            crate::say("the browser wrote more than 1 GiB to standard output; the rest was left out");
        }
        let _ = done.send(());
    })?;
    Ok(receiver)
}

/// Copies at most `most` bytes. Returns false if there were more.
fn copy(mut from: impl Read, mut to: impl Write, escape: bool, most: u64) -> io::Result<bool> {
    let mut stream = safe_text::Stream::default();
    let mut chunk = vec![0; 64 * 1024];
    let mut left = most;
    loop {
        let length = match from.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        let kept = usize::try_from(left).unwrap_or(usize::MAX).min(length);
        match escape {
            true => to.write_all(stream.feed(&chunk[..kept]).as_bytes())?,
            false => to.write_all(&chunk[..kept])?,
        }
        if length == 0 && escape {
            to.write_all(stream.finish().as_bytes())?;
        }
        to.flush()?;
        left -= kept as u64;
        if length == 0 || kept < length {
            return Ok(length == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &[u8] = "a\x1b]0;title\x07\u{202e}b\n".as_bytes();

    fn copied(bytes: &[u8], escape: bool, most: u64) -> (Vec<u8>, bool) {
        let mut out = Vec::new();
        let whole = copy(bytes, &mut out, escape, most).expect("copied");
        (out, whole)
    }

    #[test]
    fn a_terminal_gets_no_hidden_characters_and_a_file_gets_the_bytes() {
        assert_eq!(copied(HOSTILE, false, 100), (HOSTILE.to_vec(), true));
        let (shown, whole) = copied(HOSTILE, true, 100);
        assert_eq!(String::from_utf8(shown).expect("text"), "a\\u{1b}]0;title\\u{7}\\u{202e}b\n");
        assert!(whole);
    }

    #[test]
    fn output_is_bounded() {
        assert_eq!(copied(b"12345", false, 5), (b"12345".to_vec(), true));
        assert_eq!(copied(b"12345", false, 4), (b"1234".to_vec(), false));
        let endless = copy(io::repeat(b'x'), io::sink(), true, 10 << 20).expect("copied");
        assert!(!endless);
    }

    #[test]
    fn an_error_of_the_destination_ends_the_copy() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(copy(io::repeat(b'x'), Closed, false, MAX_BYTES).is_err());
    }
}
