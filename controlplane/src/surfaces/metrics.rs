//! Prometheus metrics. Labels never name a tenant, a session or a caller.

use super::Surface;
use axum::http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

/// The metrics of the service.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabel, Histogram>,
    denials: Family<ReasonLabel, Counter>,
    sessions: Family<StateLabel, Gauge>,
    connections: Gauge,
    relayed: Family<DirectionLabel, Counter>,
    audit_waiting: Gauge,
}

impl Metrics {
    /// Metrics without a value yet.
    pub(super) fn new() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(histogram),
            denials: Family::default(),
            sessions: Family::default(),
            connections: Gauge::default(),
            relayed: Family::default(),
            audit_waiting: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("controlplane_build", "The running version", build);
        registry.register("browserd_sessions", "Sessions by state", metrics.sessions.clone());
        registry.register(
            "browserd_denials",
            "Calls that were refused, by error code",
            metrics.denials.clone(),
        );
        registry.register(
            "controlplane_requests",
            "HTTP requests by route and status",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "controlplane_request_duration",
            "Time of HTTP requests until the answer begins",
            Unit::Seconds,
            metrics.durations.clone(),
        );
        registry.register(
            "controlplane_cdp_connections",
            "Open CDP connections",
            metrics.connections.clone(),
        );
        registry.register_with_unit(
            "controlplane_cdp_relayed",
            "Bytes of CDP connections by direction",
            Unit::Bytes,
            metrics.relayed.clone(),
        );
        registry.register(
            "controlplane_audit_waiting",
            "Rows of the audit log that wait for a commit",
            metrics.audit_waiting.clone(),
        );
        metrics
    }

    /// Count a request.
    pub(super) fn request(
        &self,
        route: &str,
        status: StatusCode,
        error: Option<&'static str>,
        took: Duration,
    ) {
        let route = route.to_owned();
        let labels = RequestLabels { route: route.clone(), status: status.as_u16() };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&RouteLabel { route }).observe(took.as_secs_f64());
        let denied = matches!(
            status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS
        );
        if let Some(reason) = error.filter(|_| denied) {
            self.denials.get_or_create(&ReasonLabel { reason }).inc();
        }
    }

    /// The counter of bytes to `client` or `browser`.
    pub(super) fn relayed(&self, direction: &'static str) -> Counter {
        self.relayed.get_or_create(&DirectionLabel { direction }).clone()
    }

    /// The text for Prometheus.
    pub(super) fn text(&self, surface: &Surface) -> String {
        let counts = surface.app.sessions.counts();
        for (state, count) in [
            ("waiting", counts.waiting),
            ("opening", counts.opening),
            ("open", counts.open),
            ("closing", counts.closing),
        ] {
            self.sessions.get_or_create(&StateLabel { state }).set(count as i64);
        }
        self.connections.set(surface.relays.connections() as i64);
        self.audit_waiting.set(surface.app.audit.status().waiting as i64);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("memory can be written");
        text
    }
}
