//! The assembled service: what every surface calls.

use crate::access::Caller;
use crate::actions::Verb;
use crate::audit::Audit;
use crate::config::Config;
use crate::error::ApiError;
use serde_json::value::RawValue;
use std::net::SocketAddr;
use std::sync::Arc;

/// The assembled service.
#[derive(Debug)]
pub struct App {
    /// The configuration.
    pub config: Arc<Config>,
    /// The audit log.
    pub audit: Audit,
}

/// What a caller sends beside the parameters.
#[derive(Debug, Clone, Default)]
pub struct CallOptions {
    /// The session, for verbs that have one; checked like every other input.
    pub session: Option<String>,
    /// The header Idempotency-Key of an open.
    pub idempotency_key: Option<String>,
}

/// A session's browser, for the CDP relay. The session counts as used while this exists.
#[derive(Debug)]
pub struct CdpTarget {
    /// The address of browserd in the clone.
    pub address: SocketAddr,
    /// The path of browserd's raw CDP WebSocket, with the clone's secret; never logged or shown to a caller.
    pub path: String,
}

impl App {
    /// Carry out a verb: validate, authorise, audit, forward, record. The answer is the JSON of the verb's result type.
    ///
    /// Dropping the future cancels an action. An open that was begun goes on by itself and its session is closed again if
    /// nobody receives it.
    pub async fn call(
        &self,
        caller: &Caller,
        verb: &'static Verb,
        options: CallOptions,
        params: Box<RawValue>,
    ) -> Result<Box<RawValue>, ApiError> {
        let _ = (caller, verb, options, params);
        unimplemented!()
    }

    /// Raw CDP of a session, audited. Needs the scope `cdp`; refused in operator sessions.
    pub async fn cdp(&self, caller: &Caller, session: &str) -> Result<CdpTarget, ApiError> {
        let _ = (caller, session);
        unimplemented!()
    }
}
