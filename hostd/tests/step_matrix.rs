//! The step matrix: for create, destroy, reap and rollback, every call to the host and every write of a record goes wrong:
//! it fails, half succeeds, reports success without effect, hangs, runs twice, takes effect after its caller gave up, or
//! the process dies before or after it. After reconcile the host is clean or the clone is ready, and the next create
//! succeeds. The same with a warm pool, whose members are claimed, made and drained: afterwards it can be filled again.
#![allow(clippy::unwrap_used)]

mod rig;

use hostd::api::{CloneInfo, CloneState, CreateParams, ErrorCode, Flavor};
use hostd::host::fake::{Fault, FaultKind, HostCall, SimulatedCrash, When};
use hostd::host::{Host, HostErrorKind};
use rig::Rig;
use std::panic::panic_any;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    /// The same on a host that makes parts at the same time.
    CreateAtOnce,
    Destroy,
    Reap,
    /// A create whose last step fails, so that everything that was made is rolled back.
    Rollback,
    /// The same on a host that makes parts at the same time.
    RollbackAtOnce,
    /// A create that claims a member of this flavour.
    Claim(Flavor),
    /// A member of this flavour is made.
    Refill(Flavor),
    /// A member that is too old is drained.
    Drain(Flavor),
    /// A destroy beside a full warm pool.
    DestroyBesidePool,
    /// A create that no member fits, on a host that is full because of the warm pool.
    Evict,
}

const OPERATIONS: [Operation; 14] = [
    Operation::Create,
    Operation::CreateAtOnce,
    Operation::Destroy,
    Operation::Reap,
    Operation::Rollback,
    Operation::RollbackAtOnce,
    Operation::Claim(Flavor::Ready),
    Operation::Claim(Flavor::Basic),
    Operation::Refill(Flavor::Ready),
    Operation::Refill(Flavor::Basic),
    Operation::Drain(Flavor::Ready),
    Operation::Drain(Flavor::Basic),
    Operation::DestroyBesidePool,
    Operation::Evict,
];

/// The age at which a member is drained: longer than settling takes, and before the neighbour's deadline.
const MAX_AGE: u64 = 1200;

impl Operation {
    /// The flavour of the warm pool, if the operation has one.
    fn pool(self) -> Option<Flavor> {
        match self {
            Operation::Create | Operation::CreateAtOnce | Operation::Destroy | Operation::Reap => None,
            Operation::Rollback | Operation::RollbackAtOnce => None,
            Operation::Claim(flavor) | Operation::Refill(flavor) | Operation::Drain(flavor) => Some(flavor),
            Operation::DestroyBesidePool | Operation::Evict => Some(Flavor::Ready),
        }
    }

    /// The host before the operation, with a neighbour that must not be harmed. Returns the clone to operate on.
    async fn prepare(self) -> (Rig, Option<CloneInfo>) {
        let rig = Rig::with(|config| {
            config.pool.flavors = self.pool().into_iter().collect();
            config.pool.size = u16::from(self.pool().is_some());
            config.pool.max_age_seconds = MAX_AGE;
            if self == Operation::Evict {
                config.server.max_clones = 2;
            }
        })
        .await;
        if matches!(self, Operation::CreateAtOnce | Operation::RollbackAtOnce) {
            rig.host.make_parts_at_once();
            // So that they really overlap.
            rig.host.set_latency(Duration::from_millis(10));
        }
        let neighbour = rig.create("neighbour").await.unwrap();
        assert_eq!(neighbour.clone.state, CloneState::Ready);
        if !matches!(self, Operation::Refill(_) | Operation::DestroyBesidePool) {
            rig.refill().await;
        }
        let clone = match self {
            Operation::Create | Operation::CreateAtOnce | Operation::Claim(_) => None,
            Operation::Refill(_) | Operation::Evict => None,
            Operation::Drain(_) => {
                rig.clock.advance(Duration::from_secs(MAX_AGE + 1));
                None
            }
            Operation::DestroyBesidePool => {
                let clone = rig.create("victim").await.unwrap().clone;
                rig.refill().await;
                Some(clone)
            }
            Operation::Rollback | Operation::RollbackAtOnce => {
                let kind = FaultKind::FailAfter(HostErrorKind::Failed);
                rig.host.inject(Fault::once(HostCall::EnsureService, kind));
                None
            }
            Operation::Destroy => Some(rig.create("victim").await.unwrap().clone),
            Operation::Reap => {
                let mut params = rig::request("victim");
                params.deadline_seconds = Some(5);
                let victim = rig.engine.create(&rig::caller(1000), params, None).await.unwrap();
                rig.clock.advance(Duration::from_secs(6));
                Some(victim.clone)
            }
        };
        (rig, clone)
    }

    /// What a create of the victim asks for.
    fn victim(self) -> CreateParams {
        let mut params = rig::request("victim");
        if self == Operation::Evict {
            params.snapshot = Some("v2".parse().unwrap());
        }
        params
    }

    /// Run it in a task of its own, which may die. Returns whether it succeeded.
    async fn run(self, rig: &Rig, clone: Option<CloneInfo>) -> bool {
        let engine = rig.engine.clone();
        let work = async move {
            match self {
                Operation::Create
                | Operation::CreateAtOnce
                | Operation::Rollback
                | Operation::RollbackAtOnce
                | Operation::Claim(_)
                | Operation::Evict => engine.create(&rig::caller(1000), self.victim(), None).await.is_ok(),
                Operation::Refill(_) => engine.refill_now().await.is_ok(),
                Operation::Drain(_) => {
                    engine.reconcile_now().await;
                    true
                }
                Operation::Destroy | Operation::DestroyBesidePool => {
                    engine.destroy(&rig::caller(1000), rig::params(&clone.unwrap()), None).await.is_ok()
                }
                Operation::Reap => {
                    let reaped = engine.reap(&rig::operator(), Default::default(), None).await;
                    reaped.is_ok_and(|result| result.reaped.len() == 1)
                }
            }
        };
        tokio::spawn(work).await.unwrap_or(false)
    }

    /// Whether it is a create that fails.
    fn rolls_back(self) -> bool {
        matches!(self, Operation::Rollback | Operation::RollbackAtOnce)
    }

    /// Whether it destroys the victim.
    fn removes(self) -> bool {
        matches!(
            self,
            Operation::Destroy | Operation::DestroyBesidePool | Operation::Reap | Operation::Drain(_)
        )
    }

    /// Everything settles, and the warm pool is filled again.
    async fn settle(self, rig: &Rig) {
        rig.settle().await;
        if self.pool().is_some() {
            rig.refill().await;
            rig.engine.reconcile_now().await;
        }
    }

    /// What is allowed at the end: nothing of the victim, unless the process died before the operation was recorded.
    fn check(self, rig: &Rig, died: bool, context: &str) {
        let clones = rig.check_settled(context);
        let list = rig.list();
        let of_neighbour = |clone: &CloneInfo| {
            clone.request_id.as_ref().is_some_and(|request| request.as_str() == "neighbour")
        };
        let neighbour = list.values().any(of_neighbour);
        assert!(neighbour, "{context}: the neighbour was harmed: {list:?}");
        let most = match self {
            Operation::Create | Operation::CreateAtOnce | Operation::Claim(_) | Operation::Evict => 2,
            Operation::Destroy | Operation::DestroyBesidePool if died => 2,
            Operation::Destroy | Operation::DestroyBesidePool | Operation::Reap => 1,
            Operation::Rollback | Operation::RollbackAtOnce => 1,
            Operation::Refill(_) | Operation::Drain(_) => 1,
        };
        assert!(clones <= most, "{context}: {list:?}");
        // A full host has no room for the pool.
        let full = self == Operation::Evict && clones == 2;
        let members = usize::from(self.pool().is_some() && !full);
        assert_eq!(rig.members().len(), members, "{context}: {list:?}");
    }

    /// The host works again: the same request gets its clone.
    async fn retry(self, rig: &Rig, context: &str) {
        rig.host.clear_faults();
        let retried = rig.engine.create(&rig::caller(1000), self.victim(), None).await;
        let clone = retried.unwrap_or_else(|error| panic!("{context}: the retry fails: {error}")).clone;
        assert_eq!(clone.state, CloneState::Ready, "{context}");
    }

    /// Everything settles, only what is allowed is left, and the host works again.
    async fn end(self, rig: &Rig, died: bool, context: &str) {
        self.settle(rig).await;
        self.check(rig, died, context);
        self.retry(rig, context).await;
    }
}

/// Work that finishes after its caller gave up must not land in a slot that was declared free.
async fn no_late_effect_in_a_free_slot(rig: &Rig, context: &str) {
    rig.host.settle().await;
    let (ours, list) = (rig.host.ours(), rig.list());
    for number in 1..=rig::SLOTS {
        let name = rig.engine.slots().name(rig::slot(number));
        let objects: Vec<&String> =
            ours.iter().filter(|object| object.split([' ', '/']).any(|word| word == name.as_str())).collect();
        let free = list.get(&name).is_none_or(|clone| clone.state == CloneState::Quarantined);
        assert!(!free || objects.is_empty(), "{context}: {name} is free, but has {objects:?}");
    }
}

/// How many host calls and record writes the operation makes when nothing goes wrong.
async fn measure(operation: Operation) -> (u64, u64) {
    let (rig, clone) = operation.prepare().await;
    let writes = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = writes.clone();
    rig.engine.store().set_hook(Some(Box::new(move |after| {
        if !after {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        Ok(())
    })));
    let before = rig.host.calls();
    let succeeded = operation.run(&rig, clone).await;
    assert_eq!(succeeded, !operation.rolls_back(), "{operation:?} without a fault");
    let calls = rig.host.calls() - before;
    (calls, writes.load(std::sync::atomic::Ordering::SeqCst))
}

#[test]
fn dying_at_every_call_to_the_host() {
    rig::runtime().block_on(async {
        let mut cases = 0;
        for operation in OPERATIONS {
            let (calls, _) = measure(operation).await;
            assert!(calls >= 4, "{operation:?} makes only {calls} calls");
            for call in 1..=calls {
                for when in [When::Before, When::After] {
                    let context = format!("{operation:?} dies {when:?} call {call} of {calls}");
                    let (mut rig, clone) = operation.prepare().await;
                    rig.host.crash_at_call(call, when);
                    operation.run(&rig, clone).await;
                    rig.restart().await;
                    operation.end(&rig, true, &context).await;
                    cases += 1;
                }
            }
        }
        println!("step matrix: {cases} deaths around calls to the host");
        assert!(cases > 100, "{cases}");
    });
}

#[test]
fn dying_at_every_write_of_a_record() {
    rig::runtime().block_on(async {
        let mut cases = 0;
        for operation in OPERATIONS {
            let (_, writes) = measure(operation).await;
            assert!(writes >= 1, "{operation:?} writes only {writes} times");
            for write in 1..=writes {
                for when in [When::Before, When::After] {
                    let context = format!("{operation:?} dies {when:?} write {write} of {writes}");
                    let (mut rig, clone) = operation.prepare().await;
                    let mut number = 0;
                    rig.engine.store().set_hook(Some(Box::new(move |after| {
                        number += u64::from(!after);
                        if number == write && after == (when == When::After) {
                            panic_any(SimulatedCrash);
                        }
                        Ok(())
                    })));
                    operation.run(&rig, clone).await;
                    rig.restart().await;
                    operation.end(&rig, true, &context).await;
                    cases += 1;
                }
            }
        }
        println!("step matrix: {cases} deaths around writes of records");
        assert!(cases > 30, "{cases}");
    });
}

#[test]
fn every_single_write_of_a_record_fails() {
    rig::runtime().block_on(async {
        let mut cases = 0;
        for operation in OPERATIONS {
            let (_, writes) = measure(operation).await;
            for write in 1..=writes {
                for (when, restart) in [(When::Before, false), (When::After, false), (When::Before, true)] {
                    let context =
                        format!("{operation:?}: write {write} of {writes} fails {when:?}, restart {restart}");
                    let (mut rig, clone) = operation.prepare().await;
                    let mut number = 0;
                    rig.engine.store().set_hook(Some(Box::new(move |after| {
                        number += u64::from(!after);
                        match number == write && after == (when == When::After) {
                            true => Err(std::io::ErrorKind::StorageFull.into()),
                            false => Ok(()),
                        }
                    })));
                    let succeeded = operation.run(&rig, clone).await;
                    assert!(succeeded || !operation.removes(), "{context}");
                    if restart {
                        rig.restart().await;
                    }
                    operation.end(&rig, restart, &context).await;
                    cases += 1;
                }
            }
        }
        println!("step matrix: {cases} failed writes of records");
        assert!(cases > 60, "{cases}");
    });
}

/// A full disk: neither records nor audit lines can be written, before and after a restart. Removing works all the same.
#[test]
fn removing_works_while_nothing_can_be_written() {
    rig::runtime().block_on(async {
        for operation in OPERATIONS.into_iter().filter(|operation| operation.removes()) {
            for restart in [false, true] {
                let context = format!("{operation:?} on a full disk, restart {restart}");
                let (mut rig, clone) = operation.prepare().await;
                let name = match &clone {
                    Some(clone) => clone.name.clone(),
                    None => rig.members().remove(0),
                };
                let left = |rig: &Rig| -> Vec<String> {
                    let mentions =
                        |object: &String| object.split([' ', '/']).any(|word| word == name.as_str());
                    rig.host.ours().into_iter().filter(mentions).collect()
                };
                rig.fail_record_writes();
                rig.break_audit();
                match restart {
                    // The caller's destroy is lost with the process; a deadline is not.
                    true if operation != Operation::Destroy && operation != Operation::DestroyBesidePool => {
                        rig.mend_audit();
                        rig.restart().await;
                        rig.fail_record_writes();
                        rig.break_audit();
                        rig.engine.reconcile_now().await;
                    }
                    _ => assert!(operation.run(&rig, clone).await, "{context}"),
                }
                assert_eq!(left(&rig), Vec::<String>::new(), "{context}");
                let alarms = rig.engine.status().alarms;
                assert!(alarms.iter().any(|alarm| alarm.contains("audit log")), "{context}: {alarms:?}");
                let refused = rig.create("another").await.unwrap_err();
                assert_eq!(refused.code(), ErrorCode::AuditUnavailable, "{context}: {refused}");
                rig.mend_audit();
                let refused = rig.create("another").await.unwrap_err();
                assert_eq!(refused.code(), ErrorCode::StateUnavailable, "{context}: {refused}");
                rig.allow_record_writes();
                operation.end(&rig, false, &context).await;
                let alarms = rig.engine.status().alarms;
                assert!(alarms.is_empty(), "{context}: {alarms:?}");
                let audit = std::fs::read_to_string(&rig.config.paths.audit).unwrap();
                // A caller's reap names no clone.
                let line = if operation == Operation::Reap { "browser-clone-reap" } else { name.as_str() };
                assert!(audit.contains(line), "{context}: the lines were written later: {audit}");
            }
        }
    });
}

/// Every effect going wrong in every way, while this operation runs.
async fn faults_of(operation: Operation) {
    let kinds = [
        FaultKind::FailBefore(HostErrorKind::Failed),
        FaultKind::FailBefore(HostErrorKind::Busy),
        FaultKind::FailBefore(HostErrorKind::NoSpace),
        FaultKind::FailAfter(HostErrorKind::Failed),
        FaultKind::FailAfter(HostErrorKind::Timeout),
        FaultKind::Lie,
        FaultKind::Half,
        FaultKind::Hang,
        FaultKind::HangAfter,
        FaultKind::Twice,
        // Longer than a step's timeout of five seconds. Then shorter than the time that such work is waited for, and longer.
        FaultKind::Late(Duration::from_secs(8)),
        FaultKind::Late(Duration::from_secs(40)),
    ];
    let mut cases = 0;
    for call in HostCall::ALL.iter().copied().filter(|call| call.is_effect()) {
        for kind in kinds {
            for (times, restart) in [(1, false), (1, true), (3, false)] {
                let context = format!("{operation:?}: {call} {kind:?} {times} times, restart {restart}");
                let (mut rig, clone) = operation.prepare().await;
                rig.host.inject(Fault { call, slot: None, times, kind });
                let succeeded = operation.run(&rig, clone).await;
                assert!(succeeded || kind != FaultKind::Twice || operation.rolls_back(), "{context}");
                rig.host.clear_faults();
                match restart {
                    true => rig.restart().await,
                    false => no_late_effect_in_a_free_slot(&rig, &context).await,
                }
                operation.end(&rig, false, &context).await;
                cases += 1;
            }
        }
    }
    println!("step matrix: {cases} faults of effects during {operation:?}");
    assert!(cases >= 18 * 36, "{cases}");
}

#[test]
fn faults_of_create() {
    rig::runtime().block_on(async {
        faults_of(Operation::Create).await;
        faults_of(Operation::CreateAtOnce).await;
    });
}

#[test]
fn faults_of_destroy() {
    rig::runtime().block_on(async {
        faults_of(Operation::Destroy).await;
    });
}

#[test]
fn faults_of_reap() {
    rig::runtime().block_on(async {
        faults_of(Operation::Reap).await;
    });
}

#[test]
fn faults_of_rollback() {
    rig::runtime().block_on(async {
        faults_of(Operation::Rollback).await;
        faults_of(Operation::RollbackAtOnce).await;
    });
}

#[test]
fn faults_of_claims() {
    rig::runtime().block_on(async {
        faults_of(Operation::Claim(Flavor::Ready)).await;
        faults_of(Operation::Claim(Flavor::Basic)).await;
    });
}

#[test]
fn faults_of_refills() {
    rig::runtime().block_on(async {
        faults_of(Operation::Refill(Flavor::Ready)).await;
        faults_of(Operation::Refill(Flavor::Basic)).await;
    });
}

#[test]
fn faults_of_drains() {
    rig::runtime().block_on(async {
        faults_of(Operation::Drain(Flavor::Ready)).await;
        faults_of(Operation::DestroyBesidePool).await;
        faults_of(Operation::Evict).await;
    });
}

#[test]
fn dying_twice_in_a_row() {
    rig::runtime().block_on(async {
        let mut cases = 0;
        for operation in OPERATIONS {
            let (calls, _) = measure(operation).await;
            for call in (1..=calls).step_by(3) {
                for second in [1, 2, 3, 5, 8, 13] {
                    let context =
                        format!("{operation:?} dies at call {call}, its reconcile at call {second}");
                    let (mut rig, clone) = operation.prepare().await;
                    rig.host.crash_at_call(call, When::After);
                    operation.run(&rig, clone).await;
                    rig.restart().await;
                    rig.host.crash_at_call(second, When::After);
                    let engine = rig.engine.clone();
                    let _ = tokio::spawn(async move { engine.reconcile_now().await }).await;
                    rig.host.clear_faults();
                    rig.restart().await;
                    operation.end(&rig, true, &context).await;
                    cases += 1;
                }
            }
        }
        println!("step matrix: {cases} deaths of a reconcile after a death");
        assert!(cases > 100, "{cases}");
    });
}
