//! Every command of a create goes wrong once in every way: it refuses, it dies before or after it did its work, it never
//! ends. The create fails or succeeds, but in the end nothing is left that it does not account for.
//!
//! A destroy whose commands go wrong is gone on with by the reaper.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;

use fake_freebsd::Wrong;
use lab::facts::{self, facts, same};
use lab::{Lab, in_private_machine};
use serde_json::json;

/// The commands that change the host, by words that only they have.
const OF_CREATE: [&[&str]; 8] = [
    &["zfs clone ", "quota="],
    &["zfs clone ", "/root@"],
    &["rctl -a "],
    &["ifconfig epair1", " create "],
    &["ifconfig epair1", " name e0b_"],
    &["ifconfig bridge72 addm "],
    &["pfctl -t browser_tasks -T add 10."],
    &["jail ", " -c "],
];

const OF_DESTROY: [&[&str]; 11] = [
    &["pfctl -t browser_tasks -T delete "],
    &["pfctl -M -k "],
    &["pkill -KILL "],
    &["ps "],
    &["umount "],
    &["ifconfig e0a_bt", " destroy"],
    &["jail ", " -r "],
    &["rctl -r "],
    &["zfs destroy ", "/root"],
    &["zfs destroy "],
    &["jls "],
];

fn ways() -> [(&'static str, Wrong); 5] {
    let stderr = "fake: something nobody ever heard of\n".to_owned();
    [
        ("refuses", Wrong::Fails { code: 1, stderr }),
        ("dies before", Wrong::DiesBefore),
        // Only a clone has two halves; every other command does all of it and dies.
        ("dies halfway", Wrong::DiesHalfway),
        ("dies after", Wrong::DiesAfter),
        ("never ends", Wrong::Hangs),
    ]
}

/// An id of its own for every case.
fn request(words: &[&str], way: &str) -> serde_json::Value {
    let text = format!("{} {way}", words.join(" "));
    let id: String =
        text.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
    json!({"request_id": id})
}

#[test]
fn a_create_whose_commands_go_wrong_leaves_nothing() {
    in_private_machine("a_create_whose_commands_go_wrong_leaves_nothing", || {
        let lab = Lab::new(&["lifecycle.step_timeout_seconds = 4"]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);
        let mut outcomes = Vec::new();
        for words in OF_CREATE {
            for (way, wrong) in ways() {
                lab.machine.fault(words, Some(1), wrong);
                let made = daemon.try_create(request(words, way));
                let struck = lab.machine.world().faults.is_empty();
                assert!(struck, "no command has the words {words:?}\n{}", lab.log());
                match made {
                    // What was there when it was looked at was as it should be.
                    Ok(clone) => {
                        assert_eq!(clone["state"], "ready");
                        daemon
                            .destroy(&clone)
                            .unwrap_or_else(|refused| panic!("{words:?} {way}: {refused:?}"));
                        outcomes.push("made");
                    }
                    Err(refused) => {
                        let known = ["step_failed", "timeout", "host_not_ready"];
                        assert!(known.contains(&refused.code.as_str()), "{words:?} {way}: {refused:?}");
                        outcomes.push("refused");
                    }
                }
                lab.until(&format!("{words:?} {way}: nothing is left"), || {
                    daemon.clones().is_empty().then_some(())
                });
                same(&before, &facts(&lab), &lab);
            }
        }
        let refused = outcomes.iter().filter(|outcome| **outcome == "refused").count();
        println!("faults: {} creates with a fault, {refused} refused, nothing left", outcomes.len());
        assert!(refused >= OF_CREATE.len() * 2, "too few of the faults did harm: {outcomes:?}");
        lab.nobody_did_wrong();
    });
}

#[test]
fn a_destroy_whose_commands_go_wrong_is_finished_by_the_reaper() {
    in_private_machine("a_destroy_whose_commands_go_wrong_is_finished_by_the_reaper", || {
        let lab = Lab::new(&["lifecycle.step_timeout_seconds = 4"]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);
        let mut cases = 0;
        for words in OF_DESTROY {
            for (way, wrong) in ways() {
                let clone = lab.until("a clone is made", || daemon.try_create(request(words, way)).ok());
                // Something for umount to do.
                let place = lab.inside(clone["name"].as_str().unwrap(), "mnt");
                lab.machine.run(&format!(
                    "mount -t nullfs {} {}",
                    lab.path("logs").display(),
                    place.display()
                ));
                lab.machine.fault(words, Some(1), wrong);
                match daemon.destroy(&clone) {
                    Ok(_) => {}
                    Err(refused) => assert_eq!(refused.code, "incomplete", "{words:?} {way}: {refused:?}"),
                }
                lab.until(&format!("{words:?} {way}: nothing is left"), || {
                    daemon.clones().is_empty().then_some(())
                });
                assert!(
                    lab.machine.world().faults.is_empty(),
                    "no command has the words {words:?}\n{}",
                    lab.log()
                );
                same(&before, &facts(&lab), &lab);
                cases += 1;
            }
        }
        println!("faults: {cases} destroys with a fault, nothing left");
        lab.nobody_did_wrong();
    });
}
