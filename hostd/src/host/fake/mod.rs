//! A stateful model of a host, for tests only. It follows the observed behaviour of the real tools and can inject faults.
//!
//! [`FakeHost`] implements the host for the lifecycle. Tests control it: faults ([`FakeHost::inject`]), crashes
//! ([`FakeHost::crash_at_call`]), changes by an operator ([`FakeHost::kill_jail`] and others), reboots, and the checks at
//! the end of a test ([`FakeHost::ours`], [`FakeHost::foreign`]).

mod effects;
mod faults;
mod host;
mod operator;
mod persist;
#[cfg(test)]
mod tests;
mod world;

pub use faults::{Fault, FaultKind, HostCall, SimulatedCrash, When, quiet_crashes};

use crate::clock::{Clock, SystemClock};
use crate::slot::Slots;
use faults::FaultBook;
use persist::Store;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use world::World;

/// The fake host. Clones of it share one world.
#[derive(Clone)]
pub struct FakeHost {
    state: Arc<FakeState>,
    /// Which of the simulated processes holds this handle.
    process: u64,
    /// How many effects of this process are done late by tasks of their own. They end with the process.
    late: Arc<watch::Sender<u32>>,
}

struct FakeState {
    slots: Slots,
    store: Mutex<Store>,
    faults: Mutex<FaultBook>,
    clock: Mutex<Arc<dyn Clock>>,
    latency: Mutex<Duration>,
    at_once: AtomicBool,
    /// The simulated process that is alive. Calls of earlier processes never return.
    process: AtomicU64,
}

impl FakeHost {
    /// A host in memory, with the template's snapshots `default` and `v2` and a working firewall.
    pub fn new(slots: Slots) -> Self {
        Self::with(slots, Store::in_memory(), Duration::ZERO)
    }

    /// A host stored in this folder, which several processes can share. Every effect is atomic and survives `kill -9`. A
    /// file `latency_ms` in the folder sets the latency; a file `in_memory` keeps the host in memory instead.
    pub fn persistent(slots: Slots, dir: &Path) -> io::Result<Self> {
        // For benchmarks, which must not measure the model's writes to disk.
        let store = match dir.join("in_memory").exists() {
            true => Store::in_memory(),
            false => Store::open(dir)?,
        };
        let latency = match std::fs::read_to_string(dir.join("latency_ms")) {
            Ok(text) => text.trim().parse().map(Duration::from_millis).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Duration::ZERO,
            Err(error) => return Err(error),
        };
        Ok(Self::with(slots, store, latency))
    }

    fn with(slots: Slots, store: Store, latency: Duration) -> Self {
        let clock = SystemClock::new().expect("the system has a boot identifier");
        let state = FakeState {
            slots,
            store: Mutex::new(store),
            faults: Mutex::default(),
            clock: Mutex::new(Arc::new(clock)),
            latency: Mutex::new(latency),
            at_once: AtomicBool::new(false),
            process: AtomicU64::new(0),
        };
        FakeHost { state: Arc::new(state), process: 0, late: no_late_work() }
    }

    /// Take ages from this clock instead of the system's.
    pub fn set_clock(&self, clock: Arc<dyn Clock>) {
        *lock(&self.state.clock) = clock;
    }

    /// How long every call takes. Half of it is between the two transactions of an effect.
    pub fn set_latency(&self, per_call: Duration) {
        *lock(&self.state.latency) = per_call;
    }

    /// Let independent parts be created at the same time.
    pub fn make_parts_at_once(&self) {
        self.state.at_once.store(true, Ordering::SeqCst);
    }

    /// Inject a fault.
    pub fn inject(&self, fault: Fault) {
        lock(&self.state.faults).inject(fault);
    }

    /// Whether an injected fault has not occurred yet.
    pub fn has_faults(&self) -> bool {
        lock(&self.state.faults).has_faults()
    }

    /// Remove all faults and crashes that have not occurred yet.
    pub fn clear_faults(&self) {
        lock(&self.state.faults).clear();
    }

    /// The number of calls of the host trait so far.
    pub fn calls(&self) -> u64 {
        lock(&self.state.faults).calls()
    }

    /// Panic with [`SimulatedCrash`] at the n-th call from now; 1 is the next.
    pub fn crash_at_call(&self, n: u64, when: When) {
        lock(&self.state.faults).crash_at_call(n, when);
    }

    /// The handle of the process after a crash. Calls through earlier handles never return from now on, so effects that
    /// were in progress stay half done.
    pub fn restarted(&self) -> FakeHost {
        let process = self.state.process.fetch_add(1, Ordering::SeqCst) + 1;
        FakeHost { state: self.state.clone(), process, late: no_late_work() }
    }

    /// How many effects are still to be done by tasks whose callers may have given up.
    pub fn late_work(&self) -> u32 {
        *self.late.borrow()
    }

    /// Every object that hostd created, as `kind name`, such as `storage browsertask001`. Includes storage that was moved
    /// aside and dying jails.
    pub fn ours(&self) -> BTreeSet<String> {
        self.read(|world| world.objects(&self.state.slots))
    }

    /// The planted foreign objects that are unchanged.
    pub fn foreign(&self) -> BTreeSet<String> {
        self.read(|world| world.foreign(&self.state.slots))
    }

    /// The members of the table.
    pub fn table(&self) -> BTreeSet<Ipv4Addr> {
        self.read(|world| world.firewall.table.iter().flat_map(|table| table.members.clone()).collect())
    }

    /// Whether the clones' links are down because the rules are missing.
    pub fn links_down(&self) -> bool {
        self.read(|world| world.firewall.links_down)
    }

    fn read<R>(&self, read: impl FnOnce(&World) -> R) -> R {
        lock(&self.state.store).look(read).expect("the folder of the fake world can be read")
    }
}

impl fmt::Debug for FakeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeHost").field("process", &self.process).finish_non_exhaustive()
    }
}

fn no_late_work() -> Arc<watch::Sender<u32>> {
    Arc::new(watch::Sender::new(0))
}

/// A simulated crash can poison a lock. The world behind it is consistent, because changes are transactions.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
