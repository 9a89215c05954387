//! What a clone may use up: a cgroup v2 per clone where the system has it, else what the kernel keeps per process.
//!
//! Without cgroup v2 only the number of processes (per user id, which is the clone's own) and open files are bounded;
//! memory and processor time are not. The configuration decides whether that will do.

use super::errors::{ErrorContext, refused};
use super::{cgroup, files};
use crate::api::Limits;
use crate::config::LimitsDemand;
use crate::host::{CloneSpec, HostErrorKind, HostResult};
use std::io;
use std::path::{Path, PathBuf};

/// The file with the limits that are on. It is the first that is made in a clone's run folder and the last to go.
pub(super) const FILE: &str = "limits";

/// Why nobody keeps rates of reading and writing: a clone's files are in memory, or written by the threads of ZFS, and
/// what it reads of the system's files comes from the page cache that all share. `io.max` sees nothing of either.
pub(super) const RATES: &str = "rates of reading from and writing to disk are not kept on Linux";

/// Whether there are limits that nobody keeps here.
pub(super) fn has_rates(limits: &Limits) -> bool {
    limits.read_bytes_per_second.is_some() || limits.write_bytes_per_second.is_some()
}

/// Who keeps the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LimitBackend {
    /// A cgroup per clone, below this folder.
    Cgroup(PathBuf),
    /// The kernel's limits per process and user.
    Rlimits {
        /// Why there is no cgroup.
        why: String,
    },
}

impl LimitBackend {
    /// Find out who can keep limits here.
    pub(super) fn find(parent: &Path) -> LimitBackend {
        match cgroup::find_parent(parent) {
            Ok(parent) => LimitBackend::Cgroup(parent),
            Err(why) => LimitBackend::Rlimits { why },
        }
    }

    pub(super) fn word(&self) -> String {
        match self {
            LimitBackend::Cgroup(parent) => format!("cgroup v2 below {}", parent.display()),
            LimitBackend::Rlimits { .. } => {
                "rlimits and pid namespace (memory and cpu are not bounded)".to_owned()
            }
        }
    }

    /// Which of these limits nobody keeps here; of rates see [`RATES`].
    pub(super) fn not_kept(&self, limits: &Limits) -> Vec<&'static str> {
        let by_cgroup = [("memory_bytes", limits.memory_bytes), ("cpu_percent", limits.cpu_percent)];
        let rates = [
            ("read_bytes_per_second", limits.read_bytes_per_second),
            ("write_bytes_per_second", limits.write_bytes_per_second),
        ];
        let missing = match self {
            LimitBackend::Cgroup(_) => &[][..],
            LimitBackend::Rlimits { .. } => &by_cgroup[..],
        };
        missing.iter().chain(&rates).filter(|(_, limit)| limit.is_some()).map(|(name, _)| *name).collect()
    }

    /// The clone's cgroup, if there are cgroups.
    pub(super) fn cgroup(&self, name: &str) -> Option<PathBuf> {
        match self {
            LimitBackend::Cgroup(parent) => Some(parent.join(name)),
            LimitBackend::Rlimits { .. } => None,
        }
    }

    /// The names below the folder of the clones' cgroups, whoever made them.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let LimitBackend::Cgroup(parent) = self else { return Ok(Vec::new()) };
        match std::fs::read_dir(parent) {
            Ok(entries) => {
                Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Put the limits in place.
    pub(super) fn ensure(&self, demand: LimitsDemand, spec: &CloneSpec, run: &Path) -> HostResult<()> {
        let name = spec.names.name.as_str();
        let what = ErrorContext {
            object: format!("limits of {name}"),
            hint: "hostctl doctor tells what the kernel lacks",
        };
        let not_ready = |why| refused(what.object.clone(), "keep the limits", HostErrorKind::NotReady, why);
        match (self, demand) {
            (LimitBackend::Cgroup(parent), _) => cgroup::ensure_parent(parent).map_err(not_ready)?,
            (LimitBackend::Rlimits { why }, LimitsDemand::Cgroup) => return Err(not_ready(why.clone())),
            (LimitBackend::Rlimits { .. }, LimitsDemand::Available) => {}
        }
        if demand == LimitsDemand::Cgroup && has_rates(&spec.limits) {
            return Err(not_ready(format!("{RATES}; ask for none, or set linux.limits = \"available\"")));
        }
        files::make_folders(run, 0o700).map_err(|error| what.failed("no run folder", error))?;
        if let Some(cgroup) = self.cgroup(name) {
            cgroup::write(&cgroup, &spec.limits)
                .map_err(|error| what.failed("the cgroup cannot be set", error))?;
        }
        let text = serde_json::to_vec(&spec.limits).expect("plain data");
        files::write_atomically(&run.join(FILE), &text)
            .map_err(|error| what.failed("cannot be written", error))
    }

    /// The limits that are on. A run folder without any is shown as one without limits, so that it is not overlooked.
    pub(super) fn look(&self, name: &str, run: &Path) -> io::Result<Option<Limits>> {
        let cgroup = self.cgroup(name).filter(|cgroup| cgroup.exists());
        if !run.exists() && cgroup.is_none() {
            return Ok(None);
        }
        let limits: Limits = match std::fs::read(run.join(FILE)) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Limits::default(),
            Err(error) => return Err(error),
        };
        let kept = match (&cgroup, self) {
            (Some(cgroup), _) => cgroup::keeps(cgroup, &limits),
            (None, LimitBackend::Cgroup(_)) => false,
            (None, LimitBackend::Rlimits { .. }) => true,
        };
        Ok(Some(if kept { limits } else { Limits::default() }))
    }

    /// Whether the limits of a running clone can become those: what the cgroup counts for all of its processes can, what
    /// each process or the file system brought along at its start cannot.
    pub(super) fn can_change(&self, from: &Limits, to: &Limits) -> bool {
        let fixed = |limits: &Limits| match self {
            LimitBackend::Cgroup(_) => {
                Limits { memory_bytes: None, processes: None, cpu_percent: None, ..*limits }
            }
            LimitBackend::Rlimits { .. } => *limits,
        };
        fixed(from) == fixed(to)
    }

    /// Remove the limits, and the run folder with whatever else is left in it.
    pub(super) fn remove(&self, name: &str, run: &Path, others: &[&str]) -> HostResult<()> {
        let what = ErrorContext { object: format!("limits of {name}"), hint: "look for processes in it" };
        if let Some(cgroup) = self.cgroup(name) {
            files::remove_empty(&cgroup)
                .map_err(|error| what.failed("the cgroup cannot be removed", error))?;
        }
        let gone = || {
            for file in others {
                files::remove_leftovers(run, file)?;
                files::remove_file(&run.join(file))?;
            }
            files::remove_leftovers(run, FILE)?;
            files::remove_file(&run.join(FILE))?;
            files::remove_empty(run)
        };
        gone().map_err(|error| what.failed("the run folder cannot be removed", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_cgroup_counts_can_change_while_a_clone_runs() {
        let wish = |change: fn(&mut Limits)| {
            let mut limits =
                Limits { memory_bytes: Some(2 << 30), open_files: Some(64), ..Limits::default() };
            change(&mut limits);
            limits
        };
        let (cgroup, rlimits) =
            (LimitBackend::Cgroup("/none".into()), LimitBackend::Rlimits { why: "a test".into() });
        let base = wish(|_| {});
        assert!(cgroup.can_change(&base, &base) && rlimits.can_change(&base, &base));
        for change in [
            |l: &mut Limits| l.memory_bytes = Some(1),
            |l: &mut Limits| l.processes = Some(1),
            |l: &mut Limits| l.cpu_percent = Some(1),
        ] {
            assert!(cgroup.can_change(&base, &wish(change)) && !rlimits.can_change(&base, &wish(change)));
        }
        for change in [|l: &mut Limits| l.open_files = Some(1), |l: &mut Limits| l.disk_bytes = Some(1)] {
            assert!(!cgroup.can_change(&base, &wish(change)) && !rlimits.can_change(&base, &wish(change)));
        }
    }

    #[test]
    fn what_nobody_keeps_is_named() {
        let all = Limits {
            memory_bytes: Some(1),
            processes: Some(1),
            open_files: Some(1),
            cpu_percent: Some(1),
            disk_bytes: Some(1),
            read_bytes_per_second: Some(1),
            write_bytes_per_second: Some(1),
        };
        let (cgroup, rlimits) =
            (LimitBackend::Cgroup("/c".into()), LimitBackend::Rlimits { why: "a test".into() });
        let rates = ["read_bytes_per_second", "write_bytes_per_second"];
        assert_eq!(cgroup.not_kept(&all), rates);
        assert_eq!(rlimits.not_kept(&all), [&["memory_bytes", "cpu_percent"][..], &rates].concat());
        assert!(rlimits.not_kept(&Limits::default()).is_empty(), "what nobody asked for is not missing");
    }

    #[test]
    fn a_run_folder_without_its_file_is_not_overlooked() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = LimitBackend::Rlimits { why: "a test".into() };
        let run = folder.path().join("browsertask001");
        assert_eq!(keeper.look("browsertask001", &run).unwrap(), None);
        std::fs::create_dir(&run).unwrap();
        assert_eq!(keeper.look("browsertask001", &run).unwrap(), Some(Limits::default()));
        std::fs::write(run.join("jail"), "x").unwrap();
        keeper.remove("browsertask001", &run, &["jail"]).unwrap();
        assert_eq!(keeper.look("browsertask001", &run).unwrap(), None);
    }
}
