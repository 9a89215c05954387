//! A clone's files as an overlay: the read-only template below, a file system of limited size above.
//!
//! ```text
//! CLONES/browsertask001/                 the overlay: the clone's files as the browser sees them
//! CLONES/.store/browsertask001/clone     the label: which clone this is. Beside the overlay, where the clone cannot write
//! CLONES/.store/browsertask001/disk/     the upper layer: what the clone changed, limited in size
//! CLONES/.store/browsertask001/image     the image file of the loop device, if the size is limited by one
//! CLONES/.aside/CLONE_ID/                a store that could not be removed, moved here so that its slot is free
//! ```
//!
//! By default the upper layer is a tmpfs: it is made by one mount, has a size limit on every machine, and never reaches a
//! disk ([`size_bound`] has the alternatives). A destroy unmounts it. Only a store with a project quota is removed by
//! walking a tree, after all mounts in it are gone, without following symbolic links.

mod loop_device;
mod project_quota;
mod size_bound;

use super::errors::{ErrorContext, refused};
use super::files;
use super::mounts::{self, Mount};
use super::template::Template;
use crate::api::{CloneId, SnapshotName};
use crate::config::DiskBound;
use crate::host::command::{Tool, Tools};
use crate::host::{CloneSpec, HostErrorKind, HostResult, Identity, ObservedStorage, Unmount};
use crate::slot::SlotNames;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};
use size_bound::SizeBound;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const STORE: &str = ".store";
const ASIDE: &str = ".aside";
const LABEL: &str = "clone";
const DISK: &str = "disk";
const IMAGE: &str = "image";

/// The content of the label file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Label {
    clone_id: CloneId,
    snapshot: SnapshotName,
    #[serde(default)]
    bound: SizeBound,
}

/// The overlays of all clones.
#[derive(Debug, Clone)]
pub(super) struct Overlay {
    /// The parent of the overlays and of the stores.
    clones: PathBuf,
    /// How the size of new clones is limited, or why it cannot be.
    bound: Result<SizeBound, String>,
    mke2fs: Tool,
}

impl Overlay {
    /// Make the folders that all clones share.
    pub(super) fn open(clones: &Path, wanted: DiskBound, tools: &Tools) -> io::Result<Overlay> {
        files::make_folders(clones, 0o755)?;
        // mountinfo shows paths without symbolic links, and mounts are recognised by their path.
        let clones = clones.canonicalize()?;
        for name in [STORE, ASIDE] {
            files::make_folders(&clones.join(name), 0o700)?;
        }
        let bound = SizeBound::choose(wanted, &mounts::all()?, &clones);
        Ok(Overlay { clones, bound, mke2fs: tools.find("mke2fs") })
    }

    /// How the clones' size is limited, for status.
    pub(super) fn description(&self) -> &'static str {
        self.bound.as_ref().map_or("overlay without a size limit: no clones", |bound| bound.description())
    }

    /// How the clones' size is limited. The error has the reason why it cannot be, and what to do.
    pub(super) fn check_bound(&self) -> Result<&'static str, (String, &'static str)> {
        let bound = self.bound.as_ref().map_err(|why| {
            (
                why.clone(),
                "mount it with prjquota (ext4: tune2fs -O project,quota), or choose another linux.bound",
            )
        })?;
        if *bound == SizeBound::Loop {
            self.mke2fs.path().map_err(|error| (error.to_string(), "apt install e2fsprogs"))?;
            if !Path::new("/dev/loop-control").exists() {
                return Err(("there are no loop devices".to_owned(), "modprobe loop"));
            }
        }
        Ok(bound.description())
    }

    /// The folder that the clone's service works in: the mount point of the overlay.
    pub(super) fn folder(&self, names: &SlotNames) -> PathBuf {
        self.clones.join(names.name.as_str())
    }

    fn store(&self, names: &SlotNames) -> PathBuf {
        self.clones.join(STORE).join(names.name.as_str())
    }

    /// The names of all overlays and stores.
    pub(super) fn names(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for folder in [self.clones.clone(), self.clones.join(STORE)] {
            for entry in std::fs::read_dir(folder)? {
                names.extend(entry?.file_name().into_string());
            }
        }
        Ok(names)
    }

    /// Stores that were moved aside.
    pub(super) fn aside(&self) -> io::Result<BTreeSet<CloneId>> {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(self.clones.join(ASIDE))? {
            found.extend(entry?.file_name().into_string().ok().and_then(|name| CloneId::try_from(name).ok()));
        }
        Ok(found)
    }

    /// The mounts of one clone, and the mounts below them.
    pub(super) fn mounts(&self, names: &SlotNames) -> io::Result<Vec<Mount>> {
        let mut seen = mounts::on_and_below(&self.folder(names))?;
        seen.extend(mounts::on(&self.store(names).join(DISK))?);
        Ok(seen)
    }

    /// The parent of all clones' folders.
    pub(super) fn clones(&self) -> &Path {
        &self.clones
    }

    /// Inspect a clone's files.
    pub(super) fn inspect(&self, names: &SlotNames, mounts: &[Mount]) -> io::Result<Option<ObservedStorage>> {
        let (folder, store) = (self.folder(names), self.store(names));
        let overlay = mounts::at(mounts, &folder);
        let exists = |path: &Path| path.symlink_metadata().is_ok();
        if !exists(&store) && !exists(&folder) {
            return Ok(None);
        }
        let disk = store.join(DISK);
        let (identity, snapshot, bounded) = match read_label(&store)? {
            Ok(Some(label)) => (
                Identity::Clone(label.clone_id),
                Some(label.snapshot),
                label.bound.is_in_place(mounts, &disk),
            ),
            Ok(None) => match self.foreign(&folder, &store, overlay)? {
                Some(why) => (Identity::Foreign(why), None, false),
                None => (Identity::Unmarked, None, false),
            },
            Err(why) => (Identity::Foreign(why), None, false),
        };
        let age = store.symlink_metadata().and_then(|meta| meta.modified()).ok();
        let upper = disk.join("upper");
        let mounted = bounded
            && overlay
                .is_some_and(|mount| mount.kind == "overlay" && mount.option("upperdir") == upper.to_str());
        let age = age.and_then(|made| made.elapsed().ok()).or(Some(Duration::ZERO));
        Ok(Some(ObservedStorage { identity, snapshot, mounted, age }))
    }

    /// Why storage without a label was not made by hostd. A store that hostd did not finish has only files of hostd.
    fn foreign(&self, folder: &Path, store: &Path, overlay: Option<&Mount>) -> io::Result<Option<String>> {
        if let Some(mount) = overlay {
            return Ok(Some(format!("{} has a {} mount but no label", folder.display(), mount.kind)));
        }
        if folder.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
            return Ok(Some(format!("{} is not a folder", folder.display())));
        }
        for parent in [folder, store] {
            let Ok(entries) = std::fs::read_dir(parent) else { continue };
            for entry in entries {
                let name = entry?.file_name();
                let made_by_hostd = [DISK, IMAGE].contains(&name.to_string_lossy().as_ref())
                    || name.to_string_lossy().starts_with(LABEL);
                if parent == folder || !made_by_hostd {
                    return Ok(Some(format!("{} has {name:?}, which hostd did not make", parent.display())));
                }
            }
        }
        Ok(None)
    }

    /// Mounts below the clone's folder, other than its storage itself.
    pub(super) fn mounts_below(&self, names: &SlotNames, mounts: &[Mount]) -> BTreeSet<String> {
        let folder = self.folder(names);
        mounts::below(mounts, &folder).iter().map(|mount| mount.at.to_string_lossy().into_owned()).collect()
    }

    /// Clone the template's files, labelled and limited in size.
    pub(super) fn ensure(&self, spec: &CloneSpec, template: &Template) -> HostResult<()> {
        let names = &spec.names;
        let (folder, store) = (self.folder(names), self.store(names));
        let what = ErrorContext {
            object: folder.display().to_string(),
            hint: "check the folder pool.clones_dir and its file system",
        };
        let mounts = self.mounts(names).map_err(|error| what.failed("the mounts cannot be listed", error))?;
        let storage =
            self.inspect(names, &mounts).map_err(|error| what.failed("cannot be inspected", error))?;
        match storage.map(|storage| (storage.identity, storage.mounted)) {
            Some((Identity::Clone(id), true)) if id == spec.clone_id => return Ok(()),
            Some((Identity::Clone(id), _)) if id != spec.clone_id => {
                return Err(refused(
                    &what.object,
                    "make the clone's files",
                    HostErrorKind::Foreign,
                    format!("they belong to {id}"),
                ));
            }
            Some((Identity::Foreign(why), _)) => {
                return Err(refused(&what.object, "make the clone's files", HostErrorKind::Foreign, why));
            }
            _ => {}
        }
        let bound = self
            .bound
            .clone()
            .map_err(|why| refused(&what.object, "limit the clone's size", HostErrorKind::NotReady, why))?;
        files::make_folders(&store, 0o700).map_err(|error| what.failed("its store cannot be made", error))?;
        // The label is written before anything else exists, so that nothing of the clone is ever without an owner.
        let label = Label { clone_id: spec.clone_id.clone(), snapshot: spec.snapshot.clone(), bound };
        files::write_atomically(&store.join(LABEL), &serde_json::to_vec(&label).expect("plain data"))
            .map_err(|error| what.failed("its label cannot be written", error))?;
        let disk = store.join(DISK);
        files::make_folders(&disk, 0o700)
            .map_err(|error| what.failed("the folder of its upper layer cannot be made", error))?;
        files::make_folders(&folder, 0o700)
            .map_err(|error| what.failed("the mount point cannot be made", error))?;
        if mounts::at(&mounts, &disk).is_none() {
            let size = spec.limits.disk_bytes.unwrap_or(10 << 30);
            bound
                .limit(&disk, &store.join(IMAGE), size, names.uid, &self.mke2fs)
                .map_err(|error| what.failed("its size cannot be limited", error))?;
        }
        let (upper, work) = (disk.join("upper"), disk.join("work"));
        for folder in [&upper, &work] {
            files::make_folders(folder, 0o755)
                .map_err(|error| what.failed("the folder of its upper layer cannot be made", error))?;
        }
        let options = options(&template.files(), &upper, &work).ok_or_else(|| {
            refused(
                &what.object,
                "mount it",
                HostErrorKind::NotReady,
                "a path has one of the characters , : \\ or is not UTF-8",
            )
        })?;
        let mount_overlay = || {
            mount(Some("hostd"), &folder, Some("overlay"), FLAGS, Some(options.as_str()))
                .map_err(io::Error::from)
        };
        let mounted = match bound {
            // An overlay writes with the credentials of the process that mounted it.
            SizeBound::ProjectQuota => project_quota::without_exemption(mount_overlay),
            SizeBound::Tmpfs | SizeBound::Loop => mount_overlay(),
        };
        mounted.map_err(|error| what.failed("the overlay cannot be mounted", error))
    }

    /// Unmount what is below the clone's folder, deepest first.
    pub(super) fn unmount_below(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let what = self.what(names);
        let folder = self.folder(names);
        let mounts = mounts::on_and_below(&folder)
            .map_err(|error| what.failed("the mounts cannot be listed", error))?;
        let mut first = None;
        for mount in mounts::below(&mounts, &folder) {
            if let Err(error) = unmount(&mount.at, how) {
                first.get_or_insert_with(|| {
                    let inside = ErrorContext { object: mount.at.display().to_string(), hint: what.hint };
                    inside.failed("cannot be unmounted", error)
                });
            }
        }
        match (first, how) {
            (Some(error), _) => Err(error),
            // A process that holds the clone's files makes a gentle unmount of the overlay fail with EBUSY.
            (None, Unmount::Force) => self.unmount_storage(names, Unmount::Force),
            (None, Unmount::Gentle) => Ok(()),
        }
    }

    fn unmount_storage(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let what = self.what(names);
        for mount_point in [self.folder(names), self.store(names).join(DISK)] {
            unmount_all(&mount_point, how).map_err(|error| what.failed("cannot be unmounted", error))?;
        }
        Ok(())
    }

    /// Destroy the files: unmount, verify that nothing is mounted, and remove the empty folders.
    pub(super) fn destroy(&self, names: &SlotNames) -> HostResult<()> {
        let what = self.what(names);
        self.unmount_storage(names, Unmount::Gentle)?;
        files::remove_empty(&self.folder(names))
            .map_err(|error| what.failed("its folder cannot be removed", error))?;
        let store = self.store(names);
        if let Ok(Ok(Some(Label { bound: SizeBound::ProjectQuota, .. }))) = read_label(&store) {
            project_quota::clear(&self.clones, names.uid)
                .map_err(|error| what.failed("its quota cannot be removed", error))?;
        }
        remove_store(&store).map_err(|error| what.failed("its store cannot be removed", error))
    }

    /// Free the slot of a store that cannot be removed.
    pub(super) fn move_aside(&self, names: &SlotNames, id: &CloneId) -> HostResult<()> {
        let what = self.what(names);
        let folder = self.folder(names);
        unmount_all(&folder, Unmount::Force).map_err(|error| what.failed("cannot be unmounted", error))?;
        files::remove_empty(&folder).map_err(|error| what.failed("its folder cannot be removed", error))?;
        let aside = self.clones.join(ASIDE).join(id.as_str());
        match std::fs::rename(self.store(names), &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(what.failed("cannot be moved aside", error))
            }
            _ => Ok(()),
        }
    }

    /// Destroy a store that was moved aside: one attempt.
    pub(super) fn destroy_aside(&self, id: &CloneId) -> HostResult<()> {
        let store = self.clones.join(ASIDE).join(id.as_str());
        let what = ErrorContext { object: store.display().to_string(), hint: "find who uses it: fuser -vm" };
        unmount_all(&store.join(DISK), Unmount::Force)
            .map_err(|error| what.failed("cannot be unmounted", error))?;
        remove_store(&store).map_err(|error| what.failed("cannot be removed", error))
    }

    fn what(&self, names: &SlotNames) -> ErrorContext {
        ErrorContext { object: self.folder(names).display().to_string(), hint: "find who uses it: fuser -vm" }
    }
}

/// The names of the clones whose label has this snapshot.
pub(super) fn made_from(clones: &Path, snapshot: &SnapshotName) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for folder in [STORE, ASIDE] {
        let entries = match std::fs::read_dir(clones.join(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries {
            let store = entry?.path();
            let uses = match read_label(&store)? {
                Ok(label) => label.is_some_and(|label| label.snapshot == *snapshot),
                // An unreadable label may name any snapshot.
                Err(_) => true,
            };
            found.extend(store.file_name().filter(|_| uses).map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(found)
}

/// No set-user-ID programs, no devices, and nothing in a clone's files is executed.
const FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// `None`: a path cannot be written in mount options.
fn options(lower: &Path, upper: &Path, work: &Path) -> Option<String> {
    let text = |path: &Path| {
        let text = path.to_str()?.to_owned();
        (!text.contains([',', ':', '\\'])).then_some(text)
    };
    let (lower, upper, work) = (text(lower)?, text(upper)?, text(work)?);
    // Every feature is set, because distributions have different defaults.
    Some(format!(
        "lowerdir={lower},upperdir={upper},workdir={work},index=off,metacopy=off,redirect_dir=nofollow,xino=off"
    ))
}

/// Inner `Err`: the label cannot be parsed. `None`: there is none.
fn read_label(store: &Path) -> io::Result<Result<Option<Label>, String>> {
    let path = store.join(LABEL);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| format!("{}: {error}", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ok(None)),
        Err(error) => Err(error),
    }
}

pub(super) fn unmount(mount_point: &Path, how: Unmount) -> io::Result<()> {
    let flags = match how {
        Unmount::Gentle => MntFlags::UMOUNT_NOFOLLOW,
        Unmount::Force => MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH,
    };
    umount2(mount_point, flags).map_err(io::Error::from)
}

/// Unmount everything at a mount point and below it, until the kernel lists nothing there.
pub(super) fn unmount_all(mount_point: &Path, how: Unmount) -> io::Result<()> {
    // Each round unmounts one mount or fails.
    loop {
        let mounts = mounts::on_and_below(mount_point)?;
        let inner = mounts::below(&mounts, mount_point);
        let next = inner.first().copied().or_else(|| mounts::at(&mounts, mount_point));
        let Some(mount) = next else { return Ok(()) };
        unmount(&mount.at, how)?;
    }
}

/// Remove a store whose upper layer is unmounted. The label is removed last, so that a partly removed store has an owner.
fn remove_store(store: &Path) -> io::Result<()> {
    let disk = store.join(DISK);
    match files::remove_empty(&disk) {
        // The upper layer is a folder with a project quota. Nothing is mounted below it: the caller unmounted everything.
        Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => std::fs::remove_dir_all(&disk)?,
        other => other?,
    }
    files::remove_file(&store.join(IMAGE))?;
    files::remove_leftovers(store, LABEL)?;
    files::remove_file(&store.join(LABEL))?;
    files::remove_empty(store)
}
