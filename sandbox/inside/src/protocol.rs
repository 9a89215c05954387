//! The protocol between the launcher and the two stages.
//!
//! ```text
//! launcher                    stage 1 (outside)              stage 2 (inside)
//!    │ StageOne + descriptors     │                              │
//!    │ ──────────────────────────▶│ close all, drop uid,         │
//!    │                            │ start bubblewrap ───────────▶│ read Instructions (memory file)
//!    │                            │ watch the launcher           │ verify, confine
//!    │        Ready or Failed (the kernel adds the sender's pid) │
//!    │◀──────────────────────────────────────────────────────────│
//!    │ limits, pidfd …                                        GO │
//!    │ ─────────────────────────────────────────────────────────▶│ exec
//!    │                       end of file = the program runs      │
//!    │◀──────────────────────────────────────────────────────────│ (or Failed: exec did not work)
//! ```
//!
//! If the launcher dies before GO, stage 2 reads end of file and the program never starts. If it
//! dies later, stage 1 notices and kills everything it started.

use crate::layer::{Layer, Requirement};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The byte that makes stage 2 execute the target.
pub const GO: u8 = b'g';

/// Maximum length of a message, in bytes.
pub const MAX_RECORD: usize = 16 * 1024;

/// Stage 1 moves the descriptors it receives to this number and the following ones, in the order in
/// which they were sent. So the launcher knows every number in advance.
pub const FIRST_DESCRIPTOR: i32 = 100;

/// Maximum number of descriptors of one launch (the kernel allows 253 per message).
pub const MAX_DESCRIPTORS: usize = 200;

/// The order for stage 1. Descriptors are given by their final numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageOne {
    /// The launcher's pidfd. When the launcher ends, stage 1 kills everything.
    pub launcher: i32,
    /// The socket for failure reports.
    pub status: i32,
    /// The network namespace to enter.
    pub network_namespace: Option<i32>,
    /// The `cgroup.procs` file of the cgroup to enter.
    pub cgroup: Option<i32>,
    /// Files and folders to show at another path before root is dropped: the path, and the mount point.
    pub show_at: Vec<(PathBuf, PathBuf)>,
    /// The uid and gid to become.
    pub become_user: Option<u32>,
    /// The absolute path of bubblewrap.
    pub bubblewrap: PathBuf,
    /// Bubblewrap's arguments, each ended by NUL.
    pub arguments: i32,
    /// The file for bubblewrap's error output.
    pub complaints: i32,
    /// The executable file of the stages.
    pub stages: i32,
    /// The [`Instructions`] for stage 2.
    pub instructions: i32,
    /// The descriptors that bubblewrap and stage 2 inherit, besides those above.
    pub inherit: Vec<i32>,
}

/// The order for stage 2; the fields are in the order of execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// Number of the status socket.
    pub status_fd: i32,
    /// The properties of the sandbox to verify first.
    pub verify: Verify,
    /// A TCP port on the sandbox's loopback to listen on; the socket is sent to the launcher.
    pub listen: Option<u16>,
    /// Which descriptors the target gets, and under which numbers.
    pub descriptors: Descriptors,
    /// The bounds on kernel resources, unless the layer `limits` is off.
    pub bounds: Option<Bounds>,
    /// The Landlock rules, unless that layer is off.
    pub landlock: Option<Landlock>,
    /// Whether every capability set must be empty.
    pub drop_capabilities: bool,
    /// The system call filters, unless that layer is off.
    pub seccomp: Option<Seccomp>,
    /// The program to run.
    pub target: Target,
}

/// What stage 2 verifies of bubblewrap's work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verify {
    /// Namespaces that must differ from the launcher's, or equal a given one.
    pub namespaces: Vec<NamespaceCheck>,
    /// Whether `/` must be read-only.
    pub read_only_root: bool,
    /// The mounts that must exist; any other is refused.
    pub mounts: Vec<ExpectedMount>,
    /// Whether bubblewrap must be process 1 and stage 2 its first child.
    pub own_process_ids: bool,
    /// The uid that the program must see.
    pub uid: u32,
    /// The gid that the program must see.
    pub gid: u32,
    /// Whether the process must have no controlling terminal.
    pub own_session: bool,
}

/// One namespace to check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamespaceCheck {
    /// The name below `/proc/self/ns`.
    pub kind: String,
    /// The inode of the namespace to compare with.
    pub inode: u64,
    /// `true`: must be that namespace. `false`: must be a different one.
    pub same: bool,
    /// The layer that the namespace belongs to.
    pub layer: Layer,
}

/// One planned mount.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExpectedMount {
    /// The path inside.
    pub path: PathBuf,
    /// Whether it must be read-only.
    pub read_only: bool,
    /// Whether the host's own mounts may appear below it (a bound folder).
    pub mounts_below: bool,
}

/// Which descriptors the target gets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Descriptors {
    /// Moves from the number that came through bubblewrap to the number the target expects.
    pub moves: Vec<(i32, i32)>,
    /// Whether everything else is closed (layer `descriptors`).
    pub close_others: bool,
}

/// Bounds on kernel resources that are not part of a cgroup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Whether a bound that cannot be set is an error.
    pub requirement: Requirement,
    /// `RLIMIT_NOFILE`: open files of one process.
    pub open_files: u64,
    /// Number of a descriptor of the folder `/proc/sys/user` outside. The sandbox's own is read-only.
    pub user_settings: i32,
    /// Files of that folder, with the most namespaces of that kind that may exist at the same time.
    pub namespaces: Vec<(String, u32)>,
    /// Files of that folder that a kernel may lack, with the most objects of that kind.
    pub watches: Vec<(String, u32)>,
    /// Folders in memory, with the most files in each.
    pub inodes: Vec<(PathBuf, u64)>,
}

/// The Landlock domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Landlock {
    /// The ABI; all of its rights are handled.
    pub abi: u8,
    /// Whether a kernel below `abi` is an error.
    pub requirement: Requirement,
    /// The allowed rights by path.
    pub rules: Vec<LandlockRule>,
}

/// One Landlock rule: the rights at and below a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockRule {
    /// The path inside the sandbox.
    pub path: PathBuf,
    /// The rights there.
    pub rights: Vec<Right>,
}

/// A right at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Right {
    /// Read files and list folders.
    Read,
    /// Execute.
    Execute,
    /// Write to and truncate existing files.
    Modify,
    /// Make, remove and rename files and folders; never device files.
    Create,
    /// `ioctl` on device files.
    Ioctl,
    /// Connect to Unix sockets (controlled from ABI 9 on).
    Connect,
}

/// The system call filters, compiled outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seccomp {
    /// Whether a kernel without seccomp filters is an error.
    pub requirement: Requirement,
    /// BPF programs in the order of installation.
    pub programs: Vec<Vec<Instruction>>,
}

/// One BPF instruction: code, jump if true, jump if false, operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instruction(pub u16, pub u8, pub u8, pub u32);

/// The program to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Its source.
    pub program: Executable,
    /// Its arguments, the zeroth (its own name) included.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// The folder to start in.
    pub working_folder: PathBuf,
}

/// The source of the program to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Executable {
    /// A path inside the sandbox.
    Path(PathBuf),
    /// An open descriptor at its final number.
    Descriptor(i32),
}

/// The report of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// All layers are enforced; stage 2 waits for GO.
    Ready {
        /// The optional layers that are missing, with the reason.
        missing: Vec<(Layer, String)>,
    },
    /// Nothing was started.
    Failed {
        /// The layer that could not be enforced.
        layer: Option<Layer>,
        /// The failed step and the kernel's error.
        message: String,
    },
}
