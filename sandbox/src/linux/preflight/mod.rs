//! Whether this machine can confine, found out by trying.
//!
//! Documentation and settings tell what should work; a launcher needs to know what does. So every
//! answer here comes from an attempt (settings are read only to explain a failure), and the last
//! probe is a whole launch with every layer required.

mod probes;

use super::fixes;
use crate::Layer;
use serde::Serialize;
use std::fmt;
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

    /// Whether everything works.
    pub fn is_good(&self) -> bool {
        self.problems().next().is_none()
    }

    /// The probe called `name`.
    pub fn probe(&self, name: &str) -> Option<&Probe> {
        self.probes.iter().find(|probe| probe.name == name)
    }
}

/// Tries everything. `bubblewrap` names one to use instead of the system's; `landlock_abi` is what
/// the policy will require.
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
