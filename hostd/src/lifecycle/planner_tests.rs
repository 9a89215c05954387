//! The rules as a table: for every kind of slot, what is decided and why.

use super::*;
use crate::api::{CloneSecret, Flavor, Launch, Limits, SnapshotName};
use crate::clock::Stamp;
use crate::config::PoolConfig;
use crate::host::{Identity, ObservedJail, ObservedNetwork, ObservedStorage};
use std::time::SystemTime;

const GRACE: Duration = Duration::from_secs(600);
const QUARANTINE: Duration = Duration::from_secs(60);
const LONGEST_LEASE: Duration = Duration::from_secs(86_400);

fn slot(number: u16) -> Slot {
    Slot::new(number).unwrap()
}

fn id(digit: char) -> CloneId {
    CloneId::try_from(digit.to_string().repeat(32)).unwrap()
}

fn limits() -> Limits {
    Limits { memory_bytes: Some(1 << 30), ..Limits::default() }
}

fn snapshot() -> SnapshotName {
    "default".parse().unwrap()
}

/// A host in which nothing is wrong, to be changed by each test.
struct Host {
    pool: Slots,
    records: BTreeMap<Slot, Record>,
    unreadable: BTreeMap<Slot, String>,
    seen: Inventory,
    seen_for: BTreeMap<Slot, Duration>,
    working: BTreeSet<Slot>,
    target: Option<WarmPoolTarget>,
    now: Moment,
    rules: Rules,
}

impl Host {
    fn new() -> Host {
        let pool = Slots::new(&PoolConfig { last_slot: 50, ..PoolConfig::default() }).unwrap();
        let now = Moment {
            boot: "this boot".into(),
            mono: Duration::from_secs(10_000),
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        };
        let seen = Inventory { clones: BTreeMap::new(), aside: BTreeSet::new(), egress: EgressHealth::Ok };
        Host {
            pool,
            records: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            seen,
            seen_for: BTreeMap::new(),
            working: BTreeSet::new(),
            target: None,
            now,
            rules: Rules {
                orphan_grace: GRACE,
                quarantine: QUARANTINE,
                longest_lease: LONGEST_LEASE,
                reap_cap: 10,
            },
        }
    }

    fn stamp(&self, seconds_from_now: i64) -> Stamp {
        let mono_ms = u64::try_from(10_000_000 + seconds_from_now * 1000).unwrap();
        Stamp { boot: self.now.boot.clone(), mono_ms, wall_ms: 0 }
    }

    fn record(&mut self, number: u16, phase: Phase) -> &mut Record {
        let (created, deadline) = (self.stamp(-100), self.stamp(100));
        let record = Record {
            version: Record::VERSION,
            slot: slot(number),
            clone_id: id('a'),
            secret: Some(CloneSecret::random()),
            request_id: Some("request".parse().unwrap()),
            tenant: None,
            owner_uid: Some(7),
            snapshot: snapshot(),
            limits: limits(),
            browser: Default::default(),
            created,
            deadline,
            pool: false,
            phase,
        };
        self.records.insert(slot(number), record);
        self.records.get_mut(&slot(number)).unwrap()
    }

    fn show(&mut self, number: u16, seen: ObservedClone) -> &mut ObservedClone {
        self.seen.clones.insert(slot(number), seen);
        self.seen.clones.get_mut(&slot(number)).unwrap()
    }

    fn plan(&self) -> ReconcilePlan {
        let facts = Facts {
            slots: &self.pool,
            records: &self.records,
            unreadable: &self.unreadable,
            seen: &self.seen,
            seen_for: &self.seen_for,
            working: &self.working,
            target: self.target.as_ref(),
            now: &self.now,
        };
        reconcile(&facts, &self.rules)
    }

    #[track_caller]
    fn decides(&self, number: u16, state: CloneState, decision: Decision, why: &str) -> ReconcilePlan {
        let plan = self.plan();
        let assessment = &plan.assessments[&slot(number)];
        assert_eq!((assessment.state, assessment.decision), (state, decision), "{}", assessment.why);
        assert!(assessment.why.contains(why), "{:?} does not say {why:?}", assessment.why);
        assert_eq!(plan.release.contains(&slot(number)), decision == Decision::Release);
        assert_eq!(
            plan.reap.iter().any(|(taken, _)| *taken == slot(number)),
            matches!(decision, Decision::Reap(_))
        );
        plan
    }
}

fn ready() -> Phase {
    Phase::Ready { endpoint: "http://x".into(), cdp_endpoint: None, stages: Vec::new(), launch: Launch::Cold }
}

fn destroying(attempts: u32, errors: &[&str]) -> Phase {
    let errors = errors.iter().map(|error| (*error).to_owned()).collect();
    Phase::Destroying { why: "asked for".into(), was_ready: true, attempts, errors }
}

/// A clone as it should be.
fn whole(owner: CloneId) -> ObservedClone {
    ObservedClone {
        storage: Some(ObservedStorage {
            identity: Identity::Clone(owner.clone()),
            snapshot: Some(snapshot()),
            mounted: true,
            age: Some(Duration::from_secs(100)),
        }),
        mounts: BTreeSet::from(["dev".to_owned()]),
        oom_kills: 0,
        limits: Some(limits()),
        network: Some(ObservedNetwork { identity: Identity::Clone(owner.clone()), complete: true }),
        egress: true,
        connections: true,
        jail: Some(ObservedJail { identity: Identity::Clone(owner), dying: false }),
        frozen: false,
        processes: BTreeSet::from([77]),
        service_ready: false,
    }
}

fn dying() -> ObservedClone {
    let jail = ObservedJail { identity: Identity::Unmarked, dying: true };
    ObservedClone { jail: Some(jail), ..ObservedClone::default() }
}

#[test]
fn an_empty_host_needs_nothing() {
    let plan = Host::new().plan();
    assert_eq!(
        plan,
        ReconcilePlan {
            assessments: BTreeMap::new(),
            reap: vec![],
            release: vec![],
            repairs: vec![],
            alarm: None
        }
    );
}

#[test]
fn a_ready_clone_within_its_deadline_is_kept() {
    let mut host = Host::new();
    host.record(1, ready());
    host.show(1, whole(id('a')));
    let plan = host.decides(1, CloneState::Ready, Decision::Keep, "within its deadline (100 s left)");
    assert_eq!(plan.repairs, []);
    assert_eq!(plan.assessments[&slot(1)].problem, None);
}

#[test]
fn a_passed_deadline_is_taken_to_the_millisecond() {
    let mut host = Host::new();
    host.record(1, ready());
    host.show(1, whole(id('a')));
    host.records.get_mut(&slot(1)).unwrap().deadline = Stamp { mono_ms: 10_000_001, ..host.stamp(0) };
    host.decides(1, CloneState::Ready, Decision::Keep, "within");
    host.records.get_mut(&slot(1)).unwrap().deadline = host.stamp(0);
    let plan =
        host.decides(1, CloneState::Ready, Decision::Reap(ReapReason::DeadlinePassed), "passed 0 s ago");
    assert_eq!(plan.repairs, [Repair::CutEgress(slot(1))], "it loses the network at once");
    host.records.get_mut(&slot(1)).unwrap().deadline = host.stamp(-30);
    host.decides(1, CloneState::Ready, Decision::Reap(ReapReason::DeadlinePassed), "passed 30 s ago");
}

#[test]
fn the_wall_clock_decides_nothing() {
    let mut host = Host::new();
    host.record(1, ready());
    host.show(1, whole(id('a')));
    for wall in [0, 4_000_000_000] {
        host.now.wall = SystemTime::UNIX_EPOCH + Duration::from_secs(wall);
        host.decides(1, CloneState::Ready, Decision::Keep, "within its deadline");
    }
}

#[test]
fn a_clone_of_another_boot_is_taken() {
    let mut host = Host::new();
    host.record(1, ready());
    host.now.boot = "next boot".into();
    let plan = host.decides(1, CloneState::Broken, Decision::Reap(ReapReason::DeadlinePassed), "restarted");
    assert!(plan.assessments[&slot(1)].problem.is_some());
}

#[test]
fn a_broken_clone_is_its_owners_business_until_its_deadline() {
    type Change = fn(&mut ObservedClone);
    let broken: [(Change, &str); 7] = [
        (|seen| seen.storage = None, "no storage"),
        (|seen| seen.storage.as_mut().unwrap().mounted = false, "not mounted"),
        (|seen| seen.storage.as_mut().unwrap().identity = Identity::Clone(id('b')), "identity bbbb"),
        (|seen| seen.jail = None, "no jail"),
        (|seen| seen.jail.as_mut().unwrap().dying = true, "dying"),
        (|seen| seen.network = None, "no interface"),
        (|seen| seen.network.as_mut().unwrap().complete = false, "half made"),
    ];
    for (change, problem) in broken {
        let mut host = Host::new();
        host.record(1, ready());
        change(host.show(1, whole(id('a'))));
        let plan = host.decides(1, CloneState::Broken, Decision::Keep, "its owner decides");
        assert!(plan.assessments[&slot(1)].problem.as_ref().unwrap().contains(problem), "{problem}");
        assert_eq!(plan.repairs, [Repair::CutEgress(slot(1))], "{problem}: a broken clone has no egress");
    }
}

#[test]
fn a_clone_that_broke_at_its_memory_limit_says_so() {
    let mut host = Host::new();
    host.record(1, ready());
    let seen = host.show(1, whole(id('a')));
    seen.oom_kills = 2;
    host.decides(1, CloneState::Ready, Decision::Keep, "it is ready");
    host.show(1, ObservedClone { jail: None, oom_kills: 2, ..whole(id('a')) });
    let plan = host.decides(1, CloneState::Broken, Decision::Keep, "its owner decides");
    let problem = plan.assessments[&slot(1)].problem.clone().unwrap();
    assert_eq!(problem, "no jail is there; 2 of its processes were ended at its memory limit");
}

#[test]
fn a_broken_clone_past_its_deadline_is_taken_and_its_problem_told() {
    let mut host = Host::new();
    let past = host.stamp(-1);
    host.record(1, ready()).deadline = past;
    host.show(1, whole(id('a'))).jail = None;
    let reap = Decision::Reap(ReapReason::DeadlinePassed);
    let plan = host.decides(1, CloneState::Broken, reap, "passed 1 s ago");
    assert_eq!(plan.assessments[&slot(1)].problem.as_deref(), Some("no jail is there"));
}

#[test]
fn what_others_undo_is_put_back() {
    let mut host = Host::new();
    host.record(1, ready());
    let seen = host.show(1, whole(id('a')));
    (seen.egress, seen.limits) = (false, None);
    let plan = host.decides(1, CloneState::Ready, Decision::Keep, "ready");
    assert_eq!(plan.repairs, [Repair::GrantEgress(slot(1)), Repair::SetLimits(slot(1))]);

    host.show(1, whole(id('a'))).limits = Some(Limits::default());
    assert_eq!(host.plan().repairs, [Repair::SetLimits(slot(1))], "other limits are as bad as none");

    host.seen.egress = EgressHealth::TableMissing;
    host.show(1, whole(id('a'))).egress = false;
    assert_eq!(
        host.plan().repairs,
        [Repair::Firewall],
        "no member is added to a table that no rule refers to"
    );

    host.seen.egress = EgressHealth::Ok;
    host.working.insert(slot(1));
    assert_eq!(host.plan().repairs, [], "what somebody works on is left to them");
}

#[test]
fn strangers_in_the_table_are_cut() {
    let mut host = Host::new();
    host.show(4, ObservedClone { egress: true, ..ObservedClone::default() });
    host.show(5, ObservedClone { connections: true, ..ObservedClone::default() });
    host.show(6, ObservedClone { limits: Some(limits()), ..ObservedClone::default() });
    let plan = host.decides(4, CloneState::Orphan, Decision::Keep, "grace");
    assert_eq!(plan.repairs, [Repair::CutEgress(slot(4)), Repair::CutEgress(slot(5))]);
}

#[test]
fn storage_that_was_moved_aside_is_tried_again() {
    let mut host = Host::new();
    host.seen.aside.insert(id('c'));
    assert_eq!(host.plan().repairs, [Repair::DestroyAside(id('c'))]);
}

#[test]
fn unfinished_work_is_taken_unless_somebody_works_on_it() {
    let mut host = Host::new();
    host.record(1, Phase::Creating);
    host.record(2, Phase::Creating);
    host.record(3, destroying(0, &[]));
    host.record(4, destroying(2, &["busy", "stuck"]));
    let create = Decision::Reap(ReapReason::CreateUnfinished);
    let destroy = Decision::Reap(ReapReason::DestroyUnfinished);
    host.decides(1, CloneState::Creating, create, "was not finished");
    host.decides(2, CloneState::Creating, create, "nobody works on it");
    host.decides(3, CloneState::Destroying, destroy, "has not been tried yet");
    let plan = host.decides(4, CloneState::Incomplete, destroy, "failed 2 times, last with: busy; stuck");
    assert_eq!(plan.assessments[&slot(4)].problem.as_deref(), Some("busy; stuck"));
    assert_eq!(plan.assessments[&slot(3)].problem, None);
    assert_eq!(
        plan.reap.iter().map(|(slot, _)| slot.number()).collect::<Vec<_>>(),
        [3, 4, 1, 2],
        "destroys before creates, by slot"
    );
    host.working.extend([slot(1), slot(3)]);
    host.decides(1, CloneState::Creating, Decision::Keep, "under way");
    host.decides(3, CloneState::Destroying, Decision::Keep, "under way");
}

#[test]
fn a_quarantine_ends_by_time_and_absence() {
    let mut host = Host::new();
    let quarantined = |freed| Phase::Quarantined { freed, was_ready: true };
    let freed = host.stamp(-59);
    host.record(1, quarantined(freed));
    host.decides(1, CloneState::Quarantined, Decision::Keep, "another 1 s");
    let freed = host.stamp(-60);
    host.record(1, quarantined(freed));
    host.decides(1, CloneState::Quarantined, Decision::Release, "over");

    host.show(1, dying());
    host.decides(1, CloneState::Quarantined, Decision::Keep, "still dying");

    let stray = ObservedNetwork { identity: Identity::Unmarked, complete: false };
    host.show(1, ObservedClone { network: Some(stray), ..ObservedClone::default() });
    host.decides(
        1,
        CloneState::Quarantined,
        Decision::Reap(ReapReason::DestroyUnfinished),
        "its network again",
    );

    let theirs = ObservedNetwork { identity: Identity::Foreign("x".into()), complete: true };
    host.show(1, ObservedClone { network: Some(theirs), ..ObservedClone::default() });
    host.decides(1, CloneState::Quarantined, Decision::Release, "over");

    let freed = Stamp { boot: "another boot".into(), ..host.stamp(0) };
    host.seen.clones.clear();
    host.record(1, quarantined(freed));
    host.decides(1, CloneState::Quarantined, Decision::Release, "over");
}

#[test]
fn orphans_wait_for_the_grace_period() {
    let young = GRACE - Duration::from_secs(1);
    for (age, seen_for, taken) in [
        (None, None, false),
        (Some(young), None, false),
        (Some(GRACE), None, true),
        (None, Some(young), false),
        (None, Some(GRACE), true),
        (Some(young), Some(GRACE), true),
        (Some(GRACE), Some(young), true),
    ] {
        let mut host = Host::new();
        host.show(9, whole(id('b'))).storage.as_mut().unwrap().age = age;
        host.show(10, whole(id('c'))).storage.as_mut().unwrap().age = Some(Duration::ZERO);
        host.seen_for.extend(seen_for.map(|seen_for| (slot(9), seen_for)));
        if taken {
            let reap = Decision::Reap(ReapReason::Orphan);
            host.decides(9, CloneState::Orphan, reap, "no record and is provably ours, and older");
        } else {
            let plan = host.decides(9, CloneState::Orphan, Decision::Keep, "younger than the grace period");
            assert!(plan.assessments[&slot(9)].problem.is_some());
            let left = if age.or(seen_for).is_some() { "(1 s left)" } else { "(600 s left)" };
            assert!(plan.assessments[&slot(9)].why.contains(left), "{}", plan.assessments[&slot(9)].why);
        }
    }
}

#[test]
fn a_clone_without_a_mark_is_ours_by_its_origin() {
    let mut host = Host::new();
    let seen = host.show(9, whole(id('b')));
    seen.storage.as_mut().unwrap().identity = Identity::Unmarked;
    seen.storage.as_mut().unwrap().age = Some(GRACE);
    seen.jail = None;
    seen.network = None;
    host.show(10, whole(id('c')));
    host.decides(9, CloneState::Orphan, Decision::Reap(ReapReason::Orphan), "provably ours");
}

#[test]
fn something_foreign_is_never_taken() {
    let foreign = || Identity::Foreign("made by hand".into());
    let changes: [fn(&mut ObservedClone, Identity); 3] = [
        |seen, identity| seen.storage.as_mut().unwrap().identity = identity,
        |seen, identity| seen.network.as_mut().unwrap().identity = identity,
        |seen, identity| seen.jail.as_mut().unwrap().identity = identity,
    ];
    for change in changes {
        let mut host = Host::new();
        let seen = host.show(9, whole(id('b')));
        seen.storage.as_mut().unwrap().identity = Identity::Unmarked;
        seen.network.as_mut().unwrap().identity = Identity::Unmarked;
        seen.jail.as_mut().unwrap().identity = Identity::Unmarked;
        change(seen, foreign());
        host.seen_for.insert(slot(9), GRACE * 9);
        let plan = host.decides(9, CloneState::Foreign, Decision::Keep, "made by hand");
        assert!(plan.assessments[&slot(9)].problem.as_ref().unwrap().contains("made by hand"));
        assert_eq!(plan.repairs, [Repair::CutEgress(slot(9))], "our table is not for them");
    }
    // Beside something foreign, what carries our mark is still ours to take.
    let mut host = Host::new();
    host.show(9, whole(id('b'))).network.as_mut().unwrap().identity = foreign();
    host.show(10, whole(id('c')));
    host.seen_for.insert(slot(9), GRACE);
    host.decides(9, CloneState::Orphan, Decision::Reap(ReapReason::Orphan), "provably ours");
}

#[test]
fn a_dying_jail_alone_is_waited_for() {
    let mut host = Host::new();
    host.show(9, dying());
    host.seen_for.insert(slot(9), GRACE * 9);
    host.decides(9, CloneState::Orphan, Decision::Keep, "only a dying jail");
    host.unreadable.insert(slot(9), "torn".into());
    host.show(10, whole(id('c')));
    host.decides(9, CloneState::Orphan, Decision::Reap(ReapReason::Orphan), "torn");
}

#[test]
fn an_unreadable_record_makes_an_orphan() {
    let mut host = Host::new();
    host.unreadable.insert(slot(2), "torn in half".into());
    host.decides(2, CloneState::Orphan, Decision::Keep, "torn in half");
    host.seen_for.insert(slot(2), GRACE);
    host.decides(2, CloneState::Orphan, Decision::Reap(ReapReason::Orphan), "torn in half");
}

#[test]
fn slots_of_other_pools_are_not_looked_at() {
    let mut host = Host::new();
    host.show(51, whole(id('b')));
    host.seen_for.insert(slot(51), GRACE);
    assert!(host.plan().assessments.is_empty());
}

#[test]
fn one_run_takes_at_most_its_cap_and_says_so() {
    let mut host = Host::new();
    for number in 1..=12 {
        host.record(number, ready()).deadline.mono_ms = 1;
        host.show(number, whole(id('a')));
    }
    for number in 21..=32 {
        host.record(number, destroying(1, &["busy"]));
    }
    let plan = host.plan();
    assert_eq!(plan.reap.len(), 10 + 12, "unfinished work is not capped");
    assert!(plan.alarm.as_ref().unwrap().contains("12 clones are due, 10 are taken"), "{:?}", plan.alarm);
    for number in [11, 12] {
        let assessment = &plan.assessments[&slot(number)];
        assert_eq!(assessment.decision, Decision::Keep);
        assert!(assessment.why.contains("reached its cap"), "{}", assessment.why);
    }
    host.rules.reap_cap = 12;
    let plan = host.plan();
    assert_eq!((plan.reap.len(), plan.alarm), (24, None));
}

#[test]
fn a_host_full_of_orphans_is_an_alarm_not_a_feast() {
    let mut host = Host::new();
    for number in 1..=6 {
        host.show(number, whole(id('b')));
        host.seen_for.insert(slot(number), GRACE);
    }
    let plan = host.plan();
    assert_eq!(plan.reap, []);
    assert!(plan.alarm.as_ref().unwrap().contains("6 of 6 clones"), "{:?}", plan.alarm);
    assert!(plan.assessments[&slot(1)].why.contains("state folder"), "{}", plan.assessments[&slot(1)].why);

    // Five are few enough; and six are, where most clones have their records.
    host.seen.clones.remove(&slot(6));
    assert_eq!(host.plan().reap.len(), 5);
    host.show(6, whole(id('b')));
    for number in 11..=16 {
        host.record(number, ready());
        host.show(number, whole(id('a')));
    }
    let plan = host.plan();
    assert_eq!((plan.reap.len(), plan.alarm), (6, None));
    host.seen.clones.remove(&slot(16));
    host.records.remove(&slot(16));
    assert_eq!(host.plan().reap, []);
}

#[test]
fn no_alarm_keeps_a_clone_longer_than_the_longest_lease() {
    let mut host = Host::new();
    for number in 1..=6 {
        host.show(number, whole(id('b')));
        host.seen_for.insert(slot(number), LONGEST_LEASE - Duration::from_secs(1));
    }
    assert_eq!(host.plan().reap, [], "their deadlines are not known and may be in the future");
    host.seen_for.insert(slot(2), LONGEST_LEASE);
    assert_eq!(host.plan().reap, [(slot(2), ReapReason::DeadlinePassed)]);
    host.show(2, whole(id('b'))).storage.as_mut().unwrap().identity = Identity::Foreign("by hand".into());
    let seen = host.seen.clones.get_mut(&slot(2)).unwrap();
    (seen.network, seen.jail) = (None, None);
    let plan = host.plan();
    assert!(!plan.reap.iter().any(|(due, _)| *due == slot(2)), "something foreign has no deadline");
}

/// A warm pool of one, and a member of it as it should be.
fn with_member() -> Host {
    let mut host = Host::new();
    host.target = Some(WarmPoolTarget {
        snapshot: snapshot(),
        template: Some("v1".into()),
        limits: limits(),
        browser: Default::default(),
        flavors: vec![Flavor::Ready],
        size: 1,
    });
    host.member(1);
    host
}

impl Host {
    fn member(&mut self, number: u16) {
        let phase = Phase::Pooled {
            flavor: Flavor::Ready,
            endpoint: None,
            cdp_endpoint: None,
            template: "v1".into(),
        };
        let record = self.record(number, phase);
        (record.pool, record.request_id, record.owner_uid) = (true, None, None);
        self.show(number, ObservedClone { frozen: true, ..whole(id('a')) });
    }
}

#[test]
fn a_member_of_the_warm_pool_waits() {
    let host = with_member();
    let plan = host.decides(1, CloneState::Pooled, Decision::Keep, "waits in the warm pool");
    assert_eq!(plan.repairs, [], "it keeps its network, its limits, and stays frozen");
}

#[test]
fn a_member_goes_when_the_warm_pool_does_not_want_it() {
    type Change = fn(&mut Host);
    let cases: [(Change, &str); 9] = [
        (|host| host.target = None, "no warm pool"),
        (|host| host.target.as_mut().unwrap().snapshot = "v2".parse().unwrap(), "another configuration"),
        (|host| host.target.as_mut().unwrap().limits.cpu_percent = Some(1), "another configuration"),
        (|host| host.target.as_mut().unwrap().flavors = vec![Flavor::Basic], "another configuration"),
        (|host| host.target.as_mut().unwrap().template = Some("v2".into()), "template changed"),
        (|host| host.target.as_mut().unwrap().size = 0, "has enough"),
        (
            |host| {
                let now = host.stamp(0);
                host.records.get_mut(&slot(1)).unwrap().deadline = now;
            },
            "too old",
        ),
        (|host| host.now.boot = "next boot".into(), "restarted"),
        (|host| host.seen.clones.get_mut(&slot(1)).unwrap().network = None, "broken (no interface is there)"),
    ];
    for (change, why) in cases {
        let mut host = with_member();
        change(&mut host);
        let plan = host.plan();
        let assessment = &plan.assessments[&slot(1)];
        assert_eq!(assessment.decision, Decision::Reap(ReapReason::PoolDrained), "{why}: {}", assessment.why);
        assert!(assessment.why.contains(why), "{:?} does not say {why:?}", assessment.why);
        assert!(plan.repairs.contains(&Repair::CutEgress(slot(1))), "{why}: {:?}", plan.repairs);
    }
}

#[test]
fn a_template_that_cannot_be_looked_at_is_held_against_nobody() {
    let mut host = with_member();
    host.target.as_mut().unwrap().template = None;
    host.decides(1, CloneState::Pooled, Decision::Keep, "waits");
}

#[test]
fn of_too_many_members_the_later_ones_go() {
    let mut host = with_member();
    host.member(2);
    host.decides(1, CloneState::Pooled, Decision::Keep, "waits");
    host.decides(2, CloneState::Pooled, Decision::Reap(ReapReason::PoolDrained), "has enough");
}

#[test]
fn draining_the_pool_is_not_capped_and_keeps_no_deadline_waiting() {
    let mut host = with_member();
    for number in 1..=30 {
        host.member(number);
    }
    let passed = host.stamp(-1);
    host.record(31, ready()).deadline = passed;
    host.show(31, whole(id('a')));
    let plan = host.plan();
    assert_eq!((plan.reap.len(), plan.alarm), (30, None), "29 members too many and one passed deadline");
}

#[test]
fn only_what_waits_is_frozen() {
    let mut host = with_member();
    host.seen.clones.get_mut(&slot(1)).unwrap().frozen = false;
    host.record(2, ready());
    host.show(2, ObservedClone { frozen: true, ..whole(id('a')) });
    assert_eq!(host.plan().repairs, [Repair::Freeze(slot(1)), Repair::Thaw(slot(2))]);
    host.working = BTreeSet::from([slot(1), slot(2)]);
    assert_eq!(host.plan().repairs, [], "whoever works on them knows better");
}

#[test]
fn a_slot_that_nobody_took_is_free_at_once() {
    let mut host = with_member();
    host.seen.clones.clear();
    let freed = host.stamp(0);
    let record = host.records.get_mut(&slot(1)).unwrap();
    record.phase = Phase::Quarantined { freed, was_ready: false };
    host.decides(1, CloneState::Quarantined, Decision::Release, "quarantine is over");
}
