//! What the launcher tells the stages, and what they answer.
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
//! A launcher that dies before GO leaves stage 2 with an end of file, and the program never starts;
//! one that dies later is noticed by stage 1, which kills everything it started.

use crate::layer::{Layer, Requirement};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The byte that lets stage 2 go on to the target.
pub const GO: u8 = b'g';

/// Longest answer of stage 2, in bytes.
pub const MAX_RECORD: usize = 16 * 1024;

/// Stage 1 puts the descriptors it is sent at this number and the following ones, in the order in
/// which they were sent. So the launcher knows every number beforehand.
pub const FIRST_DESCRIPTOR: i32 = 100;

/// Most descriptors that one launch may use (the kernel's limit for one message is 253).
pub const MAX_DESCRIPTORS: usize = 200;

/// What stage 1 has to do. Descriptors are named by their final numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageOne {
    /// The launcher's own process: when it ends, everything ends.
    pub launcher: i32,
    /// Where to answer when something fails.
    pub status: i32,
    /// The network namespace to enter.
    pub network_namespace: Option<i32>,
    /// The `cgroup.procs` file of the cgroup to enter.
    pub cgroup: Option<i32>,
    /// The uid and gid to become.
    pub become_user: Option<u32>,
    /// The absolute path of bubblewrap.
    pub bubblewrap: PathBuf,
    /// Bubblewrap's arguments, each ended by NUL.
    pub arguments: i32,
    /// Where bubblewrap's complaints go.
    pub complaints: i32,
    /// The executable file of the stages.
    pub stages: i32,
    /// The [`Instructions`] for stage 2.
    pub instructions: i32,
    /// The descriptors that bubblewrap and stage 2 inherit, besides those above.
    pub inherit: Vec<i32>,
}

/// Everything stage 2 has to do, in the order in which it does it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// Number of the descriptor over which to answer.
    pub status_fd: i32,
    /// What must be true of the sandbox before anything else is done.
    pub verify: Verify,
    /// A TCP port of the sandbox's own loopback to listen on; the socket is handed to the launcher.
    pub listen: Option<u16>,
    /// Which descriptors the target gets, and under which numbers.
    pub descriptors: Descriptors,
    /// `RLIMIT_NOFILE`; core dumps are always off. `None` leaves both alone (layer off).
    pub open_files: Option<u64>,
    /// The Landlock rules, unless that layer is off.
    pub landlock: Option<Landlock>,
    /// Whether every capability set must be empty.
    pub drop_capabilities: bool,
    /// The system call filters, unless that layer is off.
    pub seccomp: Option<Seccomp>,
    /// What to run.
    pub target: Target,
}

/// What bubblewrap promised and stage 2 checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verify {
    /// Namespaces that must be another one than the launcher's, or exactly a given one.
    pub namespaces: Vec<NamespaceCheck>,
    /// Whether `/` must be read-only.
    pub read_only_root: bool,
    /// The mounts that must be there; any other is refused.
    pub mounts: Vec<ExpectedMount>,
    /// Whether bubblewrap must be process 1 and stage 2 its first child.
    pub own_process_ids: bool,
    /// The uid and gid that the program must see.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Whether the process must have no controlling terminal.
    pub own_session: bool,
}

/// One namespace to look at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamespaceCheck {
    /// The name below `/proc/self/ns`.
    pub kind: String,
    /// The inode of the namespace to compare with.
    pub inode: u64,
    /// `true`: must be that namespace. `false`: must be another one.
    pub same: bool,
    /// The layer that the namespace belongs to.
    pub layer: Layer,
}

/// One mount that the plan makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExpectedMount {
    /// Where, inside.
    pub path: PathBuf,
    /// Whether it must be read-only.
    pub read_only: bool,
    /// Whether the host's own mounts may show through below it (a bound folder).
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

/// The Landlock domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Landlock {
    /// The ABI whose whole set of rights is handled.
    pub abi: u8,
    /// Whether a kernel below `abi` is an error.
    pub requirement: Requirement,
    /// What is allowed where.
    pub rules: Vec<LandlockRule>,
}

/// One Landlock rule: what may be done at and below a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockRule {
    /// The path inside the sandbox.
    pub path: PathBuf,
    /// What may be done there.
    pub rights: Vec<Right>,
}

/// What may be done at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Right {
    /// Read files and list folders.
    Read,
    /// Execute.
    Execute,
    /// Write to and cut files that exist.
    Modify,
    /// Make, remove and rename files and folders; never device files.
    Create,
    /// `ioctl` on device files.
    Ioctl,
    /// Connect to Unix sockets (a right of its own from ABI 9 on, free before).
    Connect,
}

/// The system call filters, compiled outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seccomp {
    /// Whether a kernel without seccomp filters is an error.
    pub requirement: Requirement,
    /// BPF programs, installed in this order; each instruction packed as in the kernel's structure.
    pub programs: Vec<Vec<Instruction>>,
}

/// One BPF instruction: code, jump if true, jump if false, operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instruction(pub u16, pub u8, pub u8, pub u32);

/// The program to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Where it is.
    pub program: Executable,
    /// Its arguments, the zeroth (its own name) included.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// The folder to start in.
    pub working_folder: PathBuf,
}

/// Where the program to run comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Executable {
    /// A path inside the sandbox.
    Path(PathBuf),
    /// An open descriptor (already at its final place).
    Descriptor(i32),
}

/// The answer of stage 2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// Everything is in force; waiting for GO.
    Ready {
        /// The optional layers that are not in force, with the reason.
        missing: Vec<(Layer, String)>,
    },
    /// Nothing was started.
    Failed {
        /// The layer that could not be put in force.
        layer: Option<Layer>,
        /// What was tried and what the kernel said.
        message: String,
    },
}
