//! `kill -9` of the daemon at any moment, on a FreeBSD host: nothing is lost, nothing is left, nothing of others is touched.
//!
//! Clients create, renew, destroy and reap without pause while the daemon is killed and restarted on the same state folder,
//! also during its start. Tools that it had started continue to run, as on a real host. Meanwhile files are busy, jails are
//! dying or die by themselves, and the firewall loses its members.
//!
//! `FAKE_FREEBSD_KILLS` sets the number of kills. `FAKE_FREEBSD_SEED` repeats a run's random choices, but not its timing.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;

use lab::facts::{self, facts, same};
use lab::wire::{CallError, Wire};
use lab::{Daemon, Lab, in_private_machine};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 3;
const CLONES_PER_CLIENT: usize = 2;
const FOR_EVER: u64 = 86_400;
/// Clients that found the host full of unfinished clones get this many times the kills to make up for it.
const MOST_ROUNDS: u64 = 4;

/// A small generator of numbers that repeats itself for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

#[derive(Default)]
struct Figures {
    created: AtomicU64,
    renewed: AtomicU64,
    destroyed: AtomicU64,
    refused: AtomicU64,
    cut: AtomicU64,
}

struct Run<'a> {
    lab: &'a Lab,
    /// Clones that a client got and that nobody has asked to destroy. They must exist.
    live: Mutex<BTreeMap<String, String>>,
    wrong: Mutex<Vec<String>>,
    refusals: Mutex<BTreeMap<String, u64>>,
    figures: Figures,
    over: AtomicBool,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

impl Run<'_> {
    /// Whether the daemon was given enough to do for the kills to mean something.
    fn had_work(&self, kills: u64) -> bool {
        self.figures.created.load(Ordering::Relaxed) > kills / 8
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    fn sound(&self) -> bool {
        self.wrong.lock().unwrap().is_empty()
    }
}

#[derive(Clone)]
struct Clone {
    request: String,
    name: String,
    clone_id: String,
}

/// One client: its clones, and its calls that were not answered.
struct Client<'a> {
    run: &'a Run<'a>,
    random: Random,
    number: u64,
    requests: u64,
    have: Vec<Clone>,
    unanswered: Vec<String>,
    unfinished: Vec<Clone>,
    wire: Option<Wire>,
}

impl Client<'_> {
    fn work(&mut self) {
        while !self.run.over.load(Ordering::Relaxed) {
            let mine = self.have.len() + self.unanswered.len() + self.unfinished.len();
            match self.random.below(10) {
                0..5 if mine < CLONES_PER_CLIENT || !self.unanswered.is_empty() => self.create(),
                0..6 => self.renew(),
                6..9 => self.destroy(),
                _ => drop(self.call("browser-clone-reap", json!({}))),
            }
        }
    }

    /// One call. `None`: the daemon died before it answered.
    fn call(&mut self, method: &str, params: Value) -> Option<Result<Value, String>> {
        if self.wire.is_none() {
            match Wire::connect(&self.run.lab.path("sock")) {
                Ok(wire) => self.wire = Some(wire),
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(5));
                    return None;
                }
            }
        }
        match self.wire.as_mut()?.call(method, params) {
            Ok(result) => Some(Ok(result)),
            Err(CallError::Refused(refused)) => {
                count(&self.run.figures.refused);
                *self
                    .run
                    .refusals
                    .lock()
                    .unwrap()
                    .entry(format!("{method} {}", refused.code))
                    .or_default() += 1;
                if !expected(method).contains(&refused.code.as_str()) {
                    self.run.wrong(format!("{method}: {refused:?}"));
                }
                std::thread::sleep(Duration::from_millis(20));
                Some(Err(refused.code))
            }
            Err(CallError::Gone(_)) => {
                count(&self.run.figures.cut);
                self.wire = None;
                None
            }
        }
    }

    fn create(&mut self) {
        let request = self.unanswered.pop().unwrap_or_else(|| {
            self.requests += 1;
            format!("client{}-{}", self.number, self.requests)
        });
        let params = json!({"request_id": request, "deadline_seconds": FOR_EVER});
        match self.call("browser-clone-create", params) {
            None => self.unanswered.push(request),
            Some(Err(_)) => {}
            Some(Ok(result)) => {
                let text = |key: &str| result["clone"][key].as_str().unwrap_or_default().to_owned();
                let (name, clone_id) = (text("name"), text("clone_id"));
                count(&self.run.figures.created);
                let before = self.run.live.lock().unwrap().insert(name.clone(), clone_id.clone());
                if before.is_some_and(|before| before != clone_id) {
                    self.run.wrong(format!("{name} was given twice"));
                }
                self.have.push(Clone { request, name, clone_id });
            }
        }
    }

    fn renew(&mut self) {
        if self.have.is_empty() {
            return;
        }
        let chosen = self.random.below(self.have.len() as u64) as usize;
        let clone = self.have[chosen].clone();
        let params = json!({"request_id": clone.request, "deadline_seconds": FOR_EVER});
        match self.call("browser-clone-create", params) {
            Some(Ok(result)) if result["clone"]["clone_id"] == *clone.clone_id => {
                count(&self.run.figures.renewed)
            }
            None => {}
            other => self.run.wrong(format!("renewing {} {}: {other:?}", clone.name, clone.clone_id)),
        }
    }

    fn destroy(&mut self) {
        let (clone, repeated) = match self.unfinished.pop() {
            Some(clone) => (clone, true),
            None if self.have.is_empty() => return,
            None => {
                let chosen = self.random.below(self.have.len() as u64) as usize;
                let clone = self.have.swap_remove(chosen);
                self.run.live.lock().unwrap().remove(&clone.name);
                self.make_it_hard(&clone.name);
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

    /// Make the destroy of this clone difficult.
    fn make_it_hard(&mut self, name: &str) {
        let machine = &self.run.lab.machine;
        let root = self.run.lab.jails().join(name).join("root");
        match self.random.below(10) {
            0 => facts::hold(machine, &root, Some(3), true),
            1 => facts::hold(machine, &root, None, false),
            2 => machine.change(|world| {
                world.lingering.insert(name.to_owned(), 8);
            }),
            3 => {
                machine.change(|world| world.end_jail(name));
            }
            4 => machine.change(|world| {
                if let Some(table) = world.pf.main.tables.get_mut("browser_tasks") {
                    table.members.retain(|member| !member.starts_with("10.87."));
                }
            }),
            5 => {
                let file = root.join("var/run/browserd.pid");
                let _ = std::fs::write(file, "1");
            }
            _ => {}
        }
    }
}

/// The errors of a method that a busy, damaged or restarting host explains. Any other is a defect.
fn expected(method: &str) -> &'static [&'static str] {
    match method {
        "browser-clone-create" => {
            &["host_full", "request_finished", "incomplete", "host_not_ready", "step_failed"]
        }
        "browser-clone-destroy" => &["incomplete", "wrong_clone"],
        _ => &[],
    }
}

/// Ends the clients' work, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Every clone of a client must be listed as ready, with its identity.
fn check_live(run: &Run<'_>, daemon: &Daemon) {
    let before = run.live.lock().unwrap().clone();
    let listed: BTreeMap<String, Value> = daemon
        .clones()
        .into_iter()
        .map(|clone| (clone["name"].as_str().unwrap_or_default().to_owned(), clone))
        .collect();
    let after = run.live.lock().unwrap();
    for (name, id) in before.iter().filter(|(name, id)| after.get(*name) == Some(id)) {
        match listed.get(name) {
            Some(clone) if clone["clone_id"] == **id && clone["state"] == "ready" => {}
            other => run.wrong(format!("{name} {id} is live but listed as {other:?}")),
        }
    }
}

fn kill_again_and_again(run: &Run<'_>, random: &mut Random, kills: u64) -> u64 {
    let mut in_start = 0;
    for _ in 0..kills {
        run.lab.machine.forget_calls();
        let mut daemon = run.lab.start();
        if random.below(100) < 15 {
            std::thread::sleep(Duration::from_micros(random.below(200_000)));
            daemon.kill9();
            in_start += 1;
            continue;
        }
        if let Err(error) = daemon.wait_ready() {
            run.wrong(error);
            return in_start;
        }
        check_live(run, &daemon);
        // The kill comes after a number of commands, so that the machine's load does not matter: often during an
        // operation, sometimes after everything unfinished was completed.
        let most = [60, 250, 900][random.below(3) as usize];
        let commands = random.below(most) as usize;
        if run.lab.count_up_to(commands).is_none() {
            run.wrong(format!("the daemon did nothing for too long after {commands} commands"));
        }
        daemon.kill9();
        if !run.sound() {
            return in_start;
        }
    }
    in_start
}

#[test]
fn nothing_is_lost_and_nothing_is_left() {
    in_private_machine("nothing_is_lost_and_nothing_is_left", || {
        let kills = number("FAKE_FREEBSD_KILLS").unwrap_or(200);
        let seed = number("FAKE_FREEBSD_SEED").unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            u64::from(now.subsec_nanos())
        });
        println!("kill9: FreeBSD: seed {seed}");
        let lab = Lab::new(&["pool.last_slot = 80", "lifecycle.busy_patience_ms = 60"]);
        facts::plant_foreign(&lab);
        // The anchor is loaded once before, so that it is the same before and after.
        lab.ready().kill9();
        let before = facts(&lab);
        let run = Run {
            lab: &lab,
            live: Mutex::default(),
            wrong: Mutex::default(),
            refusals: Mutex::default(),
            figures: Figures::default(),
            over: AtomicBool::new(false),
        };
        let began = Instant::now();
        let in_start = std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let run = &run;
                scope.spawn(move || {
                    let random = Random(seed ^ (number + 1).wrapping_mul(0x5851_f42d_4c95_7f2d));
                    let (have, unanswered, unfinished) = Default::default();
                    let mut client =
                        Client { run, random, number, requests: 0, have, unanswered, unfinished, wire: None };
                    client.work();
                });
            }
            let _over = Over(&run.over);
            let mut random = Random(seed);
            let (mut in_start, mut rounds) = (0, 0);
            while rounds == 0 || (!run.had_work(kills) && run.sound() && rounds < MOST_ROUNDS) {
                in_start += kill_again_and_again(&run, &mut random, kills);
                rounds += 1;
            }
            in_start
        });
        let wrong = std::mem::take(&mut *run.wrong.lock().unwrap());
        assert!(wrong.is_empty(), "seed {seed}: {}\n{}", wrong.join("\n"), lab.log());

        // The last start: live clones still exist. Then all of them are destroyed, and nothing may be left.
        let daemon = lab.ready();
        check_live(&run, &daemon);
        let live = run.live.lock().unwrap().len();
        lab.machine.change(|world| {
            world.holds.clear();
            world.lingering.clear();
        });
        lab.until("everything is destroyed", || {
            let clones = daemon.clones();
            for clone in clones.iter().filter(|clone| !clone["clone_id"].is_null()) {
                let _ = daemon.destroy(clone);
            }
            let world = lab.machine.world();
            let dying = world.jails.iter().any(|jail| jail.dying.is_some());
            let aside = world.datasets.keys().any(|name| name.ends_with("-aside"));
            (clones.is_empty() && !dying && !aside).then_some(())
        });
        lab.until("no record is left", || {
            (std::fs::read_dir(lab.path("state/records")).unwrap().count() == 0).then_some(())
        });
        same(&before, &facts(&lab), &lab);
        let wrong = std::mem::take(&mut *run.wrong.lock().unwrap());
        assert!(wrong.is_empty(), "seed {seed}: {}\n{}", wrong.join("\n"), lab.log());
        lab.nobody_did_wrong();
        let figure = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        println!(
            "kill9: FreeBSD: {kills} kills ({in_start} during start) in {:.0} s: {} created, {} renewed, {} destroyed, \
             {} refused, {} calls cut off, {live} live through the last kill, nothing left, nothing foreign touched",
            began.elapsed().as_secs_f64(),
            figure(&run.figures.created),
            figure(&run.figures.renewed),
            figure(&run.figures.destroyed),
            figure(&run.figures.refused),
            figure(&run.figures.cut),
        );
        println!("kill9: FreeBSD: refusals {:?}", run.refusals.lock().unwrap());
        assert!(run.had_work(kills), "the daemon was given too little to do in {MOST_ROUNDS} rounds");
    });
}
