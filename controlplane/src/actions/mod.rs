//! The table of verbs, and the one way in which a verb is carried out.
//!
//! HTTP routes, MCP tools, browserctl's subcommands and the OpenAPI document are made from the table.

mod parse;
mod redact;
pub(crate) mod run;
mod table;
mod types;

use parse::Prepared;
pub use types::*;

use crate::access::Scope;
use crate::error::ApiError;
use axum::http::Method;
use serde_json::Value;
use std::sync::LazyLock;

/// What a verb acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The service: it opens or lists sessions. No session is named.
    Service,
    /// A session.
    Session,
    /// A page of a session. Calls of one tab run one after the other.
    Tab,
}

/// What a verb changes, for the annotations of MCP tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It reads only.
    Read,
    /// It changes something that can be changed back.
    Change,
    /// It removes something or acts in the outside world.
    Destructive,
}

/// Where a result has a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pictures {
    /// It has none.
    None,
    /// The result is a picture: `image_base64`.
    Result,
    /// In `after_screenshot`, if it was asked for.
    After,
}

/// One verb.
pub struct Verb {
    /// The name: `navigate`. The MCP tool is `browser_navigate`, the dotted name `browser.navigate`.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// The HTTP method. The parameters of a POST are its JSON body, those of a GET are its query.
    pub method: Method,
    /// The HTTP path; `{session_id}` stands for the session.
    pub path: &'static str,
    /// The scope that a caller needs.
    pub scope: Scope,
    /// What it acts on.
    pub target: Target,
    /// What it changes.
    pub effect: Effect,
    /// Whether it is in the default set of MCP tools.
    pub core: bool,
    /// Parameters whose values are not written to the audit log, only their lengths; at any depth.
    pub redact: &'static [&'static str],
    /// Where the result has a picture.
    pub pictures: Pictures,
    /// The JSON schema of the parameters, without the session id.
    pub params: fn() -> Value,
    /// The JSON schema of the result.
    pub result: fn() -> Value,
    pub(crate) prepare: fn(&str) -> Result<Prepared, ApiError>,
}

impl Verb {
    /// Validate parameters without carrying out the verb.
    pub fn check(&self, params: &str) -> Result<(), ApiError> {
        (self.prepare)(params).map(drop)
    }

    /// The parameters as they are written to the audit log.
    pub fn redacted(&self, params: &Value) -> Value {
        redact::redact(params, self.redact)
    }
}

impl std::fmt::Debug for Verb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Every verb.
pub fn verbs() -> &'static [Verb] {
    static VERBS: LazyLock<Vec<Verb>> = LazyLock::new(table::table);
    &VERBS
}

/// The verb of this name.
pub fn verb(name: &str) -> Option<&'static Verb> {
    verbs().iter().find(|verb| verb.name == name)
}
