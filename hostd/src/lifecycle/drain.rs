//! Emptying the warm pool: members that are too old are the reaper's, all others go here.

use super::engine::{Caller, Inner, Working};
use super::ours::Claim;
use super::progress::{Listeners, Progress};
use super::walk::Ended;
use crate::api::{ErrorCode, Method, RpcError};
use crate::audit::Outcome;
use crate::host::Host;
use crate::record::Record;
use crate::slot::{Slot, SlotNames};
use std::sync::Arc;
use std::time::Instant;

impl<H: Host> Inner<H> {
    /// Take every member away, each in a task of its own that a stopping daemon waits for.
    pub(super) fn begin_drain_all(self: &Arc<Self>, why: &'static str) {
        let members: Vec<Slot> = self
            .book()
            .records
            .values()
            .filter(|record| record.pooled().is_some())
            .map(|record| record.slot)
            .collect();
        for slot in members {
            let (inner, active) = (self.clone(), self.active());
            tokio::spawn(async move {
                inner.drain(slot, why).await;
                drop(active);
            });
        }
    }

    /// Take the member in this slot away, if it still is one.
    pub(super) async fn drain(self: &Arc<Self>, slot: Slot, why: &str) {
        let working = self.work_on(slot).await;
        let record = self.book().records.get(&slot).cloned();
        if let Some(record) = record.filter(|record| record.pooled().is_some()) {
            self.drain_held(record, working, why).await;
        }
    }

    /// Take a member away that is held. Its slot is free at once: nobody ever knew of it.
    pub(super) async fn drain_held(self: &Arc<Self>, record: Record, _working: Working<H>, why: &str) {
        let names = self.pool.names(record.slot);
        let request = serde_json::json!({ "name": names.name, "pool": why });
        let work = async {
            let record = self.begin_destroy(record, why).await;
            let claim = Claim::Clone(&record.clone_id);
            let walked = self.walk(&names, claim, Progress::new(&names.name, &Listeners::default())).await;
            self.finish_destroy(record, &walked).await;
            if let Ended::Incomplete = walked.ended {
                return Err(RpcError::new(
                    ErrorCode::Incomplete,
                    walked.errors.join("; "),
                    "the reaper goes on",
                ));
            }
            self.count_drained();
            Ok(names.clone())
        };
        if let Err(error) = self.audited_by_pool(Method::Destroy, request, work).await {
            tracing::warn!(clone = %names.name, %error, "a member of the warm pool is not gone yet");
        }
    }

    pub(super) fn count_drained(&self) {
        self.book().tally.drained += 1;
        self.metrics.pool_drained();
    }

    /// What the pool does to the host is in the audit log as well.
    pub(super) async fn audited_by_pool(
        self: &Arc<Self>,
        method: Method,
        request: serde_json::Value,
        work: impl Future<Output = Result<SlotNames, RpcError>>,
    ) -> Result<SlotNames, RpcError> {
        let actor = Caller::hostd("pool").actor;
        let began = Instant::now();
        let call = self.audit_before(&actor, method, request).await?;
        let result = work.await;
        let outcome = Outcome {
            result: result.as_ref().map_or_else(|error| error.code().word(), |_| "ok").to_owned(),
            name: result.as_ref().ok().map(|names| names.name.to_string()),
            error: result.as_ref().err().map(ToString::to_string),
            seconds: began.elapsed().as_secs_f64(),
        };
        self.audit_after(call, actor, method, outcome).await;
        result
    }
}
