//! Navigation.

use super::capture::after_screenshot;
use super::{Context, refused};
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{History, Navigate, Navigated};
use crate::browser::tab::{After, Tab, left};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

const INFO: &str = include_str!("../js/info.js");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NavigationStarted {
    #[serde(default)]
    loader_id: Option<String>,
    #[serde(default)]
    error_text: Option<String>,
    #[serde(default)]
    is_download: bool,
}

#[derive(Deserialize)]
struct PageInfo {
    final_url: String,
    title: String,
    status: Option<u16>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NavigationHistory {
    current_index: i64,
    entries: Vec<HistoryEntry>,
}

#[derive(Deserialize)]
struct HistoryEntry {
    id: i64,
}

pub(crate) async fn navigate(context: &Context, request: &Navigate) -> Result<Navigated, ApiError> {
    let _turn = context.turn().await?;
    let tab = &context.tab;
    let known: Vec<String> = context.browser.downloads().into_iter().map(|download| download.guid).collect();
    let result = match (&request.url, request.history) {
        (Some(url), _) => go_to(context, url, request).await,
        (None, Some(history)) => go_through_history(context, history, request).await.map(|()| false),
        (None, None) => Err(ApiError::new(ErrorCode::BadRequest, "give either url or history")),
    };
    let download = match result {
        Err(error) => {
            if matches!(error.code, ErrorCode::NavigationTimeout | ErrorCode::Timeout) {
                stop_loading(context).await;
            }
            return Err(error);
        }
        Ok(download) => download,
    };
    let info: PageInfo = tab.run(INFO, &[], context.until).await?;
    let download_guid = match download {
        // Chromium reports the download right after its reply.
        true => context.browser.started_download(&tab.id, &known, context.until.min(soon())).await,
        false => None,
    };
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Navigated {
        success: true,
        status: info.status.filter(|_| !download),
        final_url: info.final_url,
        title: info.title,
        tab: tab.id.clone(),
        download,
        download_guid,
        after_screenshot,
    })
}

/// When waiting for a report of Chromium that is due at once ends.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

/// Loads a URL. Returns true if it was a download.
async fn go_to(context: &Context, url: &str, request: &Navigate) -> Result<bool, ApiError> {
    let tab = &context.tab;
    let mut params = json!({ "url": url, "transitionType": "typed" });
    if let Some(referrer) = &request.referrer {
        params["referrer"] = json!(referrer);
    }
    revive(tab);
    let started: NavigationStarted =
        tab.call("Page.navigate", params, context.until).await.map_err(as_navigation)?;
    if started.is_download {
        return Ok(true);
    }
    if let Some(text) = started.error_text {
        return Err(match refused::reason(context, url, &text).await {
            Some(why) => ApiError::new(ErrorCode::AddressRefused, format!("{url}: {why} ({text})")),
            None => ApiError::new(ErrorCode::NavigationFailed, format!("{url}: {text}")),
        });
    }
    if let Some(loader) = started.loader_id {
        tab.loaded(After::Loader(&loader), request.wait_until, context.until).await?;
    }
    Ok(false)
}

async fn go_through_history(context: &Context, history: History, request: &Navigate) -> Result<(), ApiError> {
    let tab = &context.tab;
    let before = tab.state().document.count;
    let step = match history {
        History::Reload => {
            revive(tab);
            let _: Value = tab.call("Page.reload", json!({}), context.until).await.map_err(as_navigation)?;
            return tab.loaded(After::Count(before), request.wait_until, context.until).await;
        }
        History::Back => -1,
        History::Forward => 1,
    };
    let known: NavigationHistory = tab.call("Page.getNavigationHistory", json!({}), context.until).await?;
    let entry = usize::try_from(known.current_index + step).ok().and_then(|at| known.entries.get(at));
    let Some(entry) = entry else {
        return Err(ApiError::new(
            ErrorCode::NavigationFailed,
            "the tab's history has no page in this direction",
        ));
    };
    let params = json!({ "entryId": entry.id });
    let _: Value =
        tab.call("Page.navigateToHistoryEntry", params, context.until).await.map_err(as_navigation)?;
    tab.loaded(After::Count(before), request.wait_until, context.until).await
}

/// Clears the crashed state: the next page gets a new renderer.
fn revive(tab: &Tab) {
    if tab.state().crashed {
        tab.update(|state| state.crashed = false);
    }
}

fn as_navigation(error: ApiError) -> ApiError {
    match error.code {
        ErrorCode::Timeout => {
            ApiError::new(ErrorCode::NavigationTimeout, "the server did not respond in time")
        }
        ErrorCode::BrowserError => ApiError::new(ErrorCode::NavigationFailed, error.message),
        _ => error,
    }
}

async fn stop_loading(context: &Context) {
    let tab = &context.tab;
    let timeout = left(context.until).max(Duration::from_millis(500));
    let _ = tab.cdp.call_raw(Some(&tab.session), "Page.stopLoading", &json!({}), timeout).await;
}
