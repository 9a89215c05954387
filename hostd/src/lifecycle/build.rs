//! Building a clone in its place: ensure a step, look, note it; roll back on the first failure.

use super::create::host_error;
use super::engine::{Caller, Inner};
use super::ours::Claim;
use super::progress::{Listeners, Progress};
use super::reconcile;
use super::step::Step;
use super::walk::{Ended, Walked};
use crate::api::{CreateResult, Launch, RpcError};
use crate::host::{CloneSpec, Host, HostError, HostErrorKind, ServiceEndpoint};
use crate::record::{Phase, Record};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;

impl<H: Host> Inner<H> {
    /// Run the steps that are left of a caller's clone, and make it ready.
    pub(super) async fn build(
        self: &Arc<Self>,
        record: Record,
        steps: &[Step],
        launch: Launch,
        progress: Progress,
        listeners: &Listeners,
    ) -> Result<CreateResult, RpcError> {
        let spec = reconcile::spec(&record, &self.pool);
        let service = match self.run_steps(record.pool, &spec, steps, &progress).await {
            Ok(service) => service.unwrap_or_default(),
            Err(error) => return Err(self.roll_back(record, error, listeners).await),
        };
        let stages = progress.stages();
        let ServiceEndpoint { endpoint, cdp_endpoint } = service;
        let phase = Phase::Ready { endpoint, cdp_endpoint, stages: stages.clone(), launch };
        let ready = Record { phase, ..record.clone() };
        if let Err(error) = self.save(&ready).await {
            let error = self.state_unavailable(&error).about(&spec.names.name);
            return Err(self.roll_back(record, error, listeners).await);
        }
        for stage in &stages {
            self.metrics.stage(&stage.stage, launch, stage.seconds);
        }
        self.heed_deadline(&ready);
        Ok(self.answer(&ready))
    }

    /// The answer of a create.
    pub(super) fn answer(&self, ready: &Record) -> CreateResult {
        let owner = Caller { operator: true, ..Caller::hostd("create") };
        CreateResult { clone: self.describe(ready, &owner), renewed: false }
    }

    /// Run these steps, each as soon as those are done that the host says it waits for: the browser comes up while the rest
    /// is finished. Of a clone that is made ahead they are run one by one, with callers first. Answers where the service
    /// is, if it was among them.
    ///
    /// After a failure nothing is begun any more, and what is under way is waited for: what is taken away again must not
    /// be made at the same time.
    pub(super) async fn run_steps(
        self: &Arc<Self>,
        ahead: bool,
        spec: &CloneSpec,
        steps: &[Step],
        progress: &Progress,
    ) -> Result<Option<ServiceEndpoint>, RpcError> {
        let run = |step: Step| async move {
            (step, progress.step(&step.to_string(), self.run_step(step, spec)).await)
        };
        let waits = |step: Step, earlier: Step| ahead || self.host.waits_for(step.part(), earlier.part());
        let (mut to_begin, mut to_end) = (steps.to_vec(), steps.to_vec());
        let mut running = FuturesUnordered::new();
        let (mut service, mut failed) = (None, None);
        loop {
            if failed.is_none() && !to_begin.is_empty() {
                if ahead {
                    self.may_go_on().await?;
                }
                let begins = |step: &mut Step| {
                    !to_end.iter().any(|earlier| *earlier < *step && waits(*step, *earlier))
                };
                running.extend(to_begin.extract_if(.., begins).map(run));
            }
            let Some((step, made)) = running.next().await else { break };
            to_end.retain(|left| *left != step);
            match made {
                Ok(answer) => service = answer.or(service),
                Err(error) => failed = failed.or(Some(host_error(&error).step(step).about(&spec.names.name))),
            }
        }
        failed.map_or(Ok(service), Err)
    }

    pub(super) async fn run_step(
        &self,
        step: Step,
        spec: &CloneSpec,
    ) -> Result<Option<ServiceEndpoint>, HostError> {
        let name = spec.names.name.as_str();
        let answer = self.bounded(name, step.ensure(&self.host, spec)).await?;
        if self.host.answers_for(step.part()) {
            return Ok(answer);
        }
        let seen = self.look(&spec.names, &[step.part()]).await?;
        step.verify(spec, &seen).map_err(|why| {
            let message = format!("the host reported success, but {why}");
            HostError::new(
                HostErrorKind::Failed,
                name,
                message,
                "look at the host's log; hostctl doctor checks the host",
            )
        })?;
        Ok(answer)
    }

    /// Undo what was made and answer the first error with the clean-up's errors beside it.
    pub(super) async fn roll_back(
        self: &Arc<Self>,
        record: Record,
        error: RpcError,
        listeners: &Listeners,
    ) -> RpcError {
        let names = self.pool.names(record.slot);
        let record = self.begin_destroy(record, &format!("its create failed: {error}")).await;
        let claim = Claim::Clone(&record.clone_id);
        let walked = self.walk(&names, claim, Progress::new(&names.name, listeners)).await;
        self.rolled_back(record, error, walked).await
    }

    pub(super) async fn rolled_back(
        self: &Arc<Self>,
        record: Record,
        error: RpcError,
        walked: Walked,
    ) -> RpcError {
        let errors = match walked.ended {
            Ended::Gone | Ended::Dying => Vec::new(),
            Ended::Incomplete => walked.errors.clone(),
        };
        self.finish_destroy(record, &walked).await;
        error.cleanup(errors)
    }
}
