//! The templates of either storage driver, for the operator's command.

use super::{template, zfs};
use crate::api::SnapshotName;
use crate::config::{Config, StorageDriver};
use crate::host::{HostError, HostErrorKind, HostResult};
use crate::slot::Pool;
use std::path::Path;

/// Make a template of the browser that this system has; answers its version.
pub fn create(config: &Config, snapshot: &SnapshotName, browser: Option<&Path>) -> HostResult<String> {
    match config.linux.storage {
        StorageDriver::Overlay => {
            template::create(&config.linux.templates, &config.host.template, snapshot, browser)
        }
        StorageDriver::Zfs => wait(zfs::create_template(config, &pool(config)?, snapshot, browser)),
    }
}

/// The templates that are there, each with its browser's version or why it cannot be used.
pub fn list(config: &Config) -> HostResult<Vec<(SnapshotName, Result<String, String>)>> {
    match config.linux.storage {
        StorageDriver::Overlay => template::list(&config.linux.templates, &config.host.template),
        StorageDriver::Zfs => wait(zfs::list_templates(config, &pool(config)?)),
    }
}

/// Remove a template that no clone is made from.
pub fn remove(config: &Config, snapshot: &SnapshotName) -> HostResult<()> {
    match config.linux.storage {
        StorageDriver::Overlay => template::remove(&config.linux.templates, &config.host.template, snapshot),
        StorageDriver::Zfs => wait(zfs::remove_template(config, &pool(config)?, snapshot)),
    }
}

fn pool(config: &Config) -> HostResult<Pool> {
    Pool::new(&config.pool).map_err(|error| {
        HostError::new(HostErrorKind::NotReady, "pool", error.to_string(), "hostd --check-config tells more")
    })
}

/// The command has nothing else to do meanwhile.
fn wait<T>(work: impl Future<Output = HostResult<T>>) -> HostResult<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        HostError::new(HostErrorKind::Failed, "hostctl", error.to_string(), "look at the system's limits")
    })?;
    runtime.block_on(work)
}
