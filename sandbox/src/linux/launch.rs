//! One launch of a plan.

use crate::{Error, Sandbox, SandboxPlan};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// The source of one of the program's standard descriptors.
#[derive(Debug, Default)]
pub enum Stdio {
    /// `/dev/null`.
    #[default]
    Null,
    /// The launcher's own.
    Inherit,
    /// The given descriptor.
    Descriptor(OwnedFd),
}

/// One launch of a plan: the settings of this run that are not part of the policy.
#[derive(Debug)]
pub struct Launch {
    pub(crate) plan: SandboxPlan,
    pub(crate) bubblewrap: Option<PathBuf>,
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
    pub(crate) descriptors: BTreeMap<i32, OwnedFd>,
    pub(crate) network_namespace: Option<OwnedFd>,
    pub(crate) show_at: Vec<(PathBuf, PathBuf)>,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) executable: Option<OwnedFd>,
    pub(crate) ready_timeout: Duration,
}

impl Launch {
    /// A launch with `/dev/null` as standard descriptors and no others.
    pub fn new(plan: SandboxPlan) -> Self {
        Launch {
            plan,
            bubblewrap: None,
            stdin: Stdio::Null,
            stdout: Stdio::Null,
            stderr: Stdio::Null,
            descriptors: BTreeMap::new(),
            network_namespace: None,
            show_at: Vec::new(),
            cgroup: None,
            executable: None,
            ready_timeout: Duration::from_secs(20),
        }
    }

    /// The bubblewrap to use instead of the system's. The same checks apply.
    pub fn bubblewrap(mut self, path: impl Into<PathBuf>) -> Self {
        self.bubblewrap = Some(path.into());
        self
    }

    /// The program's standard input.
    pub fn stdin(mut self, stdio: Stdio) -> Self {
        self.stdin = stdio;
        self
    }

    /// The program's standard output.
    pub fn stdout(mut self, stdio: Stdio) -> Self {
        self.stdout = stdio;
        self
    }

    /// The program's standard error. Bubblewrap's own error output is captured separately.
    pub fn stderr(mut self, stdio: Stdio) -> Self {
        self.stderr = stdio;
        self
    }

    /// Gives the program `descriptor` under the number `number` (3 to 99).
    pub fn descriptor(mut self, number: i32, descriptor: OwnedFd) -> Self {
        self.descriptors.insert(number, descriptor);
        self
    }

    /// The prepared network namespace for mode `filtered`.
    pub fn network_namespace(mut self, namespace: OwnedFd) -> Self {
        self.network_namespace = Some(namespace);
        self
    }

    /// Shows the file or folder `path` of the host at `mount_point` to bubblewrap, which runs as the program's user and may
    /// not be able to follow `path`. Both exist, and a rule of the policy has `mount_point` as its source. Root only.
    pub fn show_at(mut self, path: impl Into<PathBuf>, mount_point: impl Into<PathBuf>) -> Self {
        self.show_at.push((path.into(), mount_point.into()));
        self
    }

    /// A cgroup v2 folder, delegated to the launcher and without processes, in which the sandbox's
    /// cgroup is created. Without it, limits use a systemd scope.
    pub fn cgroup_parent(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cgroup = Some(folder.into());
        self
    }

    /// Executes the program in `file` (for example a memory file). The plan's path is then only the
    /// program's `argv[0]`.
    pub fn executable(mut self, file: OwnedFd) -> Self {
        self.executable = Some(file);
        self
    }

    /// How long to wait for the sandbox to be ready.
    pub fn ready_timeout(mut self, timeout: Duration) -> Self {
        self.ready_timeout = timeout;
        self
    }

    /// Starts the program. Any thread may call it, even one that ends right afterwards. It blocks for
    /// a few milliseconds, so asynchronous programs call it where blocking is allowed.
    ///
    /// Ok means that every required layer is enforced and the program was executed. An error means
    /// that it never ran.
    pub fn spawn(self) -> Result<Sandbox, Error> {
        Sandbox::start(self)
    }
}
