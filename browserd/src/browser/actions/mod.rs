//! The actions of the API.

pub(crate) mod capture;
pub(crate) mod cookies;
pub(crate) mod input;
pub(crate) mod navigate;
pub(crate) mod read;
mod refused;
pub(crate) mod snapshot;

use super::Browser;
use super::tab::TabRef;
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::Action;
use crate::config::Config;
use std::sync::Arc;
use tokio::sync::MutexGuard;
use tokio::time::Instant;

/// The tab, deadline and configuration of an action.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) tab: TabRef,
    pub(crate) until: Instant,
}

impl Context {
    /// The context for a request.
    pub(crate) fn new(
        browser: &Browser,
        config: Arc<Config>,
        request: &impl Action,
    ) -> Result<Self, ApiError> {
        let tab = browser.tab(request.tab())?;
        let until = Instant::now() + config.deadline(request.timeout_ms());
        Ok(Self { config, tab, until })
    }

    /// Waits until no other action changes the tab.
    async fn turn(&self) -> Result<MutexGuard<'_, ()>, ApiError> {
        tokio::time::timeout_at(self.until, self.tab.turn.lock()).await.map_err(|_| {
            ApiError::new(ErrorCode::Timeout, format!("tab {} is busy with another action", self.tab.id))
        })
    }
}
