//! The errors of policies and launches.

use crate::Layer;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A policy is invalid, or does not fit this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The text is not TOML, or not a policy.
    #[error("the policy is not valid TOML for a policy")]
    TomlRead(#[source] toml::de::Error),
    /// The policy cannot be written.
    #[error("the policy cannot be written as TOML")]
    TomlWrite(#[source] toml::ser::Error),
    /// `name` is not a host name.
    #[error("policy name {0:?}: use 1 to 63 lower case letters, digits and '-'")]
    Name(String),
    /// uid or gid 0.
    #[error("the program must not be uid or gid 0, neither inside nor outside")]
    Root,
    /// Not an absolute, plain path.
    #[error("path {0:?}: must be absolute, UTF-8, without '.', '..', doubled or trailing slashes")]
    Path(PathBuf),
    /// A rule for `/` itself.
    #[error("a rule may not show or cover the whole root folder; name what is needed")]
    WholeRoot,
    /// A rule below `/proc` or `/dev`.
    #[error("path {0:?}: /proc and /dev are made by the sandbox; use `devices` for device files")]
    Reserved(PathBuf),
    /// Two rules for one path.
    #[error("path {0:?} has two rules")]
    Twice(PathBuf),
    /// A folder in memory without a size.
    #[error("temporary folder {0:?}: size_bytes must be more than 0")]
    NoSize(PathBuf),
    /// A device outside `/dev`.
    #[error("device {0:?} is not below /dev")]
    DeviceOutsideDev(PathBuf),
    /// Not a variable name, or a value with NUL.
    #[error("environment variable {0:?}: not a valid name or value")]
    Environment(String),
    /// This layer is always on.
    #[error("layer {0} cannot be switched off")]
    CannotBeOff(Layer),
    /// This layer is never missing where bubblewrap works.
    #[error("layer {0} cannot be optional: every machine that runs bubblewrap has it")]
    CannotBeOptional(Layer),
    /// Not a Landlock ABI.
    #[error("landlock.abi {0}: must be between 1 and 9")]
    LandlockAbi(u8),
    /// Port 0.
    #[error("network mode proxy: port must not be 0")]
    Port,
    /// A limit out of range.
    #[error("limits.{0}: must be {1}")]
    Limit(&'static str, &'static str),
    /// An invalid system call rule.
    #[error("system call rule {rule:?}: {problem}")]
    Syscall {
        /// The rule's first system call.
        rule: String,
        /// What is wrong.
        problem: String,
    },
    /// A required file of the host does not exist.
    #[error("{path:?} does not exist on this host; mark the rule `optional` if it may be absent")]
    SourceMissing {
        /// The path on the host.
        path: PathBuf,
    },
    /// The facts lack a path of the policy.
    #[error("the host facts do not include {0:?}: gather them for this policy")]
    FactMissing(PathBuf),
    /// A socket shown by a rule for files.
    #[error(
        "{0:?} is a socket, and a visible socket can be connected to; use access = \"socket\" to allow that"
    )]
    IsSocket(PathBuf),
    /// The path has a kind that the rule does not support.
    #[error("{path:?} is {found}, the rule needs {needed}")]
    WrongKind {
        /// The path on the host.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What the rule needs.
        needed: &'static str,
    },
    /// The mount point does not exist in a folder of the host.
    #[error("{path:?} cannot be mounted inside the host folder {parent:?}: it does not exist there")]
    NoMountPoint {
        /// The path inside.
        path: PathBuf,
        /// The folder.
        parent: PathBuf,
    },
    /// An argument with NUL, or a program that is not an absolute path.
    #[error("program or argument {0:?}: must be an absolute path / must not contain NUL")]
    Program(String),
}

/// Why a launch failed. Nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The policy is invalid, or does not fit this machine.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A layer that the policy requires could not be enforced.
    #[error("layer {layer} is not available: {reason}{}", fix_text(.fix))]
    Layer {
        /// The layer.
        layer: Layer,
        /// The failed step and its error, as a stage or a probe reported it.
        reason: String,
        /// How to fix it, if known.
        fix: Option<String>,
    },
    /// The launcher runs as root and the policy names no private uid.
    #[error(
        "running as root: set identity.host_uid to a private uid (the program must not be root, \
         not even inside a user namespace)"
    )]
    RootNeedsPrivateUid,
    /// The policy names a uid that this launcher cannot become.
    #[error(
        "identity.host_uid {wanted}: only root can change the uid, and this launcher has uid {current}; remove it"
    )]
    CannotBecome {
        /// The requested uid.
        wanted: u32,
        /// The uid that the launcher has.
        current: u32,
    },
    /// Mode `filtered` without a network namespace, or one without mode `filtered`.
    #[error("network mode filtered needs a prepared network namespace, and only that mode takes one: {0}")]
    NetworkNamespace(&'static str),
    /// A descriptor number that cannot be given to the program.
    #[error("descriptor number {0}: must be between 3 and 99")]
    Descriptor(i32),
    /// A descriptor for the program is a terminal.
    #[error("descriptor {0} is a terminal: the program could read what is typed there; pass a pipe")]
    Terminal(i32),
    /// The target program could not be executed inside.
    #[error("{program}: cannot be executed inside the sandbox: {reason}")]
    Exec {
        /// The program.
        program: String,
        /// The kernel's error, as stage 2 reported it.
        reason: String,
    },
    /// Stage 2 did not report in time.
    #[error("the sandbox was not ready within {0:?}; bubblewrap's error output: {1}")]
    Timeout(Duration, String),
    /// A system call of the launcher failed.
    #[error("{what}")]
    Io {
        /// The failed operation, with its object.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The error and its sources in one line, for output to a user.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    for source in std::iter::successors(error.source(), |source| source.source()) {
        text.push_str(": ");
        text.push_str(source.to_string().trim_end());
    }
    text
}

fn fix_text(fix: &Option<String>) -> String {
    fix.as_ref().map(|fix| format!(". To fix it: {fix}")).unwrap_or_default()
}

impl Error {
    /// The layer that is missing, if that is the cause.
    pub fn missing_layer(&self) -> Option<Layer> {
        match self {
            Error::Layer { layer, .. } => Some(*layer),
            _ => None,
        }
    }
}
