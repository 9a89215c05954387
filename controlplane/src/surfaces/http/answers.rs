//! Answers: JSON that nothing stores and no browser interprets, and errors with their headers.

use crate::error::{ApiError, ErrorCode};
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;

/// Bytes of a media type. A browser that gets them must not interpret them as a page or script.
pub(super) fn bytes(status: StatusCode, media_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// A JSON text.
pub(super) fn raw(status: StatusCode, json: Box<RawValue>) -> Response {
    bytes(status, "application/json", Box::<str>::from(json).into_string())
}

/// A value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => bytes(status, "application/json", body),
        Err(error) => ApiError::new(ErrorCode::Internal, error.to_string()).into_response(),
    }
}

/// Who was refused why, for logs and metrics. The answer carries it as an extension.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed(pub(super) &'static str);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.is(ErrorCode::Internal) {
            tracing::error!(error = %self, "internal error");
        }
        let mut response = json(self.status(), &self.body());
        response.extensions_mut().insert(Failed(self.code()));
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.is(ErrorCode::Unauthorized) {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.is(ErrorCode::UpgradeRequired) {
            headers.insert("upgrade", HeaderValue::from_static("websocket"));
        }
        response
    }
}
