//! A stateful model of a host, for tests only: it behaves as the real tools were seen to behave,
//! and can be asked to misbehave.
//!
//! [`FakeHost`] is the host for the lifecycle, and beside it the hand of the test: faults
//! ([`FakeHost::inject`]), crashes ([`FakeHost::crash_at_call`]), a meddling operator
//! ([`FakeHost::kill_jail`] and its neighbours), reboots, and the questions a test ends with
//! ([`FakeHost::ours`], [`FakeHost::foreign`]).

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
use world::World;

/// The fake host. Clones of it share one world.
#[derive(Clone)]
pub struct FakeHost {
    state: Arc<FakeState>,
    /// Which of the simulated processes holds this handle.
    process: u64,
}

struct FakeState {
    slots: Slots,
    store: Mutex<Store>,
    faults: Mutex<FaultBook>,
    clock: Mutex<Arc<dyn Clock>>,
    latency: Mutex<Duration>,
    at_once: AtomicBool,
    /// How many calls are done late by tasks of their own.
    late: tokio::sync::watch::Sender<u32>,
    /// The simulated process that is alive; calls of earlier ones never answer.
    process: AtomicU64,
}

impl FakeHost {
    /// A host in memory, with the template's snapshots `default` and `v2` and a sound firewall.
    pub fn new(slots: Slots) -> Self {
        Self::with(slots, Store::in_memory(), Duration::ZERO)
    }

    /// A host kept in this folder, which other processes may use at the same time. Every effect is
    /// durable against `kill -9` at once and atomic. `latency_ms` in the folder sets the latency; a file
    /// `in_memory` keeps the host in memory after all.
    pub fn persistent(slots: Slots, dir: &Path) -> io::Result<Self> {
        // A benchmark of hostd must not measure how the model is written to disk.
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
        let clock = SystemClock::new().expect("the system tells which boot it is in");
        let state = FakeState {
            slots,
            store: Mutex::new(store),
            faults: Mutex::default(),
            clock: Mutex::new(Arc::new(clock)),
            latency: Mutex::new(latency),
            at_once: AtomicBool::new(false),
            late: tokio::sync::watch::Sender::new(0),
            process: AtomicU64::new(0),
        };
        FakeHost { state: Arc::new(state), process: 0 }
    }

    /// Take ages from this clock instead of the system's.
    pub fn set_clock(&self, clock: Arc<dyn Clock>) {
        *lock(&self.state.clock) = clock;
    }

    /// How long every call takes; half of it lies between the two transactions of an effect.
    pub fn set_latency(&self, per_call: Duration) {
        *lock(&self.state.latency) = per_call;
    }

    /// Parts that do not need each other may be made at the same time from now on.
    pub fn make_parts_at_once(&self) {
        self.state.at_once.store(true, Ordering::SeqCst);
    }

    /// Ask for a fault.
    pub fn inject(&self, fault: Fault) {
        lock(&self.state.faults).inject(fault);
    }

    /// Forget all faults and crashes that were asked for and did not strike yet.
    pub fn clear_faults(&self) {
        lock(&self.state.faults).clear();
    }

    /// How many calls of the host trait there were, effects and looks.
    pub fn calls(&self) -> u64 {
        lock(&self.state.faults).calls()
    }

    /// Panic with [`SimulatedCrash`] at the n-th call from now; 1 is the next.
    pub fn crash_at_call(&self, n: u64, when: When) {
        lock(&self.state.faults).crash_at_call(n, when);
    }

    /// The handle for the process after a crash. Calls through earlier handles never answer from now
    /// on, as those of a dead process: what its other tasks had under way stays as far as it was.
    pub fn restarted(&self) -> FakeHost {
        let process = self.state.process.fetch_add(1, Ordering::SeqCst) + 1;
        FakeHost { state: self.state.clone(), process }
    }

    /// Every object on the host that is neither foreign nor the template's or the rules', as
    /// `kind name`, such as `storage browsertask001`; what is aside or dying included.
    pub fn ours(&self) -> BTreeSet<String> {
        self.read(|world| world.objects(&self.state.slots))
    }

    /// The planted foreign objects that are still there and unchanged.
    pub fn foreign(&self) -> BTreeSet<String> {
        self.read(|world| world.foreign(&self.state.slots))
    }

    /// The members of the table.
    pub fn table(&self) -> BTreeSet<Ipv4Addr> {
        self.read(|world| world.firewall.table.iter().flat_map(|table| table.members.clone()).collect())
    }

    /// Whether the brake is pulled: the clones' links are down until the rules are back.
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

/// A simulated crash may strike while a lock is held; the world behind it is whole all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
