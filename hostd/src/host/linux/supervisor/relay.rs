//! The browser's debugging pipe as a Unix socket, for one client at a time.
//!
//! Only whole messages are forwarded (JSON and a NUL byte, as on the pipe itself), so a client that disconnects in the middle
//! of one does not break the pipe for the next client. Messages of the browser are dropped while no client is connected. A
//! browser that floods its pipe is read more slowly.

use super::output::OutputLog;
use cdp_pipe::{Decoder, FloodGuard, Pause};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The largest message that is forwarded. It is held in memory until it is complete.
const LONGEST_MESSAGE: usize = 64 << 20;

/// The client that is connected now.
type CurrentClient = Arc<Mutex<Option<UnixStream>>>;

/// Serve the pipe on a socket. `ended` is called when the browser closes its end.
pub(super) fn start(
    listener: UnixListener,
    from_browser: OwnedFd,
    to_browser: OwnedFd,
    log: &Arc<OutputLog>,
    ended: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let client = CurrentClient::default();
    let (mut from_browser, to_browser) = (File::from(from_browser), File::from(to_browser));
    let (current, log_of_browser, log) = (client.clone(), log.clone(), log.clone());
    std::thread::Builder::new().name("from-browser".into()).spawn(move || {
        let send = |messages: &[u8]| {
            let mut client = current.lock().unwrap_or_else(PoisonError::into_inner);
            if client.as_mut().is_some_and(|stream| stream.write_all(messages).is_err()) {
                *client = None;
            }
            Ok(())
        };
        let wait = |pause: Pause| {
            if pause.is_first {
                log_of_browser.note("the browser floods its debugging pipe; it is read more slowly");
            }
            std::thread::sleep(pause.time);
        };
        if let Err(error) = forward(&mut from_browser, send, wait) {
            log_of_browser.note(format_args!("the browser's pipe: {error}"));
        }
        ended();
    })?;
    std::thread::Builder::new()
        .name("to-browser".into())
        .spawn(move || accept(&listener, &client, to_browser, &log))?;
    Ok(())
}

fn accept(listener: &UnixListener, client: &CurrentClient, mut to_browser: File, log: &OutputLog) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let Ok(copy) = stream.try_clone() else { continue };
        *client.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
        // Until this client disconnects; the next one waits in the queue of the socket.
        let send = |messages: &[u8]| to_browser.write_all(messages);
        if let Err(error) = forward(&mut stream, send, |pause| std::thread::sleep(pause.time)) {
            log.note(format_args!("a client of the browser: {error}"));
        }
        *client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Forward every whole message until the end of the stream.
fn forward(
    from: &mut impl Read,
    mut send: impl FnMut(&[u8]) -> io::Result<()>,
    mut wait: impl FnMut(Pause),
) -> io::Result<()> {
    let mut decoder = Decoder::new(LONGEST_MESSAGE);
    let mut flood = FloodGuard::new(Instant::now());
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        flood.read(count);
        decoder.feed(&chunk[..count]);
        let too_large = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        while let Some(batch) = decoder.next_batch().map_err(too_large)? {
            flood.batch(batch);
            send(batch)?;
        }
        if let Some(pause) = flood.pause(Instant::now()) {
            wait(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_whole_messages_are_forwarded() {
        let mut sent = Vec::new();
        let mut input: &[u8] = b"{\"a\":1}\0{\"b\":2}\0{\"half";
        let send = |messages: &[u8]| {
            sent.extend_from_slice(messages);
            Ok(())
        };
        forward(&mut input, send, |pause| panic!("{pause:?}")).unwrap();
        assert_eq!(sent, b"{\"a\":1}\0{\"b\":2}\0");
    }

    #[test]
    fn a_flood_is_read_slowly_and_noted_once() {
        let mut pauses = Vec::new();
        forward(&mut io::repeat(0).take(1 << 20), |_| Ok(()), |pause| pauses.push(pause)).unwrap();
        assert!(pauses.len() > 10, "a pause after nearly every read: {}", pauses.len());
        assert_eq!(pauses.iter().filter(|pause| pause.is_first).count(), 1);
        let paused: Duration = pauses.iter().map(|pause| pause.time).sum();
        assert!(paused > Duration::from_secs(5), "{paused:?}");
        // A message without end is refused before it takes more memory than a message may.
        let endless = forward(&mut io::repeat(b'x'), |_| Ok(()), |_| ());
        assert!(endless.unwrap_err().to_string().contains("larger than"));
    }

    #[test]
    fn a_client_that_leaves_in_the_middle_breaks_nothing_for_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cdp");
        let listener = UnixListener::bind(&path).unwrap();
        let log = Arc::new(OutputLog::create(&folder.path().join("log")).unwrap());
        let (browser_in, ours_out) = UnixStream::pair().unwrap();
        let (mut browser_out, ours_in) = UnixStream::pair().unwrap();
        let (told, ended) = std::sync::mpsc::channel();
        start(listener, ours_in.into(), ours_out.into(), &log, move || told.send(()).unwrap()).unwrap();

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
        ended.recv_timeout(Duration::from_secs(5)).unwrap();
    }
}
