//! Clones as ZFS clones of a template's snapshot, on FreeBSD and Linux.
//!
//! [`layout`] has the names and the exact commands, [`listing`] and [`datasets`] read the output of `zfs`, [`refusal`]
//! classifies its errors, [`template`] handles the template. Two commands create a clone, two destroy it, and one command
//! inspects one clone or all of them.
//!
//! A `zfs` command is durable when it returns, but creating a clone is not atomic: the mark is set after the dataset was
//! created, and two datasets need two commands. A half-made dataset is completed if it belongs to this clone, else refused.

pub mod datasets;
pub mod layout;
pub mod listing;
pub mod refusal;
pub mod template;

use super::command::{Outcome, Tool, Tools};
use super::{CloneSpec, HostError, HostErrorKind, HostResult, Identity};
use crate::api::{CloneId, Finding, Severity};
use crate::slot::{SlotNames, Slots};
use datasets::Datasets;
use layout::{Arguments, LOOK_PARENT, Layout, inner};
use listing::Unreadable;
use refusal::{Refusal, RefusalKind};
use std::path::PathBuf;

/// With less free space in the zpool the doctor reports an error.
const MIN_FREE_BYTES: u64 = 256 << 20;
/// How often the parent of moved datasets is made again, because another removal destroyed it, empty, meanwhile.
const MOVE_TRIES: u32 = 3;
/// The longest list: 999 clones need about 2 MB.
const MAX_LIST_BYTES: usize = 32 << 20;

/// Clones stored as ZFS datasets.
#[derive(Debug, Clone)]
pub struct Zfs {
    tool: Tool,
    layout: Layout,
    /// Where the parent must be mounted.
    clones: PathBuf,
    /// More properties for the datasets of clones, such as `setuid=off`.
    options: &'static [&'static str],
}

impl Zfs {
    /// ZFS storage for these slots, with more properties for their datasets.
    pub fn new(
        tools: &Tools,
        slots: &Slots,
        clones: PathBuf,
        template: &str,
        options: &'static [&'static str],
    ) -> Zfs {
        Zfs { tool: tools.find("zfs"), layout: Layout::new(slots, template), clones, options }
    }

    /// Where the datasets are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Inspect everything below the parent by one command, independent of the number of clones.
    pub async fn look_all(&self) -> HostResult<Datasets> {
        match self.look(self.layout.look_all(), &self.layout.parent).await? {
            Some(datasets) => Ok(datasets),
            None => Err(Refusal { kind: RefusalKind::NoParent, text: "it does not exist".to_owned() }
                .about(&self.layout.parent)),
        }
    }

    /// Inspect one clone. An absent clone is an empty result.
    pub async fn look_at(&self, names: &SlotNames) -> HostResult<Datasets> {
        Ok(self.look(self.layout.look(names), &names.dataset).await?.unwrap_or_default())
    }

    async fn look(&self, arguments: Arguments, dataset: &str) -> HostResult<Option<Datasets>> {
        let outcome = self.run(arguments).await?;
        if outcome.success() {
            let read = Datasets::read(outcome.text()?, dataset);
            return read.map(Some).map_err(|error| unreadable(dataset, error));
        }
        match Refusal::of(&outcome) {
            // Only the dataset itself: a dataset below it may disappear during the inspection.
            Refusal { kind: RefusalKind::Missing, text } if text.contains(&format!("'{dataset}'")) => {
                Ok(None)
            }
            refusal => Err(refusal.about(dataset)),
        }
    }

    /// Clone the template's two datasets, with mark and quota.
    pub async fn ensure(&self, spec: &CloneSpec) -> HostResult<()> {
        let names = &spec.names;
        let [outer, root] = self.layout.clone(spec, self.options);
        let found = match self.make(outer, &names.dataset, spec).await? {
            Made::New => None,
            Made::There => Some(self.complete_outer(spec).await?),
        };
        let dataset = inner(&names.dataset);
        if let Made::New = self.make(root, &dataset, spec).await? {
            return Ok(());
        }
        let found = match found {
            Some(found) => found,
            None => self.look_at(names).await?,
        };
        let root = found.get(&dataset);
        if root.is_some_and(|root| root.mark.is_none()) {
            self.must(self.layout.mark_inner(spec), &dataset).await?;
        }
        match root.is_some_and(|root| root.mounted) {
            true => Ok(()),
            false => self.mount(&dataset).await,
        }
    }

    async fn make(&self, arguments: Arguments, dataset: &str, spec: &CloneSpec) -> HostResult<Made> {
        match self.try_to(arguments).await? {
            Ok(()) => Ok(Made::New),
            Err(Refusal { kind: RefusalKind::Exists, .. }) => Ok(Made::There),
            Err(refusal) if refusal.kind == RefusalKind::Missing => {
                let [top, root] = self.layout.snapshots(&spec.snapshot);
                let missing = if dataset == spec.names.dataset { top } else { root };
                Err(HostError::new(HostErrorKind::Template, missing, "cannot be cloned", template::HINT)
                    .caused_by(refusal))
            }
            Err(refusal) => Err(refusal.about(dataset)),
        }
    }

    /// Complete an outer dataset that exists. It must belong to this clone.
    async fn complete_outer(&self, spec: &CloneSpec) -> HostResult<Datasets> {
        let names = &spec.names;
        let found = self.look_at(names).await?;
        let foreign = |why: String| {
            let hint = "destroy or rename it; hostctl ls shows the datasets of hostd";
            Err(HostError::new(HostErrorKind::Foreign, &names.dataset, why, hint))
        };
        let Some(seen) = found.storage(&self.layout, names) else {
            let text = "it disappeared during the create".to_owned();
            return Err(Refusal { kind: RefusalKind::Unknown, text }.about(&names.dataset));
        };
        match seen.identity {
            Identity::Foreign(why) => return foreign(why),
            Identity::Clone(id) if id != spec.clone_id => return foreign(format!("it belongs to {id}")),
            _ if seen.snapshot.as_ref() != Some(&spec.snapshot) => {
                let of = seen.snapshot.map_or("something else".to_owned(), |snapshot| snapshot.to_string());
                return foreign(format!("it was made from {of} and not from {}", spec.snapshot));
            }
            _ => {}
        }
        let outer = found.get(&names.dataset);
        let bounded = |quota: u64| spec.limits.disk_bytes.is_none_or(|bytes| bytes == quota);
        if !outer.is_some_and(|outer| outer.mark.is_some() && bounded(outer.quota)) {
            self.must(self.layout.mark_outer(spec), &names.dataset).await?;
        }
        if !outer.is_some_and(|outer| outer.mounted) {
            self.mount(&names.dataset).await?;
        }
        Ok(found)
    }

    async fn mount(&self, dataset: &str) -> HostResult<()> {
        match self.try_to(self.layout.mount(dataset)).await? {
            Ok(()) | Err(Refusal { kind: RefusalKind::Mounted, .. }) => Ok(()),
            Err(refusal) => Err(refusal.about(dataset)),
        }
    }

    /// Unmount both datasets of a clone by force. Only for FreeBSD; on Linux mounts are detached. `zfs unmount` of the outer
    /// one also unmounts the inner one, which inherits its mount point, unless the outer one is not mounted any more.
    pub async fn force_unmount(&self, names: &SlotNames) -> HostResult<()> {
        for dataset in [names.dataset.clone(), inner(&names.dataset)] {
            match self.try_to(self.layout.unmount(&dataset)).await? {
                Ok(()) | Err(Refusal { kind: RefusalKind::Missing, .. }) => return Ok(()),
                Err(Refusal { kind: RefusalKind::NotMounted, .. }) => {}
                Err(refusal) => return Err(refusal.about(&dataset)),
            }
        }
        Ok(())
    }

    /// Destroy both datasets of a clone: one try, without force.
    pub async fn destroy(&self, names: &SlotNames) -> HostResult<()> {
        self.destroy_both(&names.dataset).await?;
        // ZFS removes the folder with the mount, but not after another unmount.
        if let Err(error) = std::fs::remove_dir(&names.folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::debug!(folder = %names.folder.display(), %error, "the folder cannot be removed");
        }
        Ok(())
    }

    /// Rename a clone's datasets out of its slot. They are not mounted there and keep their mark.
    pub async fn move_aside(&self, names: &SlotNames, id: &CloneId) -> HostResult<()> {
        let rename = self.layout.move_aside(names, id);
        let mut tries = 0;
        loop {
            let refusal = match self.try_to(rename.clone()).await? {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            };
            match refusal.kind {
                // The parent for moved datasets does not exist: not yet, or it was destroyed with the last of them.
                RefusalKind::NoParent | RefusalKind::Missing if tries < MOVE_TRIES => tries += 1,
                // Now the dataset itself is gone.
                RefusalKind::Missing => return Ok(()),
                _ => return Err(refusal.about(&names.dataset)),
            }
            match self.try_to(self.layout.make_aside()).await? {
                Ok(()) | Err(Refusal { kind: RefusalKind::Exists, .. }) => {}
                Err(refusal) => return Err(refusal.about(&self.layout.aside)),
            }
        }
    }

    /// Destroy datasets that were moved aside: one try. Their parent goes with the last of them.
    pub async fn destroy_aside(&self, id: &CloneId) -> HostResult<()> {
        self.destroy_both(&self.layout.aside_of(id)).await?;
        self.destroy_empty_aside().await
    }

    /// Destroy the parent of datasets that were moved aside, if it is empty. A move makes it again.
    pub async fn destroy_empty_aside(&self) -> HostResult<()> {
        match self.try_to(self.layout.destroy(&self.layout.aside)).await? {
            Ok(()) | Err(Refusal { kind: RefusalKind::Missing | RefusalKind::Children(_), .. }) => Ok(()),
            Err(refusal) => Err(refusal.about(&self.layout.aside)),
        }
    }

    /// Destroy the inner dataset first, because it is a child of the outer one.
    async fn destroy_both(&self, outer: &str) -> HostResult<()> {
        self.destroy_one(&inner(outer)).await?;
        self.destroy_one(outer).await
    }

    async fn destroy_one(&self, dataset: &str) -> HostResult<()> {
        let refusal = match self.try_to(self.layout.destroy(dataset)).await? {
            Ok(()) | Err(Refusal { kind: RefusalKind::Missing, .. }) => return Ok(()),
            Err(refusal) => refusal,
        };
        // Snapshots by other tools block the destroy. Only snapshots of this very dataset are destroyed with it.
        let RefusalKind::Children(children) = &refusal.kind else { return Err(refusal.about(dataset)) };
        let own =
            |name: &'_ String| name.strip_prefix(dataset).and_then(|rest| rest.strip_prefix('@')).is_some();
        if children.is_empty() || !children.iter().all(own) {
            return Err(refusal.about(dataset));
        }
        let snapshots: Vec<&str> =
            children.iter().filter_map(|name| name.split_once('@')).map(|(_, snapshot)| snapshot).collect();
        tracing::info!(dataset, ?snapshots, "the snapshots of the clone are destroyed with it");
        self.must(self.layout.destroy_snapshots(dataset, &snapshots), dataset).await?;
        self.must(self.layout.destroy(dataset), dataset).await
    }

    /// Everything that must be right with ZFS before a clone can be made.
    pub async fn findings(&self) -> Vec<Finding> {
        let finding = |severity, message: String, fix: &str| Finding {
            check: "zfs".into(),
            severity,
            message,
            fix: fix.into(),
        };
        let parent = &self.layout.parent;
        let seen = match self.parent().await {
            Ok(seen) => seen,
            Err(error) => return vec![finding(Severity::Error, super::chain(&error), &error.hint)],
        };
        let clones = self.clones.display();
        let mut findings = Vec::new();
        if !seen.mounted || seen.mountpoint != self.clones {
            let state = if seen.mounted { "mounted" } else { "not mounted, but would be" };
            findings.push(finding(
                Severity::Error,
                format!("{parent} is {state} at {} and not at {clones}", seen.mountpoint.display()),
                "make pool.parent_dataset and pool.clones_dir the same place: zfs set mountpoint, zfs mount",
            ));
        }
        if seen.marked {
            findings.push(finding(
                Severity::Warning,
                format!("{parent} carries the mark of a clone, which the datasets below it inherit"),
                &format!("zfs inherit {} {parent}", layout::CLONE_ID),
            ));
        }
        if seen.available < MIN_FREE_BYTES {
            let message = format!("{} MiB are free in {parent}", seen.available >> 20);
            findings.push(finding(Severity::Error, message, "make room: zpool list, zfs list -o space"));
        }
        if findings.is_empty() {
            let message = format!("{parent} is at {clones}, {} MiB are free", seen.available >> 20);
            findings.push(finding(Severity::Ok, message, ""));
        }
        findings
    }

    async fn parent(&self) -> HostResult<Parent> {
        let parent = &self.layout.parent;
        let outcome = self.run(self.layout.look_parent()).await?;
        if !outcome.success() {
            let refusal = match Refusal::of(&outcome) {
                Refusal { kind: RefusalKind::Missing, text } => Refusal { kind: RefusalKind::NoParent, text },
                other => other,
            };
            return Err(refusal.about(parent));
        }
        let read = listing::read(outcome.text()?, &LOOK_PARENT).and_then(|table| {
            let Some([mounted, mountpoint, available, mark]) = table.get(parent).map(Vec::as_slice) else {
                return Err(Unreadable { line: 0, what: format!("{parent:?} itself is missing") });
            };
            Ok(Parent {
                mounted: listing::flag(mounted)?,
                mountpoint: mountpoint.value.clone().into(),
                available: listing::number(available)?,
                marked: mark.value != "-",
            })
        });
        read.map_err(|error| unreadable(parent, error))
    }

    async fn run(&self, arguments: Arguments) -> HostResult<Outcome> {
        Ok(self.tool.with(arguments).at_most(MAX_LIST_BYTES).run().await?)
    }

    async fn try_to(&self, arguments: Arguments) -> HostResult<Result<(), Refusal>> {
        let outcome = self.run(arguments).await?;
        Ok(if outcome.success() { Ok(()) } else { Err(Refusal::of(&outcome)) })
    }

    async fn must(&self, arguments: Arguments, dataset: &str) -> HostResult<()> {
        self.try_to(arguments).await?.map_err(|refusal| refusal.about(dataset))
    }
}

enum Made {
    New,
    There,
}

/// The parent dataset.
struct Parent {
    mounted: bool,
    mountpoint: PathBuf,
    available: u64,
    marked: bool,
}

fn unreadable(object: &str, error: Unreadable) -> HostError {
    let hint = "this version of zfs has another output format: run zfs version and hostctl doctor";
    HostError::new(HostErrorKind::Failed, object, "unexpected output of zfs", hint).caused_by(error)
}

#[cfg(test)]
mod tests;
