//! The layers of a sandbox. A policy names and requires them; the escape battery tests them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One protection between the program and the host.
///
/// Layers overlap on purpose. The escape battery proves that removing any single one opens a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Layer {
    /// Bubblewrap itself: own user and mount namespace, `no_new_privs`. Cannot be switched off.
    Bubblewrap,
    /// A private uid instead of root. Only meaningful when the launcher runs as root.
    Identity,
    /// The mount view: only the files that the policy names exist.
    Files,
    /// The root folder of the view is read-only, and so is every folder that the policy does not name.
    ReadOnlyRoot,
    /// Own process ids: no other process can be seen, signalled or traced.
    PidNamespace,
    /// Own System V and POSIX message objects.
    IpcNamespace,
    /// Own host name.
    UtsNamespace,
    /// Own view of the control groups.
    CgroupNamespace,
    /// Own network stack (modes `none` and `proxy`) or the prepared one (mode `filtered`).
    Network,
    /// No controlling terminal.
    Session,
    /// Only the environment variables that the policy names.
    Environment,
    /// Only the file descriptors that the caller passed on purpose.
    Descriptors,
    /// No capability in any set, bounding set included.
    Capabilities,
    /// Landlock: file access by inode, execution only where allowed, scoped signals and sockets.
    Landlock,
    /// The system call filter.
    Seccomp,
    /// Open files, core dumps, and the cgroup limits that the policy asks for.
    Limits,
}

impl Layer {
    /// Every layer, in the order in which they are set up.
    pub const ALL: [Layer; 16] = [
        Layer::Bubblewrap,
        Layer::Identity,
        Layer::Files,
        Layer::ReadOnlyRoot,
        Layer::PidNamespace,
        Layer::IpcNamespace,
        Layer::UtsNamespace,
        Layer::CgroupNamespace,
        Layer::Network,
        Layer::Session,
        Layer::Environment,
        Layer::Descriptors,
        Layer::Capabilities,
        Layer::Landlock,
        Layer::Seccomp,
        Layer::Limits,
    ];

    /// The name used in policies, reports and errors.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Bubblewrap => "bubblewrap",
            Layer::Identity => "identity",
            Layer::Files => "files",
            Layer::ReadOnlyRoot => "read-only-root",
            Layer::PidNamespace => "pid-namespace",
            Layer::IpcNamespace => "ipc-namespace",
            Layer::UtsNamespace => "uts-namespace",
            Layer::CgroupNamespace => "cgroup-namespace",
            Layer::Network => "network",
            Layer::Session => "session",
            Layer::Environment => "environment",
            Layer::Descriptors => "descriptors",
            Layer::Capabilities => "capabilities",
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
            Layer::Limits => "limits",
        }
    }

    /// Whether a machine on which bubblewrap works can lack this layer. Only such layers may be
    /// `optional`; the others come with bubblewrap or with any Linux.
    pub fn may_be_missing(self) -> bool {
        matches!(self, Layer::Landlock | Layer::Seccomp | Layer::Limits)
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a policy requires a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requirement {
    /// Nothing starts without it.
    #[default]
    Required,
    /// Used where the machine has it; the handle reports whether it is on.
    Optional,
    /// Not used.
    Off,
}

/// The requirements of a policy. A layer that is not named is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Layers(BTreeMap<Layer, Requirement>);

impl Layers {
    /// The requirement for `layer`.
    pub fn requirement(&self, layer: Layer) -> Requirement {
        self.0.get(&layer).copied().unwrap_or_default()
    }

    /// Whether `layer` is not switched off.
    pub fn wanted(&self, layer: Layer) -> bool {
        self.requirement(layer) != Requirement::Off
    }

    /// Sets the requirement for `layer`.
    pub fn set(&mut self, layer: Layer, requirement: Requirement) {
        match requirement {
            Requirement::Required => self.0.remove(&layer),
            other => self.0.insert(layer, other),
        };
    }

    /// The layers that are not required.
    pub fn exceptions(&self) -> impl Iterator<Item = (Layer, Requirement)> + '_ {
        self.0
            .iter()
            .map(|(layer, requirement)| (*layer, *requirement))
            .filter(|(_, requirement)| *requirement != Requirement::Required)
    }
}
