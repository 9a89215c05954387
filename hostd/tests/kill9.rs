//! `kill -9` at any moment loses nothing and leaves nothing.
//!
//! The real daemon runs on the fake host. Clients create, renew, destroy and reap without pause, while the daemon is killed
//! and restarted on the same state folder many times, also during its start. The clients only see broken connections. At
//! the end everything is destroyed, and nothing may be left.
//!
//! A second test does the same with a warm pool, which is drained when the daemon is stopped at the end.
//!
//! `HOSTD_KILL9_COUNT` sets the number of kills. `HOSTD_KILL9_SEED` repeats a run's random choices, but not its timing.

#![allow(clippy::unwrap_used)]

mod common;

use common::wire::{CallError, Refused, Wire, wait_for};
use common::{Daemon, Lab, Random};
use hostd::host::Part;
use hostd::host::fake::FakeHost;
use hostd::slot::{Slot, Slots};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
const SLOTS: u16 = 24;
/// No client keeps more, so that a slot is always free.
const CLONES_PER_CLIENT: usize = 3;
/// A deadline that does not pass during the test.
const FOR_EVER: u64 = 86_400;

/// Clones that a client got and that nobody has asked to destroy. They must exist.
type Live = BTreeMap<String, String>;

#[derive(Default)]
struct Figures {
    created: AtomicU64,
    warm: AtomicU64,
    renewed: AtomicU64,
    destroyed: AtomicU64,
    reaped: AtomicU64,
    refused: AtomicU64,
    cut: AtomicU64,
}

struct Run {
    socket: PathBuf,
    pool: Slots,
    world: FakeHost,
    live: Mutex<Live>,
    wrong: Mutex<Vec<String>>,
    refusals: Mutex<BTreeMap<String, u64>>,
    figures: Figures,
    over: AtomicBool,
    /// The longest pause between two calls of a client, and the longest life of a daemon.
    pause: Duration,
    life: Duration,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

impl Run {
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap()
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    fn sound(&self) -> bool {
        self.wrong.lock().unwrap().is_empty()
    }

    /// A client got a clone. No other live clone may have its slot.
    fn given(&self, name: &str, clone_id: &str) {
        let before = self.live().insert(name.to_owned(), clone_id.to_owned());
        if before.as_ref().is_some_and(|before| before != clone_id) {
            self.wrong(format!("{name} was given as {clone_id} while {before:?} lives in it"));
        }
    }

    /// Count an error. Each method has errors that a busy, damaged or restarting host explains; any other is a defect.
    fn refused(&self, call: &str, code: &str, message: &str) {
        count(&self.figures.refused);
        *self.refusals.lock().unwrap().entry(format!("{call} {code}")).or_default() += 1;
        let expected: &[&str] = match call {
            "browser-clone-create" => {
                &["host_full", "request_finished", "incomplete", "host_not_ready", "step_failed"]
            }
            "browser-clone-destroy" => &["incomplete", "wrong_clone"],
            _ => &[],
        };
        if !expected.contains(&code) {
            self.wrong(format!("{call}: {code}: {message}"));
        }
    }

    /// Whether the daemon was given enough to do for the kills to mean something.
    fn had_work(&self, kills: u64, pool: bool) -> bool {
        let made = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        made(&self.figures.created) > kills / 4 && (!pool || made(&self.figures.warm) > 0)
    }

    fn slot(&self, name: &str) -> Slot {
        self.pool.slot_of_name(name).unwrap()
    }
}

/// One client: its clones, and its calls that were not answered.
struct Client<'a> {
    run: &'a Run,
    random: Random,
    number: u64,
    requests: u64,
    have: Vec<Clone>,
    /// Creates that it will repeat.
    unanswered: Vec<String>,
    /// Destroys that it will repeat.
    unfinished: Vec<Clone>,
    wire: Option<Wire>,
}

struct Clone {
    request: String,
    name: String,
    clone_id: String,
}

impl Client<'_> {
    fn work(&mut self) {
        while !self.run.over.load(Ordering::Relaxed) {
            let pause = self.run.pause.as_micros() as u64;
            std::thread::sleep(Duration::from_micros(self.random.below(pause + 1)));
            match self.random.below(10) {
                0..4 if self.mine() < CLONES_PER_CLIENT || !self.unanswered.is_empty() => self.create(),
                0..5 => self.renew(),
                5..9 => self.destroy(),
                _ => self.reap(),
            }
        }
    }

    /// How many clones may exist because of it.
    fn mine(&self) -> usize {
        self.have.len() + self.unanswered.len() + self.unfinished.len()
    }

    /// One call. `None`: the daemon died before it answered.
    fn call(&mut self, method: &str, params: Value) -> Option<Result<Value, String>> {
        if self.wire.is_none() {
            match Wire::connect(&self.run.socket) {
                Ok(wire) => self.wire = Some(wire),
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(2));
                    return None;
                }
            }
        }
        let began = Instant::now();
        match self.wire.as_mut()?.call(method, params) {
            Ok(result) => Some(Ok(result)),
            Err(CallError::Refused(Refused { code, message, .. })) => {
                self.run.refused(method, &code, &message);
                // The next call would be refused as well.
                std::thread::sleep(Duration::from_millis(5));
                Some(Err(code))
            }
            Err(CallError::Gone(error)) => {
                if began.elapsed() >= common::PATIENCE {
                    self.run.wrong(format!("{method} was not answered: {error}"));
                }
                count(&self.run.figures.cut);
                self.wire = None;
                None
            }
        }
    }

    fn create(&mut self) {
        let request = match self.unanswered.pop() {
            Some(request) => request,
            None => {
                self.requests += 1;
                format!("client{}-{}", self.number, self.requests)
            }
        };
        let short = self.random.percent(25);
        let life = if short { 1 } else { FOR_EVER };
        let answer =
            self.call("browser-clone-create", json!({"request_id": request, "deadline_seconds": life}));
        let Some(answer) = answer else {
            self.unanswered.push(request);
            return;
        };
        let Ok(result) = answer else { return };
        let text = |key: &str| result["clone"][key].as_str().unwrap_or_default().to_owned();
        let (name, clone_id) = (text("name"), text("clone_id"));
        count(if result["renewed"] == true { &self.run.figures.renewed } else { &self.run.figures.created });
        if result["clone"]["launch"] == "warm" && result["renewed"] == false {
            count(&self.run.figures.warm);
        }
        // One with a short deadline is reaped during the test, so it is not expected to live.
        if !short {
            self.run.given(&name, &clone_id);
            self.have.push(Clone { request, name, clone_id });
        }
    }

    fn renew(&mut self) {
        if self.have.is_empty() {
            return;
        }
        let chosen = self.random.below(self.have.len() as u64) as usize;
        let (request, expected) = (self.have[chosen].request.clone(), self.have[chosen].clone_id.clone());
        let params = json!({"request_id": request, "deadline_seconds": FOR_EVER});
        match self.call("browser-clone-create", params) {
            Some(Ok(result)) if result["renewed"] == true && result["clone"]["clone_id"] == expected => {
                count(&self.run.figures.renewed);
            }
            None => {}
            other => self.run.wrong(format!("renewing the live clone {expected}: {other:?}")),
        }
    }

    fn destroy(&mut self) {
        let (clone, repeated) = match self.unfinished.pop() {
            Some(clone) => (clone, true),
            None if self.have.is_empty() => return,
            None => {
                let chosen = self.random.below(self.have.len() as u64) as usize;
                let clone = self.have.swap_remove(chosen);
                self.run.live().remove(&clone.name);
                self.make_it_hard(self.run.slot(&clone.name));
                (clone, false)
            }
        };
        let params = json!({"name": clone.name, "clone_id": clone.clone_id});
        match self.call("browser-clone-destroy", params) {
            Some(Ok(_)) => count(&self.run.figures.destroyed),
            // The first call succeeded before the daemon died, and the slot has its next clone by now.
            Some(Err(code)) if code == "wrong_clone" && repeated => {}
            Some(Err(code)) if code == "wrong_clone" => {
                self.run.wrong(format!("{} was live as {} and is not", clone.name, clone.clone_id));
            }
            Some(Err(_)) | None => self.unfinished.push(clone),
        }
    }

    /// Make the destroy of this slot difficult.
    fn make_it_hard(&mut self, slot: Slot) {
        let world = &self.run.world;
        match self.random.below(12) {
            0 => world.make_busy(slot, 2),
            1 => world.make_busy(slot, 12),
            2 => world.make_dying(slot, 3),
            3 => world.stick_mount(slot, true),
            4 => world.remove_interface(slot),
            5 => world.kill_jail(slot),
            6 => world.forget_mark(slot),
            7 => world.reload_firewall(),
            _ => {}
        }
    }

    fn reap(&mut self) {
        if let Some(Ok(result)) = self.call("browser-clone-reap", json!({})) {
            let reaped = result["reaped"].as_array().map_or(0, Vec::len);
            self.run.figures.reaped.fetch_add(reaped as u64, Ordering::Relaxed);
        }
    }
}

/// Every clone of a client must be listed as ready, with its identity. Clones that a client began to destroy during this
/// check are left out.
fn check_live(run: &Run) {
    let before = run.live().clone();
    let Ok(mut wire) = Wire::connect(&run.socket) else { return };
    let Ok(listed) = wire.call("browser-clone-list", json!({})) else { return };
    let listed: BTreeMap<&str, &Value> = listed["clones"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|clone| (clone["name"].as_str().unwrap_or_default(), clone))
        .collect();
    let after = run.live();
    for (name, id) in before.iter().filter(|(name, id)| after.get(*name) == Some(id)) {
        match listed.get(name.as_str()) {
            Some(clone) if clone["clone_id"] == **id && clone["state"] == "ready" => {}
            other => run.wrong(format!("{name} {id} is live but listed as {other:?}")),
        }
    }
}

fn start(lab: &Lab, run: &Run) -> Option<Daemon> {
    let mut daemon = lab.start();
    match daemon.wait_ready() {
        Ok(()) => Some(daemon),
        Err(error) => {
            run.wrong(error);
            None
        }
    }
}

/// Kill and restart. Returns how many kills came before the daemon accepted connections.
fn kill_again_and_again(lab: &Lab, run: &Run, random: &mut Random, kills: u64) -> u64 {
    let mut in_start = 0;
    for _ in 0..kills {
        if random.percent(15) {
            let daemon = lab.start();
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            daemon.kill9();
            in_start += 1;
            continue;
        }
        let Some(daemon) = start(lab, run) else { return in_start };
        check_live(run);
        std::thread::sleep(Duration::from_micros(random.below(run.life.as_micros() as u64)));
        daemon.kill9();
        if !run.sound() {
            return in_start;
        }
    }
    in_start
}

/// Everything that is neither ready nor foreign is removed without a call. An exception is a clone that its client damaged
/// to make its destroy difficult, and could not destroy because of the last kill. It is broken and waits for its owner.
fn settle(run: &Run) {
    let mut left = Value::Null;
    let settled = wait_for(|| {
        let mut wire = Wire::connect(&run.socket).ok()?;
        let mut listed = wire.call("browser-clone-list", json!({})).ok()?;
        let clones = listed["clones"].as_array_mut()?;
        clones.retain(|clone| match clone["state"].as_str() {
            Some("ready" | "foreign") => false,
            Some("broken") => clone["name"].as_str().is_some_and(|name| run.live().contains_key(name)),
            _ => true,
        });
        left = listed["clones"].take();
        (left == json!([])).then_some(())
    });
    if settled.is_none() {
        run.wrong(format!("nobody goes on with {left}"));
    }
}

/// After the last kill the pool is filled again, and it is drained when the daemon stops.
fn stop_with_pool(lab: &Lab, run: &Run) {
    let Some(daemon) = start(lab, run) else { return };
    let full = wait_for(|| {
        let mut wire = Wire::connect(&run.socket).ok()?;
        let status = wire.call("host-status", json!({})).ok()?;
        let pool = &status["warm_pool"];
        (pool["members"].as_array()?.len() as u64 == pool["size"].as_u64()?).then_some(())
    });
    if full.is_none() {
        run.wrong("the pool was not filled after the last kill".into());
    }
    daemon.stop();
    for entry in std::fs::read_dir(lab.path().join("state/records")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("\"pooled\"") {
            run.wrong(format!("{} is a member of the pool of a daemon that was stopped", path.display()));
        }
    }
}

/// Destroy everything that is listed, as an operator would.
fn destroy_all(run: &Run) {
    let done = wait_for(|| {
        let mut wire = Wire::connect(&run.socket).ok()?;
        let listed = wire.call("browser-clone-list", json!({})).ok()?;
        let mut left = false;
        for clone in listed["clones"].as_array()? {
            if clone["state"] == "foreign" || clone["state"] == "quarantined" {
                continue;
            }
            left = true;
            if !clone["clone_id"].is_null() {
                let params = json!({"name": clone["name"], "clone_id": clone["clone_id"]});
                // What is not finished now is continued by the reaper and listed again.
                let _ = wire.call("browser-clone-destroy", params);
            }
        }
        (!left).then_some(())
    });
    if done.is_none() {
        run.wrong("not everything could be destroyed".into());
    }
}

#[test]
fn nothing_is_lost_and_nothing_is_left() {
    let lab = Lab::new(SLOTS, "");
    kill_and_check(lab, "", from_env("HOSTD_KILL9_COUNT").unwrap_or(200), Duration::ZERO);
}

#[test]
fn nothing_is_lost_and_nothing_is_left_with_a_warm_pool() {
    let pool = "size = 3\nrefill_percent = 100";
    let lab = Lab::with_pool(SLOTS, pool, "");
    kill_and_check(lab, pool, from_env("HOSTD_KILL9_COUNT").unwrap_or(100), Duration::from_millis(150));
}

/// Clients that were unlucky with the timing get this many times the kills to make up for it.
const MOST_ROUNDS: u64 = 4;

fn kill_and_check(lab: Lab, pool: &str, kills: u64, pause: Duration) {
    let seed = from_env("HOSTD_KILL9_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("kill9: seed {seed}");
    lab.set_latency(2);
    let world = lab.world();
    for (number, part) in [(3, Part::Storage), (5, Part::Jail), (7, Part::Network)] {
        assert!(world.plant_foreign(Slot::new(number).unwrap(), part));
    }
    let foreign = world.foreign();
    let run = Run {
        socket: lab.socket(),
        pool: lab.pool().clone(),
        world,
        live: Mutex::default(),
        wrong: Mutex::default(),
        refusals: Mutex::default(),
        figures: Figures::default(),
        over: AtomicBool::new(false),
        pause,
        // Long enough for the pool to be filled and used.
        life: if pool.is_empty() { Duration::from_millis(600) } else { Duration::from_millis(1200) },
    };

    let began = Instant::now();
    let in_start = std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let run = &run;
            let random = Random::new(seed ^ (number + 1).wrapping_mul(0x5851_f42d_4c95_7f2d));
            scope.spawn(move || {
                let mut client = Client {
                    run,
                    random,
                    number,
                    requests: 0,
                    have: Vec::new(),
                    unanswered: Vec::new(),
                    unfinished: Vec::new(),
                    wire: None,
                };
                client.work();
            });
        }
        let mut random = Random::new(seed);
        let (mut in_start, mut rounds) = (0, 0);
        while rounds == 0 || (!run.had_work(kills, !pool.is_empty()) && run.sound() && rounds < MOST_ROUNDS) {
            in_start += kill_again_and_again(&lab, &run, &mut random, kills);
            rounds += 1;
        }
        run.over.store(true, Ordering::Relaxed);
        in_start
    });

    if !pool.is_empty() {
        stop_with_pool(&lab, &run);
        lab.change_config(pool, "");
    }
    // The last start: live clones still exist, and everything else is removed.
    let daemon = start(&lab, &run);
    check_live(&run);
    let live = run.live().len();
    let storage = run.world.ours();
    for name in run.live().keys().filter(|name| !storage.contains(&format!("storage {name}"))) {
        run.wrong(format!("{name} is live and has no files"));
    }
    settle(&run);
    destroy_all(&run);
    let left = wait_for(|| run.world.ours().is_empty().then_some(()));
    let records = || -> BTreeSet<String> {
        let folder = std::fs::read_dir(lab.path().join("state/records")).unwrap();
        folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let released = wait_for(|| records().is_empty().then_some(()));
    let mut wrong = std::mem::take(&mut *run.wrong.lock().unwrap());
    if left.is_none() {
        wrong.push(format!("left on the host: {:?}", run.world.ours()));
    }
    if released.is_none() {
        wrong.push(format!("records of nothing: {:?}", records()));
    }
    if run.world.foreign() != foreign {
        wrong.push(format!("foreign objects touched: {:?} is left of {foreign:?}", run.world.foreign()));
    }
    drop(daemon);

    let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let figures = &run.figures;
    println!(
        "kill9: {kills} kills ({in_start} during start) in {:.0} s: {} created, {} renewed, \
         {} destroyed, {} reaped by call, {} refused, {} calls cut off, {} from the pool, {live} live through the \
         last kill, {} objects leaked",
        began.elapsed().as_secs_f64(),
        number(&figures.created),
        number(&figures.renewed),
        number(&figures.destroyed),
        number(&figures.reaped),
        number(&figures.refused),
        number(&figures.cut),
        number(&figures.warm),
        run.world.ours().len(),
    );
    println!("kill9: refusals {:?}", run.refusals.lock().unwrap());
    if !wrong.is_empty() {
        let log = lab.log_tail();
        let folder = lab.keep();
        panic!("seed {seed}, folder {}:\n{}\n\n{log}", folder.display(), wrong.join("\n"));
    }
    assert!(
        run.had_work(kills, !pool.is_empty()),
        "the daemon was given too little to do in {MOST_ROUNDS} rounds"
    );
}
