//! A client of the daemon: many calls at once over one connection.
//!
//! ```no_run
//! # async fn example() -> Result<(), hostd::client::ClientError> {
//! use hostd::api::CreateParams;
//! use hostd::client::Client;
//!
//! let client = Client::connect("/run/hostd/hostd.sock").await?;
//! let made = client.create(CreateParams::new("task-7".parse().unwrap())).await?;
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

/// Longer than any answer: a list of all slots is below one megabyte.
const LONGEST_ANSWER: u64 = 64 << 20;
/// How long to wait for an answer unless told otherwise: longer than any operation.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Why a call has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// hostd refused it or failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// No connection.
    #[error("cannot connect to {}: {source}; {hint}", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: Arc<io::Error>,
        /// What to do about it.
        hint: &'static str,
    },
    /// The connection ended before the answer. The operation may have been done; ask again.
    #[error(
        "the connection to hostd ended before the answer: {0}; the operation goes on, ask again for its outcome"
    )]
    Closed(String),
    /// No answer in time. The operation goes on.
    #[error("no answer within {} seconds; the operation goes on, ask again for its outcome", .0.as_secs_f32())]
    Timeout(Duration),
    /// The answer is not what the contract says.
    #[error("hostd's answer is not understood: {0}; are hostd and this client of the same version?")]
    Protocol(String),
}

impl ClientError {
    /// hostd's own error, if it was one.
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

/// What waits for the connection's reader.
#[derive(Default)]
struct Waiting {
    calls: HashMap<u64, oneshot::Sender<Result<Box<RawValue>, ClientError>>>,
    progress: HashMap<ProgressToken, mpsc::UnboundedSender<Progress>>,
    /// Set when the connection has ended: why later calls fail.
    ended: Option<ClientError>,
}

struct Inner {
    next: AtomicU64,
    lines: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Mutex<Waiting>>,
}

/// A connection to hostd. Copies share it; it closes when the last copy is gone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    patience: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Client {
    /// Connect to hostd's socket.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let path = path.as_ref();
        let stream = UnixStream::connect(path).await.map_err(|error| ClientError::connect(path, error))?;
        Ok(Client::over(stream))
    }

    /// Use a connection that is there already.
    pub fn over(stream: UnixStream) -> Client {
        let (read, write) = stream.into_split();
        let (lines, outgoing) = mpsc::channel(64);
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let reader = tokio::spawn(read_replies(read, waiting.clone()));
        tokio::spawn(async move {
            write_lines(write, outgoing, &reader).await;
            reader.abort();
        });
        Client { inner: Arc::new(Inner { next: AtomicU64::new(1), lines, waiting }), patience: PATIENCE }
    }

    /// The same connection with another patience.
    pub fn with_timeout(&self, patience: Duration) -> Client {
        Client { inner: self.inner.clone(), patience }
    }

    /// Call any method.
    pub async fn call<R: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<R, ClientError> {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let line =
            wire::request(id, method, params).map_err(|error| ClientError::Protocol(error.to_string()))?;
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = lock(&self.inner.waiting);
            if let Some(error) = &waiting.ended {
                return Err(error.clone());
            }
            waiting.calls.insert(id, sender);
        }
        let forget = Forget { waiting: &self.inner.waiting, id };
        let exchange = async {
            // The reader knows better than the writer why a connection ended, so only the answer counts.
            let _ = self.inner.lines.send(line).await;
            answer.await
        };
        let outcome = tokio::time::timeout(self.patience, exchange).await;
        drop(forget);
        let raw = match outcome {
            Err(_) => return Err(ClientError::Timeout(self.patience)),
            Ok(Err(_)) => return Err(ClientError::Closed("the client was stopped".to_owned())),
            Ok(Ok(answer)) => answer?,
        };
        serde_json::from_str(raw.get()).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    /// Call a method and hear about its progress. The token is chosen here unless `token` has one.
    async fn call_with_progress<P: Serialize, R: DeserializeOwned>(
        &self,
        method: Method,
        mut params: P,
        token: impl FnOnce(&mut P) -> &mut Option<ProgressToken>,
        mut heard: impl FnMut(Progress),
    ) -> Result<R, ClientError> {
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let token = token(&mut params)
            .get_or_insert_with(|| format!("p{number}").parse().expect("a letter and a number"))
            .clone();
        let (sender, mut progress) = mpsc::unbounded_channel();
        lock(&self.inner.waiting).progress.insert(token.clone(), sender);
        let outcome = {
            let call = self.call(method.name(), &params);
            tokio::pin!(call);
            loop {
                tokio::select! {
                    biased;
                    Some(progress) = progress.recv() => heard(progress),
                    outcome = &mut call => break outcome,
                }
            }
        };
        lock(&self.inner.waiting).progress.remove(&token);
        // What arrived with the answer.
        while let Ok(progress) = progress.try_recv() {
            heard(progress);
        }
        outcome
    }

    /// `browser-clone-create`.
    pub async fn create(&self, params: CreateParams) -> Result<CreateResult, ClientError> {
        self.call(Method::Create.name(), &params).await
    }

    /// `browser-clone-create`, hearing about each step.
    pub async fn create_with_progress(
        &self,
        params: CreateParams,
        heard: impl FnMut(Progress),
    ) -> Result<CreateResult, ClientError> {
        self.call_with_progress(Method::Create, params, |params| &mut params.progress_token, heard).await
    }

    /// `browser-clone-destroy`.
    pub async fn destroy(&self, params: DestroyParams) -> Result<DestroyResult, ClientError> {
        self.call(Method::Destroy.name(), &params).await
    }

    /// `browser-clone-destroy`, hearing about each step.
    pub async fn destroy_with_progress(
        &self,
        params: DestroyParams,
        heard: impl FnMut(Progress),
    ) -> Result<DestroyResult, ClientError> {
        self.call_with_progress(Method::Destroy, params, |params| &mut params.progress_token, heard).await
    }

    /// `browser-clone-reap`.
    pub async fn reap(&self, params: ReapParams) -> Result<ReapResult, ClientError> {
        self.call(Method::Reap.name(), &params).await
    }

    /// `browser-clone-reap`, hearing about each step.
    pub async fn reap_with_progress(
        &self,
        params: ReapParams,
        heard: impl FnMut(Progress),
    ) -> Result<ReapResult, ClientError> {
        self.call_with_progress(Method::Reap, params, |params| &mut params.progress_token, heard).await
    }

    /// `browser-clone-force-unmount`.
    pub async fn force_unmount(&self, params: ForceUnmountParams) -> Result<ForceUnmountResult, ClientError> {
        self.call(Method::ForceUnmount.name(), &params).await
    }

    /// `browser-clone-force-unmount`, hearing about each step.
    pub async fn force_unmount_with_progress(
        &self,
        params: ForceUnmountParams,
        heard: impl FnMut(Progress),
    ) -> Result<ForceUnmountResult, ClientError> {
        self.call_with_progress(Method::ForceUnmount, params, |params| &mut params.progress_token, heard)
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

/// Takes a call off the list, also when its future is dropped.
struct Forget<'a> {
    waiting: &'a Mutex<Waiting>,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(self.waiting).calls.remove(&self.id);
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends when the last copy of the client is gone, or with the reader after the connection broke.
async fn write_lines(
    mut write: OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Vec<u8>>,
    reader: &tokio::task::JoinHandle<()>,
) {
    while let Some(line) = outgoing.recv().await {
        if write.write_all(&line).await.is_err() {
            // hostd's last word may still be on its way: the reader ends when it has seen everything.
            while !reader.is_finished() && outgoing.recv().await.is_some() {}
            return;
        }
    }
}

async fn read_replies(read: OwnedReadHalf, waiting: Arc<Mutex<Waiting>>) {
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    let mut last_word = None;
    let end = loop {
        line.clear();
        match (&mut read).take(LONGEST_ANSWER).read_until(b'\n', &mut line).await {
            Ok(0) => break ClientError::Closed("hostd closed it".to_owned()),
            Ok(_) if line.last() != Some(&b'\n') => {
                break ClientError::Closed("it broke inside an answer".to_owned());
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
            // About the connection itself: hostd closes it after this line.
            Ok(Reply::Answer { id: None, outcome }) => last_word = outcome.err().map(ClientError::Rpc),
        }
    };
    let end = last_word.unwrap_or(end);
    let mut waiting = lock(&waiting);
    waiting.ended = Some(end.clone());
    for (_, call) in waiting.calls.drain() {
        let _ = call.send(Err(end.clone()));
    }
}
