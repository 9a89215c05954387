//! ZFS on Linux: mounts and templates. The rest is common to both systems ([`crate::host::zfs`]).
//!
//! A clone's two datasets are mounted at `CLONES/NAME` and `CLONES/NAME/root`; the service works in the latter. Linux
//! cannot force an unmount of ZFS (`-f` has no effect there). So a mount in use is detached (`MNT_DETACH`), and its dataset
//! stays busy until its last user exits. It is moved aside, which works because it is not mounted any more.

use super::errors::{ErrorContext, failed};
use super::mounts::{self, Mount};
use super::overlay::{unmount, unmount_all};
use super::template;
use crate::api::SnapshotName;
use crate::config::Config;
use crate::host::command::Tools;
use crate::host::zfs::Zfs;
use crate::host::zfs::template::TemplateSeen;
use crate::host::{HostError, HostErrorKind, HostResult, Unmount};
use crate::slot::{SlotNames, Slots};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No devices, no set-user-ID programs, and nothing in a clone's files is executed.
const OPTIONS: &[&str] = &["devices=off", "setuid=off", "exec=off"];
/// The storage, for status.
pub(super) const DESCRIPTION: &str = "zfs clones with a quota";

/// The datasets of this configuration.
pub(super) fn open(config: &Config, slots: &Slots) -> Zfs {
    let timeout = Duration::from_secs(config.lifecycle.step_timeout_seconds);
    let tools = Tools::new(&config.host.tool_folders).within(timeout);
    Zfs::new(&tools, slots, config.pool.clones_dir.clone(), &config.host.template, OPTIONS)
}

/// The folder that the clone's service works in.
pub(super) fn folder(names: &SlotNames) -> PathBuf {
    names.folder.join("root")
}

/// Mounts below the clone's folder, other than its storage itself.
pub(super) fn mounts_below<'a>(names: &SlotNames, mounts: &'a [Mount]) -> Vec<&'a Mount> {
    let (top, files) = (real_folder(names), real_folder(names).join("root"));
    let own = |mount: &Mount| {
        mount.kind == "zfs" && mount.at == files && mount.source == format!("{}/root", names.dataset)
    };
    mounts::below(mounts, &top).into_iter().filter(|mount| !own(mount)).collect()
}

/// Unmount everything below the clone's folder; with force also its datasets.
pub(super) fn unmount_below(names: &SlotNames, how: Unmount) -> HostResult<()> {
    let what = what(names);
    let mounts = mounts::all().map_err(|error| what.failed("the mounts cannot be listed", error))?;
    let mut first = None;
    for mount in mounts_below(names, &mounts) {
        if let Err(error) = unmount(&mount.at, how) {
            let inside = ErrorContext { object: mount.at.display().to_string(), hint: what.hint };
            first.get_or_insert_with(|| inside.failed("cannot be unmounted", error));
        }
    }
    match (first, how) {
        (Some(error), _) => Err(error),
        (None, Unmount::Gentle) => Ok(()),
        (None, Unmount::Force) => unmount_all(&real_folder(names), Unmount::Force)
            .map_err(|error| what.failed("cannot be unmounted", error)),
    }
}

/// The clone's folder without symbolic links, as mountinfo shows it.
fn real_folder(names: &SlotNames) -> PathBuf {
    let real = names.folder.parent().and_then(|clones| clones.canonicalize().ok());
    real.map_or_else(|| names.folder.clone(), |clones| clones.join(names.name.as_str()))
}

fn what(names: &SlotNames) -> ErrorContext {
    ErrorContext { object: names.folder.display().to_string(), hint: "find who uses it: fuser -vm" }
}

/// Make a template of this system's browser: two datasets, and a snapshot of both.
pub(super) async fn create_template(
    config: &Config,
    slots: &Slots,
    snapshot: &SnapshotName,
    browser: Option<&Path>,
) -> HostResult<String> {
    let name = &config.host.template;
    let _lock = template::lock(&config.linux.templates.join(name))?;
    let zfs = open(config, slots);
    let (browser, version) = template::system_browser(browser)?;
    let told = browser.to_str().filter(|path| !path.contains(char::is_control)).ok_or_else(|| {
        let why = "its path cannot be written in a property";
        HostError::new(HostErrorKind::NotReady, browser.display().to_string(), why, "install it elsewhere")
    })?;
    zfs.make_template().await?;
    let files = config.pool.clones_dir.join(name).join("root");
    must_be_mounted(&files, &format!("{}/root", zfs.layout().template))?;
    let io = |error: std::io::Error| {
        failed(files.display().to_string(), "the template cannot be made", error, "check the dataset")
    };
    template::fill(&files).map_err(io)?;
    if let Some(path) = template::refuse_credentials(&files).map_err(io)? {
        let why = "it is a credential, or not a regular file; clones must have none";
        return Err(HostError::new(HostErrorKind::Template, path.display().to_string(), why, "remove it"));
    }
    zfs.take_snapshot(snapshot, told, &version).await?;
    Ok(version)
}

/// Verify that the folder is the dataset's mount point. Otherwise files would be written below a later mount of it.
fn must_be_mounted(folder: &Path, dataset: &str) -> HostResult<()> {
    let what = ErrorContext { object: folder.display().to_string(), hint: "hostctl doctor checks the host" };
    let mounts = mounts::all().map_err(|error| what.failed("the mounts cannot be listed", error))?;
    let real = folder.canonicalize().map_err(|error| what.failed("does not exist", error))?;
    match mounts::at(&mounts, &real) {
        Some(mount) if mount.kind == "zfs" && mount.source == dataset => Ok(()),
        _ => Err(HostError::new(
            HostErrorKind::NotReady,
            dataset,
            format!("it is not mounted at {}", folder.display()),
            "mount pool.parent_dataset at pool.clones_dir: zfs set mountpoint, zfs mount",
        )),
    }
}

/// The existing templates, each with its browser's version or the reason why it cannot be used.
pub(super) async fn list_templates(
    config: &Config,
    slots: &Slots,
) -> HostResult<Vec<(SnapshotName, Result<String, String>)>> {
    let all = open(config, slots).templates().await?;
    let version = |seen: TemplateSeen| usable(&seen).map(|()| seen.version.clone().unwrap_or_default());
    Ok(all.into_iter().map(|(snapshot, seen)| (snapshot, seen.and_then(version))).collect())
}

/// Remove a template that no clone was made from.
pub(super) async fn remove_template(
    config: &Config,
    slots: &Slots,
    snapshot: &SnapshotName,
) -> HostResult<()> {
    let _lock = template::lock(&config.linux.templates.join(&config.host.template))?;
    open(config, slots).remove_snapshot(snapshot).await
}

/// Verify that a snapshot can be cloned. Returns its browser's executable and version.
pub(super) async fn template(zfs: &Zfs, snapshot: &SnapshotName) -> HostResult<(PathBuf, String)> {
    let seen = zfs.check_template(snapshot).await?;
    let [name, _] = zfs.layout().snapshots(snapshot);
    let hint = format!("make another: hostctl template create --snapshot {snapshot}-2");
    usable(&seen).map_err(|why| HostError::new(HostErrorKind::Template, name, why, hint))?;
    Ok((seen.browser.unwrap_or_default(), seen.version.unwrap_or_default()))
}

/// `hostctl template create` refuses credentials before it takes a snapshot, and records the browser in a property of it.
fn usable(seen: &TemplateSeen) -> Result<(), String> {
    let Some(browser) = &seen.browser else {
        return Err(
            "it was not made by hostctl template create, so it was not checked for credentials".to_owned()
        );
    };
    match browser.metadata() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("its browser {} does not exist: {error}", browser.display())),
    }
}
