//! Reap and the timer: inspect the whole host, and do what the [`planner`] decides.

use super::entry::Caller;
use super::errors::host_error;
use super::ownership::{self, Ownership};
use super::parts::Parts;
use super::planner::{self, Decision, Facts, ReconcilePlan, Repair, Rules, SlotAssessment};
use super::progress::{Progress, ProgressSink};
use super::reaping::UNFINISHED_AT_ONCE;
use super::slot_task::{SlotMessage, SlotReply, SlotWorker};
use super::teardown::TeardownEnd;
use crate::api::{CloneId, ErrorCode, Method, ReapLine, ReapParams, ReapReason, ReapResult, RpcError};
use crate::host::{Host, HostResult, Inventory, ObservedClone, Part, chain};
use crate::record::Phase;
use crate::slot::Slot;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// The timer never sleeps shorter than this: a clone that cannot be destroyed is not retried in a tight loop.
const SHORTEST_SLEEP: Duration = Duration::from_millis(50);

/// What came of one clone that was due.
#[derive(Debug, Clone)]
pub(super) enum Reaped {
    Gone(String),
    Failed(String, Vec<String>),
    /// A fresh inspection by the slot's own task decided otherwise.
    Kept(String),
}

impl<H: Host> Parts<H> {
    fn rules(&self) -> Rules {
        let lifecycle = &self.config.lifecycle;
        Rules {
            orphan_grace: Duration::from_secs(lifecycle.orphan_grace_seconds),
            quarantine: Duration::from_secs(lifecycle.quarantine_seconds),
            longest_lease: Duration::from_secs(lifecycle.max_deadline_seconds),
            reap_cap: lifecycle.reap_cap,
        }
    }

    /// Inspect the whole host and plan.
    async fn plan(&self) -> HostResult<ReconcilePlan> {
        let began = Instant::now();
        let (revision, mut busy) = (self.registry.read().revision(), self.tasks.busy());
        let inventory = self.host.run("inventory", self.host.host.inventory()).await?;
        let now = self.clock.now();
        // A slot that changed during the inspection cannot be assessed by it.
        busy.extend(self.tasks.busy());
        let plan = self.registry.take_inventory(inventory, &now, revision, busy, |state, inventory, busy| {
            let target = self.warm_pool_target();
            let facts = Facts {
                slots: &self.slots,
                records: &state.records,
                unreadable: &state.unreadable,
                seen: inventory,
                seen_for: &state.seen_for(&now),
                working: busy,
                target: target.as_ref(),
                now: &now,
            };
            let plan = planner::reconcile(&facts, &self.rules());
            let assessed = plan
                .assessments
                .iter()
                .filter(|(slot, _)| !busy.contains(slot))
                .map(|(slot, assessment)| (*slot, (assessment.state, assessment.problem.clone())))
                .collect();
            (assessed, plan)
        });
        self.alarms.set("reap", plan.alarm.clone());
        self.alarms.set("egress", self.registry.read().egress().problem().map(str::to_owned));
        self.metrics.reconcile(began.elapsed().as_secs_f64());
        Ok(plan)
    }

    /// One turn of the timer. Returns the removals that it began; they go on by themselves.
    pub(super) async fn reconcile(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        if self.calls.closing() {
            return Vec::new();
        }
        self.calls.flush_audit().await;
        self.check_template_version().await;
        let mut plan = self.plan().await;
        if let Ok(first) = &plan
            && first.repairs.contains(&Repair::Firewall)
        {
            self.repair_firewall().await;
            // Only another inspection can tell which members of the table are missing.
            plan = self.plan().await;
        }
        let reaping = match self.inspected(plan) {
            Some(plan) => {
                let reaping = self.start_reaping(&plan.reap);
                self.repair_all(&plan).await;
                reaping
            }
            None => self.start_reaping(&self.due_by_record()),
        };
        self.write_records().await;
        reaping
    }

    /// What the records alone say is due, for a host that cannot be inspected as a whole. Each slot is inspected by itself
    /// before anything in it is removed.
    fn due_by_record(&self) -> Vec<(Slot, ReapReason)> {
        let (now, busy) = (self.clock.now(), self.tasks.busy());
        let state = self.registry.read();
        let nothing = Inventory { clones: BTreeMap::new(), aside: BTreeSet::new(), egress: state.egress() };
        let facts = Facts {
            slots: &self.slots,
            records: &state.records,
            unreadable: &BTreeMap::new(),
            seen: &nothing,
            seen_for: &BTreeMap::new(),
            working: &busy,
            target: None,
            now: &now,
        };
        let mut due = planner::reconcile(&facts, &self.rules()).reap;
        // Whether a member of the warm pool is still wanted depends on an inspection.
        due.retain(|(_, reason)| *reason != ReapReason::PoolDrained);
        due
    }

    /// Write the records whose file was lost or could not be written.
    async fn write_records(self: &Arc<Self>) {
        match self.registry.unsaved().await {
            Ok(slots) if slots.is_empty() => self.state_written(&Ok(())),
            Ok(slots) => {
                // A removal comes first, and writes the record itself.
                let idle = slots.into_iter().filter(|slot| !self.reaping.contains(*slot));
                let sent = idle.filter_map(|slot| self.send_if_idle(slot, SlotMessage::WriteRecord));
                join_all(sent.collect::<Vec<_>>()).await;
            }
            Err(error) => self.state_written(&Err(error)),
        }
    }

    /// Inspect the host once without doing anything.
    pub(super) async fn first_inspection(&self) {
        let plan = self.plan().await;
        self.inspected(plan);
    }

    fn inspected(&self, plan: HostResult<ReconcilePlan>) -> Option<ReconcilePlan> {
        let alarm =
            plan.as_ref().err().map(|error| format!("the host cannot be inspected: {}", chain(error)));
        self.alarms.set("host", alarm);
        plan.ok()
    }

    /// How long until the next deadline, at most the interval.
    pub(super) fn until_next_turn(&self) -> Duration {
        let (now, interval) = (self.clock.now(), self.interval());
        let state = self.registry.read();
        let ready = state.records.values().filter(|record| {
            matches!(record.phase, Phase::Ready { .. }) && !self.reaping.contains(record.slot)
        });
        let next = ready.filter_map(|record| now.until(&record.deadline)).min().unwrap_or(interval);
        next.clamp(SHORTEST_SLEEP, interval.max(SHORTEST_SLEEP))
    }

    /// Run the repairs and releases of a plan: nothing of it destroys a clone.
    async fn repair_all(self: &Arc<Self>, plan: &ReconcilePlan) {
        let mut sent = Vec::new();
        let mut aside = Vec::new();
        for repair in &plan.repairs {
            match repair {
                Repair::Firewall => {}
                Repair::DestroyAside(id) => aside.push(self.destroy_aside(id)),
                Repair::GrantEgress(slot)
                | Repair::CutEgress(slot)
                | Repair::SetLimits(slot)
                | Repair::Freeze(slot)
                | Repair::Thaw(slot) => {
                    // A removal cuts egress first of all.
                    if self.reaping.contains(*slot) {
                        continue;
                    }
                    // A slot with several repairs is busy with the first: they queue.
                    if !self.tasks.is_busy(*slot) || sent.iter().any(|(queued, _)| queued == slot) {
                        sent.push((*slot, self.send(*slot, SlotMessage::Repair(repair.clone()), None)));
                    }
                }
            }
        }
        let released = plan.release.iter().filter_map(|slot| self.send_if_idle(*slot, SlotMessage::Release));
        let replies = sent.into_iter().map(|(_, reply)| reply).chain(released.collect::<Vec<_>>());
        tokio::join!(join_all(replies), join_all(aside));
    }

    /// `browser-clone-reap`.
    pub(super) async fn reap(
        self: &Arc<Self>,
        caller: &Caller,
        params: ReapParams,
        progress: Option<ProgressSink>,
    ) -> Result<ReapResult, RpcError> {
        let only = params.name.as_ref().map(|name| self.slot_of(name)).transpose()?;
        let plan = self.plan().await.map_err(|error| host_error(&error))?;
        let mut result =
            ReapResult { dry_run: params.dry_run, alarm: plan.alarm.clone(), ..ReapResult::default() };
        let mut due: Vec<(Slot, ReapReason)> = plan.reap.clone();
        match only {
            // An operator who names a clone overrides the cap and the alarm. Others do not: they could empty the host one
            // name at a time.
            Some(slot) if caller.operator => {
                due = self.due_alone(slot).await.map_err(|error| host_error(&error))?.into_iter().collect();
                result.alarm = None;
            }
            Some(slot) => due.retain(|(due, _)| *due == slot),
            None => {}
        }
        let line = |slot: Slot, reason, why, errors| ReapLine {
            name: self.slots.name(slot).into(),
            reason,
            why,
            errors,
        };
        let chosen: BTreeSet<Slot> = due.iter().map(|(slot, _)| *slot).collect();
        for (slot, assessment) in &plan.assessments {
            if !chosen.contains(slot) && only.is_none_or(|only| only == *slot) {
                result.kept.push(line(*slot, None, assessment.why.clone(), Vec::new()));
            }
        }
        if params.dry_run {
            for (slot, reason) in due {
                let why = plan.assessments.get(&slot).map(|assessment| assessment.why.clone());
                result.reaped.push(line(slot, Some(reason), why.unwrap_or_default(), Vec::new()));
            }
            for repair in plan.repairs.iter().filter(|_| only.is_none()) {
                let Repair::DestroyAside(id) = repair else { continue };
                result.reaped.push(ReapLine {
                    name: format!("aside/{id}"),
                    reason: Some(ReapReason::DestroyUnfinished),
                    why: "its storage was busy when its clone was destroyed and was moved aside".into(),
                    errors: Vec::new(),
                });
            }
            return Ok(result);
        }
        if only.is_none() {
            self.repair_all(&plan).await;
        }
        let reaping = stream::iter(due).map(|(slot, reason)| {
            let (parts, progress) = (self.clone(), progress.clone());
            async move {
                let reply = parts.send(slot, SlotMessage::Reap { reason, audited: false }, progress);
                (slot, reason, reply.await)
            }
        });
        for (slot, reason, reply) in reaping.buffered(UNFINISHED_AT_ONCE).collect::<Vec<_>>().await {
            match reply {
                Ok(SlotReply::Reaped(Reaped::Gone(why))) => {
                    result.reaped.push(line(slot, Some(reason), why, Vec::new()));
                }
                Ok(SlotReply::Reaped(Reaped::Kept(why))) => {
                    result.kept.push(line(slot, None, why, Vec::new()));
                }
                Ok(SlotReply::Reaped(Reaped::Failed(why, errors))) => {
                    result.failed.push(line(slot, Some(reason), why, errors));
                }
                Ok(_) | Err(_) => {
                    let errors = vec!["the operation died inside hostd".to_owned()];
                    result.failed.push(line(slot, Some(reason), "its log says where".into(), errors));
                }
            }
        }
        Ok(result)
    }

    /// Whether this one slot is due, regardless of all others.
    async fn due_alone(&self, slot: Slot) -> HostResult<Option<(Slot, ReapReason)>> {
        let observed = self.host.inspect(&self.slots.names(slot), Part::ALL).await?;
        let known = {
            let state = self.registry.read();
            state.records.contains_key(&slot) || state.unreadable.contains_key(&slot)
        };
        if observed.is_absent() && !known {
            return Ok(None);
        }
        Ok(match self.assess_alone(slot, &observed, &self.tasks.busy()).decision {
            Decision::Reap(reason) => Some((slot, reason)),
            Decision::Keep | Decision::Release => None,
        })
    }

    /// The assessment of one slot by an inspection of it alone.
    pub(super) fn assess_alone(
        &self,
        slot: Slot,
        observed: &ObservedClone,
        working: &BTreeSet<Slot>,
    ) -> SlotAssessment {
        let now = self.clock.now();
        let state = self.registry.read();
        let inventory = Inventory {
            clones: BTreeMap::from([(slot, observed.clone())]),
            aside: BTreeSet::new(),
            egress: state.egress(),
        };
        let target = self.warm_pool_target();
        let facts = Facts {
            slots: &self.slots,
            records: &state.records,
            unreadable: &state.unreadable,
            seen: &inventory,
            seen_for: &state.seen_for(&now),
            working,
            target: target.as_ref(),
            now: &now,
        };
        planner::judge(slot, &facts, &self.rules())
    }
}

impl<H: Host> SlotWorker<H> {
    /// Assess the slot by a fresh inspection, and destroy what is in it if it is still due.
    pub(super) async fn reap(&self, reason: ReapReason, audited: bool) -> Reaped {
        if !audited {
            return self.reap_if_due().await;
        }
        let calls = &self.parts.calls;
        let _active = calls.begin();
        let name = &self.names.name;
        let request = serde_json::json!({ "name": name, "reason": reason });
        let actor = Caller::hostd("timer").actor;
        let line = calls.audit_before_removal(&actor, Method::Reap, request).await;
        let reaped = self.reap_if_due().await;
        let (result, error) = match &reaped {
            Reaped::Gone(_) => ("ok", None),
            Reaped::Failed(_, errors) => (ErrorCode::Incomplete.word(), Some(errors.join("; "))),
            Reaped::Kept(why) => ("kept", Some(why.clone())),
        };
        calls.audit_after(line, result, Some(name.to_string()), error).await;
        reaped
    }

    async fn reap_if_due(&self) -> Reaped {
        let (parts, slot) = (&self.parts, self.slot());
        let observed = match parts.host.inspect(&self.names, Part::ALL).await {
            Ok(observed) => observed,
            Err(error) => {
                return Reaped::Failed("the host cannot be inspected".into(), vec![chain(&error)]);
            }
        };
        let assessment = parts.assess_alone(slot, &observed, &BTreeSet::new());
        let Decision::Reap(reason) = assessment.decision else { return Reaped::Kept(assessment.why) };
        let readable = !parts.registry.read().unreadable.contains_key(&slot);
        let record = self.record();
        let by_mark = record.is_none();
        let record = record.unwrap_or_else(|| {
            let id = ownership::mark(&observed).cloned().unwrap_or_else(CloneId::random);
            self.adopted(id)
        });
        let record = self.begin_destroy(record, reason.word()).await;
        let ownership =
            if by_mark || !readable { Ownership::Slot } else { Ownership::Clone(&record.clone_id) };
        let progress = Progress::new(&self.names.name, &self.listeners);
        let teardown = self.tear_down(ownership, progress, || {}).await;
        self.finish_destroy(record, &teardown).await;
        match teardown.end {
            TeardownEnd::Gone | TeardownEnd::Dying => {
                if reason == ReapReason::PoolDrained {
                    parts.warm_pool.count_drained(&parts.metrics);
                }
                parts.metrics.reaped(reason);
                Reaped::Gone(assessment.why)
            }
            TeardownEnd::Incomplete => {
                parts.metrics.reap_failed();
                Reaped::Failed(assessment.why, teardown.errors)
            }
        }
    }
}
