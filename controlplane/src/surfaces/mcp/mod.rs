//! MCP: the tools of agents.

use crate::app::App;
use axum::Router;
use std::sync::Arc;

/// The service at `/mcp`. Its requests are authenticated: they have the [`Caller`](crate::access::Caller) as an extension.
pub fn service(app: Arc<App>) -> Router {
    let _ = app;
    Router::new()
}
