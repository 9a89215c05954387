//! The clones' files. (Placeholder until the ZFS driver is merged.)

use crate::api::{CloneId, SnapshotName};
use crate::config::Config;
use crate::host::command::Tools;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult, StorageSeen};
use crate::slot::{Pool, Slot, SlotNames};
use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) struct Storage;

pub(super) type Datasets = ();

fn none<T>() -> HostResult<T> {
    Err(HostError::new(HostErrorKind::NotReady, "zfs", "the ZFS driver is not in this build", "wait for it"))
}

impl Storage {
    pub(super) fn new(_: &Config, _: &Pool, _: &Tools) -> Storage {
        Storage
    }
    pub(super) async fn look(&self, _: Option<&SlotNames>) -> HostResult<Datasets> {
        none()
    }
    pub(super) fn seen(&self, _: &Datasets, _: &SlotNames) -> HostResult<Option<StorageSeen>> {
        none()
    }
    pub(super) fn slots(&self, _: &Datasets) -> BTreeSet<Slot> {
        BTreeSet::new()
    }
    pub(super) fn aside(&self, _: &Datasets) -> BTreeSet<CloneId> {
        BTreeSet::new()
    }
    pub(super) async fn check_template(&self, _: &SnapshotName) -> HostResult<()> {
        none()
    }
    pub(super) async fn findings(&self, _: u64) -> Vec<crate::api::Finding> {
        Vec::new()
    }
    pub(super) async fn ensure(&self, _: &CloneSpec) -> HostResult<()> {
        none()
    }
    pub(super) async fn force_unmount(&self, _: &SlotNames) -> HostResult<()> {
        none()
    }
    pub(super) async fn destroy(&self, _: &SlotNames) -> HostResult<()> {
        none()
    }
    pub(super) async fn move_aside(&self, _: &SlotNames, _: &CloneId) -> HostResult<()> {
        none()
    }
    pub(super) async fn destroy_aside(&self, _: &CloneId) -> HostResult<()> {
        none()
    }
}
