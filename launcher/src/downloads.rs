//! Moves finished downloads from the sandbox to the folders that the client named.
//!
//! The browser writes to staging folders, so nothing in them is trusted. A compromised browser replaces a staging folder
//! or a file by a link, a FIFO or a hard link at any moment, to make this program copy or remove files of its user.
//! Therefore:
//!
//! * The parent of the staging area belongs to the launcher's user and is not visible in the sandbox. The browser can
//!   neither rename nor replace the area itself.
//! * Every folder is opened once, when it is made, and only its descriptor is used afterwards.
//! * Names are resolved in their folder only (`openat2` without links, mount points and paths).
//! * An entry is opened without any effect first. It is read only if it is a regular file of the browser's user with one
//!   hard link.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::dir::Dir;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};

use crate::blueprint::STAGING;
use crate::messages::Rewriter;

/// The largest file that is copied.
const MAX_BYTES: u64 = 16 << 30;
/// How many entries of a staging folder are looked at after one download.
const MAX_ENTRIES: usize = 1000;
/// How many folders a client may name.
const MAX_FOLDERS: usize = 4096;

/// The client's folders and their staging folders in the sandbox.
#[derive(Debug)]
pub(crate) struct Downloads {
    /// The folder that the browser sees as `STAGING`.
    area: OwnedFd,
    /// Folders that have the same path inside the sandbox and need no staging folder.
    shared: Vec<PathBuf>,
    /// The host's path of the profile, which the browser can write to.
    profile: Option<PathBuf>,
    /// The number of a staging folder is its index.
    folders: Vec<Folder>,
    /// The browser's uid, if it differs from the launcher's.
    owner: Option<u32>,
    /// Watches the staging folders for finished files.
    watch: Arc<Inotify>,
}

#[derive(Debug)]
struct Folder {
    staging: OwnedFd,
    wanted: PathBuf,
    target: OwnedFd,
    /// Files that got another name, because the client's folder had one of that name.
    renamed: HashMap<CString, String>,
}

impl Downloads {
    /// `area` is the host's path of `STAGING`. Its parent is out of the browser's reach.
    pub(crate) fn new(
        area: &Path,
        shared: Vec<PathBuf>,
        profile: Option<PathBuf>,
        owner: Option<u32>,
    ) -> io::Result<Self> {
        let area = open(area, FOLDER, Mode::empty())?;
        let watch = Arc::new(Inotify::init(InitFlags::IN_CLOEXEC)?);
        Ok(Downloads { area, shared, profile, folders: Vec::new(), owner, watch })
    }

    /// Completes a wait whenever the browser has renamed a file in a staging folder, which it does when a download is
    /// complete. Clients that do not ask for events look for the file in their folder.
    pub(crate) fn watch(&self) -> Arc<Inotify> {
        Arc::clone(&self.watch)
    }

    /// Whether the browser sees a folder at its own path.
    pub(crate) fn sees(&self, wanted: &Path) -> bool {
        self.shared.iter().any(|folder| wanted.starts_with(folder))
    }

    /// The path inside of the staging folder for a folder of the client.
    pub(crate) fn stage(&mut self, wanted: &Path) -> io::Result<PathBuf> {
        let number = match self.folders.iter().position(|folder| folder.wanted == wanted) {
            Some(number) => number,
            None => self.add(wanted)?,
        };
        Ok(Path::new(STAGING).join(number.to_string()))
    }

    fn add(&mut self, wanted: &Path) -> io::Result<usize> {
        if self.folders.len() >= MAX_FOLDERS {
            return Err(io::Error::other(format!("more than {MAX_FOLDERS} download folders")));
        }
        if !wanted.is_absolute() || wanted.components().any(|part| part == Component::ParentDir) {
            return Err(io::Error::other("the path is relative or contains `..`"));
        }
        // The browser could have put a link there, and the launcher would follow it.
        if self.profile.as_ref().is_some_and(|profile| wanted.starts_with(profile)) {
            return Err(io::Error::other("the folder is inside of the profile; use another one"));
        }
        // Chromium creates the folder too.
        std::fs::create_dir_all(wanted)?;
        let target = open(wanted, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let number = self.folders.len();
        let name = number.to_string();
        // The browser may make a folder of this name first, or replace the new one before it is opened. Whatever is
        // opened is a folder in the area, and that is all that the rest relies on.
        match mkdirat(&self.area, name.as_str(), Mode::S_IRWXU) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let name = CString::new(name)?;
        let entry = kernel::untrusted::open_entry(self.area.as_fd(), &name)?;
        let staging = openat(&entry, c".", FOLDER, Mode::empty())?;
        if let Some(uid) = self.owner {
            fchown(&staging, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
        }
        let path = format!("/proc/self/fd/{}", staging.as_raw_fd());
        self.watch.add_watch(path.as_str(), AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR)?;
        let renamed = HashMap::new();
        self.folders.push(Folder { staging, wanted: wanted.to_owned(), target, renamed });
        Ok(number)
    }

    /// Moves every finished file and tells the user what could not be moved.
    pub(crate) fn move_and_report(&mut self) {
        for problem in self.move_finished() {
            crate::say(&format!("a download was not moved: {problem}"));
        }
    }

    /// Moves every finished file. Returns what could not be moved.
    pub(crate) fn move_finished(&mut self) -> Vec<String> {
        let owner = self.owner.unwrap_or_else(|| nix::unistd::geteuid().as_raw());
        let mut problems = Vec::new();
        for folder in &mut self.folders {
            match folder.move_finished(owner) {
                Ok(refused) => problems.extend(refused),
                Err(error) => problems.push(format!("{}: {error}", folder.wanted.display())),
            }
        }
        problems
    }

    /// The client's path of a staged file; `None` if `staged` is not directly in a staging folder.
    pub(crate) fn host_path(&self, staged: &Path) -> Option<PathBuf> {
        let mut parts = staged.strip_prefix(STAGING).ok()?.components();
        let number: usize = parts.next()?.as_os_str().to_str()?.parse().ok()?;
        let Some(Component::Normal(name)) = parts.next() else {
            return None;
        };
        if parts.next().is_some() {
            return None;
        }
        let folder = self.folders.get(number)?;
        let renamed = CString::new(name.as_bytes()).ok().and_then(|name| folder.renamed.get(&name));
        Some(match renamed {
            Some(other) => folder.wanted.join(other),
            None => folder.wanted.join(name),
        })
    }
}

/// Moves finished downloads as soon as the browser has renamed them, for clients that ask for no events.
pub(crate) fn follow(rewriter: Arc<Rewriter>) -> io::Result<()> {
    let watch = rewriter.downloads().watch();
    let thread = std::thread::Builder::new().name("downloads".into()).stack_size(256 * 1024);
    // It ends with the process; a read that fails would fail again.
    thread.spawn(move || {
        while watch.read_events().is_ok() {
            rewriter.downloads().move_and_report();
        }
    })?;
    Ok(())
}

const FOLDER: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

impl Folder {
    /// Moves the finished files; returns the first entry that was refused and the number of others.
    fn move_finished(&mut self, owner: u32) -> io::Result<Option<String>> {
        let mut first = None;
        let mut refused = 0;
        let mut entries = Dir::from_fd(openat(&self.staging, c".", FOLDER, Mode::empty())?)?;
        for entry in entries.iter().take(MAX_ENTRIES) {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." || is_unfinished(name) {
                continue;
            }
            if let Err(error) = self.move_one(name, owner) {
                refused += 1;
                first.get_or_insert_with(|| format!("{}: {error}", name.to_string_lossy()));
            }
        }
        Ok(first.map(|text| match refused {
            1 => text,
            count => format!("{text} (and {} more)", count - 1),
        }))
    }

    /// Copies a file and removes it. It is copied instead of renamed, because the browser may have it open, and because
    /// the copy belongs to the client's user.
    fn move_one(&mut self, name: &CStr, owner: u32) -> io::Result<()> {
        let Some(text) = file_name(name) else {
            return Err(io::Error::other("such a file name is not used"));
        };
        let (mut source, size) = open_download(self.staging.as_fd(), name, owner)?;
        let (target, new_name) = create_new(self.target.as_fd(), text)?;
        if let Err(error) = copy(&mut source, &mut File::from(target), size) {
            unlinkat(&self.target, new_name.as_str(), UnlinkatFlags::NoRemoveDir)?;
            return Err(error);
        }
        self.renamed.remove(name);
        if new_name != text && self.renamed.len() < MAX_ENTRIES {
            self.renamed.insert(name.to_owned(), new_name);
        }
        // If the browser replaced the entry meanwhile, an entry of the same staging folder is removed.
        Ok(unlinkat(&self.staging, name, UnlinkatFlags::NoRemoveDir)?)
    }
}

/// Creates a file under a name that the client's folder does not have, like Chromium: `a.txt`, `a (1).txt`, …
fn create_new(folder: BorrowedFd<'_>, name: &str) -> io::Result<(OwnedFd, String)> {
    const TRIES: usize = 100;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let (stem, end) = match name.rfind('.') {
        Some(dot) => name.split_at(dot),
        None => (name, ""),
    };
    for number in 0..TRIES {
        let tried = if number == 0 { name.to_owned() } else { format!("{stem} ({number}){end}") };
        match openat(folder, tried.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR) {
            Ok(file) => return Ok((file, tried)),
            Err(nix::errno::Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::Error::other(format!("the folder has {TRIES} files of this name")))
}

/// Opens a regular file of the browser's user with one hard link, and returns its size.
fn open_download(folder: BorrowedFd<'_>, name: &CStr, owner: u32) -> io::Result<(File, u64)> {
    let entry = kernel::untrusted::open_entry(folder, name)?;
    let stat = fstat(&entry)?;
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let problem = if kind != SFlag::S_IFREG {
        "it is not a regular file"
    } else if stat.st_nlink != 1 {
        "it has another hard link"
    } else if stat.st_uid != owner {
        "it belongs to another user"
    } else if size > MAX_BYTES {
        "it is larger than 16 GiB"
    } else {
        // The magic link leads to exactly the inspected file, whatever its name means now.
        let path = format!("/proc/self/fd/{}", entry.as_raw_fd());
        return Ok((File::open(path)?, size));
    };
    Err(io::Error::other(problem))
}

/// Copies `size` bytes, even if the file grows meanwhile. Zeros become holes, so that a sparse file takes no space.
fn copy(source: &mut File, target: &mut File, size: u64) -> io::Result<()> {
    let mut source = source.take(size);
    let mut chunk = vec![0; 128 * 1024];
    let mut length = 0;
    loop {
        match source.read(&mut chunk) {
            Ok(0) => return target.set_len(length),
            Ok(count) if chunk[..count].iter().all(|byte| *byte == 0) => {
                length += count as u64;
                target.seek(SeekFrom::Start(length))?;
            }
            Ok(count) => {
                length += count as u64;
                target.write_all(&chunk[..count])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_unfinished(name: &CStr) -> bool {
    Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).extension().is_some_and(|end| end == "crdownload")
}

/// Chromium gives downloads no hidden names. A client's folder may be a home, where such a file would be a setting.
fn file_name(name: &CStr) -> Option<&str> {
    name.to_str().ok().filter(|text| !text.starts_with('.') && !text.contains(safe_text::is_hidden))
}

#[cfg(test)]
mod tests;
