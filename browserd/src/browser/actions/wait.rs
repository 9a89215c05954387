//! Waiting for a state of the page.

use super::Context;
use super::capture::after_screenshot;
use super::target::{on_element, on_element_script};
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{WaitFor, Waited};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

const CONDITIONS: &str = include_str!("../js/conditions.js");
const VISIBLE: &str = on_element_script!("visible.js");
/// Time between two looks at the page: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Does not take the tab's turn: another call may bring about what this one waits for.
pub(crate) async fn wait_for(context: &Context, request: &WaitFor) -> Result<Waited, ApiError> {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut missing = missing(context, request).await;
    loop {
        let what = match missing {
            Ok(None) => break,
            Ok(Some(what)) => what,
            // The document was replaced meanwhile.
            Err(error) if error.code == ErrorCode::BrowserError => "the page is being replaced".to_owned(),
            Err(error) => return Err(error),
        };
        if Instant::now() + pause >= context.until {
            return Err(ApiError::new(ErrorCode::WaitTimeout, what));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        missing = self::missing(context, request).await;
    }
    let url = context.tab.state().url.clone();
    let waited_ms = began.elapsed().as_millis() as u64;
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Waited { success: true, url, waited_ms, after_screenshot })
}

/// The first condition that does not hold.
async fn missing(context: &Context, request: &WaitFor) -> Result<Option<String>, ApiError> {
    #[derive(Deserialize)]
    struct Seen {
        element: bool,
        contains: bool,
    }
    let tab = &context.tab;
    tab.refuse_if_crashed()?;
    let WaitFor { selector, reference, text, url, load, gone, .. } = request;
    let (now, closed, reached) = {
        let state = tab.state();
        (state.url.clone(), state.closed, load.is_none_or(|load| state.document.reached(load)))
    };
    if closed {
        return Err(ApiError::new(ErrorCode::NoSuchTab, format!("tab {} was closed", tab.id)));
    }
    if url.as_ref().is_some_and(|wanted| !url_matches(&now, wanted)) {
        return Ok(Some("the URL does not match".into()));
    }
    if !reached {
        return Ok(Some(format!("the page did not reach {:?}", load.unwrap_or_default())));
    }
    let state = |visible: bool, what: String| match (visible, gone) {
        (true, true) => Some(format!("{what} is still visible")),
        (false, false) => Some(format!("{what} is not visible")),
        _ => None,
    };
    if let Some(reference) = reference {
        let visible = match on_element(context, None, Some(reference), VISIBLE, &[]).await {
            Err(error) if *gone && error.code == ErrorCode::StaleRef => false,
            visible => visible?,
        };
        if let Some(missing) = state(visible, format!("the element {reference}")) {
            return Ok(Some(missing));
        }
    }
    if selector.is_none() && text.is_none() {
        return Ok(None);
    }
    let seen: Seen = tab.run(CONDITIONS, &[json!(selector), json!(text)], context.until).await?;
    let element = selector.as_ref().and_then(|_| state(seen.element, "an element of the selector".into()));
    Ok(element.or_else(|| text.as_ref().and_then(|_| state(seen.contains, "the text".into()))))
}

/// Whether the URL contains the text, or matches all of it if it contains `*`.
fn url_matches(url: &str, wanted: &str) -> bool {
    let Some((start, rest)) = wanted.split_once('*') else { return url.contains(wanted) };
    let Some(mut left) = url.strip_prefix(start) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_match_by_part_or_by_pattern() {
        let url = "https://example.org/cart/7?step=2";
        for good in ["cart", "example.org", "*", "https://*", "*/cart/*step=2", "https://*.org/*", url] {
            assert!(url_matches(url, good), "{good}");
        }
        for bad in ["shop", "http://*", "*/cart", "*step=22", "https://*.com/*", "*cart*cart*"] {
            assert!(!url_matches(url, bad), "{bad}");
        }
    }
}
