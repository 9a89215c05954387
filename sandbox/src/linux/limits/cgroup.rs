//! A cgroup created directly in a folder that is delegated to the launcher.

use super::Unavailable;
use crate::Limits;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long killed processes may take to end.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The period of `cpu.max`, in microseconds.
const PERIOD: u64 = 100_000;

/// One cgroup, removed when dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup below `parent` and sets its limits.
    pub(crate) fn make(parent: &Path, limits: &Limits) -> Result<Cgroup, Unavailable> {
        enable_controllers(parent, limits)?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("sandbox-{}-{number}", std::process::id()));
        fs::create_dir(&path).map_err(failed("make", &path))?;
        let cgroup = Cgroup { path };
        for (file, value) in settings(limits) {
            cgroup.set(file, &value)?;
        }
        Ok(cgroup)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file to which a process writes "0" to enter.
    pub(crate) fn procs_file(&self) -> Result<OwnedFd, Unavailable> {
        let path = self.path.join("cgroup.procs");
        fs::File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map(OwnedFd::from)
            .map_err(failed("open", &path))
    }

    /// Writes a setting and reads it back. The kernel rounds some values, but never up.
    fn set(&self, file: &str, value: &str) -> Result<(), Unavailable> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(failed("write", &path))?;
        let kept = fs::read_to_string(&path).map_err(failed("read back", &path))?;
        let number = |text: &str| -> Option<u64> { text.split_whitespace().next()?.parse().ok() };
        match (number(&kept), number(value)) {
            (Some(kept), Some(wanted)) if kept <= wanted => Ok(()),
            _ => Err(Unavailable(format!("{}: wrote {value:?}, found {:?}", path.display(), kept.trim()))),
        }
    }
}

impl Drop for Cgroup {
    /// The processes were killed already, but the kernel counts them for a short time.
    /// `cgroup.kill` ends any that escaped.
    fn drop(&mut self) {
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        // Linux before 5.14 has no such file.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        while matches!(fs::remove_dir(&self.path), Err(error) if error.raw_os_error() == Some(libc::EBUSY))
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// File names and values for the limits that are set.
fn settings(limits: &Limits) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    if let Some(bytes) = limits.memory_bytes {
        settings.push(("memory.max", bytes.to_string()));
        // Otherwise the program could exceed the limit by swapping.
        settings.push(("memory.swap.max", "0".to_owned()));
    }
    if let Some(count) = limits.processes {
        settings.push(("pids.max", count.to_string()));
    }
    if let Some(percent) = limits.cpu_percent {
        let quota = u64::from(percent) * PERIOD / 100;
        settings.push(("cpu.max", format!("{quota} {PERIOD}")));
    }
    settings
}

/// Enables the controllers that the limits need for cgroups below `parent`.
fn enable_controllers(parent: &Path, limits: &Limits) -> Result<(), Unavailable> {
    let words = |file: &str| -> Result<Vec<String>, Unavailable> {
        let path = parent.join(file);
        let text = fs::read_to_string(&path).map_err(failed("not a cgroup v2 folder: read", &path))?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    };
    let needed = [
        ("memory", limits.memory_bytes.is_some()),
        ("pids", limits.processes.is_some()),
        ("cpu", limits.cpu_percent.is_some()),
    ];
    let (offered, enabled) = (words("cgroup.controllers")?, words("cgroup.subtree_control")?);
    for (controller, is_needed) in needed {
        let has = |list: &[String]| list.iter().any(|word| word == controller);
        if !is_needed || has(&enabled) {
            continue;
        }
        if !has(&offered) {
            return Err(Unavailable(format!(
                "{}: the {controller} controller is not delegated",
                parent.display()
            )));
        }
        let path = parent.join("cgroup.subtree_control");
        fs::write(&path, format!("+{controller}")).map_err(failed("enable a controller in", &path))?;
    }
    Ok(())
}

fn failed(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Unavailable {
    let text = format!("{what} {}", path.display());
    move |error| Unavailable(format!("{text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delegated(controllers: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("folder");
        fs::write(folder.path().join("cgroup.controllers"), controllers).expect("write");
        fs::write(folder.path().join("cgroup.subtree_control"), "").expect("write");
        folder
    }

    fn limits() -> Limits {
        Limits {
            memory_bytes: Some(64 << 20),
            processes: Some(50),
            cpu_percent: Some(150),
            ..Limits::default()
        }
    }

    #[test]
    fn limits_are_written_to_the_cgroup_files() {
        let folder = delegated("cpu memory pids");
        let cgroup = Cgroup::make(folder.path(), &limits()).expect("made");
        let read = |file: &str| fs::read_to_string(cgroup.path().join(file)).expect("read");
        assert_eq!(read("memory.max"), "67108864");
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("pids.max"), "50");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert!(cgroup.procs_file().is_ok());
    }

    #[test]
    fn a_controller_that_is_not_delegated_is_named() {
        let folder = delegated("cpu pids");
        let Err(Unavailable(why)) = Cgroup::make(folder.path(), &limits()) else {
            panic!("memory is not delegated");
        };
        assert!(why.contains("memory"), "{why}");
    }

    #[test]
    fn an_ordinary_folder_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(Cgroup::make(folder.path(), &limits()).is_err());
    }
}
