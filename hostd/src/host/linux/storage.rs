//! A clone's files: the template read-only below, a sized file system of its own above, both shown as one folder.
//!
//! ```text
//! CLONES/browsertask001/                 the clone's files as the browser sees them (overlay)
//! CLONES/.store/browsertask001/clone     whose they are: beside the view, not in it
//! CLONES/.store/browsertask001/disk/     what the clone changed, bounded by its quota
//! CLONES/.store/browsertask001/image     the file behind that, if it is bounded by a loop device
//! CLONES/.aside/CLONE_ID/                a store that could not be removed and freed its slot
//! ```
//!
//! By default the changes are in memory because a clone is disposable: making it is quick, its size is bounded on every
//! file system, and nothing of it is ever written to a disk ([`bound`] has the other ways). Destroying it is unmounting.
//! Only with project quotas a tree is removed by walking it, after a look that nothing is mounted in it, and without
//! following links.

mod bound;
mod loop_device;
mod project_quota;

use super::errors::{ErrorContext, refused};
use super::files;
use super::mounts::{self, Mount};
use super::template::Template;
use crate::api::{CloneId, SnapshotName};
use crate::config::DiskBound;
use crate::host::command::{Tool, Tools};
use crate::host::{CloneSpec, HostErrorKind, HostResult, Identity, ObservedStorage, Unmount};
use crate::slot::SlotNames;
use bound::Bound;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const STORE: &str = ".store";
const ASIDE: &str = ".aside";
const MARK: &str = "clone";
const DISK: &str = "disk";
const IMAGE: &str = "image";

/// What is written beside a clone's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    clone_id: CloneId,
    snapshot: SnapshotName,
    #[serde(default)]
    bound: Bound,
}

/// The folder of the clones.
#[derive(Debug, Clone)]
pub(super) struct Overlay {
    clones: PathBuf,
    /// How new clones are bounded, or why none can be made.
    bound: Result<Bound, String>,
    mke2fs: Tool,
}

impl Overlay {
    /// Make the folders that all clones share.
    pub(super) fn open(clones: &Path, wanted: DiskBound, tools: &Tools) -> io::Result<Overlay> {
        files::make_folders(clones, 0o755)?;
        // Mount lines show the real path; a link on the way would make ours unrecognisable.
        let clones = clones.canonicalize()?;
        for name in [STORE, ASIDE] {
            files::make_folders(&clones.join(name), 0o700)?;
        }
        let bound = Bound::choose(wanted, &mounts::all()?, &clones);
        Ok(Overlay { clones, bound, mke2fs: tools.find("mke2fs") })
    }

    /// How the clones' size is bounded, for status.
    pub(super) fn word(&self) -> &'static str {
        self.bound.as_ref().map_or("overlay without a bound: no clones", |bound| bound.word())
    }

    /// How the clones' size is bounded, and whether it can be; the error says what is missing and what to do.
    pub(super) fn check_bound(&self) -> Result<&'static str, (String, &'static str)> {
        let bound = self.bound.as_ref().map_err(|why| {
            (
                why.clone(),
                "mount it with prjquota (ext4: tune2fs -O project,quota), or choose another linux.bound",
            )
        })?;
        if *bound == Bound::Loop {
            self.mke2fs.path().map_err(|error| (error.to_string(), "apt install e2fsprogs"))?;
            if !Path::new("/dev/loop-control").exists() {
                return Err(("there are no loop devices".to_owned(), "modprobe loop"));
            }
        }
        Ok(bound.word())
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

    /// The mounts of one clone, with what is mounted in it.
    pub(super) fn mounts(&self, names: &SlotNames) -> io::Result<Vec<Mount>> {
        let mut seen = mounts::on_and_below(&self.view(names))?;
        seen.extend(mounts::on(&self.store(names).join(DISK))?);
        Ok(seen)
    }

    /// The folder of all clones.
    pub(super) fn clones(&self) -> &Path {
        &self.clones
    }

    /// A clone's files as seen.
    pub(super) fn look(&self, names: &SlotNames, seen: &[Mount]) -> io::Result<Option<ObservedStorage>> {
        let (view, store) = (self.view(names), self.store(names));
        let viewed = mounts::at(seen, &view);
        let there = |path: &Path| path.symlink_metadata().is_ok();
        if !there(&store) && !there(&view) {
            return Ok(None);
        }
        let disk = store.join(DISK);
        let (identity, snapshot, bounded) = match read_mark(&store)? {
            Ok(Some(mark)) => {
                (Identity::Clone(mark.clone_id), Some(mark.snapshot), mark.bound.is_kept(seen, &disk))
            }
            Ok(None) => match self.foreign(&view, &store, viewed)? {
                Some(why) => (Identity::Foreign(why), None, false),
                None => (Identity::Unmarked, None, false),
            },
            Err(why) => (Identity::Foreign(why), None, false),
        };
        let age = store.symlink_metadata().and_then(|meta| meta.modified()).ok();
        let upper = disk.join("upper");
        let mounted = bounded
            && viewed
                .is_some_and(|mount| mount.kind == "overlay" && mount.option("upperdir") == upper.to_str());
        let age = age.and_then(|made| made.elapsed().ok()).or(Some(Duration::ZERO));
        Ok(Some(ObservedStorage { identity, snapshot, mounted, age }))
    }

    /// Why something without a mark is not of our making: an unfinished store of ours is empty.
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
                let ours = [DISK, IMAGE].contains(&name.to_string_lossy().as_ref())
                    || name.to_string_lossy().starts_with(MARK);
                if folder == view || !ours {
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
        let what = ErrorContext {
            object: view.display().to_string(),
            hint: "look at the folder pool.clones_dir and its file system",
        };
        let seen = self.mounts(names).map_err(|error| what.failed("the mounts cannot be listed", error))?;
        let storage = self.look(names, &seen).map_err(|error| what.failed("cannot be looked at", error))?;
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
            .map_err(|why| refused(&what.object, "bound the clone's files", HostErrorKind::NotReady, why))?;
        files::make_folders(&store, 0o700)
            .map_err(|error| what.failed("no folder for its changes", error))?;
        let mark = Mark { clone_id: spec.clone_id.clone(), snapshot: spec.snapshot.clone(), bound };
        files::write_atomically(&store.join(MARK), &serde_json::to_vec(&mark).expect("plain data"))
            .map_err(|error| what.failed("cannot be marked", error))?;
        let disk = store.join(DISK);
        files::make_folders(&disk, 0o700).map_err(|error| what.failed("no folder for its changes", error))?;
        // A folder of the clone's own, so its owner inside is the clone's user.
        files::make_folders(&view, 0o700).map_err(|error| what.failed("no folder", error))?;
        if mounts::at(&seen, &disk).is_none() {
            let size = spec.limits.disk_bytes.unwrap_or(10 << 30);
            bound
                .keep(&disk, &store.join(IMAGE), size, names.uid, &self.mke2fs)
                .map_err(|error| what.failed("its size cannot be bounded", error))?;
        }
        let (upper, work) = (disk.join("upper"), disk.join("work"));
        for folder in [&upper, &work] {
            files::make_folders(folder, 0o755)
                .map_err(|error| what.failed("no folder for its changes", error))?;
        }
        let options = options(&template.files(), &upper, &work).ok_or_else(|| {
            refused(
                &what.object,
                "mount it",
                HostErrorKind::NotReady,
                "a path contains one of , : \\ or is no text",
            )
        })?;
        let show = || {
            mount(Some("hostd"), &view, Some("overlay"), FLAGS, Some(options.as_str()))
                .map_err(io::Error::from)
        };
        let shown = match bound {
            Bound::ProjectQuota => project_quota::without_exemption(show),
            Bound::Tmpfs | Bound::Loop => show(),
        };
        shown.map_err(|error| what.failed("the template cannot be mounted", error))
    }

    /// Unmount what is below the clone's folder, deepest first.
    pub(super) fn unmount_below(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let what = self.what(names);
        let view = self.view(names);
        let seen =
            mounts::on_and_below(&view).map_err(|error| what.failed("the mounts cannot be listed", error))?;
        let mut first = None;
        for mount in mounts::below(&seen, &view) {
            if let Err(error) = unmount(&mount.at, how) {
                first.get_or_insert_with(|| {
                    let inside = ErrorContext { object: mount.at.display().to_string(), hint: what.hint };
                    inside.failed("cannot be unmounted", error)
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
            unmount_all(&place, how).map_err(|error| what.failed("cannot be unmounted", error))?;
        }
        Ok(())
    }

    /// Destroy the files: unmount, look, and remove what then are empty folders.
    pub(super) fn destroy(&self, names: &SlotNames) -> HostResult<()> {
        let what = self.what(names);
        self.unmount_storage(names, Unmount::Gentle)?;
        files::remove_empty(&self.view(names))
            .map_err(|error| what.failed("its folder cannot be removed", error))?;
        let store = self.store(names);
        if let Ok(Ok(Some(Mark { bound: Bound::ProjectQuota, .. }))) = read_mark(&store) {
            project_quota::clear(&self.clones, names.uid)
                .map_err(|error| what.failed("its quota cannot be removed", error))?;
        }
        remove_store(&store).map_err(|error| what.failed("its store cannot be removed", error))
    }

    /// Free the slot of a store that cannot be removed.
    pub(super) fn move_aside(&self, names: &SlotNames, id: &CloneId) -> HostResult<()> {
        let what = self.what(names);
        let view = self.view(names);
        unmount_all(&view, Unmount::Force).map_err(|error| what.failed("cannot be unmounted", error))?;
        files::remove_empty(&view).map_err(|error| what.failed("its folder cannot be removed", error))?;
        let aside = self.clones.join(ASIDE).join(id.as_str());
        match std::fs::rename(self.store(names), &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(what.failed("cannot be moved aside", error))
            }
            _ => Ok(()),
        }
    }

    /// Destroy what was moved aside: one try.
    pub(super) fn destroy_aside(&self, id: &CloneId) -> HostResult<()> {
        let store = self.clones.join(ASIDE).join(id.as_str());
        let what = ErrorContext { object: store.display().to_string(), hint: "find who uses it: fuser -vm" };
        unmount_all(&store.join(DISK), Unmount::Force)
            .map_err(|error| what.failed("cannot be unmounted", error))?;
        remove_store(&store).map_err(|error| what.failed("cannot be removed", error))
    }

    fn what(&self, names: &SlotNames) -> ErrorContext {
        ErrorContext { object: self.view(names).display().to_string(), hint: "find who uses it: fuser -vm" }
    }
}

/// The names of the clones that carry this snapshot's mark.
pub(super) fn made_from(clones: &Path, snapshot: &SnapshotName) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for folder in [STORE, ASIDE] {
        let entries = match std::fs::read_dir(clones.join(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries {
            let store = entry?.path();
            let uses = match read_mark(&store)? {
                Ok(mark) => mark.is_some_and(|mark| mark.snapshot == *snapshot),
                // It may be made from any.
                Err(_) => true,
            };
            found.extend(store.file_name().filter(|_| uses).map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(found)
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
        let seen = mounts::on_and_below(place)?;
        let inner = mounts::below(&seen, place);
        let Some(mount) = inner.first().copied().or_else(|| mounts::at(&seen, place)) else { return Ok(()) };
        unmount(&mount.at, how)?;
    }
}

/// A store whose disk is unmounted. The mark goes last.
fn remove_store(store: &Path) -> io::Result<()> {
    let disk = store.join(DISK);
    match files::remove_empty(&disk) {
        // A folder with a project quota. Nothing is mounted in it: its owner just unmounted all there was.
        Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => std::fs::remove_dir_all(&disk)?,
        other => other?,
    }
    files::remove_file(&store.join(IMAGE))?;
    files::remove_leftovers(store, MARK)?;
    files::remove_file(&store.join(MARK))?;
    files::remove_empty(store)
}
