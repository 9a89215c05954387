//! Lists and status: what callers see of the registry.

use super::entry::{Caller, LifecycleStatus};
use super::parts::Parts;
use super::registry::RegistryState;
use super::service_watch::ServiceWatch;
use crate::api::{
    CloneInfo, CloneState, CreateResult, Finding, ListParams, ListResult, PoolMember, PoolStatus, SecretUrl,
    Severity,
};
use crate::host::Host;
use crate::record::{Phase, Record};
use crate::slot::Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Who looks at a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Viewer {
    /// May drive its browser, so they get its secret.
    Owner,
    /// May destroy it.
    Operator,
    Other,
}

impl Viewer {
    fn new(caller: &Caller, record: &Record) -> Viewer {
        match (caller.uid.is_some() && caller.uid == record.owner_uid, caller.operator) {
            (true, _) => Viewer::Owner,
            (false, true) => Viewer::Operator,
            (false, false) => Viewer::Other,
        }
    }
}

impl<H: Host> Parts<H> {
    /// `browser-clone-list`.
    pub(super) fn list(&self, caller: &Caller, params: &ListParams) -> ListResult {
        let busy = self.tasks.busy();
        let registry = self.registry.read();
        let mut clones = Vec::new();
        for (slot, (state, problem)) in states(&registry, &busy, &self.services) {
            let record = registry.records.get(&slot);
            let mut info = match record {
                Some(record) => self.describe(record, Viewer::new(caller, record)),
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
        for (state, _) in states(&registry, &busy, &self.services).values() {
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

    /// Whether what hostd itself writes can be written.
    pub(super) async fn own_checks(&self) -> Vec<Finding> {
        let finding = |check: &str, problem: Option<String>, path: &Path, what: &str, fix: &str| Finding {
            check: check.into(),
            severity: if problem.is_some() { Severity::Error } else { Severity::Ok },
            fix: if problem.is_some() { fix.into() } else { String::new() },
            message: match problem {
                Some(problem) => format!("{}: {what} cannot be written: {problem}", path.display()),
                None => format!("{}: {what} can be written", path.display()),
            },
        };
        let paths = &self.config.paths;
        let records = self.registry.problem(&self.tasks.busy()).await;
        let audit = self.calls.audit_problem().await;
        let fix = "free space on its disk, mount it writable or correct its permissions; hostd then writes what is missing";
        vec![
            finding("records", records, &paths.state.join("records"), "the records", fix),
            finding("audit", audit, &paths.audit, "the audit log", fix),
        ]
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

    /// The result of a create, for the owner of the clone.
    pub(super) fn create_result(&self, record: &Record, renewed: bool) -> CreateResult {
        let clone = self.describe(record, Viewer::Owner);
        // The browser's own socket, of a clone without browserd, needs no secret.
        let has_browserd = clone.endpoint.as_deref().is_some_and(|at| at.starts_with("http://"));
        let secret = record.secret.clone().filter(|_| has_browserd);
        CreateResult { clone, renewed, secret, callers: self.config.egress.callers(record.owner_uid) }
    }

    /// One record as a caller sees it.
    fn describe(&self, record: &Record, viewer: Viewer) -> CloneInfo {
        let own = viewer != Viewer::Other;
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
            cdp_endpoint: match (cdp_endpoint, &record.secret) {
                (Some(url), Some(secret)) if viewer == Viewer::Owner => Some(SecretUrl::new(&url, secret)),
                _ => None,
            },
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
fn states(
    registry: &RegistryState,
    busy: &BTreeSet<Slot>,
    services: &ServiceWatch,
) -> BTreeMap<Slot, (CloneState, Option<String>)> {
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
            // Only an inspection or its service can tell whether a ready clone is broken.
            Phase::Ready { .. } | Phase::Pooled { .. } => match (states.get(slot), &record.phase) {
                (Some((CloneState::Broken, problem)), _) => (CloneState::Broken, problem.clone()),
                (_, Phase::Pooled { .. }) => (CloneState::Pooled, None),
                _ => match services.problem(record) {
                    Some(problem) => (CloneState::Broken, Some(problem)),
                    None => (CloneState::Ready, None),
                },
            },
        };
        states.insert(*slot, by_phase);
    }
    states
}
