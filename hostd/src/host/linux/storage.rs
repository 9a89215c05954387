//! A clone's files: the template read-only below, a sized file system of its own above, both shown as one folder.
//!
//! ```text
//! CLONES/browsertask001/                 the clone's files as the browser sees them (overlay)
//! CLONES/.store/browsertask001/clone     whose they are: beside the view, not in it
//! CLONES/.store/browsertask001/disk/     what the clone changed: a tmpfs as large as its quota
//! CLONES/.aside/CLONE_ID/                a store that could not be removed and freed its slot
//! ```
//!
//! The changes are in memory because a clone is disposable: making it is quick, its size is bounded on every file
//! system, and nothing of it is ever written to a disk. Destroying it is unmounting; not one file is removed by walking
//! a tree, so nothing outside can be reached by a link or a mount inside it.

use super::errors::{Doing, doing};
use super::files;
use super::mounts::{self, Mount};
use super::template::Template;
use crate::api::{CloneId, SnapshotName};
use crate::host::{CloneSpec, HostErrorKind, HostResult, Identity, StorageSeen, Unmount};
use crate::slot::SlotNames;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the clones' size is bounded, for status.
pub(super) const BOUND: &str = "overlay on a sized tmpfs";

const STORE: &str = ".store";
const ASIDE: &str = ".aside";
const MARK: &str = "clone";
const DISK: &str = "disk";

/// What is written beside a clone's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    clone_id: CloneId,
    snapshot: SnapshotName,
}

/// The folder of the clones.
#[derive(Debug, Clone)]
pub(super) struct Overlay {
    clones: PathBuf,
}

impl Overlay {
    /// Make the folders that all clones share.
    pub(super) fn open(clones: &Path) -> io::Result<Overlay> {
        files::make_folders(clones, 0o755)?;
        // Mount lines show the real path; a link on the way would make ours unrecognisable.
        let clones = clones.canonicalize()?;
        for name in [STORE, ASIDE] {
            files::make_folders(&clones.join(name), 0o700)?;
        }
        Ok(Overlay { clones })
    }

    fn view(&self, names: &SlotNames) -> PathBuf {
        self.clones.join(names.name.as_str())
    }

    fn store(&self, names: &SlotNames) -> PathBuf {
        self.clones.join(STORE).join(names.name.as_str())
    }

    /// The folder that the clone's service works in.
    pub(super) fn folder(&self, names: &SlotNames) -> PathBuf {
        self.view(names)
    }

    /// The names of everything that looks like a clone's storage.
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

    /// A clone's files as seen.
    pub(super) fn look(&self, names: &SlotNames, seen: &[Mount]) -> io::Result<Option<StorageSeen>> {
        let (view, store) = (self.view(names), self.store(names));
        let viewed = mounts::at(seen, &view);
        let there = |path: &Path| path.symlink_metadata().is_ok();
        if !there(&store) && !there(&view) {
            return Ok(None);
        }
        let (identity, snapshot) = match read_mark(&store)? {
            Ok(Some(mark)) => (Identity::Clone(mark.clone_id), Some(mark.snapshot)),
            Ok(None) => match self.foreign(&view, &store, viewed)? {
                Some(why) => (Identity::Foreign(why), None),
                None => (Identity::Unmarked, None),
            },
            Err(why) => (Identity::Foreign(why), None),
        };
        let age = store.symlink_metadata().and_then(|meta| meta.modified()).ok();
        let upper = store.join(DISK).join("upper");
        let mounted =
            viewed.is_some_and(|mount| mount.kind == "overlay" && mount.option("upperdir") == upper.to_str());
        let age = age.and_then(|made| made.elapsed().ok()).or(Some(Duration::ZERO));
        Ok(Some(StorageSeen { identity, snapshot, mounted, age }))
    }

    /// Why something without a mark is not of our making: an unfinished store of ours is empty but for its disk.
    fn foreign(&self, view: &Path, store: &Path, viewed: Option<&Mount>) -> io::Result<Option<String>> {
        if let Some(mount) = viewed {
            return Ok(Some(format!("a {} is mounted on {} that nobody marked", mount.kind, view.display())));
        }
        if view.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
            return Ok(Some(format!("{} is no folder", view.display())));
        }
        for folder in [view, store] {
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            for entry in entries {
                let name = entry?.file_name();
                if folder == view || !(name == DISK || name.to_string_lossy().starts_with(MARK)) {
                    return Ok(Some(format!("{} holds {name:?}, which is not ours", folder.display())));
                }
            }
        }
        Ok(None)
    }

    /// Mounts below the clone's folder, other than its storage itself.
    pub(super) fn mounts_below(&self, names: &SlotNames, seen: &[Mount]) -> BTreeSet<String> {
        let view = self.view(names);
        mounts::below(seen, &view).iter().map(|mount| mount.at.to_string_lossy().into_owned()).collect()
    }

    /// Clone the template's files, marked and bounded.
    pub(super) fn ensure(&self, spec: &CloneSpec, template: &Template) -> HostResult<()> {
        let names = &spec.names;
        let (view, store) = (self.view(names), self.store(names));
        let what = Doing {
            object: view.display().to_string(),
            hint: "look at the folder pool.clones_dir and its file system",
        };
        let seen = mounts::all().map_err(|error| what.failed("the mounts cannot be listed", &error))?;
        let storage = self.look(names, &seen).map_err(|error| what.failed("cannot be looked at", &error))?;
        match storage.map(|storage| (storage.identity, storage.mounted)) {
            Some((Identity::Clone(id), true)) if id == spec.clone_id => return Ok(()),
            Some((Identity::Clone(id), _)) if id != spec.clone_id => {
                return Err(doing(
                    &what.object,
                    "make the clone's files",
                    HostErrorKind::Foreign,
                    format!("they belong to {id}"),
                ));
            }
            Some((Identity::Foreign(why), _)) => {
                return Err(doing(&what.object, "make the clone's files", HostErrorKind::Foreign, why));
            }
            _ => {}
        }
        files::make_folders(&store, 0o700)
            .map_err(|error| what.failed("no folder for its changes", &error))?;
        let mark = Mark { clone_id: spec.clone_id.clone(), snapshot: spec.snapshot.clone() };
        files::write_atomically(&store.join(MARK), &serde_json::to_vec(&mark).expect("plain data"))
            .map_err(|error| what.failed("cannot be marked", &error))?;
        let disk = store.join(DISK);
        files::make_folders(&disk, 0o700)
            .map_err(|error| what.failed("no folder for its changes", &error))?;
        // A folder of the clone's own, so its owner inside is the clone's user.
        files::make_folders(&view, 0o700).map_err(|error| what.failed("no folder", &error))?;
        if mounts::at(&seen, &disk).is_none() {
            let size = spec.limits.disk_bytes.unwrap_or(10 << 30);
            mount(
                Some("hostd"),
                &disk,
                Some("tmpfs"),
                FLAGS,
                Some(format!("size={size},mode=0700").as_str()),
            )
            .map_err(|error| what.failed("no file system for its changes", &error.into()))?;
        }
        let (upper, work) = (disk.join("upper"), disk.join("work"));
        for folder in [&upper, &work] {
            files::make_folders(folder, 0o755)
                .map_err(|error| what.failed("no folder for its changes", &error))?;
        }
        let options = options(&template.files(), &upper, &work).ok_or_else(|| {
            doing(
                &what.object,
                "mount it",
                HostErrorKind::NotReady,
                "a path contains one of , : \\ or is no text",
            )
        })?;
        mount(Some("hostd"), &view, Some("overlay"), FLAGS, Some(options.as_str()))
            .map_err(|error| what.failed("the template cannot be mounted", &error.into()))
    }

    /// Unmount what is below the clone's folder, deepest first.
    pub(super) fn unmount_below(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let what = self.what(names);
        let seen = mounts::all().map_err(|error| what.failed("the mounts cannot be listed", &error))?;
        let mut first = None;
        for mount in mounts::below(&seen, &self.view(names)) {
            if let Err(error) = unmount(&mount.at, how) {
                first.get_or_insert_with(|| {
                    let inside = Doing { object: mount.at.display().to_string(), hint: what.hint };
                    inside.failed("cannot be unmounted", &error)
                });
            }
        }
        match (first, how) {
            (Some(error), _) => Err(error),
            // Force is what is left when something inside holds the files themselves.
            (None, Unmount::Force) => self.unmount_storage(names, Unmount::Force),
            (None, Unmount::Gentle) => Ok(()),
        }
    }

    fn unmount_storage(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let what = self.what(names);
        for place in [self.view(names), self.store(names).join(DISK)] {
            unmount_all(&place, how).map_err(|error| what.failed("cannot be unmounted", &error))?;
        }
        Ok(())
    }

    /// Destroy the files: unmount, look, and remove what then are empty folders.
    pub(super) fn destroy(&self, names: &SlotNames) -> HostResult<()> {
        let what = self.what(names);
        self.unmount_storage(names, Unmount::Gentle)?;
        files::remove_empty(&self.view(names))
            .map_err(|error| what.failed("its folder cannot be removed", &error))?;
        remove_store(&self.store(names)).map_err(|error| what.failed("its store cannot be removed", &error))
    }

    /// Free the slot of a store that cannot be removed.
    pub(super) fn move_aside(&self, names: &SlotNames, id: &CloneId) -> HostResult<()> {
        let what = self.what(names);
        let view = self.view(names);
        unmount_all(&view, Unmount::Force).map_err(|error| what.failed("cannot be unmounted", &error))?;
        files::remove_empty(&view).map_err(|error| what.failed("its folder cannot be removed", &error))?;
        let aside = self.clones.join(ASIDE).join(id.as_str());
        match std::fs::rename(self.store(names), &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(what.failed("cannot be moved aside", &error))
            }
            _ => Ok(()),
        }
    }

    /// Destroy what was moved aside: one try.
    pub(super) fn destroy_aside(&self, id: &CloneId) -> HostResult<()> {
        let store = self.clones.join(ASIDE).join(id.as_str());
        let what = Doing { object: store.display().to_string(), hint: "find who uses it: fuser -vm" };
        unmount_all(&store.join(DISK), Unmount::Force)
            .map_err(|error| what.failed("cannot be unmounted", &error))?;
        remove_store(&store).map_err(|error| what.failed("cannot be removed", &error))
    }

    fn what(&self, names: &SlotNames) -> Doing {
        Doing { object: self.view(names).display().to_string(), hint: "find who uses it: fuser -vm" }
    }
}

const FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// `None`: a path that cannot be written in mount options.
fn options(lower: &Path, upper: &Path, work: &Path) -> Option<String> {
    let text = |path: &Path| {
        let text = path.to_str()?.to_owned();
        (!text.contains([',', ':', '\\'])).then_some(text)
    };
    let (lower, upper, work) = (text(lower)?, text(upper)?, text(work)?);
    // Every feature is named: a distribution's defaults must not change what a clone is.
    Some(format!(
        "lowerdir={lower},upperdir={upper},workdir={work},index=off,metacopy=off,redirect_dir=nofollow,xino=off"
    ))
}

fn read_mark(store: &Path) -> io::Result<Result<Option<Mark>, String>> {
    let path = store.join(MARK);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| format!("{}: {error}", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ok(None)),
        Err(error) => Err(error),
    }
}

pub(super) fn unmount(place: &Path, how: Unmount) -> io::Result<()> {
    let flags = match how {
        Unmount::Gentle => MntFlags::UMOUNT_NOFOLLOW,
        Unmount::Force => MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH,
    };
    umount2(place, flags).map_err(io::Error::from)
}

/// Unmount everything at a place and below it, and look that it is so.
pub(super) fn unmount_all(place: &Path, how: Unmount) -> io::Result<()> {
    // Each turn takes at least one mount away or fails.
    loop {
        let seen = mounts::all()?;
        let inner = mounts::below(&seen, place);
        let Some(mount) = inner.first().copied().or_else(|| mounts::at(&seen, place)) else { return Ok(()) };
        unmount(&mount.at, how)?;
    }
}

/// A store whose disk is unmounted: an empty folder and a mark. The mark goes last.
fn remove_store(store: &Path) -> io::Result<()> {
    files::remove_empty(&store.join(DISK))?;
    files::remove_leftovers(store, MARK)?;
    files::remove_file(&store.join(MARK))?;
    files::remove_empty(store)
}
