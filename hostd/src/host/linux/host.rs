//! The Linux side of the trait [`Host`]: each method runs the parts' blocking code on a blocking thread.

use super::network::LinkTable;
use super::{LinuxHost, blocking_work, checks, jail, network, user_ids};
use crate::api::{CloneId, EgressHealth, Finding, Limits, SnapshotName};
use crate::config::Resolver;
use crate::host::{
    CloneSpec, Host, HostResult, Inventory, ObservedClone, Part, RefusedPackets, ServiceEndpoint, Unmount,
};
use crate::slot::SlotNames;
use std::collections::BTreeMap;
use std::time::Duration;

impl Host for LinuxHost {
    fn drivers(&self) -> BTreeMap<String, String> {
        let browserd = if self.0.config.linux.browserd.is_file() {
            "browserd"
        } else {
            "browser with its debugging pipe as a socket"
        };
        [
            ("storage", self.0.storage.description().to_owned()),
            ("network", "network namespace and veth".to_owned()),
            ("egress", format!("nftables table inet {}", self.0.egress.table())),
            ("limits", self.0.limits.description()),
            ("rates", "disk read and write rates are not limited".to_owned()),
            ("jail", "bubblewrap, Landlock, seccomp".to_owned()),
            ("service", browserd.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn limits_not_kept(&self, limits: &Limits) -> Vec<String> {
        self.0.limits.not_enforced(limits).into_iter().map(str::to_owned).collect()
    }

    async fn checks(&self) -> Vec<Finding> {
        let storage = self.0.storage.findings().await;
        let template = self.0.storage.template(&self.0.config.host.snapshot).await;
        let datasets = self.0.storage.datasets(Part::ALL, None).await;
        self.blocking(|state| Ok(checks::run(state, storage, template, datasets)))
            .await
            .unwrap_or_else(|error| vec![checks::broken(&error)])
    }

    async fn check_template(&self, snapshot: &SnapshotName) -> HostResult<()> {
        self.0.storage.template(snapshot).await.map(drop)
    }

    async fn template_version(&self, snapshot: &SnapshotName) -> HostResult<String> {
        self.0.storage.template_version(snapshot).await
    }

    async fn inventory(&self) -> HostResult<Inventory> {
        let datasets = self.0.storage.datasets(Part::ALL, None).await?;
        self.blocking(|state| {
            if state.config.egress.resolver == Resolver::Auto {
                state.dns_forwarder.keep_running();
            }
            state.inventory(datasets)
        })
        .await
    }

    async fn inspect(&self, names: &SlotNames, parts: &[Part]) -> HostResult<ObservedClone> {
        let datasets = self.0.storage.datasets(parts, Some(names)).await?;
        let (names, parts) = (names.clone(), parts.to_vec());
        self.blocking(move |state| {
            let host = state.host_state(&parts, Some(&names), datasets)?;
            state.inspect(&names, &parts, &host)
        })
        .await
    }

    /// Nothing runs in a clone before its service starts. The service needs its files and its network, but not egress, which
    /// is closed until it is granted. The supervisor starts under the limits, and the step that sets the limits also makes
    /// the run folder, in which the network namespace is mounted.
    fn waits_for(&self, part: Part, earlier: Part) -> bool {
        match part {
            Part::Network | Part::Jail => earlier == Part::Limits,
            Part::Egress => earlier == Part::Network,
            Part::Service => earlier != Part::Egress,
            _ => false,
        }
    }

    async fn egress_health(&self) -> HostResult<EgressHealth> {
        // Every create asks. Reading a flag takes less time than waking another thread.
        if self.0.egress.is_proven() {
            return Ok(EgressHealth::Ok);
        }
        self.blocking(|state| state.egress.health()).await
    }

    async fn repair_egress(&self) -> HostResult<EgressHealth> {
        self.blocking(|state| state.egress.repair()).await
    }

    fn refused_packets(&self) -> Option<RefusedPackets> {
        self.0.egress.refused_packets()
    }

    async fn admit(&self, user: u32) -> HostResult<()> {
        // Every create asks.
        if !self.0.config.egress.creators_may_connect() || self.0.egress.admits(user) {
            return Ok(());
        }
        self.blocking(move |state| state.egress.admit(user)).await
    }

    async fn changed(&self) {
        self.0.egress.changed.notified().await;
    }

    async fn ensure_storage(&self, spec: &CloneSpec) -> HostResult<()> {
        self.0.storage.ensure(spec).await
    }

    async fn ensure_limits(&self, spec: &CloneSpec) -> HostResult<()> {
        let spec = spec.clone();
        self.blocking(move |state| {
            user_ids::refuse_claimed(&state.claimed_ids, &spec.names)?;
            state.limits.ensure(state.config.linux.limits, &spec, &state.run(&spec.names))
        })
        .await
    }

    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        self.0.limits.can_change(from, to)
    }

    async fn ensure_network(&self, spec: &CloneSpec) -> HostResult<()> {
        let spec = spec.clone();
        self.blocking(move |state| {
            let filter = state.egress.clone_filter()?;
            state.egress.allow_connections(spec.names.slot);
            network::ensure(
                &state.slots,
                &spec.names,
                &spec.clone_id,
                &state.run(&spec.names),
                filter,
                &state.host_addresses,
            )
        })
        .await
    }

    async fn ensure_egress(&self, spec: &CloneSpec) -> HostResult<()> {
        let names = spec.names.clone();
        self.blocking(move |state| state.egress.grant(&names)).await
    }

    async fn ensure_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        let (browser, _) = self.0.storage.template(&spec.snapshot).await?;
        let wanted = spec.clone();
        let orders = self.blocking(move |state| Ok(state.orders(&wanted, browser))).await?;
        let run = self.0.run(&spec.names);
        jail::start(run, orders, spec.deadline, self.0.mount_isolation.as_ref()).await
    }

    async fn ensure_service(&self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        jail::start_service(self.0.run(&spec.names), spec).await
    }

    async fn set_deadline(&self, names: &SlotNames, deadline: Duration) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |state| state.set_deadline(&names, deadline)).await
    }

    async fn cut_egress(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |state| {
            state.egress.cut(&names)?;
            state.end_connections(&names)
        })
        .await
    }

    /// Sends SIGKILL without SIGTERM: the clone's files are destroyed afterwards, so the browser has nothing to save.
    async fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |state| {
            state.freezer.forget(&names);
            state.end_processes(&names)
        })
        .await
    }

    async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |state| state.freezer.freeze(state.clone_ref(&names, &state.run(&names)))).await
    }

    async fn thaw(&self, names: &SlotNames, deadline: Duration) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |state| {
            state.set_deadline(&names, deadline)?;
            state.freezer.thaw(state.clone_ref(&names, &state.run(&names)))
        })
        .await
    }

    async fn service_answers(&self, names: &SlotNames) -> HostResult<bool> {
        if let Some(works) = self.0.freezer.works_after_thaw(names) {
            return Ok(works);
        }
        let names = names.clone();
        self.blocking(move |state| Ok(jail::answers(&state.run(&names)))).await
    }

    async fn unmount(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        self.0.storage.unmount(names, how).await
    }

    async fn stop_jail(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |state| {
            // If this hostd did not kill them, another one may have, or the supervisor exited and left processes.
            if !state.has_killed(&names) {
                state.end_processes(&names)?;
            }
            state.wait_for_processes(&names)?;
            state.release_namespace(&names)
        })
        .await
    }

    async fn remove_network(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |state| {
            network::remove_link(&names)?;
            state.end_connections(&names)?;
            state.release_namespace(&names)
        })
        .await
    }

    async fn remove_limits(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |state| {
            state.wait_for_processes(&names)?;
            state.release_namespace(&names)?;
            state.limits.remove(names.name.as_str(), &state.run(&names), &jail::FILES)
        })
        .await
    }

    async fn destroy_storage(&self, names: &SlotNames) -> HostResult<()> {
        self.0.storage.destroy(names).await
    }

    async fn move_storage_aside(&self, names: &SlotNames, clone_id: &CloneId) -> HostResult<()> {
        self.0.storage.move_aside(names, clone_id).await
    }

    async fn destroy_aside(&self, clone_id: &CloneId) -> HostResult<()> {
        self.0.storage.destroy_aside(clone_id).await
    }

    async fn settle(&self) {
        blocking_work::settle().await;
    }

    fn close(&self) {
        // Clones that go on need their resolver.
        let has_clones = LinkTable::read(None).map_or(true, |links| {
            self.0.slots.slots().any(|slot| links.has(&self.0.slots.names(slot).interface))
        });
        if !has_clones && let Err(error) = self.0.dns_forwarder.end() {
            tracing::warn!(%error, "the clones' resolver cannot be ended");
        }
        // After its end: its file is below an isolated folder.
        if let Some(isolation) = &self.0.mount_isolation {
            isolation.release();
        }
    }
}
