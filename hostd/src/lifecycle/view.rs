//! Lists and status: what callers see of the registry.

use super::entry::{Caller, LifecycleStatus};
use super::parts::Parts;
use super::registry::RegistryState;
use crate::api::{CloneInfo, CloneState, ListParams, ListResult, PoolMember, PoolStatus};
use crate::host::Host;
use crate::record::{Phase, Record};
use crate::slot::Slot;
use std::collections::{BTreeMap, BTreeSet};

impl<H: Host> Parts<H> {
    /// `browser-clone-list`.
    pub(super) fn list(&self, caller: &Caller, params: &ListParams) -> ListResult {
        let busy = self.tasks.busy();
        let registry = self.registry.read();
        let mut clones = Vec::new();
        for (slot, (state, problem)) in states(&registry, &busy) {
            let record = registry.records.get(&slot);
            let mut info = match record {
                Some(record) => self.describe(record, caller.operator || record.owner_uid == caller.uid),
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

    /// The lifecycle's part of `host-status`.
    pub(super) fn status(&self) -> LifecycleStatus {
        let busy = self.tasks.busy();
        let registry = self.registry.read();
        let mut clones: BTreeMap<CloneState, u64> =
            CloneState::ALL.into_iter().map(|state| (state, 0)).collect();
        for (state, _) in states(&registry, &busy).values() {
            *clones.entry(*state).or_default() += 1;
        }
        LifecycleStatus {
            clones,
            operations: self.calls.active(),
            egress: registry.egress(),
            pool: self.pool_status(&registry),
            alarms: self.alarms.all(),
        }
    }

    /// The warm pool, if there is one.
    fn pool_status(&self, registry: &RegistryState) -> Option<PoolStatus> {
        let config = &self.config.pool;
        if config.size == 0 {
            return None;
        }
        let now = self.clock.now();
        let member = |record: &Record| {
            Some(PoolMember {
                flavor: record.pooled()?,
                name: self.slots.name(record.slot),
                age_seconds: now.since(&record.created).unwrap_or_default().as_secs(),
                seconds_left: now.until(&record.deadline).unwrap_or_default().as_secs(),
            })
        };
        let tally = self.warm_pool.tally();
        Some(PoolStatus {
            size: u64::from(config.size),
            flavors: config.flavors.clone(),
            members: registry.members().filter_map(member).collect(),
            refilling: tally.refilling,
            hits: tally.hits,
            misses_empty: tally.misses_empty,
            misses_unfit: tally.misses_unfit,
            drained: tally.drained,
            last_refill_seconds: tally.last_refill_seconds,
            problem: self.alarms.get("pool"),
        })
    }

    /// One record as a caller sees it. `own`: the caller may act on the clone.
    pub(super) fn describe(&self, record: &Record, own: bool) -> CloneInfo {
        let names = self.slots.names(record.slot);
        let now = self.clock.now();
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
            limits_not_kept: self.host.host.limits_not_kept(&record.limits),
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
        let names = self.slots.names(slot);
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

/// Every known slot with its state and problem.
fn states(registry: &RegistryState, busy: &BTreeSet<Slot>) -> BTreeMap<Slot, (CloneState, Option<String>)> {
    let mut states = registry.assessed.clone();
    states.retain(|slot, (state, _)| {
        registry.records.contains_key(slot) || matches!(state, CloneState::Orphan | CloneState::Foreign)
    });
    for (slot, record) in &registry.records {
        let by_phase = match &record.phase {
            Phase::Creating => (CloneState::Creating, None),
            Phase::Quarantined { .. } => (CloneState::Quarantined, None),
            Phase::Destroying { attempts: 0, .. } => (CloneState::Destroying, None),
            Phase::Destroying { .. } if busy.contains(slot) => (CloneState::Destroying, None),
            Phase::Destroying { errors, .. } => (CloneState::Incomplete, Some(errors.join("; "))),
            // Only an inspection can tell whether a ready clone is broken.
            Phase::Ready { .. } | Phase::Pooled { .. } => match (states.get(slot), &record.phase) {
                (Some((CloneState::Broken, problem)), _) => (CloneState::Broken, problem.clone()),
                (_, Phase::Pooled { .. }) => (CloneState::Pooled, None),
                _ => (CloneState::Ready, None),
            },
        };
        states.insert(*slot, by_phase);
    }
    states
}
