//! `Policy`: what a confined program may see and do.
//!
//! A policy is data: it can be written as TOML, printed, compared and reviewed. It contains no
//! process, descriptor or command; those belong to one launch.

use crate::error::PolicyError;
use crate::syscalls::SyscallPolicy;
use sandbox_inside::layer::{Layer, Layers, Requirement};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Everything a confined program may see and do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Short name; also the host name that the program sees. Letters, digits and `-`.
    pub name: String,
    /// The program's user, inside and outside.
    #[serde(default)]
    pub identity: Identity,
    /// The folder in which the program starts.
    #[serde(default = "root_folder")]
    pub working_folder: PathBuf,
    /// Which network the program gets.
    #[serde(default)]
    pub network: Network,
    /// Resource limits.
    #[serde(default)]
    pub limits: Limits,
    /// The Landlock version that the kernel must support.
    #[serde(default)]
    pub landlock: LandlockPolicy,
    /// Layers that are optional or off. Every layer not named here is required.
    #[serde(default)]
    pub layers: Layers,
    /// The whole environment of the program.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Device files, besides the harmless ones (`null`, `zero`, `full`, `random`, `urandom`). There are no
    /// terminals inside.
    #[serde(default)]
    pub devices: Vec<DeviceRule>,
    /// The files that the program sees. A path without a rule does not exist inside.
    #[serde(default)]
    pub files: Vec<FileRule>,
    /// Which system calls are refused, each with its reason.
    #[serde(default)]
    pub syscalls: SyscallPolicy,
}

fn root_folder() -> PathBuf {
    PathBuf::from("/")
}

/// The program's user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Identity {
    /// The uid that the program sees.
    pub uid: u32,
    /// The gid that the program sees.
    pub gid: u32,
    /// The uid and gid outside. A launcher that runs as root must set a private one: not 0, and
    /// different for each instance. Any other launcher omits it and keeps its own.
    pub host_uid: Option<u32>,
}

impl Default for Identity {
    fn default() -> Self {
        Identity { uid: 1000, gid: 1000, host_uid: None }
    }
}

/// A rule for one path. `path` is the path inside; `source` is the path on the host and defaults
/// to `path`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "access", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FileRule {
    /// A file or folder of the host, to read.
    ReadOnly {
        /// The path inside.
        path: PathBuf,
        /// The path on the host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<PathBuf>,
        /// Whether programs below it may be executed (and libraries mapped).
        #[serde(default)]
        execute: bool,
        /// Whether it may be absent on the host.
        #[serde(default)]
        optional: bool,
    },
    /// A folder of the host, to read and write; never to execute from.
    Writable {
        /// The path inside.
        path: PathBuf,
        /// The path on the host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<PathBuf>,
    },
    /// An empty writable folder in memory, gone with the program.
    Temporary {
        /// The path inside.
        path: PathBuf,
        /// Its maximum size.
        size_bytes: u64,
    },
    /// A read-only file whose content is in the policy.
    Synthetic {
        /// The path inside.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// A symbolic link.
    Link {
        /// The path inside.
        path: PathBuf,
        /// What it points to.
        target: PathBuf,
    },
    /// A Unix socket of the host. A visible socket can be connected to, so only this rule may show
    /// one.
    Socket {
        /// The path inside.
        path: PathBuf,
        /// The path on the host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<PathBuf>,
    },
    /// A path below a visible folder that must not be visible.
    Hidden {
        /// The path inside.
        path: PathBuf,
    },
}

impl FileRule {
    /// The path inside.
    pub fn path(&self) -> &Path {
        match self {
            FileRule::ReadOnly { path, .. }
            | FileRule::Writable { path, .. }
            | FileRule::Temporary { path, .. }
            | FileRule::Synthetic { path, .. }
            | FileRule::Link { path, .. }
            | FileRule::Socket { path, .. }
            | FileRule::Hidden { path } => path,
        }
    }

    /// The path on the host, for rules that show a host path.
    pub fn source(&self) -> Option<&Path> {
        match self {
            FileRule::ReadOnly { path, source, .. }
            | FileRule::Writable { path, source }
            | FileRule::Socket { path, source } => Some(source.as_ref().unwrap_or(path)),
            _ => None,
        }
    }

    /// The path and the most files of a folder in memory: one for each 16 KiB, as on a disk. An empty file
    /// uses memory of the kernel that the folder's size does not count.
    pub fn inodes(&self) -> Option<(PathBuf, u64)> {
        const BYTES_PER_FILE: u64 = 16 << 10;
        const FEWEST: u64 = 1024;
        match self {
            FileRule::Temporary { path, size_bytes } => {
                Some((path.clone(), (size_bytes / BYTES_PER_FILE).max(FEWEST)))
            }
            _ => None,
        }
    }

    /// A folder or file of the host at the same path, to read.
    pub fn read_only(path: impl Into<PathBuf>) -> Self {
        FileRule::ReadOnly { path: path.into(), source: None, execute: false, optional: false }
    }

    /// As [`FileRule::read_only`], but it may be absent.
    pub fn read_only_if_present(path: impl Into<PathBuf>) -> Self {
        FileRule::ReadOnly { path: path.into(), source: None, execute: false, optional: true }
    }

    /// A folder of programs and libraries of the host at the same path.
    pub fn programs(path: impl Into<PathBuf>) -> Self {
        FileRule::ReadOnly { path: path.into(), source: None, execute: true, optional: false }
    }

    /// As [`FileRule::programs`], but it may be absent.
    pub fn programs_if_present(path: impl Into<PathBuf>) -> Self {
        FileRule::ReadOnly { path: path.into(), source: None, execute: true, optional: true }
    }

    /// The folder `source` of the host, writable, as `path` inside.
    pub fn writable(source: impl Into<PathBuf>, path: impl Into<PathBuf>) -> Self {
        FileRule::Writable { path: path.into(), source: Some(source.into()) }
    }

    /// An empty folder in memory.
    pub fn temporary(path: impl Into<PathBuf>, size_bytes: u64) -> Self {
        FileRule::Temporary { path: path.into(), size_bytes }
    }

    /// A read-only file with the given text.
    pub fn synthetic(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        FileRule::Synthetic { path: path.into(), text: text.into() }
    }

    /// A path that must not be visible.
    pub fn hidden(path: impl Into<PathBuf>) -> Self {
        FileRule::Hidden { path: path.into() }
    }
}

/// A device file or folder of the host at the same path (for instance `/dev/dri`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRule {
    /// The path, below `/dev`.
    pub path: PathBuf,
    /// Whether it may be absent on the host.
    #[serde(default)]
    pub optional: bool,
}

/// Which network the program gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Network {
    /// Own network namespace with only a loopback interface.
    #[default]
    None,
    /// As `None`, with one listening socket on the sandbox's loopback. The launcher's egress proxy
    /// accepts its connections. There is no route.
    Proxy {
        /// The port on `127.0.0.1` inside.
        port: u16,
    },
    /// A network namespace that the caller prepared and passes as a descriptor (root only).
    Filtered,
    /// The host's network, including every service on its loopback.
    Host,
}

/// Resource limits. `None` means unlimited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory of all processes together (cgroup `memory.max`).
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads (cgroup `pids.max`).
    pub processes: Option<u32>,
    /// Processor time, in percent of one processor (cgroup `cpu.max`).
    pub cpu_percent: Option<u32>,
    /// Open files of one process (`RLIMIT_NOFILE`). All processes together can open this many times
    /// `processes`, and the host's `fs.file-max` must be larger.
    pub open_files: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory_bytes: None, processes: None, cpu_percent: None, open_files: 2048 }
    }
}

impl Limits {
    /// Whether a cgroup is needed to enforce them.
    pub fn need_cgroup(&self) -> bool {
        self.memory_bytes.is_some() || self.processes.is_some() || self.cpu_percent.is_some()
    }
}

/// The Landlock settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LandlockPolicy {
    /// The ABI version; all of its rights are handled. 6 (Linux 6.12) is the first that confines
    /// signals and abstract sockets.
    pub abi: u8,
}

impl Default for LandlockPolicy {
    fn default() -> Self {
        LandlockPolicy { abi: 6 }
    }
}

impl Policy {
    /// A policy without files, environment and network.
    pub fn new(name: impl Into<String>) -> Self {
        Policy {
            name: name.into(),
            identity: Identity::default(),
            working_folder: root_folder(),
            network: Network::None,
            limits: Limits::default(),
            landlock: LandlockPolicy::default(),
            layers: Layers::default(),
            environment: BTreeMap::new(),
            devices: Vec::new(),
            files: Vec::new(),
            syscalls: SyscallPolicy::default(),
        }
    }

    /// Reads a policy written as TOML. Unknown keys are errors.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let policy: Policy = toml::from_str(text).map_err(PolicyError::TomlRead)?;
        policy.validate()?;
        Ok(policy)
    }

    /// Writes the policy as TOML.
    pub fn to_toml(&self) -> Result<String, PolicyError> {
        toml::to_string(self).map_err(PolicyError::TomlWrite)
    }

    /// Checks everything that can be checked without a machine.
    pub fn validate(&self) -> Result<(), PolicyError> {
        check_name(&self.name)?;
        check_identity(&self.identity)?;
        check_path(&self.working_folder)?;
        for (name, value) in &self.environment {
            check_environment(name, value)?;
        }
        for (layer, requirement) in self.layers.exceptions() {
            check_layer(layer, requirement)?;
        }
        if !(1..=9).contains(&self.landlock.abi) {
            return Err(PolicyError::LandlockAbi(self.landlock.abi));
        }
        if self.network == (Network::Proxy { port: 0 }) {
            return Err(PolicyError::Port);
        }
        check_limits(&self.limits)?;
        for device in &self.devices {
            check_path(&device.path)?;
            if !device.path.starts_with("/dev") || device.path == Path::new("/dev") {
                return Err(PolicyError::DeviceOutsideDev(device.path.clone()));
            }
        }
        self.check_files()?;
        self.syscalls.validate()
    }

    fn check_files(&self) -> Result<(), PolicyError> {
        let mut seen: BTreeMap<&Path, ()> = BTreeMap::new();
        for rule in &self.files {
            let path = rule.path();
            check_path(path)?;
            if path == Path::new("/") {
                return Err(PolicyError::WholeRoot);
            }
            if path.starts_with("/proc") || (path.starts_with("/dev") && !may_be_in_dev(rule)) {
                return Err(PolicyError::Reserved(path.to_owned()));
            }
            if seen.insert(path, ()).is_some() {
                return Err(PolicyError::Twice(path.to_owned()));
            }
            match rule {
                FileRule::Link { target, .. } => check_text(target.as_os_str().to_str(), path)?,
                FileRule::Temporary { size_bytes: 0, .. } => {
                    return Err(PolicyError::NoSize(path.to_owned()));
                }
                _ => {}
            }
            if let Some(source) = rule.source() {
                check_path(source)?;
                if source == Path::new("/") {
                    return Err(PolicyError::WholeRoot);
                }
            }
        }
        Ok(())
    }
}

/// Below `/dev`, only folders in memory are allowed (such as `/dev/shm`).
fn may_be_in_dev(rule: &FileRule) -> bool {
    matches!(rule, FileRule::Temporary { path, .. } if path != Path::new("/dev"))
}

fn check_name(name: &str) -> Result<(), PolicyError> {
    let good = !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    good.then_some(()).ok_or_else(|| PolicyError::Name(name.to_owned()))
}

fn check_identity(identity: &Identity) -> Result<(), PolicyError> {
    // Chromium and others refuse uid 0, and uid 0 inside would own the namespaces' sysctl files.
    if identity.uid == 0 || identity.gid == 0 || identity.host_uid == Some(0) {
        return Err(PolicyError::Root);
    }
    Ok(())
}

fn check_environment(name: &str, value: &str) -> Result<(), PolicyError> {
    let good = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !value.contains('\0');
    good.then_some(()).ok_or_else(|| PolicyError::Environment(name.to_owned()))
}

fn check_layer(layer: Layer, requirement: Requirement) -> Result<(), PolicyError> {
    match requirement {
        Requirement::Off if layer == Layer::Bubblewrap => Err(PolicyError::CannotBeOff(layer)),
        Requirement::Optional if !layer.may_be_missing() => Err(PolicyError::CannotBeOptional(layer)),
        _ => Ok(()),
    }
}

fn check_limits(limits: &Limits) -> Result<(), PolicyError> {
    const MIN_MEMORY: u64 = 1 << 20;
    if limits.memory_bytes.is_some_and(|n| n < MIN_MEMORY) {
        return Err(PolicyError::Limit("memory_bytes", "at least 1048576"));
    }
    // Bubblewrap's two processes count too.
    if limits.processes.is_some_and(|n| n < 3) {
        return Err(PolicyError::Limit("processes", "at least 3"));
    }
    if limits.cpu_percent.is_some_and(|n| n == 0 || n > 100_000) {
        return Err(PolicyError::Limit("cpu_percent", "between 1 and 100000"));
    }
    if !(16..=1_048_576).contains(&limits.open_files) {
        return Err(PolicyError::Limit("open_files", "between 16 and 1048576"));
    }
    Ok(())
}

/// Requires an absolute UTF-8 path without `.`, `..`, doubled or trailing slashes. Each path then
/// has one spelling, and paths can be compared.
fn check_path(path: &Path) -> Result<(), PolicyError> {
    check_text(path.to_str(), path)?;
    let plain = path.is_absolute()
        && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
        && path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    plain.then_some(()).ok_or_else(|| PolicyError::Path(path.to_owned()))
}

fn check_text(text: Option<&str>, path: &Path) -> Result<(), PolicyError> {
    match text {
        Some(text) if !text.is_empty() && !text.contains('\0') => Ok(()),
        _ => Err(PolicyError::Path(path.to_owned())),
    }
}

impl fmt::Display for Policy {
    /// The policy as TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_toml().map_err(|_| fmt::Error)?)
    }
}
