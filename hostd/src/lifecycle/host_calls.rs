//! Calls to the host, each with a deadline.

use crate::host::{Host, HostError, HostErrorKind, HostResult, ObservedClone, Part};
use crate::slot::SlotNames;
use crate::timing;
use std::time::Duration;
use tracing::Instrument;

/// The host, called with a deadline.
pub(super) struct HostCalls<H> {
    pub(super) host: H,
    timeout: Duration,
}

impl<H: Host> HostCalls<H> {
    pub(super) fn new(host: H, timeout: Duration) -> HostCalls<H> {
        HostCalls { host, timeout }
    }

    /// Wait for a call, at most as long as a step may take.
    ///
    /// A call that is given up may still have work on another thread. It is waited for as well before the timeout is
    /// reported, so that nothing is undone while it is still being made.
    pub(super) async fn run<T>(
        &self,
        object: &str,
        work: impl Future<Output = HostResult<T>>,
    ) -> HostResult<T> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(result) => result,
            Err(_) => {
                let late = match self.settle().await {
                    Ok(()) => "",
                    Err(_) => ", and its work is still running",
                };
                Err(HostError::new(
                    HostErrorKind::Timeout,
                    object,
                    format!("no answer within {} s{late}", self.timeout.as_secs()),
                    "check the host's load and hostd's log; raise lifecycle.step_timeout_seconds if the host is only slow",
                ))
            }
        }
    }

    /// Wait until no work of abandoned calls is left.
    pub(super) async fn settle(&self) -> HostResult<()> {
        tokio::time::timeout(self.timeout, self.host.settle()).await.map_err(|_| {
            HostError::new(
                HostErrorKind::Busy,
                "host",
                "work of a call that timed out is still running",
                "check the host's disks and load; a process in state D waits for a disk",
            )
        })
    }

    /// Inspect some parts of a slot. Parts that are not asked for are left out of the result.
    pub(super) async fn inspect(&self, names: &SlotNames, parts: &[Part]) -> HostResult<ObservedClone> {
        self.run(names.name.as_str(), self.host.inspect(names, parts)).instrument(timing::part("look")).await
    }
}
