//! The assembled service: what every surface calls.

use crate::access::Caller;
use crate::actions::{Verb, run};
use crate::audit::{Audit, Begun};
use crate::config::Config;
use crate::error::ApiError;
use crate::hosts::HostLink;
use crate::recording::Recordings;
use crate::sessions::{Entered, Sessions};
use crate::store::Store;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde_json::value::RawValue;
use std::net::SocketAddr;
use std::sync::Arc;

/// The assembled service. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct App {
    /// The configuration.
    pub config: Arc<Config>,
    /// The database.
    pub store: Store,
    /// The audit log.
    pub audit: Audit,
    /// The hosts of clones.
    pub hosts: Arc<dyn HostLink>,
    /// The sessions.
    pub sessions: Sessions,
    /// The recordings.
    pub recordings: Recordings,
}

/// What a caller sends beside the parameters.
#[derive(Debug, Clone, Default)]
pub struct CallOptions {
    /// The session, for verbs that have one; checked like every other input.
    pub session: Option<String>,
    /// The header Idempotency-Key of an open.
    pub idempotency_key: Option<String>,
}

/// A session's browser, for the CDP relay. The session counts as used while this exists; dropping it writes the outcome to
/// the audit log.
pub struct CdpTarget {
    /// The address of browserd in the clone.
    pub address: SocketAddr,
    /// The path of browserd's raw CDP WebSocket, with the clone's secret; never logged or shown to a caller.
    pub path: String,
    used: Entered,
    begun: Option<Begun>,
}

impl std::fmt::Debug for CdpTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CdpTarget").field("session", self.used.id()).finish_non_exhaustive()
    }
}

impl CdpTarget {
    pub(crate) fn new(address: SocketAddr, path: String, used: Entered, begun: Begun) -> Self {
        Self { address, path, used, begun: Some(begun) }
    }

    /// Waits until the session ends, and says why.
    pub async fn closed(&self) -> ApiError {
        self.used.closed().await
    }
}

impl Drop for CdpTarget {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            begun.end(Ok(()));
        }
    }
}

/// The bytes of a file in a session.
pub struct FileStream {
    /// The file name that the site suggested.
    pub name: String,
    /// The media type.
    pub mime_type: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its content. The session counts as used until it is dropped.
    pub content: BoxStream<'static, Result<Bytes, ApiError>>,
}

impl std::fmt::Debug for FileStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStream").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl App {
    /// Start the service: find the sessions of an earlier run again, and begin to look after them.
    pub async fn start(
        config: Arc<Config>,
        store: Store,
        audit: Audit,
        hosts: Arc<dyn HostLink>,
    ) -> Result<App, ApiError> {
        let recordings = Recordings::start(config.recording.clone(), store.clone()).await?;
        let sessions =
            Sessions::start(config.clone(), store.clone(), audit.clone(), hosts.clone(), recordings.clone())
                .await?;
        Ok(App { config, store, audit, hosts, sessions, recordings })
    }

    /// Stop looking after sessions. They stay open; the next start finds them again. The audit log is stopped by its owner
    /// afterwards.
    pub async fn stop(&self) {
        self.sessions.stop().await;
    }

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
        run::call(self, caller, verb, options, params.get()).await
    }

    /// Raw CDP of a session, audited. Needs the scope `cdp`; refused in operator sessions.
    pub async fn cdp(&self, caller: &Caller, session: &str) -> Result<CdpTarget, ApiError> {
        run::cdp(self, caller, session).await
    }

    /// The bytes of a finished download, audited as the verb `download`: `GET /v1/sessions/{session_id}/downloads/{guid}`.
    /// With `delete` the file is removed from the session when all of it was sent.
    pub async fn download(
        &self,
        caller: &Caller,
        session: &str,
        guid: &str,
        delete: bool,
    ) -> Result<FileStream, ApiError> {
        run::download(self, caller, session, guid, delete).await
    }

    /// Put a file into a session, audited as the verb `put_file`: `POST /v1/sessions/{session_id}/files?name=NAME`. The
    /// answer is the JSON of the verb's result type.
    pub async fn put_file(
        &self,
        caller: &Caller,
        session: &str,
        name: &str,
        content: BoxStream<'static, Result<Bytes, ApiError>>,
    ) -> Result<Box<RawValue>, ApiError> {
        run::put_file(self, caller, session, name, content).await
    }
}
