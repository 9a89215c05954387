//! The connection to a hostd beside us.

use super::{HostError, HostLink, MadeClone, WantedClone};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hostd::api::{
    CloneId, CloneInfo, CloneName, CreateParams, DestroyParams, ErrorCode, ListParams, RequestId, RpcError,
    StatusParams, StatusResult, Tenant,
};
use hostd::client::{Client, ClientError};
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Mutex;

/// hostd bounds each step of a create itself; this is above their sum.
const CREATE_TIMEOUT: Duration = Duration::from_secs(180);
const DESTROY_TIMEOUT: Duration = Duration::from_secs(60);
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// hostd's socket. One connection is kept and made again when it breaks.
#[derive(Debug)]
pub struct Hostd {
    socket: PathBuf,
    kept: Mutex<Option<Client>>,
}

impl Hostd {
    /// The hostd behind this socket. It connects at the first call.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), kept: Mutex::new(None) }
    }

    async fn client(&self) -> Result<Client, HostError> {
        let mut kept = self.kept.lock().await;
        match &*kept {
            Some(client) => Ok(client.clone()),
            None => {
                let client = tokio::time::timeout(READ_TIMEOUT, Client::connect(&self.socket)).await;
                let client = client.map_err(|_| HostError::Unavailable(self.silent()))?.map_err(failed)?;
                Ok(kept.insert(client).clone())
            }
        }
    }

    fn silent(&self) -> String {
        format!("hostd does not accept connections at {}", self.socket.display())
    }

    async fn forget(&self) {
        *self.kept.lock().await = None;
    }

    /// Call, and once more over a new connection if the kept one was broken. Every call may be repeated: a create by its
    /// request id, a destroy by its clone id.
    async fn call<R, F>(&self, timeout: Duration, call: impl Fn(Client) -> F) -> Result<R, HostError>
    where
        F: Future<Output = Result<R, ClientError>>,
    {
        let first = call(self.client().await?.with_timeout(timeout)).await;
        match first {
            Err(ClientError::Closed(_)) => {
                self.forget().await;
                let again = call(self.client().await?.with_timeout(timeout)).await;
                if matches!(again, Err(ClientError::Closed(_))) {
                    self.forget().await;
                }
                again.map_err(failed)
            }
            Err(error @ (ClientError::Timeout(_) | ClientError::Protocol(_))) => {
                // Whatever is wrong with this connection must not meet the next call.
                self.forget().await;
                Err(failed(error))
            }
            other => other.map_err(failed),
        }
    }
}

fn failed(error: ClientError) -> HostError {
    match error {
        ClientError::Rpc(error) => refused(error),
        error => HostError::Unavailable(error.to_string()),
    }
}

fn refused(error: RpcError) -> HostError {
    match error.code() {
        ErrorCode::HostFull | ErrorCode::TenantFull => HostError::Full(error),
        ErrorCode::RequestFinished => HostError::Finished(error),
        ErrorCode::ShuttingDown
        | ErrorCode::RateLimited
        | ErrorCode::TooManyConnections
        | ErrorCode::TooManyRequests => HostError::Busy(error),
        _ => HostError::Failed(error),
    }
}

/// An answer without what a session needs.
fn incomplete(name: &CloneName, what: &str) -> HostError {
    HostError::Failed(RpcError::new(
        ErrorCode::HostNotReady,
        format!("the clone {name} has no {what}"),
        "Configure hostd with a browser service (browserd) in its template.",
    ))
}

impl HostLink for Hostd {
    fn create(&self, wanted: WantedClone) -> BoxFuture<'_, Result<MadeClone, HostError>> {
        async move {
            let request: RequestId = wanted.session.as_str().parse().expect("a session id is a request id");
            let tenant: Tenant =
                wanted.tenant.as_str().parse().expect("the control plane's tenants are hostd's");
            let params = CreateParams {
                tenant: Some(tenant),
                deadline_seconds: Some(wanted.lease.as_secs().max(1)),
                ..CreateParams::new(request)
            };
            let made = self
                .call(CREATE_TIMEOUT, |client| {
                    let params = params.clone();
                    async move { client.create(params).await }
                })
                .await?;
            let clone = made.clone;
            let id = clone.clone_id.ok_or_else(|| incomplete(&clone.name, "clone_id"))?;
            Ok(MadeClone {
                id,
                renewed: made.renewed,
                endpoint: clone.endpoint.ok_or_else(|| incomplete(&clone.name, "endpoint"))?,
                secret: made.secret.ok_or_else(|| incomplete(&clone.name, "secret"))?,
                cdp: clone.cdp_endpoint,
                name: clone.name,
            })
        }
        .boxed()
    }

    fn destroy(&self, name: CloneName, id: CloneId) -> BoxFuture<'_, Result<(), HostError>> {
        async move {
            let params = DestroyParams { wait: false, ..DestroyParams::new(name, id) };
            let outcome = self
                .call(DESTROY_TIMEOUT, |client| {
                    let params = params.clone();
                    async move { client.destroy(params).await }
                })
                .await;
            match outcome {
                Ok(_) => Ok(()),
                // The name belongs to another clone now, so this one is gone; or hostd goes on with it by itself.
                Err(HostError::Failed(error))
                    if matches!(
                        error.code(),
                        ErrorCode::WrongClone | ErrorCode::NotFound | ErrorCode::Incomplete
                    ) =>
                {
                    Ok(())
                }
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<CloneInfo>, HostError>> {
        async move {
            let list =
                self.call(READ_TIMEOUT, |client| async move { client.list(ListParams::default()).await });
            Ok(list.await?.clones)
        }
        .boxed()
    }

    fn status(&self) -> BoxFuture<'_, Result<StatusResult, HostError>> {
        self.call(READ_TIMEOUT, |client| async move { client.status(StatusParams::default()).await }).boxed()
    }
}
