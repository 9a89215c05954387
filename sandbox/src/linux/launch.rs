//! One launch of a plan.

use crate::{Error, Plan, Sandbox};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// What one of the program's three standard descriptors is.
#[derive(Debug, Default)]
pub enum Stdio {
    /// `/dev/null`.
    #[default]
    Null,
    /// The launcher's own.
    Inherit,
    /// This one.
    Descriptor(OwnedFd),
}

/// One launch of a plan: what belongs to this run and not to the policy.
#[derive(Debug)]
pub struct Launch {
    pub(crate) plan: Plan,
    pub(crate) bubblewrap: Option<PathBuf>,
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
    pub(crate) descriptors: BTreeMap<i32, OwnedFd>,
    pub(crate) network_namespace: Option<OwnedFd>,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) executable: Option<OwnedFd>,
    pub(crate) ready_timeout: Duration,
}

impl Launch {
    /// A launch with all three standard descriptors at `/dev/null` and no other.
    pub fn new(plan: Plan) -> Self {
        Launch {
            plan,
            bubblewrap: None,
            stdin: Stdio::Null,
            stdout: Stdio::Null,
            stderr: Stdio::Null,
            descriptors: BTreeMap::new(),
            network_namespace: None,
            cgroup: None,
            executable: None,
            ready_timeout: Duration::from_secs(20),
        }
    }

    /// The bubblewrap to use instead of the system's. It is checked like that one.
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

    /// The program's standard error. (What bubblewrap itself says is kept apart, for errors.)
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

    /// A folder of the cgroup v2 tree, delegated to the launcher and without processes, in which a
    /// cgroup for this sandbox is made. Without it a systemd scope is asked for, if limits are set.
    pub fn cgroup_parent(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cgroup = Some(folder.into());
        self
    }

    /// Executes the program in `file` (a memory file, say) instead of the plan's path, which then
    /// is only the name that the program sees as its own.
    pub fn executable(mut self, file: OwnedFd) -> Self {
        self.executable = Some(file);
        self
    }

    /// How long to wait for the sandbox to be ready.
    pub fn ready_timeout(mut self, timeout: Duration) -> Self {
        self.ready_timeout = timeout;
        self
    }

    /// Starts the program. May be called from any thread, also one that ends right after. Blocks for
    /// a few milliseconds: asynchronous programs call it where blocking is allowed.
    ///
    /// Ok means that every required layer is in force and that the program was executed; an error
    /// means that it never was.
    pub fn spawn(self) -> Result<Sandbox, Error> {
        Sandbox::start(self)
    }
}
