//! `scripts/bench freebsd`: how many processes each operation costs, and how many of them follow one another.
//!
//! Counts only: the tools are fakes, so times would say nothing. Every fake takes a little longer than it needs to, so that
//! those that are started at once are seen at once. `HOSTD_BENCH_CLONES` is the number of clones that are reaped.

#![allow(clippy::unwrap_used)]

#[path = "../tests/lab/mod.rs"]
mod lab;

use fake_freebsd::{Run, Wrong, depth};
use lab::costs::{Costs, QUIET};
use lab::{Lab, in_private_machine};
use serde_json::json;
use std::collections::BTreeMap;

/// Create at most this many, by jail(8); list nothing; a look the same for any number of clones.
const MOST_FOR_CREATE: usize = 12;
/// Destroy at most this many, by jail(8).
const MOST_FOR_DESTROY: usize = 23;

struct Row {
    operation: String,
    processes: usize,
    depth: usize,
    target: &'static str,
}

fn row(operation: &str, runs: &[Run], target: &'static str) -> Row {
    Row { operation: operation.to_owned(), processes: runs.len(), depth: depth(runs), target }
}

fn main() {
    // `cargo bench` names itself; started once more inside, the name is that of the body.
    in_private_machine("counts", || {
        let clones: usize = std::env::var("HOSTD_BENCH_CLONES").map_or(100, |text| text.parse().unwrap());
        let rows: Vec<Row> =
            [one_clone("jail"), one_clone("bastille"), many_clones(clones)].into_iter().flatten().collect();
        println!("{:<44} {:>9} {:>14}  target", "operation", "processes", "one by one");
        for Row { operation, processes, depth, target } in &rows {
            println!("{operation:<44} {processes:>9} {depth:>14}  {target}");
        }
        let table: BTreeMap<&str, serde_json::Value> = rows
            .iter()
            .map(|row| (row.operation.as_str(), json!({"processes": row.processes, "one_by_one": row.depth})))
            .collect();
        let folder = std::path::Path::new(env!("CARGO_BIN_EXE_fake-freebsd")).parent().unwrap().join("bench");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("freebsd.json"), serde_json::to_string_pretty(&table).unwrap()).unwrap();
        let create = rows.iter().find(|row| row.operation == "create (jail)").unwrap();
        assert!(create.processes <= MOST_FOR_CREATE, "a create costs {} processes", create.processes);
        let destroy = rows.iter().find(|row| row.operation == "destroy (jail)").unwrap();
        assert!(destroy.processes <= MOST_FOR_DESTROY, "a destroy costs {} processes", destroy.processes);
        let looks: Vec<usize> =
            rows.iter().filter(|row| row.operation.starts_with("look")).map(|row| row.processes).collect();
        assert!(
            looks.windows(2).all(|pair| pair[0] == pair[1]),
            "a look costs more with more clones: {looks:?}"
        );
    });
}

fn slow(lab: &Lab) {
    lab.machine.fault(&[], None, Wrong::Slow(25));
}

fn one_clone(driver: &str) -> Vec<Row> {
    let lab = Lab::new(&[QUIET, &format!("freebsd.jail_driver = \"{driver}\"")]);
    let daemon = lab.ready();
    let costs = Costs::new(&lab, &daemon);
    slow(&lab);
    let (clone, create) = costs.of(|| daemon.create("bench"));
    let (_, destroy) = costs.of(|| daemon.destroy(&clone).unwrap());
    vec![
        row(&format!("create ({driver})"), &create, if driver == "jail" { "≤ 12" } else { "" }),
        row(&format!("destroy ({driver})"), &destroy, if driver == "jail" { "≤ 23" } else { "" }),
    ]
}

fn many_clones(count: usize) -> Vec<Row> {
    let lab = Lab::new(&[QUIET, "server.max_clones = 200", "server.max_clones_per_tenant = 200"]);
    let daemon = lab.ready();
    let costs = Costs::new(&lab, &daemon);
    slow(&lab);
    let empty = costs.looked();
    lab.machine.mend();
    for number in 0..count {
        daemon.create(&format!("bench-{number}"));
    }
    slow(&lab);
    let full = costs.looked();
    let (_, list) = costs.of(|| daemon.clones());
    // Their lives end with the boot that they were made in.
    drop(daemon);
    lab.forget_boot();
    lab.machine.forget_calls();
    let daemon = lab.ready();
    while !daemon.clones().is_empty() {
        daemon.call("browser-clone-reap", json!({}));
    }
    let reap = lab.machine.calls();
    vec![
        row("look at the host, no clone", &empty, "the same"),
        row(&format!("look at the host, {count} clones"), &full, "the same"),
        row(&format!("list, {count} clones"), &list, "0"),
        row(&format!("reap of {count} clones"), &reap, ""),
    ]
}
