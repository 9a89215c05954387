//! The CDP relay: raw CDP of a session for Playwright, Puppeteer and others.
//!
//! After the WebSocket handshake bytes are copied as they are; the relay reads no frame. Clients authenticate with a header,
//! or with an unguessable address of one session, for clients that can only take a URL. A connection ends when its
//! session, its key or its address ends.

mod addresses;
mod splice;
mod upstream;

pub use addresses::{AskForAddress, CdpAddress, Relays};

use super::Surface;
use super::http::serve::{Connection, Held};
use super::http::{caller, path};
use crate::access::{Caller, Scope};
use crate::app::CdpTarget;
use crate::error::{ApiError, ErrorCode};
use crate::time::Millis;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, HeaderValue, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use std::sync::Arc;

/// `GET /v1/sessions/{session_id}/cdp`: raw CDP by the caller's credential.
pub(super) async fn by_session(
    State(surface): State<Arc<Surface>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let caller = caller(&parts)?;
    let session = path(&mut parts).await?.remove("session_id").unwrap_or_default();
    relay(surface, caller, &session, None, Request::from_parts(parts, body)).await
}

/// `GET /cdp/{ticket}`: raw CDP by an address.
pub(super) async fn by_ticket(
    State(surface): State<Arc<Surface>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let ticket = path(&mut parts).await?.remove("ticket").unwrap_or_default();
    let (caller, session, expires_at) = surface.relays.redeem(&surface, &ticket).await?;
    relay(surface, caller, session.as_str(), Some(expires_at), Request::from_parts(parts, body)).await
}

/// `GET /cdp/{ticket}/json/version`: where the WebSocket is, for clients that are given an HTTP address.
pub(super) async fn version(
    State(surface): State<Arc<Surface>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let ticket = path(&mut parts).await?.remove("ticket").unwrap_or_default();
    let (caller, session, _) = surface.relays.redeem(&surface, &ticket).await?;
    let local = parts.extensions.get::<Connection>().is_none_or(Connection::is_local_socket);
    let host = parts.headers.get("host").filter(|_| !local).and_then(|host| host.to_str().ok());
    let socket = addresses::base(&surface, host)?.replacen("http", "ws", 1) + &format!("/cdp/{ticket}");
    let target = surface.app.cdp(&caller, session.as_str()).await?;
    let mut answer = upstream::version(&target).await?;
    answer.insert("webSocketDebuggerUrl".into(), socket.into());
    Ok(super::http::json(StatusCode::OK, &answer))
}

/// Start a relay: the answer is the end of the client's handshake.
async fn relay(
    surface: Arc<Surface>,
    caller: Caller,
    session: &str,
    address_ends: Option<Millis>,
    mut request: Request,
) -> Result<Response, ApiError> {
    caller.require(Scope::Cdp)?;
    let handshake = Handshake::of(request.headers())?;
    // Before anything is asked, so that a revocation in between is seen.
    let revocations = surface.relays.revocations();
    let key_ends = surface.access.standing(&caller).await?;
    let target = surface.app.cdp(&caller, session).await?;
    let (upstream, accept) = upstream::connect(&target, &handshake).await?;
    let upgrade = hyper::upgrade::on(&mut request);
    let held = request.extensions().get::<Held>().cloned();
    let ends = [address_ends, key_ends].into_iter().flatten().min();
    let life = Life { caller, session: session.to_owned(), ends, revocations, target };
    let tasks = surface.relays.tasks();
    tasks.spawn(async move {
        let _held = held;
        splice::run(surface, upgrade, upstream, life).await;
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert("sec-websocket-accept", accept);
    Ok(response)
}

/// What ends a connection from outside.
struct Life {
    caller: Caller,
    session: String,
    /// When its key or its address expires.
    ends: Option<Millis>,
    revocations: addresses::Revocations,
    target: CdpTarget,
}

/// The client's half of a WebSocket handshake.
struct Handshake {
    key: HeaderValue,
}

impl Handshake {
    fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let has = |name: &str, word: &str| {
            headers
                .get_all(name)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word)))
        };
        let refused = |what: &str| Err(ApiError::new(ErrorCode::UpgradeRequired, what));
        if !has("connection", "upgrade") || !has("upgrade", "websocket") {
            return refused("this path is a WebSocket");
        }
        if !has("sec-websocket-version", "13") {
            return refused("the WebSocket version is not 13");
        }
        let mut keys = headers.get_all("sec-websocket-key").iter();
        match (keys.next(), keys.next()) {
            (Some(key), None) if !key.is_empty() => Ok(Self { key: key.clone() }),
            _ => refused("the WebSocket handshake has no Sec-WebSocket-Key"),
        }
    }
}
