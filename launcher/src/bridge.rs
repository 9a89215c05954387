//! Forwards messages between a client's debugging pipe and the browser's.
//!
//! The launcher owns the browser's pipe until the browser's sandbox is verified. From then on every message passes
//! through this module, unchanged with one exception: download folders. A client names a folder of the host (Playwright
//! makes a new one for each run), which is not visible in the sandbox. The browser gets a staging folder of the sandbox
//! instead. Finished downloads are moved to the client's folder before the client receives the event that reports them.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cdp_pipe::{Decoder, FloodGuard};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::blueprint::STAGING;
use crate::cdp::{Connection, MAX_MESSAGE, Parts};

/// Starts one thread for each direction. A thread ends when one of its pipes closes.
pub(crate) fn start(
    client_in: OwnedFd,
    client_out: OwnedFd,
    browser: Connection,
    downloads: Downloads,
) -> io::Result<()> {
    let Parts { from_browser, to_browser, unread } = browser.into_parts();
    let downloads = Arc::new(Mutex::new(downloads));
    let outbound = Arc::clone(&downloads);
    spawn("client-to-browser", move || {
        let rewrite = |message: &[u8]| outbound.lock().ok()?.outbound(message);
        // An error means that one end closed. Returning drops the browser's end, which tells the browser to quit.
        let _ = forward(client_in.into(), to_browser.into(), &[], rewrite);
    })?;
    spawn("browser-to-client", move || {
        let rewrite = |message: &[u8]| downloads.lock().ok()?.inbound(message);
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
                eprintln!(
                    "browser-launcher: a flood of messages on the debugging pipe; it is read more slowly"
                );
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

/// The host folders that the client named for downloads, and their staging folders in the sandbox.
#[derive(Debug)]
pub(crate) struct Downloads {
    /// The parent of the staging folders, as a path on the host.
    staging: PathBuf,
    /// Folders that have the same path inside the sandbox and need no staging folder.
    shared: Vec<PathBuf>,
    /// Downloads in staging folder `n` are moved to `folders[n]`.
    folders: Vec<PathBuf>,
    owner: Option<u32>,
}

impl Downloads {
    pub(crate) fn new(staging: &Path, shared: Vec<PathBuf>, owner: Option<u32>) -> Self {
        Downloads { staging: staging.to_owned(), shared, folders: Vec::new(), owner }
    }

    /// Handles a message of the client. Returns a replacement if it names a host folder.
    fn outbound(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if !contains(message, b"setDownloadBehavior") {
            return None;
        }
        let mut message: Value = serde_json::from_slice(message).ok()?;
        if !matches!(message["method"].as_str()?, "Browser.setDownloadBehavior" | "Page.setDownloadBehavior")
        {
            return None;
        }
        let wanted = PathBuf::from(message["params"]["downloadPath"].as_str()?);
        if self.shared.iter().any(|folder| wanted.starts_with(folder)) {
            return None;
        }
        let number = match self.folders.iter().position(|folder| *folder == wanted) {
            Some(number) => number,
            None => self.add(wanted).ok()?,
        };
        message["params"]["downloadPath"] = json!(format!("{STAGING}/{number}"));
        Some(message.to_string().into_bytes())
    }

    fn add(&mut self, folder: PathBuf) -> io::Result<usize> {
        let number = self.folders.len();
        let staging = self.staging.join(number.to_string());
        fs::create_dir(&staging)?;
        if let Some(uid) = self.owner {
            std::os::unix::fs::lchown(&staging, Some(uid), Some(uid))?;
        }
        self.folders.push(folder);
        Ok(number)
    }

    /// Handles a message of the browser. When a download is complete, moves it and returns the event with the host path.
    fn inbound(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if self.folders.is_empty() || !contains(message, b"downloadProgress") {
            return None;
        }
        let mut message: Value = serde_json::from_slice(message).ok()?;
        let progress =
            matches!(message["method"].as_str()?, "Browser.downloadProgress" | "Page.downloadProgress");
        if !progress || message["params"]["state"] != "completed" {
            return None;
        }
        for (number, folder) in self.folders.iter().enumerate() {
            if let Err(error) = move_finished(&self.staging.join(number.to_string()), folder) {
                eprintln!("browser-launcher: cannot move a download to {}: {error}", folder.display());
            }
        }
        let staged = PathBuf::from(message["params"]["filePath"].as_str()?);
        let rest = staged.strip_prefix(STAGING).ok()?;
        let mut parts = rest.components();
        let number: usize = parts.next()?.as_os_str().to_str()?.parse().ok()?;
        let host_path = self.folders.get(number)?.join(parts.as_path());
        message["params"]["filePath"] = json!(host_path.to_str()?);
        Some(message.to_string().into_bytes())
    }
}

/// Moves finished files. The browser can write to `from`, so its content is not trusted: only regular files with one
/// hard link are moved, O_NOFOLLOW refuses symbolic links, and file names come from readdir and contain no slash.
fn move_finished(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let unfinished = Path::new(&entry.file_name()).extension().is_some_and(|end| end == "crdownload");
        if unfinished {
            continue;
        }
        let mut source = match File::options()
            .read(true)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
            .open(entry.path())
        {
            Ok(source) => source,
            Err(_) => continue,
        };
        let meta = source.metadata()?;
        if !meta.is_file() || meta.nlink() != 1 {
            continue;
        }
        // Copied instead of renamed: the browser may have the file open, and the copy is owned by the client's user.
        let mut target =
            File::options().write(true).create_new(true).mode(0o600).open(to.join(entry.file_name()))?;
        io::copy(&mut source, &mut target)?;
        fs::remove_file(entry.path())?;
    }
    Ok(())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        start(client_read, answer_write, connection, Downloads::new(folder.path(), vec![], None))
            .expect("start");
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
        let staging = tempfile::tempdir().expect("folder");
        let wanted = tempfile::tempdir().expect("folder");
        let mut downloads = Downloads::new(staging.path(), vec!["/shared".into()], None);
        let ask = |path: &str| {
            json!({"id": 1, "method": "Browser.setDownloadBehavior", "params": {"behavior": "allowAndName", "downloadPath": path}}).to_string()
        };
        assert_eq!(
            downloads.outbound(ask("/shared/x").as_bytes()),
            None,
            "the folder is visible in the sandbox"
        );
        assert_eq!(downloads.outbound(b"{\"id\":2,\"method\":\"Page.enable\"}"), None);
        let changed =
            downloads.outbound(ask(wanted.path().to_str().expect("utf-8")).as_bytes()).expect("changed");
        let changed: Value = serde_json::from_slice(&changed).expect("json");
        assert_eq!(changed["params"]["downloadPath"], format!("{STAGING}/0"));
        assert_eq!(changed["params"]["behavior"], "allowAndName");

        fs::write(staging.path().join("0/guid-1"), "content").expect("write");
        fs::write(staging.path().join("0/guid-2.crdownload"), "half").expect("write");
        std::os::unix::fs::symlink("/etc/passwd", staging.path().join("0/trap")).expect("link");
        let event = json!({"method": "Browser.downloadProgress", "params": {"guid": "guid-1", "state": "completed", "filePath": format!("{STAGING}/0/guid-1")}});
        let changed = downloads.inbound(event.to_string().as_bytes()).expect("changed");
        let changed: Value = serde_json::from_slice(&changed).expect("json");
        assert_eq!(changed["params"]["filePath"], wanted.path().join("guid-1").to_str().expect("utf-8"));
        assert_eq!(fs::read_to_string(wanted.path().join("guid-1")).expect("moved"), "content");
        assert!(!wanted.path().join("trap").exists() && !wanted.path().join("guid-2.crdownload").exists());
        assert!(!staging.path().join("0/guid-1").exists());
    }
}
