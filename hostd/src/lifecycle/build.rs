//! Building a clone in its slot: run a step, inspect its result; roll back on the first failure.

use super::errors::{host_error, state_unavailable};
use super::ownership::Ownership;
use super::planner;
use super::progress::Progress;
use super::slot_task::SlotWorker;
use super::step::Step;
use super::teardown::{Teardown, TeardownEnd};
use crate::api::{CreateResult, Launch, RpcError};
use crate::host::{CloneSpec, Host, HostError, HostErrorKind, HostResult, ServiceEndpoint};
use crate::record::{Phase, Record};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

impl<H: Host> SlotWorker<H> {
    /// Run the remaining steps of a caller's clone, and make it ready.
    pub(super) async fn build(
        &self,
        record: Record,
        steps: &[Step],
        launch: Launch,
        progress: Progress,
    ) -> Result<CreateResult, RpcError> {
        let spec = planner::spec(&record, &self.parts.slots);
        let service = match self.run_steps(record.pool, &spec, steps, &progress).await {
            Ok(service) => service.unwrap_or_default(),
            Err(error) => return Err(self.roll_back(record, error).await),
        };
        let stages = progress.stages();
        let ServiceEndpoint { endpoint, cdp_endpoint } = service;
        let phase = Phase::Ready { endpoint, cdp_endpoint, stages: stages.clone(), launch };
        let ready = Record { phase, ..record.clone() };
        if let Err(error) = self.parts.registry.save(&self.turn, &ready).await {
            let error = state_unavailable(&self.parts.config, &error).about(&spec.names.name);
            return Err(self.roll_back(record, error).await);
        }
        Ok(self.handed_out(&ready, launch))
    }

    /// A clone is ready for its caller: count its stages, mind its deadline, describe it.
    pub(super) fn handed_out(&self, ready: &Record, launch: Launch) -> CreateResult {
        if let Phase::Ready { stages, .. } = &ready.phase {
            for stage in stages {
                self.parts.metrics.stage(&stage.stage, launch, stage.seconds);
            }
        }
        // The timer sleeps until the next inspection, unless this deadline is earlier.
        let left = self.parts.clock.now().until(&ready.deadline);
        if left.is_some_and(|left| left < self.parts.interval()) {
            self.parts.wake.notify_one();
        }
        self.parts.create_result(ready, false)
    }

    /// Run these steps, each as soon as the steps it waits for are done. The steps of a member of the warm pool run one by
    /// one, and callers come first. Returns the service's endpoint, if that step is among them.
    ///
    /// After a failure no step is started, and the running ones are waited for: a rollback must not run beside them.
    pub(super) async fn run_steps(
        &self,
        member: bool,
        spec: &CloneSpec,
        steps: &[Step],
        progress: &Progress,
    ) -> Result<Option<ServiceEndpoint>, RpcError> {
        let run = |step: Step| async move {
            (step, progress.step(&step.to_string(), self.run_step(step, spec)).await)
        };
        let host = &self.parts.host.host;
        let waits = |step: Step, earlier: Step| member || host.waits_for(step.part(), earlier.part());
        let (mut to_start, mut unfinished) = (steps.to_vec(), steps.to_vec());
        let mut running = FuturesUnordered::new();
        let (mut service, mut failed) = (None, None);
        loop {
            if failed.is_none() && !to_start.is_empty() {
                if member {
                    self.parts.yield_to_callers().await?;
                }
                let starts = |step: &mut Step| {
                    !unfinished.iter().any(|earlier| *earlier < *step && waits(*step, *earlier))
                };
                running.extend(to_start.extract_if(.., starts).map(run));
            }
            let Some((step, result)) = running.next().await else { break };
            unfinished.retain(|left| *left != step);
            match result {
                Ok(endpoint) => service = endpoint.or(service),
                Err(error) => failed = failed.or(Some(host_error(&error).step(step).about(&spec.names.name))),
            }
        }
        failed.map_or(Ok(service), Err)
    }

    /// Run one step and verify its result by an inspection.
    pub(super) async fn run_step(&self, step: Step, spec: &CloneSpec) -> HostResult<Option<ServiceEndpoint>> {
        let host = &self.parts.host;
        let name = spec.names.name.as_str();
        let endpoint = host.run(name, step.ensure(&host.host, spec)).await?;
        if host.host.answers_for(step.part()) {
            return Ok(endpoint);
        }
        let observed = host.inspect(&spec.names, &[step.part()]).await?;
        step.verify(spec, &observed).map_err(|why| {
            let message = format!("the host reported success, but {why}");
            let hint = "look at the host's log; hostctl doctor checks the host";
            HostError::new(HostErrorKind::Failed, name, message, hint)
        })?;
        Ok(endpoint)
    }

    /// Undo what was made, and return the first error with the errors of the rollback.
    pub(super) async fn roll_back(&self, record: Record, error: RpcError) -> RpcError {
        let record = self.begin_destroy(record, &format!("its create failed: {error}")).await;
        let progress = Progress::new(&self.names.name, &self.listeners);
        let teardown = self.tear_down(Ownership::Clone(&record.clone_id), progress, || {}).await;
        self.rolled_back(record, error, teardown).await
    }

    pub(super) async fn rolled_back(&self, record: Record, error: RpcError, teardown: Teardown) -> RpcError {
        let errors = match teardown.end {
            TeardownEnd::Gone | TeardownEnd::Dying => Vec::new(),
            TeardownEnd::Incomplete => teardown.errors.clone(),
        };
        self.finish_destroy(record, &teardown).await;
        error.cleanup(errors)
    }
}
