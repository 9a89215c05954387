//! MCP: the verbs as tools, over streamable HTTP at `/mcp` and over stdio by `browserctl mcp`.
//!
//! The revision 2026-07-28 has no MCP sessions, so there are none here: each request of either revision stands alone, and a
//! browser session is the explicit argument `session_id`, which is worth nothing without its owner's credential. A restart of
//! the service therefore disturbs no client, and no client can leave state behind.

mod result;
mod server;
mod tools;

pub use server::{Backend, Server};
pub use tools::{ToolSet, tools};

use crate::access::Caller;
use crate::actions::Verb;
use crate::app::{App, CallOptions};
use crate::error::{ApiError, ErrorBody, ErrorCode};
use axum::Router;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::value::RawValue;
use std::sync::Arc;

/// The route `/mcp`, to be merged into the router. Its requests are authenticated and have a Host that is allowed: they have
/// the [`Caller`] as an extension.
pub fn service(app: Arc<App>) -> Router {
    let max_body_bytes = usize::try_from(app.config.http.max_body_bytes).unwrap_or(usize::MAX);
    streamable_http(InService(app), max_body_bytes)
}

/// MCP over streamable HTTP. The Host of a request was checked by the router around it.
pub fn streamable_http<B: Backend>(backend: B, max_body_bytes: usize) -> Router {
    // Answers are JSON unless progress is reported, which needs an event stream. A closed connection cancels the call in both.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts()
        .with_max_request_body_bytes(max_body_bytes)
        .enforce_origin_validation();
    let server = Server::new(backend, ToolSet::Core);
    let sessions = Arc::new(NeverSessionManager::default());
    Router::new()
        .route_service("/mcp", StreamableHttpService::new(move || Ok(server.clone()), sessions, config))
}

/// The HTTP request behind an MCP request; none over stdio.
pub fn http_request(context: &RequestContext<RoleServer>) -> Option<&axum::http::request::Parts> {
    context.extensions.get::<axum::http::request::Parts>()
}

/// Calls inside of the service, for the caller of the HTTP request.
#[derive(Debug, Clone)]
pub struct InService(Arc<App>);

impl Backend for InService {
    async fn call(
        &self,
        context: &RequestContext<RoleServer>,
        verb: &'static Verb,
        session: Option<String>,
        params: Box<RawValue>,
    ) -> Result<Box<RawValue>, ErrorBody> {
        let Some(caller) = http_request(context).and_then(|parts| parts.extensions.get::<Caller>()) else {
            let error = ApiError::new(ErrorCode::Internal, "the request arrived at /mcp without a caller");
            return Err(error.body());
        };
        let options = CallOptions { session, ..CallOptions::default() };
        self.0.call(caller, verb, options, params).await.map_err(|error| error.body())
    }
}
