//! Tests whether this machine can run sandboxes.
//!
//! Every result comes from an attempt; settings are read only to explain a failure. The last probes
//! are complete launches with every layer required.

mod probes;

use super::fixes;
use crate::Layer;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It works.
    Good,
    /// It works, with a remark.
    Note,
    /// It does not work; a policy that requires the layer will start nothing.
    Bad,
}

/// One probe and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Stable short name, for instance `nested-user-namespaces`.
    pub name: &'static str,
    /// The layer that depends on it.
    pub layer: Layer,
    /// The result.
    pub outcome: Outcome,
    /// What was found, as a sentence.
    pub found: String,
    /// How to fix it on this distribution.
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
    /// All probes.
    pub probes: Vec<Probe>,
}

/// The families of distributions whose fixes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Debian.
    Debian,
    /// Ubuntu and its derivatives.
    Ubuntu,
    /// Fedora and the Red Hat family.
    Fedora,
    /// Arch.
    Arch,
    /// Anything else.
    Other,
}

impl Report {
    /// The probes that failed.
    pub fn problems(&self) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(|p| p.outcome == Outcome::Bad)
    }

    /// Whether everything works.
    pub fn is_good(&self) -> bool {
        self.problems().next().is_none()
    }

    /// The probe called `name`.
    pub fn probe(&self, name: &str) -> Option<&Probe> {
        self.probes.iter().find(|probe| probe.name == name)
    }
}

/// Runs all probes. `bubblewrap` replaces the system's; `landlock_abi` is the version that the
/// policy requires.
pub fn check(bubblewrap: Option<&Path>, landlock_abi: u8) -> Report {
    probes::run(bubblewrap, landlock_abi, fixes::distribution())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for probe in &self.probes {
            let word = match probe.outcome {
                Outcome::Good => "ok  ",
                Outcome::Note => "note",
                Outcome::Bad => "BAD ",
            };
            writeln!(f, "{word} {}: {}", probe.name, probe.found)?;
            if let Some(fix) = &probe.fix {
                writeln!(f, "     to fix it: {fix}")?;
            }
        }
        Ok(())
    }
}
