//! Clones: the connection to hostd.

mod hostd_link;

pub use hostd_link::Hostd;

use crate::error::{ApiError, ErrorCode};
use crate::ids::{SessionId, TenantId};
use futures_util::future::BoxFuture;
use hostd::api::{CloneId, CloneInfo, CloneName, CloneSecret, RpcError, SecretUrl, StatusResult};
use std::fmt;
use std::time::Duration;

/// A host of clones. Every call has a deadline.
pub trait HostLink: fmt::Debug + Send + Sync {
    /// Create the clone of a session, or renew its lease: the session id is the request id.
    fn create(&self, wanted: WantedClone) -> BoxFuture<'_, Result<MadeClone, HostError>>;
    /// Cut a clone off and take it away. It returns when nothing in the clone can run any more. A clone that is gone is no
    /// error.
    fn destroy(&self, name: CloneName, id: CloneId) -> BoxFuture<'_, Result<(), HostError>>;
    /// The clones of the host.
    fn list(&self) -> BoxFuture<'_, Result<Vec<CloneInfo>, HostError>>;
    /// The state of the host.
    fn status(&self) -> BoxFuture<'_, Result<StatusResult, HostError>>;
}

/// The clone that a session needs.
#[derive(Debug, Clone)]
pub struct WantedClone {
    /// The session.
    pub session: SessionId,
    /// The tenant that it is counted for.
    pub tenant: TenantId,
    /// The lease, from now on.
    pub lease: Duration,
}

/// A session's clone.
#[derive(Debug, Clone)]
pub struct MadeClone {
    /// Its name.
    pub name: CloneName,
    /// Its id, so that a late call cannot affect the next clone of this name.
    pub id: CloneId,
    /// Whether it existed already and its lease was renewed.
    pub renewed: bool,
    /// The address of its browserd: `http://ADDRESS:PORT`.
    pub endpoint: String,
    /// What its browserd requires.
    pub secret: CloneSecret,
    /// Its raw CDP endpoint.
    pub cdp: Option<SecretUrl>,
}

/// Why a host did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// It has no free clone now: of all, or of this tenant.
    #[error("{0}")]
    Full(RpcError),
    /// It does not know the request any more: the clone was destroyed.
    #[error("{0}")]
    Finished(RpcError),
    /// It is there but cannot serve now: it is stopping, or limits its callers.
    #[error("{0}")]
    Busy(RpcError),
    /// It refused or failed.
    #[error("{0}")]
    Failed(RpcError),
    /// It does not answer.
    #[error("{0}")]
    Unavailable(String),
}

impl HostError {
    /// When to try again, if the host says so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            HostError::Full(error) | HostError::Busy(error) | HostError::Failed(error) => {
                error.data.retry_after_ms.map(Duration::from_millis)
            }
            _ => None,
        }
    }
}

impl From<HostError> for ApiError {
    fn from(error: HostError) -> Self {
        let retry = error.retry_after().unwrap_or(Duration::from_secs(1));
        let (code, rpc) = match error {
            HostError::Unavailable(message) => {
                return ApiError::new(ErrorCode::HostUnavailable, message).retry_after(retry);
            }
            HostError::Full(rpc) => (ErrorCode::QueueTimeout, rpc),
            HostError::Busy(rpc) => (ErrorCode::HostUnavailable, rpc),
            HostError::Finished(rpc) | HostError::Failed(rpc) => (ErrorCode::CloneFailed, rpc),
        };
        let error = ApiError::new(code, format!("hostd: {} ({})", rpc.message, rpc.code()));
        let error = if rpc.data.hint.is_empty() { error } else { error.hint(rpc.data.hint.clone()) };
        if rpc.data.retryable { error.retry_after(retry) } else { error }
    }
}
