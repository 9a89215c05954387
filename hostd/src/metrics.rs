//! Prometheus metrics. No tenant or clone name is ever a label.

use crate::api::{CloneState, Flavor, Launch, Method, PoolStatus, ReapReason};
use crate::host::RefusedPackets;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Labels with fixed values, so that a lookup does not allocate.
type Word = &'static str;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    op: Word,
    result: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: String,
    launch: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlavorLabel {
    flavor: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: Word,
}

/// All of hostd's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    operations: Family<OperationLabels, Counter>,
    stages: Family<StageLabels, Histogram>,
    reaped: Family<ReasonLabel, Counter>,
    reap_failures: Counter,
    limit_rejections: Family<LimitLabel, Counter>,
    audit_write_failures: Counter,
    record_write_failures: Counter,
    clones: Family<StateLabel, Gauge>,
    pool_available: Gauge,
    pool_members: Family<FlavorLabel, Gauge>,
    pool_target: Family<FlavorLabel, Gauge>,
    pool_oldest: Gauge,
    pool_claims: Family<ResultLabel, Counter>,
    pool_drained: Counter,
    pool_refill: Histogram,
    reconcile: Histogram,
    egress_ok: Gauge,
    egress_refused: Family<LimitLabel, Counter>,
    /// What the packet filter's counters showed last. They restart when the rules are loaded again.
    egress_refused_last: Mutex<RefusedPackets>,
    connections: Gauge,
    operations_under_way: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let metrics = Self {
            registry: Registry::default(),
            operations: Family::default(),
            stages: Family::new_with_constructor(stage_histogram),
            reaped: Family::default(),
            reap_failures: Counter::default(),
            limit_rejections: Family::default(),
            audit_write_failures: Counter::default(),
            record_write_failures: Counter::default(),
            clones: Family::default(),
            pool_available: Gauge::default(),
            pool_members: Family::default(),
            pool_target: Family::default(),
            pool_oldest: Gauge::default(),
            pool_claims: Family::default(),
            pool_drained: Counter::default(),
            pool_refill: stage_histogram(),
            reconcile: Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0]),
            egress_ok: Gauge::default(),
            egress_refused: Family::default(),
            egress_refused_last: Mutex::default(),
            connections: Gauge::default(),
            operations_under_way: Gauge::default(),
        };
        // Series exist from the start, so that an alert does not depend on a first event.
        for state in CloneState::ALL {
            let _ = metrics.clones.get_or_create(&StateLabel { state: state.word() });
        }
        for reason in ReapReason::ALL {
            let _ = metrics.reaped.get_or_create(&ReasonLabel { reason: reason.word() });
        }
        for limit in ["new_connections", "open_connections"] {
            let _ = metrics.egress_refused.get_or_create(&LimitLabel { limit });
        }
        for result in ["hit", "empty", "unfit"] {
            let _ = metrics.pool_claims.get_or_create(&ResultLabel { result });
        }
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        let registry = &mut self.registry;
        registry.register("hostd_build", "The running version", build);
        registry.register("hostd_clones", "Clones by state", self.clones.clone());
        registry.register(
            "hostd_pool_available",
            "Clones that may still be made",
            self.pool_available.clone(),
        );
        registry.register(
            "hostd_pool_members",
            "Clones of the warm pool that wait, by flavour",
            self.pool_members.clone(),
        );
        registry.register(
            "hostd_pool_target",
            "Clones of the warm pool that are wanted, by flavour",
            self.pool_target.clone(),
        );
        registry.register(
            "hostd_pool_oldest_seconds",
            "Age of the oldest clone that waits in the warm pool",
            self.pool_oldest.clone(),
        );
        registry.register(
            "hostd_pool_claims",
            "Creates by how they fared with the warm pool",
            self.pool_claims.clone(),
        );
        registry.register(
            "hostd_pool_drained",
            "Clones of the warm pool that were taken away unused",
            self.pool_drained.clone(),
        );
        registry.register(
            "hostd_pool_refill_duration_seconds",
            "How long making a clone for the warm pool took",
            self.pool_refill.clone(),
        );
        registry.register("hostd_operations", "Operations that ended, by result", self.operations.clone());
        registry.register(
            "hostd_operations_under_way",
            "Operations that are running",
            self.operations_under_way.clone(),
        );
        registry.register(
            "hostd_clone_stage_duration_seconds",
            "How long each stage of a create took",
            self.stages.clone(),
        );
        registry.register(
            "hostd_tool_runs",
            "Programs that were started, by tool",
            crate::host::command::runs().clone(),
        );
        registry.register("hostd_reaped", "Clones that the reaper destroyed, by reason", self.reaped.clone());
        registry.register(
            "hostd_reap_failures",
            "Clones the reaper could not finish",
            self.reap_failures.clone(),
        );
        registry.register(
            "hostd_limit_rejections",
            "Callers that hit a limit, by limit",
            self.limit_rejections.clone(),
        );
        registry.register(
            "hostd_audit_write_failures",
            "Failed attempts to write the audit log",
            self.audit_write_failures.clone(),
        );
        registry.register(
            "hostd_record_write_failures",
            "Failed attempts to write or remove the record of a clone that is being removed",
            self.record_write_failures.clone(),
        );
        registry.register(
            "hostd_reconcile_duration_seconds",
            "How long comparing the host with the records took",
            self.reconcile.clone(),
        );
        registry.register(
            "hostd_egress_ok",
            "1 when the firewall is as it should be",
            self.egress_ok.clone(),
        );
        registry.register(
            "hostd_egress_refused_packets",
            "Packets refused because their clone reached a limit of connections, by limit",
            self.egress_refused.clone(),
        );
        registry.register("hostd_connections", "Open connections", self.connections.clone());
        self
    }

    /// An operation ended: `ok` or the error's code.
    pub fn operation(&self, method: Method, result: &str) {
        let labels = OperationLabels { op: method.name(), result: result.to_owned() };
        self.operations.get_or_create(&labels).inc();
    }

    /// A stage of a create ended.
    pub fn stage(&self, stage: &str, launch: Launch, seconds: f64) {
        let labels = StageLabels { stage: stage.to_owned(), launch: launch.word() };
        self.stages.get_or_create(&labels).observe(seconds);
    }

    /// A clone was reaped.
    pub fn reaped(&self, reason: ReapReason) {
        self.reaped.get_or_create(&ReasonLabel { reason: reason.word() }).inc();
    }

    /// A reap failed.
    pub fn reap_failed(&self) {
        self.reap_failures.inc();
    }

    /// A caller hit a limit (`create_rate`, `connections`, `requests`, `clones`, `tenant_clones`, …).
    pub fn limit_rejection(&self, limit: &'static str) {
        self.limit_rejections.get_or_create(&LimitLabel { limit }).inc();
    }

    /// The audit log could not be written.
    pub fn audit_write_failed(&self) {
        self.audit_write_failures.inc();
    }

    /// The record of a clone that is being removed could not be written.
    pub fn record_write_failed(&self) {
        self.record_write_failures.inc();
    }

    /// How many clones there are, by state.
    pub fn set_clones(&self, counts: &BTreeMap<CloneState, u64>) {
        for state in CloneState::ALL {
            let count = counts.get(&state).copied().unwrap_or(0);
            self.clones.get_or_create(&StateLabel { state: state.word() }).set(signed(count));
        }
    }

    /// What the packet filter's counters of refused packets show now.
    pub fn set_egress_refused(&self, now: RefusedPackets) {
        let mut last = self.egress_refused_last.lock().unwrap_or_else(PoisonError::into_inner);
        for (limit, now, last) in
            [("new_connections", now.rate, last.rate), ("open_connections", now.count, last.count)]
        {
            let more = if now >= last { now - last } else { now };
            self.egress_refused.get_or_create(&LimitLabel { limit }).inc_by(more);
        }
        *last = now;
    }

    /// How many clones can still be created.
    pub fn set_pool_available(&self, count: u64) {
        self.pool_available.set(signed(count));
    }

    /// The state of the warm pool.
    pub fn set_pool(&self, pool: &PoolStatus) {
        for flavor in Flavor::ALL {
            let label = FlavorLabel { flavor: flavor.word() };
            let members = pool.members.iter().filter(|member| member.flavor == flavor).count();
            let target = if pool.flavors.contains(&flavor) { pool.size } else { 0 };
            self.pool_members.get_or_create(&label).set(signed(members as u64));
            self.pool_target.get_or_create(&label).set(signed(target));
        }
        let oldest = pool.members.iter().map(|member| member.age_seconds).max();
        self.pool_oldest.set(signed(oldest.unwrap_or(0)));
    }

    /// What a create found in the warm pool: `hit`, `empty`, `unfit`.
    pub fn pool_claim(&self, result: &'static str) {
        self.pool_claims.get_or_create(&ResultLabel { result }).inc();
    }

    /// A member of the warm pool was destroyed without having been bound.
    pub fn pool_drained(&self) {
        self.pool_drained.inc();
    }

    /// How long the create of a member of the warm pool took.
    pub fn pool_refill(&self, seconds: f64) {
        self.pool_refill.observe(seconds);
    }

    /// How long a reconcile took.
    pub fn reconcile(&self, seconds: f64) {
        self.reconcile.observe(seconds);
    }

    /// Whether the firewall rules are in place.
    pub fn set_egress_ok(&self, ok: bool) {
        self.egress_ok.set(i64::from(ok));
    }

    /// Open connections.
    pub fn set_connections(&self, count: u64) {
        self.connections.set(signed(count));
    }

    /// Running operations.
    pub fn set_operations(&self, count: u64) {
        self.operations_under_way.set(signed(count));
    }

    /// The Prometheus text (OpenMetrics 1.0).
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string");
        text
    }
}

/// From one millisecond (an interface) to two minutes (a browser on a busy host).
fn stage_histogram() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0])
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PoolMember;

    #[test]
    fn refused_packets_are_counted_on_when_the_packet_filter_starts_again() {
        let metrics = Metrics::new();
        for (rate, count) in [(5, 0), (7, 2), (7, 2), (1, 0)] {
            metrics.set_egress_refused(RefusedPackets { rate, count });
        }
        let text = metrics.text();
        for line in [
            "hostd_egress_refused_packets_total{limit=\"new_connections\"} 8",
            "hostd_egress_refused_packets_total{limit=\"open_connections\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn every_metric_appears_with_its_labels() {
        let metrics = Metrics::new();
        metrics.operation(Method::Create, "ok");
        metrics.operation(Method::Create, "host_full");
        metrics.stage("jail", Launch::Cold, 0.02);
        metrics.reaped(ReapReason::Orphan);
        metrics.reap_failed();
        metrics.limit_rejection("create_rate");
        metrics.set_clones(&BTreeMap::from([(CloneState::Ready, 3)]));
        metrics.set_pool_available(97);
        metrics.audit_write_failed();
        metrics.record_write_failed();
        metrics.reconcile(0.003);
        metrics.pool_claim("hit");
        metrics.pool_drained();
        metrics.pool_refill(0.4);
        let member = |number, flavor, age_seconds| PoolMember {
            name: format!("browsertask00{number}").parse().unwrap(),
            flavor,
            age_seconds,
            seconds_left: 1,
        };
        metrics.set_pool(&PoolStatus {
            size: 3,
            flavors: vec![Flavor::Ready],
            members: vec![member(1, Flavor::Ready, 40), member(2, Flavor::Ready, 2)],
            refilling: false,
            hits: 0,
            misses_empty: 0,
            misses_unfit: 0,
            drained: 0,
            last_refill_seconds: None,
            problem: None,
        });
        metrics.set_egress_ok(true);
        metrics.set_connections(2);
        metrics.set_operations(1);
        let text = metrics.text();
        for line in [
            concat!("hostd_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "hostd_operations_total{op=\"browser-clone-create\",result=\"ok\"} 1",
            "hostd_operations_total{op=\"browser-clone-create\",result=\"host_full\"} 1",
            "hostd_clone_stage_duration_seconds_count{stage=\"jail\",launch=\"cold\"} 1",
            "hostd_reaped_total{reason=\"orphan\"} 1",
            "hostd_reaped_total{reason=\"deadline_passed\"} 0",
            "hostd_reap_failures_total 1",
            "hostd_limit_rejections_total{limit=\"create_rate\"} 1",
            "hostd_audit_write_failures_total 1",
            "hostd_record_write_failures_total 1",
            "hostd_clones{state=\"ready\"} 3",
            "hostd_clones{state=\"broken\"} 0",
            "hostd_pool_available 97",
            "hostd_pool_members{flavor=\"ready\"} 2",
            "hostd_pool_members{flavor=\"basic\"} 0",
            "hostd_pool_target{flavor=\"ready\"} 3",
            "hostd_pool_oldest_seconds 40",
            "hostd_pool_claims_total{result=\"hit\"} 1",
            "hostd_pool_claims_total{result=\"unfit\"} 0",
            "hostd_pool_drained_total 1",
            "hostd_pool_refill_duration_seconds_count 1",
            "hostd_reconcile_duration_seconds_count 1",
            "hostd_egress_ok 1",
            "hostd_connections 2",
            "hostd_operations_under_way 1",
        ] {
            assert!(text.lines().any(|seen| seen == line), "{line} is missing in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn counts_of_states_go_down_again() {
        let metrics = Metrics::new();
        metrics.set_clones(&BTreeMap::from([(CloneState::Ready, 3)]));
        metrics.set_clones(&BTreeMap::new());
        metrics.set_egress_ok(true);
        metrics.set_egress_ok(false);
        let text = metrics.text();
        assert!(text.contains("hostd_clones{state=\"ready\"} 0\n"), "{text}");
        assert!(text.contains("hostd_egress_ok 0\n"), "{text}");
    }
}
