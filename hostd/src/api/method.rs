//! The method table: the names on the wire, what they do, and whether they change the host.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Every method hostd answers. Four of them change the host, and no fifth will.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub enum Method {
    /// Make a clone, or renew the lease of the clone this request id made.
    #[serde(rename = "browser-clone-create")]
    Create,
    /// Take a clone away; absent is success.
    #[serde(rename = "browser-clone-destroy")]
    Destroy,
    /// Take away what is over: unfinished work, passed deadlines, orphans.
    #[serde(rename = "browser-clone-reap")]
    Reap,
    /// Force the mounts of a clone that is being destroyed.
    #[serde(rename = "browser-clone-force-unmount")]
    ForceUnmount,
    /// All clones this host knows of.
    #[serde(rename = "browser-clone-list")]
    List,
    /// The daemon and its host: versions, counts, limits, health.
    #[serde(rename = "host-status")]
    Status,
    /// This contract as an OpenRPC document.
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
            Method::Create => "Make a clone, or renew the lease of the clone that this request_id made.",
            Method::Destroy => "Take a clone away. A clone that is already gone is a success.",
            Method::Reap => "Take away what is over: unfinished work, passed deadlines, orphans.",
            Method::ForceUnmount => "Force the mounts of a clone that is being destroyed. Operators only.",
            Method::List => "List all clones this host knows of.",
            Method::Status => "Tell how the daemon and its host are.",
            Method::Discover => "Answer this contract as an OpenRPC document.",
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
