//! The host folder of one run: staged downloads and the copy of a display's cookie.
//!
//! The folder belongs to the launcher's user, and the sandbox shows only what is in it. So the browser can write to its
//! subfolder, but it can neither replace nor rename it. If the browser has its own uid, the folder's group is the
//! browser's: bubblewrap runs as the browser's user and has to reach the subfolder by its path.
//!
//! It is removed at the end of the run. A killed launcher cannot remove its folder, so each new launcher removes the
//! folders that are not locked. The kernel releases a lock when its process ends.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown, lchown};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::{Mode, fchmod};

const PREFIX: &str = "browser-launcher-";
/// The modes of a folder: without and with a group that may pass through it.
const MODES: [u32; 2] = [0o700, 0o710];

#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    owner: Option<u32>,
    _lock: Flock<OwnedFd>,
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // If it fails, the next launcher tries again.
        let _ = kernel::untrusted::remove_tree(&self.path);
    }
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
        // From here on its own `drop` removes the folder.
        let run = RunFolder { path: folder.keep(), owner, _lock: lock };
        if let Some(gid) = owner {
            fchown(&*run._lock, None, Some(gid))?;
            fchmod(&*run._lock, Mode::from_bits_truncate(MODES[1]))?;
        }
        Ok(run)
    }

    /// A folder in it that the browser may write to.
    pub(crate) fn subfolder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        if let Some(uid) = self.owner {
            lchown(&path, Some(uid), Some(uid))?;
        }
        Ok(path)
    }

    /// An empty file or folder in it on which something of the host can be mounted.
    pub(crate) fn mount_point(&self, name: &str, is_folder: bool) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        match is_folder {
            true => fs::DirBuilder::new().mode(0o755).create(&path)?,
            false => drop(fs::File::options().write(true).create_new(true).open(&path)?),
        }
        Ok(path)
    }

    /// A file in it that the browser may read.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(content)?;
        if let Some(uid) = self.owner {
            fchown(&file, Some(uid), Some(uid))?;
        }
        Ok(path)
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
        let private = MODES.contains(&(meta.mode() & 0o777));
        if meta.is_dir() && meta.uid() == own && settled && private && lock(&entry.path()).is_ok() {
            // If it fails, the next launcher tries again.
            let _ = kernel::untrusted::remove_tree(&entry.path());
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
        assert_eq!(running.path.metadata().expect("meta").mode() & 0o777, 0o700);
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
        fs::File::open(&running.path)
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
