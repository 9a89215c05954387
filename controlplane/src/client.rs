//! A client of the service's HTTP API, over its Unix socket or over HTTP with a key.
//!
//! Each request has a connection of its own. Connecting to a socket of the same machine costs less than the bookkeeping of
//! kept connections would, and dropping a call closes its connection, which is how the service learns that it was cancelled.

use crate::actions::Verb;
use crate::error::{ErrorBody, ErrorDetail};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Where the service is.
#[derive(Clone)]
enum Address {
    Socket(PathBuf),
    Tcp { authority: String, prefix: String, key: Option<HeaderValue> },
}

/// The key is not shown.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(path) => path.display().fmt(f),
            Address::Tcp { authority, prefix, .. } => write!(f, "http://{authority}{prefix}"),
        }
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service refused the call or failed.
    #[error("{}: {}", .0.code, .0.message)]
    Api(ErrorDetail),
    /// The service cannot be reached.
    #[error("cannot reach the control plane at {address}: {source}")]
    Connect {
        /// The address.
        address: String,
        /// What failed.
        source: std::io::Error,
    },
    /// The connection ended before the answer.
    #[error("the connection to the control plane ended before the answer: {0}")]
    Closed(String),
    /// No answer came in time.
    #[error("the control plane did not answer within {0:?}")]
    Timeout(Duration),
    /// The answer is not one of this API.
    #[error("the answer is not one of the control plane: {0}")]
    Protocol(String),
    /// The address or the key cannot be used.
    #[error("{0}")]
    Address(String),
}

/// A client. It has no connection until it is used.
#[derive(Debug, Clone)]
pub struct Client {
    address: Address,
    timeout: Option<Duration>,
}

impl Client {
    /// A client over the Unix socket. The login is the process's user.
    pub fn at_socket(path: impl Into<PathBuf>) -> Self {
        Self { address: Address::Socket(path.into()), timeout: None }
    }

    /// A client over HTTP. `url` is `http://HOST:PORT`; the key is sent with each request.
    pub fn at_url(url: &str, key: Option<&str>) -> Result<Self, ClientError> {
        let wrong = |why: &str| ClientError::Address(format!("{url}: {why}"));
        let uri: Uri = url.parse().map_err(|_| wrong("not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong(
                "only http:// is spoken; from another machine, forward the Unix socket or the port by ssh -L",
            ));
        }
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(|| wrong("write http://HOST:PORT"))?.to_string();
        let prefix = uri.path().trim_end_matches('/').to_owned();
        let key = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.trim()))
                .map_err(|_| ClientError::Address("the key has characters that no key has".into()))?;
            value.set_sensitive(true);
            Ok(value)
        });
        Ok(Self { address: Address::Tcp { authority, prefix, key: key.transpose()? }, timeout: None })
    }

    /// The same client with a limit for the time until the answer is complete.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// The path of the socket, if it uses one.
    pub fn socket(&self) -> Option<&Path> {
        match &self.address {
            Address::Socket(path) => Some(path),
            Address::Tcp { .. } => None,
        }
    }

    /// The address as people write it.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Carry out a verb. The answer is the JSON of the verb's result.
    pub async fn call(
        &self,
        verb: &Verb,
        session: Option<&str>,
        params: &RawValue,
    ) -> Result<Box<RawValue>, ClientError> {
        let (path, body) = route(verb, session, params)?;
        self.json(verb.method.clone(), &path, body).await
    }

    /// GET a JSON document.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(Method::GET, path, None).await
    }

    /// A request with a JSON answer.
    pub async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<T, ClientError> {
        let bytes = self.bytes(method, path, body).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    /// A request; the answer's body.
    pub async fn bytes(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Bytes, ClientError> {
        let work = async {
            let answer = self.send(method, path, body).await?;
            let status = answer.status();
            let bytes = answer.into_body().collect().await.map_err(closed)?.to_bytes();
            if status.is_success() { Ok(bytes) } else { Err(refusal(status, &bytes)) }
        };
        match self.timeout {
            None => work.await,
            Some(limit) => {
                tokio::time::timeout(limit, work).await.unwrap_or(Err(ClientError::Timeout(limit)))
            }
        }
    }

    /// GET a long document, which arrives in parts.
    pub async fn stream(&self, path: &str) -> Result<Parts, ClientError> {
        let answer = self.send(Method::GET, path, None).await?;
        let status = answer.status();
        if status.is_success() {
            return Ok(Parts(answer.into_body()));
        }
        Err(refusal(status, &answer.into_body().collect().await.map_err(closed)?.to_bytes()))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Response<Incoming>, ClientError> {
        let cannot = |source| ClientError::Connect { address: self.address.to_string(), source };
        match &self.address {
            Address::Socket(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(cannot)?;
                exchange(stream, request(method, "localhost", path.to_owned(), None, body)?).await
            }
            Address::Tcp { authority, prefix, key } => {
                let with_port = if authority.rfind(':') > authority.rfind(']') {
                    authority.clone()
                } else {
                    format!("{authority}:80")
                };
                let stream = TcpStream::connect(with_port).await.map_err(cannot)?;
                let _ = stream.set_nodelay(true);
                exchange(stream, request(method, authority, format!("{prefix}{path}"), key.clone(), body)?)
                    .await
            }
        }
    }
}

/// A document that arrives in parts.
#[derive(Debug)]
pub struct Parts(Incoming);

impl Parts {
    /// The next part; `None` at the end of the document.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.0.frame().await {
            if let Ok(bytes) = frame.map_err(closed)?.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

fn request(
    method: Method,
    host: &str,
    path: String,
    key: Option<HeaderValue>,
    body: Option<Bytes>,
) -> Result<Request<Full<Bytes>>, ClientError> {
    let mut headers = HeaderMap::new();
    let host = HeaderValue::from_str(host).map_err(|error| ClientError::Address(error.to_string()))?;
    headers.insert(header::HOST, host);
    if let Some(key) = key {
        headers.insert(header::AUTHORIZATION, key);
    }
    if body.is_some() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .body(Full::new(body.unwrap_or_default()))
        .map_err(|error| ClientError::Address(error.to_string()))?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Send one request on a new connection. Dropping the answer or this future closes the connection.
async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(closed)?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(closed)
}

fn closed(error: impl std::error::Error) -> ClientError {
    let mut text = error.to_string();
    if let Some(source) = error.source() {
        text.push_str(&format!(": {source}"));
    }
    ClientError::Closed(text)
}

fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => ClientError::Api(body.error),
        Err(_) => {
            let start: String = String::from_utf8_lossy(body).chars().take(200).collect();
            ClientError::Protocol(format!("status {status} without an error body: {start}"))
        }
    }
}

/// The path and the body of a verb's request.
fn route(
    verb: &Verb,
    session: Option<&str>,
    params: &RawValue,
) -> Result<(String, Option<Bytes>), ClientError> {
    let mut path = verb.path.to_owned();
    if let Some(session) = session {
        path = path.replace("{session_id}", &encode(session));
    }
    if verb.method == Method::POST {
        return Ok((path, Some(Bytes::copy_from_slice(params.get().as_bytes()))));
    }
    let params: serde_json::Map<String, Value> =
        serde_json::from_str(params.get()).map_err(|error| ClientError::Address(error.to_string()))?;
    let mut query = String::new();
    for (name, value) in params {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text,
            other => other.to_string(),
        };
        let placeholder = format!("{{{name}}}");
        if path.contains(&placeholder) {
            path = path.replace(&placeholder, &encode(&text));
        } else {
            let separator = if query.is_empty() { '?' } else { '&' };
            query.push_str(&format!("{separator}{}={}", encode(&name), encode(&text)));
        }
    }
    Ok((path + &query, None))
}

/// Percent-encode one component of a path or a query.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    // These two are not names: they would leave the folder.
    match out.as_str() {
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        _ => out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_used_are_refused() {
        for bad in ["", "localhost:1", "https://a", "ftp://a", "http://", "http://user@host:1"] {
            assert!(matches!(Client::at_url(bad, None), Err(ClientError::Address(_))), "{bad}");
        }
        assert!(matches!(Client::at_url("http://a", Some("a\nb")), Err(ClientError::Address(_))));
        let client = Client::at_url("http://[::1]:9480/browser/", Some("cp_secret")).expect("valid");
        assert_eq!(client.address(), "http://[::1]:9480/browser");
        assert!(!format!("{client:?}").contains("secret"));
    }

    #[test]
    fn a_component_cannot_leave_its_place() {
        assert_eq!(encode("a/b?c#d e%ä"), "a%2Fb%3Fc%23d%20e%25%C3%A4");
        assert_eq!([encode("."), encode("..")], ["%2E", "%2E%2E"]);
    }
}
