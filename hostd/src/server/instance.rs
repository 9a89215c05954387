//! One daemon for one state folder: the lock that everything else relies on.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A daemon that was killed leaves its lock to the tool that it was just starting, until that has become another program.
const LAST_CHILD: Duration = Duration::from_secs(3);

/// Why this daemon may not use the state folder.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another one does.
    #[error("another hostd ({holder}) already uses {}; stop it, or give this one its own paths.state", .state.display())]
    Taken {
        /// The state folder.
        state: PathBuf,
        /// Its process, as it wrote it down.
        holder: String,
    },
    /// The folder cannot be used at all.
    #[error("the state folder {} cannot be used: {error}; make it writable for hostd", .state.display())]
    Unusable {
        /// The state folder.
        state: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// The lock; held as long as this value lives, and released by the kernel whatever happens to us.
#[derive(Debug)]
pub struct Instance {
    _lock: File,
}

impl Instance {
    /// Make the state folder if it is missing and take its lock.
    pub fn lock(state: &Path) -> Result<Instance, InstanceError> {
        let unusable = |error| InstanceError::Unusable { state: state.to_owned(), error };
        // To be walked through: the clones' users have their folders below it. What is secret is closed by itself.
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
        // For people only; the lock is what counts.
        file.set_len(0).and_then(|()| file.rewind()).map_err(unusable)?;
        writeln!(file, "{}", std::process::id()).map_err(unusable)?;
        Ok(Instance { _lock: file })
    }
}

/// Whether the process that wrote its number down is no more.
fn is_gone(holder: &str) -> bool {
    let pid = holder.parse().ok().filter(|pid| *pid > 0).map(nix::unistd::Pid::from_raw);
    pid.is_some_and(|pid| nix::sys::signal::kill(pid, None) == Err(nix::errno::Errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_child_of_a_killed_daemon_is_waited_for() {
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
    fn the_second_is_refused_until_the_first_is_gone() {
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
