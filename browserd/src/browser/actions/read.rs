//! Reading pages, and evaluating the caller's scripts.

use super::Context;
use super::capture::after_screenshot;
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{Dom, Evaluate, Evaluated, Link, Links, PageLinks, PageText, ReadDom, Text};
use crate::browser::tab::{ScriptResult, left};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

const DOM: &str = include_str!("../js/dom.js");
const TEXT: &str = include_str!("../js/text.js");
const LINKS: &str = include_str!("../js/links.js");
/// Default and maximum number of characters returned.
const CHARS: u32 = 100_000;
const MAX_CHARS: u32 = 8_000_000;
const LINKS_RETURNED: u32 = 1000;
const MAX_LINKS: u32 = 100_000;

/// The number of characters to return.
pub(super) fn chars(wanted: Option<u32>) -> u32 {
    wanted.unwrap_or(CHARS).min(MAX_CHARS)
}

pub(crate) async fn read_dom(context: &Context, request: &ReadDom) -> Result<Dom, ApiError> {
    #[derive(Deserialize)]
    struct DomResult {
        html: String,
        truncated: bool,
    }
    let limit = chars(request.max_chars);
    let result: DomResult =
        context.tab.run(DOM, &[json!(request.selector), json!(limit)], context.until).await?;
    Ok(Dom { html: result.html, truncated_to: result.truncated.then_some(limit) })
}

pub(crate) async fn text(context: &Context, request: &Text) -> Result<PageText, ApiError> {
    #[derive(Deserialize)]
    struct TextResult {
        text: String,
        truncated: bool,
    }
    let limit = chars(request.max_chars);
    let result: TextResult =
        context.tab.run(TEXT, &[json!(request.selector), json!(limit)], context.until).await?;
    Ok(PageText { text: result.text, truncated_to: result.truncated.then_some(limit) })
}

pub(crate) async fn links(context: &Context, request: &Links) -> Result<PageLinks, ApiError> {
    #[derive(Deserialize)]
    struct LinksResult {
        links: Vec<Link>,
        truncated: bool,
    }
    let limit = request.max.unwrap_or(LINKS_RETURNED).min(MAX_LINKS);
    let result: LinksResult =
        context.tab.run(LINKS, &[json!(request.selector), json!(limit)], context.until).await?;
    Ok(PageLinks { links: result.links, truncated_to: result.truncated.then_some(limit) })
}

pub(crate) async fn evaluate(context: &Context, request: &Evaluate) -> Result<Evaluated, ApiError> {
    let (began, allowed) = (Instant::now(), left(context.until));
    let params = json!({
        "expression": request.expression,
        "returnByValue": true,
        "awaitPromise": true,
        "userGesture": true,
        // Chromium terminates the script at the deadline, so that the tab stays usable.
        "timeout": allowed.as_millis() as u64,
    });
    let reply: Result<ScriptResult, ApiError> =
        context.tab.call("Runtime.evaluate", params, context.until).await;
    // Chromium reports a terminated script as an error or as an exception, with varying text. Only the elapsed time
    // distinguishes it from a script that failed.
    let stopped = began.elapsed().as_millis() >= allowed.as_millis();
    let thrown = |message| {
        if stopped {
            ApiError::new(ErrorCode::Timeout, "the script ran too long and was terminated")
        } else {
            ApiError::new(ErrorCode::ScriptError, message)
        }
    };
    let result = match reply {
        // For example a circular value, or a page that was replaced while the script ran.
        Err(error) if error.code == ErrorCode::BrowserError => return Err(thrown(error.message)),
        reply => reply?,
    };
    if let Some(exception) = result.exception_details {
        return Err(thrown(exception.message()));
    }
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Evaluated { success: true, value: result.result.value, kind: result.result.kind, after_screenshot })
}
