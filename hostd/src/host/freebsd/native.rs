//! The parts of the FreeBSD host that the rest of hostd calls by name.

/// Run a helper process of the host, if these are its arguments. The FreeBSD host has none.
pub fn helper(_: impl IntoIterator<Item = std::ffi::OsString>) -> Option<std::process::ExitCode> {
    None
}

/// The templates of this host: Bastille jails, made by a script and kept by ZFS.
pub mod templates {
    use crate::api::SnapshotName;
    use crate::config::Config;
    use crate::host::{HostError, HostErrorKind, HostResult};
    use std::path::Path;

    fn unsupported<T>() -> HostResult<T> {
        let message = "on FreeBSD the template is a Bastille jail";
        let hint =
            "scripts/freebsd/setup-template makes it and its snapshots; `zfs list -t snapshot` lists them";
        Err(HostError::new(HostErrorKind::Template, "template", message, hint))
    }

    /// Make a template.
    pub async fn create(_: &Config, _: &SnapshotName, _: Option<&Path>) -> HostResult<String> {
        unsupported()
    }

    /// The templates that are there.
    pub async fn list(_: &Config) -> HostResult<Vec<(SnapshotName, Result<String, String>)>> {
        unsupported()
    }

    /// Remove a template.
    pub async fn remove(_: &Config, _: &SnapshotName) -> HostResult<()> {
        unsupported()
    }
}
