//! The browser's debugging pipe as a Unix socket, for one client at a time.
//!
//! Messages are passed on whole (JSON ended by a zero byte, as on the pipe itself), so a client that goes away in the
//! middle of one cannot spoil the pipe for the next. What the browser says while nobody listens is dropped.

use cdp_pipe::Decoder;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};

/// A longer message is no debugging command but an attack on our memory.
const LONGEST: usize = 64 << 20;

/// The client that is connected now.
type Client = Arc<Mutex<Option<UnixStream>>>;

/// Serve the pipe on a socket. `ended` is called when the browser closes its end.
pub(super) fn start(
    listener: UnixListener,
    from_browser: OwnedFd,
    to_browser: OwnedFd,
    ended: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let client = Client::default();
    let (mut from_browser, to_browser) = (File::from(from_browser), File::from(to_browser));
    let current = client.clone();
    std::thread::Builder::new().name("from-browser".into()).spawn(move || {
        let tell = |message: &[u8]| {
            let mut client = current.lock().unwrap_or_else(PoisonError::into_inner);
            if client.as_mut().is_some_and(|stream| stream.write_all(message).is_err()) {
                *client = None;
            }
            Ok(())
        };
        if let Err(error) = messages(&mut from_browser, tell) {
            eprintln!("supervisor: the browser's pipe: {error}");
        }
        ended();
    })?;
    std::thread::Builder::new()
        .name("to-browser".into())
        .spawn(move || accept(&listener, &client, to_browser))?;
    Ok(())
}

fn accept(listener: &UnixListener, client: &Client, mut to_browser: File) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let Ok(copy) = stream.try_clone() else { continue };
        *client.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
        // Until this client goes; the next one waits in the queue of the socket.
        if let Err(error) = messages(&mut stream, |message| to_browser.write_all(message)) {
            eprintln!("supervisor: a client of the browser: {error}");
        }
        *client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Pass on every whole message until the end.
fn messages(from: &mut impl Read, mut pass: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut decoder = Decoder::new(LONGEST);
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        decoder.feed(&chunk[..count]);
        let too_large = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        while let Some(batch) = decoder.next_batch().map_err(too_large)? {
            pass(batch)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_whole_messages_are_passed_on() {
        let mut passed = Vec::new();
        let mut input: &[u8] = b"{\"a\":1}\0{\"b\":2}\0{\"half";
        messages(&mut input, |message| {
            passed.extend_from_slice(message);
            Ok(())
        })
        .unwrap();
        assert_eq!(passed, b"{\"a\":1}\0{\"b\":2}\0");
    }

    #[test]
    fn a_client_that_leaves_in_the_middle_spoils_nothing_for_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cdp");
        let listener = UnixListener::bind(&path).unwrap();
        let (browser_in, ours_out) = UnixStream::pair().unwrap();
        let (mut browser_out, ours_in) = UnixStream::pair().unwrap();
        let (told, ended) = std::sync::mpsc::channel();
        start(listener, ours_in.into(), ours_out.into(), move || told.send(()).unwrap()).unwrap();

        let mut first = UnixStream::connect(&path).unwrap();
        first.write_all(b"whole\0hal").unwrap();
        drop(first);
        let mut second = UnixStream::connect(&path).unwrap();
        second.write_all(b"next\0").unwrap();
        let mut seen = [0; 11];
        (&browser_in).read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"whole\0next\0");
        browser_out.write_all(b"answer\0").unwrap();
        let mut answer = [0; 7];
        second.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer\0");
        drop(browser_out);
        ended.recv_timeout(std::time::Duration::from_secs(5)).unwrap();
    }
}
