//! Raw CDP over WebSocket, compatible with Chromium's debugging port.

use super::{App, Body, json_response, whole};
use crate::api::error::{ApiError, ErrorCode};
use crate::api::operations::percent_decode;
use crate::api::types::{Check, NewTab, TabInfo};
use crate::browser::relay::RawClient;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

/// What the path of the WebSocket begins with: that of the browser, and that of one page.
pub(super) const PATH: &str = "/devtools/browser/";
pub(super) const PAGE_PATH: &str = "/devtools/page/";
/// What the paths of discovery begin with.
pub(super) const DISCOVERY: &str = "/json";

fn refuse_if_disabled(app: &App) -> Result<(), ApiError> {
    if app.config.no_raw_cdp {
        return Err(ApiError::new(ErrorCode::RawCdpDisabled, "raw CDP is disabled"));
    }
    Ok(())
}

/// The paths of discovery, as Chromium's debugging port has them.
pub(super) async fn discover(
    app: &Arc<App>,
    path: &str,
    request: &Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    refuse_if_disabled(app)?;
    // Playwright requests paths with a trailing slash.
    let path = path.strip_suffix('/').unwrap_or(path);
    let (verb, target) = match path.strip_prefix("/json/").unwrap_or("list").split_once('/') {
        Some((verb, target)) => (verb, Some(target)),
        None => (path.strip_prefix("/json/").unwrap_or("list"), None),
    };
    // Old tools use GET for all of them. No page can send any: it does not know the secret.
    let allowed = ["GET", "HEAD", "PUT", "POST"].contains(&request.method().as_str());
    if !allowed {
        return Err(ApiError::new(ErrorCode::MethodNotAllowed, "this path supports GET, PUT and POST"));
    }
    match (verb, target) {
        ("version", None) => version(app, request),
        ("list", None) => {
            let tabs = app.browser()?.tab_infos().await?;
            let list: Vec<Value> = tabs.iter().map(|tab| described(app, request, tab)).collect();
            Ok(json_response(StatusCode::OK, json!(list).to_string().into_bytes()))
        }
        ("new", None) => {
            let url = new_url(request.uri().query().unwrap_or_default())?;
            let browser = app.browser()?;
            let tab =
                browser.open_tab(url.as_deref(), false, Instant::now() + app.config.deadline(None)).await?;
            let info = browser.tab_infos().await?.into_iter().find(|info| info.tab == tab.id);
            let info =
                info.ok_or_else(|| ApiError::new(ErrorCode::NoSuchTab, "the new tab was closed at once"))?;
            Ok(json_response(StatusCode::OK, described(app, request, &info).to_string().into_bytes()))
        }
        ("activate", Some(target)) => {
            app.browser()?.activate_tab(target).await?;
            Ok(text("Target activated"))
        }
        ("close", Some(target)) => {
            app.browser()?.close_tab(target).await?;
            Ok(text("Target is closing"))
        }
        ("protocol", None) => {
            let chromium = app.config.chromium.clone();
            let read = tokio::task::spawn_blocking(move || crate::protocol::of(&chromium)).await;
            let missing =
                |error: String| ApiError::new(ErrorCode::NotFound, format!("/json/protocol: {error}"));
            let json = read
                .map_err(|error| missing(error.to_string()))?
                .map_err(|error| missing(error.to_string()))?;
            Ok(json_response(StatusCode::OK, json))
        }
        _ => Err(ApiError::new(
            ErrorCode::NotFound,
            "/json has version, list, new, activate/ID, close/ID and protocol",
        )),
    }
}

/// The address of a new tab: the whole query, as Chromium's port takes it, percent-encoded or not.
fn new_url(query: &str) -> Result<Option<String>, ApiError> {
    if query.is_empty() {
        return Ok(None);
    }
    let decoded = match query.contains("://") {
        true => Some(query.to_owned()),
        false => percent_decode(query),
    };
    let url =
        decoded.ok_or_else(|| ApiError::new(ErrorCode::BadRequest, "the address is not valid UTF-8"))?;
    let request = NewTab { url: Some(url), background: false };
    request.check()?;
    Ok(request.url)
}

/// A tab as Chromium's port describes it.
fn described(app: &App, request: &Request<Incoming>, tab: &TabInfo) -> Value {
    let path = format!("{}{PAGE_PATH}{}", app.secret_path(), tab.target_id);
    json!({
        "description": "",
        "id": tab.target_id,
        "title": tab.title,
        "type": "page",
        "url": tab.url,
        "webSocketDebuggerUrl": format!("ws://{}{path}", host(request)),
    })
}

/// The guard has checked that the header exists and is allowed.
fn host(request: &Request<Incoming>) -> &str {
    request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

fn text(text: &'static str) -> Response<Body> {
    let mut response = json_response(StatusCode::OK, text.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Tells clients the URL of the WebSocket.
fn version(app: &App, request: &Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let version = app.browser()?.version.clone();
    let body = json!({
        "Browser": version.product,
        "Protocol-Version": version.protocol_version,
        "User-Agent": version.user_agent,
        "V8-Version": version.js_version,
        "WebKit-Version": format!("537.36 ({})", version.revision),
        // With the secret, because clients send no header with the URL. The caller has presented it.
        "webSocketDebuggerUrl": format!("ws://{}{}{}", host(request), app.secret_path(), app.raw_path()),
        // Not of Chromium: a higher number means a new, empty profile.
        "browserGeneration": app.supervisor.continuity.generation(),
    });
    Ok(json_response(StatusCode::OK, body.to_string().into_bytes()))
}

/// Upgrades the connection to a WebSocket and serves it.
pub(super) async fn upgrade(
    app: &Arc<App>,
    path: &str,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    refuse_if_disabled(app)?;
    let page = path.strip_prefix(PAGE_PATH).map(str::to_owned);
    if page.is_none() && path != app.raw_path() {
        return Err(ApiError::new(
            ErrorCode::NotFound,
            "the raw endpoint has another path; /json/version returns it",
        ));
    }
    if let Some(page) = &page {
        app.browser()?.tab(Some(page))?;
    }
    let wants_upgrade = request
        .headers()
        .get(UPGRADE)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let key = request.headers().get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let (true, Some(key)) = (wants_upgrade, key) else {
        return Err(ApiError::new(ErrorCode::BadRequest, "this path supports only WebSocket connections"));
    };
    let accept = HeaderValue::from_str(&key)
        .map_err(|_| ApiError::new(ErrorCode::BadRequest, "Sec-WebSocket-Key is invalid"))?;
    let client = RawClient::connect(app.browser()?, page.as_deref(), app.config.max_response).await?;
    let upgrading = hyper::upgrade::on(&mut request);
    let app = app.clone();
    tokio::spawn(async move {
        match upgrading.await {
            Ok(upgraded) => serve(&app, upgraded, client).await,
            Err(error) => tracing::debug!(%error, "the upgrade to a WebSocket failed"),
        }
    });
    let mut response = Response::new(whole(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

async fn serve(app: &App, upgraded: Upgraded, mut client: RawClient) {
    let config = WebSocketConfig::default()
        .max_message_size(Some(app.config.max_response))
        .max_frame_size(Some(app.config.max_response));
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let (mut output, mut input) = socket.split();
    let sender = client.sender();
    let reading = async {
        while let Some(Ok(message)) = input.next().await {
            match message {
                Message::Text(text) => sender.forward(text.as_str()).await,
                Message::Close(_) => return,
                _ => {}
            }
        }
    };
    let writing = async {
        let reason = loop {
            match client.next().await {
                Ok(message) => {
                    if output.send(Message::text(message)).await.is_err() {
                        return;
                    }
                }
                Err(reason) => break reason,
            }
        };
        let frame = CloseFrame { code: CloseCode::Policy, reason: reason.into() };
        let _ = output.send(Message::Close(Some(frame))).await;
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
        reason = sender.disconnected() => tracing::warn!(reason, "disconnected a raw client"),
    }
}
