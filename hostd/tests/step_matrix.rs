//! The step matrix: for create, destroy, reap and rollback, at every call to the host and every
//! write of a record: it fails, half succeeds, lies, hangs, runs twice, or the process dies before
//! or after it. After reconcile the host is clean or the clone is ready, every time.
#![allow(clippy::unwrap_used)]

mod rig;

use hostd::api::{CloneInfo, CloneState};
use hostd::host::HostErrorKind;
use hostd::host::fake::{Fault, FaultKind, HostCall, SimulatedCrash, When};
use rig::Rig;
use std::panic::panic_any;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    Destroy,
    Reap,
    /// A create whose last step fails, so that everything made before has to go again.
    Rollback,
}

const OPERATIONS: [Operation; 4] =
    [Operation::Create, Operation::Destroy, Operation::Reap, Operation::Rollback];

impl Operation {
    /// The state of things before the operation: one neighbour that must not be harmed, and its clone.
    async fn prepare(self) -> (Rig, Option<CloneInfo>) {
        let rig = Rig::new().await;
        let neighbour = rig.create("neighbour").await.unwrap();
        assert_eq!(neighbour.clone.state, CloneState::Ready);
        let clone = match self {
            Operation::Create => None,
            Operation::Rollback => {
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

    /// Run it in a task of its own, which may die.
    async fn run(self, rig: &Rig, clone: Option<CloneInfo>) {
        let engine = rig.engine.clone();
        let work = async move {
            match self {
                Operation::Create | Operation::Rollback => {
                    let _ = engine.create(&rig::caller(1000), rig::request("victim"), None).await;
                }
                Operation::Destroy => {
                    let _ = engine.destroy(&rig::caller(1000), rig::params(&clone.unwrap()), None).await;
                }
                Operation::Reap => {
                    let _ = engine.reap(&rig::operator(), Default::default(), None).await;
                }
            }
        };
        let _ = tokio::spawn(work).await;
    }

    /// What is allowed at the end: nothing of the victim, unless a death kept the operation from counting.
    fn check(self, rig: &Rig, died: bool, context: &str) {
        let clones = rig.check_settled(context);
        let list = rig.list();
        let neighbour = list.values().any(|clone| clone.request_id.as_ref().unwrap().as_str() == "neighbour");
        assert!(neighbour, "{context}: the neighbour was harmed: {list:?}");
        let most = match self {
            Operation::Create => 2,
            Operation::Destroy if died => 2,
            Operation::Destroy | Operation::Reap | Operation::Rollback => 1,
        };
        assert!(clones <= most, "{context}: {list:?}");
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
    })));
    let before = rig.host.calls();
    operation.run(&rig, clone).await;
    let calls = rig.host.calls() - before;
    (calls, writes.load(std::sync::atomic::Ordering::SeqCst))
}

#[test]
fn dying_at_every_call_to_the_host() {
    rig::runtime().block_on(async {
        let mut cases = 0;
        for operation in OPERATIONS {
            let (calls, _) = measure(operation).await;
            assert!(calls > 8, "{operation:?} makes only {calls} calls");
            for call in 1..=calls {
                for when in [When::Before, When::After] {
                    let context = format!("{operation:?} dies {when:?} call {call} of {calls}");
                    let (mut rig, clone) = operation.prepare().await;
                    rig.host.crash_at_call(call, when);
                    operation.run(&rig, clone).await;
                    rig.restart().await;
                    rig.settle().await;
                    operation.check(&rig, true, &context);
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
            assert!(writes >= 2, "{operation:?} writes only {writes} times");
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
                    })));
                    operation.run(&rig, clone).await;
                    rig.restart().await;
                    rig.settle().await;
                    operation.check(&rig, true, &context);
                    cases += 1;
                }
            }
        }
        println!("step matrix: {cases} deaths around writes of records");
        assert!(cases > 30, "{cases}");
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
    ];
    let mut cases = 0;
    for call in HostCall::ALL.iter().copied().filter(|call| call.is_effect()) {
        for kind in kinds {
            for (times, restart) in [(1, false), (1, true), (3, false)] {
                let context = format!("{operation:?}: {call} {kind:?} {times} times, restart {restart}");
                let (mut rig, clone) = operation.prepare().await;
                rig.host.inject(Fault { call, slot: None, times, kind });
                operation.run(&rig, clone).await;
                rig.host.clear_faults();
                if restart {
                    rig.restart().await;
                }
                rig.settle().await;
                operation.check(&rig, false, &context);
                cases += 1;
            }
        }
    }
    println!("step matrix: {cases} faults of effects during {operation:?}");
    assert!(cases >= 16 * 30, "{cases}");
}

#[test]
fn faults_of_create() {
    rig::runtime().block_on(async {
        faults_of(Operation::Create).await;
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
                    rig.settle().await;
                    operation.check(&rig, true, &context);
                    cases += 1;
                }
            }
        }
        println!("step matrix: {cases} deaths of a reconcile after a death");
        assert!(cases > 100, "{cases}");
    });
}
