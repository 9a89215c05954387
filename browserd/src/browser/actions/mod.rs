//! The actions of the API.

mod accessibility;
pub(crate) mod capture;
pub(crate) mod cookies;
pub(crate) mod find;
pub(crate) mod keyboard;
pub(crate) mod navigate;
pub(crate) mod pointer;
pub(crate) mod read;
pub(crate) mod records;
mod refused;
pub(crate) mod snapshot;
mod target;
pub(crate) mod upload;
pub(crate) mod wait;

use super::tab::TabRef;
use super::{Browser, INTERNAL_TIMEOUT};
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::Action;
use crate::config::Config;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::MutexGuard;
use tokio::time::Instant;

/// The tab, deadline and configuration of an action.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) browser: Arc<Browser>,
    pub(crate) tab: TabRef,
    pub(crate) until: Instant,
}

impl Context {
    /// The context for a request.
    pub(crate) fn new(
        browser: Arc<Browser>,
        config: Arc<Config>,
        request: &impl Action,
    ) -> Result<Self, ApiError> {
        let tab = browser.tab(request.tab())?;
        let until = Instant::now() + config.deadline(request.timeout_ms());
        Ok(Self { config, browser, tab, until })
    }

    /// Waits until no other action changes the tab.
    async fn turn(&self) -> Result<MutexGuard<'_, ()>, ApiError> {
        tokio::time::timeout_at(self.until, self.tab.turn.lock()).await.map_err(|_| {
            ApiError::new(ErrorCode::Timeout, format!("tab {} is busy with another action", self.tab.id))
        })
    }
}

/// Sends calls to the tab when dropped: what must happen also if the call of the API is cancelled.
struct SendOnDrop {
    tab: TabRef,
    calls: Vec<(&'static str, Value)>,
}

impl SendOnDrop {
    fn new(context: &Context, calls: Vec<(&'static str, Value)>) -> Self {
        Self { tab: context.tab.clone(), calls }
    }

    /// Sends nothing: the caller does it.
    fn forget(mut self) {
        self.calls.clear();
    }
}

impl Drop for SendOnDrop {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        if calls.is_empty() {
            return;
        }
        let tab = self.tab.clone();
        tab.update(|state| state.pointer = Default::default());
        tokio::spawn(async move {
            for (method, params) in calls {
                let _ = tab.cdp.call_raw(Some(&tab.session), method, &params, INTERNAL_TIMEOUT).await;
            }
        });
    }
}
