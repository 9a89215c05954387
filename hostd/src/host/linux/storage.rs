//! The clones' files, by overlay or by ZFS as configured (`linux.storage`).

use super::blocking_work::run as blocking;
use super::mounts::{self, Mount};
use super::overlay::Overlay;
use super::template::{self, Template};
use super::{checks, zfs};
use crate::api::{CloneId, Finding, SnapshotName};
use crate::config::{Config, StorageDriver};
use crate::host::command::Tools;
use crate::host::zfs::Zfs;
use crate::host::zfs::datasets::Datasets;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult, ObservedStorage, Part, Unmount};
use crate::slot::{Slot, SlotNames, Slots};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// The storage that the configuration chose.
#[derive(Debug)]
pub(super) enum Storage {
    Overlay(Overlay, Templates),
    Zfs(Zfs),
}

/// The folder and the name of the overlay's template.
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
    pub(super) fn open(config: &Config, slots: &Slots) -> io::Result<Storage> {
        Ok(match config.linux.storage {
            StorageDriver::Overlay => Storage::Overlay(
                Overlay::open(
                    &config.pool.clones_dir,
                    config.linux.bound,
                    &Tools::new(&config.host.tool_folders),
                )?,
                Templates { folder: config.linux.templates.clone(), name: config.host.template.clone() },
            ),
            StorageDriver::Zfs => Storage::Zfs(zfs::open(config, slots)),
        })
    }

    /// The storage and the way its size is limited, for status.
    pub(super) fn description(&self) -> &'static str {
        match self {
            Storage::Overlay(overlay, _) => overlay.description(),
            Storage::Zfs(_) => zfs::DESCRIPTION,
        }
    }

    /// What this storage needs of the system.
    pub(super) async fn findings(&self) -> Vec<Finding> {
        match self {
            Storage::Overlay(overlay, _) => checks::overlay(overlay),
            Storage::Zfs(zfs) => zfs.findings().await,
        }
    }

    /// Verify that the template can be cloned. Returns its browser's executable and version.
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

    /// A text that changes whenever this snapshot of the template changes. A ZFS snapshot cannot be replaced under its name
    /// while it has clones, so its name is enough.
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

    /// The datasets of one slot or of all, if an inspection of these parts needs them.
    pub(super) async fn datasets(&self, parts: &[Part], only: Option<&SlotNames>) -> HostResult<Datasets> {
        match (self, only) {
            (Storage::Zfs(zfs), Some(names)) if parts.contains(&Part::Storage) => zfs.look_at(names).await,
            (Storage::Zfs(zfs), None) if parts.contains(&Part::Storage) => zfs.look_all().await,
            _ => Ok(Datasets::default()),
        }
    }

    /// The mounts that an inspection needs: those of one clone, or all.
    pub(super) fn mounts(&self, only: Option<&SlotNames>) -> io::Result<Vec<Mount>> {
        match (self, only) {
            (Storage::Overlay(overlay, _), Some(names)) => overlay.mounts(names),
            _ => mounts::all(),
        }
    }

    /// The clones' folder, if hostd alone mounts in it. With ZFS, the `zfs` tool and the system's boot scripts mount there too.
    pub(super) fn exclusive_folder(&self) -> Option<&Path> {
        match self {
            Storage::Overlay(overlay, _) => Some(overlay.clones()),
            Storage::Zfs(_) => None,
        }
    }

    /// Inspect a clone's files.
    pub(super) fn inspect(
        &self,
        names: &SlotNames,
        mounts: &[Mount],
        datasets: &Datasets,
    ) -> io::Result<Option<ObservedStorage>> {
        match self {
            Storage::Overlay(overlay, _) => overlay.inspect(names, mounts),
            Storage::Zfs(zfs) => Ok(datasets.storage(zfs.layout(), names)),
        }
    }

    /// The slots that have files.
    pub(super) fn slots(&self, slots: &Slots, datasets: &Datasets) -> io::Result<BTreeSet<Slot>> {
        Ok(match self {
            Storage::Overlay(overlay, _) => {
                overlay.names()?.iter().filter_map(|name| slots.slot_of_name(name)).collect()
            }
            Storage::Zfs(zfs) => datasets.slots(zfs.layout(), slots).collect(),
        })
    }

    /// Storage that was moved aside.
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

    /// Clone the template's files, labelled and limited in size.
    pub(super) async fn ensure(&self, spec: &CloneSpec) -> HostResult<()> {
        match self {
            Storage::Zfs(zfs) => zfs.ensure(spec).await,
            Storage::Overlay(overlay, templates) => {
                let (overlay, templates, spec) = (overlay.clone(), templates.clone(), spec.clone());
                blocking(move || {
                    let _shared = template::share(&templates.folder, &templates.name)?;
                    overlay.ensure(&spec, &templates.open(&spec.snapshot)?)
                })
                .await
            }
        }
    }

    /// Unmount everything below the clone's folder, deepest first.
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

    /// Destroy the files: one attempt, without force.
    pub(super) async fn destroy(&self, names: &SlotNames) -> HostResult<()> {
        match self {
            Storage::Zfs(zfs) => zfs.destroy(names).await,
            Storage::Overlay(overlay, _) => {
                let (overlay, names) = (overlay.clone(), names.clone());
                blocking(move || overlay.destroy(&names)).await
            }
        }
    }

    /// Move files that cannot be destroyed aside, under their clone's identity.
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

    /// Destroy files that were moved aside: one attempt.
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

/// The operator's template commands, for the storage that the configuration chose.
pub mod templates {
    use super::*;

    /// Make a template of this system's browser. Returns the browser's version.
    pub async fn create(
        config: &Config,
        snapshot: &SnapshotName,
        browser: Option<&Path>,
    ) -> HostResult<String> {
        match config.linux.storage {
            StorageDriver::Overlay => {
                template::create(&config.linux.templates, &config.host.template, snapshot, browser)
            }
            StorageDriver::Zfs => zfs::create_template(config, &slots(config)?, snapshot, browser).await,
        }
    }

    /// The existing templates, each with its browser's version or the reason why it cannot be used.
    pub async fn list(config: &Config) -> HostResult<Vec<(SnapshotName, Result<String, String>)>> {
        match config.linux.storage {
            StorageDriver::Overlay => template::list(&config.linux.templates, &config.host.template),
            StorageDriver::Zfs => zfs::list_templates(config, &slots(config)?).await,
        }
    }

    /// Remove a template that no clone was made from.
    pub async fn remove(config: &Config, snapshot: &SnapshotName) -> HostResult<()> {
        match config.linux.storage {
            StorageDriver::Overlay => {
                let (templates, clones) = (&config.linux.templates, &config.pool.clones_dir);
                template::remove(templates, &config.host.template, snapshot, clones)
            }
            StorageDriver::Zfs => zfs::remove_template(config, &slots(config)?, snapshot).await,
        }
    }

    fn slots(config: &Config) -> HostResult<Slots> {
        Slots::new(&config.pool).map_err(|error| {
            HostError::new(
                HostErrorKind::NotReady,
                "pool",
                error.to_string(),
                "hostd --check-config shows the details",
            )
        })
    }
}
