//! The clones' files by either storage driver.

use super::errors::refused;
use super::mounts::{self, Mount};
use super::storage::Overlay;
use super::template::{self, Template};
use super::{checks, zfs};
use crate::api::{CloneId, Finding, SnapshotName};
use crate::config::{Config, StorageDriver};
use crate::host::command::Tools;
use crate::host::zfs::Zfs;
use crate::host::zfs::datasets::Datasets;
use crate::host::{CloneSpec, HostErrorKind, HostResult, ObservedStorage, Part, Unmount};
use crate::slot::{Slot, SlotNames, Slots};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// How the clones' files are kept.
#[derive(Debug)]
pub(super) enum Storage {
    Overlay(Overlay, Templates),
    Zfs(Zfs),
}

/// Where the templates of the overlay are.
#[derive(Debug, Clone)]
pub(super) struct Templates {
    folder: PathBuf,
    name: String,
}

impl Templates {
    fn open(&self, snapshot: &SnapshotName) -> HostResult<Template> {
        Template::open(&self.folder, &self.name, snapshot)
    }
}

impl Storage {
    pub(super) fn open(config: &Config, pool: &Slots) -> io::Result<Storage> {
        Ok(match config.linux.storage {
            StorageDriver::Overlay => Storage::Overlay(
                Overlay::open(
                    &config.pool.clones_dir,
                    config.linux.bound,
                    &Tools::new(&config.host.tool_folders),
                )?,
                Templates { folder: config.linux.templates.clone(), name: config.host.template.clone() },
            ),
            StorageDriver::Zfs => Storage::Zfs(zfs::open(config, pool)),
        })
    }

    /// What keeps the files and bounds their size, for status.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Storage::Overlay(overlay, _) => overlay.word(),
            Storage::Zfs(_) => zfs::BOUND,
        }
    }

    /// What the system must have for it.
    pub(super) async fn findings(&self) -> Vec<Finding> {
        match self {
            Storage::Overlay(overlay, _) => checks::overlay(overlay),
            Storage::Zfs(zfs) => zfs.findings().await,
        }
    }

    /// A template that can be cloned: its browser's executable and version.
    pub(super) async fn template(&self, snapshot: &SnapshotName) -> HostResult<(PathBuf, String)> {
        match self {
            Storage::Zfs(zfs) => zfs::template(zfs, snapshot).await,
            Storage::Overlay(_, templates) => {
                let (templates, snapshot) = (templates.clone(), snapshot.clone());
                blocking(move || {
                    let template = templates.open(&snapshot)?;
                    Ok((template.browser().to_owned(), template.version().to_owned()))
                })
                .await
            }
        }
    }

    /// What this snapshot of the template is now. One of ZFS cannot be made anew under its name as long as it has clones.
    pub(super) async fn template_version(&self, snapshot: &SnapshotName) -> HostResult<String> {
        let snapshot = snapshot.clone();
        match self {
            Storage::Zfs(_) => Ok(snapshot.into()),
            Storage::Overlay(_, templates) => {
                let Templates { folder, name } = templates.clone();
                blocking(move || template::version(&folder, &name, &snapshot)).await
            }
        }
    }

    /// A look at the datasets, where a look at these parts needs one: of one slot, or of all.
    pub(super) async fn datasets(&self, parts: &[Part], only: Option<&SlotNames>) -> HostResult<Datasets> {
        match (self, only) {
            (Storage::Zfs(zfs), Some(names)) if parts.contains(&Part::Storage) => zfs.look_at(names).await,
            (Storage::Zfs(zfs), None) if parts.contains(&Part::Storage) => zfs.look_all().await,
            _ => Ok(Datasets::default()),
        }
    }

    /// The mounts that a look needs: those of one clone, or all.
    pub(super) fn mounts(&self, only: Option<&SlotNames>) -> io::Result<Vec<Mount>> {
        match (self, only) {
            (Storage::Overlay(overlay, _), Some(names)) => overlay.mounts(names),
            _ => mounts::all(),
        }
    }

    /// The folder of all clones, where every mount in it is of our making. ZFS mounts what it likes, when it likes.
    pub(super) fn own_folder(&self) -> Option<&Path> {
        match self {
            Storage::Overlay(overlay, _) => Some(overlay.clones()),
            Storage::Zfs(_) => None,
        }
    }

    /// A clone's files as seen.
    pub(super) fn look(
        &self,
        names: &SlotNames,
        mounts: &[Mount],
        datasets: &Datasets,
    ) -> io::Result<Option<ObservedStorage>> {
        match self {
            Storage::Overlay(overlay, _) => overlay.look(names, mounts),
            Storage::Zfs(zfs) => Ok(datasets.storage(zfs.layout(), names)),
        }
    }

    /// The slots of which there are files.
    pub(super) fn slots(&self, pool: &Slots, datasets: &Datasets) -> io::Result<BTreeSet<Slot>> {
        Ok(match self {
            Storage::Overlay(overlay, _) => {
                overlay.names()?.iter().filter_map(|name| pool.slot_of_name(name)).collect()
            }
            Storage::Zfs(zfs) => datasets.slots(zfs.layout(), pool).collect(),
        })
    }

    /// What was moved aside.
    pub(super) fn aside(&self, datasets: &Datasets) -> io::Result<BTreeSet<CloneId>> {
        match self {
            Storage::Overlay(overlay, _) => overlay.aside(),
            Storage::Zfs(zfs) => Ok(datasets.aside(zfs.layout())),
        }
    }

    /// The folder that the clone's service works in.
    pub(super) fn folder(&self, names: &SlotNames) -> PathBuf {
        match self {
            Storage::Overlay(overlay, _) => overlay.folder(names),
            Storage::Zfs(_) => zfs::folder(names),
        }
    }

    /// Mounts below the clone's folder, other than its storage itself.
    pub(super) fn mounts_below(&self, names: &SlotNames, seen: &[Mount]) -> BTreeSet<String> {
        match self {
            Storage::Overlay(overlay, _) => overlay.mounts_below(names, seen),
            Storage::Zfs(_) => {
                let mounts = zfs::mounts_below(names, seen);
                mounts.iter().map(|mount| mount.at.to_string_lossy().into_owned()).collect()
            }
        }
    }

    /// Clone the template's files, marked and bounded.
    pub(super) async fn ensure(&self, spec: &CloneSpec) -> HostResult<()> {
        match self {
            Storage::Zfs(zfs) => zfs.ensure(spec).await,
            Storage::Overlay(overlay, templates) => {
                let (overlay, templates, spec) = (overlay.clone(), templates.clone(), spec.clone());
                blocking(move || {
                    let _kept = template::share(&templates.folder, &templates.name)?;
                    overlay.ensure(&spec, &templates.open(&spec.snapshot)?)
                })
                .await
            }
        }
    }

    /// Unmount what is below the clone's folder, deepest first.
    pub(super) async fn unmount(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let names = names.clone();
        match self {
            Storage::Zfs(_) => blocking(move || zfs::unmount_below(&names, how)).await,
            Storage::Overlay(overlay, _) => {
                let overlay = overlay.clone();
                blocking(move || overlay.unmount_below(&names, how)).await
            }
        }
    }

    /// Destroy the files: one try, without force.
    pub(super) async fn destroy(&self, names: &SlotNames) -> HostResult<()> {
        match self {
            Storage::Zfs(zfs) => zfs.destroy(names).await,
            Storage::Overlay(overlay, _) => {
                let (overlay, names) = (overlay.clone(), names.clone());
                blocking(move || overlay.destroy(&names)).await
            }
        }
    }

    /// Move stubborn files aside under their identity.
    pub(super) async fn move_aside(&self, names: &SlotNames, id: &CloneId) -> HostResult<()> {
        match self {
            Storage::Zfs(zfs) => {
                self.unmount(names, Unmount::Force).await?;
                zfs.move_aside(names, id).await
            }
            Storage::Overlay(overlay, _) => {
                let (overlay, names, id) = (overlay.clone(), names.clone(), id.clone());
                blocking(move || overlay.move_aside(&names, &id)).await
            }
        }
    }

    /// Destroy files that were moved aside: one try.
    pub(super) async fn destroy_aside(&self, id: &CloneId) -> HostResult<()> {
        match self {
            Storage::Zfs(zfs) => zfs.destroy_aside(id).await,
            Storage::Overlay(overlay, _) => {
                let (overlay, id) = (overlay.clone(), id.clone());
                blocking(move || overlay.destroy_aside(&id)).await
            }
        }
    }
}

/// Do something that blocks. A caller that goes away does not stop it; every piece is short.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> HostResult<T> + Send + 'static,
) -> HostResult<T> {
    match super::blocking_work::run(work).await {
        Ok(result) => result,
        Err(died) => Err(refused("hostd", "do its work", HostErrorKind::Failed, died)),
    }
}
