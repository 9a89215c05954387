//! Carries a client's debugging pipe to the browser and back.
//!
//! The launcher holds the browser's pipe itself until the browser has proved its sandbox; then every message goes
//! through here. Messages pass as they are, with one exception: a client that names a download folder names one of the
//! host (Playwright makes a new one for each run), which the browser does not see. It is given a folder of the sandbox
//! instead, and finished downloads are moved to where the client expects them before it hears that they are finished.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::blueprint::STAGING;
use crate::cdp::{Connection, Parts};

/// Starts carrying; two threads that end with their pipes.
pub(crate) fn start(
    client_in: OwnedFd,
    client_out: OwnedFd,
    browser: Connection,
    downloads: Downloads,
) -> io::Result<()> {
    let Parts {
        from_browser,
        to_browser,
        unread,
    } = browser.into_parts();
    let downloads = Arc::new(Mutex::new(downloads));
    let outbound = Arc::clone(&downloads);
    spawn("client-to-browser", move || {
        let rewrite = |message: &[u8]| outbound.lock().ok()?.outbound(message);
        // Either end closing is the end; dropping the browser's end tells the browser.
        let _ = carry(client_in.into(), to_browser.into(), Vec::new(), rewrite);
    })?;
    spawn("browser-to-client", move || {
        let rewrite = |message: &[u8]| downloads.lock().ok()?.inbound(message);
        let _ = carry(from_browser.into(), client_out.into(), unread, rewrite);
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new()
        .name(name.into())
        .stack_size(256 * 1024)
        .spawn(work)
        .map(drop)
}

/// Copies messages ended by zero bytes; `rewrite` may replace one. Clients may have set their pipes to non-blocking.
fn carry(
    mut from: File,
    mut to: File,
    mut pending: Vec<u8>,
    rewrite: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> io::Result<()> {
    let mut searched = 0;
    let mut chunk = vec![0; 64 * 1024];
    loop {
        while let Some(at) = pending[searched..].iter().position(|byte| *byte == 0) {
            let end = searched + at;
            match rewrite(&pending[..end]) {
                Some(mut other) => {
                    other.push(0);
                    write_all(&mut to, &other)?;
                }
                None => write_all(&mut to, &pending[..=end])?,
            }
            pending.drain(..=end);
            searched = 0;
        }
        searched = pending.len();
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => pending.extend_from_slice(&chunk[..length]),
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

fn wait_or_fail(file: &File, what: PollFlags, error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => {
            poll(&mut [PollFd::new(file.as_fd(), what)], PollTimeout::NONE)?;
            Ok(())
        }
        _ => Err(error),
    }
}

/// The folders of the host that clients named for downloads, and their stand-ins inside.
#[derive(Debug)]
pub(crate) struct Downloads {
    /// The host's side of the staging folder.
    staging: PathBuf,
    /// Folders that are the same inside and outside and need no stand-in.
    shared: Vec<PathBuf>,
    /// The n-th stand-in leads to the n-th folder.
    folders: Vec<PathBuf>,
    owner: Option<u32>,
}

impl Downloads {
    pub(crate) fn new(staging: &Path, shared: Vec<PathBuf>, owner: Option<u32>) -> Self {
        Downloads {
            staging: staging.to_owned(),
            shared,
            folders: Vec::new(),
            owner,
        }
    }

    /// A message of the client; `Some` when it must be changed.
    fn outbound(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if !contains(message, b"setDownloadBehavior") {
            return None;
        }
        let mut message: Value = serde_json::from_slice(message).ok()?;
        if !matches!(
            message["method"].as_str()?,
            "Browser.setDownloadBehavior" | "Page.setDownloadBehavior"
        ) {
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
        let stand_in = self.staging.join(number.to_string());
        fs::create_dir(&stand_in)?;
        if let Some(uid) = self.owner {
            std::os::unix::fs::lchown(&stand_in, Some(uid), Some(uid))?;
        }
        self.folders.push(folder);
        Ok(number)
    }

    /// A message of the browser; moves what is finished, and gives the client its own paths back.
    fn inbound(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if self.folders.is_empty() || !contains(message, b"downloadProgress") {
            return None;
        }
        let mut message: Value = serde_json::from_slice(message).ok()?;
        let progress = matches!(
            message["method"].as_str()?,
            "Browser.downloadProgress" | "Page.downloadProgress"
        );
        if !progress || message["params"]["state"] != "completed" {
            return None;
        }
        for (number, folder) in self.folders.iter().enumerate() {
            if let Err(error) = move_finished(&self.staging.join(number.to_string()), folder) {
                eprintln!(
                    "browser-launcher: a download could not be moved to {}: {error}",
                    folder.display()
                );
            }
        }
        let inside = PathBuf::from(message["params"]["filePath"].as_str()?);
        let rest = inside.strip_prefix(STAGING).ok()?;
        let mut parts = rest.components();
        let number: usize = parts.next()?.as_os_str().to_str()?.parse().ok()?;
        let outside = self.folders.get(number)?.join(parts.as_path());
        message["params"]["filePath"] = json!(outside.to_str()?);
        Some(message.to_string().into_bytes())
    }
}

/// Moves finished files. The folder is writable by the browser, so nothing in it is trusted: only plain files with one
/// name are taken, links are never followed, and the names come from the folder itself and cannot lead out of it.
fn move_finished(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let unfinished = Path::new(&entry.file_name())
            .extension()
            .is_some_and(|end| end == "crdownload");
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
        // Copied, not renamed: the browser may still hold the file open, and the copy belongs to the client's user.
        let mut target = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(to.join(entry.file_name()))?;
        io::copy(&mut source, &mut target)?;
        fs::remove_file(entry.path())?;
    }
    Ok(())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe() -> (OwnedFd, OwnedFd) {
        nix::unistd::pipe().expect("pipe")
    }

    #[test]
    fn messages_pass_unchanged_in_both_directions_until_an_end_closes() {
        let folder = tempfile::tempdir().expect("folder");
        let (client_read, client_write) = pipe();
        let (answer_read, answer_write) = pipe();
        let (to_read, to_write) = pipe();
        let (from_read, from_write) = pipe();
        let connection = Connection::new(from_read, to_write);
        start(
            client_read,
            answer_write,
            connection,
            Downloads::new(folder.path(), vec![], None),
        )
        .expect("start");
        let big = vec![b'x'; 300_000];
        let mut writer = File::from(client_write);
        let sender = std::thread::spawn(move || {
            writer.write_all(b"{\"id\":1}\0").expect("write");
            writer.write_all(&big).expect("write");
            writer.write_all(b"\0").expect("write");
        });
        let mut got = Vec::new();
        File::from(to_read)
            .read_to_end(&mut got)
            .expect("read to the end");
        sender.join().expect("sender");
        assert_eq!(got.len(), 9 + 300_001);
        assert!(got.starts_with(b"{\"id\":1}\0xxx"));
        File::from(from_write)
            .write_all(b"{\"answer\":true}\0")
            .expect("write");
        let mut answer = String::new();
        File::from(answer_read)
            .read_to_string(&mut answer)
            .expect("read");
        assert_eq!(answer, "{\"answer\":true}\0");
    }

    #[test]
    fn a_download_lands_where_the_client_wants_it() {
        let staging = tempfile::tempdir().expect("folder");
        let wanted = tempfile::tempdir().expect("folder");
        let mut downloads = Downloads::new(staging.path(), vec!["/shared".into()], None);
        let ask = |path: &str| {
            json!({"id": 1, "method": "Browser.setDownloadBehavior", "params": {"behavior": "allowAndName", "downloadPath": path}}).to_string()
        };
        assert_eq!(
            downloads.outbound(ask("/shared/x").as_bytes()),
            None,
            "a folder that the browser sees"
        );
        assert_eq!(
            downloads.outbound(b"{\"id\":2,\"method\":\"Page.enable\"}"),
            None
        );
        let changed = downloads
            .outbound(ask(wanted.path().to_str().expect("utf-8")).as_bytes())
            .expect("changed");
        let changed: Value = serde_json::from_slice(&changed).expect("json");
        assert_eq!(changed["params"]["downloadPath"], format!("{STAGING}/0"));
        assert_eq!(changed["params"]["behavior"], "allowAndName");

        fs::write(staging.path().join("0/guid-1"), "content").expect("write");
        fs::write(staging.path().join("0/guid-2.crdownload"), "half").expect("write");
        std::os::unix::fs::symlink("/etc/passwd", staging.path().join("0/trap")).expect("link");
        let event = json!({"method": "Browser.downloadProgress", "params": {"guid": "guid-1", "state": "completed", "filePath": format!("{STAGING}/0/guid-1")}});
        let changed = downloads
            .inbound(event.to_string().as_bytes())
            .expect("changed");
        let changed: Value = serde_json::from_slice(&changed).expect("json");
        assert_eq!(
            changed["params"]["filePath"],
            wanted.path().join("guid-1").to_str().expect("utf-8")
        );
        assert_eq!(
            fs::read_to_string(wanted.path().join("guid-1")).expect("moved"),
            "content"
        );
        assert!(
            !wanted.path().join("trap").exists()
                && !wanted.path().join("guid-2.crdownload").exists()
        );
        assert!(!staging.path().join("0/guid-1").exists());
    }
}
