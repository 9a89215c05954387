//! Random histories of a host: calls, crashes, reboots, faults, changes by an operator and firewall reloads in any order.
//! The promises are checked after every event, and at the end the host must be clean.
#![allow(clippy::unwrap_used)]

mod rig;

use hostd::api::{
    CloneId, CloneInfo, CloneName, CloneState, CreateResult, ErrorCode, Flavor, ReapParams, RpcError,
};
use hostd::clock::Clock;
use hostd::host::fake::{Fault, FaultKind, HostCall, When};
use hostd::host::{HostErrorKind, Part};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rig::{Rig, SLOTS, caller, force_unmount_params, operator, params, request, slot};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a caller does.
#[derive(Debug, Clone)]
enum Call {
    /// One of a few request ids, so that repeats and conflicts happen, for some seconds.
    Create {
        id: u8,
        uid: u8,
        seconds: u16,
    },
    /// The n-th clone that is known.
    Destroy(u8),
    /// The n-th known clone's name with another identity.
    DestroyOther(u8),
    ForceUnmount(u8),
    Reap,
}

/// What happens to the host.
#[derive(Debug, Clone)]
enum Event {
    Calls(Vec<Call>),
    /// The process dies at the n-th call to the host while this runs, and starts again.
    CrashDuring(u8, bool, Call),
    Restart,
    Reboot,
    Tick,
    Advance(u16),
    WallClockJumps(i32),
    Fault(usize, FaultKind, u8),
    LoseTable,
    ReloadFirewall,
    RestartFirewall,
    KillJail(u16),
    RemoveInterface(u16),
    RemoveLimits(u16),
    StrayMember(u16),
    StrayInterface(u16),
    Busy(u16, u8),
    StickMount(u16, bool),
    Dying(u16, u8),
    IgnoreTerm(u16),
    ForgetMark(u16),
    PlantForeign(u16, u8),
    LoseState,
    TearRecord(u16),
    Refill,
    RemakeTemplate,
    KillBrowser(u16),
    SetFrozen(u16, bool),
    /// From now on no record can be written, or all can be again. After a restart all can be written.
    FullDisk(bool),
}

fn any_call() -> impl Strategy<Value = Call> {
    prop_oneof![
        5 => (0..8u8, 0..2u8, prop_oneof![Just(30), Just(600), Just(1800)])
            .prop_map(|(id, uid, seconds)| Call::Create { id, uid, seconds }),
        3 => (0..8u8).prop_map(Call::Destroy),
        1 => (0..8u8).prop_map(Call::DestroyOther),
        1 => (0..8u8).prop_map(Call::ForceUnmount),
        2 => Just(Call::Reap),
    ]
}

fn any_fault() -> impl Strategy<Value = FaultKind> {
    prop_oneof![
        Just(FaultKind::FailBefore(HostErrorKind::Failed)),
        Just(FaultKind::FailBefore(HostErrorKind::Busy)),
        Just(FaultKind::FailBefore(HostErrorKind::NoSpace)),
        Just(FaultKind::FailAfter(HostErrorKind::Failed)),
        Just(FaultKind::Lie),
        Just(FaultKind::Half),
        Just(FaultKind::Hang),
        Just(FaultKind::HangAfter),
        Just(FaultKind::Twice),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let slots = || 1..=SLOTS;
    prop_oneof![
        12 => prop::collection::vec(any_call(), 1..4).prop_map(Event::Calls),
        3 => (1..40u8, any::<bool>(), any_call()).prop_map(|(n, after, call)| Event::CrashDuring(n, after, call)),
        1 => Just(Event::Restart),
        1 => Just(Event::Reboot),
        4 => Just(Event::Tick),
        3 => prop_oneof![1..100u16, 500..2000u16].prop_map(Event::Advance),
        1 => (-100_000..100_000i32).prop_map(Event::WallClockJumps),
        3 => (0..HostCall::ALL.len(), any_fault(), 1..4u8).prop_map(|(call, kind, times)| Event::Fault(call, kind, times)),
        1 => Just(Event::LoseTable),
        1 => Just(Event::ReloadFirewall),
        1 => Just(Event::RestartFirewall),
        1 => slots().prop_map(Event::KillJail),
        1 => slots().prop_map(Event::RemoveInterface),
        1 => slots().prop_map(Event::RemoveLimits),
        1 => slots().prop_map(Event::StrayMember),
        1 => slots().prop_map(Event::StrayInterface),
        1 => (slots(), 1..30u8).prop_map(|(slot, tries)| Event::Busy(slot, tries)),
        1 => (slots(), any::<bool>()).prop_map(|(slot, force)| Event::StickMount(slot, force)),
        1 => (slots(), 1..9u8).prop_map(|(slot, polls)| Event::Dying(slot, polls)),
        1 => slots().prop_map(Event::IgnoreTerm),
        1 => slots().prop_map(Event::ForgetMark),
        1 => (slots(), 0..3u8).prop_map(|(slot, part)| Event::PlantForeign(slot, part)),
        1 => Just(Event::LoseState),
        1 => slots().prop_map(Event::TearRecord),
    ]
}

/// What also happens to a host with a warm pool.
fn any_event_with_pool() -> impl Strategy<Value = Event> {
    let slots = || 1..=SLOTS;
    prop_oneof![
        40 => any_event(),
        12 => Just(Event::Refill),
        1 => Just(Event::RemakeTemplate),
        2 => slots().prop_map(Event::KillBrowser),
        2 => (slots(), any::<bool>()).prop_map(|(slot, frozen)| Event::SetFrozen(slot, frozen)),
    ]
}

/// What also happens to a host whose disk is full at times.
fn any_event_with_full_disk() -> impl Strategy<Value = Event> {
    let late =
        prop_oneof![Just(8), Just(40)].prop_map(|seconds| FaultKind::Late(Duration::from_secs(seconds)));
    prop_oneof![
        40 => any_event(),
        5 => any::<bool>().prop_map(Event::FullDisk),
        3 => (0..HostCall::ALL.len(), late, 1..3u8).prop_map(|(call, kind, times)| Event::Fault(call, kind, times)),
    ]
}

/// A clone that a caller got.
struct Promise {
    name: CloneName,
    /// Its deadline on the test's clock.
    until: Duration,
}

/// What the test knows about the host's promises.
struct World {
    rig: Rig,
    /// Clones that a caller got and that must not be removed before their deadline.
    promised: BTreeMap<CloneId, Promise>,
    /// Clones that a caller asked to destroy. Nothing is promised for them any more.
    given_up: BTreeSet<CloneId>,
    foreign: BTreeSet<String>,
}

impl World {
    async fn apply(&mut self, event: Event) {
        let rig = &self.rig;
        match event {
            Event::Calls(calls) => self.call_all(calls, false).await,
            Event::CrashDuring(n, after, call) => {
                rig.host.crash_at_call(u64::from(n), if after { When::After } else { When::Before });
                self.call_all(vec![call], true).await;
                let engine = self.rig.engine.clone();
                let _ = tokio::spawn(async move { engine.reconcile_now().await }).await;
                // It has occurred by now, or is not going to.
                self.rig.host.crash_at_call(u64::MAX >> 1, When::After);
                self.rig.restart().await;
                self.rig.engine.reconcile_now().await;
            }
            Event::Restart => self.rig.restart().await,
            Event::Reboot => {
                self.rig.reboot().await;
                // Nothing that ran has survived, and foreign jails and interfaces are gone with the rest.
                self.promised.clear();
                self.foreign.retain(|object| object.starts_with("storage"));
            }
            Event::Tick => rig.engine.reconcile_now().await,
            Event::Advance(seconds) => rig.clock.advance(Duration::from_secs(u64::from(seconds))),
            Event::WallClockJumps(seconds) => {
                let wall = rig.clock.now().wall;
                let jump = Duration::from_secs(u64::from(seconds.unsigned_abs()));
                rig.clock.set_wall(if seconds < 0 { wall - jump } else { wall + jump });
            }
            Event::Fault(call, kind, times) => {
                rig.host.inject(Fault {
                    call: HostCall::ALL[call],
                    slot: None,
                    times: u32::from(times),
                    kind,
                });
            }
            Event::LoseTable => rig.host.lose_table(),
            Event::ReloadFirewall => rig.host.reload_firewall(),
            Event::RestartFirewall => rig.host.flush_rules(),
            Event::KillJail(number) => rig.host.kill_jail(slot(number)),
            Event::RemoveInterface(number) => rig.host.remove_interface(slot(number)),
            Event::RemoveLimits(number) => rig.host.remove_limits_of(slot(number)),
            Event::StrayMember(number) => {
                rig.host.add_stray_member(rig.engine.slots().names(slot(number)).ip)
            }
            Event::StrayInterface(number) => rig.host.add_stray_interface(slot(number)),
            Event::Busy(number, tries) => rig.host.make_busy(slot(number), u32::from(tries)),
            Event::StickMount(number, until_force) => rig.host.stick_mount(slot(number), until_force),
            Event::Dying(number, polls) => rig.host.make_dying(slot(number), u32::from(polls)),
            Event::IgnoreTerm(number) => rig.host.ignore_term(slot(number)),
            Event::ForgetMark(number) => rig.host.forget_mark(slot(number)),
            Event::PlantForeign(number, part) => {
                let part = [Part::Storage, Part::Jail, Part::Network][usize::from(part)];
                if rig.host.plant_foreign(slot(number), part) {
                    self.foreign.insert(format!("{} {}", part.word(), rig.engine.slots().name(slot(number))));
                }
            }
            Event::Refill => {
                let _ = rig.engine.refill_now().await;
            }
            Event::RemakeTemplate => rig.host.remake_template(&rig.config.host.snapshot),
            Event::KillBrowser(number) => rig.host.kill_browser(slot(number)),
            Event::SetFrozen(number, frozen) => rig.host.set_frozen(slot(number), frozen),
            Event::FullDisk(true) => rig.fail_record_writes(),
            Event::FullDisk(false) => rig.allow_record_writes(),
            Event::LoseState => {
                std::fs::remove_dir_all(rig.config.paths.state.join("records")).unwrap();
                self.promised.clear();
                self.rig.restart().await;
            }
            Event::TearRecord(number) => {
                let path = rig.config.paths.state.join(format!("records/slot-{}.json", slot(number)));
                if let Ok(text) = std::fs::read(&path) {
                    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
                    let name = rig.engine.slots().name(slot(number));
                    self.promised.retain(|_, promise| promise.name != name);
                }
                self.rig.restart().await;
            }
        }
    }

    /// Several calls at once.
    async fn call_all(&mut self, calls: Vec<Call>, may_die: bool) {
        // Whatever is asked to be destroyed in this round is no longer promised.
        let list: Vec<CloneInfo> = self.rig.list().into_values().collect();
        let nth = |n: u8| (!list.is_empty()).then(|| list[usize::from(n) % list.len()].clone());
        let mut tasks = Vec::new();
        for call in calls {
            let engine = self.rig.engine.clone();
            match call {
                Call::Create { id, uid, seconds } => {
                    let mut wanted = request(&format!("request-{id}"));
                    wanted.deadline_seconds = Some(u64::from(seconds));
                    wanted.tenant = Some(format!("tenant-{}", id % 3).parse().unwrap());
                    let task = async move {
                        Outcome::Created(engine.create(&caller(1000 + u32::from(uid)), wanted, None).await)
                    };
                    tasks.push(tokio::spawn(task));
                }
                Call::Destroy(n) => {
                    let Some(clone) = nth(n).filter(|clone| clone.clone_id.is_some()) else { continue };
                    let id = clone.clone_id.clone().unwrap();
                    self.promised.remove(&id);
                    self.given_up.insert(id);
                    let task = async move {
                        let result = engine.destroy(&operator(), params(&clone), None).await.map(drop);
                        Outcome::Destroyed(clone, result)
                    };
                    tasks.push(tokio::spawn(task));
                }
                Call::DestroyOther(n) => {
                    let Some(mut clone) = nth(n) else { continue };
                    clone.clone_id = Some(CloneId::random());
                    let task = async move {
                        let result = engine.destroy(&operator(), params(&clone), None).await;
                        Outcome::Fenced(result.map(|result| result.already_gone))
                    };
                    tasks.push(tokio::spawn(task));
                }
                Call::ForceUnmount(n) => {
                    let Some(clone) = nth(n).filter(|clone| clone.clone_id.is_some()) else { continue };
                    let was_ready = clone.state == CloneState::Ready;
                    let task = async move {
                        let result =
                            engine.force_unmount(&operator(), force_unmount_params(&clone), None).await;
                        Outcome::Unmounted(was_ready, result.map(drop))
                    };
                    tasks.push(tokio::spawn(task));
                }
                Call::Reap => {
                    let task = async move {
                        let _ = engine.reap(&operator(), ReapParams::default(), None).await;
                        Outcome::Reaped
                    };
                    tasks.push(tokio::spawn(task));
                }
            }
        }
        let alone = tasks.len() == 1;
        for task in tasks {
            match task.await {
                Ok(outcome) => self.judge(outcome, may_die, alone),
                Err(died) => assert!(may_die, "a call died: {died}"),
            }
        }
    }

    fn judge(&mut self, outcome: Outcome, may_die: bool, alone: bool) {
        match outcome {
            Outcome::Created(Ok(result)) => {
                let id = result.clone.clone_id.clone().unwrap();
                let left = Duration::from_secs(result.clone.deadline_seconds_left.unwrap());
                let until = self.rig.clock.now().mono + left;
                if !self.given_up.contains(&id) {
                    self.promised.insert(id, Promise { name: result.clone.name, until });
                }
            }
            Outcome::Created(Err(_)) | Outcome::Reaped => {}
            Outcome::Destroyed(clone, Ok(())) if alone && !may_die => {
                let left = self.rig.list().remove(&clone.name).filter(|left| left.clone_id == clone.clone_id);
                let gone = left.is_none_or(|left| left.state == CloneState::Quarantined);
                assert!(gone, "{} was destroyed and is still there", clone.name);
            }
            Outcome::Destroyed(clone, Err(error)) if alone && !may_die => {
                // An incomplete destroy must be recorded, so that the reaper continues it.
                if error.code() == ErrorCode::Incomplete {
                    let left =
                        self.rig.list().remove(&clone.name).expect("an incomplete destroy is recorded");
                    assert!(
                        matches!(left.state, CloneState::Incomplete | CloneState::Destroying),
                        "{left:?}"
                    );
                    assert!(error.data.retryable);
                }
            }
            Outcome::Destroyed(..) => {}
            Outcome::Fenced(Ok(already_gone)) => {
                assert!(already_gone, "a made-up identity destroyed something")
            }
            Outcome::Fenced(Err(error)) => {
                let known = [
                    ErrorCode::WrongClone,
                    ErrorCode::StepFailed,
                    ErrorCode::Timeout,
                    ErrorCode::DiskFull,
                    ErrorCode::Internal,
                ];
                assert!(known.contains(&error.code()), "{error:?}");
            }
            Outcome::Unmounted(was_ready, result) if alone && was_ready && !may_die => {
                assert!(result.is_err(), "a ready clone was force-unmounted");
            }
            Outcome::Unmounted(..) => {}
        }
        self.check();
    }

    /// What holds at every moment.
    fn check(&self) {
        let list = self.rig.list();
        let now = self.rig.clock.now();
        let addresses: BTreeSet<_> = list.values().map(|clone| clone.ip).collect();
        assert_eq!(addresses.len(), list.len(), "two clones share an address");
        let ids: Vec<&CloneId> = list.values().filter_map(|clone| clone.clone_id.as_ref()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "two clones share an identity");
        for (id, promised) in &self.promised {
            let there = list.get(&promised.name).filter(|clone| clone.clone_id.as_ref() == Some(id));
            let alive =
                there.is_some_and(|clone| matches!(clone.state, CloneState::Ready | CloneState::Broken));
            let over = promised.until <= now.mono;
            assert!(alive || over, "{} was taken before its deadline: {there:?}", promised.name);
        }
        assert_eq!(self.rig.host.foreign(), self.foreign, "something foreign was touched");
    }

    /// After a turn of the timer on a host without faults, no clone is past its deadline.
    fn check_deadlines(&self) {
        let list = self.rig.list();
        let now = self.rig.clock.now().mono;
        for (id, promised) in self.promised.iter().filter(|(_, promised)| promised.until <= now) {
            let there = list.get(&promised.name).filter(|clone| clone.clone_id.as_ref() == Some(id));
            let alive =
                there.is_some_and(|clone| matches!(clone.state, CloneState::Ready | CloneState::Broken));
            assert!(!alive, "{} outlives its deadline: {there:?}", promised.name);
        }
    }

    /// What holds after the host was inspected.
    fn check_after_tick(&self) {
        let list = self.rig.list();
        for object in self.rig.host.ours() {
            let known = object.starts_with("aside ")
                || list.keys().any(|name| object.split([' ', '/']).any(|word| word == name.as_str()));
            assert!(known, "{object} is on the host and nobody knows it: {list:?}");
        }
    }

    /// Everything is removed, and nothing may be left.
    async fn end(&mut self) {
        if self.rig.config.pool.size > 0 {
            self.rig.host.clear_faults();
            self.rig.without_pool();
            self.rig.restart().await;
        }
        let rig = &self.rig;
        rig.allow_record_writes();
        rig.host.clear_faults();
        rig.host.restore_rules();
        for number in 1..=SLOTS {
            rig.host.unstick_mount(slot(number));
            rig.host.make_busy(slot(number), 0);
        }
        for _ in 0..6 {
            rig.clock.advance(Duration::from_secs(2000));
            rig.engine.reconcile_now().await;
        }
        // Orphans that the alarm keeps are reaped one by one, by name.
        for name in rig.list().into_keys() {
            let wanted = ReapParams { name: Some(name), ..ReapParams::default() };
            rig.engine.reap(&operator(), wanted, None).await.unwrap();
        }
        rig.settle().await;
        // Every turn of the timer tries again to destroy what was moved aside.
        for _ in 0..30 {
            rig.engine.reconcile_now().await;
        }
        // Storage under a foreign jail stays and stays recorded until that jail is stopped. Unmarked objects beside
        // something foreign, or mounted below it, are not provably ours.
        let held = |name: &str| self.foreign.contains(&format!("jail {name}"));
        let foreign = |name: &str| self.foreign.iter().any(|object| object.ends_with(name));
        let mut left = rig.host.ours();
        left.retain(|object| match object.split_once(' ') {
            Some(("storage" | "network" | "limits", name)) => !foreign(name),
            Some(("mount", path)) => !path.split_once('/').is_some_and(|(name, _)| foreign(name)),
            _ => true,
        });
        assert!(left.is_empty(), "left at the end: {left:?}\nlist: {:?}", rig.list());
        for clone in rig.list().values() {
            let held = held(clone.name.as_str()) && clone.state == CloneState::Incomplete;
            assert!(held || clone.state == CloneState::Foreign, "{clone:?}");
        }
        assert_eq!(rig.host.foreign(), self.foreign, "something foreign was touched");
    }
}

enum Outcome {
    Created(Result<CreateResult, RpcError>),
    Destroyed(CloneInfo, Result<(), RpcError>),
    Fenced(Result<bool, RpcError>),
    Unmounted(bool, Result<(), RpcError>),
    Reaped,
}

fn run(events: Vec<Event>, pool: u16) {
    rig::runtime().block_on(async {
        let rig = Rig::with(|config| {
            config.pool.size = pool;
            config.pool.flavors = vec![Flavor::Ready, Flavor::Basic];
        })
        .await;
        let mut world =
            World { rig, promised: BTreeMap::new(), given_up: BTreeSet::new(), foreign: BTreeSet::new() };
        for event in events {
            // An inspection is not used for a busy slot, such as one whose unfit member is being drained.
            let looks = matches!(event, Event::Tick) && world.rig.engine.status().operations == 0;
            let obeys = matches!(event, Event::Tick) && !world.rig.host.has_faults();
            world.apply(event).await;
            world.check();
            if obeys {
                world.check_deadlines();
            }
            if looks && world.rig.engine.status().alarms.is_empty() {
                world.check_after_tick();
            }
        }
        world.end().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000),
        max_shrink_iters: 4000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/state_machine.regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_host_keeps_its_promises(events in prop::collection::vec(any_event(), 1..50)) {
        run(events, 0);
    }

    #[test]
    fn a_host_with_a_full_disk_keeps_its_promises(events in prop::collection::vec(any_event_with_full_disk(), 1..50)) {
        run(events, 0);
    }

    #[test]
    fn a_host_with_a_warm_pool_keeps_its_promises(events in prop::collection::vec(any_event_with_pool(), 1..60)) {
        run(events, 1);
    }
}
