//! Classifies the error messages of `zfs`.
//!
//! `zfs` exits with 1 for nearly every error, so only its message tells them apart. The texts of libzfs are matched whole,
//! and only here. An unknown text is passed on unchanged and never guessed.

use crate::host::command::Outcome;
use crate::host::{HostError, HostErrorKind};

/// Why a `zfs` command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalKind {
    /// The dataset or snapshot does not exist.
    Missing,
    /// Its parent or its zpool does not exist.
    NoParent,
    /// A dataset of that name exists.
    Exists,
    /// In use.
    Busy,
    /// It has these snapshots or datasets below it.
    Children(Vec<String>),
    /// These clones were made from it.
    Dependents(Vec<String>),
    /// It is not mounted.
    NotMounted,
    /// It is mounted already.
    Mounted,
    /// Permission denied.
    Permission,
    /// The zpool or a quota is full.
    NoSpace,
    /// The name has too many characters.
    NameTooLong,
    /// The zpool is suspended because it lost its disks.
    Suspended,
    /// The zpool is read-only.
    ReadOnly,
    /// The kernel has no ZFS.
    NotLoaded,
    /// An unknown message.
    Unknown,
}

/// A `zfs` command that failed. Kept as the source of a [`HostError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The reason.
    pub kind: RefusalKind,
    /// The message of `zfs`.
    pub text: String,
}

impl Refusal {
    /// Classify an outcome without success.
    pub fn of(outcome: &Outcome) -> Refusal {
        let kind = classify(&outcome.stderr);
        // The names of the datasets instead of the advice to use -r.
        let text = match (&kind, outcome.stderr.lines().next()) {
            (RefusalKind::Children(names) | RefusalKind::Dependents(names), Some(first)) => {
                format!("{first}: {}", names.join(", "))
            }
            _ => outcome.complaint(),
        };
        Refusal { kind, text }
    }

    /// As an error about a dataset.
    pub fn about(self, dataset: &str) -> HostError {
        use HostErrorKind as Kind;
        let (kind, hint) = match &self.kind {
            RefusalKind::Missing => {
                (Kind::Failed, "inspect it with zfs list -r; hostctl doctor checks the host")
            }
            RefusalKind::NoParent => {
                (Kind::NotReady, "import the zpool, or create the dataset of pool.parent_dataset")
            }
            RefusalKind::Exists => (Kind::Foreign, "it was not created by hostd: remove or rename it"),
            RefusalKind::Busy => {
                (Kind::Busy, "find its users with fuser -cm MOUNTPOINT, and holds with zfs holds SNAPSHOT")
            }
            RefusalKind::Children(_) => {
                (Kind::Failed, "other datasets were created below it: remove those that are not needed")
            }
            RefusalKind::Dependents(_) => (Kind::Busy, "clones were made from it: destroy those first"),
            RefusalKind::NotMounted | RefusalKind::Mounted => {
                (Kind::Failed, "inspect it with zfs get mounted,mountpoint")
            }
            RefusalKind::Permission => (Kind::NotReady, "run hostd as root"),
            RefusalKind::NoSpace => (Kind::NoSpace, "make room: zpool list, zfs list -o space"),
            RefusalKind::NameTooLong => (Kind::NotReady, "take a shorter pool.parent_dataset or pool.prefix"),
            RefusalKind::Suspended => {
                (Kind::NotReady, "zpool status -x shows the missing disk; zpool clear resumes")
            }
            RefusalKind::ReadOnly => (Kind::NotReady, "import the zpool writable"),
            RefusalKind::NotLoaded => {
                (Kind::NotReady, "load ZFS: modprobe zfs (Linux), kldload zfs (FreeBSD)")
            }
            RefusalKind::Unknown => (Kind::Failed, "run the command by hand; hostd's log has it"),
        };
        HostError::new(kind, dataset, "the zfs command failed", hint).caused_by(self)
    }
}

/// Only the first line is classified. Consequences, lists and usage follow it.
fn classify(stderr: &str) -> RefusalKind {
    let mut lines = stderr.lines();
    let first = lines.next().unwrap_or_default();
    if first.starts_with("The ZFS modules ") || first == "internal error: failed to initialize ZFS library" {
        return RefusalKind::NotLoaded;
    }
    if first == "could not find any snapshots to destroy; check snapshot names." {
        return RefusalKind::Missing;
    }
    let Some(reason) = reason(first) else { return RefusalKind::Unknown };
    match reason {
        "dataset does not exist" | "no such pool or dataset" => RefusalKind::Missing,
        "parent does not exist" | "no such pool" => RefusalKind::NoParent,
        "dataset already exists" | "pool or dataset exists" => RefusalKind::Exists,
        "pool or dataset is busy"
        | "dataset is busy"
        | "snapshot is busy"
        | "mountpoint or dataset is busy" => RefusalKind::Busy,
        "filesystem has children" => RefusalKind::Children(listed(lines)),
        "filesystem has dependent clones" | "snapshot has dependent clones" => {
            RefusalKind::Dependents(listed(lines))
        }
        "not currently mounted" => RefusalKind::NotMounted,
        "filesystem already mounted" => RefusalKind::Mounted,
        "permission denied" => RefusalKind::Permission,
        "out of space" => RefusalKind::NoSpace,
        "name is too long" | "dataset name is too long" => RefusalKind::NameTooLong,
        "pool I/O is currently suspended" => RefusalKind::Suspended,
        "pool is read-only" | "dataset is read-only" => RefusalKind::ReadOnly,
        other if other.starts_with("it's being held. ") => RefusalKind::Busy,
        other if other.starts_with("no such pool '") => RefusalKind::NoParent,
        _ => RefusalKind::Unknown,
    }
}

/// The reason in `cannot DO 'OBJECT': REASON`, also where the object has no quotes or is left out.
fn reason(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("cannot ")?;
    match rest.split_once("': ") {
        Some((_, reason)) => Some(reason),
        None => rest.rsplit_once(": ").map(|(_, reason)| reason),
    }
}

/// The datasets named after `use '-r' to destroy the following datasets:`.
fn listed<'a>(mut lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    match lines.next() {
        Some(
            "use '-r' to destroy the following datasets:" | "use '-R' to destroy the following datasets:",
        ) => lines.map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}
