//! What `zfs` means when it refuses: the words of libzfs, matched whole.
//!
//! `zfs` answers nearly every refusal with exit code 1, so its words are all there is. They are matched here and nowhere
//! else, against recorded and read texts; what is not known is carried on as it is and never guessed at.

use crate::host::command::Outcome;
use crate::host::{HostError, HostErrorKind};

/// Why `zfs` did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
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
    pub why: Why,
    /// What it said.
    pub words: String,
}

impl Refusal {
    /// The meaning of an outcome that is no success.
    pub fn of(outcome: &Outcome) -> Refusal {
        let why = why(&outcome.stderr);
        // What is in the way, and not what zfs advises about it.
        let words = match (&why, outcome.stderr.lines().next()) {
            (Why::Children(names) | Why::Dependents(names), Some(first)) => {
                format!("{first}: {}", names.join(", "))
            }
            _ => outcome.complaint(),
        };
        Refusal { why, words }
    }

    /// As an error about a dataset.
    pub fn about(self, dataset: &str) -> HostError {
        use HostErrorKind as Kind;
        let (kind, hint) = match &self.why {
            Why::Missing => (Kind::Failed, "look with zfs list -r; hostctl doctor checks the host"),
            Why::NoParent => {
                (Kind::NotReady, "import the pool, or make the dataset that pool.parent_dataset names")
            }
            Why::Exists => (Kind::Foreign, "it is not hostd's: find out whose it is and remove or rename it"),
            Why::Busy => (Kind::Busy, "find who uses it: fuser -cm its mount point; zfs holds its snapshots"),
            Why::Children(_) => {
                (Kind::Failed, "somebody made datasets below it: remove those that are not needed")
            }
            Why::Dependents(_) => (Kind::Busy, "clones were made from it: destroy those first"),
            Why::NotMounted | Why::Mounted => (Kind::Failed, "look with zfs get mounted,mountpoint"),
            Why::Permission => (Kind::NotReady, "run hostd as root"),
            Why::NoSpace => (Kind::NoSpace, "make room: zpool list, zfs list -o space"),
            Why::NameTooLong => (Kind::NotReady, "take a shorter pool.parent_dataset or pool.prefix"),
            Why::Suspended => {
                (Kind::NotReady, "zpool status -x tells which disk is gone; zpool clear resumes")
            }
            Why::ReadOnly => (Kind::NotReady, "import the pool writable"),
            Why::NotLoaded => (Kind::NotReady, "load ZFS: modprobe zfs (Linux), kldload zfs (FreeBSD)"),
            Why::Unknown => (Kind::Failed, "run the command by hand; hostd's log has it"),
        };
        HostError::new(kind, dataset, self.words, hint)
    }
}

/// The first line decides: what follows are consequences, lists and usage.
fn why(stderr: &str) -> Why {
    let mut lines = stderr.lines();
    let first = lines.next().unwrap_or_default();
    if first.starts_with("The ZFS modules ") || first == "internal error: failed to initialize ZFS library" {
        return Why::NotLoaded;
    }
    if first == "could not find any snapshots to destroy; check snapshot names." {
        return Why::Missing;
    }
    let Some(reason) = reason(first) else { return Why::Unknown };
    match reason {
        "dataset does not exist" | "no such pool or dataset" => Why::Missing,
        "parent does not exist" | "no such pool" => Why::NoParent,
        "dataset already exists" | "pool or dataset exists" => Why::Exists,
        "pool or dataset is busy"
        | "dataset is busy"
        | "snapshot is busy"
        | "mountpoint or dataset is busy" => Why::Busy,
        "filesystem has children" => Why::Children(listed(lines)),
        "filesystem has dependent clones" | "snapshot has dependent clones" => Why::Dependents(listed(lines)),
        "not currently mounted" => Why::NotMounted,
        "filesystem already mounted" => Why::Mounted,
        "permission denied" => Why::Permission,
        "out of space" => Why::NoSpace,
        "name is too long" | "dataset name is too long" => Why::NameTooLong,
        "pool I/O is currently suspended" => Why::Suspended,
        "pool is read-only" | "dataset is read-only" => Why::ReadOnly,
        other if other.starts_with("it's being held. ") => Why::Busy,
        other if other.starts_with("no such pool '") => Why::NoParent,
        _ => Why::Unknown,
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
