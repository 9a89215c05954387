//! Turns a policy into a plan. This is pure, so plans can be printed, compared and tested.

use crate::error::PolicyError;
use crate::facts::{HostFacts, PathKind};
use crate::policy::{DeviceRule, FileRule, Network, Policy};
use sandbox_inside::layer::Layer;
use sandbox_inside::protocol::{ExpectedMount, LandlockRule, Right};
use std::path::{Path, PathBuf};

/// The folder that shows the whole host, read-only, when the layer `files` is switched off.
pub const HOST_FOLDER: &str = "/host";

/// The program to run inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program's path inside.
    pub path: PathBuf,
    /// Its arguments, without its own name.
    pub arguments: Vec<String>,
}

/// One argument for bubblewrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Literal text.
    Text(String),
    /// The number of a descriptor from which bubblewrap reads this text.
    Data(String),
}

/// How one program is run under one policy on one host.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxPlan {
    pub(crate) policy: Policy,
    pub(crate) program: Program,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) mounts: Vec<ExpectedMount>,
    pub(crate) landlock: Vec<LandlockRule>,
    pub(crate) absent: Vec<PathBuf>,
}

impl SandboxPlan {
    /// The policy that the plan implements.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The program that the plan is for.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bubblewrap's arguments, in order.
    pub fn bubblewrap_arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The complete list of mounts of the sandbox.
    pub fn mounts(&self) -> &[ExpectedMount] {
        &self.mounts
    }

    /// Optional paths that this host does not have.
    pub fn absent(&self) -> &[PathBuf] {
        &self.absent
    }

    /// Whether the program will be in another network namespace than the launcher.
    pub fn own_network(&self) -> bool {
        own_network(&self.policy)
    }
}

fn own_network(policy: &Policy) -> bool {
    policy.layers.wanted(Layer::Network) && matches!(policy.network, Network::None | Network::Proxy { .. })
}

impl Policy {
    /// The plan for running `program` under this policy on a host with these facts.
    pub fn plan(&self, facts: &HostFacts, program: &Program) -> Result<SandboxPlan, PolicyError> {
        self.validate()?;
        check_program(program)?;
        let mut builder = Builder::new(self, facts);
        builder.namespaces();
        builder.base();
        for device in &self.devices {
            builder.device(device)?;
        }
        for rule in sorted(&self.files) {
            builder.file(rule)?;
        }
        builder.finish();
        Ok(SandboxPlan {
            policy: self.clone(),
            program: program.clone(),
            arguments: builder.arguments,
            mounts: builder.mounts,
            landlock: builder.landlock,
            absent: builder.absent,
        })
    }

    /// The host paths whose facts a plan for this policy needs.
    pub fn host_paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = Vec::new();
        for rule in &self.files {
            paths.extend(rule.source().map(Path::to_owned));
            paths.extend(host_path_below(&self.files, rule.path()));
        }
        paths.extend(self.devices.iter().map(|device| device.path.clone()));
        paths.sort();
        paths.dedup();
        paths
    }
}

fn check_program(program: &Program) -> Result<(), PolicyError> {
    let path = program.path.to_str().unwrap_or("\0");
    if !program.path.is_absolute() || path.contains('\0') {
        return Err(PolicyError::Program(program.path.display().to_string()));
    }
    match program.arguments.iter().find(|a| a.contains('\0')) {
        Some(argument) => Err(PolicyError::Program(argument.clone())),
        None => Ok(()),
    }
}

/// Sorts parents before children, because a later mount shadows an earlier one.
fn sorted(files: &[FileRule]) -> Vec<&FileRule> {
    let mut rules: Vec<&FileRule> = files.iter().collect();
    rules.sort_by_key(|rule| rule.path().components().collect::<Vec<_>>());
    rules
}

/// The deepest rule whose folder contains `path`, if any.
fn covering<'a>(files: &'a [FileRule], path: &Path) -> Option<&'a FileRule> {
    files
        .iter()
        .filter(|rule| rule.path() != path && path.starts_with(rule.path()))
        .max_by_key(|rule| rule.path().components().count())
}

/// The host path of `path` (inside), if it is in a folder of the host.
fn host_path_below(files: &[FileRule], path: &Path) -> Option<PathBuf> {
    let rule = covering(files, path)?;
    let rest = path.strip_prefix(rule.path()).ok()?;
    rule.source().map(|source| source.join(rest))
}

struct Builder<'a> {
    policy: &'a Policy,
    facts: &'a HostFacts,
    arguments: Vec<Argument>,
    mounts: Vec<ExpectedMount>,
    landlock: Vec<LandlockRule>,
    absent: Vec<PathBuf>,
}

impl<'a> Builder<'a> {
    fn new(policy: &'a Policy, facts: &'a HostFacts) -> Self {
        Builder {
            policy,
            facts,
            arguments: Vec::new(),
            mounts: Vec::new(),
            landlock: Vec::new(),
            absent: Vec::new(),
        }
    }

    fn add<const N: usize>(&mut self, words: [&str; N]) {
        self.arguments.extend(words.map(|word| Argument::Text(word.to_owned())));
    }

    fn mount(&mut self, path: impl Into<PathBuf>, read_only: bool, mounts_below: bool) {
        self.mounts.push(ExpectedMount { path: path.into(), read_only, mounts_below });
    }

    fn allow(&mut self, path: impl Into<PathBuf>, rights: &[Right]) {
        self.landlock.push(LandlockRule { path: path.into(), rights: rights.to_vec() });
    }

    fn namespaces(&mut self) {
        let wanted = |layer| self.policy.layers.wanted(layer);
        let switches = [
            (true, "--unshare-user"),
            (wanted(Layer::PidNamespace), "--unshare-pid"),
            (wanted(Layer::IpcNamespace), "--unshare-ipc"),
            (wanted(Layer::UtsNamespace), "--unshare-uts"),
            (wanted(Layer::CgroupNamespace), "--unshare-cgroup"),
            (own_network(self.policy), "--unshare-net"),
            (wanted(Layer::Session), "--new-session"),
            (true, "--die-with-parent"),
        ];
        for (on, switch) in switches {
            if on {
                self.add([switch]);
            }
        }
        let identity = &self.policy.identity;
        self.add(["--uid", &identity.uid.to_string()]);
        self.add(["--gid", &identity.gid.to_string()]);
        if self.policy.layers.wanted(Layer::UtsNamespace) {
            self.add(["--hostname", &self.policy.name]);
        }
        match self.policy.layers.wanted(Layer::Capabilities) {
            // Stage 2 needs this one to bound the folders in memory, and drops it.
            true => self.add(["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]),
            false => self.add(["--cap-add", "ALL"]),
        }
    }

    /// `/proc` and `/dev`, which every program needs.
    fn base(&mut self) {
        if !self.policy.layers.wanted(Layer::Files) {
            self.add(["--ro-bind", "/", HOST_FOLDER]);
            self.mount(HOST_FOLDER, true, true);
            self.allow(HOST_FOLDER, &[Right::Read]);
        }
        self.add(["--proc", "/proc", "--tmpfs", "/dev"]);
        self.mount("/", self.policy.layers.wanted(Layer::ReadOnlyRoot), false);
        self.mount("/proc", false, false);
        self.mount("/dev", self.policy.layers.wanted(Layer::ReadOnlyRoot), false);
        // Bubblewrap's own `--dev` also mounts a devpts, in which a program can make terminals without limit.
        for device in DEVICES {
            self.add(["--dev-bind", device, device]);
            self.mount(device, false, false);
        }
        for (path, target) in DEV_LINKS {
            self.add(["--symlink", target, path]);
        }
        // Programs write to /proc/self (thread names, id maps of nested user namespaces).
        self.allow("/proc", &[Right::Read, Right::Modify]);
        self.allow("/dev", &[Right::Read, Right::Modify, Right::Ioctl]);
    }

    fn fact(&self, path: &Path) -> Result<&'a PathKind, PolicyError> {
        self.facts.kind(path).ok_or_else(|| PolicyError::FactMissing(path.to_owned()))
    }

    fn device(&mut self, device: &DeviceRule) -> Result<(), PolicyError> {
        match self.fact(&device.path)?.followed() {
            PathKind::Missing if device.optional => {
                self.absent.push(device.path.clone());
                return Ok(());
            }
            PathKind::Missing => {
                return Err(PolicyError::SourceMissing { path: device.path.clone() });
            }
            PathKind::Socket => return Err(PolicyError::IsSocket(device.path.clone())),
            _ => {}
        }
        let path = text(&device.path);
        self.add(["--dev-bind", path, path]);
        self.mount(&device.path, false, true);
        Ok(())
    }

    fn file(&mut self, rule: &'a FileRule) -> Result<(), PolicyError> {
        match rule {
            FileRule::ReadOnly { path, execute, optional, .. } => {
                self.read_only(rule, path, *execute, *optional)
            }
            FileRule::Writable { path, .. } => self.writable(rule, path),
            FileRule::Temporary { path, size_bytes } => self.temporary(path, *size_bytes),
            FileRule::Synthetic { path, text } => self.synthetic(path, text),
            FileRule::Link { path, target } => self.link(path, target),
            FileRule::Socket { path, .. } => self.socket(rule, path),
            FileRule::Hidden { path } => self.hidden(path),
        }
    }

    fn source(&self, rule: &'a FileRule) -> Result<(&'a Path, &'a PathKind), PolicyError> {
        let source = rule.source().expect("only called for rules with a source");
        Ok((source, self.fact(source)?))
    }

    /// In a folder of the host the mount point must exist already. Otherwise bubblewrap would create
    /// it on the host.
    fn check_mount_point(&self, path: &Path) -> Result<(), PolicyError> {
        let Some(host_path) = host_path_below(&self.policy.files, path) else {
            return Ok(());
        };
        if *self.fact(&host_path)?.followed() == PathKind::Missing {
            let parent = covering(&self.policy.files, path).expect("there is a path below it").path();
            return Err(PolicyError::NoMountPoint { path: path.to_owned(), parent: parent.to_owned() });
        }
        Ok(())
    }

    fn read_only(
        &mut self,
        rule: &'a FileRule,
        path: &Path,
        execute: bool,
        optional: bool,
    ) -> Result<(), PolicyError> {
        let (source, kind) = self.source(rule)?;
        match kind.followed() {
            PathKind::Missing if optional => {
                self.absent.push(source.to_owned());
                return Ok(());
            }
            PathKind::Missing => {
                return Err(PolicyError::SourceMissing { path: source.to_owned() });
            }
            PathKind::Socket => return Err(PolicyError::IsSocket(source.to_owned())),
            _ => {}
        }
        if let PathKind::Link { target, resolved, .. } = kind
            && source == path
            && self.visible_at_same_path(resolved)
        {
            return self.link(path, target);
        }
        self.check_mount_point(path)?;
        self.add(["--ro-bind", text(source), text(path)]);
        self.mount(path, true, *kind.followed() == PathKind::Folder);
        let rights: &[Right] = if execute { &[Right::Read, Right::Execute] } else { &[Right::Read] };
        self.allow(path, rights);
        Ok(())
    }

    /// Whether the host's `path` is visible inside at the same path, so that a link to it works.
    fn visible_at_same_path(&self, path: &Path) -> bool {
        self.policy.files.iter().any(|rule| {
            path.starts_with(rule.path())
                && rule.source() == Some(rule.path())
                && self.facts.kind(rule.path()) == Some(&PathKind::Folder)
        })
    }

    fn writable(&mut self, rule: &'a FileRule, path: &Path) -> Result<(), PolicyError> {
        let (source, kind) = self.source(rule)?;
        match kind {
            PathKind::Folder => {}
            PathKind::Missing => {
                return Err(PolicyError::SourceMissing { path: source.to_owned() });
            }
            // A link is refused: whoever can write to its folder could redirect it.
            other => {
                return Err(PolicyError::WrongKind {
                    path: source.to_owned(),
                    found: other.in_words(),
                    needed: "a folder",
                });
            }
        }
        self.check_mount_point(path)?;
        self.add(["--bind", text(source), text(path)]);
        self.mount(path, false, true);
        self.allow(path, &WRITABLE);
        Ok(())
    }

    fn temporary(&mut self, path: &Path, size_bytes: u64) -> Result<(), PolicyError> {
        self.check_mount_point(path)?;
        self.add(["--perms", "0700", "--size", &size_bytes.to_string()]);
        self.add(["--tmpfs", text(path)]);
        self.mount(path, false, false);
        self.allow(path, &WRITABLE);
        Ok(())
    }

    fn synthetic(&mut self, path: &Path, content: &str) -> Result<(), PolicyError> {
        self.check_mount_point(path)?;
        self.data_file(path, "0444", content);
        self.allow(path, &[Right::Read]);
        Ok(())
    }

    fn data_file(&mut self, path: &Path, mode: &str, content: &str) {
        self.add(["--perms", mode, "--ro-bind-data"]);
        self.arguments.push(Argument::Data(content.to_owned()));
        self.add([text(path)]);
        self.mount(path, true, false);
    }

    fn link(&mut self, path: &Path, target: &Path) -> Result<(), PolicyError> {
        // A folder of the host already contains this link.
        if host_path_below(&self.policy.files, path).is_none() {
            self.add(["--symlink", text(target), text(path)]);
        }
        Ok(())
    }

    fn socket(&mut self, rule: &'a FileRule, path: &Path) -> Result<(), PolicyError> {
        let (source, kind) = self.source(rule)?;
        match kind.followed() {
            PathKind::Socket => {}
            PathKind::Missing => {
                return Err(PolicyError::SourceMissing { path: source.to_owned() });
            }
            other => {
                return Err(PolicyError::WrongKind {
                    path: source.to_owned(),
                    found: other.in_words(),
                    needed: "a socket",
                });
            }
        }
        self.check_mount_point(path)?;
        self.add(["--ro-bind", text(source), text(path)]);
        self.mount(path, true, false);
        self.allow(path, &[Right::Read, Right::Modify, Right::Connect]);
        Ok(())
    }

    fn hidden(&mut self, path: &Path) -> Result<(), PolicyError> {
        // A path outside every folder of the host does not exist inside anyway.
        let Some(host_path) = host_path_below(&self.policy.files, path) else {
            return Ok(());
        };
        match self.fact(&host_path)? {
            PathKind::Missing => {}
            PathKind::Folder => {
                self.add(["--perms", "0000", "--tmpfs", text(path)]);
                self.add(["--remount-ro", text(path)]);
                self.mount(path, true, false);
            }
            PathKind::File | PathKind::Socket => self.data_file(path, "0000", ""),
            PathKind::Link { .. } => {
                return Err(PolicyError::WrongKind {
                    path: host_path,
                    found: "a link",
                    needed: "a file or folder (hide what the link points to)",
                });
            }
        }
        Ok(())
    }

    fn finish(&mut self) {
        if self.policy.layers.wanted(Layer::ReadOnlyRoot) {
            self.add(["--remount-ro", "/dev", "--remount-ro", "/"]);
        }
    }
}

/// The device files that every program gets.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// The links in `/dev` that programs expect.
const DEV_LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

const WRITABLE: [Right; 4] = [Right::Read, Right::Modify, Right::Create, Right::Connect];

/// Paths of a validated policy are UTF-8.
fn text(path: &Path) -> &str {
    path.to_str().expect("validated: UTF-8")
}
