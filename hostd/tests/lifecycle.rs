//! The behaviour of the lifecycle for callers and operators, on the fake host.
#![allow(clippy::unwrap_used)]

mod rig;

use hostd::api::{
    CloneId, CloneState, CreateResult, ErrorCode, Limits, ListParams, ProgressState, ReapParams, ReapReason,
    RpcError,
};
use hostd::host::fake::{Fault, FaultKind, HostCall};
use hostd::host::{HostErrorKind, Part};
use hostd::lifecycle::ProgressSink;
use rig::{Rig, SLOTS, caller, force_unmount_params, operator, params, request, slot};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Run a test on paused time.
fn on_paused_time(test: impl Future<Output = ()>) {
    rig::runtime().block_on(test);
}

fn audit_lines(rig: &Rig) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(&rig.config.paths.audit).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_clone_is_created_and_destroyed() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let created = rig.create("one").await.unwrap();
        let clone = &created.clone;
        assert!(!created.renewed);
        assert_eq!(clone.name.as_str(), "browsertask001");
        assert_eq!(clone.state, CloneState::Ready);
        assert_eq!(clone.endpoint.as_deref(), Some("http://10.87.64.16:8080"));
        let secret = created.secret.clone().expect("a secret");
        let raw = format!("ws://10.87.64.16:8080/{}/devtools/browser/browsertask001", secret.as_str());
        assert_eq!(clone.cdp_endpoint.as_deref(), Some(raw.as_str()));
        assert!(!format!("{created:?}").contains(secret.as_str()), "the secret is not shown");
        let renewed = rig.create("one").await.unwrap();
        assert_eq!((renewed.renewed, renewed.secret), (true, Some(secret)), "the owner gets it again");
        assert_eq!(clone.owner_uid, Some(1000));
        assert_eq!(clone.deadline_seconds_left, Some(1800));
        let stages: Vec<&str> = clone.stages.iter().map(|stage| stage.stage.as_str()).collect();
        assert_eq!(stages, ["storage", "limits", "network", "egress", "jail", "service", "total"]);
        rig.check_settled("after create");

        let destroyed = rig.destroy(clone).await.unwrap();
        assert!(!destroyed.already_gone && !destroyed.stages.is_empty());
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
        assert_eq!(rig.states()["browsertask001"], CloneState::Quarantined);
        assert!(rig.destroy(clone).await.unwrap().already_gone, "absent is success");
        rig.settle().await;
        assert_eq!(rig.check_settled("at the end"), 0);
        assert!(rig.destroy(clone).await.unwrap().already_gone, "and stays so without a record");
    });
}

#[test]
fn every_change_has_an_audit_line_before_and_after() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("one").await.unwrap().clone;
        rig.destroy(&clone).await.unwrap();
        rig.reap().await.unwrap();
        let dry = ReapParams { dry_run: true, ..ReapParams::default() };
        rig.engine.reap(&operator(), dry, None).await.unwrap();
        let lines = audit_lines(&rig);
        let brief: Vec<String> = lines
            .iter()
            .map(|line| {
                format!(
                    "{} {} {}",
                    line["phase"].as_str().unwrap(),
                    line["method"].as_str().unwrap(),
                    line["call"]
                )
            })
            .collect();
        assert_eq!(
            brief,
            [
                "before browser-clone-create 1",
                "after browser-clone-create 1",
                "before browser-clone-destroy 2",
                "after browser-clone-destroy 2",
                "before browser-clone-reap 3",
                "after browser-clone-reap 3",
            ]
        );
        assert_eq!(lines[0]["request"]["request_id"], "one");
        assert_eq!(lines[0]["actor"]["peer"]["uid"], 1000);
        assert_eq!(lines[1]["result"], "ok");
        assert_eq!(lines[1]["name"], "browsertask001");
    });
}

#[test]
fn reaps_by_the_timer_are_audited() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.create("one").await.unwrap();
        rig.clock.advance(Duration::from_secs(1801));
        rig.engine.reconcile_now().await;
        let lines = audit_lines(&rig);
        let (before, after) = (&lines[2], &lines[3]);
        assert_eq!((&before["phase"], &after["phase"]), (&"before".into(), &"after".into()));
        assert_eq!(before["actor"]["hostd"], "timer");
        assert_eq!(before["request"]["reason"], "deadline_passed");
        assert_eq!(after["result"], "ok");
        assert_eq!(lines.len(), 4);
    });
}

#[test]
fn without_a_record_there_is_no_effect() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.fail_record_writes();
        let error = rig.create("one").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::StateUnavailable);
        assert!(rig.host.ours().is_empty());
        assert!(rig.list().is_empty());
        rig.allow_record_writes();
        rig.create("one").await.unwrap();
    });
}

#[test]
fn identical_concurrent_requests_create_one_clone() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.set_latency(Duration::from_millis(10));
        let all = futures_util::future::join_all((0..8).map(|_| rig.create("same"))).await;
        let ids: BTreeSet<CloneId> =
            all.iter().map(|result| result.as_ref().unwrap().clone.clone_id.clone().unwrap()).collect();
        assert_eq!(ids.len(), 1);
        assert_eq!(
            all.iter().filter(|result| !result.as_ref().unwrap().renewed).count(),
            1,
            "one made it, seven renewed"
        );
        rig.check_settled("after eight at once");
        assert_eq!(rig.list().len(), 1);
    });
}

#[test]
fn a_failed_create_fails_for_all_joined_callers_and_can_be_retried() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.set_latency(Duration::from_millis(10));
        rig.host.inject(Fault::once(HostCall::EnsureJail, FaultKind::FailBefore(HostErrorKind::Failed)));
        let (one, two) = tokio::join!(rig.create("same"), rig.create("same"));
        for error in [one.unwrap_err(), two.unwrap_err()] {
            assert_eq!(error.code(), ErrorCode::StepFailed);
            assert_eq!(error.data.step.as_deref(), Some("jail"));
            assert_eq!(error.data.name.as_ref().unwrap().as_str(), "browsertask001");
            assert!(error.data.retryable && error.data.cleanup.is_empty(), "{error:?}");
        }
        assert!(rig.host.ours().is_empty());
        let again = rig.create("same").await.unwrap();
        assert_eq!(
            again.clone.name.as_str(),
            "browsertask002",
            "another slot while the first is quarantined"
        );
    });
}

#[test]
fn a_lease_is_renewed_and_never_shortened() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let first = rig.create("lease").await.unwrap().clone;
        rig.clock.advance(Duration::from_secs(1000));
        let again = rig.create("lease").await.unwrap();
        assert!(again.renewed);
        assert_eq!(again.clone.clone_id, first.clone_id);
        assert_eq!(again.clone.deadline_seconds_left, Some(1800));
        let mut short = request("lease");
        short.deadline_seconds = Some(5);
        let short = rig.engine.create(&caller(1000), short, None).await.unwrap();
        assert_eq!(short.clone.deadline_seconds_left, Some(1800));
        // The renewed deadline is on disk.
        let mut rig = rig;
        rig.restart().await;
        rig.clock.advance(Duration::from_secs(1700));
        rig.engine.reconcile_now().await;
        assert_eq!(rig.states()["browsertask001"], CloneState::Ready);
        rig.clock.advance(Duration::from_secs(101));
        assert_eq!(rig.create("lease").await.unwrap_err().code(), ErrorCode::RequestFinished, "too late");
        rig.engine.reconcile_now().await;
        assert!(rig.host.ours().is_empty());
        assert_eq!(rig.create("lease").await.unwrap_err().code(), ErrorCode::RequestFinished);
    });
}

#[test]
fn a_lifetime_of_zero_or_above_the_configured_one_is_refused() {
    on_paused_time(async {
        let rig = Rig::new().await;
        for (seconds, code) in [
            (86_401, ErrorCode::LimitExceeded),
            (u64::MAX, ErrorCode::LimitExceeded),
            (0, ErrorCode::InvalidParams),
        ] {
            let mut wanted = request("a");
            wanted.deadline_seconds = Some(seconds);
            let error = rig.engine.create(&caller(1000), wanted, None).await.unwrap_err();
            assert_eq!(error.code(), code, "{seconds}");
            assert!(error.message.contains(&format!("deadline_seconds: {seconds} ")), "{error}");
        }
        assert!(rig.list().is_empty());
        let mut wanted = request("a");
        wanted.deadline_seconds = Some(86_400);
        let clone = rig.engine.create(&caller(1000), wanted, None).await.unwrap().clone;
        assert_eq!(clone.deadline_seconds_left, Some(86_400));
    });
}

#[test]
fn a_request_id_identifies_one_request() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.create("mine").await.unwrap();
        let mut other = request("mine");
        other.tenant = Some("somebody".parse().unwrap());
        assert_eq!(
            rig.engine.create(&caller(1000), other, None).await.unwrap_err().code(),
            ErrorCode::RequestConflict
        );
        let mut other = request("mine");
        other.snapshot = Some("v2".parse().unwrap());
        assert_eq!(
            rig.engine.create(&caller(1000), other, None).await.unwrap_err().code(),
            ErrorCode::RequestConflict
        );
        let mut other = request("mine");
        other.name = Some("browsertask003".parse().unwrap());
        assert_eq!(
            rig.engine.create(&caller(1000), other, None).await.unwrap_err().code(),
            ErrorCode::RequestConflict
        );
        let mut other = request("mine");
        other.limits = Some(Limits { memory_bytes: Some(256 << 20), ..Limits::default() });
        assert_eq!(
            rig.engine.create(&caller(1000), other, None).await.unwrap_err().code(),
            ErrorCode::RequestConflict
        );
        assert_eq!(rig.list().len(), 1);
    });
}

#[test]
fn limits_that_cannot_work_or_are_above_the_configured_ones_are_refused() {
    on_paused_time(async {
        let rig = Rig::new().await;
        for (limits, code, field) in [
            (
                Limits { disk_bytes: Some(0), ..Limits::default() },
                ErrorCode::InvalidParams,
                "limits.disk_bytes: 0 ",
            ),
            (
                Limits { memory_bytes: Some((128 << 20) - 1), ..Limits::default() },
                ErrorCode::InvalidParams,
                "limits.memory_bytes: 134217727 is too small: at least 134217728",
            ),
            (
                Limits { cpu_percent: Some(201), ..Limits::default() },
                ErrorCode::LimitExceeded,
                "limits.cpu_percent: 201 is above clone_limits.cpu_percent, which is 200",
            ),
        ] {
            let mut wanted = request("a");
            wanted.limits = Some(limits);
            let error = rig.engine.create(&caller(1000), wanted, None).await.unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(error.message.starts_with(field), "{error}");
        }
        assert!(rig.host.ours().is_empty() && rig.list().is_empty(), "nothing was made");
    });
}

#[test]
fn a_repeated_request_may_leave_parameters_out() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let mut first = request("mine");
        first.tenant = Some("acme".parse().unwrap());
        first.limits = Some(Limits { memory_bytes: Some(256 << 20), ..Limits::default() });
        let made = rig.engine.create(&caller(1000), first, None).await.unwrap();
        let again = rig.create("mine").await.unwrap();
        assert!(again.renewed && again.clone.clone_id == made.clone.clone_id);
        assert_eq!((again.clone.tenant, again.clone.limits), (made.clone.tenant, made.clone.limits));
    });
}

async fn create_as(rig: &Rig, uid: u32, id: &str) -> Result<CreateResult, RpcError> {
    rig.engine.create(&caller(uid), request(id), None).await
}

#[test]
fn every_user_has_request_ids_of_its_own() {
    on_paused_time(async {
        let mut rig = Rig::new().await;
        // At the same time: neither joins the other's create.
        let (mine, theirs) = tokio::join!(create_as(&rig, 1000, "same"), create_as(&rig, 1001, "same"));
        let (mine, theirs) = (mine.unwrap(), theirs.unwrap());
        assert!(!mine.renewed && !theirs.renewed);
        assert_ne!(mine.clone.clone_id, theirs.clone.clone_id);
        assert_eq!((mine.clone.owner_uid, theirs.clone.owner_uid), (Some(1000), Some(1001)));
        // Each renews its own.
        for (uid, clone) in [(1000, &mine.clone), (1001, &theirs.clone)] {
            let again = create_as(&rig, uid, "same").await.unwrap();
            assert!(again.renewed && again.clone.clone_id == clone.clone_id, "{uid}");
        }
        // A used-up id of one user is free for another.
        rig.destroy(&mine.clone).await.unwrap();
        let finished = create_as(&rig, 1000, "same").await.unwrap_err();
        assert_eq!(finished.code(), ErrorCode::RequestFinished);
        assert!(create_as(&rig, 1001, "same").await.unwrap().renewed);
        assert!(!create_as(&rig, 1002, "same").await.unwrap().renewed);
        // A list shows the request id to its owner only.
        let seen = rig.engine.list(&caller(1002), &ListParams::default()).clones;
        for clone in seen {
            let own = clone.owner_uid == Some(1002);
            assert_eq!((clone.request_id.is_some(), clone.clone_id.is_some()), (own, own), "{clone:?}");
        }
        // A restart keeps the owners apart.
        rig.restart().await;
        let again = create_as(&rig, 1001, "same").await.unwrap();
        assert!(again.renewed && again.clone.clone_id == theirs.clone.clone_id);
    });
}

#[test]
fn no_user_can_use_up_the_tenant_of_another() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.server.max_clones_per_tenant = 1).await;
        let of_acme = |uid: u32, id: &str| {
            let mut wanted = request(id);
            wanted.tenant = Some("acme".parse().unwrap());
            let rig = &rig;
            async move { rig.engine.create(&caller(uid), wanted, None).await }
        };
        of_acme(1000, "a").await.unwrap();
        assert_eq!(of_acme(1000, "b").await.unwrap_err().code(), ErrorCode::TenantFull);
        of_acme(1001, "a").await.unwrap();
    });
}

#[test]
fn a_late_destroy_cannot_destroy_the_next_clone() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.pool.last_slot = 1).await;
        let first = rig.create("first").await.unwrap().clone;
        rig.destroy(&first).await.unwrap();
        rig.settle().await;
        let second = rig.create("second").await.unwrap().clone;
        assert_eq!(second.name, first.name);
        let error = rig.destroy(&first).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::WrongClone);
        rig.check_settled("the second clone is whole");
        assert_eq!(rig.list().len(), 1);
    });
}

#[test]
fn only_the_owner_or_an_operator_may_use_a_clone() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let created = rig.create("mine").await.unwrap();
        let secret = created.secret.expect("a secret");
        let clone = created.clone;
        let error = rig.engine.destroy(&caller(1001), params(&clone), None).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Denied);
        let seen = |uid| rig.engine.list(&caller(uid), &ListParams::default()).clones.remove(0);
        assert_eq!(seen(1000).clone_id, clone.clone_id);
        assert_eq!(seen(1000).cdp_endpoint, clone.cdp_endpoint);
        // An operator may destroy the clone, but not use its browser.
        let listed = rig.engine.list(&operator(), &ListParams::default());
        let text = serde_json::to_string(&listed).unwrap();
        assert!(!text.contains(secret.as_str()), "{text}");
        let operators = &listed.clones[0];
        assert_eq!((&operators.clone_id, &operators.endpoint), (&clone.clone_id, &clone.endpoint));
        assert_eq!(operators.cdp_endpoint, None);
        let text = serde_json::to_string(&rig.engine.list(&caller(1001), &ListParams::default())).unwrap();
        assert!(!text.contains(secret.as_str()), "{text}");
        let others = seen(1001);
        assert_eq!((others.clone_id, others.request_id), (None, None));
        assert_eq!((others.endpoint, others.cdp_endpoint), (None, None));
        assert_eq!(others.owner_uid, Some(1000));
        rig.engine.destroy(&operator(), params(&clone), None).await.unwrap();
    });
}

#[test]
fn refusals_by_caps_say_when_to_retry() {
    on_paused_time(async {
        let rig = Rig::with(|config| {
            config.server.max_clones = 3;
            config.server.max_clones_per_tenant = 2;
        })
        .await;
        let create = |id: &str, tenant: &str| {
            let mut wanted = request(id);
            wanted.tenant = Some(tenant.parse().unwrap());
            let engine = rig.engine.clone();
            async move { engine.create(&caller(1000), wanted, None).await }
        };
        create("a1", "a").await.unwrap();
        let second = create("a2", "a").await.unwrap().clone;
        let error = create("a3", "a").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::TenantFull);
        assert!(error.data.retryable && error.data.retry_after_ms.is_some());
        create("b1", "b").await.unwrap();
        let error = create("c1", "c").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::HostFull);
        assert!(error.data.retry_after_ms.is_some());
        rig.destroy(&second).await.unwrap();
        create("a3", "a").await.unwrap();
    });
}

#[test]
fn the_slot_freed_longest_ago_is_claimed_first() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let mut clones = Vec::new();
        for number in 0..SLOTS {
            clones.push(rig.create(&format!("r{number}")).await.unwrap().clone);
        }
        assert_eq!(rig.create("more").await.unwrap_err().code(), ErrorCode::HostFull);
        for number in [4, 1, 3] {
            rig.destroy(&clones[number]).await.unwrap();
        }
        assert_eq!(
            rig.create("more").await.unwrap_err().code(),
            ErrorCode::HostFull,
            "all of them are quarantined"
        );
        rig.settle().await;
        for expected in ["browsertask005", "browsertask002", "browsertask004"] {
            let id = format!("next-{expected}");
            assert_eq!(rig.create(&id).await.unwrap().clone.name.as_str(), expected);
        }
    });
}

#[test]
fn a_name_can_be_requested() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let ask = |id: &str, name: &str| {
            let mut wanted = request(id);
            wanted.name = Some(name.parse().unwrap());
            let engine = rig.engine.clone();
            async move { engine.create(&caller(1000), wanted, None).await }
        };
        assert_eq!(ask("a", "browsertask004").await.unwrap().clone.name.as_str(), "browsertask004");
        assert_eq!(ask("b", "browsertask004").await.unwrap_err().code(), ErrorCode::NameTaken);
        assert_eq!(ask("c", "browsertask900").await.unwrap_err().code(), ErrorCode::InvalidParams);
        assert_eq!(ask("d", "other001").await.unwrap_err().code(), ErrorCode::InvalidParams);
        rig.host.plant_foreign(slot(5), Part::Storage);
        assert_eq!(ask("e", "browsertask005").await.unwrap_err().code(), ErrorCode::NameTaken);
        assert_eq!(rig.host.foreign().len(), 1);
        assert_eq!(rig.list().len(), 1);
    });
}

#[test]
fn slots_with_foreign_objects_are_skipped() {
    on_paused_time(async {
        let rig = Rig::new().await;
        for (number, part) in [(1, Part::Storage), (2, Part::Jail), (3, Part::Network)] {
            assert!(rig.host.plant_foreign(slot(number), part));
        }
        // The host was not inspected since: the create's own inspection has to find it.
        assert_eq!(rig.create("a").await.unwrap().clone.name.as_str(), "browsertask004");
        rig.engine.reconcile_now().await;
        let states = rig.states();
        for name in ["browsertask001", "browsertask002", "browsertask003"] {
            assert_eq!(states[name], CloneState::Foreign);
        }
        assert_eq!(rig.host.foreign().len(), 3);
    });
}

#[test]
fn stale_interfaces_of_the_slot_are_cleared_first() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.pool.last_slot = 1).await;
        rig.host.add_stray_interface(slot(1));
        rig.host.add_stray_member(rig.engine.slots().names(slot(1)).ip);
        assert_eq!(rig.create("a").await.unwrap().clone.name.as_str(), "browsertask001");
        rig.check_settled("after a create over leftovers");
    });
}

#[test]
fn different_clones_are_created_in_parallel_and_operations_on_one_clone_queue() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.set_latency(Duration::from_millis(100));
        let began = tokio::time::Instant::now();
        let one = rig.create("a").await.unwrap().clone;
        let alone = began.elapsed();
        let began = tokio::time::Instant::now();
        let four = futures_util::future::join_all(["b", "c", "d", "e"].map(|id| rig.create(id))).await;
        assert!(four.iter().all(Result::is_ok));
        assert!(began.elapsed() < alone * 2, "{:?} for four against {alone:?} for one", began.elapsed());

        let calls = rig.host.calls();
        rig.destroy(&four[0].as_ref().unwrap().clone).await.unwrap();
        let single = rig.host.calls() - calls;
        let calls = rig.host.calls();
        let (first, second) = tokio::join!(rig.destroy(&one), rig.destroy(&one));
        assert!(!first.unwrap().already_gone && !second.unwrap().already_gone, "both saw the same destroy");
        assert_eq!(rig.host.calls() - calls, single, "the second call joined the first");

        // A renewal waits for the destroy before it, and then the request is finished.
        let (gone, late) =
            tokio::join!(biased; rig.destroy(&four[1].as_ref().unwrap().clone), rig.create("c"));
        gone.unwrap();
        assert_eq!(late.unwrap_err().code(), ErrorCode::RequestFinished);
    });
}

#[test]
fn all_joined_callers_receive_progress() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.set_latency(Duration::from_millis(10));
        type Heard = Arc<Mutex<Vec<(String, ProgressState)>>>;
        let listen = || {
            let heard: Heard = Arc::default();
            let writer = heard.clone();
            let sink: hostd::lifecycle::ProgressSink =
                Arc::new(move |_, step, state, _| writer.lock().unwrap().push((step.to_owned(), state)));
            (heard, sink)
        };
        let ((first, one), (second, two)) = (listen(), listen());
        let who = caller(1000);
        let late = async {
            tokio::time::sleep(Duration::from_millis(75)).await;
            rig.engine.create(&who, request("a"), Some(two)).await
        };
        let (made, joined) = tokio::join!(rig.engine.create(&who, request("a"), Some(one)), late);
        assert!(made.is_ok() && joined.is_ok());
        let first = first.lock().unwrap();
        assert_eq!(first[0], ("storage".into(), ProgressState::Started));
        assert_eq!(first.last(), Some(&("service".into(), ProgressState::Done)));
        assert_eq!(first.len(), 12);
        let second = second.lock().unwrap();
        assert!((1..12).contains(&second.len()), "{second:?}");
        assert_eq!(second.last(), Some(&("service".into(), ProgressState::Done)));
    });
}

#[test]
fn the_timer_reaps_a_clone_when_its_deadline_passes() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.lifecycle.reconcile_interval_ms = 3_600_000).await;
        let timers = tokio::spawn(rig.engine.clone().run_timers());
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut wanted = request("short");
        wanted.deadline_seconds = Some(7);
        rig.engine.create(&caller(1000), wanted, None).await.unwrap();
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            rig.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(rig.states()["browsertask001"], CloneState::Ready, "one second is left");
        rig.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(rig.states()["browsertask001"], CloneState::Quarantined, "long before the next reconcile");
        assert!(rig.host.ours().is_empty());
        assert_eq!(rig.engine.shutdown().await, 0);
        timers.await.unwrap();
    });
}

#[test]
fn a_stopping_daemon_finishes_running_operations_and_starts_none() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.set_latency(Duration::from_millis(500));
        let engine = rig.engine.clone();
        let running = tokio::spawn(async move { engine.create(&caller(1000), request("a"), None).await });
        tokio::time::sleep(Duration::from_millis(700)).await;
        let engine = rig.engine.clone();
        let stopping = tokio::spawn(async move { engine.shutdown().await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let error = rig.create("b").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ShuttingDown);
        assert!(error.data.retryable);
        assert_eq!(stopping.await.unwrap(), 0);
        assert!(running.await.unwrap().is_ok(), "what ran was finished");
    });
}

#[test]
fn a_stopping_daemon_waits_for_a_bounded_time_and_leaves_a_record() {
    on_paused_time(async {
        let mut rig = Rig::with(|config| {
            config.lifecycle.shutdown_grace_seconds = 2;
            config.lifecycle.step_timeout_seconds = 1000;
        })
        .await;
        rig.host.inject(Fault::once(HostCall::EnsureJail, FaultKind::Hang));
        let engine = rig.engine.clone();
        tokio::spawn(async move { engine.create(&caller(1000), request("a"), None).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(rig.engine.shutdown().await, 1);
        rig.restart().await;
        assert_eq!(rig.states()["browsertask001"], CloneState::Creating);
        rig.settle().await;
        assert_eq!(rig.check_settled("after the restart"), 0);
    });
}

#[test]
fn without_firewall_rules_creates_are_refused_and_members_return_with_the_rules() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.host.lose_rules();
        let error = rig.create("b").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::HostNotReady);
        rig.engine.reconcile_now().await;
        assert!(rig.host.links_down(), "the clones' links are down while the rules are gone");
        let status = rig.engine.status();
        assert!(status.alarms.iter().any(|alarm| alarm.contains("rules")), "{:?}", status.alarms);
        rig.host.restore_rules();
        rig.engine.reconcile_now().await;
        assert!(!rig.host.links_down());
        assert_eq!(rig.host.table(), BTreeSet::from([clone.ip]));
        assert!(rig.engine.status().alarms.is_empty());

        for lose in [hostd::host::fake::FakeHost::lose_table, hostd::host::fake::FakeHost::reload_firewall] {
            lose(&rig.host);
            rig.engine.reconcile_now().await;
            assert_eq!(rig.host.table(), BTreeSet::from([clone.ip]));
        }
    });
}

#[test]
fn a_missing_template_is_named_in_the_error() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let mut wanted = request("a");
        wanted.snapshot = Some("v9".parse().unwrap());
        let error = rig.engine.create(&caller(1000), wanted, None).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::TemplateUnusable);
        assert!(error.to_string().contains("v9"), "{error}");
        assert!(rig.list().is_empty());
    });
}

#[test]
fn a_step_that_reports_false_success_is_found_by_inspection() {
    on_paused_time(async {
        let steps = [
            (HostCall::EnsureStorage, "storage"),
            (HostCall::EnsureLimits, "limits"),
            (HostCall::EnsureNetwork, "network"),
            (HostCall::EnsureEgress, "egress"),
            (HostCall::EnsureJail, "jail"),
            (HostCall::EnsureService, "service"),
        ];
        for (call, step) in steps {
            let rig = Rig::new().await;
            rig.host.inject(Fault::once(call, FaultKind::Lie));
            let error = rig.create("a").await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::StepFailed, "{step}");
            assert_eq!(error.data.step.as_deref(), Some(step));
            assert!(error.to_string().contains("reported success"), "{error}");
            assert!(rig.host.ours().is_empty(), "{step}: {:?}", rig.host.ours());
        }
    });
}

#[test]
fn host_failures_map_to_their_error_codes() {
    on_paused_time(async {
        for (kind, code) in [
            (FaultKind::FailBefore(HostErrorKind::NoSpace), ErrorCode::DiskFull),
            (FaultKind::FailBefore(HostErrorKind::NotReady), ErrorCode::HostNotReady),
            (FaultKind::FailBefore(HostErrorKind::Foreign), ErrorCode::StepFailed),
            (FaultKind::Hang, ErrorCode::Timeout),
            (FaultKind::HangAfter, ErrorCode::Timeout),
        ] {
            let rig = Rig::new().await;
            rig.host.inject(Fault::once(HostCall::EnsureStorage, kind));
            let error = rig.create("a").await.unwrap_err();
            assert_eq!(error.code(), code, "{kind:?}: {error}");
            assert!(rig.host.ours().is_empty());
        }
    });
}

#[test]
fn rollback_errors_are_reported_beside_the_first_error() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.inject(Fault::once(HostCall::EnsureService, FaultKind::FailAfter(HostErrorKind::Failed)));
        rig.host.inject(Fault { call: HostCall::RemoveNetwork, slot: None, times: 9, kind: FaultKind::Lie });
        let error = rig.create("a").await.unwrap_err();
        assert_eq!(error.data.step.as_deref(), Some("service"));
        assert!(error.data.cleanup.iter().any(|line| line.contains("network")), "{error:?}");
        assert_eq!(rig.states()["browsertask001"], CloneState::Incomplete);
        let retry = rig.create("a").await.unwrap_err();
        assert_eq!(retry.code(), ErrorCode::Incomplete, "the same request waits for its rollback");
        rig.host.clear_faults();
        rig.engine.reconcile_now().await;
        rig.create("a").await.unwrap();
    });
}

#[test]
fn a_busy_mount_is_recorded_and_retried() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.host.stick_mount(slot(1), false);
        let error = rig.destroy(&clone).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Incomplete);
        assert!(error.data.retryable && error.data.retry_after_ms.is_some());
        assert!(error.to_string().contains("mounts"), "{error}");
        assert_eq!(rig.states()["browsertask001"], CloneState::Incomplete);
        assert!(rig.host.table().is_empty(), "it has no network while it waits");

        let helped = rig.engine.force_unmount(&operator(), force_unmount_params(&clone), None).await.unwrap();
        assert!(helped.unmounted.is_empty() && !helped.left.is_empty());
        rig.host.unstick_mount(slot(1));
        let helped = rig.engine.force_unmount(&operator(), force_unmount_params(&clone), None).await.unwrap();
        assert!(!helped.unmounted.is_empty() && helped.left.is_empty());
        rig.settle().await;
        assert_eq!(rig.check_settled("at the end"), 0);
    });
}

#[test]
fn only_a_clone_being_destroyed_is_force_unmounted() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("a").await.unwrap().clone;
        let calls = rig.host.calls();
        let error =
            rig.engine.force_unmount(&operator(), force_unmount_params(&clone), None).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotDestroying);
        let mut other = force_unmount_params(&clone);
        other.clone_id = CloneId::random();
        let error = rig.engine.force_unmount(&operator(), other.clone(), None).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::WrongClone);
        other.name = "browsertask002".parse().unwrap();
        let error = rig.engine.force_unmount(&operator(), other, None).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound);
        assert_eq!(rig.host.calls(), calls, "the host was not touched");
    });
}

#[test]
fn a_mount_below_a_foreign_jail_stays_recorded_until_that_jail_stops() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.host.stick_mount(slot(1), false);
        rig.destroy(&clone).await.unwrap_err();
        assert!(rig.host.plant_foreign(slot(1), Part::Jail));
        rig.host.unstick_mount(slot(1));
        rig.engine.reconcile_now().await;
        assert_eq!(rig.states()["browsertask001"], CloneState::Incomplete);
        assert_eq!(rig.host.ours(), BTreeSet::from(["mount browsertask001/root/dev".to_owned()]));
        for error in [
            rig.destroy(&clone).await.unwrap_err(),
            rig.engine.force_unmount(&operator(), force_unmount_params(&clone), None).await.unwrap_err(),
        ] {
            assert_eq!(error.code(), ErrorCode::Incomplete);
            assert!(error.message.contains("stop that first"), "{error:?}");
        }
        assert_eq!(rig.host.foreign().len(), 1, "nobody touched it");

        rig.host.stop_foreign_jail(slot(1));
        rig.engine.reconcile_now().await;
        assert_eq!(rig.states()["browsertask001"], CloneState::Quarantined);
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
    });
}

/// The steps of a create, in the order in which its caller is told.
async fn heard(rig: &Rig) -> (Result<CreateResult, RpcError>, Vec<(String, ProgressState)>) {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let heard = steps.clone();
    let sink: ProgressSink =
        Arc::new(move |_, step, state, _| heard.lock().unwrap().push((step.to_owned(), state)));
    let made = rig.engine.create(&caller(1000), request("a"), Some(sink)).await;
    (made, std::mem::take(&mut *steps.lock().unwrap()))
}

#[test]
fn independent_steps_run_in_parallel() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.make_parts_at_once();
        rig.host.set_latency(Duration::from_millis(10));
        // The browser starts while egress is being granted.
        rig.host.inject(Fault::once(HostCall::EnsureEgress, FaultKind::Delay(Duration::from_secs(1))));
        let (made, steps) = heard(&rig).await;
        let clone = made.unwrap().clone;
        assert_eq!(clone.state, CloneState::Ready);
        let at = |step: &str, state| {
            let wanted = (step.to_owned(), state);
            steps
                .iter()
                .position(|heard| *heard == wanted)
                .unwrap_or_else(|| panic!("{wanted:?} in {steps:?}"))
        };
        let (began, ended) = (ProgressState::Started, ProgressState::Done);
        for step in ["limits", "network"] {
            assert!(at(step, began) < at("storage", ended), "{steps:?}");
        }
        for step in ["storage", "limits", "network"] {
            assert!(at(step, ended) < at("jail", began), "{steps:?}");
        }
        assert!(at("network", ended) < at("egress", began) && at("jail", ended) < at("service", began));
        assert!(at("service", ended) < at("egress", ended), "{steps:?}");
        assert_eq!(rig.host.table().len(), 1, "and the create waited for both");
        rig.destroy(&clone).await.unwrap();
        assert!(rig.host.ours().is_empty());
    });
}

#[test]
fn running_steps_are_awaited_before_the_rollback() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.host.make_parts_at_once();
        rig.host.set_latency(Duration::from_millis(10));
        let fail = FaultKind::FailBefore(HostErrorKind::NoSpace);
        rig.host.inject(Fault::once(HostCall::EnsureStorage, fail));
        rig.host.inject(Fault::once(HostCall::EnsureNetwork, FaultKind::Delay(Duration::from_secs(1))));
        let (made, steps) = heard(&rig).await;
        let error = made.unwrap_err();
        assert_eq!(error.data.step.as_deref(), Some("storage"), "the first failure: {error:?}");
        let network =
            steps.iter().position(|(step, state)| step == "network" && *state == ProgressState::Done);
        let walk = steps.iter().position(|(step, _)| step == "egress").expect("the walk cuts it off first");
        assert!(network.expect("it was made") < walk, "{steps:?}");
        let begun = |step: &str| steps.iter().any(|(heard, _)| heard == step);
        assert!(!begun("jail") && !begun("service"), "{steps:?}");
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
    });
}

#[test]
fn objects_in_a_slot_are_listed_after_its_record_is_removed() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.destroy(&clone).await.unwrap();
        rig.host.plant_foreign(slot(1), Part::Jail);
        rig.clock.advance(Duration::from_secs(rig.config.lifecycle.quarantine_seconds + 1));
        rig.engine.reconcile_now().await;
        assert_eq!(rig.states()["browsertask001"], CloneState::Foreign);
        let next = rig.create("b").await.unwrap().clone;
        assert_eq!(next.name.as_str(), "browsertask002", "a slot that is not free is not tried");
    });
}

#[test]
fn busy_storage_is_moved_aside_and_destroyed_later() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.pool.last_slot = 1).await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.host.make_busy(slot(1), 1000);
        rig.destroy(&clone).await.unwrap();
        let aside = format!("aside {}", clone.clone_id.unwrap());
        assert_eq!(rig.host.ours(), BTreeSet::from([aside.clone()]));
        let dry = ReapParams { dry_run: true, ..ReapParams::default() };
        let told = rig.engine.reap(&operator(), dry, None).await.unwrap();
        assert!(told.reaped.iter().any(|line| line.name.starts_with("aside/")), "{told:?}");
        rig.settle().await;
        rig.create("b").await.expect("the slot is free although the old storage is still there");
        for _ in 0..1000 {
            rig.engine.reconcile_now().await;
        }
        rig.check_settled("after a thousand tries");
    });
}

#[test]
fn temporarily_busy_storage_is_retried() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.host.make_busy(slot(1), 3);
        rig.host.ignore_term(slot(1));
        rig.destroy(&clone).await.unwrap();
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
    });
}

#[test]
fn a_dying_jail_keeps_its_slot_in_quarantine() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.pool.last_slot = 1).await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.host.make_dying(slot(1), 40);
        rig.destroy(&clone).await.unwrap();
        rig.clock.advance(Duration::from_secs(3600));
        rig.engine.reconcile_now().await;
        assert_eq!(rig.states()["browsertask001"], CloneState::Quarantined);
        assert_eq!(rig.create("b").await.unwrap_err().code(), ErrorCode::HostFull);
        for _ in 0..40 {
            rig.engine.reconcile_now().await;
        }
        rig.create("b").await.unwrap();
    });
}

#[test]
fn a_dry_run_explains_every_decision_and_changes_nothing() {
    on_paused_time(async {
        let rig = Rig::new().await;
        rig.create("stays").await.unwrap();
        let mut wanted = request("over");
        wanted.deadline_seconds = Some(10);
        rig.engine.create(&caller(1000), wanted, None).await.unwrap();
        let gone = rig.create("gone").await.unwrap().clone;
        rig.destroy(&gone).await.unwrap();
        rig.host.plant_foreign(slot(5), Part::Storage);
        rig.clock.advance(Duration::from_secs(11));
        let before = rig.host.ours();
        let dry = ReapParams { dry_run: true, ..ReapParams::default() };
        let told = rig.engine.reap(&operator(), dry, None).await.unwrap();
        assert!(told.dry_run);
        assert_eq!(rig.host.ours(), before);
        let reaped: Vec<_> = told.reaped.iter().map(|line| (line.name.as_str(), line.reason)).collect();
        assert_eq!(reaped, [("browsertask002", Some(ReapReason::DeadlinePassed))]);
        assert!(told.reaped[0].why.contains("passed 1 s ago"));
        let kept: Vec<_> = told.kept.iter().map(|line| (line.name.as_str(), line.why.as_str())).collect();
        assert_eq!(kept.len(), 3);
        assert!(kept[0].1.contains("within its deadline"), "{kept:?}");
        assert!(kept[1].1.contains("stays unused"), "{kept:?}");
        assert!(kept[2].1.contains("never touched"), "{kept:?}");

        let taken = rig.reap().await.unwrap();
        assert_eq!(taken.reaped.len(), 1);
        assert_eq!(rig.states()["browsertask002"], CloneState::Quarantined);
        assert_eq!(rig.reap().await.unwrap().reaped, [], "reaping again finds nothing");
    });
}

#[test]
fn reaping_by_name_concerns_that_clone_alone() {
    on_paused_time(async {
        let rig = Rig::new().await;
        for id in ["a", "b"] {
            let mut wanted = request(id);
            wanted.deadline_seconds = Some(10);
            rig.engine.create(&caller(1000), wanted, None).await.unwrap();
        }
        rig.clock.advance(Duration::from_secs(11));
        let by_name = |name: &str| ReapParams { name: Some(name.parse().unwrap()), ..ReapParams::default() };
        let result = rig.engine.reap(&operator(), by_name("browsertask002"), None).await.unwrap();
        assert_eq!((result.reaped.len(), result.kept.len()), (1, 0));
        assert_eq!(rig.states()["browsertask001"], CloneState::Ready);
        let result = rig.engine.reap(&operator(), by_name("browsertask006"), None).await.unwrap();
        assert_eq!((result.reaped.len(), result.kept.len()), (0, 0));
        let error = rig.engine.reap(&operator(), by_name("other006"), None).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidParams);
    });
}

#[test]
fn after_loss_of_the_state_folder_clones_are_listed_and_not_reaped() {
    on_paused_time(async {
        let mut rig = Rig::new().await;
        for number in 0..SLOTS {
            rig.create(&format!("r{number}")).await.unwrap();
        }
        let before = rig.host.ours();
        std::fs::remove_dir_all(rig.config.paths.state.join("records")).unwrap();
        rig.restart().await;
        rig.engine.reconcile_now().await;
        assert!(rig.states().values().all(|state| *state == CloneState::Orphan));
        assert_eq!(
            rig.create("new").await.unwrap_err().code(),
            ErrorCode::HostFull,
            "their slots are not taken"
        );
        rig.clock.advance(Duration::from_secs(601));
        let result = rig.reap().await.unwrap();
        assert!(
            result.reaped.is_empty() && result.alarm.as_ref().unwrap().contains("state folder"),
            "{result:?}"
        );
        let membership = |object: &String| object.starts_with("member") || object.starts_with("state");
        let kept: BTreeSet<String> = before.into_iter().filter(|object| !membership(object)).collect();
        assert_eq!(rig.host.ours(), kept, "cut off from the network, and otherwise as they were");
        assert!(rig.engine.status().alarms.iter().any(|alarm| alarm.contains("no record")));
        for number in 1..=SLOTS {
            let name = Some(rig.engine.slots().name(slot(number)));
            rig.engine.reap(&operator(), ReapParams { name, ..ReapParams::default() }, None).await.unwrap();
        }
        rig.settle().await;
        assert_eq!(rig.check_settled("after reaping each by name"), 0);
    });
}

#[test]
fn an_operator_can_destroy_an_orphan_by_its_identity() {
    on_paused_time(async {
        let mut rig = Rig::new().await;
        let clone = rig.create("a").await.unwrap().clone;
        std::fs::remove_dir_all(rig.config.paths.state.join("records")).unwrap();
        rig.restart().await;
        rig.engine.reconcile_now().await;
        assert_eq!(rig.destroy(&clone).await.unwrap_err().code(), ErrorCode::Denied);
        rig.engine.destroy(&operator(), params(&clone), None).await.unwrap();
        assert!(rig.host.ours().is_empty());
    });
}

#[test]
fn a_reboot_ends_every_clone() {
    on_paused_time(async {
        let mut rig = Rig::new().await;
        for id in ["a", "b", "c"] {
            rig.create(id).await.unwrap();
        }
        rig.reboot().await;
        rig.settle().await;
        assert_eq!(rig.check_settled("after the reboot"), 0);
        assert!(rig.create("d").await.is_ok());
    });
}

#[test]
fn a_clone_whose_jail_died_is_listed_as_broken_and_not_reaped() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.host.kill_jail(slot(1));
        rig.engine.reconcile_now().await;
        let shown = rig.list().remove(&clone.name).unwrap();
        assert_eq!(shown.state, CloneState::Broken);
        assert!(shown.problem.unwrap().contains("no jail"), "it says what is missing");
        let renewed = rig.create("a").await.unwrap().clone;
        assert_eq!(renewed.state, CloneState::Broken, "a renewal does not hide it");
        assert!(rig.host.table().is_empty());
        rig.destroy(&clone).await.unwrap();
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
    });
}
