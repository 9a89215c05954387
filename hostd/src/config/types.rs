//! The configuration's keys, their defaults and what they mean.

use crate::api::{Flavor, Limits, Method, SnapshotName};
use crate::platform::{DefaultDirs, default_dirs};
use crate::slot::Slot;
use ipnet::{Ipv4Net, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// In seconds. A longer time is a mistake of unit, and sums of such times cannot overflow.
const YEAR: u64 = 366 * 24 * 3600;

/// hostd's whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where hostd keeps and finds things.
    pub paths: Paths,
    /// The slots: names and addresses of the clones. And how many clones are made ahead of time, for creates
    /// that are answered in milliseconds.
    pub pool: PoolConfig,
    /// Which host drivers are used.
    pub host: HostConfig,
    /// What the clones may reach, and who may reach them.
    pub egress: EgressConfig,
    /// The Linux host.
    pub linux: LinuxConfig,
    /// The FreeBSD host.
    pub freebsd: FreebsdConfig,
    /// How long things may take, and when clones are over.
    pub lifecycle: LifecycleConfig,
    /// What one clone may use. A request may ask for less, never for more.
    pub clone_limits: CloneLimits,
    /// How much callers may ask of the daemon.
    pub server: ServerConfig,
    /// The log.
    pub log: LogConfig,
    /// The Prometheus listener.
    pub metrics: MetricsConfig,
    /// Who may call what; the rights of all rules that fit a caller add up. Nobody else may call anything.
    /// Rules given here replace the default ones: root is operator, and group hostd may do everything but
    /// browser-clone-force-unmount.
    pub access: Vec<AccessRule>,
}

impl Default for Config {
    fn default() -> Self {
        Self::below(&default_dirs())
    }
}

impl Config {
    /// The defaults of a system that keeps things in these folders.
    pub(super) fn below(dirs: &DefaultDirs) -> Self {
        Self {
            paths: Paths::below(dirs),
            pool: PoolConfig::below(dirs),
            host: HostConfig::default(),
            egress: EgressConfig::default(),
            linux: LinuxConfig::default(),
            freebsd: FreebsdConfig::default(),
            lifecycle: LifecycleConfig::default(),
            clone_limits: CloneLimits::default(),
            server: ServerConfig::default(),
            log: LogConfig::default(),
            metrics: MetricsConfig::default(),
            access: AccessRule::defaults(),
        }
    }
}

/// Where hostd keeps and finds things.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// The Unix socket. Its folder is made with mode 0750 if it is missing.
    pub socket: PathBuf,
    /// The group that owns the socket (mode 0660). Empty: hostd's own group.
    pub socket_group: String,
    /// Records of the clones and the instance lock. Two hostd never share it.
    pub state: PathBuf,
    /// The audit log, appended to and synced before every change.
    pub audit: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self::below(&default_dirs())
    }
}

impl Paths {
    fn below(dirs: &DefaultDirs) -> Self {
        Self {
            socket: dirs.run.join("hostd.sock"),
            socket_group: "hostd".into(),
            state: dirs.state.clone(),
            audit: dirs.log.join("audit.log"),
        }
    }
}

/// The slots, and the clones made ahead of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Names begin with this; the slot's three digits follow (browsertask001).
    pub prefix: String,
    /// The same for interfaces, which must be short (bt001, e0a_bt001).
    pub interface_prefix: String,
    /// The first slot.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub first_slot: u16,
    /// The last slot.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub last_slot: u16,
    /// The clones' own IPv4 network. Its first address is the gateway.
    #[schemars(with = "String")]
    pub subnet: Ipv4Net,
    /// Addresses kept free at the start of the network; slot N has address offset + N.
    pub address_offset: u32,
    /// The clones' own IPv6 network, same offsets. Empty: they have none.
    #[serde(deserialize_with = "empty_is_none", serialize_with = "none_is_empty")]
    #[schemars(with = "String")]
    pub subnet6: Option<Ipv6Net>,
    /// Each slot has a private user id on Linux: this number plus the slot.
    pub uid_base: u32,
    /// Folder of the clones.
    pub clones_dir: PathBuf,
    /// Parent dataset of the clones, for the ZFS driver.
    pub parent_dataset: String,
    /// How many clones of each flavour are made ahead of time and wait, frozen, for a create; 0 is none. They
    /// count against server.max_clones only as long as nobody needs their place.
    #[schemars(range(max = 500))]
    pub size: u16,
    /// How far they are made: `ready` with the browser up (a browser's memory each), `basic` without it (the create
    /// starts it). A create takes a ready one first, then a basic one, then makes its own.
    pub flavors: Vec<Flavor>,
    /// A clone made ahead that nobody took in this time is replaced.
    #[schemars(range(min = 1, max = YEAR))]
    pub max_age_seconds: u64,
    /// How much of the time, in percent, making clones ahead may take. Where limits can be changed while a clone runs,
    /// it is also what one being made may use of a processor.
    #[schemars(range(min = 1, max = 100))]
    pub refill_percent: u64,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self::below(&default_dirs())
    }
}

impl PoolConfig {
    fn below(dirs: &DefaultDirs) -> Self {
        Self {
            prefix: "browsertask".into(),
            interface_prefix: "bt".into(),
            first_slot: 1,
            last_slot: 900,
            subnet: Ipv4Net::new_assert([10, 87, 64, 0].into(), 22),
            address_offset: 15,
            subnet6: None,
            uid_base: 61000,
            clones_dir: dirs.clones.clone(),
            parent_dataset: "zroot/bastille/jails".into(),
            size: 0,
            flavors: vec![Flavor::Ready],
            max_age_seconds: 3600,
            refill_percent: 50,
        }
    }
}

/// Which host drivers are used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// The host to drive: `native` is the system hostd was built for.
    pub driver: HostDriver,
    /// The template that clones are made from.
    pub template: String,
    /// The snapshot a create takes when it names none.
    #[schemars(with = "String")]
    pub snapshot: SnapshotName,
    /// Where the system's tools are found, the first folder first. They must belong to root and be writable by nobody
    /// else.
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

/// The host to drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostDriver {
    /// The system hostd was built for.
    Native,
    /// FreeBSD, driven by its tools. The same as `native` there; elsewhere for trials over other tools of these names.
    Freebsd,
    /// A model of a host kept in the state folder, for tests.
    #[cfg(feature = "fake-host")]
    #[schemars(skip)]
    Fake,
}

/// What the clones may reach, and who may reach them. What is private, local or a cloud's own is blocked in any case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressConfig {
    /// The name of the nftables table. Two hostd on one host use two names.
    pub table: String,
    /// The one resolver that clones may ask. Empty: they resolve nothing.
    #[serde(deserialize_with = "empty_is_none", serialize_with = "none_is_empty")]
    #[schemars(with = "String")]
    pub resolver: Option<IpAddr>,
    /// The interface to the Internet; clones go out there and nowhere else. Empty: wherever the routes lead.
    pub external: String,
    /// Addresses that may call browserd in the clones, beside this host itself.
    pub control_plane: Vec<IpAddr>,
    /// Users on this host that may do so.
    pub control_users: Vec<u32>,
    /// The port of browserd in the clones.
    #[schemars(range(min = 1, max = 65535))]
    pub browserd_port: u16,
}

impl Default for EgressConfig {
    fn default() -> Self {
        Self {
            table: "hostd".into(),
            resolver: None,
            external: String::new(),
            control_plane: Vec::new(),
            control_users: vec![0],
            browserd_port: 8080,
        }
    }
}

/// The Linux host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LinuxConfig {
    /// How the clones' files are kept.
    pub storage: StorageDriver,
    /// Folder of the templates: TEMPLATE/SNAPSHOT below it. With ZFS only their lock is there.
    pub templates: PathBuf,
    /// How a clone's size is bounded with the overlay.
    pub bound: DiskBound,
    /// How a clone's limits must be kept.
    pub limits: LimitsDemand,
    /// The cgroup v2 folder for the clones, delegated to hostd. Empty: that of hostd-clones.service if it is there, else
    /// hostd below the root of cgroup v2. Not to be changed while there are clones.
    pub cgroup: PathBuf,
    /// browserd's executable. Without it a clone's endpoint is the browser's own debugging pipe, as a Unix socket.
    pub browserd: PathBuf,
}

impl Default for LinuxConfig {
    fn default() -> Self {
        Self {
            storage: StorageDriver::Overlay,
            // The same in every build: no other system reads it.
            templates: DefaultDirs::linux().state.join("templates"),
            bound: DiskBound::Tmpfs,
            limits: LimitsDemand::Cgroup,
            cgroup: PathBuf::new(),
            browserd: "/usr/local/libexec/browserd".into(),
        }
    }
}

/// How the clones' files are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StorageDriver {
    /// What a clone changes is above a folder that all share, by default in memory (linux.bound). Needs nothing.
    Overlay,
    /// Clones of a snapshot, on disk. Needs a pool with pool.parent_dataset mounted at pool.clones_dir.
    Zfs,
}

/// How a clone's size (clone_limits.disk_bytes) is bounded with the overlay; ZFS has quotas of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskBound {
    /// What a clone changes is in memory. Cheapest to make and to remove, never on a disk, and counted with its memory.
    Tmpfs,
    /// On the disk of pool.clones_dir, by its file system's project quotas: ext4 or XFS, mounted with prjquota.
    ProjectQuota,
    /// On that disk, in a sparse file with a file system of its own, for disks without quotas. Needs mke2fs and loop
    /// devices.
    Loop,
    /// On that disk: project_quota where it has them, else loop.
    Auto,
}

/// How a clone's limits must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitsDemand {
    /// By cgroup v2; without it, or with rates of reading and writing, which it does not keep, there are no clones.
    Cgroup,
    /// By what there is. Without cgroup v2 that leaves a clone's memory and processor time unbounded.
    Available,
}

/// The FreeBSD host. Datasets and folders are those of `[pool]`; the template jail's name is `host.template`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FreebsdConfig {
    /// What starts and stops jails: `jail` is jail(8), parallel and several times faster; `bastille` is Bastille, one at
    /// a time.
    pub jail_driver: JailDriver,
    /// The bridge of the clones. It carries the pool's first address and has no other members than clones.
    pub bridge: String,
    /// Slot N has the interfaces epair(this number + N): numbers that nobody else on the host uses.
    #[schemars(range(max = 31_000))]
    pub epair_base: u32,
    /// The PF anchor with the clones' rules.
    pub anchor: String,
    /// The PF table whose members may go out.
    pub table: String,
    /// The devfs ruleset of the clones' jails, as setup-host declares it. Bastille's own (13) also shows them bpf.
    #[schemars(range(min = 1, max = 65_535))]
    pub devfs_ruleset: u32,
    /// Bastille's folder, which must have mode 0750 or Bastille refuses to work.
    pub bastille_prefix: PathBuf,
    /// Where the jails' console logs go: one file for each name, outside of the clones.
    pub console_logs: PathBuf,
    /// The template jail's own address, which no clone may have. WARDEN_BROWSER_IP sets it too. Empty: not known.
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
            devfs_ruleset: 72,
            bastille_prefix: "/usr/local/bastille".into(),
            console_logs: "/var/log/bastille".into(),
            template_ip: None,
        }
    }
}

/// What starts and stops jails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JailDriver {
    /// jail(8) on the jail's own file.
    Jail,
    /// Bastille's start and stop.
    Bastille,
}

/// How long things may take, and when clones are over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LifecycleConfig {
    /// A clone's life when the request does not say.
    #[schemars(range(min = 1, max = YEAR))]
    pub default_deadline_seconds: u64,
    /// The longest life a request may ask for at once; renewing extends it.
    #[schemars(range(min = 1, max = YEAR))]
    pub max_deadline_seconds: u64,
    /// How long one step may take before it counts as failed.
    #[schemars(range(min = 1, max = 3600))]
    pub step_timeout_seconds: u64,
    /// How long a busy dataset is waited for before force.
    #[schemars(range(max = 3_600_000))]
    pub busy_patience_ms: u64,
    /// How long a freed slot stays unused.
    #[schemars(range(max = YEAR))]
    pub quarantine_seconds: u64,
    /// How long something without a record must have been seen before it may be reaped.
    #[schemars(range(max = YEAR))]
    pub orphan_grace_seconds: u64,
    /// At most this many clones are reaped in one run.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub reap_cap: usize,
    /// How often the host is compared with the records.
    #[schemars(range(min = 10, max = 3_600_000))]
    pub reconcile_interval_ms: u64,
    /// How long a stopping daemon waits for running operations; the rest stays recorded.
    #[schemars(range(max = 3600))]
    pub shutdown_grace_seconds: u64,
}

impl Default for LifecycleConfig {
    fn default() -> Self {
        Self {
            default_deadline_seconds: 1800,
            max_deadline_seconds: 86_400,
            step_timeout_seconds: 60,
            busy_patience_ms: 10_000,
            quarantine_seconds: 60,
            orphan_grace_seconds: 600,
            reap_cap: 10,
            reconcile_interval_ms: 5_000,
            shutdown_grace_seconds: 30,
        }
    }
}

/// What one clone may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CloneLimits {
    /// Memory of all its processes together, in bytes.
    #[schemars(range(min = 64 << 20))]
    pub memory_bytes: u64,
    /// Number of processes (threads on Linux).
    #[schemars(range(min = 16))]
    pub processes: u64,
    /// Open files of one process.
    #[schemars(range(min = 64))]
    pub open_files: u64,
    /// Processor time: 100 is one core.
    #[schemars(range(min = 1))]
    pub cpu_percent: u64,
    /// What the clone may add to its template on disk, in bytes.
    #[schemars(range(min = 1 << 20))]
    pub disk_bytes: u64,
    /// Bytes read from disk in a second; 0 is no limit. Nobody keeps it on Linux: see linux.limits.
    pub read_bytes_per_second: u64,
    /// Bytes written to disk in a second; 0 is no limit. Nobody keeps it on Linux: see linux.limits.
    pub write_bytes_per_second: u64,
}

impl Default for CloneLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 2 << 30,
            processes: 1024,
            open_files: 8192,
            cpu_percent: 200,
            disk_bytes: 10 << 30,
            read_bytes_per_second: 0,
            write_bytes_per_second: 0,
        }
    }
}

impl CloneLimits {
    /// The limits that are on for a request: the smaller of wish and configuration for each.
    pub fn grant(&self, wish: Option<&Limits>) -> Limits {
        fn least(configured: u64, wish: Option<u64>) -> Option<u64> {
            let configured = (configured > 0).then_some(configured);
            match (configured, wish) {
                (Some(limit), Some(wish)) => Some(limit.min(wish)),
                (limit, wish) => limit.or(wish),
            }
        }
        let wish = wish.copied().unwrap_or_default();
        Limits {
            memory_bytes: least(self.memory_bytes, wish.memory_bytes),
            processes: least(self.processes, wish.processes),
            open_files: least(self.open_files, wish.open_files),
            cpu_percent: least(self.cpu_percent, wish.cpu_percent),
            disk_bytes: least(self.disk_bytes, wish.disk_bytes),
            read_bytes_per_second: least(self.read_bytes_per_second, wish.read_bytes_per_second),
            write_bytes_per_second: least(self.write_bytes_per_second, wish.write_bytes_per_second),
        }
    }
}

/// How much callers may ask of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Clones on this host at once.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub max_clones: u64,
    /// Clones of one tenant at once.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub max_clones_per_tenant: u64,
    /// Creates a user may make in a minute, on average.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub creates_per_minute: u32,
    /// Creates a user may make at once before the average counts.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub create_burst: u32,
    /// Open connections.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_connections: usize,
    /// Open connections of one user; past it the one idle longest is closed.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_connections_per_user: usize,
    /// Requests under way on one connection.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_requests_per_connection: usize,
    /// Operations under way on the host.
    #[schemars(range(min = 1, max = Slot::MAX))]
    pub max_operations: usize,
    /// The longest line, in bytes.
    #[schemars(range(min = 4096, max = 16 << 20))]
    pub max_line_bytes: usize,
    /// How long a line may take from its first to its last byte, and an answer to be read.
    #[schemars(range(min = 1, max = 3600))]
    pub line_timeout_seconds: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_clones: 100,
            max_clones_per_tenant: 50,
            creates_per_minute: 120,
            create_burst: 40,
            max_connections: 512,
            max_connections_per_user: 256,
            max_requests_per_connection: 64,
            max_operations: 64,
            max_line_bytes: 64 * 1024,
            line_timeout_seconds: 10,
        }
    }
}

/// The log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// `human` or `json`.
    pub format: LogFormat,
    /// What is logged, such as `info` or `hostd=debug`.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Human, filter: "info".into() }
    }
}

/// The log's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// The Prometheus listener.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Address of an HTTP listener for Prometheus, such as 127.0.0.1:9469; loopback only. Empty: none.
    #[serde(deserialize_with = "empty_is_none", serialize_with = "none_is_empty")]
    #[schemars(with = "String")]
    pub listen: Option<std::net::SocketAddr>,
}

/// One line of who may call what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccessRule {
    /// Users by name or number.
    pub users: Vec<String>,
    /// Groups by name or number.
    pub groups: Vec<String>,
    /// The methods they may call. browser-clone-force-unmount is for operators only.
    pub operations: Vec<Method>,
    /// Operators may call everything, on everybody's clones.
    pub operator: bool,
}

impl AccessRule {
    /// The rules of a configuration that gives none.
    fn defaults() -> Vec<AccessRule> {
        let operations = Method::ALL.into_iter().filter(|method| *method != Method::ForceUnmount).collect();
        vec![
            AccessRule { users: vec!["root".into()], operator: true, ..AccessRule::default() },
            AccessRule { groups: vec!["hostd".into()], operations, ..AccessRule::default() },
        ]
    }

    /// Why the rule makes no sense, if it does not.
    pub fn problem(&self) -> Option<String> {
        if self.users.iter().chain(&self.groups).any(|name| name.trim().is_empty()) {
            return Some("an empty name is nobody: write a user's or group's name or number".into());
        }
        if self.users.is_empty() && self.groups.is_empty() {
            return Some("is for nobody: give `users` or `groups`".into());
        }
        if !self.operator && self.operations.is_empty() {
            return Some("allows nothing: give `operations`, or `operator = true`".into());
        }
        if !self.operator && self.operations.contains(&Method::ForceUnmount) {
            let method = Method::ForceUnmount;
            return Some(format!("{method} is for operators only: remove it, or set `operator = true`"));
        }
        None
    }
}

/// TOML has no null, and a later layer must be able to switch off what an earlier one set.
fn empty_is_none<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(input)?;
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(serde::de::Error::custom) }
}

fn none_is_empty<S, T>(value: &Option<T>, output: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
    T: std::fmt::Display,
{
    value.as_ref().map(T::to_string).unwrap_or_default().serialize(output)
}
