//! The unmodified daemon over the fake FreeBSD: the seed's gate, and what a host does to those who clean up.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;

use lab::facts::{self, facts, same};
use lab::{Lab, in_private_machine};
use serde_json::{Value, json};

fn create(daemon: &lab::Daemon, request: &str) -> Value {
    daemon.call("browser-clone-create", json!({"request_id": request, "deadline_seconds": 3600}))["clone"]
        .clone()
}

fn destroy(daemon: &lab::Daemon, clone: &Value) -> Result<Value, lab::wire::Refused> {
    daemon.try_call("browser-clone-destroy", json!({"name": clone["name"], "clone_id": clone["clone_id"]}))
}

fn listed(daemon: &lab::Daemon) -> Vec<Value> {
    daemon.call("browser-clone-list", json!({}))["clones"].as_array().unwrap().clone()
}

fn gate(driver: &str) {
    let setting = format!("freebsd.jail_driver = \"{driver}\"");
    let lab = Lab::new(&[&setting]);
    facts::plant_foreign(&lab.machine);
    let daemon = lab.ready();
    let before = facts(&lab);
    for cycle in 0..3 {
        let clone = create(&daemon, &format!("gate-{cycle}"));
        let name = clone["name"].as_str().unwrap();
        assert_eq!(clone["state"], "ready");
        let world = lab.machine.world();
        let jail = world.jail(name).unwrap_or_else(|| panic!("no jail {name}\n{}", lab.log()));
        assert!(jail.vnet);
        let ip = clone["ip"].as_str().unwrap();
        assert!(world.pf.main.tables["browser_tasks"].members.contains(ip), "{ip} may not go out");
        assert!(world.limits.iter().any(|limit| limit.whose == name), "no limits");
        assert_eq!(clone["endpoint"], format!("http://{ip}:8080/"));
        destroy(&daemon, &clone).unwrap();
        same(&before, &facts(&lab), &lab);
    }
    lab.nobody_did_wrong();
    assert!(daemon.stop().success());
}

#[test]
fn the_seeds_gate_is_passed_three_times_by_jail() {
    in_private_machine("the_seeds_gate_is_passed_three_times_by_jail", || gate("jail"));
}

#[test]
fn the_seeds_gate_is_passed_three_times_by_bastille() {
    in_private_machine("the_seeds_gate_is_passed_three_times_by_bastille", || gate("bastille"));
}
