//! The configuration as a whole, its paths, and the types that several sections use.

use super::clone_limits::CloneLimits;
use super::egress::EgressConfig;
use super::hosts::{FreebsdConfig, HostConfig, LinuxConfig};
use super::lifecycle::{LifecycleConfig, PoolConfig};
use super::service::{AccessRule, LogConfig, MetricsConfig, ServerConfig};
use crate::platform::{DefaultDirs, default_dirs};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use settings::{ConfigError, Settings, System};
use std::path::PathBuf;

/// hostd's whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Sockets, state and logs.
    pub paths: Paths,
    /// The slots (names and addresses of the clones), and the warm pool of clones made ahead, which serves creates in
    /// milliseconds.
    pub pool: PoolConfig,
    /// The host driver, template and tools.
    pub host: HostConfig,
    /// What the clones may reach, and who may reach them.
    pub egress: EgressConfig,
    /// The Linux host.
    pub linux: LinuxConfig,
    /// The FreeBSD host.
    pub freebsd: FreebsdConfig,
    /// Timeouts and deadlines.
    pub lifecycle: LifecycleConfig,
    /// Resource limits of one clone. A request may ask for less; one that asks for more is refused.
    pub clone_limits: CloneLimits,
    /// Limits for callers of the daemon.
    pub server: ServerConfig,
    /// The log.
    pub log: LogConfig,
    /// The Prometheus listener.
    pub metrics: MetricsConfig,
    /// Who may call what. The rights of all matching rules add up; a caller without a rule is refused.
    /// Rules given here replace the default ones: root is operator, and group hostd may call everything but
    /// browser-clone-force-unmount.
    pub access: Vec<AccessRule>,
}

impl Default for Config {
    fn default() -> Self {
        Self::below(&default_dirs())
    }
}

impl Config {
    /// The defaults for a system with these folders.
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

impl Settings for Config {
    const PROGRAM: &'static str = "hostd";
    const RESERVED_VARIABLES: &'static [(&'static str, &'static str)] = &[
        ("HOSTD_CONFIG", "hostd and hostctl doctor: the configuration file, as --config"),
        (
            "HOSTD_SOCKET",
            "clients: the socket to connect to, as --socket (the daemon's own is HOSTD_PATHS_SOCKET)",
        ),
        ("HOSTD_TIMEOUT", "hostctl: how long to wait for an answer, as --timeout"),
    ];
    /// A variable of the template's setup.
    const OTHER_VARIABLES: &'static [(&'static str, &'static str)] =
        &[("WARDEN_BROWSER_IP", "freebsd.template_ip")];
    const EXAMPLE: (&'static str, &'static str) = ("pool.prefix", "browsertask");

    fn defaults(system: System) -> Self {
        Self::below(&match system {
            System::Linux => DefaultDirs::linux(),
            System::Freebsd => DefaultDirs::freebsd(),
        })
    }

    fn default_file() -> PathBuf {
        default_dirs().config.join("hostd.toml")
    }

    /// The daemon checks this before it changes anything.
    fn check(&self) -> Result<(), ConfigError> {
        self.problems()
    }
}

/// Sockets, state and logs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// The Unix socket. A missing folder is created with mode 0750.
    pub socket: PathBuf,
    /// The group that owns the socket (mode 0660). Empty: hostd's own group.
    pub socket_group: String,
    /// Records of the clones and the instance lock. Two daemons never share it.
    pub state: PathBuf,
    /// The audit log, written and synced before every change.
    pub audit: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self::below(&default_dirs())
    }
}

impl Paths {
    pub(super) fn below(dirs: &DefaultDirs) -> Self {
        Self {
            socket: dirs.run.join("hostd.sock"),
            socket_group: "hostd".into(),
            state: dirs.state.clone(),
            audit: dirs.log.join("audit.log"),
        }
    }
}

/// TOML has no null, and a later layer must be able to unset a key: empty text is `None`.
pub(super) fn empty_is_none<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(input)?;
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(serde::de::Error::custom) }
}

pub(super) fn none_is_empty<S, T>(value: &Option<T>, output: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
    T: std::fmt::Display,
{
    value.as_ref().map(T::to_string).unwrap_or_default().serialize(output)
}
