//! What a plan must know of the host, as a value, so that planning itself touches nothing.

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
    /// A symbolic link; where it says it goes, where it ends, and what is there.
    Link {
        /// The text of the link.
        target: PathBuf,
        /// The path without any link in it.
        resolved: PathBuf,
        /// What is there.
        ends_at: Box<PathKind>,
    },
}

impl PathKind {
    /// What is there when links are followed.
    pub fn followed(&self) -> &PathKind {
        match self {
            PathKind::Link { ends_at, .. } => ends_at.followed(),
            other => other,
        }
    }

    /// In words.
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

/// What is at the host paths that a policy speaks of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    paths: BTreeMap<PathBuf, PathKind>,
}

impl HostFacts {
    /// Facts given by hand (tests, or a plan for another machine).
    pub fn from_paths(paths: impl IntoIterator<Item = (PathBuf, PathKind)>) -> Self {
        HostFacts {
            paths: paths.into_iter().collect(),
        }
    }

    /// What is at `path`, if that was looked at.
    pub fn kind(&self, path: &Path) -> Option<&PathKind> {
        self.paths.get(path)
    }
}
