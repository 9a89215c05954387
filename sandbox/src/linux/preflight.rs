//! Whether this machine can confine, found out by trying.

use crate::Layer;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// How a probe went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It works.
    Good,
    /// It works, with something worth knowing.
    Note,
    /// It does not work; a policy that requires the layer will start nothing.
    Bad,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Stable short name, for instance `nested-user-namespaces`.
    pub name: &'static str,
    /// The layer that depends on it.
    pub layer: Layer,
    /// How it went.
    pub outcome: Outcome,
    /// What was found, in words.
    pub found: String,
    /// What to do about it, for this distribution.
    pub fix: Option<String>,
}

/// What this machine can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The distribution, as far as fixes differ.
    pub distribution: Distribution,
    /// The bubblewrap that would be used.
    pub bubblewrap: Option<PathBuf>,
    /// Its version.
    pub bubblewrap_version: Option<String>,
    /// The kernel's Landlock ABI; 0 when there is none.
    pub landlock_abi: u8,
    /// Everything that was tried.
    pub probes: Vec<Probe>,
}

/// The families of distributions whose fixes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Debian.
    Debian,
    /// Ubuntu and what follows it.
    Ubuntu,
    /// Fedora and the Red Hat family.
    Fedora,
    /// Arch.
    Arch,
    /// Anything else.
    Other,
}

impl Report {
    /// What does not work.
    pub fn problems(&self) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(|p| p.outcome == Outcome::Bad)
    }
}

/// Tries everything. `bubblewrap` names one to use instead of the system's.
pub fn check(_bubblewrap: Option<&Path>) -> Report {
    Report {
        distribution: Distribution::Other,
        bubblewrap: None,
        bubblewrap_version: None,
        landlock_abi: 0,
        probes: Vec::new(),
    }
}
