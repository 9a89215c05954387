//! The lock that allows only one daemon for one state folder.

use crate::disk::make_folder;
use crate::record::STATE_MODE;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A killed daemon's child shares its flock(2) until the child's exec(2) closes the descriptor.
const LAST_CHILD: Duration = Duration::from_secs(3);

/// Why this daemon may not use the state folder.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another daemon uses it.
    #[error("another hostd ({holder}) already uses {}; stop it, or give this one its own paths.state", .state.display())]
    Taken {
        /// The state folder.
        state: PathBuf,
        /// The process id from the lock file.
        holder: String,
    },
    /// The folder cannot be used.
    #[error("the state folder {} cannot be used: {error}; make it writable for hostd", .state.display())]
    Unusable {
        /// The state folder.
        state: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// The lock. The kernel releases it when the process ends, also after a crash.
#[derive(Debug)]
pub struct Instance {
    _lock: File,
}

impl Instance {
    /// Create the state folder if it is missing and lock it. The folder itself is locked and not a file in it, so that this
    /// works on a disk that is full or read-only.
    pub fn lock(state: &Path) -> Result<Instance, InstanceError> {
        let unusable = |error| InstanceError::Unusable { state: state.to_owned(), error };
        make_folder(state, STATE_MODE).map_err(unusable)?;
        let folder = File::open(state).map_err(unusable)?;
        let path = state.join("hostd.lock");
        let began = Instant::now();
        loop {
            match folder.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            let holder = holder.trim();
            if !is_gone(holder) || began.elapsed() >= LAST_CHILD {
                let holder = match holder {
                    "" => "its process is not known".to_owned(),
                    pid => format!("process {pid}"),
                };
                return Err(InstanceError::Taken { state: state.to_owned(), holder });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Err(error) = write_holder(&path) {
            tracing::warn!(path = %path.display(), %error, "the lock's holder cannot be written; only the lock matters");
        }
        Ok(Instance { _lock: folder })
    }
}

/// Write the process id, for the message of a second daemon.
fn write_holder(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    writeln!(file, "{}", std::process::id())
}

/// Whether the process in the lock file has ended.
fn is_gone(holder: &str) -> bool {
    let pid = holder.parse().ok().filter(|pid| *pid > 0).map(nix::unistd::Pid::from_raw);
    pid.is_some_and(|pid| nix::sys::signal::kill(pid, None) == Err(nix::errno::Errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_waits_for_the_last_child_of_a_killed_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        std::fs::write(dir.path().join("hostd.lock"), format!("{}\n", child.id())).unwrap();
        let held = File::open(dir.path()).unwrap();
        held.lock().unwrap();
        let releasing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        Instance::lock(dir.path()).unwrap();
        releasing.join().unwrap();
    }

    #[test]
    fn a_second_daemon_is_refused_until_the_first_ends() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/state");
        let first = Instance::lock(&state).unwrap();
        let error = Instance::lock(&state).unwrap_err();
        assert!(matches!(error, InstanceError::Taken { .. }), "{error}");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        Instance::lock(&state).unwrap();
    }

    #[test]
    fn an_unusable_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Instance::lock(&file.join("state")).unwrap_err().to_string();
        assert!(error.contains("file/state"), "{error}");
    }
}
