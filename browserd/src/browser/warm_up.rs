//! The first page that a browser ever loads takes half as long again as the second: the network service opens its first
//! connection, fonts are looked up, code is read from disk. A browser that is made ahead of time loads a page of
//! browserd's own first, so that nobody waits for that.
//!
//! Nothing stays: the page may not be stored, comes from an address that is gone afterwards, and is loaded in a tab of its
//! own. What its renderer alone learns, the first tab's renderer is shown in an empty document, which is replaced by a
//! fresh one.

use super::Browser;
use super::tab::{After, TabRef};
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::WaitUntil;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::Ipv4Addr;
use tokio::net::TcpListener;
use tokio::time::Instant;

const PAGE: &str = r#"<!doctype html><title>warm</title><link rel=stylesheet href=style.css>
<h1>Warm</h1><p><b>bold</b> <i>italic</i> <code>code</code> <img src=picture.svg width=8 height=8>
<form><input value=text><button>button</button></form><script src=script.js></script>"#;
const STYLE: &str =
    "body { font: 16px sans-serif } h1 { font-family: serif } p { display: flex; color: #345 }";
const SCRIPT: &str =
    "document.body.append(JSON.stringify([1, { a: /b/.test('b') }]), document.createElement('hr'))";
const PICTURE: &str =
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'><circle cx='4' cy='4' r='3'/></svg>";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    loader_id: String,
}

/// Warm the browser up; `tab` is its first, blank before and after.
pub(super) async fn run(browser: &Browser, tab: &TabRef, until: Instant) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| ApiError::new(ErrorCode::Internal, format!("warming up: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tokio::select! {
        error = serve(listener) => Err(failed(error)),
        warmed = async {
            load(browser, &format!("http://{address}/"), until).await?;
            render(tab, until).await
        } => warmed,
    }
}

/// Load the page, in a tab of its own.
async fn load(browser: &Browser, url: &str, until: Instant) -> Result<(), ApiError> {
    let tab = browser.open_tab(None, true, until).await?;
    let started: Started = tab.call("Page.navigate", json!({ "url": url }), until).await?;
    tab.loaded(After::Loader(&started.loader_id), WaitUntil::Load, until).await?;
    browser.close_tab(&tab.id).await
}

/// Let the tab's own renderer draw the page, and give it a fresh document again.
async fn render(tab: &TabRef, until: Instant) -> Result<(), ApiError> {
    let page = format!("<style>{STYLE}</style>{PAGE}{PICTURE}<script>{SCRIPT}</script>");
    let _: Value =
        tab.call("Page.setDocumentContent", json!({ "frameId": tab.target, "html": page }), until).await?;
    let _: Value = tab.call("Page.captureScreenshot", json!({}), until).await?;
    let started: Started = tab.call("Page.navigate", json!({ "url": "about:blank" }), until).await?;
    tab.loaded(After::Loader(&started.loader_id), WaitUntil::Load, until).await
}

/// Serve the page for as long as this is polled; answers only with the error that ends it.
async fn serve(listener: TcpListener) -> std::io::Error {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => return error,
        };
        let answer = service_fn(|request: Request<Incoming>| async move {
            let (kind, text) = match request.uri().path() {
                "/" => ("text/html", PAGE),
                "/style.css" => ("text/css", STYLE),
                "/script.js" => ("text/javascript", SCRIPT),
                "/picture.svg" => ("image/svg+xml", PICTURE),
                _ => ("text/plain", ""),
            };
            let answer = Response::builder().header("content-type", kind).header("cache-control", "no-store");
            Ok::<_, Infallible>(
                answer.body(Full::new(Bytes::from_static(text.as_bytes()))).expect("fixed headers"),
            )
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer),
        );
    }
}
