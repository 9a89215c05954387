//! What the server needs from the lifecycle, so that it can be tested and fuzzed without a host.

use crate::api::*;
use crate::host::Host;
use crate::lifecycle::{Caller, Engine, EngineStatus, ProgressSink};
use std::collections::BTreeMap;
use std::future::Future;

/// The operations behind the methods. [`Engine`] is the one that acts.
pub trait Operations: Send + Sync + 'static {
    /// `browser-clone-create`.
    fn create(
        &self,
        caller: &Caller,
        params: CreateParams,
        progress: Option<ProgressSink>,
    ) -> impl Future<Output = Result<CreateResult, RpcError>> + Send;

    /// `browser-clone-destroy`.
    fn destroy(
        &self,
        caller: &Caller,
        params: DestroyParams,
        progress: Option<ProgressSink>,
    ) -> impl Future<Output = Result<DestroyResult, RpcError>> + Send;

    /// `browser-clone-reap`.
    fn reap(
        &self,
        caller: &Caller,
        params: ReapParams,
        progress: Option<ProgressSink>,
    ) -> impl Future<Output = Result<ReapResult, RpcError>> + Send;

    /// `browser-clone-force-unmount`.
    fn force_unmount(
        &self,
        caller: &Caller,
        params: ForceUnmountParams,
        progress: Option<ProgressSink>,
    ) -> impl Future<Output = Result<ForceUnmountResult, RpcError>> + Send;

    /// `browser-clone-list`; quick.
    fn list(&self, caller: &Caller, params: &ListParams) -> ListResult;

    /// The lifecycle's share of `host-status`; quick.
    fn status(&self) -> EngineStatus;

    /// The host's drivers; quick.
    fn drivers(&self) -> BTreeMap<String, String>;

    /// The host's checks.
    fn checks(&self) -> impl Future<Output = Vec<Finding>> + Send;

    /// Refuse new operations and wait for the running ones; answers how many are left.
    fn shutdown(&self) -> impl Future<Output = u64> + Send;
}

impl<H: Host> Operations for Engine<H> {
    async fn create(
        &self,
        caller: &Caller,
        params: CreateParams,
        progress: Option<ProgressSink>,
    ) -> Result<CreateResult, RpcError> {
        Engine::create(self, caller, params, progress).await
    }

    async fn destroy(
        &self,
        caller: &Caller,
        params: DestroyParams,
        progress: Option<ProgressSink>,
    ) -> Result<DestroyResult, RpcError> {
        Engine::destroy(self, caller, params, progress).await
    }

    async fn reap(
        &self,
        caller: &Caller,
        params: ReapParams,
        progress: Option<ProgressSink>,
    ) -> Result<ReapResult, RpcError> {
        Engine::reap(self, caller, params, progress).await
    }

    async fn force_unmount(
        &self,
        caller: &Caller,
        params: ForceUnmountParams,
        progress: Option<ProgressSink>,
    ) -> Result<ForceUnmountResult, RpcError> {
        Engine::force_unmount(self, caller, params, progress).await
    }

    fn list(&self, caller: &Caller, params: &ListParams) -> ListResult {
        Engine::list(self, caller, params)
    }

    fn status(&self) -> EngineStatus {
        Engine::status(self)
    }

    fn drivers(&self) -> BTreeMap<String, String> {
        self.host().drivers()
    }

    async fn checks(&self) -> Vec<Finding> {
        self.host().checks().await
    }

    async fn shutdown(&self) -> u64 {
        Engine::shutdown(self).await
    }
}
