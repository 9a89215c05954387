//! Connections to the browserd of a clone.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;

/// A clone is on this host or near it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// browserd's own limit is lower; a clone that was taken over by a page does not fill our memory.
pub(crate) const MAX_ANSWER: usize = 96 << 20;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a request.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is in memory.
pub(crate) fn whole(bytes: Bytes) -> RequestBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body that arrives in parts.
pub(crate) fn parts<E: Into<BoxError> + 'static>(
    stream: BoxStream<'static, Result<Bytes, E>>,
) -> RequestBody {
    BodyExt::boxed_unsync(StreamBody::new(stream.map(|part| part.map(Frame::data).map_err(Into::into))))
}

/// Why browserd did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// It does not accept connections.
    #[error("it does not accept connections: {0}")]
    Connect(std::io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(hyper::Error),
    /// The answer is not HTTP, or longer than anything that browserd sends.
    #[error("its answer is not valid: {0}")]
    Invalid(String),
}

/// The browserd of one clone. Every call has a connection of its own while it runs; idle ones are kept.
#[derive(Debug)]
pub(crate) struct Browser {
    pub(crate) address: SocketAddr,
    authorization: HeaderValue,
    host: HeaderValue,
    idle: Mutex<Vec<SendRequest<RequestBody>>>,
    most_idle: usize,
}

impl Browser {
    /// None if the endpoint is not `http://ADDRESS:PORT`, or the secret cannot be sent.
    pub(crate) fn new(endpoint: &str, secret: &str, most_idle: usize) -> Option<Self> {
        let address: SocketAddr = endpoint.strip_prefix("http://")?.trim_end_matches('/').parse().ok()?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {secret}")).ok()?;
        authorization.set_sensitive(true);
        let host = HeaderValue::from_str(&address.to_string()).ok()?;
        Some(Self { address, authorization, host, idle: Mutex::default(), most_idle })
    }

    /// Send a request. Dropping the future, or the answer before its end, ends the connection, which cancels the call.
    pub(crate) async fn send(
        self: &Arc<Self>,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: RequestBody,
    ) -> Result<Answer, NoAnswer> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.host.clone())
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static(content_type))
            .body(body)
            .map_err(|error| NoAnswer::Invalid(error.to_string()))?;
        while let Some(mut connection) = self.kept() {
            if connection.ready().await.is_err() {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(response) => return Ok(Answer { response, connection, home: self.clone() }),
                // browserd closed the idle connection before the request was sent, so sending it again is safe.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(NoAnswer::Broken(error.into_error())),
                },
            }
        }
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(self.address))
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(NoAnswer::Connect)?;
        let _ = stream.set_nodelay(true);
        let (mut connection, driver) = handshake(TokioIo::new(stream)).await.map_err(NoAnswer::Broken)?;
        tokio::spawn(driver);
        let response = connection.send_request(request).await.map_err(NoAnswer::Broken)?;
        Ok(Answer { response, connection, home: self.clone() })
    }

    fn kept(&self) -> Option<SendRequest<RequestBody>> {
        self.idle.lock().expect("no panic while held").pop()
    }

    fn keep(&self, connection: SendRequest<RequestBody>) {
        let mut idle = self.idle.lock().expect("no panic while held");
        if idle.len() < self.most_idle && !connection.is_closed() {
            idle.push(connection);
        }
    }
}

/// An answer whose body has not been read yet.
#[derive(Debug)]
pub(crate) struct Answer {
    response: Response<Incoming>,
    connection: SendRequest<RequestBody>,
    home: Arc<Browser>,
}

impl Answer {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// The size that browserd announced.
    pub(crate) fn length(&self) -> Option<u64> {
        self.response.body().size_hint().exact()
    }

    /// All of the body. Its bytes are copied once, from the connection's buffer.
    pub(crate) async fn read(self) -> Result<Vec<u8>, NoAnswer> {
        let Self { response, connection, home } = self;
        let mut body = response.into_body();
        let expected = body.size_hint().exact().map_or(4096, |size| size.min(MAX_ANSWER as u64) as usize);
        // Room for the path of a recorded picture.
        let mut bytes = Vec::with_capacity(expected + 256);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(NoAnswer::Broken)?.into_data() else { continue };
            if bytes.len() + data.len() > MAX_ANSWER {
                return Err(NoAnswer::Invalid(format!("it is longer than {MAX_ANSWER} bytes")));
            }
            bytes.extend_from_slice(&data);
        }
        home.keep(connection);
        Ok(bytes)
    }

    /// The body as it arrives.
    pub(crate) fn stream(self) -> BoxStream<'static, Result<Bytes, NoAnswer>> {
        let Self { response, connection, home } = self;
        let state = (response.into_body(), Some((connection, home)));
        futures_util::stream::unfold(state, |(mut body, mut used)| async move {
            loop {
                match body.frame().await {
                    None => {
                        if let Some((connection, home)) = used.take() {
                            home.keep(connection);
                        }
                        return None;
                    }
                    Some(Err(error)) => {
                        used = None;
                        return Some((Err(NoAnswer::Broken(error)), (body, used)));
                    }
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data() {
                            return Some((Ok(data), (body, used)));
                        }
                    }
                }
            }
        })
        .boxed()
    }
}
