//! The clones' cgroups (cgroups(7), version 2): their parent, limits, freezer and processes.
//!
//! They are outside of hostd's own unit, so that stopping, updating or restarting hostd never touches a clone. They are
//! below a unit with `Delegate=`, so that systemd does not write there. That unit is `hostd-clones.service`; its only
//! process keeps the unit alive. Without systemd, or without that unit, the parent is a cgroup `hostd` at the root.

use super::{files, mounts};
use crate::api::Limits;
use std::io;
use std::path::{Path, PathBuf};

const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Below the root of cgroup v2: the unit with the clones' cgroups.
const UNIT: &str = "hostd.slice/hostd-clones.service";
/// Below the root of cgroup v2: the parent if that unit does not exist.
const OWN: &str = "hostd";
/// Beside the clones' cgroups: the cgroup of the unit's own process. A cgroup with processes cannot enable controllers for
/// its children.
const HOLDER: &str = "holder";
/// One period of `cpu.max`, in microseconds.
const PERIOD: u64 = 100_000;

/// The parent of the clones' cgroups with its controllers enabled, or why there is none.
pub(super) fn find_parent(configured: &Path) -> Result<PathBuf, String> {
    let mounts = mounts::all().map_err(|error| format!("the mounts cannot be listed: {error}"))?;
    let root = mounts
        .iter()
        .find(|mount| mount.kind == "cgroup2" && has_controllers(&mount.at, "cgroup.controllers"))
        .map(|mount| mount.at.clone())
        .ok_or("this system has no cgroup v2 with the controllers cpu, memory and pids")?;
    let parent = choose(&root, configured);
    enable(&root, &parent)?;
    Ok(parent)
}

/// Make the parent again if it is gone: stopping the unit removes it.
pub(super) fn ensure_parent(parent: &Path) -> Result<(), String> {
    match has_controllers(parent, "cgroup.subtree_control") {
        true => Ok(()),
        false => find_parent(parent).map(drop),
    }
}

fn choose(root: &Path, configured: &Path) -> PathBuf {
    if !configured.as_os_str().is_empty() {
        return configured.to_owned();
    }
    let unit = root.join(UNIT);
    if unit.is_dir() { unit } else { root.join(OWN) }
}

/// Enable the controllers from the root down to `parent`. Where they are enabled already nothing is written: systemd
/// enables them for what it delegates, and those cgroups belong to it.
fn enable(root: &Path, parent: &Path) -> Result<(), String> {
    let inside = parent
        .strip_prefix(root)
        .map_err(|_| format!("{} is not below {}", parent.display(), root.display()))?;
    std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    let mut folder = root.to_owned();
    for part in std::iter::once(None).chain(inside.components().map(Some)) {
        folder.extend(part);
        if has_controllers(&folder, "cgroup.subtree_control") {
            continue;
        }
        let file = folder.join("cgroup.subtree_control");
        let enabled = match std::fs::write(&file, &wanted) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && folder == parent => {
                move_to_holder(parent).and_then(|()| std::fs::write(&file, &wanted))
            }
            other => other,
        };
        enabled.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

/// Move the processes of the delegated cgroup itself into a cgroup below it.
fn move_to_holder(parent: &Path) -> io::Result<()> {
    let holder = parent.join(HOLDER);
    files::make_folders(&holder, 0o755)?;
    for process in processes(parent)?.into_iter().flatten() {
        match std::fs::write(holder.join("cgroup.procs"), process.to_string()) {
            // It exited meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
    }
    Ok(())
}

fn has_controllers(cgroup: &Path, file: &str) -> bool {
    let controllers = std::fs::read_to_string(cgroup.join(file)).unwrap_or_default();
    CONTROLLERS.iter().all(|wanted| controllers.split_whitespace().any(|name| name == *wanted))
}

/// Make a clone's cgroup if it does not exist, and set its limits.
pub(super) fn write(cgroup: &Path, limits: &Limits) -> io::Result<()> {
    files::make_folders(cgroup, 0o755)?;
    for (file, value) in settings(limits) {
        std::fs::write(cgroup.join(file), value)?;
    }
    // Without this a clone could use swap beyond memory.max. The file does not exist on a kernel without swap.
    match std::fs::write(cgroup.join("memory.swap.max"), "0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether the cgroup has these limits.
pub(super) fn has_limits(cgroup: &Path, limits: &Limits) -> bool {
    settings(limits).iter().all(|(file, value)| {
        std::fs::read_to_string(cgroup.join(file)).is_ok_and(|found| found.trim() == rounded(file, value))
    })
}

/// The files of a cgroup and their content.
fn settings(limits: &Limits) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    settings.extend(limits.memory_bytes.map(|bytes| ("memory.max", bytes.to_string())));
    settings.extend(limits.processes.map(|count| ("pids.max", count.to_string())));
    settings.extend(
        limits.cpu_percent.map(|percent| ("cpu.max", format!("{} {PERIOD}", percent * PERIOD / 100))),
    );
    settings
}

/// The value as the kernel shows it: memory in whole pages.
fn rounded(file: &str, value: &str) -> String {
    match value.parse::<u64>() {
        Ok(bytes) if file == "memory.max" => (bytes / 4096 * 4096).to_string(),
        _ => value.to_owned(),
    }
}

/// The processes in a cgroup. `None`: there is no such cgroup.
pub(super) fn processes(cgroup: &Path) -> io::Result<Option<Vec<u32>>> {
    match std::fs::read_to_string(cgroup.join("cgroup.procs")) {
        Ok(text) => Ok(Some(text.lines().filter_map(|line| line.parse().ok()).collect())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// How many of the clone's processes the kernel killed because the clone reached its memory limit.
pub(super) fn oom_kills(cgroup: &Path) -> u64 {
    let events = std::fs::read_to_string(cgroup.join("memory.events")).unwrap_or_default();
    let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

/// Freeze or thaw all processes in the clone's cgroup.
pub(super) fn set_frozen(cgroup: &Path, frozen: bool) -> io::Result<()> {
    std::fs::write(cgroup.join("cgroup.freeze"), if frozen { "1" } else { "0" })
}

/// Whether all processes in the clone's cgroup are frozen. The kernel reports it some time after the request.
pub(super) fn is_frozen(cgroup: &Path) -> io::Result<bool> {
    match std::fs::read_to_string(cgroup.join("cgroup.events")) {
        Ok(text) => Ok(text.lines().any(|line| line == "frozen 1")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Kill all processes in the clone's cgroup at once.
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
    fn limits_become_the_content_of_cgroup_files() {
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
    fn the_delegated_unit_is_preferred_and_a_configured_folder_wins() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(choose(root.path(), Path::new("")), root.path().join("hostd"));
        std::fs::create_dir_all(root.path().join(UNIT)).unwrap();
        assert_eq!(choose(root.path(), Path::new("")), root.path().join(UNIT));
        assert_eq!(choose(root.path(), Path::new("/elsewhere")), Path::new("/elsewhere"));
    }

    #[test]
    fn controllers_are_enabled_only_where_they_are_not() {
        let root = tempfile::tempdir().unwrap();
        let parent = root.path().join("slice/unit");
        std::fs::create_dir_all(&parent).unwrap();
        let control = |folder: &Path| folder.join("cgroup.subtree_control");
        std::fs::write(control(root.path()), "cpuset cpu io memory pids").unwrap();
        enable(root.path(), &parent).unwrap();
        let read = |folder: &Path| std::fs::read_to_string(control(folder)).unwrap();
        assert_eq!(read(root.path()), "cpuset cpu io memory pids");
        assert_eq!(read(&root.path().join("slice")), "+cpu +memory +pids");
        assert_eq!(read(&parent), "+cpu +memory +pids");
        assert!(enable(&parent, root.path()).unwrap_err().contains("is not below"));
    }

    #[test]
    fn frozen_is_what_the_kernel_reports() {
        let cgroup = tempfile::tempdir().unwrap();
        assert!(!is_frozen(cgroup.path()).unwrap());
        set_frozen(cgroup.path(), true).unwrap();
        assert_eq!(std::fs::read_to_string(cgroup.path().join("cgroup.freeze")).unwrap(), "1");
        for (events, frozen) in [("populated 1\nfrozen 0\n", false), ("populated 1\nfrozen 1\n", true)] {
            std::fs::write(cgroup.path().join("cgroup.events"), events).unwrap();
            assert_eq!(
                is_frozen(cgroup.path()).unwrap(),
                frozen,
                "{events:?}: a request is not yet a result"
            );
        }
    }

    #[test]
    fn oom_kills_are_counted() {
        let cgroup = tempfile::tempdir().unwrap();
        assert_eq!(oom_kills(cgroup.path()), 0);
        let events = "low 0\nhigh 0\nmax 41\noom 3\noom_kill 2\noom_group_kill 0\n";
        std::fs::write(cgroup.path().join("memory.events"), events).unwrap();
        assert_eq!(oom_kills(cgroup.path()), 2);
    }
}
