//! A clone's resource limits: a cgroup v2 per clone if the system has it, otherwise rlimits.
//!
//! rlimits limit only the number of processes (per user ID, and each clone has its own) and of open files, not memory and
//! processor time. The configuration decides whether that is enough (`linux.limits`).

use super::errors::{ErrorContext, refused};
use super::{cgroup, files};
use crate::api::Limits;
use crate::config::LimitsDemand;
use crate::host::{CloneSpec, HostErrorKind, HostResult};
use std::io;
use std::path::{Path, PathBuf};

/// The file with the limits in force. It is the first file in a clone's run folder and the last to be removed.
pub(super) const FILE: &str = "limits";

/// Read and write rates cannot be enforced by `io.max`: a clone's files are in memory or written by ZFS's own threads, and
/// the system's files come from the page cache that all clones share.
pub(super) const RATES: &str = "disk read and write rates cannot be limited on Linux";

/// Whether these limits have rates, which are never enforced here.
pub(super) fn has_rates(limits: &Limits) -> bool {
    limits.read_bytes_per_second.is_some() || limits.write_bytes_per_second.is_some()
}

/// What enforces the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LimitBackend {
    /// A cgroup per clone, below this one.
    Cgroup(PathBuf),
    /// The kernel's limits per process and user.
    Rlimits {
        /// Why there is no cgroup.
        why: String,
    },
}

impl LimitBackend {
    /// Find out what can enforce limits here.
    pub(super) fn find(parent: &Path) -> LimitBackend {
        match cgroup::find_parent(parent) {
            Ok(parent) => LimitBackend::Cgroup(parent),
            Err(why) => LimitBackend::Rlimits { why },
        }
    }

    /// For status.
    pub(super) fn description(&self) -> String {
        match self {
            LimitBackend::Cgroup(parent) => format!("cgroup v2 below {}", parent.display()),
            LimitBackend::Rlimits { .. } => {
                "rlimits and PID namespace (memory and processor time are not limited)".to_owned()
            }
        }
    }

    /// Which of these limits are not enforced here, by their names in the contract. Of rates see [`RATES`].
    pub(super) fn not_enforced(&self, limits: &Limits) -> Vec<&'static str> {
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

    /// The names of all cgroups beside the clones', whoever made them.
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

    /// Set the limits.
    pub(super) fn ensure(&self, demand: LimitsDemand, spec: &CloneSpec, run: &Path) -> HostResult<()> {
        let name = spec.names.name.as_str();
        let what = ErrorContext {
            object: format!("limits of {name}"),
            hint: "hostctl doctor shows what the kernel lacks",
        };
        let not_ready =
            |why| refused(what.object.clone(), "enforce the limits", HostErrorKind::NotReady, why);
        match (self, demand) {
            (LimitBackend::Cgroup(parent), _) => cgroup::ensure_parent(parent).map_err(not_ready)?,
            (LimitBackend::Rlimits { why }, LimitsDemand::Cgroup) => return Err(not_ready(why.clone())),
            (LimitBackend::Rlimits { .. }, LimitsDemand::Available) => {}
        }
        if demand == LimitsDemand::Cgroup && has_rates(&spec.limits) {
            return Err(not_ready(format!("{RATES}; request none, or set linux.limits = \"available\"")));
        }
        files::make_folders(run, 0o700)
            .map_err(|error| what.failed("the run folder cannot be made", error))?;
        if let Some(cgroup) = self.cgroup(name) {
            cgroup::write(&cgroup, &spec.limits)
                .map_err(|error| what.failed("the cgroup cannot be set", error))?;
        }
        let text = serde_json::to_vec(&spec.limits).expect("plain data");
        files::write_atomically(&run.join(FILE), &text)
            .map_err(|error| what.failed("cannot be written", error))
    }

    /// The limits in force. A run folder without the file counts as empty limits, so that it is found and removed.
    pub(super) fn inspect(&self, name: &str, run: &Path) -> io::Result<Option<Limits>> {
        let cgroup = self.cgroup(name).filter(|cgroup| cgroup.exists());
        if !run.exists() && cgroup.is_none() {
            return Ok(None);
        }
        let limits: Limits = match std::fs::read(run.join(FILE)) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Limits::default(),
            Err(error) => return Err(error),
        };
        let enforced = match (&cgroup, self) {
            (Some(cgroup), _) => cgroup::has_limits(cgroup, &limits),
            (None, LimitBackend::Cgroup(_)) => false,
            (None, LimitBackend::Rlimits { .. }) => true,
        };
        Ok(Some(if enforced { limits } else { Limits::default() }))
    }

    /// Whether the limits of a running clone can be changed from one to the other. A cgroup's limits can; rlimits and the
    /// size of the file system are fixed when the clone starts.
    pub(super) fn can_change(&self, from: &Limits, to: &Limits) -> bool {
        let fixed = |limits: &Limits| match self {
            LimitBackend::Cgroup(_) => {
                Limits { memory_bytes: None, processes: None, cpu_percent: None, ..*limits }
            }
            LimitBackend::Rlimits { .. } => *limits,
        };
        fixed(from) == fixed(to)
    }

    /// Remove the limits and the run folder with these other files.
    pub(super) fn remove(&self, name: &str, run: &Path, others: &[&str]) -> HostResult<()> {
        let what = ErrorContext { object: format!("limits of {name}"), hint: "find the processes in it" };
        if let Some(cgroup) = self.cgroup(name) {
            files::remove_empty(&cgroup)
                .map_err(|error| what.failed("the cgroup cannot be removed", error))?;
        }
        let remove = || {
            for file in others {
                files::remove_leftovers(run, file)?;
                files::remove_file(&run.join(file))?;
            }
            files::remove_leftovers(run, FILE)?;
            files::remove_file(&run.join(FILE))?;
            files::remove_empty(run)
        };
        remove().map_err(|error| what.failed("the run folder cannot be removed", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cgroup_limits_can_change_while_a_clone_runs() {
        let with = |change: fn(&mut Limits)| {
            let mut limits =
                Limits { memory_bytes: Some(2 << 30), open_files: Some(64), ..Limits::default() };
            change(&mut limits);
            limits
        };
        let (cgroup, rlimits) =
            (LimitBackend::Cgroup("/none".into()), LimitBackend::Rlimits { why: "a test".into() });
        let base = with(|_| {});
        assert!(cgroup.can_change(&base, &base) && rlimits.can_change(&base, &base));
        for change in [
            |l: &mut Limits| l.memory_bytes = Some(1),
            |l: &mut Limits| l.processes = Some(1),
            |l: &mut Limits| l.cpu_percent = Some(1),
        ] {
            assert!(cgroup.can_change(&base, &with(change)) && !rlimits.can_change(&base, &with(change)));
        }
        for change in [|l: &mut Limits| l.open_files = Some(1), |l: &mut Limits| l.disk_bytes = Some(1)] {
            assert!(!cgroup.can_change(&base, &with(change)) && !rlimits.can_change(&base, &with(change)));
        }
    }

    #[test]
    fn limits_that_are_not_enforced_are_named() {
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
        assert_eq!(cgroup.not_enforced(&all), rates);
        assert_eq!(rlimits.not_enforced(&all), [&["memory_bytes", "cpu_percent"][..], &rates].concat());
        assert!(
            rlimits.not_enforced(&Limits::default()).is_empty(),
            "a limit that was not requested is not missing"
        );
    }

    #[test]
    fn a_run_folder_without_its_limits_file_is_found_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let limits = LimitBackend::Rlimits { why: "a test".into() };
        let run = folder.path().join("browsertask001");
        assert_eq!(limits.inspect("browsertask001", &run).unwrap(), None);
        std::fs::create_dir(&run).unwrap();
        assert_eq!(limits.inspect("browsertask001", &run).unwrap(), Some(Limits::default()));
        std::fs::write(run.join("jail"), "x").unwrap();
        limits.remove("browsertask001", &run, &["jail"]).unwrap();
        assert_eq!(limits.inspect("browsertask001", &run).unwrap(), None);
    }
}
