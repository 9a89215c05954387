//! One task per busy slot: joins, queues, early answers and abandoned host work.
#![allow(clippy::unwrap_used)]

mod rig;

use hostd::api::{CloneState, DestroyParams, ErrorCode};
use hostd::host::fake::{Fault, FaultKind, HostCall, When};
use rig::{Rig, caller, operator, params, request};
use std::time::Duration;

fn on_paused_time(test: impl Future<Output = ()>) {
    rig::runtime().block_on(test);
}

fn without_waiting(params: DestroyParams) -> DestroyParams {
    DestroyParams { wait: false, ..params }
}

#[test]
fn a_destroy_that_does_not_wait_answers_when_nothing_can_run_any_more() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("one").await.unwrap().clone;
        rig.host.inject(Fault::once(HostCall::DestroyStorage, FaultKind::Delay(Duration::from_secs(3))));
        let began = tokio::time::Instant::now();
        let destroyed =
            rig.engine.destroy(&caller(1000), without_waiting(params(&clone)), None).await.unwrap();
        assert!(!destroyed.complete && !destroyed.already_gone);
        assert!(began.elapsed() < Duration::from_secs(1), "it does not wait for the storage");
        let left = rig.host.ours();
        assert!(left.iter().any(|object| object.starts_with("storage")), "the teardown continues: {left:?}");
        for kind in ["process", "member", "state"] {
            assert!(!left.iter().any(|object| object.starts_with(kind)), "{kind} is left: {left:?}");
        }
        let records = rig.config.paths.state.join("records/slot-001.json");
        assert!(std::fs::read_to_string(records).unwrap().contains("destroying"), "the teardown is recorded");
        // A caller that waits joins the teardown that is running.
        let complete = rig.destroy(&clone).await.unwrap();
        assert!(complete.complete, "{complete:?}");
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
        assert_eq!(rig.states()["browsertask001"], CloneState::Quarantined);
    });
}

#[test]
fn a_destroy_that_does_not_wait_is_finished_after_a_crash() {
    on_paused_time(async {
        let mut rig = Rig::new().await;
        let clone = rig.create("one").await.unwrap().clone;
        rig.host.inject(Fault::once(HostCall::DestroyStorage, FaultKind::Crash(When::Before)));
        let destroyed =
            rig.engine.destroy(&caller(1000), without_waiting(params(&clone)), None).await.unwrap();
        assert!(!destroyed.complete);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!rig.host.ours().is_empty(), "the crash left something");
        rig.restart().await;
        rig.settle().await;
        assert_eq!(rig.check_settled("after the crash"), 0);
    });
}

#[test]
fn a_destroy_is_answered_early_only_when_the_processes_have_ended() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("one").await.unwrap().clone;
        let failure = FaultKind::FailBefore(hostd::host::HostErrorKind::Failed);
        rig.host.inject(Fault::once(HostCall::EndProcesses, failure));
        let destroyed =
            rig.engine.destroy(&caller(1000), without_waiting(params(&clone)), None).await.unwrap();
        assert!(destroyed.complete, "the answer comes when nothing is left: {destroyed:?}");
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
    });
}

#[test]
fn a_stopping_daemon_waits_for_a_teardown_that_nobody_waits_for() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("one").await.unwrap().clone;
        rig.host.inject(Fault::once(HostCall::DestroyStorage, FaultKind::Delay(Duration::from_secs(3))));
        rig.engine.destroy(&caller(1000), without_waiting(params(&clone)), None).await.unwrap();
        assert_eq!(rig.engine.shutdown().await, 0);
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
    });
}

#[test]
fn a_request_is_never_joined_by_another_caller() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.set_latency(Duration::from_millis(50));
        let (owner, other) = (caller(1000), caller(1001));
        let (first, second) = tokio::join!(
            biased;
            rig.engine.create(&owner, request("same"), None),
            rig.engine.create(&other, request("same"), None),
        );
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!((first.clone.owner_uid, second.clone.owner_uid), (Some(1000), Some(1001)));
        assert_ne!(first.clone.clone_id, second.clone.clone_id);
        assert_eq!(rig.check_settled("a clone for each caller"), 2);
    });
}

#[test]
fn a_name_that_is_being_released_is_waited_for() {
    on_paused_time(async {
        for quarantine in [0, 5] {
            let rig = Rig::with(|config| config.lifecycle.quarantine_seconds = quarantine).await;
            let clone = rig.create("one").await.unwrap().clone;
            rig.host.set_latency(Duration::from_millis(50));
            if quarantine > 0 {
                rig.destroy(&clone).await.unwrap();
                rig.clock.advance(Duration::from_secs(quarantine + 1));
            }
            let named = || {
                let mut params = request("two");
                params.name = Some(clone.name.clone());
                params
            };
            // The release (or the whole destroy) is running when the create asks for the same name.
            let releasing = async {
                match quarantine {
                    0 => drop(rig.destroy(&clone).await.unwrap()),
                    _ => rig.engine.reconcile_now().await,
                }
            };
            let creating = async {
                loop {
                    match rig.engine.create(&caller(1000), named(), None).await {
                        Err(error) if error.code() == ErrorCode::NameTaken && !rig.states().is_empty() => {
                            // Taken by the clone itself, before its destroy has begun or while it is running.
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        result => return result,
                    }
                }
            };
            let ((), created) = tokio::join!(releasing, creating);
            assert_eq!(created.unwrap().clone.name, clone.name);
            rig.check_settled("after the release");
        }
    });
}

#[test]
fn operations_on_one_clone_run_one_after_the_other() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.set_latency(Duration::from_millis(20));
        let clone = rig.create("one").await.unwrap().clone;
        let operator = operator();
        let (destroyed, renewed, unmounted) = tokio::join!(
            biased;
            rig.destroy(&clone),
            rig.create("one"),
            rig.engine.force_unmount(&operator, rig::force_unmount_params(&clone), None),
        );
        assert!(destroyed.unwrap().complete);
        assert_eq!(renewed.unwrap_err().code(), ErrorCode::RequestFinished);
        assert_eq!(unmounted.unwrap_err().code(), ErrorCode::NotDestroying, "the destroy was over by then");
        assert!(rig.host.ours().is_empty());
    });
}

/// An inspection of the whole host that began before a slot was released says nothing about the slot afterwards.
#[test]
fn a_released_name_is_free_whatever_an_older_inspection_showed() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.lifecycle.quarantine_seconds = 0).await;
        let clone = rig.create("one").await.unwrap().clone;
        // It shows the clone, and is answered after the clone is gone.
        rig.host.inject(Fault::once(HostCall::Inventory, FaultKind::AnswerLate(Duration::from_secs(2))));
        let engine = rig.engine.clone();
        let inspecting = tokio::spawn(async move { engine.reconcile_now().await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        rig.destroy(&clone).await.unwrap();
        inspecting.await.unwrap();
        let mut named = request("two");
        named.name = Some(clone.name.clone());
        let second = rig.engine.create(&caller(1000), named, None).await.unwrap();
        assert_eq!(second.clone.name, clone.name);
        assert_eq!(rig.check_settled("the second clone"), 1);
    });
}

/// The host's own thread finishes a step after its call timed out: the rollback must wait for it.
#[test]
fn an_effect_that_finishes_late_is_rolled_back_with_the_rest() {
    on_paused_time(async {
        for call in
            [HostCall::EnsureStorage, HostCall::EnsureNetwork, HostCall::EnsureJail, HostCall::EnsureService]
        {
            let rig = Rig::new().await;
            // Longer than the step's timeout of five seconds, and shorter than two of them.
            rig.host.inject(Fault::once(call, FaultKind::Late(Duration::from_secs(8))));
            let error = rig.create("late").await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Timeout, "{call}: {error}");
            assert!(rig.host.ours().is_empty(), "{call}: {:?}", rig.host.ours());
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(rig.host.ours().is_empty(), "{call} came late: {:?}", rig.host.ours());
            assert_eq!(rig.list().len(), 1, "only the quarantined record");
        }
    });
}
