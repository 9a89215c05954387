//! What the launcher tells stage 2, and what stage 2 answers.
//!
//! The instructions travel in a sealed memory file, the answer over a close-on-exec socket pair:
//!
//! ```text
//! launcher                                stage 2 (inside)
//!    │  instructions (memory file)           │
//!    │ ─────────────────────────────────────▶│ verify, confine
//!    │               Ready or Failed         │
//!    │◀───────────────────────────────────── │ (the kernel adds the sender's pid)
//!    │  limits, pidfd …          GO          │
//!    │ ─────────────────────────────────────▶│ exec
//!    │               end of file = running   │
//!    │◀───────────────────────────────────── │ or Failed, when exec itself failed
//! ```
//!
//! A launcher that dies before GO leaves stage 2 with an end of file, and the target never starts.

use crate::layer::{Layer, Requirement};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The byte that lets stage 2 go on to the target.
pub const GO: u8 = b'g';

/// Longest answer of stage 2, in bytes.
pub const MAX_RECORD: usize = 16 * 1024;

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
    /// The mounts that must be there; any other is refused. `None` when the view is switched off.
    pub mounts: Option<Vec<ExpectedMount>>,
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
    /// Its whole environment. `None` passes on bubblewrap's (layer `environment` off).
    pub environment: Option<Vec<(String, String)>>,
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
