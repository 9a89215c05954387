//! The warm pool on the fake host: binds, and everything that can race with them.
#![allow(clippy::unwrap_used)]

mod rig;

use hostd::api::{CloneState, CreateParams, CreateResult, ErrorCode, Flavor, Launch, Limits, RpcError};
use hostd::config::Config;
use hostd::host::fake::{Fault, FaultKind, HostCall, When};
use rig::{Rig, caller, operator, params, request, slot};
use std::time::Duration;

/// A rig with a warm pool of this size, filled.
async fn with_pool(size: u16, change: impl FnOnce(&mut Config)) -> Rig {
    let rig = Rig::with(|config| {
        config.pool.size = size;
        change(config);
    })
    .await;
    rig.refill().await;
    rig
}

fn on_paused_time(test: impl Future<Output = ()>) {
    rig::runtime().block_on(test);
}

fn launch(result: &CreateResult) -> Launch {
    result.clone.launch.unwrap()
}

async fn ask(rig: &Rig, wanted: CreateParams) -> Result<CreateResult, RpcError> {
    rig.engine.create(&caller(1000), wanted, None).await
}

#[test]
fn a_create_binds_a_member() {
    on_paused_time(async {
        let rig = with_pool(2, |_| {}).await;
        let members = rig.members();
        assert_eq!(members.len(), 2);
        assert_eq!(rig.check_settled("a full pool"), 0);
        let mut wanted = request("a");
        (wanted.tenant, wanted.deadline_seconds) = (Some("acme".parse().unwrap()), Some(77));
        let before = rig.host.calls();
        let taken = ask(&rig, wanted).await.unwrap();
        let calls = rig.host.calls() - before;
        assert_eq!(
            calls, 4,
            "firewall, template, thaw, and whether it answers: nothing is made or looked for"
        );
        assert_eq!((launch(&taken), taken.renewed), (Launch::Warm, false));
        let clone = &taken.clone;
        assert!(members.contains(&clone.name), "{clone:?}");
        assert!(clone.endpoint.is_some() && clone.cdp_endpoint.is_some(), "{clone:?}");
        assert_eq!((clone.deadline_seconds_left, clone.owner_uid), (Some(77), Some(1000)));
        assert_eq!(clone.tenant.as_ref().unwrap().as_str(), "acme");
        let stages: Vec<&str> = clone.stages.iter().map(|stage| stage.stage.as_str()).collect();
        assert_eq!(stages, ["thaw", "service", "total"]);
        rig.engine.reconcile_now().await;
        assert_eq!((rig.check_settled("one taken"), rig.members().len()), (1, 1));
        rig.refill().await;
        assert_eq!((rig.check_settled("filled again"), rig.members().len()), (1, 2));
        let pool = rig.engine.status().pool.unwrap();
        assert_eq!((pool.hits, pool.misses_empty, pool.misses_unfit, pool.drained), (1, 0, 0, 0));
    });
}

#[test]
fn a_clone_with_an_owner_never_returns_to_the_pool() {
    on_paused_time(async {
        let rig = with_pool(1, |_| {}).await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.destroy(&clone).await.unwrap();
        assert_eq!(rig.states()[clone.name.as_str()], CloneState::Quarantined);
        assert!(rig.members().is_empty());
        rig.refill().await;
        assert_ne!(rig.members(), [clone.name], "its slot rests");
    });
}

#[test]
fn an_empty_pool_is_an_ordinary_create() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.pool.size = 1).await;
        assert_eq!(launch(&rig.create("a").await.unwrap()), Launch::Cold);
        assert_eq!(rig.engine.status().pool.unwrap().misses_empty, 1);
    });
}

#[test]
fn a_basic_member_has_its_browser_started() {
    on_paused_time(async {
        let rig = with_pool(1, |config| config.pool.flavors = vec![Flavor::Basic]).await;
        assert!(!rig.host.ours().iter().any(|object| object.starts_with("process")), "no browser yet");
        let taken = rig.create("a").await.unwrap();
        assert_eq!(launch(&taken), Launch::Basic);
        let stages: Vec<&str> = taken.clone.stages.iter().map(|stage| stage.stage.as_str()).collect();
        assert_eq!(stages, ["service", "total"]);
        assert_eq!(rig.check_settled("with its browser"), 1);
    });
}

#[test]
fn ready_members_go_first() {
    on_paused_time(async {
        let rig = with_pool(1, |config| config.pool.flavors = vec![Flavor::Basic, Flavor::Ready]).await;
        let launches = [rig.create("a").await, rig.create("b").await, rig.create("c").await]
            .map(|made| launch(&made.unwrap()));
        assert_eq!(launches, [Launch::Warm, Launch::Basic, Launch::Cold]);
    });
}

#[test]
fn two_creates_for_the_last_member() {
    on_paused_time(async {
        let rig = with_pool(1, |_| {}).await;
        rig.host.set_latency(Duration::from_millis(10));
        let (one, two) = tokio::join!(rig.create("a"), rig.create("b"));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_ne!(one.clone.name, two.clone.name);
        let mut launches = [launch(&one), launch(&two)];
        launches.sort_by_key(|launch| launch.word());
        assert_eq!(launches, [Launch::Cold, Launch::Warm]);
        rig.engine.reconcile_now().await;
        assert_eq!(rig.check_settled("both are whole"), 2);
    });
}

#[test]
fn identical_requests_bind_one_member() {
    on_paused_time(async {
        let rig = with_pool(2, |_| {}).await;
        rig.host.set_latency(Duration::from_millis(10));
        let (one, two) = tokio::join!(rig.create("a"), rig.create("a"));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one.clone.clone_id, two.clone.clone_id, "at once");
        let again = rig.create("a").await.unwrap();
        assert!(again.renewed && again.clone.clone_id == one.clone.clone_id, "and later");
        assert_eq!((rig.members().len(), rig.engine.status().pool.unwrap().hits), (1, 1));
        let other = rig.engine.create(&caller(1001), request("a"), None).await.unwrap();
        assert!(!other.renewed && other.clone.clone_id != one.clone.clone_id, "another user's request");
    });
}

#[test]
fn a_member_whose_browser_died_is_not_bound() {
    on_paused_time(async {
        for flavors in [vec![Flavor::Ready], vec![Flavor::Basic]] {
            let basic = flavors == [Flavor::Basic];
            let rig = with_pool(2, |config| config.pool.flavors = flavors).await;
            let dead = rig.engine.slots().slot_of_name(rig.members()[0].as_str()).unwrap();
            match basic {
                true => rig.host.kill_jail(dead),
                false => rig.host.kill_browser(dead),
            }
            let taken = rig.create("a").await.unwrap();
            assert_eq!(launch(&taken), if basic { Launch::Basic } else { Launch::Warm });
            assert_ne!(taken.clone.name, rig.engine.slots().name(dead));
            // The broken member is drained without a call.
            rig.settle().await;
            assert!(rig.members().is_empty());
            assert_eq!(rig.check_settled("the dead one is gone"), 1);
            assert_eq!(rig.engine.status().pool.unwrap().drained, 1);
        }
    });
}

#[test]
fn no_two_records_ever_name_one_request() {
    on_paused_time(async {
        let rig = with_pool(3, |_| {}).await;
        let well = rig.members().pop().unwrap();
        for dead in rig.members().iter().filter(|member| **member != well) {
            rig.host.kill_browser(rig.engine.slots().slot_of_name(dead.as_str()).unwrap());
        }
        let records = rig.config.paths.state.join("records");
        let most = std::sync::Arc::new(std::sync::Mutex::new(0));
        let seen = most.clone();
        rig.engine.store().set_hook(Some(Box::new(move |_| {
            let files = std::fs::read_dir(&records).unwrap().map(|file| file.unwrap().path());
            let naming = files.filter(|file| {
                std::fs::read_to_string(file).unwrap().contains("\"request_id\": \"the-one\"")
            });
            let mut most = seen.lock().unwrap();
            *most = naming.count().max(*most);
            Ok(())
        })));
        assert_eq!(rig.create("the-one").await.unwrap().clone.name, well);
        rig.settle().await;
        assert_eq!(*most.lock().unwrap(), 1);
    });
}

#[test]
fn members_of_a_changed_template_are_not_bound() {
    on_paused_time(async {
        let rig = with_pool(2, |_| {}).await;
        rig.host.remake_template(&rig.config.host.snapshot);
        let made = rig.create("a").await.unwrap();
        assert_eq!(launch(&made), Launch::Cold, "before anybody has noticed");
        assert_eq!(rig.engine.status().pool.unwrap().misses_unfit, 1);
        rig.engine.reconcile_now().await;
        assert!(rig.members().is_empty(), "{:?}", rig.states());
        rig.refill().await;
        assert_eq!(launch(&rig.create("b").await.unwrap()), Launch::Warm);
        rig.host.remove_template(&rig.config.host.snapshot);
        assert_eq!(rig.create("c").await.unwrap_err().code(), ErrorCode::TemplateUnusable);
        rig.engine.reconcile_now().await;
        assert!(rig.members().is_empty());
        assert!(rig.engine.refill_now().await.is_err());
        assert!(rig.engine.status().pool.unwrap().problem.unwrap().contains("cannot be filled"));
        rig.engine.reconcile_now().await;
        assert_eq!(rig.check_settled("what was given stays"), 2);
    });
}

#[test]
fn a_member_created_during_a_template_change_counts_as_outdated() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.pool.size = 1).await;
        rig.host.set_latency(Duration::from_millis(10));
        let refill = rig.refill();
        let change = async {
            tokio::time::sleep(Duration::from_millis(120)).await;
            assert!(rig.members().is_empty(), "still being made");
            rig.host.remake_template(&rig.config.host.snapshot);
        };
        tokio::join!(refill, change);
        assert_eq!(rig.members().len(), 1);
        assert_eq!(launch(&rig.create("a").await.unwrap()), Launch::Cold);
    });
}

#[test]
fn a_bind_races_a_drain() {
    on_paused_time(async {
        let (mut warm, mut cold) = (0, 0);
        for delay in 0..40 {
            let rig = with_pool(1, |_| {}).await;
            rig.host.set_latency(Duration::from_millis(4));
            let member = rig.list().into_values().next().unwrap();
            let drain = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                // Fails if the bind was first: then the clone has an owner, and the operator meant the member.
                let _ = rig.engine.destroy(&operator(), params(&member), None).await;
            };
            let claim = async {
                tokio::time::sleep(Duration::from_millis(delay)).await;
                rig.create("a").await.unwrap()
            };
            let ((), claimed) = tokio::join!(drain, claim);
            match claimed.clone.launch {
                // The operator's destroy named this clone and came after the bind.
                Some(Launch::Warm) => warm += 1,
                _ => {
                    cold += 1;
                    assert_ne!(claimed.clone.clone_id, member.clone_id);
                    rig.engine.reconcile_now().await;
                    assert_eq!(rig.states()[claimed.clone.name.as_str()], CloneState::Ready);
                }
            }
            rig.settle().await;
            rig.check_settled(&format!("claim after {delay} ms"));
        }
        assert!(warm > 0 && cold > 0, "{warm} claims were first, {cold} drains");
    });
}

#[test]
fn a_bind_races_the_timer() {
    on_paused_time(async {
        let (mut warm, mut cold) = (0, 0);
        for delay in 0..60 {
            let rig = with_pool(1, |_| {}).await;
            rig.host.set_latency(Duration::from_millis(4));
            rig.host.remove_interface(slot(1));
            // The timer finds it broken and drains it. The bind may come before, during or after that.
            let timer = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                rig.engine.reconcile_now().await;
            };
            let claim = async {
                tokio::time::sleep(Duration::from_millis(delay)).await;
                rig.create("a").await.unwrap()
            };
            let ((), claimed) = tokio::join!(timer, claim);
            let warm_one = claimed.clone.launch == Some(Launch::Warm);
            (warm, cold) = (warm + u32::from(warm_one), cold + u32::from(!warm_one));
            rig.engine.reconcile_now().await;
            let shown = rig.list().remove(&claimed.clone.name).unwrap();
            assert_eq!(shown.clone_id, claimed.clone.clone_id, "whoever got it keeps it");
            let expected = if warm_one { CloneState::Broken } else { CloneState::Ready };
            assert_eq!(shown.state, expected, "after {delay} ms");
        }
        assert!(warm > 0 && cold > 0, "{warm} claims were first, {cold} drains");
    });
}

#[test]
fn a_refill_races_shutdown() {
    on_paused_time(async {
        for delay in (0..260).step_by(4) {
            let rig = Rig::with(|config| config.pool.size = 2).await;
            rig.host.set_latency(Duration::from_millis(4));
            let engine = rig.engine.clone();
            let refill = tokio::spawn(async move {
                let _ = engine.refill_now().await;
            });
            tokio::time::sleep(Duration::from_millis(delay)).await;
            assert_eq!(rig.engine.shutdown().await, 0, "everything ends in time");
            refill.await.unwrap();
            let left = rig.host.ours();
            assert!(left.is_empty(), "stopped after {delay} ms: {left:?}");
            let states = rig.states();
            assert!(states.values().all(|state| *state == CloneState::Quarantined), "{delay} ms: {states:?}");
        }
    });
}

#[test]
fn stopping_drains_the_pool_and_nothing_else() {
    on_paused_time(async {
        let mut rig = with_pool(2, |_| {}).await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.refill().await;
        assert_eq!(rig.engine.shutdown().await, 0);
        assert!(rig.members().is_empty());
        rig.restart().await;
        rig.settle().await;
        assert_eq!(rig.check_settled("after the restart"), 1);
        assert_eq!(rig.list()[&clone.name].clone_id, clone.clone_id);
    });
}

#[test]
fn working_members_survive_a_crash_of_the_daemon() {
    on_paused_time(async {
        let mut rig = with_pool(3, |_| {}).await;
        let before = rig.list();
        let names = rig.members();
        let numbers: Vec<_> =
            names.iter().map(|name| rig.engine.slots().slot_of_name(name.as_str()).unwrap()).collect();
        rig.host.kill_browser(numbers[0]);
        rig.host.set_frozen(numbers[1], false);
        rig.restart().await;
        rig.engine.reconcile_now().await;
        rig.refill().await;
        rig.engine.reconcile_now().await;
        assert_eq!(rig.check_settled("adopted"), 0);
        let after = rig.list();
        let kept = |name| after.get(name).map(|clone| &clone.clone_id) == Some(&before[name].clone_id);
        assert_eq!([kept(&names[0]), kept(&names[1]), kept(&names[2])], [false, true, true]);
        assert_eq!(rig.members().len(), 3, "the dead one was replaced");
        let taken = rig.create("a").await.unwrap();
        assert_eq!(launch(&taken), Launch::Warm);
    });
}

#[test]
fn a_bound_clone_that_was_not_thawed_is_thawed_by_the_next_start() {
    on_paused_time(async {
        let mut rig = with_pool(1, |_| {}).await;
        let member = rig.members().remove(0);
        rig.host.inject(Fault::once(HostCall::Thaw, FaultKind::Hang));
        let engine = rig.engine.clone();
        tokio::spawn(async move { engine.create(&caller(1000), request("a"), None).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(rig.host.frozen().len(), 1, "it was written down and nothing else");
        rig.restart().await;
        rig.settle().await;
        assert_eq!(rig.check_settled("after the start"), 1);
        let again = rig.create("a").await.unwrap();
        assert_eq!((again.renewed, launch(&again)), (true, Launch::Warm));
        assert_eq!((again.clone.name, again.clone.state), (member, CloneState::Ready));
    });
}

#[test]
fn a_crash_during_the_create_of_a_member_leaves_nothing() {
    on_paused_time(async {
        let mut rig = Rig::with(|config| config.pool.size = 1).await;
        rig.host.inject(Fault::once(HostCall::EnsureJail, FaultKind::Crash(When::After)));
        let engine = rig.engine.clone();
        tokio::spawn(async move { engine.refill_now().await }).await.unwrap().unwrap_err();
        rig.restart().await;
        rig.engine.reconcile_now().await;
        assert!(rig.host.ours().is_empty(), "{:?}", rig.host.ours());
        rig.refill().await;
        rig.engine.reconcile_now().await;
        assert_eq!((rig.check_settled("made anew"), rig.members().len()), (0, 1));
    });
}

#[test]
fn a_reboot_ends_every_member() {
    on_paused_time(async {
        let mut rig = with_pool(2, |_| {}).await;
        rig.reboot().await;
        assert_eq!(launch(&rig.create("a").await.unwrap()), Launch::Cold, "also before the timer has run");
        rig.settle().await;
        assert!(rig.members().is_empty());
        assert_eq!(rig.check_settled("after the reboot"), 1);
    });
}

#[test]
fn limits_are_changed_at_the_bind_if_the_host_can() {
    on_paused_time(async {
        let rig = with_pool(3, |_| {}).await;
        let mut wanted = request("a");
        wanted.limits =
            Some(Limits { memory_bytes: Some(512 << 20), cpu_percent: Some(50), ..Limits::default() });
        let taken = ask(&rig, wanted.clone()).await.unwrap();
        assert_eq!(launch(&taken), Launch::Warm);
        let on = taken.clone.limits.unwrap();
        assert_eq!((on.memory_bytes, on.cpu_percent), (Some(512 << 20), Some(50)));
        rig.engine.reconcile_now().await;
        assert_eq!(rig.check_settled("with its own limits"), 1);
        assert!(ask(&rig, wanted).await.unwrap().renewed);
        let mut wanted = request("b");
        wanted.limits = Some(Limits { open_files: Some(512), ..Limits::default() });
        assert_eq!(
            launch(&ask(&rig, wanted).await.unwrap()),
            Launch::Cold,
            "what a process brought along stays"
        );
        let mut wanted = request("c");
        wanted.limits = Some(Limits { memory_bytes: Some(512 << 20), ..Limits::default() });
        rig.host.inject(Fault::once(HostCall::EnsureLimits, FaultKind::Lie));
        let taken = ask(&rig, wanted).await.unwrap();
        assert_eq!(
            launch(&taken),
            Launch::Warm,
            "the second member, because the first one's limits did not come on"
        );
        rig.settle().await;
        assert_eq!(rig.check_settled("in the end"), 3);
        assert!(rig.members().is_empty());
    });
}

#[test]
fn another_snapshot_is_an_ordinary_create() {
    on_paused_time(async {
        let rig = with_pool(1, |_| {}).await;
        let mut wanted = request("a");
        wanted.snapshot = Some("v2".parse().unwrap());
        let made = ask(&rig, wanted).await.unwrap();
        assert_eq!((launch(&made), made.clone.snapshot.unwrap().as_str()), (Launch::Cold, "v2"));
        assert_eq!(rig.members().len(), 1);
    });
}

#[test]
fn a_member_can_be_requested_by_name() {
    on_paused_time(async {
        let rig = with_pool(2, |_| {}).await;
        let [first, second] = rig.members().try_into().unwrap();
        let mut wanted = request("a");
        wanted.name = Some(second.clone());
        let taken = ask(&rig, wanted).await.unwrap();
        assert_eq!((launch(&taken), taken.clone.name), (Launch::Warm, second));
        let mut wanted = request("b");
        (wanted.name, wanted.snapshot) = (Some(first.clone()), Some("v2".parse().unwrap()));
        let made = ask(&rig, wanted).await.unwrap();
        assert_eq!((launch(&made), made.clone.name), (Launch::Cold, first), "the member made room");
        rig.engine.reconcile_now().await;
        assert_eq!(rig.check_settled("both by name"), 2);
    });
}

#[test]
fn a_member_is_evicted_when_a_caller_needs_its_slot() {
    on_paused_time(async {
        let rig = with_pool(2, |config| config.server.max_clones = 3).await;
        let other = |id: &str| {
            let mut wanted = request(id);
            wanted.snapshot = Some("v2".parse().unwrap());
            wanted
        };
        for id in ["a", "b", "c"] {
            assert_eq!(launch(&ask(&rig, other(id)).await.unwrap()), Launch::Cold);
            rig.refill().await;
            let all = rig.list().len();
            assert!(all <= 3, "{all} clones");
        }
        assert_eq!(ask(&rig, other("d")).await.unwrap_err().code(), ErrorCode::HostFull);
        assert!(rig.members().is_empty());
        rig.engine.reconcile_now().await;
        assert_eq!(rig.check_settled("full of others' clones"), 3);
    });
}

#[test]
fn the_pool_never_uses_the_last_slot() {
    on_paused_time(async {
        let rig = with_pool(2, |config| config.pool.last_slot = 3).await;
        assert_eq!(rig.members().len(), 2);
        for id in ["a", "b", "c"] {
            let mut wanted = request(id);
            wanted.snapshot = Some("v2".parse().unwrap());
            ask(&rig, wanted).await.unwrap_or_else(|error| panic!("{id}: {error:?}"));
            rig.refill().await;
        }
        assert_eq!(rig.list().values().filter(|clone| clone.state == CloneState::Ready).count(), 3);
    });
}

#[test]
fn caps_count_bound_clones_and_hold_for_concurrent_creates() {
    on_paused_time(async {
        let rig = with_pool(3, |config| config.server.max_clones_per_tenant = 1).await;
        rig.host.set_latency(Duration::from_millis(10));
        let wanted = |id: &str| {
            let mut wanted = request(id);
            wanted.tenant = Some("acme".parse().unwrap());
            wanted
        };
        let (one, two) = tokio::join!(ask(&rig, wanted("a")), ask(&rig, wanted("b")));
        let refused = [one.as_ref().err(), two.as_ref().err()].into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(refused.iter().map(|error| error.code()).collect::<Vec<_>>(), [ErrorCode::TenantFull]);
        assert_eq!(rig.members().len(), 2);
    });
}

#[test]
fn members_that_are_too_old_are_replaced() {
    on_paused_time(async {
        let rig = with_pool(1, |config| config.pool.max_age_seconds = 100).await;
        let old = rig.list().into_values().next().unwrap();
        rig.clock.advance(Duration::from_secs(101));
        assert_eq!(
            launch(&rig.create("a").await.unwrap()),
            Launch::Cold,
            "too old, and the timer has not run"
        );
        rig.engine.reconcile_now().await;
        rig.refill().await;
        let new = rig.list().into_values().find(|clone| clone.state == CloneState::Pooled).unwrap();
        assert_ne!(new.clone_id, old.clone_id);
        assert_eq!(rig.engine.status().pool.unwrap().drained, 1);
    });
}

#[test]
fn callers_take_precedence_over_the_refill() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.pool.size = 1).await;
        rig.host.set_latency(Duration::from_millis(10));
        // A member whose create begins while a caller waits gets its record, and nothing else until the caller is served.
        let refill = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            rig.refill().await;
        };
        let seen = || (rig.engine.status().pool.unwrap().refilling, rig.host.ours());
        let create = async {
            let made = rig.create("a").await.unwrap();
            let (refilling, ours) = seen();
            assert!(refilling && ours.iter().all(|it| it.contains("browsertask001")), "{ours:?}");
            made
        };
        let (made, ()) = tokio::join!(create, refill);
        assert_eq!((launch(&made), rig.members().len()), (Launch::Cold, 1));

        let taken = rig.create("b").await.unwrap();
        assert_eq!(launch(&taken), Launch::Warm);
        let destroy = async {
            rig.engine.destroy(&caller(1000), params(&taken.clone), None).await.unwrap();
            let (refilling, ours) = seen();
            assert!(refilling && ours.iter().all(|it| it.contains("browsertask001")), "{ours:?}");
        };
        let refill = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            rig.refill().await;
        };
        tokio::join!(destroy, refill);
        assert_eq!(rig.members().len(), 1);
    });
}

#[test]
fn the_refill_pauses_after_a_create() {
    on_paused_time(async {
        let rig = Rig::with(|config| config.pool.size = 2).await;
        rig.refill().await;
        let clone = rig.create("a").await.unwrap().clone;
        tokio::spawn(rig.engine.clone().run_pool());
        let rest = |milliseconds| tokio::time::sleep(Duration::from_millis(milliseconds));
        let busy = || (rig.members().len(), rig.engine.status().pool.unwrap().refilling);
        rest(150).await;
        assert_eq!(busy(), (1, false), "the create was a moment ago");
        rig.engine.destroy(&caller(1000), params(&clone), None).await.unwrap();
        rest(150).await;
        assert_eq!(busy(), (1, false), "so was the destroy");
        rest(1000).await;
        assert_eq!(busy(), (2, false), "it is made up for");
        rig.engine.shutdown().await;
    });
}

#[test]
fn the_refill_keeps_to_its_share_of_the_time() {
    on_paused_time(async {
        let rig = Rig::with(|config| {
            config.pool.size = 3;
            // Without limits that slow the new member down, the pauses have to keep the share.
            config.clone_limits.cpu_percent = 1;
            config.pool.refill_percent = 50;
        })
        .await;
        rig.host.set_latency(Duration::from_millis(10));
        tokio::spawn(rig.engine.clone().run_pool());
        while rig.members().len() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let taken = rig.create("a").await.unwrap();
        assert_eq!(launch(&taken), Launch::Warm);
        while rig.members().len() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(rig.engine.shutdown().await, 0);
        assert!(rig.members().is_empty());
    });
}

#[test]
fn the_timer_thaws_clones_and_freezes_members() {
    on_paused_time(async {
        let rig = with_pool(1, |_| {}).await;
        let clone = rig.create("a").await.unwrap().clone;
        rig.refill().await;
        let number = |name: &str| rig.engine.slots().slot_of_name(name).unwrap();
        rig.host.set_frozen(number(clone.name.as_str()), true);
        rig.host.set_frozen(number(rig.members()[0].as_str()), false);
        rig.engine.reconcile_now().await;
        assert_eq!(rig.check_settled("repaired"), 1);
    });
}

#[test]
fn members_have_no_owner() {
    on_paused_time(async {
        let rig = with_pool(1, |_| {}).await;
        let shown = rig.list().into_values().next().unwrap();
        assert_eq!(shown.state, CloneState::Pooled);
        let theirs = rig.engine.list(&caller(1000), &Default::default()).clones.remove(0);
        assert_eq!((theirs.clone_id, theirs.endpoint, theirs.cdp_endpoint), (None, None, None));
        let denied = rig.engine.destroy(&caller(1000), params(&shown), None).await.unwrap_err();
        assert_eq!(denied.code(), ErrorCode::Denied);
        let told = rig.reap().await.unwrap();
        assert!(told.reaped.is_empty() && told.kept[0].why.contains("warm pool"), "{told:?}");
        rig.engine.destroy(&operator(), params(&shown), None).await.unwrap();
        assert!(rig.host.ours().is_empty());
    });
}

#[test]
fn a_member_whose_record_cannot_be_written_is_not_bound() {
    on_paused_time(async {
        let mut rig = with_pool(1, |_| {}).await;
        rig.fail_record_writes();
        let error = rig.create("a").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::StateUnavailable);
        // The record on disk is older than the drain; the next start finds no objects of that member.
        rig.settle().await;
        rig.restart().await;
        rig.settle().await;
        rig.refill().await;
        let taken = rig.create("a").await.unwrap();
        assert!(!taken.renewed, "the request was not used up");
        rig.settle().await;
        assert_eq!(rig.check_settled("in the end"), 1);
    });
}
