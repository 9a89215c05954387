//! HTTP: routes from the table of verbs and the table of administrative calls.

use crate::access::Access;
use crate::app::App;
use axum::Router;
use std::sync::Arc;

/// Every route. Requests need a [`Connection`] as an extension: it says who the peer is.
pub fn router(app: Arc<App>, access: Arc<Access>) -> Router {
    let _ = access;
    Router::new().nest_service("/mcp", crate::surfaces::mcp::service(app))
}
