//! A client of the daemon with concurrent calls over one connection.
//!
//! ```no_run
//! # async fn example() -> Result<(), hostd::client::ClientError> {
//! use hostd::api::CreateParams;
//! use hostd::client::Client;
//!
//! let client = Client::connect("/run/hostd/hostd.sock").await?;
//! let made = client.create(CreateParams::new("task-7".parse().unwrap())).await?;
//! // browserd requires `made.secret`; `made.clone.cdp_endpoint` is a URL that contains it.
//! println!("{} answers at {:?}", made.clone.name, made.clone.endpoint);
//! # Ok(())
//! # }
//! ```

use crate::api::*;
use crate::wire::{self, Reply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

/// An upper bound of any answer: a list of all slots has less than one megabyte.
const LONGEST_ANSWER: u64 = 64 << 20;
/// The default timeout, longer than any operation.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// hostd returned an error.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// No connection.
    #[error("cannot connect to {}: {source}; {hint}", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The error of connect(2).
        #[source]
        source: Arc<io::Error>,
        /// What to do about it.
        hint: &'static str,
    },
    /// The connection ended before the answer. The operation may have been executed; repeat the call.
    #[error(
        "the connection to hostd ended before the answer: {0}; the operation continues, repeat the call for its result"
    )]
    Closed(String),
    /// No answer in time. The operation continues.
    #[error("no answer within {} seconds; the operation continues, repeat the call for its result", .0.as_secs_f32())]
    Timeout(Duration),
    /// The answer violates the contract.
    #[error("hostd's answer violates the protocol: {0}; use hostd and a client of the same version")]
    Protocol(String),
}

impl ClientError {
    /// The error that hostd returned, if any.
    pub fn rpc(&self) -> Option<&RpcError> {
        match self {
            ClientError::Rpc(error) => Some(error),
            _ => None,
        }
    }

    fn connect(path: &Path, error: io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "is hostd running, and is this its socket (paths.socket)?"
            }
            io::ErrorKind::PermissionDenied => "are you in the socket's group (paths.socket_group)?",
            _ => "is this hostd's socket (paths.socket)?",
        };
        ClientError::Connect { path: path.to_owned(), source: Arc::new(error), hint }
    }
}

/// The callers that wait for lines from the daemon.
#[derive(Default)]
struct Waiting {
    calls: HashMap<u64, oneshot::Sender<Result<Box<RawValue>, ClientError>>>,
    progress: HashMap<ProgressToken, mpsc::UnboundedSender<Progress>>,
    /// Set when the connection has ended: the error of all later calls.
    ended: Option<ClientError>,
}

struct ClientConnection {
    next: AtomicU64,
    lines: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Mutex<Waiting>>,
}

/// A connection to hostd. Clones share it; it closes when the last clone is dropped.
#[derive(Clone)]
pub struct Client {
    connection: Arc<ClientConnection>,
    timeout: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Client {
    /// Connect to hostd's socket.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let path = path.as_ref();
        let stream = UnixStream::connect(path).await.map_err(|error| ClientError::connect(path, error))?;
        Ok(Client::over(stream))
    }

    /// Use an existing connection.
    pub fn over(stream: UnixStream) -> Client {
        let (read, write) = stream.into_split();
        let (lines, outgoing) = mpsc::channel(64);
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let reader = tokio::spawn(read_replies(read, waiting.clone()));
        tokio::spawn(async move {
            write_lines(write, outgoing, &reader).await;
            reader.abort();
        });
        Client {
            connection: Arc::new(ClientConnection { next: AtomicU64::new(1), lines, waiting }),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// The same connection with another timeout.
    pub fn with_timeout(&self, timeout: Duration) -> Client {
        Client { connection: self.connection.clone(), timeout }
    }

    /// Call any method.
    pub async fn call<R: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<R, ClientError> {
        let id = self.connection.next.fetch_add(1, Ordering::Relaxed);
        let line =
            wire::request(id, method, params).map_err(|error| ClientError::Protocol(error.to_string()))?;
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = lock(&self.connection.waiting);
            if let Some(error) = &waiting.ended {
                return Err(error.clone());
            }
            waiting.calls.insert(id, sender);
        }
        let entry = WaitingCall { waiting: &self.connection.waiting, id };
        let exchange = async {
            // The reader knows why a connection ended, so a write error is ignored.
            let _ = self.connection.lines.send(line).await;
            answer.await
        };
        let outcome = tokio::time::timeout(self.timeout, exchange).await;
        drop(entry);
        let raw = match outcome {
            Err(_) => return Err(ClientError::Timeout(self.timeout)),
            Ok(Err(_)) => return Err(ClientError::Closed("the client was closed".to_owned())),
            Ok(Ok(answer)) => answer?,
        };
        serde_json::from_str(raw.get()).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    /// Call a method and report its progress. A token is generated unless `token` is set.
    async fn call_with_progress<P: Serialize, R: DeserializeOwned>(
        &self,
        method: Method,
        mut params: P,
        token: impl FnOnce(&mut P) -> &mut Option<ProgressToken>,
        mut on_progress: impl FnMut(Progress),
    ) -> Result<R, ClientError> {
        let number = self.connection.next.fetch_add(1, Ordering::Relaxed);
        let token = token(&mut params)
            .get_or_insert_with(|| format!("p{number}").parse().expect("a letter and a number"))
            .clone();
        let (sender, mut progress) = mpsc::unbounded_channel();
        lock(&self.connection.waiting).progress.insert(token.clone(), sender);
        let outcome = {
            let call = self.call(method.name(), &params);
            tokio::pin!(call);
            loop {
                tokio::select! {
                    biased;
                    Some(progress) = progress.recv() => on_progress(progress),
                    outcome = &mut call => break outcome,
                }
            }
        };
        lock(&self.connection.waiting).progress.remove(&token);
        // Notifications that arrived together with the answer.
        while let Ok(progress) = progress.try_recv() {
            on_progress(progress);
        }
        outcome
    }

    /// `browser-clone-create`.
    pub async fn create(&self, params: CreateParams) -> Result<CreateResult, ClientError> {
        self.call(Method::Create.name(), &params).await
    }

    /// `browser-clone-create`, with progress.
    pub async fn create_with_progress(
        &self,
        params: CreateParams,
        on_progress: impl FnMut(Progress),
    ) -> Result<CreateResult, ClientError> {
        self.call_with_progress(Method::Create, params, |params| &mut params.progress_token, on_progress)
            .await
    }

    /// `browser-clone-destroy`.
    pub async fn destroy(&self, params: DestroyParams) -> Result<DestroyResult, ClientError> {
        self.call(Method::Destroy.name(), &params).await
    }

    /// `browser-clone-destroy`, with progress.
    pub async fn destroy_with_progress(
        &self,
        params: DestroyParams,
        on_progress: impl FnMut(Progress),
    ) -> Result<DestroyResult, ClientError> {
        self.call_with_progress(Method::Destroy, params, |params| &mut params.progress_token, on_progress)
            .await
    }

    /// `browser-clone-reap`.
    pub async fn reap(&self, params: ReapParams) -> Result<ReapResult, ClientError> {
        self.call(Method::Reap.name(), &params).await
    }

    /// `browser-clone-reap`, with progress.
    pub async fn reap_with_progress(
        &self,
        params: ReapParams,
        on_progress: impl FnMut(Progress),
    ) -> Result<ReapResult, ClientError> {
        self.call_with_progress(Method::Reap, params, |params| &mut params.progress_token, on_progress).await
    }

    /// `browser-clone-force-unmount`.
    pub async fn force_unmount(&self, params: ForceUnmountParams) -> Result<ForceUnmountResult, ClientError> {
        self.call(Method::ForceUnmount.name(), &params).await
    }

    /// `browser-clone-force-unmount`, with progress.
    pub async fn force_unmount_with_progress(
        &self,
        params: ForceUnmountParams,
        on_progress: impl FnMut(Progress),
    ) -> Result<ForceUnmountResult, ClientError> {
        self.call_with_progress(
            Method::ForceUnmount,
            params,
            |params| &mut params.progress_token,
            on_progress,
        )
        .await
    }

    /// `browser-clone-list`.
    pub async fn list(&self, params: ListParams) -> Result<ListResult, ClientError> {
        self.call(Method::List.name(), &params).await
    }

    /// `host-status`.
    pub async fn status(&self, params: StatusParams) -> Result<StatusResult, ClientError> {
        self.call(Method::Status.name(), &params).await
    }

    /// `rpc.discover`.
    pub async fn discover(&self) -> Result<serde_json::Value, ClientError> {
        self.call(Method::Discover.name(), &DiscoverParams {}).await
    }
}

/// Removes a call from the waiting list, also if its future is dropped.
struct WaitingCall<'a> {
    waiting: &'a Mutex<Waiting>,
    id: u64,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        lock(self.waiting).calls.remove(&self.id);
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends when the last clone of the client is dropped, or with the reader after the connection broke.
async fn write_lines(
    mut write: OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Vec<u8>>,
    reader: &tokio::task::JoinHandle<()>,
) {
    while let Some(line) = outgoing.recv().await {
        if write.write_all(&line).await.is_err() {
            // The daemon's last lines may still arrive: wait until the reader has read them.
            while !reader.is_finished() && outgoing.recv().await.is_some() {}
            return;
        }
    }
}

async fn read_replies(read: OwnedReadHalf, waiting: Arc<Mutex<Waiting>>) {
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    let mut connection_error = None;
    let end = loop {
        line.clear();
        match (&mut read).take(LONGEST_ANSWER).read_until(b'\n', &mut line).await {
            Ok(0) => break ClientError::Closed("hostd closed it".to_owned()),
            Ok(_) if line.last() != Some(&b'\n') => {
                break ClientError::Closed("the last answer is incomplete".to_owned());
            }
            Ok(_) => {}
            Err(error) => break ClientError::Closed(error.to_string()),
        }
        match wire::parse_reply(&line) {
            Err(error) => break ClientError::Protocol(error.to_string()),
            Ok(Reply::Progress(progress)) => {
                let waiting = lock(&waiting);
                if let Some(sender) = waiting.progress.get(&progress.progress_token) {
                    let _ = sender.send(progress);
                }
            }
            Ok(Reply::Answer { id: Some(id), outcome }) => {
                if let Some(call) = lock(&waiting).calls.remove(&id) {
                    let _ = call.send(outcome.map_err(ClientError::Rpc));
                }
            }
            // An error of the connection itself: hostd closes it after this line.
            Ok(Reply::Answer { id: None, outcome }) => connection_error = outcome.err().map(ClientError::Rpc),
        }
    };
    let end = connection_error.unwrap_or(end);
    let mut waiting = lock(&waiting);
    waiting.ended = Some(end.clone());
    for (_, call) in waiting.calls.drain() {
        let _ = call.send(Err(end.clone()));
    }
}
