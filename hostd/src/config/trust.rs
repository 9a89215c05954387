//! Folders and programs of the configuration that users other than root and hostd's own can change.

use super::hosts::HostDriver;
use super::types::Config;
use crate::platform;
use settings::trusted_path::{self, ParentRule, UntrustedPath};
use settings::{ConfigError, ConfigProblem, SettingOrigin};
use std::path::Path;

impl Config {
    /// Refuse folders and programs that others can change: who can do that controls a daemon that runs as root. Tools are
    /// checked when they are located, and configuration files when they are read.
    pub fn check_trust(&self) -> Result<(), ConfigError> {
        let parent = |path: &'_ Path| path.parent().unwrap_or(Path::new("/")).to_owned();
        let mut folders = vec![
            ("paths.state", self.paths.state.clone(), ParentRule::Strict),
            ("paths.socket", parent(&self.paths.socket), ParentRule::Strict),
            ("paths.audit", parent(&self.paths.audit), ParentRule::GroupMayWrite),
            ("pool.clones_dir", self.pool.clones_dir.clone(), ParentRule::Strict),
        ];
        let mut browserd = None;
        match self.host.driver {
            HostDriver::Native if platform::IS_LINUX => {
                folders.push(("linux.templates", self.linux.templates.clone(), ParentRule::Strict));
                browserd = Some(&self.linux.browserd).filter(|path| path.exists());
            }
            HostDriver::Native | HostDriver::Freebsd => {
                let freebsd = &self.freebsd;
                folders.push((
                    "freebsd.bastille_prefix",
                    freebsd.bastille_prefix.clone(),
                    ParentRule::Strict,
                ));
                folders.push((
                    "freebsd.console_logs",
                    freebsd.console_logs.clone(),
                    ParentRule::GroupMayWrite,
                ));
            }
            #[cfg(feature = "fake-host")]
            HostDriver::Fake => {}
        }
        let problem = |key: &str, error: UntrustedPath| {
            let what = format!("is refused: {error}");
            ConfigProblem { origin: SettingOrigin::Value, key: key.to_owned(), what }
        };
        let folders = folders.into_iter().filter_map(|(key, path, parents)| {
            trusted_path::folder(&path, parents).err().map(|error| problem(key, error))
        });
        let browserd = browserd.and_then(|path| trusted_path::executable(path).err());
        let browserd = browserd.map(|error| problem("linux.browserd", error));
        let problems: Vec<ConfigProblem> = folders.chain(browserd).collect();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
    }
}
