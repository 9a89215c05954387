//! The browser's side of a relay: browserd in the session's clone.

use super::Handshake;
use crate::app::CdpTarget;
use crate::error::{ApiError, ErrorCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::net::TcpStream;

/// How long the browser's side may take to connect.
const CONNECT_TIME: Duration = Duration::from_secs(10);
const LONGEST_VERSION: usize = 64 * 1024;

fn unavailable(what: impl std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::BrowserUnavailable, format!("the session's browser: {what}"))
}

async fn in_time<T>(work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    let late = |_| unavailable(format!("no answer within {} s", CONNECT_TIME.as_secs()));
    tokio::time::timeout(CONNECT_TIME, work).await.map_err(late)?
}

async fn send(
    target: &CdpTarget,
    request: hyper::http::request::Builder,
) -> Result<Response<hyper::body::Incoming>, ApiError> {
    let stream = TcpStream::connect(target.address).await.map_err(unavailable)?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(unavailable)?;
    tokio::spawn(connection.with_upgrades());
    let request =
        request.header(HOST, target.address.to_string()).body(Empty::<Bytes>::new()).map_err(|_| {
            ApiError::new(ErrorCode::Internal, "the address of the session's browser is not valid")
        })?;
    sender.send_request(request).await.map_err(unavailable)
}

/// The same handshake with the browser: its connection, and its answer to the client's key.
pub(super) async fn connect(
    target: &CdpTarget,
    handshake: &Handshake,
) -> Result<(Upgraded, HeaderValue), ApiError> {
    in_time(async {
        let request = Request::get(&target.path)
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", &handshake.key);
        let response = send(target, request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(unavailable(format!("it refused the connection with {}", response.status())));
        }
        let accept = response.headers().get("sec-websocket-accept").cloned();
        let accept = accept.ok_or_else(|| unavailable("its handshake is not complete"))?;
        let upgraded = hyper::upgrade::on(response).await.map_err(unavailable)?;
        Ok((upgraded, accept))
    })
    .await
}

/// The browser's `/json/version`.
pub(super) async fn version(target: &CdpTarget) -> Result<Map<String, Value>, ApiError> {
    in_time(async {
        // The first part of the path is the clone's secret.
        let secret = target.path.split('/').nth(1).unwrap_or_default();
        let response = send(target, Request::get(format!("/{secret}/json/version"))).await?;
        if response.status() != StatusCode::OK {
            return Err(unavailable(format!("it answered with {}", response.status())));
        }
        let body = Limited::new(response.into_body(), LONGEST_VERSION).collect().await;
        let body = body.map_err(|_| unavailable("its answer is not complete"))?.to_bytes();
        serde_json::from_slice(&body).map_err(|_| unavailable("its answer is not JSON"))
    })
    .await
}
