//! The names of the datasets and the exact arguments of each `zfs` command.
//!
//! ```text
//! PARENT/browser@default            the template: what Bastille keeps beside a jail's files
//! PARENT/browser/root@default       and the files themselves, both of one recursive snapshot
//! PARENT/browsertask001             a clone: the same two datasets
//! PARENT/browsertask001/root
//! PARENT/browsertask-aside/CLONE_ID a clone that could not be destroyed and was moved out of its slot
//! ```
//!
//! `destroy` never gets `-r`, `-R` or `-f`, which destroy more than one dataset, and `clone` never gets `-p`, which succeeds
//! if the dataset exists.

use crate::api::{CloneId, SnapshotName};
use crate::host::CloneSpec;
use crate::slot::{SlotNames, Slots};

/// The mark on a clone's datasets.
pub const CLONE_ID: &str = "org.hostd:clone_id";
/// Excludes clones from automatic snapshots, which would block their destroy.
const NO_SNAPSHOTS: &str = "com.sun:auto-snapshot=false";
/// The properties in an inspection of a dataset, in this order.
pub const LOOK: [&str; 6] = ["origin", "mounted", "mountpoint", "creation", "quota", CLONE_ID];
/// The properties in an inspection of a template's snapshots, in this order.
pub const LOOK_TEMPLATE: [&str; 4] = ["createtxg", "defer_destroy", BROWSER, VERSION];
/// The properties in an inspection of the parent, in this order.
pub const LOOK_PARENT: [&str; 4] = ["mounted", "mountpoint", "available", CLONE_ID];
/// On a template's snapshot: the browser's executable, where the system provides it.
pub const BROWSER: &str = "org.hostd:browser";
/// On a template's snapshot: the browser's version when it was made.
pub const VERSION: &str = "org.hostd:version";

/// The arguments of one run of `zfs`.
pub type Arguments = Vec<String>;

/// Where the datasets are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Of the clones and of their template.
    pub parent: String,
    /// The template.
    pub template: String,
    /// The parent of datasets that were moved aside.
    pub aside: String,
}

impl Layout {
    /// The layout of a pool of clones.
    pub fn new(slots: &Slots, template: &str) -> Layout {
        let parent = slots.parent_dataset().to_owned();
        let template = format!("{parent}/{template}");
        let aside = format!("{parent}/{}-aside", slots.prefix());
        Layout { parent, template, aside }
    }

    /// Inspect everything.
    pub fn look_all(&self) -> Arguments {
        look(&LOOK, &["-r", "-d", "2", "-t", "filesystem"], &[&self.parent])
    }

    /// Inspect one clone.
    pub fn look(&self, names: &SlotNames) -> Arguments {
        look(&LOOK, &["-r", "-d", "1", "-t", "filesystem"], &[&names.dataset])
    }

    /// Inspect the parent.
    pub fn look_parent(&self) -> Arguments {
        look(&LOOK_PARENT, &[], &[&self.parent])
    }

    /// Inspect a snapshot of the template.
    pub fn look_template(&self, snapshot: &SnapshotName) -> Arguments {
        let [top, root] = self.snapshots(snapshot);
        look(&LOOK_TEMPLATE, &[], &[&top, &root])
    }

    /// Inspect all snapshots of the template.
    pub fn look_templates(&self) -> Arguments {
        look(&LOOK_TEMPLATE, &["-r", "-d", "2", "-t", "snapshot"], &[&self.template])
    }

    /// The two snapshots that a clone is made from.
    pub fn snapshots(&self, snapshot: &SnapshotName) -> [String; 2] {
        [format!("{}@{snapshot}", self.template), format!("{}/root@{snapshot}", self.template)]
    }

    /// Create the two datasets of a clone, the outer one first. Its quota includes the inner one.
    pub fn clone(&self, spec: &CloneSpec, options: &[&str]) -> [Arguments; 2] {
        let [top, root] = self.snapshots(&spec.snapshot);
        let mark = format!("{CLONE_ID}={}", spec.clone_id);
        let mut outer = vec![mark.clone(), NO_SNAPSHOTS.to_owned()];
        outer.extend(quota(spec));
        let with = |settings: Vec<String>, from: String, to: String| {
            let settings = settings.into_iter().chain(options.iter().map(|option| (*option).to_owned()));
            let settings = settings.flat_map(|setting| ["-o".to_owned(), setting]);
            ["clone".to_owned()].into_iter().chain(settings).chain([from, to]).collect()
        };
        [with(outer, top, spec.names.dataset.clone()), with(vec![mark], root, inner(&spec.names.dataset))]
    }

    /// Set the properties of an outer dataset whose creation was interrupted.
    pub fn mark_outer(&self, spec: &CloneSpec) -> Arguments {
        let mut settings = vec![format!("{CLONE_ID}={}", spec.clone_id)];
        settings.extend(quota(spec));
        ["set".to_owned()].into_iter().chain(settings).chain([spec.names.dataset.clone()]).collect()
    }

    /// The same for the inner one.
    pub fn mark_inner(&self, spec: &CloneSpec) -> Arguments {
        arguments(["set", &format!("{CLONE_ID}={}", spec.clone_id), &inner(&spec.names.dataset)])
    }

    /// Mount a dataset.
    pub fn mount(&self, dataset: &str) -> Arguments {
        arguments(["mount", dataset])
    }

    /// Unmount a dataset by force (FreeBSD only).
    pub fn unmount(&self, dataset: &str) -> Arguments {
        arguments(["unmount", "-f", dataset])
    }

    /// Destroy one dataset.
    pub fn destroy(&self, dataset: &str) -> Arguments {
        arguments(["destroy", dataset])
    }

    /// Destroy snapshots of one dataset, given by their whole names.
    pub fn destroy_snapshots(&self, dataset: &str, snapshots: &[&str]) -> Arguments {
        arguments(["destroy", &format!("{dataset}@{}", snapshots.join(","))])
    }

    /// Move a clone out of its slot.
    pub fn move_aside(&self, names: &SlotNames, id: &CloneId) -> Arguments {
        arguments(["rename", &names.dataset, &self.aside_of(id)])
    }

    /// Create the parent of datasets that are moved aside. It is never mounted.
    pub fn make_aside(&self) -> Arguments {
        arguments(["create", "-o", "mountpoint=none", "-o", "canmount=off", &self.aside])
    }

    /// The template's two datasets, empty, the outer one first.
    pub fn make_template(&self) -> [Arguments; 2] {
        [arguments(["create", &self.template]), arguments(["create", &inner(&self.template)])]
    }

    /// Take the snapshot that clones are made from, of both datasets at once.
    pub fn take_snapshot(&self, snapshot: &SnapshotName, browser: &str, version: &str) -> Arguments {
        let (browser, version) = (format!("{BROWSER}={browser}"), format!("{VERSION}={version}"));
        let [top, _] = self.snapshots(snapshot);
        arguments(["snapshot", "-r", "-o", &browser, "-o", &version, &top])
    }

    /// The dataset of a clone that was moved aside.
    pub fn aside_of(&self, id: &CloneId) -> String {
        format!("{}/{id}", self.aside)
    }
}

/// The inner dataset of a clone or a template.
pub fn inner(outer: &str) -> String {
    format!("{outer}/root")
}

fn quota(spec: &CloneSpec) -> Option<String> {
    spec.limits.disk_bytes.map(|bytes| format!("quota={bytes}"))
}

fn look(properties: &[&str], flags: &[&str], names: &[&str]) -> Arguments {
    let properties = properties.join(",");
    let fixed = ["get", "-Hp", "-o", "name,property,value,source"];
    arguments([&fixed, flags, &[properties.as_str()], names].concat())
}

fn arguments<'a>(words: impl IntoIterator<Item = &'a str>) -> Arguments {
    words.into_iter().map(str::to_owned).collect()
}
