//! A small typed client of browserd's API.
//!
//! One connection, kept open and made anew when it broke. Calls of one client run one after the other;
//! make several clients for several calls at once.

use crate::api::error::{ErrorBody, ErrorDetail};
use crate::api::types::*;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// browserd answered with an error.
    #[error("{}: {} ({})", .0.code.as_str(), .0.message, .0.hint)]
    Api(ErrorDetail),
    /// browserd cannot be reached, or the connection broke.
    #[error("browserd at {address}: {message}")]
    Connection {
        /// Where it should be.
        address: SocketAddr,
        /// What failed.
        message: String,
    },
    /// The answer is not what this client understands.
    #[error("browserd's answer is not understood: {0}")]
    Answer(String),
}

/// A connection to one browserd.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ty) -> $answer:ty = $path:literal;)*) => {
        impl Client {$(
            $(#[$doc])*
            pub async fn $name(&self, request: &$request) -> Result<$answer, ClientError> {
                self.call(Method::POST, $path, Some(request)).await
            }
        )*}
    };
}

calls! {
    /// Open a tab.
    open_tab(NewTab) -> TabInfo = "/v1/tabs";
    /// Load a URL, or go through the tab's history.
    navigate(Navigate) -> Navigated = "/v1/navigate";
    /// Take a picture.
    screenshot(Screenshot) -> Picture = "/v1/screenshot";
    /// Click at a point or an element.
    click(Click) -> Acted = "/v1/click";
    /// Type text.
    type_text(Type) -> Acted = "/v1/type";
    /// Press a key or a combination.
    press(Press) -> Acted = "/v1/press";
    /// Turn the wheel, or bring an element into view.
    scroll(Scroll) -> Scrolled = "/v1/scroll";
    /// The page as HTML.
    read_dom(ReadDom) -> Dom = "/v1/read_dom";
    /// The page's text.
    text(Text) -> PageText = "/v1/text";
    /// The page's links.
    links(Links) -> PageLinks = "/v1/links";
    /// The accessibility tree with refs.
    snapshot(Snapshot) -> PageSnapshot = "/v1/snapshot";
    /// Evaluate JavaScript in the page.
    evaluate(Evaluate) -> Evaluated = "/v1/evaluate";
    /// Print to PDF.
    pdf(Pdf) -> PdfFile = "/v1/pdf";
    /// How the tab's dialogs are answered.
    dialogs(Dialogs) -> Done = "/v1/dialogs";
    /// Set cookies.
    set_cookies(SetCookies) -> CookiesSet = "/v1/cookies";
}

impl Client {
    /// A client of the browserd at `address`. Nothing is sent yet.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, connection: Mutex::new(None) }
    }

    /// Whether browserd works. Also answers when the browser does not.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.probe("/healthz").await.map(|(_, health)| health)
    }

    /// Whether pages can be opened.
    pub async fn ready(&self) -> Result<bool, ClientError> {
        self.probe("/readyz").await.map(|(status, _)| status == StatusCode::OK)
    }

    /// Who answers.
    pub async fn version(&self) -> Result<Version, ClientError> {
        self.call(Method::GET, "/v1/version", None::<&Nothing>).await
    }

    /// All open tabs.
    pub async fn tabs(&self) -> Result<Tabs, ClientError> {
        self.call(Method::GET, "/v1/tabs", None::<&Nothing>).await
    }

    /// Close a tab.
    pub async fn close_tab(&self, tab: &str) -> Result<Done, ClientError> {
        self.call(Method::DELETE, &format!("/v1/tabs/{tab}"), None::<&Nothing>).await
    }

    /// Make a tab the active one.
    pub async fn activate_tab(&self, tab: &str) -> Result<Done, ClientError> {
        self.call(Method::POST, &format!("/v1/tabs/{tab}/activate"), None::<&Nothing>).await
    }

    /// All cookies.
    pub async fn cookies(&self) -> Result<Cookies, ClientError> {
        self.call(Method::GET, "/v1/cookies", None::<&Nothing>).await
    }

    /// Remove all cookies.
    pub async fn clear_cookies(&self) -> Result<Done, ClientError> {
        self.call(Method::DELETE, "/v1/cookies", None::<&Nothing>).await
    }

    /// All downloads.
    pub async fn downloads(&self) -> Result<Downloads, ClientError> {
        self.call(Method::GET, "/v1/downloads", None::<&Nothing>).await
    }

    async fn probe(&self, path: &str) -> Result<(StatusCode, Health), ClientError> {
        let (status, body) = self.send(Method::GET, path, Bytes::new()).await?;
        // The probes answer with the same body in good and in bad times.
        serde_json::from_slice(&body)
            .map(|health| (status, health))
            .map_err(|error| ClientError::Answer(error.to_string()))
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        request: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let body = match request {
            Some(request) => {
                serde_json::to_vec(request).map_err(|error| ClientError::Answer(error.to_string()))?
            }
            None => Vec::new(),
        };
        let (status, body) = self.send(method, path, body.into()).await?;
        if status.is_success() {
            serde_json::from_slice(&body).map_err(|error| ClientError::Answer(error.to_string()))
        } else {
            match serde_json::from_slice::<ErrorBody>(&body) {
                Ok(body) => Err(ClientError::Api(body.error)),
                Err(_) => Err(ClientError::Answer(format!("status {status}"))),
            }
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let failed = |error: &dyn std::fmt::Display| ClientError::Connection {
            address: self.address,
            message: error.to_string(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.address.to_string())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Full::new(body))
            .map_err(|error| failed(&error))?;
        let mut place = self.connection.lock().await;
        // Taken out for the time of the call: a call that is given up leaves no half-read connection.
        let (open, response) = match place.take() {
            None => self.send_anew(request).await?,
            Some(mut open) => match open.try_send_request(request).await {
                Ok(response) => (open, response),
                // browserd closed the idle connection before anything was sent: nothing was done yet.
                Err(mut error) => match error.take_message() {
                    Some(request) => self.send_anew(request).await?,
                    None => return Err(failed(error.error())),
                },
            },
        };
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
        *place = Some(open);
        Ok((status, body))
    }

    async fn send_anew(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(SendRequest<Full<Bytes>>, Response<Incoming>), ClientError> {
        let failed = |error: &dyn std::fmt::Display| ClientError::Connection {
            address: self.address,
            message: error.to_string(),
        };
        let stream = TcpStream::connect(self.address).await.map_err(|error| failed(&error))?;
        let _ = stream.set_nodelay(true);
        let (mut open, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(connection);
        let response = open.send_request(request).await.map_err(|error| failed(&error))?;
        Ok((open, response))
    }
}
