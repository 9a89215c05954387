//! The configuration, checked completely before the daemon changes anything.
//!
//! The types are the only description. The commented default file, the environment variables (`HOSTD_SECTION_KEY`), the
//! `--set section.key=value` flag and the hints for unknown keys come from their JSON schema (`keys.rs`).

mod browser;
mod check;
mod clone_limits;
mod hosts;
mod keys;
mod lifecycle;
mod load;
mod service;
mod toml_text;
mod trust;
mod types;

pub use browser::{BrowserConfig, SnapshotBrowser};
pub use clone_limits::CloneLimits;
pub use hosts::{
    DiskBound, EgressConfig, FreebsdConfig, HostConfig, HostDriver, JailDriver, LimitsDemand, LinuxConfig,
    StorageDriver,
};
pub use keys::{ConfigKey, ConfigSection, RESERVED_VARIABLES, TEMPLATE_IP, sections};
pub use lifecycle::{LifecycleConfig, PoolConfig};
pub use load::{ConfigError, ConfigProblem, SettingOrigin, default_file, load};
pub use service::{AccessRule, LogConfig, LogFormat, MetricsConfig, ServerConfig};
pub use toml_text::{default_toml, effective_toml};
pub use types::{Config, Paths};
