//! The unmodified daemon over the fake FreeBSD: the seed's gate, the reaper, creates at once, leftovers in the way.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;

use lab::facts::{self, facts, of_slot, same};
use lab::{Lab, in_private_machine};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const JAIL: &str = "freebsd.jail_driver = \"jail\"";
const BASTILLE: &str = "freebsd.jail_driver = \"bastille\"";

/// Clone, start, look, destroy, three times; nothing is left and nothing of others was touched.
fn gate(driver: &str) {
    let lab = Lab::new(&[driver]);
    facts::plant_foreign(&lab);
    let daemon = lab.ready();
    let before = facts(&lab);
    for cycle in 0..3 {
        let clone = daemon.create(&format!("gate-{cycle}"));
        let (name, ip) = (clone["name"].as_str().unwrap(), clone["ip"].as_str().unwrap());
        assert_eq!(clone["state"], "ready");
        assert_eq!(clone["endpoint"], format!("http://{ip}:8080"));
        let world = lab.machine.world();
        let jail = world.jail(name).unwrap_or_else(|| panic!("no jail {name}\n{}", lab.log()));
        assert!(jail.vnet && jail.path.ends_with(&format!("{name}/root")));
        assert!(world.pf.main.tables["browser_tasks"].members.contains(ip), "{ip} may not go out");
        assert!(world.limits.iter().any(|limit| limit.whose == name && limit.resource == "memoryuse"));
        for part in ["", "/root"] {
            let dataset = &world.datasets[&format!("zroot/bastille/jails/{name}{part}")];
            assert_eq!(facts::mark(dataset), clone["clone_id"].as_str());
        }
        assert!(lab.machine.run("bastille list jails").lines().any(|listed| listed == name));
        daemon.destroy(&clone).unwrap();
        same(&before, &facts(&lab), &lab);
        assert_eq!(daemon.destroy(&clone).unwrap()["already_gone"], true);
    }
    lab.nobody_did_wrong();
    assert!(daemon.stop().success());
}

#[test]
fn the_seeds_gate_is_passed_three_times_by_jail() {
    in_private_machine("the_seeds_gate_is_passed_three_times_by_jail", || gate(JAIL));
}

#[test]
fn the_seeds_gate_is_passed_three_times_by_bastille() {
    in_private_machine("the_seeds_gate_is_passed_three_times_by_bastille", || gate(BASTILLE));
}

/// Creates and destroys at once. With Bastille they queue: two of it at once would be noted as a violation.
fn at_once(driver: &str, count: usize) {
    let lab = Lab::new(&[driver]);
    facts::plant_foreign(&lab);
    let daemon = lab.ready();
    let before = facts(&lab);
    let create = |number: usize| daemon.create(&format!("many-{number}"));
    let clones: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || create(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for key in ["name", "ip", "clone_id", "endpoint"] {
        let different: BTreeSet<&str> = clones.iter().map(|clone| clone[key].as_str().unwrap()).collect();
        assert_eq!(different.len(), count, "{key}: {different:?}");
    }
    assert_eq!(lab.machine.world().jails.len(), count + 2, "every clone has a jail, and two are others'");
    std::thread::scope(|scope| {
        for clone in &clones {
            let daemon = &daemon;
            scope.spawn(move || daemon.destroy(clone).unwrap());
        }
    });
    same(&before, &facts(&lab), &lab);
    lab.nobody_did_wrong();
}

#[test]
fn clones_are_made_at_once_by_jail() {
    in_private_machine("clones_are_made_at_once_by_jail", || at_once(JAIL, 12));
}

#[test]
fn clones_are_made_at_once_by_bastille() {
    in_private_machine("clones_are_made_at_once_by_bastille", || at_once(BASTILLE, 5));
}

#[test]
fn the_reaper_takes_what_is_over_once_and_nothing_else() {
    in_private_machine("the_reaper_takes_what_is_over_once_and_nothing_else", || {
        let lab = Lab::new(&["lifecycle.reconcile_interval_ms = 600000"]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);
        let live = daemon.create("live");
        lab.machine.forget_calls();
        for number in 0..3 {
            let params = json!({"request_id": format!("short-{number}"), "deadline_seconds": 1});
            daemon.try_create(params).unwrap();
        }
        // The timer and the calls, which are what cron's `hostctl reap` does, go for the same clones.
        lab.until("only the live one is there", || {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let done = daemon.call("browser-clone-reap", json!({}));
                        assert_eq!(done["failed"], json!([]), "{done}");
                    });
                }
            });
            (daemon.clones().len() == 1).then_some(())
        });
        let stopped = lab.machine.calls().iter().filter(|run| run.line().contains(" -r browsertask")).count();
        assert_eq!(stopped, 3, "each is taken once");
        for _ in 0..2 {
            let again = daemon.call("browser-clone-reap", json!({}));
            assert_eq!((&again["reaped"], &again["failed"]), (&json!([]), &json!([])));
        }
        assert_eq!(daemon.state(&live["name"]), "ready");

        // With the records lost, what hostd made is still known and can be named.
        daemon.kill9();
        std::fs::remove_dir_all(lab.path("state/records")).unwrap();
        let daemon = lab.ready();
        lab.until("the orphan is known", || (daemon.state(&live["name"]) == "orphan").then_some(()));
        let reap = || daemon.call("browser-clone-reap", json!({"name": live["name"]}));
        lab.until("the orphan is taken", || {
            reap();
            of_slot(&lab.machine.world(), live["name"].as_str().unwrap()).is_empty().then_some(())
        });
        assert_eq!(reap()["reaped"], json!([]));
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn leftovers_in_a_slot_are_cleared_and_things_of_others_are_not() {
    in_private_machine("leftovers_in_a_slot_are_cleared_and_things_of_others_are_not", || {
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);
        // A whole pair as a failed start leaves it, a pair before its names, and one end under a name of the slot's.
        for line in [
            "ifconfig epair0 create",
            "ifconfig epair0a name e0a_bt001",
            "ifconfig epair0b name e0b_bt001",
            "ifconfig epair10002 create",
            "ifconfig epair1 create",
            "ifconfig epair1b name e0b_bt004",
            "rctl -a jail:browsertask002:maxproc:deny=1",
            "pfctl -t browser_tasks -T add 10.87.64.19",
        ] {
            lab.machine.run(line);
        }
        for number in [1, 2, 4] {
            let name = format!("browsertask{number:03}");
            let params = json!({"request_id": format!("into-{name}"), "name": name});
            // A slot in which leftovers were seen is given out when the reaper has cleared it.
            let clone = lab.until(&format!("{name} is made"), || match daemon.try_create(params.clone()) {
                Ok(clone) => Some(clone),
                Err(refused) if refused.code == "name_taken" => None,
                Err(refused) => panic!("{name}: {refused:?}\n{}", lab.log()),
            });
            assert_eq!(clone["state"], "ready");
            daemon.destroy(&clone).unwrap();
        }
        for number in [3, 5, 7] {
            let name = format!("browsertask{number:03}");
            let refused = daemon.try_create(json!({"request_id": format!("into-{name}"), "name": name}));
            assert_eq!(refused.unwrap_err().code, "name_taken", "{name}");
        }
        // An end that is left alone has no pair to go with.
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn clones_made_ahead_stand_still_until_one_is_taken() {
    in_private_machine("clones_made_ahead_stand_still_until_one_is_taken", || {
        let lab = Lab::new(&["pool.size = 2"]);
        facts::plant_foreign(&lab);
        let daemon = lab.start_answering();
        let members =
            || daemon.clones().into_iter().filter(|clone| clone["state"] == "pooled").collect::<Vec<_>>();
        let frozen = |name: &Value| {
            let world = lab.machine.world();
            let jid = world.jail(name.as_str().unwrap()).map(|jail| jail.jid);
            let mut inside = world.processes.values().filter(|process| Some(process.jid) == jid).peekable();
            inside.peek().is_some() && inside.all(|process| process.stopped)
        };
        lab.until("two wait, frozen", || {
            let members = members();
            (members.len() == 2 && members.iter().all(|clone| frozen(&clone["name"]))).then_some(())
        });
        let clone = daemon.create("warm");
        assert_eq!(clone["launch"], "warm", "{clone}");
        assert!(!frozen(&clone["name"]), "the one that was taken runs");
        daemon.destroy(&clone).unwrap();
        lab.until("the pool is full again", || (members().len() == 2).then_some(()));
        for member in members() {
            let name = member["name"].as_str().unwrap();
            assert!(!of_slot(&lab.machine.world(), name).is_empty());
        }
        lab.nobody_did_wrong();
    });
}
