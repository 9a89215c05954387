//! Differences between the systems outside the host drivers: peer credentials, clocks, folders.
//!
//! `cfg(target_os)` is used only in this folder and in the host drivers.

#[cfg_attr(target_os = "freebsd", path = "freebsd.rs")]
#[cfg_attr(target_os = "linux", path = "linux.rs")]
mod system;

pub use system::{boot_id, default_dirs, monotonic, peer, spare_memory};

use std::path::PathBuf;

/// Whether hostd was built for Linux.
pub const IS_LINUX: bool = cfg!(target_os = "linux");

/// The system's usual folders for a daemon.
#[derive(Debug, Clone)]
pub struct DefaultDirs {
    /// Sockets and PID files.
    pub run: PathBuf,
    /// Persistent state.
    pub state: PathBuf,
    /// Logs.
    pub log: PathBuf,
    /// The configuration file's folder.
    pub config: PathBuf,
    /// The clones.
    pub clones: PathBuf,
}

/// Every build knows the folders of both systems, because the documentation names both.
impl DefaultDirs {
    /// The folders on Linux.
    pub fn linux() -> DefaultDirs {
        DefaultDirs {
            run: "/run/hostd".into(),
            state: "/var/lib/hostd".into(),
            log: "/var/log/hostd".into(),
            config: "/etc/hostd".into(),
            clones: "/var/lib/hostd/clones".into(),
        }
    }

    /// The folders on FreeBSD.
    pub fn freebsd() -> DefaultDirs {
        DefaultDirs {
            run: "/var/run/hostd".into(),
            state: "/var/db/hostd".into(),
            log: "/var/log/hostd".into(),
            config: "/usr/local/etc/hostd".into(),
            clones: "/usr/local/bastille/jails".into(),
        }
    }
}

/// The peer of a Unix socket, as the kernel recorded it at connect(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Effective user id.
    pub uid: u32,
    /// All groups, the effective one first.
    pub gids: Vec<u32>,
    /// Process id, if the system reports it; for logs only.
    pub pid: Option<i32>,
}
