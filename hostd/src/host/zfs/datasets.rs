//! The datasets of an inspection, and the clones they belong to.

use super::layout::{LOOK, Layout, inner};
use super::listing::{self, Table, Unreadable, Value};
use crate::api::{CloneId, SnapshotName};
use crate::host::{Identity, ObservedStorage};
use crate::slot::{Slot, SlotNames, Slots};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// The snapshot it is a clone of.
    pub origin: Option<String>,
    /// Whether it is mounted.
    pub mounted: bool,
    /// Where it is mounted, or would be; also `none` and `legacy`.
    pub mountpoint: String,
    /// When it was made, in seconds since 1970.
    pub creation: u64,
    /// What it and all below it may use, in bytes; 0 is no limit.
    pub quota: u64,
    /// The mark that is set on this dataset itself, valid or not.
    pub mark: Option<String>,
}

impl Dataset {
    fn read(values: &[Value]) -> Result<Dataset, Unreadable> {
        let [origin, mounted, mountpoint, creation, quota, mark] = values else {
            return Err(Unreadable { line: 0, what: format!("{} values of a dataset", values.len()) });
        };
        let origin = match origin.value.as_str() {
            "-" => None,
            snapshot if snapshot.contains('@') => Some(snapshot.to_owned()),
            other => {
                return Err(Unreadable { line: 0, what: format!("the origin {other:?} is no snapshot") });
            }
        };
        let mountpoint = mountpoint.value.as_str();
        if !(mountpoint.starts_with('/') || ["none", "legacy", "-"].contains(&mountpoint)) {
            return Err(Unreadable { line: 0, what: format!("{mountpoint:?} is no mount point") });
        }
        Ok(Dataset {
            origin,
            mounted: listing::flag(mounted)?,
            mountpoint: mountpoint.to_owned(),
            creation: listing::number(creation)?,
            quota: listing::number(quota)?,
            mark: mark.local().map(str::to_owned),
        })
    }

    /// The template's snapshot it came from, if it is a clone of this dataset of the template.
    fn snapshot_of(&self, template: &str) -> Option<SnapshotName> {
        let snapshot = self.origin.as_deref()?.strip_prefix(template)?.strip_prefix('@')?;
        SnapshotName::try_from(snapshot.to_owned()).ok()
    }

    fn is_at(&self, path: &Path) -> bool {
        self.mounted && Path::new(&self.mountpoint) == path
    }
}

/// Datasets by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Datasets(BTreeMap<String, Dataset>);

impl Datasets {
    /// Read the inspection of a dataset and the datasets below it. The dataset itself must be among them.
    pub fn read(text: &str, asked: &str) -> Result<Datasets, Unreadable> {
        let table: Table = listing::read(text, &LOOK)?;
        let mut datasets = BTreeMap::new();
        for (name, values) in table {
            let below = name.strip_prefix(asked).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            if !below {
                return Err(Unreadable { line: 0, what: format!("{name:?} is not below {asked:?}") });
            }
            let dataset = Dataset::read(&values)
                .map_err(|error| Unreadable { what: format!("{name}: {}", error.what), ..error })?;
            datasets.insert(name, dataset);
        }
        match datasets.contains_key(asked) {
            true => Ok(Datasets(datasets)),
            false => Err(Unreadable { line: 0, what: format!("{asked:?} itself is missing") }),
        }
    }

    /// A dataset by its name.
    pub fn get(&self, name: &str) -> Option<&Dataset> {
        self.0.get(name)
    }

    /// The slots that have a dataset.
    pub fn slots<'a>(&'a self, layout: &'a Layout, slots: &'a Slots) -> impl Iterator<Item = Slot> + 'a {
        self.below(&layout.parent).filter_map(|name| slots.slot_of_name(name))
    }

    /// The clones whose datasets were moved aside.
    pub fn aside(&self, layout: &Layout) -> BTreeSet<CloneId> {
        self.below(&layout.aside).filter_map(|name| CloneId::try_from(name.to_owned()).ok()).collect()
    }

    /// Whether the parent for moved datasets exists without any: a failed move or a crash left it.
    pub fn has_empty_aside(&self, layout: &Layout) -> bool {
        self.get(&layout.aside).is_some() && self.below(&layout.aside).next().is_none()
    }

    /// The names of the datasets directly below one.
    fn below<'a>(&'a self, parent: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.0.keys().filter_map(move |name| name.strip_prefix(parent)?.strip_prefix('/'));
        names.filter(|name| !name.contains('/'))
    }

    /// A clone's storage.
    pub fn storage(&self, layout: &Layout, names: &SlotNames) -> Option<ObservedStorage> {
        let outer = self.get(&names.dataset)?;
        let root = self.get(&inner(&names.dataset));
        let there = root.is_some_and(|root| root.is_at(&names.folder.join("root")));
        Some(ObservedStorage {
            identity: identity(layout, outer, root),
            snapshot: outer.snapshot_of(&layout.template),
            mounted: outer.is_at(&names.folder) && there,
            age: Some(age(outer.creation, SystemTime::now())),
        })
    }
}

/// The identity of the two datasets. That of the outer one is used, and the inner one must not contradict it.
fn identity(layout: &Layout, outer: &Dataset, root: Option<&Dataset>) -> Identity {
    let whose = one_identity(outer, &layout.template);
    let Some(root) = root else { return whose };
    match (whose, one_identity(root, &inner(&layout.template))) {
        (foreign @ Identity::Foreign(_), _) => foreign,
        (_, Identity::Foreign(why)) => Identity::Foreign(format!("its files: {why}")),
        (Identity::Clone(one), Identity::Clone(other)) if one != other => {
            Identity::Foreign(format!("it is marked {one} and its files {other}"))
        }
        // The mark is set after the dataset was created, so a crash can leave one of them without it.
        (Identity::Clone(id), _) | (Identity::Unmarked, Identity::Clone(id)) => Identity::Clone(id),
        (Identity::Unmarked, Identity::Unmarked) => Identity::Unmarked,
    }
}

fn one_identity(dataset: &Dataset, template: &str) -> Identity {
    match (&dataset.mark, dataset.snapshot_of(template)) {
        (Some(mark), _) => match CloneId::try_from(mark.clone()) {
            Ok(id) => Identity::Clone(id),
            Err(_) => Identity::Foreign(format!("it is marked {mark:?}, which is no clone's identity")),
        },
        (None, Some(_)) => Identity::Unmarked,
        (None, None) => Identity::Foreign(match &dataset.origin {
            Some(origin) => format!("it is a clone of {origin} and not of {template}"),
            None => "it is no clone".to_owned(),
        }),
    }
}

/// A creation time in the future means age 0: the clock was set back, and no clone may be reaped for that.
fn age(creation: u64, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(creation))
}
