//! Who calls, and what they may do.

pub mod keys;
mod peers;
mod rates;

pub use peers::PeerRules;
pub use rates::CallRates;

use crate::config::Config;
use crate::error::{ApiError, ErrorCode};
use crate::ids::{KeyId, TenantId};
use crate::time::Millis;
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
    /// It manages all tenants: root and the service's own user, unless an access rule matches them.
    pub all_tenants: bool,
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

/// Decides who a caller is and how often it may call. Every surface that a caller can reach asks it.
#[derive(Debug)]
pub struct Access {
    peers: PeerRules,
    keys: keys::Keys,
    rates: CallRates,
}

impl Access {
    /// The access control of this configuration, with the keys of the store.
    pub fn new(config: &Config, keys: keys::Keys) -> Self {
        Self { peers: PeerRules::new(&config.access), keys, rates: CallRates::new(&config.limits) }
    }

    /// The caller on the other end of a Unix socket.
    pub fn peer(&self, peer: &hostd::platform::Peer) -> Caller {
        self.peers.caller(peer)
    }

    /// The caller who presents this key.
    pub async fn bearer(&self, token: &str) -> Result<Caller, ApiError> {
        self.keys.check(token).await
    }

    /// Whether a caller who was authenticated earlier still is one, and until when its key is valid. Err is `unauthorized` if its
    /// key was revoked or has expired.
    pub async fn standing(&self, caller: &Caller) -> Result<Option<Millis>, ApiError> {
        match &caller.identity {
            Identity::User(_) => Ok(None),
            Identity::Key(key) => self.keys.standing(key).await,
        }
    }

    /// Count a call of the caller. Err is `call_rate`.
    pub fn admit(&self, caller: &Caller) -> Result<(), ApiError> {
        self.rates.admit(caller)
    }

    /// The keys.
    pub fn keys(&self) -> &keys::Keys {
        &self.keys
    }

    /// What an operator should know about the rules although it is not an error.
    pub fn warnings(&self) -> &[String] {
        self.peers.warnings()
    }
}

impl Caller {
    /// Err is `forbidden` and names the scope.
    pub fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.may(scope) {
            return Ok(());
        }
        let message =
            format!("the call needs the scope `{}`, which {} does not have", scope.word(), self.name());
        Err(ApiError::new(ErrorCode::Forbidden, message))
    }
}
