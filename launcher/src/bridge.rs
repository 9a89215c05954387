//! Forwards messages between a client's debugging pipe and the browser's.
//!
//! The launcher owns the browser's pipe until the browser's sandbox is verified. From then on every message passes
//! through this module, unchanged with one exception: download folders. A client names a folder of the host (Playwright
//! makes a new one for each run), which is not visible in the sandbox. The browser gets a staging folder of the sandbox
//! instead. Finished downloads are moved to the client's folder before the client receives the event that reports them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cdp_pipe::{Decoder, FloodGuard};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::cdp::{Connection, MAX_MESSAGE, Parts};
use crate::downloads::Downloads;

/// The longest message that is searched for a download.
const MAX_DOWNLOAD_MESSAGE: usize = 64 * 1024;

/// Starts one thread for each direction. A thread ends when one of its pipes closes.
pub(crate) fn start(
    client_in: OwnedFd,
    client_out: OwnedFd,
    browser: Connection,
    downloads: Downloads,
) -> io::Result<()> {
    let Parts { from_browser, to_browser, unread } = browser.into_parts();
    let inbound = Arc::new(Mutex::new(Rewriter { downloads }));
    let outbound = Arc::clone(&inbound);
    spawn("client-to-browser", move || {
        let rewrite = |message: &[u8]| outbound.lock().ok()?.outbound(message);
        // An error means that one end closed. Returning drops the browser's end, which tells the browser to quit.
        let _ = forward(client_in.into(), to_browser.into(), &[], rewrite);
    })?;
    spawn("browser-to-client", move || {
        let rewrite = |message: &[u8]| inbound.lock().ok()?.inbound(message);
        let _ = forward(from_browser.into(), client_out.into(), &unread, rewrite);
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).stack_size(256 * 1024).spawn(work).map(drop)
}

/// Forwards the messages in `unread`, then those read from `from`. `rewrite` may replace a message.
fn forward(
    mut from: File,
    mut to: File,
    unread: &[u8],
    rewrite: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> io::Result<()> {
    let mut decoder = Decoder::new(MAX_MESSAGE);
    decoder.feed(unread);
    let mut flood = FloodGuard::new(Instant::now());
    let mut chunk = vec![0; 64 * 1024];
    loop {
        while let Some(message) = decoder.next_message().map_err(io::Error::other)? {
            flood.message(message.payload());
            match rewrite(message.payload()) {
                Some(replacement) => write_all(&mut to, &cdp_pipe::encode(replacement))?,
                None => write_all(&mut to, message.framed())?,
            }
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

/// Rewrites the messages about downloads.
#[derive(Debug)]
struct Rewriter {
    downloads: Downloads,
}

impl Rewriter {
    /// Handles a message of the client. Returns a replacement if it names a folder that the browser does not see.
    fn outbound(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let mut message = parse(message, b"setDownloadBehavior")?;
        if !matches!(message["method"].as_str()?, "Browser.setDownloadBehavior" | "Page.setDownloadBehavior")
        {
            return None;
        }
        let wanted = PathBuf::from(message["params"]["downloadPath"].as_str()?);
        if self.downloads.sees(&wanted) {
            return None;
        }
        match self.downloads.stage(&wanted) {
            Ok(staging) => {
                message["params"]["downloadPath"] = json!(staging.to_str()?);
                Some(message.to_string().into_bytes())
            }
            // The browser gets the client's path, which it does not see, and cancels the downloads.
            Err(error) => {
                crate::say(&format!("downloads to {} are not possible: {error}", wanted.display()));
                None
            }
        }
    }

    /// Handles a message of the browser. When a download is complete, moves it and returns the event with the client's
    /// path.
    fn inbound(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if self.downloads.is_empty() {
            return None;
        }
        let mut message = parse(message, b"downloadProgress")?;
        let progress =
            matches!(message["method"].as_str()?, "Browser.downloadProgress" | "Page.downloadProgress");
        if !progress || message["params"]["state"] != "completed" {
            return None;
        }
        for problem in self.downloads.move_finished() {
            crate::say(&format!("a download was not moved: {problem}"));
        }
        let staged = Path::new(message["params"]["filePath"].as_str()?);
        let host_path = self.downloads.host_path(staged)?;
        message["params"]["filePath"] = json!(host_path.to_str()?);
        Some(message.to_string().into_bytes())
    }
}

/// The message as JSON if it contains `word`. A message about downloads is short; parsing a long one would take many
/// times its size in memory.
fn parse(message: &[u8], word: &[u8]) -> Option<Value> {
    if message.len() > MAX_DOWNLOAD_MESSAGE || !contains(message, word) {
        return None;
    }
    serde_json::from_slice(message).ok()
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blueprint::STAGING;

    fn rewriter(area: &Path) -> Rewriter {
        let downloads = Downloads::new(area, vec!["/shared".into()], None, None).expect("area");
        Rewriter { downloads }
    }

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
        start(client_read, answer_write, connection, rewriter(folder.path()).downloads).expect("start");
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

    #[test]
    fn a_finished_download_is_moved_to_the_folder_that_the_client_named() {
        let area = tempfile::tempdir().expect("folder");
        let wanted = tempfile::tempdir().expect("folder");
        let mut rewriter = rewriter(area.path());
        let ask = |path: &str| {
            json!({"id": 1, "method": "Browser.setDownloadBehavior", "params": {"behavior": "allowAndName", "downloadPath": path}}).to_string()
        };
        let seen = rewriter.outbound(ask("/shared/x").as_bytes());
        assert_eq!(seen, None, "the folder is visible in the sandbox");
        assert_eq!(rewriter.outbound(b"{\"id\":2,\"method\":\"Page.enable\"}"), None);
        let changed =
            rewriter.outbound(ask(wanted.path().to_str().expect("utf-8")).as_bytes()).expect("changed");
        let changed: Value = serde_json::from_slice(&changed).expect("json");
        assert_eq!(changed["params"]["downloadPath"], format!("{STAGING}/0"));
        assert_eq!(changed["params"]["behavior"], "allowAndName");

        std::fs::write(area.path().join("0/guid-1"), "content").expect("write");
        let event = |more: usize| {
            json!({"method": "Browser.downloadProgress", "params": {"guid": "guid-1", "state": "completed", "filePath": format!("{STAGING}/0/guid-1"), "more": "x".repeat(more)}}).to_string()
        };
        assert_eq!(rewriter.inbound(event(MAX_DOWNLOAD_MESSAGE).as_bytes()), None, "too long");
        let changed = rewriter.inbound(event(0).as_bytes()).expect("changed");
        let changed: Value = serde_json::from_slice(&changed).expect("json");
        assert_eq!(changed["params"]["filePath"], wanted.path().join("guid-1").to_str().expect("utf-8"));
        assert_eq!(std::fs::read_to_string(wanted.path().join("guid-1")).expect("moved"), "content");
        assert!(!area.path().join("0/guid-1").exists());
    }
}
