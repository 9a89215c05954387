//! The lock that allows only one daemon for one state folder.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
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
    /// Create the state folder if it is missing and lock it.
    pub fn lock(state: &Path) -> Result<Instance, InstanceError> {
        let unusable = |error| InstanceError::Unusable { state: state.to_owned(), error };
        // 0711: the clones' users need to reach their folders below it. Secret files have modes of their own.
        DirBuilder::new().recursive(true).mode(0o711).create(state).map_err(unusable)?;
        let path = state.join("hostd.lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(unusable)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            let mut holder = String::new();
            let _ = file.rewind().and_then(|()| Read::by_ref(&mut file).take(32).read_to_string(&mut holder));
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
        // The process id is informational; only the lock matters.
        file.set_len(0).and_then(|()| file.rewind()).map_err(unusable)?;
        writeln!(file, "{}", std::process::id()).map_err(unusable)?;
        Ok(Instance { _lock: file })
    }
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
        let held = File::open(dir.path().join("hostd.lock")).unwrap();
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
