//! What every request passes: framing, the web page check, authentication, the rate of calls, the log line.

use super::answers::Failed;
use super::serve::Connection;
use crate::access::{Access, Caller};
use crate::error::{ApiError, ErrorCode};
use crate::surfaces::Surface;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, ORIGIN, TRANSFER_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// Paths that need no credential. An address of the CDP relay is a credential itself.
const PUBLIC: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/openapi.json"];
const ADDRESSES: &str = "/cdp/";

/// The name of a request in the log, also in the answer's header.
const REQUEST_ID: &str = "x-request-id";

pub(super) async fn guard(State(surface): State<Arc<Surface>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = uuid::Uuid::new_v4().simple().to_string();
    let (mut parts, body) = request.into_parts();
    let method = parts.method.clone();
    // The pattern, not the path: paths contain session ids and addresses.
    let route = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or("(none)").to_owned();
    // hyper removes a Content-Length beside a Transfer-Encoding. Whatever comes after such a request is not read as another one.
    let last = parts.headers.contains_key(TRANSFER_ENCODING);
    let mut caller = None;
    let outcome = match admit(&surface, &parts).await {
        Ok(Some(who)) => {
            caller = Some(who.name());
            parts.extensions.insert(who);
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    let mut response = match outcome {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(error) => {
            let mut response = error.into_response();
            // The body was not read, and whoever guesses needs a connection for each guess.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response
        }
    };
    if last {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let error = response.extensions().get::<Failed>().map(|failed| failed.0);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    surface.metrics.request(&route, response.status(), error, started.elapsed());
    // Headers, query and body are never logged: they may contain keys, typed text and URLs.
    tracing::debug!(
        request = id,
        %method,
        route,
        caller = caller.as_deref().unwrap_or("-"),
        status = response.status().as_u16(),
        error = error.unwrap_or("-"),
        microseconds = started.elapsed().as_micros() as u64,
        "request"
    );
    response
}

/// The caller, or none for a public path.
async fn admit(surface: &Surface, request: &Parts) -> Result<Option<Caller>, ApiError> {
    let connection = request
        .extensions
        .get::<Connection>()
        .ok_or_else(|| ApiError::new(ErrorCode::Internal, "a request without a connection"))?;
    check_framing(request)?;
    check_not_a_page(&request.headers, connection, &surface.app.config.http.allowed_hosts)?;
    if surface.stopping() {
        return Err(ApiError::new(ErrorCode::ShuttingDown, "the service is stopping")
            .retry_after(std::time::Duration::from_secs(2)));
    }
    let path = request.uri.path();
    if PUBLIC.contains(&path) || path.starts_with(ADDRESSES) {
        return Ok(None);
    }
    let caller = authenticate(&surface.access, &request.headers, connection).await?;
    surface.access.admit(&caller)?;
    Ok(Some(caller))
}

/// Refuses what a proxy in front of the service could read differently.
fn check_framing(request: &Parts) -> Result<(), ApiError> {
    let headers = &request.headers;
    let bad = |what: &str| Err(ApiError::new(ErrorCode::BadRequest, what));
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    let encodings = headers.get_all(TRANSFER_ENCODING).iter().count();
    if lengths > 1 || encodings > 1 {
        return bad("the request has a repeated Content-Length or Transfer-Encoding");
    }
    if encodings > 0 && request.version == Version::HTTP_10 {
        return bad("a request of HTTP/1.0 has no Transfer-Encoding");
    }
    if request.uri.authority().is_some() {
        return bad("the request line has an absolute URL: this is not a proxy");
    }
    Ok(())
}

/// Refuses requests that may come from a web page: by its headers, or by a name that was bound to this address.
fn check_not_a_page(
    headers: &HeaderMap,
    connection: &Connection,
    allowed: &[String],
) -> Result<(), ApiError> {
    let forbidden = |what: &str| Err(ApiError::new(ErrorCode::ForbiddenOrigin, what));
    // Not Sec-Fetch-Mode: Node's fetch sends it too.
    if headers.contains_key(ORIGIN)
        || headers.contains_key("sec-fetch-site")
        || headers.contains_key("sec-fetch-dest")
    {
        return forbidden("the request comes from a web page");
    }
    // A web page cannot reach a Unix socket.
    if connection.is_local_socket() {
        return Ok(());
    }
    let mut hosts = headers.get_all(HOST).iter();
    let (host, more) = (hosts.next().and_then(|host| host.to_str().ok()), hosts.next());
    if more.is_some() || !host.is_some_and(|host| host_allowed(host, allowed)) {
        return forbidden("the Host header is missing or not allowed (http.allowed_hosts)");
    }
    Ok(())
}

/// IP addresses are always allowed, names only if configured: DNS rebinding needs a name.
fn host_allowed(host: &str, allowed: &[String]) -> bool {
    if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        Some(_) => host,
        None => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    bare.is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok())
        || name.eq_ignore_ascii_case("localhost")
        || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

/// A key counts before the peer's user: whoever sends one wants to act with it.
async fn authenticate(
    access: &Access,
    headers: &HeaderMap,
    connection: &Connection,
) -> Result<Caller, ApiError> {
    if headers.contains_key(AUTHORIZATION) {
        let token = bearer(headers).ok_or_else(|| {
            ApiError::new(ErrorCode::Unauthorized, "the Authorization header is not one Bearer key")
        })?;
        return access.bearer(token).await;
    }
    connection
        .caller()
        .cloned()
        .ok_or_else(|| ApiError::new(ErrorCode::Unauthorized, "the request has no Authorization header"))
}

/// The token of the only Authorization header, if its scheme is Bearer.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?, all.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case("Bearer ").then_some(token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_dns_can_rebind_need_the_configuration() {
        let allowed = ["browsers.example.com".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:9480",
            "10.1.2.3:80",
            "[::1]:9480",
            "[::1]",
            "localhost",
            "LOCALHOST:9480",
            "browsers.example.com",
            "Browsers.Example.com:443",
        ] {
            assert!(host_allowed(host, &allowed), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9480",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "[::1",
            "localhost:x",
            "x@127.0.0.1",
        ] {
            assert!(!host_allowed(host, &allowed), "{host}");
        }
    }

    #[test]
    fn one_bearer_header_has_a_token() {
        let token = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(token(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(token(&["bearer abc"]).as_deref(), Some("abc"));
        for refused in [&["Basic abc"][..], &["Bearer"], &["Bearer a", "Bearer b"], &[]] {
            assert_eq!(token(refused), None, "{refused:?}");
        }
    }
}
