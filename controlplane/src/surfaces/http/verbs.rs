//! Routes of the verbs.

use super::{answers, params};
use crate::access::Caller;
use crate::actions::{Verb, verbs};
use crate::app::CallOptions;
use crate::error::{ApiError, ErrorCode};
use crate::surfaces::Surface;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const MAX_IDEMPOTENCY_KEY: usize = 200;

/// The path and query of the upload, and the path of the download: calls that stream bytes.
pub(super) const FILES: &str = "/v1/sessions/{session_id}/files";
pub(super) const DOWNLOAD: &str = "/v1/sessions/{session_id}/downloads/{guid}";

/// The status of a call that succeeded.
pub(super) fn success(verb: &Verb) -> StatusCode {
    if verb.name == "open_session" { StatusCode::CREATED } else { StatusCode::OK }
}

pub(super) fn filter(method: &Method) -> MethodFilter {
    MethodFilter::try_from(method.clone()).expect("a method of HTTP/1.1")
}

pub(super) fn routes(mut router: Router<Arc<Surface>>) -> Router<Arc<Surface>> {
    for verb in verbs() {
        let handler = move |State(surface): State<Arc<Surface>>, request: Request| async move {
            call(&surface, verb, request).await.unwrap_or_else(IntoResponse::into_response)
        };
        router = router.route(verb.path, on(filter(&verb.method), handler));
    }
    router.route(FILES, on(MethodFilter::POST, put_file)).route(DOWNLOAD, on(MethodFilter::GET, download))
}

pub(crate) fn caller(parts: &Parts) -> Result<Caller, ApiError> {
    let missing = || ApiError::new(ErrorCode::Internal, "a call without a caller");
    parts.extensions.get::<Caller>().cloned().ok_or_else(missing)
}

async fn call(surface: &Surface, verb: &'static Verb, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let caller = caller(&parts)?;
    let session = params::path(&mut parts).await?.remove("session_id");
    let idempotency_key = parts.headers.get(IDEMPOTENCY_KEY).map(idempotency_key).transpose()?;
    let params = params::read(&mut parts, body, verb.params, &surface.app.config.http).await?;
    let options = CallOptions { session, idempotency_key };
    let result = surface.app.call(&caller, verb, options, params).await?;
    Ok(answers::raw(success(verb), result))
}

fn idempotency_key(value: &HeaderValue) -> Result<String, ApiError> {
    match value.to_str() {
        Ok(key) if (1..=MAX_IDEMPOTENCY_KEY).contains(&key.len()) => Ok(key.to_owned()),
        _ => Err(ApiError::new(
            ErrorCode::BadRequest,
            format!("the Idempotency-Key has 1 to {MAX_IDEMPOTENCY_KEY} visible ASCII characters"),
        )),
    }
}

/// The query of an upload.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileName {
    /// The name that the page sees.
    #[schemars(length(min = 1, max = 255))]
    name: String,
}

async fn put_file(State(surface): State<Arc<Surface>>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let caller = caller(&parts)?;
    let mut path = params::path(&mut parts).await?;
    let session = path.remove("session_id").unwrap_or_default();
    let query = params::query::<FileName>(&mut parts).await?;
    let slowest = Duration::from_secs(surface.app.config.http.client_timeout_seconds);
    let content = futures_util::stream::unfold(body.into_data_stream(), move |mut body| async move {
        let chunk = match tokio::time::timeout(slowest, body.next()).await {
            Ok(chunk) => chunk?.map_err(|_| ApiError::new(ErrorCode::BadRequest, "the body is incomplete")),
            Err(_) => Err(ApiError::new(ErrorCode::RequestTimeout, "the body did not arrive in time")),
        };
        Some((chunk, body))
    });
    let result = surface.app.put_file(&caller, &session, &query.name, content.boxed()).await?;
    Ok(answers::raw(StatusCode::OK, result))
}

/// The query of a download.
#[derive(Debug, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DownloadQuery {
    /// Remove the file from the session when all of it was sent.
    delete: bool,
}

async fn download(State(surface): State<Arc<Surface>>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let caller = caller(&parts)?;
    let mut path = params::path(&mut parts).await?;
    let (session, guid) =
        (path.remove("session_id").unwrap_or_default(), path.remove("guid").unwrap_or_default());
    let query = params::query::<DownloadQuery>(&mut parts).await?;
    let file = surface.app.download(&caller, &session, &guid, query.delete).await?;
    // The type and the name come from a site: the bytes are never shown as what the site says they are.
    let mut response =
        answers::bytes(StatusCode::OK, "application/octet-stream", Body::from_stream(file.content));
    let headers = response.headers_mut();
    headers.insert("content-length", file.bytes.into());
    let name: String = file.name.bytes().map(percent).collect();
    let disposition = format!("attachment; filename*=UTF-8''{name}");
    headers.insert("content-disposition", HeaderValue::from_str(&disposition).expect("percent-encoded"));
    Ok(response)
}

fn percent(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}
