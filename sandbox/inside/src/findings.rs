//! The input and the results of the escape battery.

use crate::layer::Layer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The targets set up outside for the battery. It dials no other address and opens no other secret;
/// of the real machine it only tests whether a path exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Canaries {
    /// The content of every canary. A probe that reads it got through.
    pub token: String,
    /// A file outside that everybody may read.
    pub secret_file: PathBuf,
    /// A Unix socket outside that everybody may connect to.
    pub path_socket: PathBuf,
    /// The name of an abstract Unix socket outside.
    pub abstract_socket: String,
    /// A file in the host's `/dev/shm`.
    pub shared_memory: PathBuf,
    /// The key of a System V shared memory segment outside.
    pub system_v_key: i32,
    /// The name of a POSIX message queue outside, if the kernel has them.
    pub message_queue: Option<String>,
    /// TCP listeners outside.
    pub tcp: Vec<SocketAddr>,
    /// UDP sockets outside that answer with the token.
    pub udp: Vec<SocketAddr>,
    /// The launcher: its process id and start time.
    pub launcher: (i32, u64),
    /// The launcher's host name.
    pub host_name: String,
    /// The launcher's namespaces.
    pub namespaces: BTreeMap<String, u64>,
    /// The names of the variables that the policy gives.
    pub environment: Vec<String>,
    /// A folder inside that the program may write.
    pub writable: PathBuf,
    /// A file in that folder which only the host's root may read, if the launcher is root.
    pub root_only: Option<PathBuf>,
    /// A setuid root copy of the battery in that folder, if the launcher is root.
    pub setuid_program: Option<PathBuf>,
    /// Where the whole host is shown when the layer `files` is off.
    pub host_folder: PathBuf,
    /// The limits of nested namespaces, by the kernel's name of the kind.
    pub nested_namespaces: BTreeMap<String, u32>,
    /// A folder in memory and the limit of files in it.
    pub temporary: Option<(PathBuf, u64)>,
    /// The limit of open files.
    pub open_files: u64,
    /// The limit of memory, if one is enforced.
    pub memory_bytes: Option<u64>,
    /// The limit of processes, if one is enforced.
    pub processes: Option<u32>,
}

/// The result of one probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The probe failed; holds what stopped it.
    Stopped(String),
    /// The probe got through; holds what it reached.
    Open(String),
    /// The probe could not run here; holds the reason.
    NotTried(String),
}

/// One probe and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable short name.
    pub name: String,
    /// What was tried, as a sentence.
    pub attempt: String,
    /// The layers that stop it. Each one is sufficient alone.
    pub layers: Vec<Layer>,
    /// The result.
    pub outcome: Outcome,
}

impl Finding {
    /// Whether the probe got through.
    pub fn is_open(&self) -> bool {
        matches!(self.outcome, Outcome::Open(_))
    }
}
