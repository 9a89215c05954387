//! The methods: their names on the wire, and whether they change the host.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Every method of hostd. Four of them change the host.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub enum Method {
    /// Create a clone, or renew the lease of the clone with this request id.
    #[serde(rename = "browser-clone-create")]
    Create,
    /// Destroy a clone; destroying an absent clone succeeds.
    #[serde(rename = "browser-clone-destroy")]
    Destroy,
    /// Destroy what is due: unfinished operations, expired clones, orphans.
    #[serde(rename = "browser-clone-reap")]
    Reap,
    /// Force-unmount a clone that is being destroyed.
    #[serde(rename = "browser-clone-force-unmount")]
    ForceUnmount,
    /// List the clones.
    #[serde(rename = "browser-clone-list")]
    List,
    /// Return versions, counts, limits and health.
    #[serde(rename = "host-status")]
    Status,
    /// Return this contract as an OpenRPC document.
    #[serde(rename = "rpc.discover")]
    Discover,
}

impl Method {
    /// Every method, in the order of the documentation.
    pub const ALL: [Method; 7] = [
        Method::Create,
        Method::Destroy,
        Method::Reap,
        Method::ForceUnmount,
        Method::List,
        Method::Status,
        Method::Discover,
    ];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Method::Create => "browser-clone-create",
            Method::Destroy => "browser-clone-destroy",
            Method::Reap => "browser-clone-reap",
            Method::ForceUnmount => "browser-clone-force-unmount",
            Method::List => "browser-clone-list",
            Method::Status => "host-status",
            Method::Discover => "rpc.discover",
        }
    }

    /// The method of this name.
    pub fn from_name(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether a call may change the host, and so is audited.
    pub fn mutates(self) -> bool {
        matches!(self, Method::Create | Method::Destroy | Method::Reap | Method::ForceUnmount)
    }

    /// One sentence for the documentation.
    pub fn summary(self) -> &'static str {
        match self {
            Method::Create => "Create a clone, or renew the lease of the clone with this request_id.",
            Method::Destroy => "Destroy a clone. Destroying an absent clone succeeds.",
            Method::Reap => "Destroy what is due: unfinished operations, expired clones, orphans.",
            Method::ForceUnmount => "Force-unmount a clone that is being destroyed. Operators only.",
            Method::List => "List the clones of this host.",
            Method::Status => "Return the state of the daemon and its host.",
            Method::Discover => "Return this contract as an OpenRPC document.",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serde_and_name_agree() {
        for method in Method::ALL {
            assert_eq!(serde_json::to_value(method).unwrap(), method.name());
            assert_eq!(Method::from_name(method.name()), Some(method));
        }
        assert_eq!(Method::from_name("browser-clone-pause"), None);
    }

    #[test]
    fn four_operations_change_the_host() {
        assert_eq!(Method::ALL.iter().filter(|method| method.mutates()).count(), 4);
    }
}
