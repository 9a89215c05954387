//! The host folder of one run: staged downloads and the copy of a display's cookie.
//!
//! It is removed at the end of the run. A killed launcher cannot remove its folder, so each new launcher removes the
//! folders that are not locked. The kernel releases a lock when its process ends.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::Mode;

const PREFIX: &str = "browser-launcher-";

#[derive(Debug)]
pub(crate) struct RunFolder {
    folder: tempfile::TempDir,
    owner: Option<u32>,
    _lock: Flock<OwnedFd>,
}

impl RunFolder {
    /// `owner` is the browser's uid if it differs from the launcher's.
    pub(crate) fn new(owner: Option<u32>) -> io::Result<RunFolder> {
        Self::new_in(&std::env::temp_dir(), owner)
    }

    fn new_in(base: &Path, owner: Option<u32>) -> io::Result<RunFolder> {
        sweep(base);
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(base)?;
        let lock = lock(folder.path())?;
        if let Some(uid) = owner {
            chown(folder.path(), Some(uid), Some(uid))?;
        }
        Ok(RunFolder { folder, owner, _lock: lock })
    }

    /// A folder in it that the browser may write to.
    pub(crate) fn subfolder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::create_dir(&path)?;
        self.give(&path)?;
        Ok(path)
    }

    /// A file in it that the browser may read.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::write(&path, content)?;
        self.give(&path)?;
        Ok(path)
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        match self.owner {
            Some(uid) => chown(path, Some(uid), Some(uid)),
            None => Ok(()),
        }
    }
}

fn lock(folder: &Path) -> io::Result<Flock<OwnedFd>> {
    let fd = open(folder, OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    Flock::lock(fd, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Removes the folders of launchers that have ended. Only folders whose name, owner and mode match are removed. A new
/// folder may not be locked yet and is skipped.
fn sweep(base: &Path) {
    let own = nix::unistd::geteuid().as_raw();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let Some(meta) = named.then(|| entry.path().symlink_metadata().ok()).flatten() else {
            continue;
        };
        let settled =
            meta.modified().ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age.as_secs() >= 10);
        let owned = meta.uid() == own || (own == 0 && crate::folders::is_private_uid(meta.uid()));
        if meta.is_dir() && owned && settled && meta.mode() & 0o777 == 0o700 && lock(&entry.path()).is_ok() {
            // Does not follow links. If it fails, the next launcher tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_run_removes_its_folder_and_those_of_killed_runs() {
        let base = tempfile::tempdir().expect("base");
        let running = RunFolder::new_in(base.path(), None).expect("running");
        let downloads = running.subfolder("downloads").expect("folder");
        assert_eq!(running.folder.path().metadata().expect("meta").mode() & 0o777, 0o700);
        let old = |name: &str| {
            let path = base.path().join(name);
            fs::DirBuilder::new().create(&path).expect("mkdir");
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("chmod");
            fs::File::open(&path)
                .expect("open")
                .set_modified(SystemTime::now() - Duration::from_secs(60))
                .expect("age");
            path
        };
        let (killed, foreign) = (old("browser-launcher-killed"), old("somebody-elses"));
        fs::File::open(running.folder.path())
            .expect("open")
            .set_modified(SystemTime::now() - Duration::from_secs(60))
            .expect("age");
        drop(RunFolder::new_in(base.path(), None).expect("next"));
        assert!(!killed.exists(), "it was not locked");
        assert!(foreign.exists() && downloads.exists(), "others' folders, and those in use, stay");
        drop(running);
        assert_eq!(fs::read_dir(base.path()).expect("list").count(), 1);
    }
}
