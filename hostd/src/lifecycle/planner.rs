//! The planner: a pure function from records, one inspection of the host and the time to decisions with reasons. It has no
//! clock, host or file of its own, so every rule is tested as a table, and `reap --dry-run` can explain every decision.
//!
//! A clone is reaped for exactly five reasons, and never because its owner is silent. The dangerous reason is a missing
//! record: a lost or mistyped state folder makes every clone look like an orphan. So a run that would reap most of the host
//! as orphans reaps none of them and raises an alarm. Deadlines are only capped per run: they use the monotonic clock, and
//! a browser must not outlive its task. A clone that has had no record for as long as the longest lease is past its
//! deadline, whatever that was.

use super::ownership::{self, Ownership};
use super::step::{Step, same_limits};
pub use super::warm_pool_target::WarmPoolTarget;
use super::warm_pool_target::why_not_wanted;
use crate::api::{CloneId, CloneState, EgressHealth, Flavor, ReapReason};
use crate::clock::Moment;
use crate::host::{CloneSpec, Inventory, ObservedClone};
use crate::record::{Phase, Record};
use crate::slot::{Slot, Slots};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The input of a decision.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The slots, for names.
    pub slots: &'a Slots,
    /// The records: the intent.
    pub records: &'a BTreeMap<Slot, Record>,
    /// Slots whose record cannot be read, and why.
    pub unreadable: &'a BTreeMap<Slot, String>,
    /// The inspection of the host.
    pub seen: &'a Inventory,
    /// For how long a slot without a readable record has been seen with objects in it.
    pub seen_for: &'a BTreeMap<Slot, Duration>,
    /// Slots with a running operation.
    pub working: &'a BTreeSet<Slot>,
    /// What the warm pool should contain. `None`: there is no warm pool.
    pub target: Option<&'a WarmPoolTarget>,
    /// Now.
    pub now: &'a Moment,
}

/// The settings that decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The age from which objects without a record are reaped.
    pub orphan_grace: Duration,
    /// How long a freed slot stays unused.
    pub quarantine: Duration,
    /// The longest lease that a caller can get.
    pub longest_lease: Duration,
    /// How many clones one run may reap for their deadline or as orphans.
    pub reap_cap: usize,
}

/// The assessment of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotAssessment {
    /// The clone's state.
    pub state: CloneState,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// What to do.
    pub decision: Decision,
    /// The reason, for people.
    pub why: String,
}

/// What to do with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Keep,
    /// Destroy it.
    Reap(ReapReason),
    /// Its quarantine is over: remove the record.
    Release,
}

/// A repair. None of them takes anything from a live clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// Put the firewall's rules and table back.
    Firewall,
    /// A live clone is missing in the table.
    GrantEgress(Slot),
    /// An address in the table belongs to no live clone.
    CutEgress(Slot),
    /// A live clone runs without its limits.
    SetLimits(Slot),
    /// A member of the warm pool is not frozen: a crash interrupted its bind.
    Freeze(Slot),
    /// A clone with an owner is frozen.
    Thaw(Slot),
    /// Storage that was moved aside still exists.
    DestroyAside(CloneId),
}

/// The decisions, with reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconcilePlan {
    /// The assessment of every slot that has a record or objects on the host.
    pub assessments: BTreeMap<Slot, SlotAssessment>,
    /// The slots to reap in this run, in this order.
    pub reap: Vec<(Slot, ReapReason)>,
    /// The slots whose record is removed.
    pub release: Vec<Slot>,
    /// The repairs.
    pub repairs: Vec<Repair>,
    /// Why this run reaps less than it could.
    pub alarm: Option<String>,
}

/// Compare the intent with the inspection.
pub fn reconcile(facts: &Facts<'_>, rules: &Rules) -> ReconcilePlan {
    let slots: BTreeSet<Slot> = facts
        .records
        .keys()
        .chain(facts.unreadable.keys())
        .chain(facts.seen.clones.keys())
        .copied()
        .filter(|slot| facts.slots.contains(*slot))
        .collect();
    let mut plan = ReconcilePlan {
        assessments: BTreeMap::new(),
        reap: Vec::new(),
        release: Vec::new(),
        repairs: Vec::new(),
        alarm: None,
    };
    if facts.seen.egress != EgressHealth::Ok {
        plan.repairs.push(Repair::Firewall);
    }
    for slot in slots {
        let assessment = judge(slot, facts, rules);
        match assessment.decision {
            Decision::Reap(reason) => plan.reap.push((slot, reason)),
            Decision::Release => plan.release.push(slot),
            Decision::Keep => {}
        }
        repairs(slot, &assessment, facts, &mut plan.repairs);
        plan.assessments.insert(slot, assessment);
    }
    plan.repairs.extend(facts.seen.aside.iter().cloned().map(Repair::DestroyAside));
    limit_run(&mut plan, facts, rules);
    plan
}

/// The assessment of one slot.
pub fn judge(slot: Slot, facts: &Facts<'_>, rules: &Rules) -> SlotAssessment {
    let nothing = ObservedClone::default();
    let seen = facts.seen.clones.get(&slot).unwrap_or(&nothing);
    let record = facts.records.get(&slot);
    let assessment = match record {
        Some(record) => judge_record(record, seen, facts, rules),
        None => judge_unrecorded(slot, seen, facts, rules),
    };
    if facts.working.contains(&slot) {
        let why = "an operation on it is under way".to_owned();
        return SlotAssessment { decision: Decision::Keep, why, ..assessment };
    }
    assessment
}

fn judge_record(record: &Record, seen: &ObservedClone, facts: &Facts<'_>, rules: &Rules) -> SlotAssessment {
    let assessment = |state, decision, why: String| SlotAssessment { state, problem: None, decision, why };
    match &record.phase {
        Phase::Creating => {
            let why = "its create was not finished and nobody works on it".to_owned();
            assessment(CloneState::Creating, Decision::Reap(ReapReason::CreateUnfinished), why)
        }
        Phase::Destroying { why, attempts, errors, .. } => {
            let (state, tried) = match attempts {
                0 => (CloneState::Destroying, "has not been tried yet".to_owned()),
                n => (CloneState::Incomplete, format!("failed {n} times, last with: {}", errors.join("; "))),
            };
            let text = format!("its destroy ({why}) is not finished: it {tried}");
            let problem = (!errors.is_empty()).then(|| errors.join("; "));
            SlotAssessment {
                state,
                problem,
                decision: Decision::Reap(ReapReason::DestroyUnfinished),
                why: text,
            }
        }
        Phase::Quarantined { freed, .. } => judge_quarantined(record, freed, seen, facts, rules),
        Phase::Pooled { .. } if !record.pool => {
            let why = "somebody was about to take it, and nobody works on it".to_owned();
            assessment(CloneState::Creating, Decision::Reap(ReapReason::CreateUnfinished), why)
        }
        Phase::Pooled { flavor, template, .. } => {
            let problem = what_is_missing(record, seen, facts);
            let state = if problem.is_some() { CloneState::Broken } else { CloneState::Pooled };
            let over = why_not_wanted(record, *flavor, template, facts);
            let broken = problem.as_ref().map(|problem| format!("it is broken ({problem})"));
            match over.or(broken) {
                Some(why) => SlotAssessment {
                    problem,
                    ..assessment(
                        state,
                        Decision::Reap(ReapReason::PoolDrained),
                        format!("nobody took it, and {why}"),
                    )
                },
                None => assessment(state, Decision::Keep, "it waits in the warm pool".into()),
            }
        }
        Phase::Ready { .. } => {
            let Some(left) = facts.now.until(&record.deadline) else {
                let why = "the host was restarted since it was made, and its processes with it".to_owned();
                return SlotAssessment {
                    problem: Some(why.clone()),
                    ..assessment(CloneState::Broken, Decision::Reap(ReapReason::DeadlinePassed), why)
                };
            };
            let problem = what_is_missing(record, seen, facts);
            let state = if problem.is_some() { CloneState::Broken } else { CloneState::Ready };
            if left.is_zero() {
                let over = facts.now.since(&record.deadline).unwrap_or_default().as_secs();
                let why = format!("its deadline passed {over} s ago");
                return SlotAssessment {
                    problem,
                    ..assessment(state, Decision::Reap(ReapReason::DeadlinePassed), why)
                };
            }
            let why = match &problem {
                Some(problem) => format!(
                    "it is broken ({problem}) but within its deadline ({} s left): its owner decides",
                    left.as_secs()
                ),
                None => format!("it is ready and within its deadline ({} s left)", left.as_secs()),
            };
            SlotAssessment { problem, ..assessment(state, Decision::Keep, why) }
        }
    }
}

fn judge_quarantined(
    record: &Record,
    freed: &crate::clock::Stamp,
    seen: &ObservedClone,
    facts: &Facts<'_>,
    rules: &Rules,
) -> SlotAssessment {
    let assessment = |decision, why: String| SlotAssessment {
        state: CloneState::Quarantined,
        problem: None,
        decision,
        why,
    };
    let mine = Ownership::Clone(&record.clone_id).filter(seen);
    if !mine.is_absent() && !ownership::only_dying(&mine) {
        let back: Vec<&str> = mine.parts().into_iter().map(|part| part.word()).collect();
        let why = format!("it was gone, but the host shows its {} again", back.join(", "));
        return assessment(Decision::Reap(ReapReason::DestroyUnfinished), why);
    }
    if ownership::only_dying(&mine) {
        return assessment(Decision::Keep, "it is gone, but its jail is still dying".into());
    }
    // No caller ever knew the address of a member that was not bound, so its slot needs no quarantine.
    let quarantine = if record.pool { Duration::ZERO } else { rules.quarantine };
    match facts.now.since(freed) {
        Some(since) if since < quarantine => {
            let left = (quarantine - since).as_secs();
            assessment(Decision::Keep, format!("it is gone; its slot stays unused for another {left} s"))
        }
        _ => assessment(Decision::Release, "it is gone and its quarantine is over".into()),
    }
}

fn judge_unrecorded(slot: Slot, seen: &ObservedClone, facts: &Facts<'_>, rules: &Rules) -> SlotAssessment {
    let unreadable = facts.unreadable.get(&slot);
    let keep = |state, problem, why: String| SlotAssessment { state, problem, decision: Decision::Keep, why };
    // Beside foreign objects only labelled objects are proven to be hostd's.
    if let Some(why) = ownership::foreign(seen)
        && ownership::mark(seen).is_none()
    {
        let text = format!("it is not ours ({why}) and is never touched");
        return keep(CloneState::Foreign, Some(why), text);
    }
    if unreadable.is_none() && ownership::only_dying(seen) {
        return keep(CloneState::Orphan, None, "only a dying jail is left of it".into());
    }
    let about = match unreadable {
        Some(error) => format!("its record cannot be read ({error})"),
        None => "it has no record and is provably ours".to_owned(),
    };
    let without_record = facts.seen_for.get(&slot).copied().unwrap_or_default();
    if without_record >= rules.longest_lease {
        // A lease is renewed only through a record. So this needs neither the record nor the alarm about lost records.
        return SlotAssessment {
            state: CloneState::Orphan,
            problem: Some(about.clone()),
            decision: Decision::Reap(ReapReason::DeadlinePassed),
            why: format!(
                "{about} and has had none for as long as the longest lease, so its deadline has passed"
            ),
        };
    }
    let age = [facts.seen_for.get(&slot).copied(), seen.storage.as_ref().and_then(|storage| storage.age)]
        .into_iter()
        .flatten()
        .max()
        .unwrap_or_default();
    if age < rules.orphan_grace {
        let left = (rules.orphan_grace - age).as_secs();
        return keep(
            CloneState::Orphan,
            Some(about.clone()),
            format!("{about}, but younger than the grace period ({left} s left)"),
        );
    }
    SlotAssessment {
        state: CloneState::Orphan,
        problem: Some(about.clone()),
        decision: Decision::Reap(ReapReason::Orphan),
        why: format!("{about}, and older than the grace period"),
    }
}

/// Without these parts a clone is broken. Missing egress and limits are repaired instead, and whether the service answers
/// is not part of an inspection of the whole host.
pub const VITAL: [Step; 3] = [Step::Storage, Step::Jail, Step::Network];

/// What a clone that should be ready lacks.
fn what_is_missing(record: &Record, seen: &ObservedClone, facts: &Facts<'_>) -> Option<String> {
    let spec = spec(record, facts.slots);
    let missing = VITAL.iter().find_map(|step| step.verify(&spec, seen).err())?;
    Some(match seen.oom_kills {
        0 => missing,
        count => format!("{missing}; {count} of its processes were ended at its memory limit"),
    })
}

/// The specification of a record's clone.
pub fn spec(record: &Record, slots: &Slots) -> CloneSpec {
    CloneSpec {
        names: slots.names(record.slot),
        clone_id: record.clone_id.clone(),
        snapshot: record.snapshot.clone(),
        limits: record.limits,
        deadline: Duration::from_millis(record.deadline.mono_ms),
        secret: record.secret.clone(),
        warm_up: false,
    }
}

fn repairs(slot: Slot, assessment: &SlotAssessment, facts: &Facts<'_>, repairs: &mut Vec<Repair>) {
    if facts.working.contains(&slot) {
        return;
    }
    let seen = facts.seen.clones.get(&slot);
    let member = seen.is_some_and(|seen| seen.egress);
    let connected = seen.is_some_and(|seen| seen.connections);
    let shall_run = matches!(assessment.state, CloneState::Ready | CloneState::Pooled);
    let live = shall_run && assessment.decision == Decision::Keep;
    match (live, member || (connected && !live)) {
        // Adding to a table that no rule refers to would look like success and grant nothing.
        (true, false) if facts.seen.egress == EgressHealth::Ok => repairs.push(Repair::GrantEgress(slot)),
        (false, true) => repairs.push(Repair::CutEgress(slot)),
        _ => {}
    }
    let wanted = facts.records.get(&slot).map(|record| record.limits);
    let there = seen.and_then(|seen| seen.limits);
    let same = there.zip(wanted).is_some_and(|(there, wanted)| same_limits(&there, &wanted));
    if live && !same {
        repairs.push(Repair::SetLimits(slot));
    }
    let pooled = facts.records.get(&slot).and_then(Record::pooled);
    match (live, assessment.state, seen.is_some_and(|seen| seen.frozen)) {
        (true, CloneState::Pooled, false) if pooled == Some(Flavor::Ready) => {
            repairs.push(Repair::Freeze(slot))
        }
        (true, CloneState::Ready, true) => repairs.push(Repair::Thaw(slot)),
        _ => {}
    }
}

/// Cap the number of clones reaped in one run, and do not empty the host for lack of records.
///
/// Continuing unfinished work takes nothing from anybody, so it is neither capped nor stopped. Leftovers that cannot be
/// removed do not count against the cap of passed deadlines.
fn limit_run(plan: &mut ReconcilePlan, facts: &Facts<'_>, rules: &Rules) {
    // Also those whose longest lease is over: the others must not go because these do.
    let unrecorded = |(slot, _): &&(Slot, ReapReason)| plan.assessments[slot].state == CloneState::Orphan;
    let orphans = plan.reap.iter().filter(unrecorded).count();
    let on_host = facts.seen.clones.len();
    if orphans > rules.reap_cap / 2 && orphans * 2 > on_host {
        let alarm = format!(
            "{orphans} of {on_host} clones on this host have no record: is the state folder the right one? \
             None is reaped before the longest lease is over; an operator can reap each by its name"
        );
        plan.keep_instead(&alarm, |_, reason| reason == ReapReason::Orphan);
        plan.alarm = Some(alarm);
    }
    plan.reap.sort_by_key(|(slot, reason)| (*reason, *slot));
    let capped = |reason| matches!(reason, ReapReason::DeadlinePassed | ReapReason::Orphan);
    let due: Vec<Slot> =
        plan.reap.iter().filter(|(_, reason)| capped(*reason)).map(|(slot, _)| *slot).collect();
    if due.len() > rules.reap_cap {
        let later: BTreeSet<Slot> = due[rules.reap_cap..].iter().copied().collect();
        plan.keep_instead("it is due, but this run has reached its cap", |slot, _| later.contains(&slot));
        plan.alarm.get_or_insert(format!(
            "{} clones are due, {} are taken in this run, the others in the next ones",
            due.len(),
            rules.reap_cap
        ));
    }
}

impl ReconcilePlan {
    fn keep_instead(&mut self, why: &str, which: impl Fn(Slot, ReapReason) -> bool) {
        self.reap.retain(|(slot, reason)| {
            let keep = which(*slot, *reason);
            if keep && let Some(assessment) = self.assessments.get_mut(slot) {
                assessment.decision = Decision::Keep;
                assessment.why = format!("{}; {why}", assessment.why);
            }
            !keep
        });
    }
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;
