//! What a clone may use up: a cgroup v2 per clone where the system has it, else what the kernel keeps per process.
//!
//! Without cgroup v2 only the number of processes (per user id, which is the clone's own) and open files are bounded;
//! memory and processor time are not. The configuration decides whether that will do.

use super::errors::{Doing, doing};
use super::{files, mounts};
use crate::api::Limits;
use crate::config::LimitsDemand;
use crate::host::{CloneSpec, HostErrorKind, HostResult};
use std::io;
use std::path::{Path, PathBuf};

/// The file with the limits that are on. It is the first that is made in a clone's run folder and the last to go.
pub(super) const FILE: &str = "limits";
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// One period of `cpu.max`, in microseconds.
const PERIOD: u64 = 100_000;

/// Who keeps the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Keeper {
    /// A cgroup per clone, below this folder.
    Cgroup(PathBuf),
    /// The kernel's limits per process and user.
    Rlimits {
        /// Why there is no cgroup.
        why: String,
    },
}

impl Keeper {
    /// Find out who can keep limits here.
    pub(super) fn find(parent: &Path) -> Keeper {
        match cgroup_parent(parent) {
            Ok(parent) => Keeper::Cgroup(parent),
            Err(why) => Keeper::Rlimits { why },
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Keeper::Cgroup(_) => "cgroup v2 (no rates of reading and writing)",
            Keeper::Rlimits { .. } => {
                "rlimits and pid namespace (no memory, no cpu, no rates of reading and writing)"
            }
        }
    }

    /// Which of these limits nobody keeps here. Rates of reading and writing never are: by default a clone's files are in
    /// memory, where such a rate means nothing.
    pub(super) fn not_kept(&self, limits: &Limits) -> Vec<&'static str> {
        let by_cgroup = [("memory_bytes", limits.memory_bytes), ("cpu_percent", limits.cpu_percent)];
        let rates = [
            ("read_bytes_per_second", limits.read_bytes_per_second),
            ("write_bytes_per_second", limits.write_bytes_per_second),
        ];
        let missing = match self {
            Keeper::Cgroup(_) => &[][..],
            Keeper::Rlimits { .. } => &by_cgroup[..],
        };
        missing.iter().chain(&rates).filter(|(_, limit)| limit.is_some()).map(|(name, _)| *name).collect()
    }

    /// The clone's cgroup, if there are cgroups.
    pub(super) fn cgroup(&self, name: &str) -> Option<PathBuf> {
        match self {
            Keeper::Cgroup(parent) => Some(parent.join(name)),
            Keeper::Rlimits { .. } => None,
        }
    }

    /// Put the limits in place.
    pub(super) fn ensure(&self, demand: LimitsDemand, spec: &CloneSpec, run: &Path) -> HostResult<()> {
        let name = spec.names.name.as_str();
        let what =
            Doing { object: format!("limits of {name}"), hint: "hostctl doctor tells what the kernel lacks" };
        if let (Keeper::Rlimits { why }, LimitsDemand::Cgroup) = (self, demand) {
            return Err(doing(what.object, "keep the limits", HostErrorKind::NotReady, why));
        }
        files::make_folders(run, 0o700).map_err(|error| what.failed("no run folder", &error))?;
        if let Some(cgroup) = self.cgroup(name) {
            write_cgroup(&cgroup, &spec.limits)
                .map_err(|error| what.failed("the cgroup cannot be set", &error))?;
        }
        let text = serde_json::to_vec(&spec.limits).expect("plain data");
        files::write_atomically(&run.join(FILE), &text)
            .map_err(|error| what.failed("cannot be written", &error))
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
            (Some(cgroup), _) => settings(&limits).iter().all(|(file, value)| {
                std::fs::read_to_string(cgroup.join(file))
                    .is_ok_and(|seen| seen.trim() == rounded(file, value))
            }),
            (None, Keeper::Cgroup(_)) => false,
            (None, Keeper::Rlimits { .. }) => true,
        };
        Ok(Some(if kept { limits } else { Limits::default() }))
    }

    /// Remove the limits, and the run folder with whatever else is left in it.
    pub(super) fn remove(&self, name: &str, run: &Path, others: &[&str]) -> HostResult<()> {
        let what = Doing { object: format!("limits of {name}"), hint: "look for processes in it" };
        if let Some(cgroup) = self.cgroup(name) {
            files::remove_empty(&cgroup)
                .map_err(|error| what.failed("the cgroup cannot be removed", &error))?;
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
        gone().map_err(|error| what.failed("the run folder cannot be removed", &error))
    }
}

/// The folder for the clones' cgroups, with its controllers on; or why there is none.
fn cgroup_parent(configured: &Path) -> Result<PathBuf, String> {
    let mounts = mounts::all().map_err(|error| format!("the mounts cannot be listed: {error}"))?;
    let root = mounts
        .iter()
        .find(|mount| mount.kind == "cgroup2" && has_controllers(&mount.at))
        .map(|mount| mount.at.clone())
        .ok_or("this system has no cgroup v2 with the controllers cpu, memory and pids")?;
    let parent = if configured.as_os_str().is_empty() { root.join("hostd") } else { configured.to_owned() };
    let inside = parent
        .strip_prefix(&root)
        .map_err(|_| format!("{} is not below {}", parent.display(), root.display()))?;
    std::fs::create_dir_all(&parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    let mut folder = root.clone();
    let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    for part in std::iter::once(None).chain(inside.components().map(Some)) {
        folder.extend(part);
        let file = folder.join("cgroup.subtree_control");
        std::fs::write(&file, &wanted).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(parent)
}

fn has_controllers(cgroup: &Path) -> bool {
    let controllers = std::fs::read_to_string(cgroup.join("cgroup.controllers")).unwrap_or_default();
    CONTROLLERS.iter().all(|wanted| controllers.split_whitespace().any(|name| name == *wanted))
}

/// The files of a cgroup and what they must say.
fn settings(limits: &Limits) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    settings.extend(limits.memory_bytes.map(|bytes| ("memory.max", bytes.to_string())));
    settings.extend(limits.processes.map(|count| ("pids.max", count.to_string())));
    settings.extend(
        limits.cpu_percent.map(|percent| ("cpu.max", format!("{} {PERIOD}", percent * PERIOD / 100))),
    );
    settings
}

/// What the kernel shows for a value: memory in whole pages.
fn rounded(file: &str, value: &str) -> String {
    match value.parse::<u64>() {
        Ok(bytes) if file == "memory.max" => (bytes / 4096 * 4096).to_string(),
        _ => value.to_owned(),
    }
}

fn write_cgroup(cgroup: &Path, limits: &Limits) -> io::Result<()> {
    files::make_folders(cgroup, 0o755)?;
    for (file, value) in settings(limits) {
        std::fs::write(cgroup.join(file), value)?;
    }
    // A browser that swaps helps nobody, and with it memory.max would not be the whole truth. Absent without swap.
    match std::fs::write(cgroup.join("memory.swap.max"), "0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The clone's processes, by the kernel's word.
pub(super) fn processes(cgroup: &Path) -> io::Result<Vec<u32>> {
    match std::fs::read_to_string(cgroup.join("cgroup.procs")) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Kill everything in the clone's cgroup at once.
pub(super) fn kill(cgroup: &Path) -> io::Result<()> {
    match std::fs::write(cgroup.join("cgroup.kill"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_the_kernels_words() {
        let limits = Limits {
            memory_bytes: Some(1 << 30),
            processes: Some(64),
            cpu_percent: Some(150),
            ..Limits::default()
        };
        let expected = [("memory.max", "1073741824"), ("pids.max", "64"), ("cpu.max", "150000 100000")];
        assert_eq!(settings(&limits), expected.map(|(file, value)| (file, value.to_owned())));
        assert_eq!(rounded("memory.max", "4097"), "4096");
        assert_eq!(rounded("pids.max", "4097"), "4097");
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
        let (cgroup, rlimits) = (Keeper::Cgroup("/c".into()), Keeper::Rlimits { why: "a test".into() });
        let rates = ["read_bytes_per_second", "write_bytes_per_second"];
        assert_eq!(cgroup.not_kept(&all), rates);
        assert_eq!(rlimits.not_kept(&all), [&["memory_bytes", "cpu_percent"][..], &rates].concat());
        assert!(rlimits.not_kept(&Limits::default()).is_empty(), "what nobody asked for is not missing");
    }

    #[test]
    fn a_run_folder_without_its_file_is_not_overlooked() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::Rlimits { why: "a test".into() };
        let run = folder.path().join("browsertask001");
        assert_eq!(keeper.look("browsertask001", &run).unwrap(), None);
        std::fs::create_dir(&run).unwrap();
        assert_eq!(keeper.look("browsertask001", &run).unwrap(), Some(Limits::default()));
        std::fs::write(run.join("jail"), "x").unwrap();
        keeper.remove("browsertask001", &run, &["jail"]).unwrap();
        assert_eq!(keeper.look("browsertask001", &run).unwrap(), None);
    }
}
