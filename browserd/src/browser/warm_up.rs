//! Warms the browser up. The first page that a browser loads takes 50 % longer than the second: the network service opens
//! its first connection, fonts are looked up, code is read from disk. A browser that is started ahead of time therefore
//! loads a page of browserd first.
//!
//! The page leaves nothing behind: it is not cached, its server stops afterwards, and it is loaded in a separate tab. The
//! first tab's renderer is warmed up with a generated document (fonts, images, a frame, CDP domains), which is then
//! replaced by an empty one.

use super::Browser;
use super::tab::{After, TabRef};
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::WaitUntil;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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

/// Common font families. A failed lookup is cached too.
const FAMILIES: [&str; 12] = [
    "serif",
    "sans-serif",
    "monospace",
    "system-ui",
    "Arial",
    "Helvetica",
    "Verdana",
    "Georgia",
    "Roboto",
    "'Segoe UI'",
    "'Times New Roman'",
    "'Courier New'",
];

/// CDP domains that Playwright and Puppeteer enable in every page.
const DOMAINS: [&str; 3] = ["Network", "Runtime", "Log"];
/// Resolves when the document is loaded.
const LOADED: &str =
    "new Promise((done) => document.readyState === 'complete' ? done() : addEventListener('load', done))";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    loader_id: String,
}

/// Warms the browser up. `tab` is its first tab, which is empty before and after.
pub(super) async fn run(browser: &Browser, tab: &TabRef, until: Instant) -> Result<(), ApiError> {
    let failed =
        |error: std::io::Error| ApiError::new(ErrorCode::Internal, format!("warm-up server: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tokio::select! {
        error = serve(listener) => Err(failed(error)),
        warmed = async {
            let here = format!("http://{address}/");
            // If only one tab may be open, only its renderer is warmed up.
            if browser.state.max_tabs > 1 {
                load(browser, &here, until).await?;
            }
            render(tab, &here, until).await
        } => warmed,
    }
}

/// Loads the page in a separate tab.
async fn load(browser: &Browser, url: &str, until: Instant) -> Result<(), ApiError> {
    let tab = browser.open_tab(None, true, until).await?;
    let started: Started = tab.call("Page.navigate", json!({ "url": url }), until).await?;
    tab.loaded(After::Loader(&started.loader_id), WaitUntil::Load, until).await?;
    browser.close_tab(&tab.id).await
}

/// Renders the generated document in the tab, then loads an empty one.
async fn render(tab: &TabRef, here: &str, until: Instant) -> Result<(), ApiError> {
    let frame = &json!(tab.target);
    let call = |method: String, params: Value| async move {
        tab.call::<Value>(&method, params, until).await.map(drop)
    };
    for domain in DOMAINS {
        call(format!("{domain}.enable"), json!({})).await?;
    }
    call("Page.setDocumentContent".into(), json!({ "frameId": frame, "html": document(here) })).await?;
    call("Page.createIsolatedWorld".into(), json!({ "frameId": frame })).await?;
    call("Runtime.evaluate".into(), json!({ "expression": LOADED, "awaitPromise": true })).await?;
    call("Page.captureScreenshot".into(), json!({})).await?;
    for domain in DOMAINS {
        call(format!("{domain}.disable"), json!({})).await?;
    }
    let started: Started = tab.call("Page.navigate", json!({ "url": "about:blank" }), until).await?;
    tab.loaded(After::Loader(&started.loader_id), WaitUntil::Load, until).await
}

/// The page with resources from `here`, text in many fonts, and an iframe in the same renderer.
fn document(here: &str) -> String {
    let text =
        FAMILIES.map(|family| format!("<p style=\"font-family:{family}\">Aa <b>Bb <i>Cc</i></b> <i>Dd</i>"));
    let inner = format!("<style>{STYLE}</style><h1>Warm</h1>{PICTURE}<script>{SCRIPT}</script>");
    let inner = STANDARD.encode(inner);
    format!("<base href={here}>{PAGE}{}<iframe src='data:text/html;base64,{inner}'></iframe>", text.concat())
}

/// Serves the page. Returns only if accepting a connection fails.
async fn serve(listener: TcpListener) -> std::io::Error {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => return error,
        };
        let service = service_fn(|request: Request<Incoming>| async move {
            let (kind, text) = match request.uri().path() {
                "/" => ("text/html", PAGE),
                "/style.css" => ("text/css", STYLE),
                "/script.js" => ("text/javascript", SCRIPT),
                "/picture.svg" => ("image/svg+xml", PICTURE),
                _ => ("text/plain", ""),
            };
            let response =
                Response::builder().header("content-type", kind).header("cache-control", "no-store");
            Ok::<_, Infallible>(
                response.body(Full::new(Bytes::from_static(text.as_bytes()))).expect("fixed headers"),
            )
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
        );
    }
}
