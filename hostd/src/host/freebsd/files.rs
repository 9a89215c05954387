//! Reads and writes files in and beside a clone's root without following symbolic links.
//!
//! The content of a clone's root is not trusted: any name in it may be a link to the host. Each folder is opened by openat(2)
//! relative to its parent with `O_NOFOLLOW`, and must belong to root and be writable by root only. A file is written under
//! a temporary name and moved by renameat(2), which replaces a link instead of following it.

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// A file or folder that hostd refuses to use.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnsafeFile {
    /// A system call failed.
    #[error("{name}")]
    System {
        /// The file or folder.
        name: String,
        /// Its error.
        #[source]
        error: io::Error,
    },
    /// Other users can change it.
    #[error("{name} could be changed by others (owner {owner}, mode {mode:o})")]
    Owner {
        /// The folder.
        name: String,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: libc::mode_t,
    },
}

impl UnsafeFile {
    /// The file does not exist.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, UnsafeFile::System { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

fn system(name: &str) -> impl FnOnce(Errno) -> UnsafeFile + '_ {
    move |error| UnsafeFile::System { name: name.to_owned(), error: error.into() }
}

/// A folder held by its descriptor, so that renaming its path has no effect.
#[derive(Debug)]
pub(super) struct Folder {
    held: OwnedFd,
}

const FOLDER: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// The temporary name of a file that is being written.
const UNFINISHED: &str = ".hostd.new";
const ATTEMPTS: u32 = 3;

impl Folder {
    /// A folder of the host. The administrator chose its path; its last component must not be a link.
    pub(super) fn open(path: &Path) -> Result<Folder, UnsafeFile> {
        let name = path.display().to_string();
        let held = nix::fcntl::open(path, FOLDER, Mode::empty()).map_err(system(&name))?;
        checked(held, &name)
    }

    /// A folder of any owner, only to inspect the names in it.
    pub(super) fn look_through(path: &Path) -> Result<Folder, UnsafeFile> {
        let name = path.display().to_string();
        let held = nix::fcntl::open(path, FOLDER, Mode::empty()).map_err(system(&name))?;
        Ok(Folder { held })
    }

    /// A folder in this one.
    pub(super) fn enter(&self, name: &str) -> Result<Folder, UnsafeFile> {
        let held = openat(&self.held, name, FOLDER, Mode::empty()).map_err(system(name))?;
        checked(held, name)
    }

    /// Write a file that everybody may read.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), UnsafeFile> {
        self.write_with_mode(name, text, 0o644)
    }

    /// Write a file that only root may read.
    pub(super) fn write_secret(&self, name: &str, text: &str) -> Result<(), UnsafeFile> {
        self.write_with_mode(name, text, 0o400)
    }

    /// Write a file atomically: readers see the old or the new content, and a link is replaced.
    fn write_with_mode(&self, name: &str, text: &str, mode: libc::mode_t) -> Result<(), UnsafeFile> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut attempt = 1;
        let file = loop {
            match openat(&self.held, UNFINISHED, flags, Mode::from_bits_truncate(mode)) {
                Ok(file) => break file,
                // Left by a crash, or part of the template.
                Err(Errno::EEXIST) if attempt < ATTEMPTS => self.remove(UNFINISHED)?,
                Err(error) => return Err(system(name)(error)),
            }
            attempt += 1;
        };
        File::from(file)
            .write_all(text.as_bytes())
            .map_err(|error| UnsafeFile::System { name: name.to_owned(), error })?;
        renameat(&self.held, UNFINISHED, &self.held, name).map_err(system(name))
    }

    /// Remove a file or a link. An absent file is success.
    pub(super) fn remove(&self, name: &str) -> Result<(), UnsafeFile> {
        match unlinkat(&self.held, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(system(name)(error)),
        }
    }

    /// Whether the name is a symbolic link. An absent file is none.
    pub(super) fn is_link(&self, name: &str) -> Result<bool, UnsafeFile> {
        match nix::sys::stat::fstatat(&self.held, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(seen) => Ok(kind(&seen) == SFlag::S_IFLNK),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(system(name)(error)),
        }
    }
}

fn kind(seen: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(seen.st_mode) & SFlag::S_IFMT
}

fn checked(held: OwnedFd, name: &str) -> Result<Folder, UnsafeFile> {
    let seen = fstat(held.as_fd()).map_err(system(name))?;
    let mode = seen.st_mode & 0o7777;
    if seen.st_uid != nix::unistd::geteuid().as_raw() || mode & 0o022 != 0 {
        return Err(UnsafeFile::Owner { name: name.to_owned(), owner: seen.st_uid, mode });
    }
    Ok(Folder { held })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn folder() -> (tempfile::TempDir, Folder) {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::open(temp.path()).unwrap();
        (temp, folder)
    }

    #[test]
    fn a_link_is_replaced_and_never_followed() {
        let (temp, folder) = folder();
        let victim = temp.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, temp.path().join("rc.conf")).unwrap();
        symlink(&victim, temp.path().join(UNFINISHED)).unwrap();
        folder.write("rc.conf", "ours\n").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        let written = temp.path().join("rc.conf");
        assert!(written.symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(written).unwrap(), "ours\n");
        assert!(!temp.path().join(UNFINISHED).exists());
        folder.write_secret("secret", "x").unwrap();
        let mode = temp.path().join("secret").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o400, "only root reads a secret");
        symlink(&victim, temp.path().join("browserd.pid")).unwrap();
        assert!(folder.is_link("browserd.pid").unwrap() && !folder.is_link("rc.conf").unwrap());
        assert!(!folder.is_link("nothing").unwrap());
    }

    #[test]
    fn folders_of_others_and_links_to_folders_are_not_entered() {
        let (temp, folder) = folder();
        symlink("/etc", temp.path().join("etc")).unwrap();
        assert!(matches!(folder.enter("etc"), Err(UnsafeFile::System { .. })));
        std::fs::create_dir(temp.path().join("open")).unwrap();
        std::fs::set_permissions(temp.path().join("open"), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(matches!(folder.enter("open"), Err(UnsafeFile::Owner { mode: 0o777, .. })));
        assert!(folder.enter("nothing").unwrap_err().is_absent());
    }

    #[test]
    fn nothing_but_files_is_removed() {
        let (temp, folder) = folder();
        std::fs::create_dir(temp.path().join("folder")).unwrap();
        folder.remove("nothing").unwrap();
        assert!(folder.write("folder", "text").is_err(), "a folder in the way is an error, not removed");
        assert!(temp.path().join("folder").is_dir());
    }
}
