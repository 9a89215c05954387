//! Reap and the timer: looking at everything, and doing what [`reconcile`] says.

use super::create::{host_error, not_of_this_pool};
use super::engine::{Caller, Inner, Working};
use super::ours::{self, Claim};
use super::progress::{Listeners, Progress};
use super::reconcile::{self, Decision, Facts, ReconcilePlan, Repair, Rules, SlotAssessment};
use super::step::Step;
use super::walk::Ended;
use crate::api::{
    CloneId, CloneState, EgressHealth, ErrorCode, Flavor, Method, ReapLine, ReapParams, ReapReason,
    ReapResult, RpcError,
};
use crate::audit::Outcome;
use crate::host::{CloneSpec, Host, HostResult, Inventory, ObservedClone, Part};
use crate::record::{Phase, Record};
use crate::slot::Slot;
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What came of one clone that was due.
enum Taken {
    Gone(String),
    Failed(String, Vec<String>),
    /// Another look under the clone's lock said otherwise.
    Kept(String),
}

impl<H: Host> Inner<H> {
    fn rules(&self) -> Rules {
        let lifecycle = &self.config.lifecycle;
        Rules {
            orphan_grace: Duration::from_secs(lifecycle.orphan_grace_seconds),
            quarantine: Duration::from_secs(lifecycle.quarantine_seconds),
            reap_cap: lifecycle.reap_cap,
        }
    }

    /// Look at the whole host and decide.
    async fn survey(self: &Arc<Self>) -> HostResult<ReconcilePlan> {
        let began = Instant::now();
        let (records, mut working) = {
            let book = self.book();
            (book.records.clone(), book.working.clone())
        };
        let seen = self.bounded("inventory", self.host.inventory()).await?;
        let now = self.clock.now();
        let plan = {
            let mut book = self.book();
            // Whatever changed while the host was looked at cannot be judged by that look.
            working.extend(book.working.iter().copied());
            let slots = records.keys().chain(book.records.keys());
            working.extend(
                slots.filter(|slot| records.get(slot) != book.records.get(slot)).copied().collect::<Vec<_>>(),
            );
            book.look(seen, &now);
            let wish = self.pool_wish(&book);
            let facts = Facts {
                pool: &self.pool,
                records: &records,
                unreadable: &book.unreadable,
                seen: &book.seen,
                seen_for: &book.seen_for(&now),
                working: &working,
                wish: wish.as_ref(),
                now: &now,
            };
            let plan = reconcile::reconcile(&facts, &self.rules());
            book.assessments = plan
                .assessments
                .iter()
                .filter(|(slot, _)| !working.contains(slot))
                .map(|(slot, assessment)| (*slot, (assessment.state, assessment.problem.clone())))
                .collect();
            let egress = book.seen.egress;
            book.set_alarm("reap", plan.alarm.clone());
            book.set_alarm("egress", egress_alarm(egress));
            plan
        };
        self.metrics.reconcile(began.elapsed().as_secs_f64());
        Ok(plan)
    }

    /// One turn of the timer.
    pub(super) async fn tick(self: &Arc<Self>) {
        if self.book().closing {
            return;
        }
        self.look_at_template().await;
        let mut plan = self.survey().await;
        if let Ok(first) = &plan
            && first.repairs.contains(&Repair::Firewall)
        {
            self.repair(&Repair::Firewall).await;
            // The members have to be put back into the table, which only another look can tell.
            plan = self.survey().await;
        }
        let Some(plan) = self.looked(plan) else { return };
        self.put_right(&plan).await;
        let due = plan.reap.iter().map(|(slot, reason)| self.take_by_timer(*slot, *reason));
        join_all(due).await;
    }

    /// Look at the host once without doing anything.
    pub(super) async fn first_look(self: &Arc<Self>) {
        let plan = self.survey().await;
        self.looked(plan);
    }

    fn looked(&self, plan: HostResult<ReconcilePlan>) -> Option<ReconcilePlan> {
        let alarm = plan.as_ref().err().map(|error| format!("the host cannot be looked at: {error}"));
        self.book().set_alarm("host", alarm);
        plan.ok()
    }

    /// A clone is ready: the timer sleeps until the next look at everything, unless this one's deadline is before that.
    pub(super) fn heed_deadline(&self, ready: &Record) {
        if self.clock.now().until(&ready.deadline).is_some_and(|left| left < self.interval()) {
            self.wake.notify_one();
        }
    }

    /// How long until a deadline passes, at most the interval.
    pub(super) fn until_next_tick(&self) -> Duration {
        let now = self.clock.now();
        let interval = Duration::from_millis(self.config.lifecycle.reconcile_interval_ms);
        let book = self.book();
        let ready = book.records.values().filter(|record| matches!(record.phase, Phase::Ready { .. }));
        let next = ready.filter_map(|record| now.until(&record.deadline)).min().unwrap_or(interval);
        // A clone whose deadline has passed and that could not be taken is not retried in a tight loop.
        next.clamp(Duration::from_millis(50), interval.max(Duration::from_millis(50)))
    }

    /// Repairs and releases: what takes nothing away.
    async fn put_right(self: &Arc<Self>, plan: &ReconcilePlan) {
        join_all(
            plan.repairs
                .iter()
                .filter(|repair| **repair != Repair::Firewall)
                .map(|repair| self.repair(repair)),
        )
        .await;
        for slot in &plan.release {
            let working = self.try_work_on(&mut self.book(), *slot);
            let quarantined = self.book().records.get(slot).is_some_and(|record| !record.is_live());
            if working.is_some() && quarantined {
                let left = self.book().seen.clones.get(slot).cloned();
                self.release(*slot, left.unwrap_or_default()).await;
            }
        }
    }

    async fn repair(self: &Arc<Self>, repair: &Repair) {
        let result = match repair {
            Repair::Firewall => {
                let health = self.bounded("firewall", self.host.repair_egress()).await;
                let alarm = match &health {
                    Ok(health) => egress_alarm(*health),
                    Err(error) => Some(format!("the clones' firewall cannot be put back: {error}")),
                };
                self.book().set_alarm("egress", alarm);
                health.map(drop)
            }
            Repair::GrantEgress(slot) => self.repair_live(*slot, Step::Egress).await,
            Repair::SetLimits(slot) => self.repair_live(*slot, Step::Limits).await,
            Repair::Freeze(slot) | Repair::Thaw(slot) => self.repair_frozen(*slot).await,
            Repair::CutEgress(slot) => {
                let Some(_working) = self.try_work_on(&mut self.book(), *slot) else { return };
                match self.running(*slot).await {
                    Ok(Some(_)) => return,
                    Ok(None) => {
                        let names = self.pool.names(*slot);
                        self.bounded(names.name.as_str(), self.host.cut_egress(&names)).await
                    }
                    Err(error) => Err(error),
                }
            }
            Repair::DestroyAside(id) => self.bounded(id.as_str(), self.host.destroy_aside(id)).await,
        };
        match result {
            Ok(()) => tracing::info!(?repair, "repaired"),
            Err(error) => tracing::warn!(?repair, %error, "not repaired yet"),
        }
    }

    /// Ensure a step again for a clone that is ready, if it still is.
    async fn repair_live(self: &Arc<Self>, slot: Slot, step: Step) -> HostResult<()> {
        let Some(_working) = self.try_work_on(&mut self.book(), slot) else { return Ok(()) };
        let Some(spec) = self.running(slot).await? else { return Ok(()) };
        self.bounded(spec.names.name.as_str(), step.ensure(&self.host, &spec)).await.map(drop)
    }

    /// Freeze what waits in the warm pool and thaw what somebody has, if it still is so.
    async fn repair_frozen(self: &Arc<Self>, slot: Slot) -> HostResult<()> {
        let Some(_working) = self.try_work_on(&mut self.book(), slot) else { return Ok(()) };
        let wait = match self.book().records.get(&slot).map(|record| &record.phase) {
            Some(Phase::Pooled { flavor: Flavor::Ready, .. }) => true,
            Some(Phase::Ready { .. }) => false,
            _ => return Ok(()),
        };
        let names = self.pool.names(slot);
        let frozen = self.look(&names, &[Part::Jail, Part::Processes]).await?.frozen;
        match (wait, frozen) {
            (true, false) => self.freeze(&names).await,
            (false, true) => self.bounded(names.name.as_str(), self.host.thaw(&names)).await,
            _ => Ok(()),
        }
    }

    /// What the clone in this slot shall be, if one is wanted there, within its deadline, and runs.
    async fn running(&self, slot: Slot) -> HostResult<Option<CloneSpec>> {
        let now = self.clock.now();
        let spec = {
            let book = self.book();
            let ready = book.records.get(&slot).filter(|record| {
                matches!(record.phase, Phase::Ready { .. } | Phase::Pooled { .. })
                    && now.until(&record.deadline).is_some_and(|left| !left.is_zero())
            });
            ready.map(|record| reconcile::spec(record, &self.pool))
        };
        let Some(spec) = spec else { return Ok(None) };
        let seen = self.look(&spec.names, &[Part::Storage, Part::Jail, Part::Network]).await?;
        let whole = reconcile::VITAL.iter().all(|step| step.verify(&spec, &seen).is_ok());
        Ok(whole.then_some(spec))
    }

    /// Take a clone that is due, with its own lines in the audit log.
    async fn take_by_timer(self: &Arc<Self>, slot: Slot, reason: ReapReason) {
        let Some(working) = self.try_work_on(&mut self.book(), slot) else { return };
        let _active = self.active();
        let caller = Caller::hostd("timer");
        let name = self.pool.name(slot);
        let request = serde_json::json!({ "name": name, "reason": reason });
        let began = Instant::now();
        let Ok(call) = self.audit_before(&caller.actor, Method::Reap, request).await else { return };
        let (result, error) = match self.take(working, slot, &Listeners::default()).await {
            Taken::Gone(_) => ("ok", None),
            Taken::Failed(_, errors) => (ErrorCode::Incomplete.word(), Some(errors.join("; "))),
            Taken::Kept(why) => ("kept", Some(why)),
        };
        let seconds = began.elapsed().as_secs_f64();
        let outcome = Outcome { result: result.into(), name: Some(name.into()), error, seconds };
        self.audit_after(call, caller.actor, Method::Reap, outcome).await;
    }

    /// Judge the slot once more by a fresh look under its lock, and take it if it is still due.
    async fn take(self: &Arc<Self>, _working: Working<H>, slot: Slot, listeners: &Listeners) -> Taken {
        let names = self.pool.names(slot);
        let seen = match self.look(&names, Part::ALL).await {
            Ok(seen) => seen,
            Err(error) => {
                return Taken::Failed("the host cannot be looked at".into(), vec![error.to_string()]);
            }
        };
        let assessment = self.judge_alone(slot, &seen, &BTreeSet::new());
        let (record, readable) = {
            let book = self.book();
            (book.records.get(&slot).cloned(), !book.unreadable.contains_key(&slot))
        };
        let Decision::Reap(reason) = assessment.decision else { return Taken::Kept(assessment.why) };
        let by_mark = record.is_none();
        let record = record.unwrap_or_else(|| {
            let id = ours::mark(&seen).cloned().unwrap_or_else(CloneId::random);
            self.adopted(slot, id)
        });
        let record = self.begin_destroy(record, reason.word()).await;
        let claim = if by_mark || !readable { Claim::Slot } else { Claim::Clone(&record.clone_id) };
        let walked = self.walk(&names, claim, Progress::new(&names.name, listeners)).await;
        self.finish_destroy(record, &walked).await;
        match walked.ended {
            Ended::Gone | Ended::Dying => {
                if reason == ReapReason::PoolDrained {
                    self.count_drained();
                }
                self.metrics.reaped(reason);
                Taken::Gone(assessment.why)
            }
            Ended::Incomplete => {
                self.metrics.reap_failed();
                Taken::Failed(assessment.why, walked.errors)
            }
        }
    }

    /// `browser-clone-reap`.
    pub(super) async fn reap(
        self: Arc<Self>,
        params: ReapParams,
        listeners: Listeners,
    ) -> Result<ReapResult, RpcError> {
        let only = match &params.name {
            None => None,
            Some(name) => {
                let slot = self.pool.slot_of_name(name.as_str());
                Some(slot.ok_or_else(|| not_of_this_pool(name.as_str(), &self.pool))?)
            }
        };
        let plan = self.survey().await.map_err(|error| host_error(&error))?;
        let mut result =
            ReapResult { dry_run: params.dry_run, alarm: plan.alarm.clone(), ..ReapResult::default() };
        let mut due: Vec<(Slot, ReapReason)> = plan.reap.clone();
        if let Some(slot) = only {
            // By name one clone is meant, not the host: neither the cap nor the alarm is about that.
            due = self.due_alone(slot).await.map_err(|error| host_error(&error))?.into_iter().collect();
            result.alarm = None;
        }
        let chosen: BTreeSet<Slot> = due.iter().map(|(slot, _)| *slot).collect();
        for (slot, assessment) in &plan.assessments {
            if !chosen.contains(slot) && only.is_none_or(|only| only == *slot) {
                result.kept.push(ReapLine {
                    name: self.pool.name(*slot).into(),
                    reason: None,
                    why: assessment.why.clone(),
                    errors: Vec::new(),
                });
            }
        }
        let line = |slot: Slot, reason, why, errors| ReapLine {
            name: self.pool.name(slot).into(),
            reason,
            why,
            errors,
        };
        if params.dry_run {
            for (slot, reason) in due {
                let why =
                    plan.assessments.get(&slot).map(|assessment| assessment.why.clone()).unwrap_or_default();
                result.reaped.push(line(slot, Some(reason), why, Vec::new()));
            }
            for id in self.book().seen.aside.iter().filter(|_| only.is_none()) {
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
            self.put_right(&plan).await;
        }
        let taking = due.into_iter().map(|(slot, reason)| {
            let (inner, listeners) = (self.clone(), listeners.clone());
            async move {
                let working = inner.work_on(slot).await;
                (slot, reason, inner.take(working, slot, &listeners).await)
            }
        });
        for (slot, reason, taken) in join_all(taking).await {
            match taken {
                Taken::Gone(why) => result.reaped.push(line(slot, Some(reason), why, Vec::new())),
                Taken::Failed(why, errors) => result.failed.push(line(slot, Some(reason), why, errors)),
                Taken::Kept(why) => result.kept.push(line(slot, None, why, Vec::new())),
            }
        }
        Ok(result)
    }

    /// Whether this one slot is due, whatever else is.
    async fn due_alone(self: &Arc<Self>, slot: Slot) -> HostResult<Option<(Slot, ReapReason)>> {
        let seen = self.look(&self.pool.names(slot), Part::ALL).await?;
        let (known, working) = {
            let book = self.book();
            (book.records.contains_key(&slot) || book.unreadable.contains_key(&slot), book.working.clone())
        };
        if seen.is_absent() && !known {
            return Ok(None);
        }
        Ok(match self.judge_alone(slot, &seen, &working).decision {
            Decision::Reap(reason) => Some((slot, reason)),
            Decision::Keep | Decision::Release => None,
        })
    }

    /// The assessment on one slot by a look at it alone.
    pub(super) fn judge_alone(
        &self,
        slot: Slot,
        seen: &ObservedClone,
        working: &BTreeSet<Slot>,
    ) -> SlotAssessment {
        let now = self.clock.now();
        let book = self.book();
        let inventory = Inventory {
            clones: BTreeMap::from([(slot, seen.clone())]),
            aside: BTreeSet::new(),
            egress: book.seen.egress,
        };
        let wish = self.pool_wish(&book);
        let facts = Facts {
            pool: &self.pool,
            records: &book.records,
            unreadable: &book.unreadable,
            seen: &inventory,
            seen_for: &book.seen_for(&now),
            working,
            wish: wish.as_ref(),
            now: &now,
        };
        reconcile::judge(slot, &facts, &self.rules())
    }

    /// How many clones there are, by state.
    pub(super) fn counts(&self) -> BTreeMap<CloneState, u64> {
        let mut counts: BTreeMap<CloneState, u64> =
            CloneState::ALL.into_iter().map(|state| (state, 0)).collect();
        for (_, state, _) in self.states() {
            *counts.entry(state).or_default() += 1;
        }
        counts
    }
}

fn egress_alarm(health: EgressHealth) -> Option<String> {
    match health {
        EgressHealth::Ok => None,
        EgressHealth::TableMissing => {
            Some("the firewall's table of clones is missing: all clones are cut off".into())
        }
        EgressHealth::RulesMissing => Some(
            "the firewall's rules for the clones are not loaded: their links are taken down until they are"
                .into(),
        ),
    }
}
