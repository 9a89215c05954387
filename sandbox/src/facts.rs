//! The facts about the host that planning needs. They are a value, so planning does no I/O.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What is at a path of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathKind {
    /// Nothing.
    Missing,
    /// A folder.
    Folder,
    /// A file, or a device file.
    File,
    /// A Unix socket.
    Socket,
    /// A symbolic link.
    Link {
        /// The text of the link.
        target: PathBuf,
        /// The fully resolved path.
        resolved: PathBuf,
        /// What is at the resolved path.
        ends_at: Box<PathKind>,
    },
}

impl PathKind {
    /// The kind after following links.
    pub fn followed(&self) -> &PathKind {
        match self {
            PathKind::Link { ends_at, .. } => ends_at.followed(),
            other => other,
        }
    }

    /// The kind as text for messages.
    pub fn in_words(&self) -> &'static str {
        match self {
            PathKind::Missing => "nothing",
            PathKind::Folder => "a folder",
            PathKind::File => "a file",
            PathKind::Socket => "a socket",
            PathKind::Link { .. } => "a link",
        }
    }
}

/// What is at the host paths that a policy names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    paths: BTreeMap<PathBuf, PathKind>,
}

impl HostFacts {
    /// Facts given explicitly (tests, or a plan for another machine).
    pub fn from_paths(paths: impl IntoIterator<Item = (PathBuf, PathKind)>) -> Self {
        HostFacts { paths: paths.into_iter().collect() }
    }

    /// What is at `path`, if it was inspected.
    pub fn kind(&self, path: &Path) -> Option<&PathKind> {
        self.paths.get(path)
    }
}
