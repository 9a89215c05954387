//! Health, readiness and metrics.

use super::answers;
use super::serve::Connection;
use crate::error::{ApiError, ErrorCode};
use crate::surfaces::Surface;
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;

/// The process serves requests.
pub(super) async fn healthz() -> Response {
    answers::json(StatusCode::OK, &json!({ "status": "ok" }))
}

/// Sessions can be opened: the store can be written, the audit log too, and hostd answers.
pub(super) async fn readyz(State(surface): State<Arc<Surface>>) -> Response {
    let checks = surface.checks().await;
    let ready = checks.values().all(|state| state == "ok");
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // What is wrong is told to operators by /v1/status: these probes need no credential.
    let words = checks.into_iter().map(|(part, state)| (part, if state == "ok" { "ok" } else { "failed" }));
    let words: serde_json::Map<_, _> = words.map(|(part, word)| (part.to_owned(), word.into())).collect();
    answers::json(status, &json!({ "status": if ready { "ready" } else { "not_ready" }, "checks": words }))
}

/// Prometheus metrics, for this host only.
pub(super) async fn metrics(
    State(surface): State<Arc<Surface>>,
    Extension(connection): Extension<Connection>,
) -> Response {
    if !connection.is_local() {
        return ApiError::new(ErrorCode::Forbidden, "/metrics is for clients on this host")
            .hint("Scrape it through the loopback address.")
            .into_response();
    }
    let text = surface.metrics.text(&surface);
    answers::bytes(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
}
