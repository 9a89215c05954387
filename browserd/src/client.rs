//! A typed client for browserd's API.
//!
//! It uses one persistent connection and reconnects if necessary. Calls of one client are sequential; use several clients
//! for concurrent calls.

use crate::api::error::{ErrorBody, ErrorDetail};
use crate::api::types::*;
use crate::secret::Secret;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// browserd returned an error.
    #[error("{}: {} ({})", .0.code.as_str(), .0.message, .0.hint)]
    Api(ErrorDetail),
    /// browserd cannot be reached, or the connection failed.
    #[error("the connection to browserd at {address} failed")]
    Connection {
        /// browserd's address.
        address: SocketAddr,
        /// What failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The request cannot be written as JSON.
    #[error("cannot encode the request")]
    Request(#[source] serde_json::Error),
    /// The response does not have the expected form.
    #[error("cannot parse browserd's response")]
    Response(#[source] serde_json::Error),
    /// An error response without an error body.
    #[error("browserd responded with status {0} and no error body")]
    Status(StatusCode),
}

/// A connection to one browserd.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    secret: Secret,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

const JSON: &str = "application/json";

fn answer<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, ClientError> {
    match status.is_success() {
        true => serde_json::from_slice(body).map_err(ClientError::Response),
        false => Err(failed(status, body)),
    }
}

fn failed(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => ClientError::Api(body.error),
        Err(_) => ClientError::Status(status),
    }
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
    /// Load a URL, or navigate the tab's history.
    navigate(Navigate) -> Navigated = "/v1/navigate";
    /// Take a screenshot.
    screenshot(Screenshot) -> Picture = "/v1/screenshot";
    /// Click a point or an element.
    click(Click) -> Acted = "/v1/click";
    /// Move the pointer over a point or an element.
    hover(Hover) -> Acted = "/v1/hover";
    /// Drag from one place to another.
    drag(Drag) -> Acted = "/v1/drag";
    /// Move the mouse, or press or release a button.
    mouse(Mouse) -> Acted = "/v1/mouse";
    /// Set the value of a form control.
    set_value(SetValue) -> ValueSet = "/v1/set_value";
    /// Wait until conditions hold.
    wait_for(WaitFor) -> Waited = "/v1/wait_for";
    /// The tab's URL, title and whether it is loading.
    url(Url) -> PageUrl = "/v1/url";
    /// Find elements by text, role or placeholder.
    find(Find) -> Found = "/v1/find";
    /// The tab's console messages and uncaught exceptions.
    console(Console) -> ConsoleLog = "/v1/console";
    /// The tab's network requests.
    network(Network) -> NetworkLog = "/v1/network";
    /// What happened in the browser.
    events(Events) -> EventList = "/v1/events";
    /// Give files to a file input, or to the file chooser that an element opens.
    upload(Upload) -> Acted = "/v1/upload";
    /// Type text.
    type_text(Type) -> Acted = "/v1/type";
    /// Press a key or a key combination.
    press(Press) -> Acted = "/v1/press";
    /// Scroll with the mouse wheel, or scroll an element into view.
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
    /// Set how the tab's dialogs are answered.
    dialogs(Dialogs) -> Done = "/v1/dialogs";
    /// Set cookies.
    set_cookies(SetCookies) -> CookiesSet = "/v1/cookies";
}

impl Client {
    /// A client for the browserd at `address` with this secret. It connects at the first call.
    pub fn new(address: SocketAddr, secret: Secret) -> Self {
        Self { address, secret, connection: Mutex::new(None) }
    }

    /// The state of browserd, also while the browser does not work.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.call(Method::GET, "/v1/health", None::<&Nothing>).await
    }

    /// Whether pages can be opened.
    pub async fn ready(&self) -> Result<bool, ClientError> {
        let (status, _) = self.send(Method::GET, "/readyz", JSON, Bytes::new()).await?;
        Ok(status == StatusCode::OK)
    }

    /// Versions and enabled features.
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

    /// The last dialogs of all tabs.
    pub async fn recent_dialogs(&self) -> Result<RecentDialogs, ClientError> {
        self.call(Method::GET, "/v1/dialogs", None::<&Nothing>).await
    }

    /// All cookies.
    pub async fn cookies(&self) -> Result<Cookies, ClientError> {
        self.call(Method::GET, "/v1/cookies", None::<&Nothing>).await
    }

    /// Remove all cookies.
    pub async fn clear_cookies(&self) -> Result<Done, ClientError> {
        self.call(Method::DELETE, "/v1/cookies", None::<&Nothing>).await
    }

    /// The bytes of a finished download, and its removal if `delete`. The whole file is held in memory.
    pub async fn get_download(&self, guid: &str, delete: bool) -> Result<Bytes, ClientError> {
        let path = format!("/v1/downloads/{guid}?delete={delete}");
        let (status, body) = self.send(Method::GET, &path, JSON, Bytes::new()).await?;
        if status.is_success() { Ok(body) } else { Err(failed(status, &body)) }
    }

    /// Remove a download's file, or cancel a running download.
    pub async fn delete_download(&self, guid: &str) -> Result<Done, ClientError> {
        self.call(Method::DELETE, &format!("/v1/downloads/{guid}"), None::<&Nothing>).await
    }

    /// Put a file into the clone.
    pub async fn put_file(&self, name: &str, bytes: Bytes) -> Result<ClientFile, ClientError> {
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/v1/files?name={encoded}");
        let (status, body) = self.send(Method::POST, &path, "application/octet-stream", bytes).await?;
        answer(status, &body)
    }

    /// The files that callers put into the clone.
    pub async fn files(&self) -> Result<ClientFiles, ClientError> {
        self.call(Method::GET, "/v1/files", None::<&Nothing>).await
    }

    /// Remove a file that a caller put into the clone.
    pub async fn delete_file(&self, file: &str) -> Result<Done, ClientError> {
        self.call(Method::DELETE, &format!("/v1/files/{file}"), None::<&Nothing>).await
    }

    /// All downloads.
    pub async fn downloads(&self) -> Result<Downloads, ClientError> {
        self.call(Method::GET, "/v1/downloads", None::<&Nothing>).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        request: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let body = match request {
            Some(request) => serde_json::to_vec(request).map_err(ClientError::Request)?,
            None => Vec::new(),
        };
        let (status, body) = self.send(method, path, JSON, body.into()).await?;
        answer(status, &body)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        kind: &'static str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", self.secret.as_str()))
            .map_err(|error| self.failed(error))?;
        authorization.set_sensitive(true);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.address.to_string())
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, HeaderValue::from_static(kind))
            .body(Full::new(body))
            .map_err(|error| self.failed(error))?;
        let mut kept = self.connection.lock().await;
        // Taken out during the call, so that a cancelled call leaves no half-read connection behind.
        let (open, response) = match kept.take() {
            None => self.connect_and_send(request).await?,
            Some(mut open) => match open.try_send_request(request).await {
                Ok(response) => (open, response),
                // browserd closed the idle connection before the request was sent, so sending it again is safe.
                Err(mut error) => match error.take_message() {
                    Some(request) => self.connect_and_send(request).await?,
                    None => return Err(self.failed(error.into_error())),
                },
            },
        };
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| self.failed(error))?.to_bytes();
        *kept = Some(open);
        Ok((status, body))
    }

    fn failed(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Connection { address: self.address, source: error.into() }
    }

    async fn connect_and_send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(SendRequest<Full<Bytes>>, Response<Incoming>), ClientError> {
        let stream = TcpStream::connect(self.address).await.map_err(|error| self.failed(error))?;
        let _ = stream.set_nodelay(true);
        let (mut open, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| self.failed(error))?;
        tokio::spawn(connection);
        let response = open.send_request(request).await.map_err(|error| self.failed(error))?;
        Ok((open, response))
    }
}
