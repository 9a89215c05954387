//! What holds while nothing can be written: clones are removed, above all at their deadline, and what was not written is
//! written later. The same after the state folder was lost.
#![allow(clippy::unwrap_used)]

mod rig;

use hostd::api::{CloneState, ErrorCode, Flavor, ReapParams, Severity};
use hostd::clock::Clock;
use hostd::host::HostErrorKind;
use hostd::host::fake::{Fault, FaultKind, HostCall};
use rig::{Rig, SLOTS, caller, operator, params, request, slot};
use std::time::Duration;

fn on_paused_time(test: impl Future<Output = ()>) {
    rig::runtime().block_on(test);
}

fn audit_phases(rig: &Rig) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(&rig.config.paths.audit).unwrap();
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        (line["phase"].as_str().unwrap().to_owned(), line["method"].as_str().unwrap_or_default().to_owned())
    };
    text.lines().map(line).collect()
}

/// A clone with a deadline of ten seconds.
async fn short_lived(rig: &Rig, id: &str) -> hostd::api::CloneInfo {
    let mut wanted = request(id);
    wanted.deadline_seconds = Some(10);
    rig.engine.create(&caller(1000), wanted, None).await.unwrap().clone
}

#[test]
fn a_create_needs_its_audit_line_and_a_removal_does_not() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("one").await.unwrap().clone;
        rig.break_audit();
        let calls = rig.host.calls();
        let error = rig.create("two").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::AuditUnavailable);
        assert!(error.to_string().contains("audit.log"), "{error}");
        assert_eq!(rig.host.calls(), calls, "the host was not even looked at");
        assert!(rig.engine.status().alarms.iter().any(|alarm| alarm.contains("audit")));

        rig.destroy(&clone).await.unwrap();
        assert!(rig.host.ours().is_empty());
        rig.reap().await.unwrap();
        rig.mend_audit();
        rig.engine.reconcile_now().await;
        assert_eq!(rig.engine.status().alarms, Vec::<String>::new());
        let (destroy, reap) = ("browser-clone-destroy".to_owned(), "browser-clone-reap".to_owned());
        let (before, after) = (|| "before".to_owned(), || "after".to_owned());
        let resumed = ("resumed".to_owned(), String::new());
        let written = [
            (before(), destroy.clone()),
            (after(), destroy),
            (before(), reap.clone()),
            (after(), reap),
            resumed,
        ];
        assert_eq!(audit_phases(&rig), written);
        rig.create("two").await.unwrap();
    });
}

#[test]
fn refused_removals_have_one_audit_line_together() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = rig.create("one").await.unwrap().clone;
        for _ in 0..100 {
            let denied = rig.engine.destroy(&caller(1001), params(&clone), None).await.unwrap_err();
            assert_eq!(denied.code(), ErrorCode::Denied);
        }
        rig.engine.reconcile_now().await;
        let text = std::fs::read_to_string(&rig.config.paths.audit).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((&last["phase"], &last["count"]), (&"refused".into(), &100.into()));
        assert_eq!((&last["result"], &last["actor"]["peer"]["uid"]), (&"denied".into(), &1001.into()));
    });
}

#[test]
fn records_that_are_gone_are_written_again() {
    on_paused_time(async {
        let mut rig = Rig::new().await;
        let records = rig.config.paths.state.join("records");
        let finding = async |rig: &Rig| {
            let findings = rig.engine.checks().await;
            findings.into_iter().find(|finding| finding.check == "records").unwrap()
        };
        for gone in [&records, &rig.config.paths.state.clone()] {
            let clone = rig.create("one").await.unwrap().clone;
            assert_eq!(finding(&rig).await.severity, Severity::Ok);
            std::fs::remove_dir_all(gone).unwrap();
            let found = finding(&rig).await;
            assert_eq!(found.severity, Severity::Error);
            assert!(found.message.contains("records") && found.fix.contains("hostd"), "{found:?}");
            rig.engine.reconcile_now().await;
            assert_eq!(finding(&rig).await.severity, Severity::Ok);
            rig.restart().await;
            assert_eq!(rig.list()[&clone.name].clone_id, clone.clone_id, "the next start knows it");
            rig.check_settled("after the records were lost");
        }
        std::fs::remove_dir_all(&records).unwrap();
        let second = rig.create("two").await.unwrap().clone;
        assert_eq!(second.state, CloneState::Ready, "a create makes the folder again too");
    });
}

#[test]
fn a_deadline_holds_without_a_state_folder() {
    on_paused_time(async {
        let rig = Rig::new().await;
        for id in ["a", "b", "c", "d", "e", "f"] {
            short_lived(&rig, id).await;
        }
        rig.break_audit();
        rig.fail_record_writes();
        std::fs::remove_dir_all(&rig.config.paths.state).unwrap();
        rig.clock.advance(Duration::from_secs(11));
        rig.engine.reconcile_now().await;
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
        rig.mend_audit();
        rig.allow_record_writes();
        rig.settle().await;
        assert_eq!(rig.check_settled("when the disk works again"), 0);
        assert!(rig.create("g").await.is_ok());
    });
}

/// The host as a whole cannot be inspected: deadlines are served from the records, each slot inspected by itself.
#[test]
fn a_deadline_holds_while_the_inventory_fails() {
    on_paused_time(async {
        let rig = Rig::new().await;
        let clone = short_lived(&rig, "short").await;
        let kept = rig.create("kept").await.unwrap().clone;
        rig.clock.advance(Duration::from_secs(11));
        let kind = FaultKind::FailBefore(HostErrorKind::Failed);
        rig.host.inject(Fault { call: HostCall::Inventory, slot: None, times: 2, kind });
        rig.engine.reconcile_now().await;
        assert_eq!(rig.states()[clone.name.as_str()], CloneState::Quarantined);
        assert_eq!(rig.states()[kept.name.as_str()], CloneState::Ready);
    });
}

/// A jail ends at its deadline also when there is no hostd, so it must know the deadline of its record.
#[test]
fn every_jail_knows_the_deadline_of_its_record() {
    on_paused_time(async {
        for flavors in [vec![], vec![Flavor::Basic], vec![Flavor::Ready]] {
            let mut rig = Rig::with(|config| {
                config.pool.size = u16::from(!flavors.is_empty());
                config.pool.flavors = flavors.clone();
            })
            .await;
            rig.refill().await;
            let agree = |rig: &Rig, context: &str| {
                let now = rig.clock.now();
                let deadlines = rig.host.deadlines();
                for clone in rig.list().values() {
                    let slot = rig.engine.slots().slot_of_name(clone.name.as_str()).unwrap();
                    let left = deadlines[&slot].saturating_sub(now.mono).as_secs();
                    assert_eq!(Some(left), clone.deadline_seconds_left, "{context}: {flavors:?} {clone:?}");
                }
                assert_eq!(deadlines.len(), rig.list().len(), "{context}");
            };
            agree(&rig, "members");
            rig.clock.advance(Duration::from_secs(7));
            let clone = short_lived(&rig, "short").await;
            agree(&rig, "after a create");
            rig.clock.advance(Duration::from_secs(3));
            assert!(rig.create("short").await.unwrap().renewed);
            agree(&rig, "after a renewal");

            // A renewal that cannot be recorded, and one that the jail does not learn of, change nothing.
            rig.clock.advance(Duration::from_secs(5));
            rig.fail_record_writes();
            assert_eq!(rig.create("short").await.unwrap_err().code(), ErrorCode::StateUnavailable);
            rig.allow_record_writes();
            agree(&rig, "after a renewal that was not recorded");
            let kind = FaultKind::FailBefore(HostErrorKind::Failed);
            rig.host.inject(Fault::once(HostCall::SetDeadline, kind));
            rig.create("short").await.unwrap_err();
            agree(&rig, "after a renewal that the jail did not learn of");

            // A crash after the record of a bind was written, before the member was thawed.
            if flavors == [Flavor::Ready] {
                rig.refill().await;
                rig.host.inject(Fault::once(HostCall::Thaw, FaultKind::Hang));
                let engine = rig.engine.clone();
                let bind =
                    tokio::spawn(async move { engine.create(&caller(1000), request("bound"), None).await });
                tokio::time::sleep(Duration::from_secs(1)).await;
                rig.restart().await;
                bind.abort();
                rig.engine.reconcile_now().await;
                assert!(rig.create("bound").await.unwrap().renewed);
                agree(&rig, "after a crash during a bind");
            }
            assert!(rig.destroy(&clone).await.unwrap().complete);
        }
    });
}

#[test]
fn a_clone_without_a_record_does_not_outlive_the_longest_lease() {
    on_paused_time(async {
        let mut rig = Rig::new().await;
        for number in 0..SLOTS {
            rig.create(&format!("r{number}")).await.unwrap();
        }
        std::fs::remove_dir_all(&rig.config.paths.state).unwrap();
        rig.restart().await;
        rig.engine.reconcile_now().await;
        let longest = Duration::from_secs(rig.config.lifecycle.max_deadline_seconds);
        rig.clock.advance(longest - Duration::from_secs(1));
        rig.engine.reconcile_now().await;
        assert_eq!(rig.states().len(), usize::from(SLOTS), "a deadline may still be in the future");
        assert!(rig.engine.status().alarms.iter().any(|alarm| alarm.contains("no record")));
        rig.clock.advance(Duration::from_secs(1));
        rig.engine.reconcile_now().await;
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
    });
}

#[test]
fn only_an_operator_overrides_the_alarm_by_naming_a_clone() {
    on_paused_time(async {
        let mut rig = Rig::new().await;
        for number in 0..SLOTS {
            rig.create(&format!("r{number}")).await.unwrap();
        }
        std::fs::remove_dir_all(rig.config.paths.state.join("records")).unwrap();
        rig.restart().await;
        rig.engine.reconcile_now().await;
        rig.clock.advance(Duration::from_secs(601));
        let named = |number| {
            let name = Some(rig.engine.slots().name(slot(number)));
            ReapParams { name, ..ReapParams::default() }
        };
        for number in 1..=SLOTS {
            let refused = rig.engine.reap(&caller(1000), named(number), None).await.unwrap();
            assert!(refused.reaped.is_empty(), "{refused:?}");
            assert!(refused.alarm.unwrap().contains("state folder"));
            assert!(refused.kept[0].why.contains("state folder"), "{:?}", refused.kept);
        }
        let reaped = rig.engine.reap(&operator(), named(1), None).await.unwrap();
        assert_eq!((reaped.reaped.len(), reaped.alarm), (1, None));
    });
}

#[test]
fn a_slow_removal_does_not_delay_the_deadlines_of_others() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.lifecycle.reconcile_interval_ms = 1000).await;
        let slow = short_lived(&rig, "slow").await;
        rig.clock.advance(Duration::from_secs(5));
        let next = short_lived(&rig, "next").await;
        let slot = rig.engine.slots().slot_of_name(slow.name.as_str());
        rig.host.inject(Fault { call: HostCall::StopJail, slot, times: 50, kind: FaultKind::Hang });
        let timers = tokio::spawn(rig.engine.clone().run_timers());
        rig.clock.advance(Duration::from_secs(6));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.states()[slow.name.as_str()], CloneState::Destroying);
        rig.clock.advance(Duration::from_secs(5));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.states()[slow.name.as_str()], CloneState::Destroying, "its removal is still running");
        assert_eq!(rig.states()[next.name.as_str()], CloneState::Quarantined);
        rig.host.clear_faults();
        rig.engine.shutdown().await;
        timers.await.unwrap();
    });
}

#[test]
fn unfinished_creates_are_rolled_back_in_parallel_and_bounded() {
    on_paused_time(async {
        const CLONES: u16 = 40;
        let mut rig = Rig::with(|config| config.pool.last_slot = CLONES).await;
        for number in 0..CLONES {
            rig.create(&format!("r{number}")).await.unwrap();
        }
        for entry in std::fs::read_dir(rig.config.paths.state.join("records")).unwrap() {
            let path = entry.unwrap().path();
            let mut record: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            record["phase"] = "creating".into();
            std::fs::write(&path, record.to_string()).unwrap();
        }
        rig.restart().await;
        rig.host.set_latency(Duration::from_millis(100));
        let engine = rig.engine.clone();
        let began = tokio::time::Instant::now();
        let reaping = tokio::spawn(async move { engine.reconcile_now().await });
        let mut most = 0;
        while !reaping.is_finished() {
            most = rig.engine.status().operations.max(most);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        reaping.await.unwrap();
        let all = began.elapsed();
        assert!(rig.host.ours().is_empty());
        assert_eq!(most, 8, "at the same time");
        let clone = {
            rig.settle().await;
            rig.create("alone").await.unwrap().clone
        };
        let began = tokio::time::Instant::now();
        rig.engine.destroy(&caller(1000), params(&clone), None).await.unwrap();
        let alone = began.elapsed();
        assert!(all < alone * u32::from(CLONES) / 4, "{all:?} for {CLONES}, {alone:?} for one");
    });
}

#[test]
fn clock_jumps_and_suspends_neither_end_nor_extend_a_life() {
    on_paused_time(async {
        let year = Duration::from_secs(365 * 86_400);
        for forwards in [true, false] {
            let rig = Rig::with(|config| config.lifecycle.reconcile_interval_ms = 1000).await;
            let timers = tokio::spawn(rig.engine.clone().run_timers());
            let clone = short_lived(&rig, "short").await;
            let kept = rig.create("kept").await.unwrap().clone;
            let wall = rig.clock.now().wall;
            rig.clock.set_wall(if forwards { wall + year } else { wall - year });
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(rig.states()[clone.name.as_str()], CloneState::Ready);
            // A suspend: the time since boot continues, and the timer's own clock does not.
            rig.clock.advance(Duration::from_secs(11));
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(rig.states()[clone.name.as_str()], CloneState::Quarantined, "at the next turn");
            assert_eq!(rig.states()[kept.name.as_str()], CloneState::Ready);
            rig.engine.shutdown().await;
            timers.await.unwrap();
        }
    });
}
