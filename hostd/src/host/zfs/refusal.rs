//! What `zfs` means when it refuses: the words of libzfs, matched whole.
//!
//! `zfs` answers nearly every refusal with exit code 1, so its words are all there is. They are matched here and nowhere
//! else, against recorded and read texts; what is not known is carried on as it is and never guessed at.

use crate::host::command::Outcome;
use crate::host::{HostError, HostErrorKind};

/// RefusalKind `zfs` did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalKind {
    /// There is no such dataset or snapshot.
    Missing,
    /// There is nothing to make it in: its parent or its pool is missing.
    NoParent,
    /// Something of that name is there.
    Exists,
    /// In use.
    Busy,
    /// A snapshot or a dataset below it is in the way; which ones.
    Children(Vec<String>),
    /// Clones were made from it; which ones.
    Dependents(Vec<String>),
    /// It is not mounted.
    NotMounted,
    /// It is mounted already.
    Mounted,
    /// We may not.
    Permission,
    /// The pool or a quota is full.
    NoSpace,
    /// The name has too many characters.
    NameTooLong,
    /// The pool lost its disks.
    Suspended,
    /// The pool may only be read.
    ReadOnly,
    /// The kernel has no ZFS.
    NotLoaded,
    /// Words that are not known.
    Unknown,
}

/// A refusal with its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What it means.
    pub kind: RefusalKind,
    /// What it said.
    pub text: String,
}

impl Refusal {
    /// The meaning of an outcome that is no success.
    pub fn of(outcome: &Outcome) -> Refusal {
        let kind = classify(&outcome.stderr);
        // What is in the way, and not what zfs advises about it.
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
            RefusalKind::Missing => (Kind::Failed, "look with zfs list -r; hostctl doctor checks the host"),
            RefusalKind::NoParent => {
                (Kind::NotReady, "import the pool, or make the dataset that pool.parent_dataset names")
            }
            RefusalKind::Exists => {
                (Kind::Foreign, "it is not hostd's: find out whose it is and remove or rename it")
            }
            RefusalKind::Busy => {
                (Kind::Busy, "find who uses it: fuser -cm its mount point; zfs holds its snapshots")
            }
            RefusalKind::Children(_) => {
                (Kind::Failed, "somebody made datasets below it: remove those that are not needed")
            }
            RefusalKind::Dependents(_) => (Kind::Busy, "clones were made from it: destroy those first"),
            RefusalKind::NotMounted | RefusalKind::Mounted => {
                (Kind::Failed, "look with zfs get mounted,mountpoint")
            }
            RefusalKind::Permission => (Kind::NotReady, "run hostd as root"),
            RefusalKind::NoSpace => (Kind::NoSpace, "make room: zpool list, zfs list -o space"),
            RefusalKind::NameTooLong => (Kind::NotReady, "take a shorter pool.parent_dataset or pool.prefix"),
            RefusalKind::Suspended => {
                (Kind::NotReady, "zpool status -x tells which disk is gone; zpool clear resumes")
            }
            RefusalKind::ReadOnly => (Kind::NotReady, "import the pool writable"),
            RefusalKind::NotLoaded => {
                (Kind::NotReady, "load ZFS: modprobe zfs (Linux), kldload zfs (FreeBSD)")
            }
            RefusalKind::Unknown => (Kind::Failed, "run the command by hand; hostd's log has it"),
        };
        HostError::new(kind, dataset, self.text, hint)
    }
}

/// The first line decides: what follows are consequences, lists and usage.
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
