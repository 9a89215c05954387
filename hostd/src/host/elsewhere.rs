//! A system without a host of its own in this build: everything says so.

use super::{HostError, HostErrorKind, HostResult};

fn none() -> HostError {
    let message = "this build has no driver for this system's clones";
    HostError::new(HostErrorKind::NotReady, "host.driver", message, "use a build of hostd for this system")
}

/// Be one of the host's helper processes, if these are the arguments of one.
pub fn helper(_: impl IntoIterator<Item = std::ffi::OsString>) -> Option<std::process::ExitCode> {
    None
}

/// The templates of this host.
pub mod templates {
    use super::{HostResult, none};
    use crate::api::SnapshotName;
    use std::path::Path;

    /// Make a template.
    pub fn create(_: &Path, _: &str, _: &SnapshotName, _: Option<&Path>) -> HostResult<String> {
        Err(none())
    }

    /// The templates that are there.
    pub fn list(_: &Path, _: &str) -> HostResult<Vec<(SnapshotName, Result<String, String>)>> {
        Err(none())
    }

    /// Remove a template.
    pub fn remove(_: &Path, _: &str, _: &SnapshotName, _: &Path) -> HostResult<()> {
        Err(none())
    }
}

/// A look through a clone's browser.
pub mod show {
    use std::time::Duration;

    /// What was seen.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Seen {
        /// The page's title.
        pub title: String,
        /// The picture, as PNG.
        pub picture: Vec<u8>,
    }

    /// Load a page in the browser behind an endpoint.
    pub fn page(_: &str, _: &str, _: Duration) -> Result<Seen, String> {
        Err(super::none().message)
    }
}
