//! Prometheus metrics. No tenant or clone name is ever a label.

use crate::api::{CloneState, Launch, Method, ReapReason};
use std::collections::BTreeMap;

/// All of hostd's metrics.
#[derive(Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        Self::default()
    }
    /// An operation ended: `ok` or the error's code.
    pub fn operation(&self, _method: Method, _result: &str) {}
    /// A stage of a create ended.
    pub fn stage(&self, _stage: &str, _launch: Launch, _seconds: f64) {}
    /// A clone was reaped.
    pub fn reaped(&self, _reason: ReapReason) {}
    /// A reap was tried and not finished.
    pub fn reap_failed(&self) {}
    /// A caller hit a limit (`create_rate`, `connections`, `requests`, `clones`, `tenant_clones`, …).
    pub fn limit_rejection(&self, _limit: &'static str) {}
    /// How many clones there are, by state.
    pub fn set_clones(&self, _counts: &BTreeMap<CloneState, u64>) {}
    /// A reconcile took this long.
    pub fn reconcile(&self, _seconds: f64) {}
    /// Whether the firewall is as it should be.
    pub fn set_egress_ok(&self, _ok: bool) {}
    /// Open connections.
    pub fn set_connections(&self, _count: u64) {}
    /// Operations under way.
    pub fn set_operations(&self, _count: u64) {}
    /// The Prometheus text.
    pub fn text(&self) -> String {
        String::new()
    }
}
