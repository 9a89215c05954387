//! Lists and status: what callers see of the book.

use super::book::Book;
use super::engine::{Caller, EngineStatus, Inner};
use crate::api::{CloneInfo, CloneState, ListParams, ListResult, PoolMember, PoolStatus};
use crate::host::Host;
use crate::record::{Phase, Record};
use crate::slot::Slot;

impl<H: Host> Inner<H> {
    /// `browser-clone-list`.
    pub(super) fn list(&self, caller: &Caller, params: &ListParams) -> ListResult {
        let states = self.states();
        let records = {
            let book = self.book();
            states.iter().map(|(slot, _, _)| book.records.get(slot).cloned()).collect::<Vec<_>>()
        };
        let mut clones = Vec::with_capacity(states.len());
        for ((slot, state, problem), record) in states.into_iter().zip(records) {
            let mut info = match &record {
                Some(record) => self.describe(record, caller),
                None => self.describe_unrecorded(slot),
            };
            info.state = state;
            info.problem = problem;
            let wanted = params.name.as_ref().is_none_or(|name| *name == info.name)
                && params.tenant.as_ref().is_none_or(|tenant| Some(tenant) == info.tenant.as_ref());
            if wanted {
                clones.push(info);
            }
        }
        ListResult { clones }
    }

    /// The engine's share of `host-status`.
    pub(super) fn status(&self) -> EngineStatus {
        let clones = self.counts();
        let book = self.book();
        EngineStatus {
            clones,
            operations: self.operations(),
            egress: book.seen.egress,
            pool: self.pool_status(&book),
            alarms: book.alarms.values().cloned().collect(),
        }
    }

    /// The warm pool, if there is one.
    fn pool_status(&self, book: &Book) -> Option<PoolStatus> {
        let config = &self.config.pool;
        if config.size == 0 {
            return None;
        }
        let now = self.clock.now();
        let member = |record: &Record| {
            Some(PoolMember {
                flavor: record.pooled()?,
                name: self.pool.name(record.slot),
                age_seconds: now.since(&record.created).unwrap_or_default().as_secs(),
                seconds_left: now.until(&record.deadline).unwrap_or_default().as_secs(),
            })
        };
        let tally = &book.tally;
        Some(PoolStatus {
            size: u64::from(config.size),
            flavors: config.flavors.clone(),
            members: book.records.values().filter_map(member).collect(),
            refilling: tally.refilling,
            hits: tally.hits,
            misses_empty: tally.misses_empty,
            misses_unfit: tally.misses_unfit,
            drained: tally.drained,
            last_refill_seconds: tally.last_refill_seconds,
            problem: book.alarms.get("pool").cloned(),
        })
    }

    /// Every known slot with its state and problem, in order.
    pub(super) fn states(&self) -> Vec<(Slot, CloneState, Option<String>)> {
        let book = self.book();
        let mut states = std::collections::BTreeMap::new();
        for (slot, (state, problem)) in &book.assessments {
            states.insert(*slot, (*state, problem.clone()));
        }
        states.retain(|slot, (state, _)| {
            book.records.contains_key(slot) || matches!(state, CloneState::Orphan | CloneState::Foreign)
        });
        for (slot, record) in &book.records {
            let working = book.working.contains(slot);
            let by_phase = match &record.phase {
                Phase::Creating => (CloneState::Creating, None),
                Phase::Quarantined { .. } => (CloneState::Quarantined, None),
                Phase::Destroying { attempts: 0, .. } => (CloneState::Destroying, None),
                Phase::Destroying { .. } if working => (CloneState::Destroying, None),
                Phase::Destroying { errors, .. } => (CloneState::Incomplete, Some(errors.join("; "))),
                // Only the host can tell whether a ready clone is broken.
                Phase::Ready { .. } | Phase::Pooled { .. } => match (states.get(slot), &record.phase) {
                    (Some((CloneState::Broken, problem)), _) => (CloneState::Broken, problem.clone()),
                    (_, Phase::Pooled { .. }) => (CloneState::Pooled, None),
                    _ => (CloneState::Ready, None),
                },
            };
            states.insert(*slot, by_phase);
        }
        states.into_iter().map(|(slot, (state, problem))| (slot, state, problem)).collect()
    }

    /// One record as this caller may see it.
    pub(super) fn describe(&self, record: &Record, caller: &Caller) -> CloneInfo {
        let names = self.pool.names(record.slot);
        let now = self.clock.now();
        let own = caller.operator || record.owner_uid == caller.uid;
        let (endpoint, cdp_endpoint, stages, launch) = match &record.phase {
            Phase::Ready { endpoint, cdp_endpoint, stages, launch } => {
                (Some(endpoint.clone()), cdp_endpoint.clone(), stages.clone(), Some(*launch))
            }
            _ => (None, None, Vec::new(), None),
        };
        let state = match record.phase {
            Phase::Creating => CloneState::Creating,
            Phase::Pooled { .. } => CloneState::Pooled,
            Phase::Ready { .. } => CloneState::Ready,
            Phase::Destroying { .. } => CloneState::Destroying,
            Phase::Quarantined { .. } => CloneState::Quarantined,
        };
        CloneInfo {
            name: names.name,
            clone_id: own.then(|| record.clone_id.clone()),
            request_id: record.request_id.clone().filter(|_| own),
            tenant: record.tenant.clone(),
            owner_uid: record.owner_uid,
            state,
            ip: names.ip,
            ip6: names.ip6,
            endpoint: endpoint.filter(|_| own),
            cdp_endpoint: cdp_endpoint.filter(|_| own),
            snapshot: Some(record.snapshot.clone()),
            limits: Some(record.limits),
            limits_not_kept: self.host.not_kept(&record.limits),
            created_at: Some(record.created.rfc3339()),
            age_seconds: now.since(&record.created).map(|age| age.as_secs()),
            deadline_at: Some(record.deadline.rfc3339()),
            deadline_seconds_left: Some(now.until(&record.deadline).unwrap_or_default().as_secs()),
            launch,
            stages,
            problem: None,
        }
    }

    fn describe_unrecorded(&self, slot: Slot) -> CloneInfo {
        let names = self.pool.names(slot);
        CloneInfo {
            name: names.name,
            clone_id: None,
            request_id: None,
            tenant: None,
            owner_uid: None,
            state: CloneState::Orphan,
            ip: names.ip,
            ip6: names.ip6,
            endpoint: None,
            cdp_endpoint: None,
            snapshot: None,
            limits: None,
            limits_not_kept: Vec::new(),
            created_at: None,
            age_seconds: None,
            deadline_at: None,
            deadline_seconds_left: None,
            launch: None,
            stages: Vec::new(),
            problem: None,
        }
    }
}
