//! Things that happen on a host at the wrong moment: signals that take their time, a snapshot that goes while it is cloned,
//! cron's reap beside the timer, a pool that is frozen and thawed through kills of the daemon. And IPv6 from end to end.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;

use fake_freebsd::Wrong;
use lab::facts::{self, facts, same};
use lab::{Lab, in_private_machine};
use serde_json::{Value, json};
use std::time::Duration;

/// Different in every run; a failing run prints it.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = u64::from(now.subsec_nanos());
    println!("moments: seed {seed}");
    seed
}

/// The next number of a sequence (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

/// Whether everything in a clone's jail stands still.
fn frozen(lab: &Lab, name: &Value) -> bool {
    let world = lab.machine.world();
    let jid = world.jail(name.as_str().unwrap()).map(|jail| jail.jid);
    let mut inside = world.processes.values().filter(|process| Some(process.jid) == jid).peekable();
    inside.peek().is_some() && inside.all(|process| process.stopped)
}

#[test]
fn a_warm_pool_is_frozen_and_thawed_where_signals_take_their_time() {
    in_private_machine("a_warm_pool_is_frozen_and_thawed_where_signals_take_their_time", || {
        let mut moment = seed();
        let lab = Lab::new(&["pool.size = 2", "pool.last_slot = 12"]);
        facts::plant_foreign(&lab);
        lab.machine.change(|world| world.sluggish = true);
        let mut daemon = lab.start_answering();
        let full = |daemon: &lab::Daemon| {
            lab.until("two members stand still", || {
                let clones = daemon.clones();
                let members: Vec<&Value> = clones.iter().filter(|clone| clone["state"] == "pooled").collect();
                (members.len() == 2 && members.iter().all(|clone| frozen(&lab, &clone["name"]))).then_some(())
            });
        };
        for round in 0..4 {
            full(&daemon);
            let clone = daemon.create(&format!("warm-{round}"));
            assert_eq!(clone["launch"], "warm", "{clone}");
            lab.until("it runs", || (!frozen(&lab, &clone["name"])).then_some(()));
            // A process that the clone's browser started while the others were being stopped.
            lab.machine.change(|world| {
                let jid = world.jail(clone["name"].as_str().unwrap()).unwrap().jid;
                world.start(jid, 1, "/usr/local/share/chromium/chrome --type=utility");
            });
            // A kill while members are made, frozen or thawed. The next daemon adopts or drains them.
            std::thread::sleep(Duration::from_millis(next(&mut moment) % 150));
            daemon.kill9();
            daemon = lab.start_answering();
            assert_eq!(daemon.state(&clone["name"]), "ready");
            lab.until("it still runs", || (!frozen(&lab, &clone["name"])).then_some(()));
            daemon.destroy(&clone).unwrap_or_else(|refused| panic!("{refused:?}\n{}", lab.log()));
        }
        full(&daemon);
        lab.nobody_did_wrong();
    });
}

/// `zfs destroy` of the template's inner snapshot between the two clones of a create, or before, or after them.
#[test]
fn a_snapshot_that_goes_while_it_is_cloned_leaves_nothing() {
    in_private_machine("a_snapshot_that_goes_while_it_is_cloned_leaves_nothing", || {
        let mut moment = seed();
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);
        // Every clone takes a while, so that the moments differ.
        lab.machine.fault(&["zfs clone "], None, Wrong::Slow(30));
        let (mut made, mut refused) = (0, 0);
        for round in 0..16 {
            let request = format!("snapshot-{round}");
            let result = std::thread::scope(|scope| {
                let create = scope.spawn(|| daemon.try_create(json!({"request_id": request})));
                std::thread::sleep(Duration::from_millis(next(&mut moment) % 120));
                // Fails where the clone is there already.
                lab.machine.attempt("zfs destroy zroot/bastille/jails/browser/root@default");
                create.join().unwrap()
            });
            match result {
                Ok(clone) => {
                    made += 1;
                    daemon.destroy(&clone).unwrap();
                }
                Err(error) => {
                    refused += 1;
                    let known = ["template_unusable", "step_failed"];
                    assert!(known.contains(&error.code.as_str()), "{error:?}");
                    assert!(error.message.contains("root@default"), "{error:?}");
                }
            }
            lab.until("nothing is left", || daemon.clones().is_empty().then_some(()));
            lab.change_template(|_| {});
            lab.until("the template is usable again", || {
                let findings = daemon.call("host-status", json!({"checks": true}))["findings"].clone();
                let good = |one: &Value| one["check"] == "template" && one["severity"] == "ok";
                findings.as_array().unwrap().iter().any(good).then_some(())
            });
        }
        println!("moments: {made} made, {refused} refused");
        assert!(refused > 0, "the snapshot never went in time");
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

/// What cron's `hostctl reap` does, again and again, beside the timer and the callers.
#[test]
fn reaps_beside_the_timer_take_each_clone_once_and_no_live_one() {
    in_private_machine("reaps_beside_the_timer_take_each_clone_once_and_no_live_one", || {
        let mut moment = seed();
        let lab = Lab::new(&["lifecycle.reconcile_interval_ms = 50"]);
        let daemon = lab.ready();
        let before = facts(&lab);
        lab.machine.forget_calls();
        let over = std::sync::atomic::AtomicBool::new(false);
        let mut names = Vec::new();
        std::thread::scope(|scope| {
            let cron = scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let done = daemon.call("browser-clone-reap", json!({}));
                    assert_eq!(done["failed"], json!([]), "{done}");
                }
            });
            for number in 0..12 {
                // Half of them are over soon, at a moment of their own.
                let seconds = if number % 2 == 0 { 1 } else { 3600 };
                let params = json!({"request_id": format!("due-{number}"), "deadline_seconds": seconds});
                let clone = daemon.try_create(params).unwrap_or_else(|refused| panic!("{refused:?}"));
                names.push((clone, seconds));
                std::thread::sleep(Duration::from_millis(next(&mut moment) % 200));
            }
            lab.until("the due ones are gone", || (daemon.clones().len() == 6).then_some(()));
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            cron.join().unwrap();
        });
        for (clone, seconds) in &names {
            let stop = format!(" -r {}", clone["name"].as_str().unwrap());
            let name_again = names.iter().filter(|(other, _)| other["name"] == clone["name"]).count();
            let stops = lab.machine.calls().iter().filter(|run| run.line().ends_with(&stop)).count();
            match seconds {
                1 => assert!((1..=name_again).contains(&stops), "{clone} was stopped {stops} times"),
                _ => {
                    assert_eq!(daemon.state(&clone["name"]), "ready");
                    daemon.destroy(clone).unwrap();
                }
            }
        }
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn a_pool_with_public_ipv6_grants_and_cuts_both_addresses() {
    in_private_machine("a_pool_with_public_ipv6_grants_and_cuts_both_addresses", || {
        let lab = Lab::new(&["pool.subnet6 = \"2a00:1450:4001:808::/64\""]);
        let daemon = lab.ready();
        let wrong = || {
            let findings = daemon.call("host-status", json!({"checks": true}))["findings"].clone();
            let all = findings.as_array().unwrap().iter();
            let bad = all.filter(|one| one["severity"] == "error").map(|one| one["message"].to_string());
            bad.collect::<Vec<_>>().join("; ")
        };
        assert!(wrong().contains("IPv6 router") && wrong().contains("ip6.forwarding is off"), "{}", wrong());
        // What setup-host does.
        lab.machine.run("ifconfig bridge72 inet6 2a00:1450:4001:808::1/64");
        lab.machine.run("sysctl net.inet6.ip6.forwarding=1");
        let before = facts(&lab);
        let clone = daemon.create("six");
        let (ip, ip6) = (clone["ip"].as_str().unwrap(), clone["ip6"].as_str().unwrap());
        let members = || lab.machine.world().pf.main.tables["browser_tasks"].members.clone();
        assert!(members().contains(ip) && members().contains(ip6), "{:?}", members());
        let world = lab.machine.world();
        let jid = world.jail(clone["name"].as_str().unwrap()).unwrap().jid;
        let inside =
            world.interfaces.iter().find(|one| one.jid == jid && one.name.starts_with("e0b_")).unwrap();
        let has = |address: &str| inside.addresses.iter().any(|one| one.split('/').next() == Some(address));
        assert!(has(ip) && has(ip6), "{inside:?}");
        // One of the two alone is a fault that the next inspection repairs.
        lab.machine.run(&format!("pfctl -t browser_tasks -T delete {ip6}"));
        lab.until("it is a member again", || members().contains(ip6).then_some(()));
        lab.machine.forget_calls();
        daemon.destroy(&clone).unwrap();
        let lines: Vec<String> = lab.machine.calls().iter().map(|run| run.line()).collect();
        for states in [format!("-M -k {ip6}"), format!("-M -k ::/0 -k {ip6}")] {
            assert!(lines.iter().any(|line| line.ends_with(&states)), "{states}: {lines:#?}");
        }
        same(&before, &facts(&lab), &lab);
        assert_eq!(wrong(), "");
        lab.nobody_did_wrong();
    });
}
