//! The model itself is tested here: a fake that is wrong proves nothing.

use super::*;
use crate::api::{CloneId, EgressHealth, Limits, SnapshotName};
use crate::clock::Moment;
use crate::config::PoolConfig;
use crate::host::{CloneSpec, Host, HostErrorKind, HostResult, Identity, ObservedClone, Part, Unmount};
use crate::slot::Slot;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, SystemTime};

fn numbered_slots() -> Slots {
    Slots::new(&PoolConfig { last_slot: 9, ..PoolConfig::default() }).unwrap()
}

fn slot() -> Slot {
    Slot::new(1).unwrap()
}

fn spec() -> CloneSpec {
    CloneSpec {
        names: numbered_slots().names(slot()),
        clone_id: CloneId::random(),
        snapshot: "default".parse().unwrap(),
        limits: Limits {
            memory_bytes: Some(1 << 30),
            processes: Some(100),
            disk_bytes: Some(1 << 33),
            ..Limits::default()
        },
        deadline: Duration::from_secs(3600),
        secret: None,
        warm_up: false,
    }
}

fn host() -> FakeHost {
    FakeHost::new(numbered_slots())
}

/// The ensures in the order of a create.
const ENSURES: [HostCall; 6] = [
    HostCall::EnsureStorage,
    HostCall::EnsureLimits,
    HostCall::EnsureNetwork,
    HostCall::EnsureEgress,
    HostCall::EnsureJail,
    HostCall::EnsureService,
];

/// The removals in the order of the destroy walk.
const REMOVALS: [HostCall; 7] = [
    HostCall::CutEgress,
    HostCall::EndProcesses,
    HostCall::Unmount,
    HostCall::RemoveNetwork,
    HostCall::StopJail,
    HostCall::RemoveLimits,
    HostCall::DestroyStorage,
];

async fn call(host: &FakeHost, call: HostCall, spec: &CloneSpec) -> HostResult<()> {
    let names = &spec.names;
    match call {
        HostCall::Checks => {
            host.checks().await;
            Ok(())
        }
        HostCall::CheckTemplate => host.check_template(&spec.snapshot).await,
        HostCall::TemplateVersion => host.template_version(&spec.snapshot).await.map(drop),
        HostCall::ServiceAnswers => host.service_answers(names).await.map(drop),
        HostCall::Freeze => host.freeze(names).await,
        HostCall::SetDeadline => host.set_deadline(names, Duration::from_secs(7200)).await,
        HostCall::Thaw => host.thaw(names, spec.deadline).await,
        HostCall::Inventory => host.inventory().await.map(drop),
        HostCall::Look => host.inspect(names, Part::ALL).await.map(drop),
        HostCall::EgressHealth => host.egress_health().await.map(drop),
        HostCall::RepairEgress => host.repair_egress().await.map(drop),
        HostCall::EnsureStorage => host.ensure_storage(spec).await,
        HostCall::EnsureLimits => host.ensure_limits(spec).await,
        HostCall::EnsureNetwork => host.ensure_network(spec).await,
        HostCall::EnsureEgress => host.ensure_egress(spec).await,
        HostCall::EnsureJail => host.ensure_jail(spec).await,
        HostCall::EnsureService => host.ensure_service(spec).await.map(drop),
        HostCall::CutEgress => host.cut_egress(names).await,
        HostCall::EndProcesses => host.end_processes(names).await,
        HostCall::Unmount => host.unmount(names, Unmount::Gentle).await,
        HostCall::StopJail => host.stop_jail(names).await,
        HostCall::RemoveNetwork => host.remove_network(names).await,
        HostCall::RemoveLimits => host.remove_limits(names).await,
        HostCall::DestroyStorage => host.destroy_storage(names).await,
        HostCall::MoveStorageAside => host.move_storage_aside(names, &spec.clone_id).await,
        HostCall::DestroyAside => host.destroy_aside(&spec.clone_id).await,
    }
}

/// Everything a call needs to have something to do.
async fn prepare(host: &FakeHost, wanted: HostCall, spec: &CloneSpec) {
    for ensure in ENSURES.into_iter().take_while(|ensure| *ensure != wanted) {
        call(host, ensure, spec).await.unwrap();
    }
    match wanted {
        HostCall::RepairEgress => host.flush_rules(),
        HostCall::Thaw => host.freeze(&spec.names).await.unwrap(),
        HostCall::Unmount => host.end_processes(&spec.names).await.unwrap(),
        HostCall::DestroyStorage | HostCall::MoveStorageAside => {
            host.stop_jail(&spec.names).await.unwrap();
        }
        HostCall::DestroyAside => {
            host.stop_jail(&spec.names).await.unwrap();
            host.move_storage_aside(&spec.names, &spec.clone_id).await.unwrap();
        }
        _ => {}
    }
}

async fn make(host: &FakeHost, spec: &CloneSpec) {
    for ensure in ENSURES {
        call(host, ensure, spec).await.unwrap();
    }
}

async fn answers(host: &FakeHost, spec: &CloneSpec) -> bool {
    host.inspect(&spec.names, &[Part::Service]).await.unwrap().service_ready
}

async fn seen(host: &FakeHost, spec: &CloneSpec) -> ObservedClone {
    host.inspect(&spec.names, Part::ALL).await.unwrap()
}

fn world(host: &FakeHost) -> World {
    host.read(World::clone)
}

fn effects() -> impl Iterator<Item = HostCall> {
    HostCall::ALL.iter().copied().filter(|call| call.is_effect())
}

#[tokio::test]
async fn a_clone_is_made_seen_and_removed_without_a_trace() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    let clone = seen(&host, &spec).await;
    assert_eq!(clone.parts(), Part::ALL);
    let storage = clone.storage.unwrap();
    assert_eq!(storage.identity, Identity::Clone(spec.clone_id.clone()));
    assert_eq!((storage.snapshot, storage.mounted), (Some(spec.snapshot.clone()), true));
    assert_eq!(clone.limits, Some(spec.limits));
    assert!(clone.network.unwrap().complete && answers(&host, &spec).await && !clone.jail.unwrap().dying);
    assert_eq!(host.table(), BTreeSet::from([spec.names.ip]));
    let ours = host.ours();
    for kind in ["storage", "jail", "network", "limits", "member", "state"] {
        assert!(ours.contains(&format!("{kind} browsertask001")), "{kind} missing in {ours:?}");
    }
    assert_eq!(ours.len(), 6 + 2 + 2, "and two mounts and two processes: {ours:?}");

    let inventory = host.inventory().await.unwrap();
    assert_eq!(inventory.clones.keys().copied().collect::<Vec<_>>(), [slot()]);
    assert!(!inventory.clones[&slot()].service_ready, "an inventory asks no service");
    assert!(!seen(&host, &spec).await.service_ready, "nor does a look that does not say so");

    for removal in REMOVALS {
        call(&host, removal, &spec).await.unwrap();
    }
    assert!(seen(&host, &spec).await.is_absent());
    assert_eq!(host.ours(), BTreeSet::new());
    assert!(host.inventory().await.unwrap().clones.is_empty());
}

#[tokio::test]
async fn a_look_answers_only_the_parts_asked_for() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    for part in Part::ALL {
        assert_eq!(host.inspect(&spec.names, &[*part]).await.unwrap().parts(), [*part]);
    }
}

#[tokio::test]
async fn every_effect_is_idempotent() {
    for effect in effects() {
        let (host, spec) = (host(), spec());
        prepare(&host, effect, &spec).await;
        let before = world(&host);
        call(&host, effect, &spec).await.unwrap_or_else(|error| panic!("{effect}: {error}"));
        let once = host.ours();
        assert_ne!(world(&host), before, "{effect} did nothing");
        call(&host, effect, &spec).await.unwrap_or_else(|error| panic!("{effect} again: {error}"));
        assert_eq!(host.ours(), once, "{effect} again changed the host");
    }
}

#[tokio::test]
async fn removing_what_is_absent_succeeds() {
    for effect in REMOVALS.into_iter().chain([HostCall::MoveStorageAside, HostCall::DestroyAside]) {
        let (host, spec) = (host(), spec());
        call(&host, effect, &spec).await.unwrap_or_else(|error| panic!("{effect}: {error}"));
        assert_eq!(host.ours(), BTreeSet::new(), "{effect}");
    }
}

#[tokio::test]
async fn a_lie_says_ok_and_does_nothing() {
    for effect in effects() {
        let (host, spec) = (host(), spec());
        prepare(&host, effect, &spec).await;
        let before = world(&host);
        host.inject(Fault::once(effect, FaultKind::Lie));
        call(&host, effect, &spec).await.unwrap_or_else(|error| panic!("{effect}: {error}"));
        assert_eq!(world(&host), before, "{effect} lied and did something");
        call(&host, effect, &spec).await.unwrap();
        assert_ne!(world(&host), before, "{effect} is honest again");
    }
}

#[tokio::test]
async fn failing_before_does_nothing_and_failing_after_does_it() {
    for effect in HostCall::ALL.iter().copied().filter(|call| *call != HostCall::Checks) {
        let (host, spec) = (host(), spec());
        prepare(&host, effect, &spec).await;
        let before = world(&host);
        host.inject(Fault::once(effect, FaultKind::FailBefore(HostErrorKind::NoSpace)));
        assert_eq!(call(&host, effect, &spec).await.unwrap_err().kind, HostErrorKind::NoSpace, "{effect}");
        assert_eq!(world(&host), before, "{effect} failed and did something");
        host.inject(Fault::once(effect, FaultKind::FailAfter(HostErrorKind::Timeout)));
        assert_eq!(call(&host, effect, &spec).await.unwrap_err().kind, HostErrorKind::Timeout, "{effect}");
        assert_eq!(world(&host) != before, effect.is_effect(), "{effect} failed after doing it");
    }
}

#[tokio::test]
async fn a_failed_check_is_a_finding() {
    let host = host();
    assert!(host.checks().await.iter().all(|finding| finding.fix.is_empty()));
    host.lose_rules();
    assert!(host.checks().await.iter().any(|finding| finding.check == "egress" && !finding.fix.is_empty()));
    host.inject(Fault::once(HostCall::Checks, FaultKind::FailBefore(HostErrorKind::Timeout)));
    assert_eq!(host.checks().await[0].check, "host");
}

#[tokio::test]
async fn hanging_calls_never_answer() {
    for (kind, done) in [(FaultKind::Hang, false), (FaultKind::HangAfter, true)] {
        for effect in effects() {
            let (host, spec) = (host(), spec());
            prepare(&host, effect, &spec).await;
            let before = world(&host);
            host.inject(Fault::once(effect, kind));
            assert!(call(&host, effect, &spec).now_or_never().is_none(), "{effect} answered");
            assert_eq!(world(&host) != before, done, "{effect} under {kind:?}");
        }
    }
}

/// What half an effect leaves, as an observer sees it; the error is honest.
#[tokio::test]
async fn half_an_effect_is_seen_as_half() {
    async fn half(effect: HostCall) -> (FakeHost, ObservedClone) {
        let (host, spec) = (host(), spec());
        prepare(&host, effect, &spec).await;
        host.inject(Fault::once(effect, FaultKind::Half));
        assert_eq!(call(&host, effect, &spec).await.unwrap_err().kind, HostErrorKind::Failed, "{effect}");
        let clone = seen(&host, &spec).await;
        (host, clone)
    }
    let (_, clone) = half(HostCall::EnsureStorage).await;
    assert_eq!(clone.storage.unwrap().identity, Identity::Unmarked);
    let (_, clone) = half(HostCall::EnsureLimits).await;
    assert_eq!(clone.limits, Some(Limits { memory_bytes: Some(1 << 30), ..Limits::default() }));
    let (_, clone) = half(HostCall::EnsureNetwork).await;
    let network = clone.network.unwrap();
    assert_eq!((network.identity, network.complete), (Identity::Unmarked, false));
    let (_, clone) = half(HostCall::EnsureJail).await;
    assert_eq!((clone.jail, clone.mounts.len()), (None, 2), "mounts without a jail");
    let (host, clone) = half(HostCall::EnsureService).await;
    assert_eq!((clone.processes.len(), answers(&host, &spec()).await), (2, false));
    let (host, clone) = half(HostCall::CutEgress).await;
    assert!(!clone.egress && host.ours().contains("state browsertask001"), "connections live on");
    let (host, clone) = half(HostCall::EndProcesses).await;
    assert_eq!((clone.processes.len(), answers(&host, &spec()).await), (1, false));
    let (_, clone) = half(HostCall::Unmount).await;
    assert_eq!(clone.mounts, BTreeSet::from(["root/dev".to_owned()]), "the deepest went first");
    let (_, clone) = half(HostCall::StopJail).await;
    assert!(clone.jail.is_some() && clone.processes.is_empty());
    let (_, clone) = half(HostCall::RemoveNetwork).await;
    assert!(!clone.network.unwrap().complete);
    let (_, clone) = half(HostCall::RemoveLimits).await;
    assert_eq!(clone.limits.unwrap().processes, None);
    let (_, clone) = half(HostCall::DestroyStorage).await;
    assert!(!clone.storage.unwrap().mounted);
    let (host, _) = half(HostCall::RepairEgress).await;
    assert!(host.links_down() && host.egress_health().await.unwrap() == EgressHealth::RulesMissing);
}

#[tokio::test]
async fn every_effect_can_be_run_twice() {
    for effect in effects() {
        let (host, spec) = (host(), spec());
        prepare(&host, effect, &spec).await;
        host.inject(Fault::once(effect, FaultKind::Twice));
        call(&host, effect, &spec).await.unwrap_or_else(|error| panic!("{effect} twice: {error}"));
        let twice = host.ours();
        call(&host, effect, &spec).await.unwrap();
        assert_eq!(host.ours(), twice, "{effect}");
    }
}

#[tokio::test]
async fn crashes_strike_before_or_after_and_once() {
    quiet_crashes();
    for effect in HostCall::ALL.iter().copied() {
        for when in [When::Before, When::After] {
            for by_number in [true, false] {
                let (host, spec) = (host(), spec());
                prepare(&host, effect, &spec).await;
                let (before, calls) = (world(&host), host.calls());
                if by_number {
                    host.crash_at_call(1, when);
                } else {
                    host.inject(Fault::once(effect, FaultKind::Crash(when)));
                }
                let crash = AssertUnwindSafe(call(&host, effect, &spec)).catch_unwind().await;
                assert!(crash.unwrap_err().is::<SimulatedCrash>(), "{effect}");
                let done = effect.is_effect() && when == When::After;
                assert_eq!(world(&host) != before, done, "{effect} {when:?}");
                assert_eq!(host.calls(), calls + 1);
                call(&host, effect, &spec).await.unwrap_or_else(|error| panic!("{effect}: {error}"));
            }
        }
    }
}

#[tokio::test]
async fn a_crash_strikes_at_its_call_and_a_fault_at_its_slot_and_times() {
    quiet_crashes();
    let (host, spec) = (host(), spec());
    host.crash_at_call(3, When::Before);
    host.egress_health().await.unwrap();
    host.egress_health().await.unwrap();
    let crash = AssertUnwindSafe(host.egress_health()).catch_unwind().await;
    assert!(crash.unwrap_err().is::<SimulatedCrash>());

    let other = numbered_slots().names(Slot::new(2).unwrap());
    let kind = FaultKind::FailBefore(HostErrorKind::Failed);
    host.inject(Fault { call: HostCall::StopJail, slot: Some(slot()), times: 2, kind });
    host.stop_jail(&other).await.unwrap();
    host.stop_jail(&spec.names).await.unwrap_err();
    host.stop_jail(&spec.names).await.unwrap_err();
    host.stop_jail(&spec.names).await.unwrap();

    host.inject(Fault::once(HostCall::StopJail, kind));
    host.crash_at_call(1, When::Before);
    host.clear_faults();
    host.stop_jail(&spec.names).await.unwrap();
}

#[tokio::test]
async fn a_dead_process_does_nothing_more() {
    let (host, spec) = (host(), spec());
    let next = host.restarted();
    assert!(host.ensure_storage(&spec).now_or_never().is_none());
    assert_eq!(next.ours(), BTreeSet::new());
    next.ensure_storage(&spec).await.unwrap();
    assert_eq!(host.ours(), next.ours(), "both see one world");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_leaves_what_was_done_of_it() {
    let (host, spec) = (host(), spec());
    host.set_latency(Duration::from_secs(2));
    let cut = tokio::time::timeout(Duration::from_millis(1500), host.ensure_storage(&spec)).await;
    assert!(cut.is_err());
    host.set_latency(Duration::ZERO);
    assert_eq!(seen(&host, &spec).await.storage.unwrap().identity, Identity::Unmarked);
}

#[tokio::test]
async fn busy_storage_goes_in_the_order_of_its_holders() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    let names = &spec.names;
    let busy = async || {
        assert_eq!(host.destroy_storage(names).await.unwrap_err().kind, HostErrorKind::Busy);
    };
    busy().await; // mounts, processes, a jail
    assert_eq!(host.unmount(names, Unmount::Gentle).await.unwrap_err().kind, HostErrorKind::Busy);
    host.ignore_term(slot());
    host.inject(Fault::once(HostCall::EndProcesses, FaultKind::Half));
    host.end_processes(names).await.unwrap_err();
    assert_eq!(seen(&host, &spec).await.processes.len(), 2, "SIGTERM is ignored");
    host.end_processes(names).await.unwrap();
    assert_eq!(seen(&host, &spec).await.processes.len(), 0);
    busy().await; // mounts, a jail
    host.unmount(names, Unmount::Gentle).await.unwrap();
    busy().await; // a jail
    host.inject(Fault::once(HostCall::StopJail, FaultKind::DyingPolls(1000)));
    host.stop_jail(names).await.unwrap();
    busy().await; // dying
    assert!(seen(&host, &spec).await.jail.unwrap().dying);
    host.unmount(names, Unmount::Force).await.unwrap();
    host.make_busy(slot(), 2);
    busy().await;
    busy().await;
    host.destroy_storage(names).await.unwrap();
    assert!(host.ours().iter().any(|object| object.starts_with("dying browsertask001")));
}

#[tokio::test]
async fn a_dying_jail_is_seen_for_its_polls_and_a_new_one_runs_beside_it() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    host.make_dying(slot(), 3);
    host.stop_jail(&spec.names).await.unwrap();
    host.inspect(&spec.names, &[Part::Storage]).await.unwrap(); // does not look at the jail
    assert!(seen(&host, &spec).await.jail.unwrap().dying);
    host.ensure_network(&spec).await.unwrap();
    host.ensure_jail(&spec).await.unwrap();
    assert!(!seen(&host, &spec).await.jail.unwrap().dying, "the live one is reported");
    host.stop_jail(&spec.names).await.unwrap();
    assert!(seen(&host, &spec).await.jail.unwrap().dying);
    assert_eq!(seen(&host, &spec).await.jail, None);
}

#[tokio::test]
async fn a_stuck_mount_goes_by_force_or_not_at_all() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    host.end_processes(&spec.names).await.unwrap();
    host.stick_mount(slot(), true);
    assert_eq!(host.unmount(&spec.names, Unmount::Gentle).await.unwrap_err().kind, HostErrorKind::Busy);
    host.stop_jail(&spec.names).await.unwrap();
    assert_eq!(seen(&host, &spec).await.mounts.len(), 1, "the stuck one outlives the jail");
    host.unmount(&spec.names, Unmount::Force).await.unwrap();

    host.stick_mount(slot(), false);
    assert_eq!(host.unmount(&spec.names, Unmount::Force).await.unwrap_err().kind, HostErrorKind::Busy);
    host.move_storage_aside(&spec.names, &spec.clone_id).await.unwrap();
    assert_eq!(seen(&host, &spec).await.mounts.len(), 1, "it stays where it was");
    host.unstick_mount(slot());
    host.unmount(&spec.names, Unmount::Gentle).await.unwrap();
    assert_eq!(host.inventory().await.unwrap().aside, BTreeSet::from([spec.clone_id.clone()]));
    host.destroy_aside(&spec.clone_id).await.unwrap();
    assert!(host.inventory().await.unwrap().aside.is_empty());
}

#[tokio::test]
async fn storage_aside_keeps_its_identity_and_its_holders() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    let running = host.move_storage_aside(&spec.names, &spec.clone_id).await.unwrap_err();
    assert_eq!(running.kind, HostErrorKind::Busy, "a jail runs from it");
    host.stop_jail(&spec.names).await.unwrap();
    let other = host.move_storage_aside(&spec.names, &CloneId::random()).await.unwrap_err();
    assert_eq!(other.kind, HostErrorKind::Foreign);
    host.forget_mark(slot());
    host.make_busy(slot(), 1);
    host.move_storage_aside(&spec.names, &spec.clone_id).await.unwrap();
    assert_eq!(seen(&host, &spec).await.storage, None);
    assert_eq!(host.destroy_aside(&spec.clone_id).await.unwrap_err().kind, HostErrorKind::Busy);
    host.destroy_aside(&spec.clone_id).await.unwrap();
}

#[tokio::test]
async fn another_identity_is_refused() {
    let (host, mine) = (host(), spec());
    make(&host, &mine).await;
    let before = world(&host);
    let late = CloneSpec { clone_id: CloneId::random(), ..mine.clone() };
    for ensure in [
        HostCall::EnsureStorage,
        HostCall::EnsureNetwork,
        HostCall::EnsureJail,
        HostCall::EnsureService,
        HostCall::MoveStorageAside,
    ] {
        let refused = call(&host, ensure, &late).await.unwrap_err();
        let expected = match ensure {
            HostCall::MoveStorageAside => HostErrorKind::Busy,
            _ => HostErrorKind::Foreign,
        };
        assert_eq!(refused.kind, expected, "{ensure}");
    }
    assert_eq!(world(&host).slots, before.slots);
}

#[tokio::test]
async fn an_unmarked_object_is_in_the_way_but_can_be_removed() {
    let (host, spec) = (host(), spec());
    host.ensure_storage(&spec).await.unwrap();
    host.forget_mark(slot());
    host.add_stray_interface(slot());
    for ensure in [HostCall::EnsureStorage, HostCall::EnsureNetwork, HostCall::EnsureJail] {
        assert_eq!(call(&host, ensure, &spec).await.unwrap_err().kind, HostErrorKind::Failed, "{ensure}");
    }
    host.remove_network(&spec.names).await.unwrap();
    host.destroy_storage(&spec.names).await.unwrap();
    assert_eq!(host.ours(), BTreeSet::new());
}

#[tokio::test]
async fn foreign_objects_are_refused_by_every_effect_and_never_change() {
    let host = host();
    let spec = spec();
    for part in [Part::Storage, Part::Jail, Part::Network] {
        assert!(host.plant_foreign(slot(), part));
        assert!(!host.plant_foreign(slot(), part), "there is one already");
    }
    let planted: BTreeSet<String> =
        ["storage", "jail", "network"].map(|kind| format!("{kind} browsertask001")).into();
    assert_eq!(host.foreign(), planted);
    assert_eq!(host.ours(), BTreeSet::new());
    let touches_none = [
        HostCall::RepairEgress,
        HostCall::EnsureEgress,
        HostCall::CutEgress,
        HostCall::DestroyAside,
        HostCall::MoveStorageAside,
    ];
    for effect in effects().filter(|effect| !touches_none.contains(effect)) {
        let refused = call(&host, effect, &spec).await.unwrap_err();
        assert_eq!(refused.kind, HostErrorKind::Foreign, "{effect}");
        assert_eq!(host.foreign(), planted, "{effect} touched it");
    }
    assert!(host.move_storage_aside(&spec.names, &spec.clone_id).await.is_err());
    host.kill_jail(slot());
    host.remove_interface(slot());
    host.remove_limits_of(slot());
    host.make_busy(slot(), 1);
    host.stick_mount(slot(), true);
    host.forget_mark(slot());
    assert_eq!(host.foreign(), planted, "the operator's tools leave them alone too");
    let clone = seen(&host, &spec).await;
    assert!(matches!(clone.storage.unwrap().identity, Identity::Foreign(_)));
    assert!(matches!(clone.jail.unwrap().identity, Identity::Foreign(_)));
    assert!(matches!(clone.network.unwrap().identity, Identity::Foreign(_)));

    host.ignore_term(slot());
    assert_eq!(host.foreign(), planted);
    host.meddle(|world| world.slot_mut(slot()).limits = None);
    assert!(!host.foreign().contains("jail browsertask001"), "a changed one is missing");
    host.reboot();
    assert_eq!(host.foreign(), BTreeSet::from(["storage browsertask001".to_owned()]));
}

#[tokio::test]
async fn a_reboot_leaves_files_only() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    host.make_busy(slot(), 9);
    host.lose_table();
    host.reboot();
    assert_eq!(host.ours(), BTreeSet::from(["storage browsertask001".to_owned()]));
    assert_eq!(seen(&host, &spec).await.parts(), [Part::Storage]);
    assert_eq!(host.egress_health().await.unwrap(), EgressHealth::Ok);
    host.destroy_storage(&spec.names).await.unwrap();
}

#[tokio::test]
async fn a_killed_jail_leaves_the_rest() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    host.kill_jail(slot());
    let clone = seen(&host, &spec).await;
    assert_eq!(clone.parts(), [Part::Storage, Part::Mounts, Part::Limits, Part::Network, Part::Egress]);
    assert!(!clone.network.unwrap().complete, "back from the jail and bare");
    host.remove_interface(slot());
    host.remove_limits_of(slot());
    assert_eq!(seen(&host, &spec).await.parts(), [Part::Storage, Part::Mounts, Part::Egress]);
}

#[tokio::test]
async fn losing_the_firewall_shows_and_is_repaired() {
    let (host, spec) = (host(), spec());
    make(&host, &spec).await;
    host.lose_table();
    assert_eq!(host.egress_health().await.unwrap(), EgressHealth::TableMissing);
    host.cut_egress(&spec.names).await.unwrap();
    host.ensure_egress(&spec).await.unwrap();
    assert_eq!(
        host.egress_health().await.unwrap(),
        EgressHealth::TableMissing,
        "pfctl made a table that no rule refers to"
    );
    assert_eq!(host.repair_egress().await.unwrap(), EgressHealth::Ok);
    assert_eq!(host.table(), BTreeSet::from([spec.names.ip]), "loading the rules keeps the members");

    host.reload_firewall();
    assert_eq!((host.egress_health().await.unwrap(), host.table().len()), (EgressHealth::Ok, 0));
    host.flush_rules();
    assert_eq!(host.egress_health().await.unwrap(), EgressHealth::RulesMissing);
    assert_eq!(host.repair_egress().await.unwrap(), EgressHealth::Ok);

    host.lose_rules();
    assert_eq!(host.repair_egress().await.unwrap(), EgressHealth::RulesMissing);
    assert!(host.links_down());
    host.restore_rules();
    assert_eq!(host.egress_health().await.unwrap(), EgressHealth::Ok);
    assert!(!host.links_down());
}

#[tokio::test]
async fn a_stray_member_is_seen_in_its_slot() {
    let host = host();
    host.add_stray_member(numbered_slots().names(slot()).ip);
    let inventory = host.inventory().await.unwrap();
    assert_eq!(inventory.clones[&slot()].parts(), [Part::Egress]);
    assert_eq!(host.ours(), BTreeSet::from(["member browsertask001".to_owned()]));
}

#[tokio::test]
async fn a_template_that_is_missing_is_told() {
    let (host, spec) = (host(), spec());
    let v2: SnapshotName = "v2".parse().unwrap();
    host.check_template(&v2).await.unwrap();
    host.remove_template(&spec.snapshot);
    for refused in [host.check_template(&spec.snapshot).await, host.ensure_storage(&spec).await] {
        assert_eq!(refused.unwrap_err().kind, HostErrorKind::Template);
    }
    assert_eq!(host.ours(), BTreeSet::new());
}

#[derive(Debug)]
struct SetClock(Mutex<Moment>);

impl Clock for SetClock {
    fn now(&self) -> Moment {
        lock(&self.0).clone()
    }
}

#[tokio::test]
async fn ages_come_from_the_clock_and_survive_a_boot() {
    let (host, spec) = (host(), spec());
    let start = Moment { boot: "a".into(), mono: Duration::from_secs(50), wall: SystemTime::UNIX_EPOCH };
    let clock = Arc::new(SetClock(Mutex::new(start.clone())));
    host.set_clock(clock.clone());
    host.ensure_storage(&spec).await.unwrap();
    lock(&clock.0).mono += Duration::from_secs(9);
    assert_eq!(seen(&host, &spec).await.storage.unwrap().age, Some(Duration::from_secs(9)));
    *lock(&clock.0) = Moment {
        boot: "b".into(),
        mono: Duration::ZERO,
        wall: SystemTime::UNIX_EPOCH + Duration::from_secs(99),
    };
    assert_eq!(seen(&host, &spec).await.storage.unwrap().age, Some(Duration::from_secs(99)));
}

#[tokio::test]
async fn a_persistent_world_survives_its_process_and_half_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let spec = spec();
    {
        let host = FakeHost::persistent(numbered_slots(), dir.path()).unwrap();
        make(&host, &spec).await;
        host.plant_foreign(Slot::new(2).unwrap(), Part::Storage);
        host.make_dying(slot(), 2);
    }
    // A process died while it wrote: the torn file is beside the world, never in its objects.
    std::fs::write(dir.path().join("world.json.tmp"), b"{\"slots\":{\"1\":{\"stor").unwrap();
    let host = FakeHost::persistent(numbered_slots(), dir.path()).unwrap();
    assert_eq!(seen(&host, &spec).await.parts(), Part::ALL);
    assert_eq!(host.foreign(), BTreeSet::from(["storage browsertask002".to_owned()]));
    host.stop_jail(&spec.names).await.unwrap();
    assert!(seen(&host, &spec).await.jail.unwrap().dying);
    drop(host);
    let host = FakeHost::persistent(numbered_slots(), dir.path()).unwrap();
    assert!(seen(&host, &spec).await.jail.unwrap().dying, "the second of its two looks");
    assert_eq!(seen(&host, &spec).await.jail, None);

    std::fs::write(dir.path().join("world.json"), b"{").unwrap();
    assert!(
        FakeHost::persistent(numbered_slots(), dir.path()).is_err(),
        "a torn world is an error, not a new world"
    );
}

#[tokio::test]
async fn processes_that_share_a_folder_see_each_others_changes() {
    let dir = tempfile::tempdir().unwrap();
    let spec = spec();
    let (daemon, test) = (
        FakeHost::persistent(numbered_slots(), dir.path()).unwrap(),
        FakeHost::persistent(numbered_slots(), dir.path()).unwrap(),
    );
    daemon.ensure_storage(&spec).await.unwrap();
    assert_eq!(test.ours(), BTreeSet::from(["storage browsertask001".to_owned()]));
    test.forget_mark(slot());
    assert_eq!(seen(&daemon, &spec).await.storage.unwrap().identity, Identity::Unmarked);
}

#[tokio::test(start_paused = true)]
async fn latency_is_spent_in_every_call() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("latency_ms"), "40\n").unwrap();
    let spec = spec();
    let host = FakeHost::persistent(numbered_slots(), dir.path()).unwrap();
    for wanted in HostCall::ALL.iter().copied() {
        let start = tokio::time::Instant::now();
        let _ = call(&host, wanted, &spec).await;
        assert!(start.elapsed() >= Duration::from_millis(20), "{wanted}");
    }
    let start = tokio::time::Instant::now();
    host.ensure_storage(&spec).await.unwrap();
    assert_eq!(start.elapsed().as_millis() / 10, 4);
}
