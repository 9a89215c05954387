//! Starts and stops the service.

use crate::config::Config;

/// The running service: listeners, store, sessions.
#[derive(Debug)]
pub struct Service {}

impl Service {
    /// Open the store, connect to hostd, find the sessions again, and listen.
    pub async fn start(config: Config) -> Result<Self, ServiceError> {
        let _ = config;
        Ok(Self {})
    }

    /// Refuse new calls, let running ones end (bounded), and write what is left to write. Sessions stay open.
    pub async fn stop(self) {}
}

/// Why the service does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {}
