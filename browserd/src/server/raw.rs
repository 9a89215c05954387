//! Raw CDP over WebSocket, compatible with Chromium's debugging port.

use super::{App, Body, json_response, whole};
use crate::api::error::{ApiError, ErrorCode};
use crate::browser::relay::RawClient;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HOST, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::sync::Arc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

/// What the path of the WebSocket begins with.
pub(super) const PATH: &str = "/devtools/browser/";

fn refuse_if_disabled(app: &App) -> Result<(), ApiError> {
    if app.config.no_raw_cdp {
        return Err(ApiError::new(ErrorCode::RawCdpDisabled, "raw CDP is disabled"));
    }
    Ok(())
}

/// Tells Playwright and Puppeteer the URL of the WebSocket.
pub(super) fn version(app: &App, request: &Request<Incoming>) -> Result<Response<Body>, ApiError> {
    refuse_if_disabled(app)?;
    let version = app.browser()?.version.clone();
    // The guard has checked that the header exists and is allowed.
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let body = json!({
        "Browser": version.product,
        "Protocol-Version": version.protocol_version,
        "User-Agent": version.user_agent,
        "V8-Version": version.js_version,
        // With the secret, because clients send no header with the URL. The caller has presented it.
        "webSocketDebuggerUrl": format!("ws://{host}{}{}", app.secret_path(), app.raw_path()),
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
    if path != app.raw_path() {
        return Err(ApiError::new(
            ErrorCode::NotFound,
            "the raw endpoint has another path; /json/version returns it",
        ));
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
    let client = RawClient::connect(app.browser()?, app.config.max_response).await?;
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
