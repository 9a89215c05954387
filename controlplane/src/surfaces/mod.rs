//! The protocols that callers speak. Each is a thin mapping onto [`App`].

pub mod http;
pub mod mcp;
pub mod metrics;
pub mod relay;
pub mod service;

use crate::access::Access;
use crate::app::App;
use crate::time::{Millis, now};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a readiness check waits for one part.
const CHECK_TIME: Duration = Duration::from_secs(3);

/// What the surfaces share.
#[derive(Debug)]
pub struct Surface {
    /// The service behind them.
    pub app: App,
    /// Who may call.
    pub access: Access,
    /// CDP connections and their addresses.
    pub relays: relay::Relays,
    /// The metrics.
    pub metrics: metrics::Metrics,
    /// The address of the HTTP listener.
    pub http_address: Option<SocketAddr>,
    /// When the service was started.
    pub started_at: Millis,
    /// Cancelled when the service begins to stop: new calls are refused.
    pub stop: CancellationToken,
}

impl Surface {
    /// The surfaces of a service.
    pub fn new(app: App, access: Access, http_address: Option<SocketAddr>) -> Self {
        Self {
            app,
            access,
            relays: relay::Relays::default(),
            metrics: metrics::Metrics::new(),
            http_address,
            started_at: now(),
            stop: CancellationToken::new(),
        }
    }

    fn stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// The parts that the service needs, each `ok` or what is wrong with it.
    async fn checks(&self) -> BTreeMap<&'static str, String> {
        let state = |outcome: Result<(), String>| outcome.err().unwrap_or_else(|| "ok".to_owned());
        let store = async { self.app.store.check().await.map_err(|error| error.to_string()) };
        let host = async {
            match tokio::time::timeout(CHECK_TIME, self.app.hosts.status()).await {
                Ok(status) => status.map(drop).map_err(|error| error.to_string()),
                Err(_) => Err(format!("hostd did not answer within {} s", CHECK_TIME.as_secs())),
            }
        };
        let (store, host) = tokio::join!(store, host);
        let healthy = self.app.audit.status().healthy;
        let audit = if healthy { Ok(()) } else { Err("the last commit of the audit log failed".to_owned()) };
        [("store", state(store)), ("audit", state(audit)), ("hostd", state(host))].into()
    }
}
