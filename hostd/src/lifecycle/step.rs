//! The steps of a create: how each is ensured, and what the inspection must show afterwards.

use crate::api::Limits;
use crate::host::{CloneSpec, Host, HostResult, Identity, ObservedClone, Part, ServiceEndpoint};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A step of a create, in order. Limits and egress come before anything runs under them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The template's files, cloned and labelled.
    Storage,
    /// The limits.
    Limits,
    /// The interface pair.
    Network,
    /// The membership in the egress table.
    Egress,
    /// The jail.
    Jail,
    /// The browser service.
    Service,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Step; 6] =
        [Step::Storage, Step::Limits, Step::Network, Step::Egress, Step::Jail, Step::Service];

    /// The part of the clone that the step makes.
    pub fn part(self) -> Part {
        match self {
            Step::Storage => Part::Storage,
            Step::Limits => Part::Limits,
            Step::Network => Part::Network,
            Step::Egress => Part::Egress,
            Step::Jail => Part::Jail,
            Step::Service => Part::Service,
        }
    }

    /// Run the step on the host. The service step returns the service's endpoint.
    pub(super) async fn ensure<H: Host>(
        self,
        host: &H,
        spec: &CloneSpec,
    ) -> HostResult<Option<ServiceEndpoint>> {
        match self {
            Step::Storage => host.ensure_storage(spec).await?,
            Step::Limits => host.ensure_limits(spec).await?,
            Step::Network => host.ensure_network(spec).await?,
            Step::Egress => host.ensure_egress(spec).await?,
            Step::Jail => host.ensure_jail(spec).await?,
            Step::Service => return host.ensure_service(spec).await.map(Some),
        }
        Ok(None)
    }

    /// Whether the inspection shows what the step had to make. The result of the step itself is not trusted.
    pub fn verify(self, spec: &CloneSpec, seen: &ObservedClone) -> Result<(), String> {
        let mine = |what: &str, identity: &Identity| match identity {
            Identity::Clone(id) if *id == spec.clone_id => Ok(()),
            Identity::Clone(id) => Err(format!("the {what} carries the identity {id}")),
            Identity::Unmarked => Err(format!("the {what} carries no identity")),
            Identity::Foreign(why) => Err(format!("the {what} is not ours: {why}")),
        };
        match self {
            Step::Storage => {
                let storage = seen.storage.as_ref().ok_or("no storage is there")?;
                mine("storage", &storage.identity)?;
                if storage.snapshot.as_ref() != Some(&spec.snapshot) {
                    return Err(format!("the storage does not come from snapshot {}", spec.snapshot));
                }
                if storage.mounted { Ok(()) } else { Err("the storage is not mounted".into()) }
            }
            Step::Limits => match seen.limits {
                Some(limits) if same_limits(&limits, &spec.limits) => Ok(()),
                Some(limits) => Err(format!("other limits are on: {limits:?}")),
                None => Err("no limits are on".into()),
            },
            Step::Network => {
                let network = seen.network.as_ref().ok_or("no interface is there")?;
                mine("interface", &network.identity)?;
                if network.complete { Ok(()) } else { Err("the interface pair is only half made".into()) }
            }
            Step::Egress if seen.egress => Ok(()),
            Step::Egress => Err("the address is not in the table".into()),
            Step::Jail => {
                let jail = seen.jail.as_ref().ok_or("no jail is there")?;
                mine("jail", &jail.identity)?;
                if jail.dying { Err("the jail is dying".into()) } else { Ok(()) }
            }
            Step::Service if seen.service_ready => Ok(()),
            Step::Service => Err("the browser service does not answer".into()),
        }
    }
}

/// Whether the observed limits are the wanted ones. A host whose storage enforces the disk quota does not report it here.
pub(super) fn same_limits(seen: &Limits, wanted: &Limits) -> bool {
    let quota = seen.disk_bytes.or(wanted.disk_bytes);
    Limits { disk_bytes: quota, ..*seen } == *wanted
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.part().word())
    }
}
