//! A lifecycle on the fake host with a manual clock: restarts, reboots, and the checks at the end of every test.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use hostd::api::{
    CloneInfo, CloneName, CloneState, CreateParams, CreateResult, DestroyParams, DestroyResult, Flavor,
    ForceUnmountParams, ListParams, ReapParams, ReapResult, RpcError,
};
use hostd::audit::{Actor, Audit};
use hostd::clock::{Clock, Moment};
use hostd::config::Config;
use hostd::host::fake::{FakeHost, SimulatedCrash, quiet_crashes};
use hostd::lifecycle::{Caller, Lifecycle, Setup};
use hostd::metrics::Metrics;
use hostd::slot::{Slot, Slots};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// A clock that only the test advances.
#[derive(Debug)]
pub struct TestClock(Mutex<Moment>);

impl Clock for TestClock {
    fn now(&self) -> Moment {
        self.0.lock().unwrap().clone()
    }
}

impl TestClock {
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap();
        now.mono += by;
        now.wall += by;
    }

    pub fn reboot(&self) {
        let mut now = self.0.lock().unwrap();
        now.boot = format!("{}+", now.boot);
        now.mono = Duration::from_secs(20);
        now.wall += Duration::from_secs(60);
    }

    /// Set the wall clock, as NTP or an administrator does.
    pub fn set_wall(&self, wall: SystemTime) {
        self.0.lock().unwrap().wall = wall;
    }
}

pub const SLOTS: u16 = 6;

/// A runtime with paused time and one blocking thread, so that a test can wait for all earlier writes.
pub fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).max_blocking_threads(1).build().unwrap()
}

pub struct Rig {
    pub dir: tempfile::TempDir,
    pub host: FakeHost,
    pub clock: Arc<TestClock>,
    pub config: Arc<Config>,
    pub engine: Lifecycle<FakeHost>,
}

pub fn caller(uid: u32) -> Caller {
    Caller { actor: Actor::Peer { uid, pid: None }, uid: Some(uid), operator: false }
}

pub fn operator() -> Caller {
    Caller { operator: true, ..caller(0) }
}

pub fn slot(number: u16) -> Slot {
    Slot::new(number).unwrap()
}

pub fn request(id: &str) -> CreateParams {
    CreateParams::new(id.parse().unwrap())
}

impl Rig {
    pub async fn new() -> Rig {
        Rig::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Rig {
        quiet_crashes();
        // On a tmpfs if there is one: tests sync thousands of records and need no protection from power loss.
        let memory = std::path::Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let mut config = Config::default();
        config.paths.state = dir.path().join("state");
        config.paths.audit = dir.path().join("audit.log");
        config.pool.last_slot = SLOTS;
        config.lifecycle.step_timeout_seconds = 5;
        config.lifecycle.busy_patience_ms = 500;
        change(&mut config);
        let start = Moment {
            boot: "boot".into(),
            mono: Duration::from_secs(1000),
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        };
        let clock = Arc::new(TestClock(Mutex::new(start)));
        let host = FakeHost::new(Slots::new(&config.pool).unwrap());
        host.set_clock(clock.clone());
        let config = Arc::new(config);
        let engine = open(&host, &config, &clock).await;
        engine.reconcile_now().await;
        Rig { dir, host, clock, config, engine }
    }

    /// Simulate a crash: a new lifecycle starts on the same state folder and host.
    pub async fn restart(&mut self) {
        self.host = self.host.restarted();
        // A dead process writes nothing: its tasks that still run in this process die at their next write, and a write
        // that has begun is waited for (see `runtime`).
        self.engine.store().set_hook(Some(Box::new(|_| std::panic::panic_any(SimulatedCrash))));
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        self.engine = open(&self.host, &self.config, &self.clock).await;
    }

    /// From now on no record can be written, as on a full disk.
    pub fn fail_record_writes(&self) {
        self.engine.store().set_hook(Some(Box::new(|_| Err(std::io::ErrorKind::StorageFull.into()))));
    }

    /// Records can be written again.
    pub fn allow_record_writes(&self) {
        self.engine.store().set_hook(None);
    }

    /// From now on the audit log cannot be written: something else has its name.
    pub fn break_audit(&self) {
        std::fs::remove_file(&self.config.paths.audit).unwrap();
        std::fs::create_dir(&self.config.paths.audit).unwrap();
    }

    /// The audit log can be written again.
    pub fn mend_audit(&self) {
        std::fs::remove_dir(&self.config.paths.audit).unwrap();
    }

    /// Simulate a reboot.
    pub async fn reboot(&mut self) {
        self.host.reboot();
        self.clock.reboot();
        self.restart().await;
    }

    /// Run the timer until nothing is left to do, including quarantines, without passing a deadline.
    pub async fn settle(&self) {
        for _ in 0..8 {
            // Background tasks finish first; on paused time this takes no time.
            tokio::time::sleep(Duration::from_secs(20)).await;
            self.engine.reconcile_now().await;
            self.clock.advance(Duration::from_secs(self.config.lifecycle.quarantine_seconds + 1));
        }
        self.engine.reconcile_now().await;
    }

    /// Fill the warm pool, as the daemon does in the background.
    pub async fn refill(&self) {
        self.engine.refill_now().await.unwrap();
    }

    /// The members of the warm pool.
    pub fn members(&self) -> Vec<CloneName> {
        let pool = self.engine.status().pool;
        pool.into_iter().flat_map(|pool| pool.members).map(|member| member.name).collect()
    }

    /// Switch the warm pool off from the next start on.
    pub fn without_pool(&mut self) {
        let mut config = (*self.config).clone();
        config.pool.size = 0;
        self.config = Arc::new(config);
    }

    pub async fn create(&self, id: &str) -> Result<CreateResult, RpcError> {
        self.engine.create(&caller(1000), request(id), None).await
    }

    pub async fn destroy(&self, clone: &CloneInfo) -> Result<DestroyResult, RpcError> {
        self.engine.destroy(&caller(1000), params(clone), None).await
    }

    pub async fn reap(&self) -> Result<ReapResult, RpcError> {
        self.engine.reap(&operator(), ReapParams::default(), None).await
    }

    pub fn list(&self) -> BTreeMap<CloneName, CloneInfo> {
        let list = self.engine.list(&operator(), &ListParams::default());
        list.clones.into_iter().map(|clone| (clone.name.clone(), clone)).collect()
    }

    pub fn states(&self) -> BTreeMap<String, CloneState> {
        self.list().into_iter().map(|(name, clone)| (name.into(), clone.state)).collect()
    }

    /// After everything has settled: the host has exactly the ready clones and the frozen members of the warm pool, all of
    /// them complete. Returns the number of ready clones.
    pub fn check_settled(&self, context: &str) -> usize {
        let list = self.list();
        let ours = self.host.ours();
        let mut expected_table = BTreeSet::new();
        let pool = self.engine.status().pool.map(|pool| pool.members).unwrap_or_default();
        for clone in list.values() {
            let name = clone.name.as_str();
            let pooled = clone.state == CloneState::Pooled;
            let basic = pool.iter().any(|member| member.name == clone.name && member.flavor == Flavor::Basic);
            assert!(pooled || clone.state == CloneState::Ready, "{context}: {clone:?}\nhost: {ours:#?}");
            let slot = self.engine.slots().slot_of_name(name).unwrap();
            assert_eq!(
                self.host.frozen().contains(&slot),
                pooled && !basic,
                "{context}: {clone:?} is frozen or not"
            );
            assert!(
                !pooled
                    || (clone.request_id.is_none() && clone.tenant.is_none() && clone.owner_uid.is_none())
            );
            for kind in ["storage", "network", "jail", "process", "mount", "limits", "member"] {
                let there = ours.iter().any(|object| object.starts_with(&format!("{kind} {name}")));
                let none_yet = kind == "process" && basic;
                assert!(there != none_yet, "{context}: {name} is ready but has no {kind}\nhost: {ours:#?}");
            }
            expected_table.insert(clone.ip);
        }
        let names: BTreeSet<&str> = list.values().map(|clone| clone.name.as_str()).collect();
        let leaked: Vec<&String> = ours
            .iter()
            .filter(|object| !names.iter().any(|name| object.split([' ', '/']).any(|word| word == *name)))
            .collect();
        assert!(leaked.is_empty(), "{context}: left on the host: {leaked:?}");
        assert_eq!(self.host.table(), expected_table, "{context}");
        let files: Vec<_> = std::fs::read_dir(self.config.paths.state.join("records")).unwrap().collect();
        assert_eq!(files.len(), list.len(), "{context}: records on disk");
        list.values().filter(|clone| clone.state == CloneState::Ready).count()
    }
}

pub fn params(clone: &CloneInfo) -> DestroyParams {
    DestroyParams::new(clone.name.clone(), clone.clone_id.clone().unwrap())
}

pub fn force_unmount_params(clone: &CloneInfo) -> ForceUnmountParams {
    ForceUnmountParams::new(clone.name.clone(), clone.clone_id.clone().unwrap())
}

async fn open(host: &FakeHost, config: &Arc<Config>, clock: &Arc<TestClock>) -> Lifecycle<FakeHost> {
    let setup = Setup {
        config: config.clone(),
        clock: clock.clone(),
        audit: Arc::new(Audit::open(&config.paths.audit).unwrap()),
        metrics: Arc::new(Metrics::new()),
    };
    Lifecycle::open(host.clone(), setup).await.unwrap()
}
