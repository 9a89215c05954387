//! HTTP: routes from the table of verbs and the table of the service's own calls.

mod admin;
mod answers;
mod guard;
pub mod openapi;
mod params;
mod probes;
pub mod serve;
mod verbs;

pub use admin::{ServiceCall, service_calls};
pub use serve::Connection;

pub(super) use answers::json;
pub(super) use params::path;
pub(super) use verbs::caller;

use super::Surface;
use crate::error::{ApiError, ErrorCode};
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use std::sync::Arc;
use std::time::Duration;
use tower_http::timeout::TimeoutBody;

/// Every route. Requests need a [`Connection`] as an extension: it says who the peer is. Handlers find the authenticated
/// [`Caller`](crate::access::Caller) as an extension.
pub fn router(surface: Arc<Surface>) -> Router {
    let mut router = Router::new()
        .route("/healthz", get(probes::healthz))
        .route("/readyz", get(probes::readyz))
        .route("/metrics", get(probes::metrics))
        .route("/openapi.json", get(openapi::serve))
        .route("/v1/sessions/{session_id}/cdp", get(super::relay::by_session))
        .route("/cdp/{ticket}", get(super::relay::by_ticket))
        .route("/cdp/{ticket}/", get(super::relay::by_ticket))
        .route("/cdp/{ticket}/json/version", get(super::relay::version))
        .route("/cdp/{ticket}/json/version/", get(super::relay::version));
    let slowest = Duration::from_secs(surface.app.config.http.client_timeout_seconds);
    // rmcp reads bodies without a deadline.
    let mcp = super::mcp::service(Arc::new(surface.app.clone())).layer(middleware::map_request(
        move |request: Request| async move { request.map(|body| Body::new(TimeoutBody::new(slowest, body))) },
    ));
    router = verbs::routes(router);
    router = admin::routes(router);
    router
        .with_state(surface.clone())
        .merge(mcp)
        .fallback(async || ApiError::new(ErrorCode::NotFound, "the path does not exist").into_response())
        .method_not_allowed_fallback(async || -> Response {
            ApiError::new(ErrorCode::MethodNotAllowed, "the path does not support this method")
                .into_response()
        })
        .layer(middleware::from_fn_with_state(surface, guard::guard))
}
