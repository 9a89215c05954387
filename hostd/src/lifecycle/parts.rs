//! The parts that the lifecycle consists of, each the one owner of its state.

use super::calls::{Alarms, Calls};
use super::host_calls::HostCalls;
use super::reaping::Reaping;
use super::registry::{Caps, Registry};
use super::service_watch::ServiceWatch;
use super::slot_task::SlotTasks;
use super::warm_pool::WarmPool;
use crate::api::{RpcError, SnapshotName};
use crate::clock::Clock;
use crate::config::Config;
use crate::host::Host;
use crate::lifecycle::errors::{host_error, host_not_ready};
use crate::metrics::Metrics;
use crate::slot::Slots;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The parts.
pub(super) struct Parts<H> {
    pub(super) config: Arc<Config>,
    pub(super) slots: Slots,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<Metrics>,
    /// The host, called with deadlines.
    pub(super) host: HostCalls<H>,
    /// The records.
    pub(super) registry: Registry,
    /// The busy slots.
    pub(super) tasks: SlotTasks,
    /// The calls under way and the audit log.
    pub(super) calls: Arc<Calls>,
    /// What an operator should know.
    pub(super) alarms: Arc<Alarms>,
    /// The warm pool's own state.
    pub(super) warm_pool: WarmPool,
    /// The slots that the timer is removing or about to remove.
    pub(super) reaping: Reaping,
    /// Whether the services of ready clones answer.
    pub(super) services: ServiceWatch,
    /// Wakes the timer: there may be an earlier deadline than the one it sleeps for.
    pub(super) wake: Notify,
}

impl<H: Host> Parts<H> {
    pub(super) fn caps(&self) -> Caps {
        let server = &self.config.server;
        Caps { host: server.max_clones, tenant: server.max_clones_per_tenant }
    }

    /// How often the host is compared with the records.
    pub(super) fn interval(&self) -> Duration {
        Duration::from_millis(self.config.lifecycle.reconcile_interval_ms)
    }

    /// Set or clear the alarm about the state folder, and count what could not be written.
    pub(super) fn state_written(&self, written: &io::Result<()>) {
        let alarm = written.as_ref().err().map(|error| {
            self.metrics.record_write_failed();
            let path = self.config.paths.state.display();
            format!("{path}: records cannot be written: {error}. Creates are refused, removals go on")
        });
        self.alarms.set("state", alarm);
    }

    /// The host was inspected and its packet filter is in place: what every clone needs.
    pub(super) async fn firewall_is_ready(&self) -> Result<(), RpcError> {
        if self.registry.read().inspected.is_none() {
            self.wake.notify_one();
            return Err(host_not_ready(
                "the host has not been inspected yet",
                "try again shortly; hostctl doctor reports why",
            ));
        }
        let health = self.host.run("firewall", self.host.host.egress_health()).await;
        let Some(problem) = health.map_err(|error| host_error(&error))?.problem() else { return Ok(()) };
        self.wake.notify_one();
        Err(host_not_ready(problem, "hostd repairs what it can by itself; hostctl doctor reports more"))
    }

    /// Let whoever creates a clone connect to it.
    pub(super) async fn admit(&self, user: Option<u32>) -> Result<(), RpcError> {
        let Some(user) = user else { return Ok(()) };
        self.host.run("firewall", self.host.host.admit(user)).await.map_err(|error| host_error(&error))
    }

    /// The template can be cloned now: what every clone needs that is made.
    pub(super) async fn template_is_ready(&self, snapshot: &SnapshotName) -> Result<(), RpcError> {
        let checked = self.host.run("template", self.host.host.check_template(snapshot)).await;
        checked.map_err(|error| host_error(&error))
    }

    /// What this snapshot of the template is now.
    pub(super) async fn template_version(&self, snapshot: &SnapshotName) -> Result<String, RpcError> {
        let version = self.host.run("template", self.host.host.template_version(snapshot)).await;
        version.map_err(|error| host_error(&error))
    }
}
