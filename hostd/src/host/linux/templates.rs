//! The templates of either storage driver, for the operator's command.

use super::{template, zfs};
use crate::api::SnapshotName;
use crate::config::{Config, StorageDriver};
use crate::host::{HostError, HostErrorKind, HostResult};
use crate::slot::Slots;
use std::path::Path;

/// Make a template of the browser that this system has; answers its version.
pub async fn create(config: &Config, snapshot: &SnapshotName, browser: Option<&Path>) -> HostResult<String> {
    match config.linux.storage {
        StorageDriver::Overlay => {
            template::create(&config.linux.templates, &config.host.template, snapshot, browser)
        }
        StorageDriver::Zfs => zfs::create_template(config, &pool(config)?, snapshot, browser).await,
    }
}

/// The templates that are there, each with its browser's version or why it cannot be used.
pub async fn list(config: &Config) -> HostResult<Vec<(SnapshotName, Result<String, String>)>> {
    match config.linux.storage {
        StorageDriver::Overlay => template::list(&config.linux.templates, &config.host.template),
        StorageDriver::Zfs => zfs::list_templates(config, &pool(config)?).await,
    }
}

/// Remove a template that no clone is made from.
pub async fn remove(config: &Config, snapshot: &SnapshotName) -> HostResult<()> {
    match config.linux.storage {
        StorageDriver::Overlay => {
            let (templates, clones) = (&config.linux.templates, &config.pool.clones_dir);
            template::remove(templates, &config.host.template, snapshot, clones)
        }
        StorageDriver::Zfs => zfs::remove_template(config, &pool(config)?, snapshot).await,
    }
}

fn pool(config: &Config) -> HostResult<Slots> {
    Slots::new(&config.pool).map_err(|error| {
        HostError::new(HostErrorKind::NotReady, "pool", error.to_string(), "hostd --check-config tells more")
    })
}
