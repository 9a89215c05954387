//! The sections of the hosts: drivers, Linux and FreeBSD.

use super::types::{empty_is_none, none_is_empty};
use crate::api::SnapshotName;
use crate::platform::DefaultDirs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// The host driver, template and tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// The host driver: `native` is the system hostd was built for.
    pub driver: HostDriver,
    /// The template of the clones.
    pub template: String,
    /// The default snapshot of a create.
    #[schemars(with = "String")]
    pub snapshot: SnapshotName,
    /// Where the system's tools are searched, in this order. The folders must belong to root and be writable only by
    /// root.
    pub tool_folders: Vec<PathBuf>,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            driver: HostDriver::Native,
            template: "browser".into(),
            snapshot: SnapshotName::try_from("default".to_owned()).expect("a valid snapshot name"),
            tool_folders: ["/sbin", "/bin", "/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"]
                .map(PathBuf::from)
                .into(),
        }
    }
}

/// The host driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostDriver {
    /// The system hostd was built for.
    Native,
    /// FreeBSD, driven by its tools: `native` on FreeBSD; on other systems for tests with tools of the same names.
    Freebsd,
    /// A model of a host kept in the state folder, for tests.
    #[cfg(feature = "fake-host")]
    #[schemars(skip)]
    Fake,
}

/// The Linux host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LinuxConfig {
    /// The storage of the clones' files.
    pub storage: StorageDriver,
    /// The folder of the templates: TEMPLATE/SNAPSHOT. With ZFS it only holds their lock.
    pub templates: PathBuf,
    /// How the disk limit is enforced with the overlay.
    pub bound: DiskBound,
    /// How the limits must be enforced.
    pub limits: LimitsDemand,
    /// The cgroup v2 folder for the clones, delegated to hostd. Empty: that of hostd-clones.service if it exists, else
    /// hostd below the root of cgroup v2. Do not change it while clones exist.
    pub cgroup: PathBuf,
    /// browserd's executable. Without it a clone's endpoint is a Unix socket to the browser's debugging pipe.
    pub browserd: PathBuf,
}

impl Default for LinuxConfig {
    fn default() -> Self {
        Self {
            storage: StorageDriver::Overlay,
            // Only Linux reads it, so it is the same in every build.
            templates: DefaultDirs::linux().state.join("templates"),
            bound: DiskBound::Tmpfs,
            limits: LimitsDemand::Cgroup,
            cgroup: PathBuf::new(),
            browserd: "/usr/local/libexec/browserd".into(),
        }
    }
}

/// The storage of the clones' files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StorageDriver {
    /// An overlay over the shared template; changes are in memory by default (linux.bound). Needs no preparation.
    Overlay,
    /// ZFS clones of a snapshot, on disk. Needs a zpool with pool.parent_dataset mounted at pool.clones_dir.
    Zfs,
}

/// How clone_limits.disk_bytes is enforced with the overlay; ZFS has its own quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskBound {
    /// Changes are in memory: the fastest choice, never on disk, and counted as the clone's memory.
    Tmpfs,
    /// Changes are on the disk of pool.clones_dir, limited by project quotas: ext4 or XFS, mounted with prjquota.
    ProjectQuota,
    /// Changes are on that disk, in a sparse file with its own file system, for disks without quotas. Needs mke2fs and
    /// loop devices.
    Loop,
    /// project_quota if the disk has quotas, else loop.
    Auto,
}

/// How the limits must be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitsDemand {
    /// By cgroup v2. Clones are refused without it, and with read or write rates, which it does not enforce.
    Cgroup,
    /// By what the host has. Without cgroup v2 a clone's memory and processor time are not limited.
    Available,
}

/// The FreeBSD host. Datasets and folders are in `[pool]`; the template jail's name is `host.template`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FreebsdConfig {
    /// How jails are started and stopped: `jail` is jail(8), parallel and several times faster; `bastille` is Bastille, one
    /// at a time.
    pub jail_driver: JailDriver,
    /// The bridge of the clones. It has the first address of pool.subnet and no other members.
    pub bridge: String,
    /// Slot N has the interfaces epair(this number + N). Nothing else on the host may use these numbers.
    #[schemars(range(max = 31_000))]
    pub epair_base: u32,
    /// The PF anchor with the clones' rules.
    pub anchor: String,
    /// The PF table of the addresses that may send packets.
    pub table: String,
    /// How often PF is checked between inspections, in milliseconds: for so long lost rules can go unnoticed. Each check
    /// runs three short commands. 0: only inspections check.
    #[schemars(range(max = 60_000))]
    pub rules_interval_ms: u64,
    /// The devfs ruleset of the clones' jails, as setup-host declares it. Bastille's own (13) also exposes bpf.
    #[schemars(range(min = 1, max = 65_535))]
    pub devfs_ruleset: u32,
    /// Bastille's folder. Bastille requires mode 0750.
    pub bastille_prefix: PathBuf,
    /// The folder of the jails' console logs, one file for each name, outside the clones.
    pub console_logs: PathBuf,
    /// The address of the template jail, which no clone may have. WARDEN_BROWSER_IP sets it too. Empty: unknown.
    #[serde(deserialize_with = "empty_is_none", serialize_with = "none_is_empty")]
    #[schemars(with = "String")]
    pub template_ip: Option<IpAddr>,
}

impl Default for FreebsdConfig {
    fn default() -> Self {
        Self {
            jail_driver: JailDriver::Jail,
            bridge: "bridge72".into(),
            epair_base: 10_000,
            anchor: "browser".into(),
            table: "browser_tasks".into(),
            rules_interval_ms: 400,
            devfs_ruleset: 72,
            bastille_prefix: "/usr/local/bastille".into(),
            console_logs: "/var/log/bastille".into(),
            template_ip: None,
        }
    }
}

/// How jails are started and stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JailDriver {
    /// jail(8) on the jail's own file.
    Jail,
    /// Bastille's start and stop.
    Bastille,
}
