//! How many processes an operation costs. `scripts/bench freebsd` prints the same figures.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;

use fake_freebsd::depth;
use lab::costs::{Costs, QUIET, shown};
use lab::{Lab, in_private_machine};

/// A create spawns no more than this with `jail_driver = "jail"`.
const MOST_FOR_CREATE: usize = 12;

/// A destroy spawns no more than this.
const MOST_FOR_DESTROY: usize = 23;

#[test]
fn a_create_and_a_destroy_spawn_no_more_than_was_promised() {
    in_private_machine("a_create_and_a_destroy_spawn_no_more_than_was_promised", || {
        let lab = Lab::new(&[QUIET]);
        let daemon = lab.ready();
        let costs = Costs::new(&lab, &daemon);
        let (clone, runs) = costs.of(|| daemon.create("counted"));
        println!("create: {} processes, {} deep\n{}", runs.len(), depth(&runs), shown(&runs));
        assert!(runs.len() <= MOST_FOR_CREATE, "{} processes:\n{}", runs.len(), shown(&runs));
        assert!(runs.iter().any(|run| run.tool == "jail"), "a create starts a jail");
        let (_, runs) = costs.of(|| daemon.destroy(&clone).unwrap());
        println!("destroy: {} processes, {} deep\n{}", runs.len(), depth(&runs), shown(&runs));
        assert!(runs.len() <= MOST_FOR_DESTROY, "{} processes:\n{}", runs.len(), shown(&runs));
        assert!(runs.iter().all(|run| run.tool != "jexec"), "nothing of the clone runs for its end");
        lab.nobody_did_wrong();
    });
}

#[test]
fn looking_costs_the_same_however_many_clones_there_are() {
    in_private_machine("looking_costs_the_same_however_many_clones_there_are", || {
        let lab = Lab::new(&[QUIET]);
        let daemon = lab.ready();
        let costs = Costs::new(&lab, &daemon);
        let mut looks = Vec::new();
        for count in [1, 15] {
            for number in daemon.clones().len()..count {
                daemon.create(&format!("clone-{number}"));
            }
            let (clones, runs) = costs.of(|| daemon.clones());
            assert_eq!(clones.len(), count);
            assert!(runs.is_empty(), "a list asks the host nothing:\n{}", shown(&runs));
            looks.push(costs.look_at_the_host());
        }
        println!("list: no process; a look at the whole host: {} processes", looks[0].len());
        assert!(!looks[0].is_empty());
        assert_eq!(looks[0], looks[1], "a look costs more with more clones");
        lab.nobody_did_wrong();
    });
}
