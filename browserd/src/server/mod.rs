//! The HTTP/1.1 server: access control, limits and routing.

mod auth;
mod guard;
mod raw;

use crate::api::error::{ApiError, ErrorCode};
use crate::api::openapi;
use crate::api::operations::{
    Arrived, ArrivedBody, BodyKind, Operation, OperationResponse, ResponseBody, operations,
};
use crate::browser::Browser;
use crate::browser::supervisor::Supervisor;
use crate::config::Config;
use crate::secret::Secret;
use crate::transfer::{Files, OutgoingFile};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue,
    RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Time for a client to send its headers, and its body.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The body of a response: bytes, or a file.
pub(super) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Size of hyper's buffer for one connection.
const BUFFER: usize = 64 * 1024;

/// The state that all calls share.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) supervisor: Arc<Supervisor>,
    pub(crate) files: Files,
    operations: Vec<Operation>,
    calls: Semaphore,
    connections: Arc<Semaphore>,
    /// What every call but the probes must present.
    secret: Secret,
    /// The last part of the raw endpoint's path. It identifies this browserd; it is not a secret.
    raw_id: String,
    /// Whether a refused connection was logged. A page could cause any number of them, so only the first is.
    refusal_logged: AtomicBool,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("config", &self.config).finish_non_exhaustive()
    }
}

impl App {
    pub(crate) fn new(config: Arc<Config>, supervisor: Arc<Supervisor>, secret: Secret) -> Arc<Self> {
        Arc::new(Self {
            calls: Semaphore::new(config.max_calls),
            connections: Arc::new(Semaphore::new(config.max_connections)),
            operations: operations(),
            raw_id: uuid::Uuid::new_v4().to_string(),
            refusal_logged: AtomicBool::new(false),
            secret,
            files: Files::new(config.data_dir.join("files"), config.max_files),
            config,
            supervisor,
        })
    }

    /// The browser, or an error if it is not ready.
    pub(crate) fn browser(&self) -> Result<Arc<Browser>, ApiError> {
        self.supervisor.browser().ok_or_else(|| {
            let status = self.supervisor.status();
            let why = status.last_exit.map(|exit| format!(" (last exit: {exit})")).unwrap_or_default();
            ApiError::new(
                ErrorCode::BrowserNotReady,
                format!("the browser is {}{why}", status.phase.as_str()),
            )
        })
    }

    /// The path of raw CDP, without the secret.
    pub(crate) fn raw_path(&self) -> String {
        format!("{}{}", raw::PATH, self.raw_id)
    }

    /// The first part of a path for clients that only take a URL.
    pub(crate) fn secret_path(&self) -> String {
        format!("/{}", self.secret.as_str())
    }

    /// The path that a call asks for, without the secret. `None`: the path needs the secret and the call does not present it.
    fn allowed_path<B>(&self, request: &Request<B>) -> Option<String> {
        let path = request.uri().path();
        let authenticated = auth::authenticated_path(&self.secret, request.headers(), path);
        let public = || self.operations.iter().any(|operation| operation.public && operation.path == path);
        authenticated.or_else(|| public().then_some(path)).map(str::to_owned)
    }

    pub(crate) fn running_calls(&self) -> usize {
        self.config.max_calls - self.calls.available_permits()
    }
}

/// Accepts connections.
pub(crate) async fn serve(app: Arc<App>, listener: TcpListener) {
    loop {
        let permit = app.connections.clone().acquire_owned().await.expect("never closed");
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // For example, no free descriptor: retry after a pause.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Without a local address the peer has disconnected already.
        let Ok(local) = stream.local_addr() else { continue };
        if let Some(why) = guard::refuse_peer(&app.config, peer, local) {
            if !app.refusal_logged.swap(true, Ordering::Relaxed) {
                tracing::warn!(peer = %peer.ip(), why, "refused a connection; further ones are not logged");
            }
            continue;
        }
        let app = app.clone();
        tokio::spawn(async move {
            connection(app, stream, peer).await;
            drop(permit);
        });
    }
}

async fn connection(app: Arc<App>, stream: TcpStream, peer: SocketAddr) {
    // Without Nagle's algorithm, small responses are sent at once.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(respond(app, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

async fn respond(app: Arc<App>, request: Request<Incoming>) -> Response<Body> {
    let started = Instant::now();
    let method = request.method().clone();
    let path = app.allowed_path(&request);
    let routed = match &path {
        Some(path) => route(&app, path, request).await,
        None => guard::check_request(&app.config, &request).and_then(|()| {
            Err(ApiError::new(ErrorCode::Unauthorized, "the call does not present this browserd's secret"))
        }),
    };
    // A path that does not contain this browserd's secret may contain another one's.
    let path = path.as_deref().unwrap_or("(not shown)");
    let response = routed.unwrap_or_else(|error| {
        if error.code == ErrorCode::Internal {
            tracing::error!(%method, path, %error, "internal error");
        }
        failure(&error)
    });
    // Body and query are never logged: they may contain cookies, typed text and URLs.
    tracing::debug!(
        %method,
        path,
        status = response.status().as_u16(),
        microseconds = started.elapsed().as_micros() as u64,
        "call"
    );
    response
}

async fn route(app: &Arc<App>, path: &str, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    guard::check_request(&app.config, &request)?;
    match path {
        "/openapi.json" if request.method() == Method::GET => {
            let json = serde_json::to_vec(&openapi::document())
                .map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))?;
            return Ok(json_response(StatusCode::OK, json));
        }
        _ if path == raw::DISCOVERY
            || path.strip_prefix(raw::DISCOVERY).is_some_and(|rest| rest.starts_with('/')) =>
        {
            return raw::discover(app, path, &request).await;
        }
        _ if path.starts_with(raw::PATH) || path.starts_with(raw::PAGE_PATH) => {
            return raw::upgrade(app, path, request).await;
        }
        _ => {}
    }
    let candidates = app.operations.iter().filter(|operation| operation.matches(path).is_some());
    let operation = candidates.clone().find(|operation| operation.method == request.method());
    let Some(operation) = operation else {
        let methods: Vec<&str> = candidates.map(|operation| operation.method.as_str()).collect();
        if methods.is_empty() {
            return Err(ApiError::new(ErrorCode::NotFound, "the path does not exist"));
        }
        let message = format!("this path supports {}", methods.join(", "));
        let mut response = failure(&ApiError::new(ErrorCode::MethodNotAllowed, message));
        if let Ok(value) = HeaderValue::from_str(&methods.join(", ")) {
            response.headers_mut().insert(ALLOW, value);
        }
        return Ok(response);
    };
    let _call = match operation.counted.then(|| app.calls.try_acquire()) {
        None => None,
        Some(Ok(permit)) => Some(permit),
        Some(Err(_)) => {
            let message = format!("the limit of {} concurrent calls is reached", app.config.max_calls);
            return Err(ApiError::new(ErrorCode::TooManyCalls, message));
        }
    };
    let part = operation.matches(path).flatten().map(str::to_owned);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = match operation.body {
        BodyKind::Bytes => {
            guard::check_type(&request, "application/octet-stream")?;
            ArrivedBody::Bytes(request.into_body())
        }
        BodyKind::None | BodyKind::Json => {
            guard::check_type(&request, "application/json")?;
            ArrivedBody::Json(read_body(app, request).await?)
        }
    };
    let arrived = Arrived { app: app.clone(), part, query, body };
    let OperationResponse { status, body } = (operation.run)(arrived).await?;
    let json = match body {
        ResponseBody::Json(json) => json,
        ResponseBody::File(file) => return file_response(file),
    };
    if json.len() > app.config.max_response {
        let message =
            format!("the response has {} bytes; the limit is {}", json.len(), app.config.max_response);
        return Err(ApiError::new(ErrorCode::ResponseTooLarge, message));
    }
    Ok(json_response(status, json))
}

async fn read_body(app: &App, request: Request<Incoming>) -> Result<Vec<u8>, ApiError> {
    let body = Limited::new(request.into_body(), app.config.max_request).collect();
    match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes().into()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::new(
            ErrorCode::RequestTooLarge,
            format!("the body is larger than the limit of {} bytes", app.config.max_request),
        )),
        Ok(Err(_)) => Err(ApiError::new(ErrorCode::BadRequest, "the body is incomplete")),
        Err(_) => Err(ApiError::new(ErrorCode::RequestTimeout, "the body did not arrive in time")),
    }
}

fn json_response(status: StatusCode, json: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(whole(json));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A browser that gets this response must not interpret it as a page or script.
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

fn file_response(file: OutgoingFile) -> Result<Response<Body>, ApiError> {
    let text = |value: &str| {
        HeaderValue::from_str(value).map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))
    };
    let (kind, disposition) = (text(&file.mime_type)?, text(&file.disposition())?);
    let length = HeaderValue::from(file.bytes);
    let mut response = Response::new(file.into_body().boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONTENT_DISPOSITION, disposition);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    Ok(response)
}

fn failure(error: &ApiError) -> Response<Body> {
    let json = serde_json::to_vec(&error.body()).unwrap_or_default();
    let mut response = json_response(error.code.status(), json);
    if matches!(error.code.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if error.code == ErrorCode::Unauthorized {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        // Whoever guesses needs a connection for each guess.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
