//! Reading pages, and running the caller's own script.

use super::Context;
use super::capture::after_screenshot;
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{Dom, Evaluate, Evaluated, Link, Links, PageLinks, PageText, ReadDom, Text};
use crate::browser::tab::{Remote, left};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

const DOM: &str = include_str!("../js/dom.js");
const TEXT: &str = include_str!("../js/text.js");
const LINKS: &str = include_str!("../js/links.js");
/// Characters returned when the caller names no limit, and the most one may name.
const CHARS: u32 = 100_000;
const MAX_CHARS: u32 = 8_000_000;
const LINKS_RETURNED: u32 = 1000;
const MAX_LINKS: u32 = 100_000;

/// How many characters to return.
pub(super) fn chars(wanted: Option<u32>) -> u32 {
    wanted.unwrap_or(CHARS).min(MAX_CHARS)
}

pub(crate) async fn read_dom(context: &Context, request: &ReadDom) -> Result<Dom, ApiError> {
    #[derive(Deserialize)]
    struct Answer {
        html: String,
        truncated: bool,
    }
    let limit = chars(request.max_chars);
    let answer: Answer =
        context.tab.run(DOM, &[json!(request.selector), json!(limit)], context.until).await?;
    Ok(Dom { html: answer.html, truncated_to: answer.truncated.then_some(limit) })
}

pub(crate) async fn text(context: &Context, request: &Text) -> Result<PageText, ApiError> {
    #[derive(Deserialize)]
    struct Answer {
        text: String,
        truncated: bool,
    }
    let limit = chars(request.max_chars);
    let answer: Answer =
        context.tab.run(TEXT, &[json!(request.selector), json!(limit)], context.until).await?;
    Ok(PageText { text: answer.text, truncated_to: answer.truncated.then_some(limit) })
}

pub(crate) async fn links(context: &Context, request: &Links) -> Result<PageLinks, ApiError> {
    #[derive(Deserialize)]
    struct Answer {
        links: Vec<Link>,
        truncated: bool,
    }
    let limit = request.max.unwrap_or(LINKS_RETURNED).min(MAX_LINKS);
    let answer: Answer =
        context.tab.run(LINKS, &[json!(request.selector), json!(limit)], context.until).await?;
    Ok(PageLinks { links: answer.links, truncated_to: answer.truncated.then_some(limit) })
}

pub(crate) async fn evaluate(context: &Context, request: &Evaluate) -> Result<Evaluated, ApiError> {
    let (began, allowed) = (Instant::now(), left(context.until));
    let params = json!({
        "expression": request.expression,
        "returnByValue": true,
        "awaitPromise": true,
        "userGesture": true,
        // Chromium stops an endless loop itself, so that the tab stays usable.
        "timeout": allowed.as_millis() as u64,
    });
    let answer: Result<Remote, ApiError> = context.tab.call("Runtime.evaluate", params, context.until).await;
    // A script that Chromium stopped comes back as an error or as an exception, in words that vary with
    // where it was: the clock tells it apart from one that failed by itself.
    let stopped = began.elapsed().as_millis() >= allowed.as_millis();
    let thrown = |message| {
        if stopped {
            ApiError::new(ErrorCode::Timeout, "the script was stopped because it ran too long")
        } else {
            ApiError::new(ErrorCode::ScriptError, message)
        }
    };
    let remote = match answer {
        // For example a value that refers to itself, or a page that went away under the script.
        Err(error) if error.code == ErrorCode::BrowserError => return Err(thrown(error.message)),
        answer => answer?,
    };
    if let Some(exception) = remote.exception_details {
        return Err(thrown(exception.message()));
    }
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Evaluated { success: true, value: remote.result.value, kind: remote.result.kind, after_screenshot })
}
