//! The audit log: a row is committed before an action is forwarded, and its outcome afterwards.
//!
//! Rows are appended by one writer, which commits many rows with one transaction. Each row has the hash of the row before it.

use crate::access::Caller;
use crate::error::ApiError;
use crate::ids::SessionId;
use serde_json::Value;

/// What is written before an action.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Who: [`Caller::name`], or `service` for what the service does by itself.
    pub actor: String,
    /// The tenant.
    pub tenant: String,
    /// The session, for verbs that have one.
    pub session: Option<SessionId>,
    /// The verb.
    pub verb: String,
    /// The parameters, redacted.
    pub params: Value,
}

impl Entry {
    /// An entry of this caller.
    pub fn of(caller: &Caller, verb: &str, session: Option<&SessionId>, params: Value) -> Self {
        Self {
            actor: caller.name(),
            tenant: caller.tenant.to_string(),
            session: session.cloned(),
            verb: verb.to_owned(),
            params,
        }
    }
}

/// A row that was begun and needs an outcome. Dropping it writes the outcome `cancelled`.
#[derive(Debug)]
pub struct Begun {}

impl Begun {
    /// Write the outcome: `ok`, or the error's code. It does not wait for the commit.
    pub fn end(self, outcome: Result<(), &ApiError>) {
        let _ = outcome;
        unimplemented!()
    }
}

/// The writer of the audit log.
#[derive(Debug, Clone)]
pub struct Audit {}

impl Audit {
    /// Commit an entry. Nothing may be forwarded before this returns Ok. Err is `audit_unavailable`.
    pub async fn begin(&self, entry: Entry) -> Result<Begun, ApiError> {
        let _ = entry;
        unimplemented!()
    }

    /// Like `begin`, for closing and revoking, which go on if the log cannot be written: the row is kept in memory (bounded)
    /// and written when it works again.
    pub async fn begin_always(&self, entry: Entry) -> Begun {
        let _ = entry;
        unimplemented!()
    }
}
