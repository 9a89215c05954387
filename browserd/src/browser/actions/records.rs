//! What browserd recorded of a tab, and where the tab is.

use super::Context;
use crate::api::error::ApiError;
use crate::api::types::{Console, ConsoleLog, Network, NetworkLog, PageUrl, Url};
use serde::Deserialize;
use serde_json::json;

const DEFAULT_MAX: u32 = 100;

pub(crate) async fn url(context: &Context, _: &Url) -> Result<PageUrl, ApiError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct History {
        current_index: usize,
        entries: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        url: String,
        title: String,
    }
    let tab = &context.tab;
    // Asked of the browser's process: a busy page does not delay it.
    let mut history: History = tab.call("Page.getNavigationHistory", json!({}), context.until).await?;
    let loading = tab.state().loading;
    let Entry { url, title } = match history.current_index < history.entries.len() {
        true => history.entries.swap_remove(history.current_index),
        false => Entry { url: tab.state().url.clone(), title: String::new() },
    };
    Ok(PageUrl { tab: tab.id.clone(), url, title, loading })
}

pub(crate) async fn console(context: &Context, request: &Console) -> Result<ConsoleLog, ApiError> {
    let since = request.since.unwrap_or(0);
    let log = context.tab.log();
    let mut messages: Vec<_> = log
        .console
        .after(since)
        .filter(|message| request.level.is_none_or(|level| message.level >= level))
        .cloned()
        .collect();
    keep_latest(&mut messages, request.max);
    Ok(ConsoleLog { messages, last: log.console.last(), missed: log.console.missed(since) })
}

pub(crate) async fn network(context: &Context, request: &Network) -> Result<NetworkLog, ApiError> {
    let since = request.since.unwrap_or(0);
    let log = context.tab.log();
    let mut requests: Vec<_> = log
        .requests
        .after(since)
        .map(|kept| &kept.request)
        .filter(|kept| request.url.as_ref().is_none_or(|part| kept.url.contains(part)))
        .filter(|kept| {
            !request.failed_only || kept.failure.is_some() || kept.status.is_some_and(|status| status >= 400)
        })
        .cloned()
        .collect();
    requests.sort_by_key(|kept| kept.seq);
    keep_latest(&mut requests, request.max);
    Ok(NetworkLog { requests, last: log.requests.last(), missed: log.requests.dropped() })
}

fn keep_latest<T>(list: &mut Vec<T>, max: Option<u32>) {
    let max = max.unwrap_or(DEFAULT_MAX) as usize;
    list.drain(..list.len().saturating_sub(max));
}
