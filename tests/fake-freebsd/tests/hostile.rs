//! What is in a clone is the clone's own word: links, PID files and scripts in it reach nothing of the host.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;

use lab::facts::{self, facts, same};
use lab::{Lab, in_private_machine};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;

/// A file of the host that nothing may write to.
fn bait(lab: &Lab) -> std::path::PathBuf {
    let path = lab.path("bait");
    fs::write(&path, "untouched").unwrap();
    path
}

#[test]
fn links_in_the_template_are_replaced_and_never_followed() {
    in_private_machine("links_in_the_template_are_replaced_and_never_followed", || {
        let lab = Lab::new(&[]);
        let target = bait(&lab);
        lab.change_template(|root| {
            for name in ["rc.conf", "resolv.conf", ".hostd.new"] {
                let _ = fs::remove_file(root.join("etc").join(name));
                symlink(&target, root.join("etc").join(name)).unwrap();
            }
            symlink(&target, root.join("var/run/browserd.pid")).unwrap();
        });
        for name in ["jail.conf", "fstab"] {
            let file = lab.jails().join("browser").join(name);
            fs::remove_file(&file).unwrap();
            symlink(&target, file).unwrap();
        }
        lab.change_template(|_| {});
        let daemon = lab.ready();
        let before = facts(&lab);
        let clone = daemon.create("links");
        assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
        let name = clone["name"].as_str().unwrap();
        for file in ["etc/rc.conf", "etc/resolv.conf"] {
            let meta = lab.inside(name, file).symlink_metadata().unwrap();
            assert!(meta.is_file(), "{file} is still a link");
        }
        daemon.destroy(&clone).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
        same(&before, &facts(&lab), &lab);

        // A folder that is a link is no place to write to at all.
        let elsewhere = lab.path("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        lab.change_template(|root| {
            fs::remove_dir_all(root.join("etc")).unwrap();
            symlink(&elsewhere, root.join("etc")).unwrap();
        });
        let before = facts(&lab);
        let refused = lab.until("the new snapshot is seen", || {
            daemon.try_create(json!({"request_id": "linked-folder"})).err()
        });
        assert_eq!(refused.code, "step_failed", "{refused:?}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "something was written through the link");
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn a_pid_file_that_names_a_process_of_the_host_kills_nobody() {
    in_private_machine("a_pid_file_that_names_a_process_of_the_host_kills_nobody", || {
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        let (host, other) = lab.machine.change(|world| {
            let jail = world.jail("www").unwrap().jid;
            (
                world.start(0, 1, "/usr/local/sbin/hostd"),
                world.start(jail, 1, "/usr/local/sbin/nginx: worker"),
            )
        });
        // Processes that do not listen to TERM, and a stop that does nothing.
        lab.change_template(|root| fs::write(root.join(Lab::SERVICE), "#!/bin/sh\n# deaf\n").unwrap());
        let daemon = lab.ready();
        let before = facts(&lab);
        for (number, pid) in [host, other, 1].into_iter().enumerate() {
            let clone = daemon.create(&format!("pid-{number}"));
            let file = lab.inside(clone["name"].as_str().unwrap(), "var/run/browserd.pid");
            fs::write(&file, format!("{pid}\n")).unwrap();
            daemon.destroy(&clone).unwrap_or_else(|refused| panic!("{refused:?}\n{}", lab.log()));
            same(&before, &facts(&lab), &lab);
        }
        let kills = lab.machine.calls().iter().filter(|run| run.tool == "pkill").count();
        assert!(kills > 0, "nobody was signalled, so nothing was tried");
        lab.nobody_did_wrong();
    });
}

#[test]
fn a_stop_that_never_ends_is_given_up_and_the_clone_goes() {
    in_private_machine("a_stop_that_never_ends_is_given_up_and_the_clone_goes", || {
        let lab = Lab::new(&[]);
        lab.change_template(|root| {
            fs::write(root.join(Lab::SERVICE), "#!/bin/sh\n# endless-stop deaf\n").unwrap()
        });
        let daemon = lab.ready();
        let before = facts(&lab);
        let clone = daemon.create("endless");
        daemon.destroy(&clone).unwrap_or_else(|refused| panic!("{refused:?}\n{}", lab.log()));
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

/// A service that does not start: jail(8) says so, and Bastille, which hides it, is not believed.
fn broken_service(driver: &str, told: &str) {
    let lab = Lab::new(&[driver]);
    lab.change_template(|root| fs::write(root.join(Lab::SERVICE), "#!/bin/sh\n# broken\n").unwrap());
    let daemon = lab.ready();
    let before = facts(&lab);
    let refused = daemon.try_create(json!({"request_id": "broken"})).unwrap_err();
    assert_eq!(refused.code, "step_failed", "{refused:?}");
    assert!(refused.message.contains(told), "{refused:?}");
    same(&before, &facts(&lab), &lab);
    lab.nobody_did_wrong();
}

#[test]
fn a_service_that_does_not_start_makes_the_create_fail_and_leaves_nothing() {
    in_private_machine("a_service_that_does_not_start_makes_the_create_fail_and_leaves_nothing", || {
        broken_service("freebsd.jail_driver = \"jail\"", "rc.d/browserd onestart: failed");
    });
}

#[test]
fn bastilles_word_that_all_went_well_is_not_believed() {
    in_private_machine("bastilles_word_that_all_went_well_is_not_believed", || {
        broken_service("freebsd.jail_driver = \"bastille\"", "the host reported success, but");
    });
}
