//! What differs between the systems and is not a host driver: peer credentials, clocks, folders.
//!
//! `cfg(target_os)` appears in this folder and in the host drivers, nowhere else.

#[cfg_attr(target_os = "freebsd", path = "freebsd.rs")]
#[cfg_attr(target_os = "linux", path = "linux.rs")]
mod system;

pub use system::{boot_id, default_dirs, monotonic, peer, spare_memory};

use std::path::PathBuf;

/// The system's usual folders for a daemon.
#[derive(Debug, Clone)]
pub struct DefaultDirs {
    /// Sockets and PID files.
    pub run: PathBuf,
    /// What must survive a restart.
    pub state: PathBuf,
    /// Logs.
    pub log: PathBuf,
    /// The configuration file's folder.
    pub config: PathBuf,
    /// The clones.
    pub clones: PathBuf,
}

/// Both systems' folders are known everywhere, because the documentation names both.
impl DefaultDirs {
    /// Where Linux keeps such things.
    pub fn linux() -> DefaultDirs {
        DefaultDirs {
            run: "/run/hostd".into(),
            state: "/var/lib/hostd".into(),
            log: "/var/log/hostd".into(),
            config: "/etc/hostd".into(),
            clones: "/var/lib/hostd/clones".into(),
        }
    }

    /// Where FreeBSD keeps such things.
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

/// Who is at the other end of a Unix socket, by the kernel's word at connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Effective user id.
    pub uid: u32,
    /// All groups, the effective one first.
    pub gids: Vec<u32>,
    /// Process id, where the system tells; for the logs only.
    pub pid: Option<i32>,
}
