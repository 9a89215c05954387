//! Who calls, and what they may do.

use crate::ids::{KeyId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A right. An API key and a rule for local users have a set of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// See sessions and read pages.
    Read,
    /// Open and close sessions, act in pages.
    Write,
    /// Run JavaScript in pages. Never given by default.
    Evaluate,
    /// Move files in and out of a session.
    Files,
    /// Drive a session by raw CDP.
    Cdp,
    /// Issue and revoke keys, read the audit log, see and close the sessions of every caller of the tenant.
    Admin,
}

/// The scopes of a new key, and of local users, if nothing else is said.
pub const DEFAULT_SCOPES: [Scope; 4] = [Scope::Read, Scope::Write, Scope::Files, Scope::Cdp];

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 6] =
        [Scope::Read, Scope::Write, Scope::Evaluate, Scope::Files, Scope::Cdp, Scope::Admin];

    /// The name in keys and the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Evaluate => "evaluate",
            Scope::Files => "files",
            Scope::Cdp => "cdp",
            Scope::Admin => "admin",
        }
    }
}

/// How a caller was authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A local user, by the peer credentials of the Unix socket.
    User(u32),
    /// An API key.
    Key(KeyId),
}

/// An authenticated caller. Sessions are bound to the identity and the tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who it is.
    pub identity: Identity,
    /// The tenant it acts for.
    pub tenant: TenantId,
    /// What it may do.
    pub scopes: BTreeSet<Scope>,
}

impl Caller {
    /// Whether the caller has the scope. `admin` includes `read` and `write`.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
            || (matches!(scope, Scope::Read | Scope::Write) && self.scopes.contains(&Scope::Admin))
    }

    /// The name in the audit log: `uid:1000` or `key_…`.
    pub fn name(&self) -> String {
        match &self.identity {
            Identity::User(uid) => format!("uid:{uid}"),
            Identity::Key(key) => key.to_string(),
        }
    }
}
