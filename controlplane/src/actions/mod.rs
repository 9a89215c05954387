//! The table of verbs, and the one way in which a verb is carried out.
//!
//! HTTP routes, MCP tools, browserctl's subcommands and the OpenAPI document are made from the table.

use crate::access::Scope;
use axum::http::Method;
use serde_json::Value;

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

/// One verb.
pub struct Verb {
    /// The name: `navigate`. The MCP tool is `browser_navigate`, the dotted name `browser.navigate`.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The HTTP path; `{session_id}` stands for the session, other `{…}` for parameters of that name.
    pub path: &'static str,
    /// The scope that a caller needs.
    pub scope: Scope,
    /// What it acts on.
    pub target: Target,
    /// What it changes.
    pub effect: Effect,
    /// Whether it is in the default set of MCP tools.
    pub core: bool,
    /// Parameters whose values are not written to the audit log, only their lengths.
    pub redact: &'static [&'static str],
    /// The JSON schema of the parameters, without the session id.
    pub params: fn() -> Value,
    /// The JSON schema of the result.
    pub result: fn() -> Value,
}

impl std::fmt::Debug for Verb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
