//! Forwards messages between a client's debugging pipe and the browser's.
//!
//! The launcher owns the browser's pipe until the browser's sandbox is verified. From then on every message passes
//! through this module. Messages that name files of the host are rewritten (`messages`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::cdp::{Connection, MAX_MESSAGE, Parts};
use crate::messages::{Action, Rewriter};
use cdp_pipe::{Decoder, FloodGuard, Message};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Starts one thread for each direction. A thread ends when one of its pipes closes.
pub(crate) fn start(
    client_in: OwnedFd,
    client_out: OwnedFd,
    browser: Connection,
    rewriter: Arc<Rewriter>,
) -> io::Result<()> {
    let Parts { from_browser, to_browser, unread } = browser.into_parts();
    // Both threads write whole messages to the client.
    let client = Arc::new(Mutex::new(File::from(client_out)));
    let (to_client, answers) = (Arc::clone(&client), client);
    let from_client = Arc::clone(&rewriter);
    let mut to_browser = File::from(to_browser);
    spawn("client-to-browser", move || {
        // An error means that one end closed. Returning drops the browser's end, which tells the browser to quit.
        let _ = forward(client_in.into(), &[], |message| match from_client.of_client(message.payload()) {
            Action::Pass => write_all(&mut to_browser, message.framed()),
            Action::Replace(replacement) => write_all(&mut to_browser, &cdp_pipe::encode(replacement)),
            Action::Answer(answer) => write_shared(&answers, &cdp_pipe::encode(answer)),
        });
    })?;
    spawn("browser-to-client", move || {
        let _ =
            forward(from_browser.into(), &unread, |message| match rewriter.of_browser(message.payload()) {
                Some(replacement) => write_shared(&to_client, &cdp_pipe::encode(replacement)),
                None => write_shared(&to_client, message.framed()),
            });
    })
}

fn write_shared(to: &Mutex<File>, bytes: &[u8]) -> io::Result<()> {
    let mut to = to.lock().map_err(|_| io::ErrorKind::Other)?;
    write_all(&mut to, bytes)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).stack_size(256 * 1024).spawn(work).map(drop)
}

/// Handles the messages in `unread`, then those read from `from`.
fn forward(
    mut from: File,
    unread: &[u8],
    mut handle: impl FnMut(Message<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut decoder = Decoder::new(MAX_MESSAGE);
    decoder.feed(unread);
    let mut flood = FloodGuard::new(Instant::now());
    let mut chunk = vec![0; 64 * 1024];
    loop {
        while let Some(message) = decoder.next_message().map_err(io::Error::other)? {
            flood.message(message.payload());
            handle(message)?;
        }
        if let Some(pause) = flood.pause(Instant::now()) {
            if pause.is_first {
                crate::say("a flood of messages on the debugging pipe; it is read more slowly");
            }
            std::thread::sleep(pause.time);
        }
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                flood.read(length);
                decoder.feed(&chunk[..length]);
            }
            Err(error) => wait_or_fail(&from, PollFlags::POLLIN, error)?,
        }
    }
}

fn write_all(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) => wait_or_fail(to, PollFlags::POLLOUT, error)?,
        }
    }
    Ok(())
}

/// Waits until `file` is ready if the client made its pipe non-blocking; returns every other error.
fn wait_or_fail(file: &File, events: PollFlags, error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => {
            poll(&mut [PollFd::new(file.as_fd(), events)], PollTimeout::NONE)?;
            Ok(())
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::tests::rewriter;

    fn pipe() -> (OwnedFd, OwnedFd) {
        nix::unistd::pipe().expect("pipe")
    }

    #[test]
    fn messages_are_forwarded_unchanged_in_both_directions_until_one_end_closes() {
        let folder = tempfile::tempdir().expect("folder");
        let (client_read, client_write) = pipe();
        let (answer_read, answer_write) = pipe();
        let (to_read, to_write) = pipe();
        let (from_read, from_write) = pipe();
        let connection = Connection::new(from_read, to_write);
        start(client_read, answer_write, connection, Arc::new(rewriter(folder.path()))).expect("start");
        let big = vec![b'x'; 300_000];
        let mut writer = File::from(client_write);
        let sender = std::thread::spawn(move || {
            writer.write_all(b"{\"id\":1}\0").expect("write");
            writer.write_all(&big).expect("write");
            writer.write_all(b"\0").expect("write");
        });
        let mut got = Vec::new();
        File::from(to_read).read_to_end(&mut got).expect("read to the end");
        sender.join().expect("sender");
        assert_eq!(got.len(), 9 + 300_001);
        assert!(got.starts_with(b"{\"id\":1}\0xxx"));
        File::from(from_write).write_all(b"{\"answer\":true}\0").expect("write");
        let mut answer = String::new();
        File::from(answer_read).read_to_string(&mut answer).expect("read");
        assert_eq!(answer, "{\"answer\":true}\0");
    }
}
