//! What a host does to those who clean up: busy datasets, dying jails, a firewall that is restarted or gone, limits that
//! are off, jails that die by themselves. Each with its documented outcome, and nothing left in the end.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;

use fake_freebsd::{State, StateKind};
use lab::facts::{self, facts, of_slot, same};
use lab::{Daemon, Lab, in_private_machine};
use serde_json::{Value, json};

fn status(daemon: &Daemon) -> Value {
    daemon.call("host-status", json!({}))
}

fn folder(lab: &Lab, clone: &Value) -> std::path::PathBuf {
    lab.jails().join(clone["name"].as_str().unwrap()).join("root")
}

#[test]
fn busy_files_are_waited_for_forced_or_gone_on_with() {
    in_private_machine("busy_files_are_waited_for_forced_or_gone_on_with", || {
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);

        // They free after a while.
        let clone = daemon.create("free-soon");
        facts::hold(&lab.machine, &folder(&lab, &clone), Some(3), true);
        daemon.destroy(&clone).unwrap();
        same(&before, &facts(&lab), &lab);

        // Only force helps.
        let clone = daemon.create("forced");
        facts::hold(&lab.machine, &folder(&lab, &clone), None, false);
        daemon.destroy(&clone).unwrap();
        same(&before, &facts(&lab), &lab);
        let forced =
            lab.machine.calls().iter().filter(|run| run.line().starts_with("zfs unmount -f")).count();
        assert!(forced > 0, "nothing was forced");

        // Nothing helps: the destroy says so, others are not in the way, and the reaper goes on when it can.
        let clone = daemon.create("never");
        let name = clone["name"].clone();
        facts::hold(&lab.machine, &folder(&lab, &clone), None, true);
        let refused = daemon.destroy(&clone).unwrap_err();
        assert_eq!(refused.code, "incomplete", "{refused:?}");
        assert_eq!(refused.message.matches("is busy").count(), 1, "one reason, told once: {refused:?}");
        assert!(refused.message.contains("storage, force-unmount, move-aside: "), "{refused:?}");
        assert_eq!(daemon.state(&name), "incomplete");
        let world = lab.machine.world();
        assert!(!world.pf.main.tables["browser_tasks"].members.contains(clone["ip"].as_str().unwrap()));
        assert!(world.jail(name.as_str().unwrap()).is_none(), "what can go has gone");
        let other = daemon.create("beside-it");
        assert_ne!(other["name"], name);
        daemon.destroy(&other).unwrap();
        lab.machine.change(|world| world.holds.clear());
        lab.until("the reaper finishes", || daemon.state(&name).is_empty().then_some(()));
        let aside = |name: &String| name.ends_with("-aside");
        lab.until("no empty dataset stays", || {
            (!lab.machine.world().datasets.keys().any(aside)).then_some(())
        });
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn mounts_below_a_clone_go_deepest_first_and_the_operator_can_force_them() {
    in_private_machine("mounts_below_a_clone_go_deepest_first_and_the_operator_can_force_them", || {
        let lab = Lab::new(&[]);
        let daemon = lab.ready();
        let before = facts(&lab);
        let clone = daemon.create("mounts");
        let root = folder(&lab, &clone);
        let mnt = root.join("mnt");
        for (kind, source, target) in
            [("nullfs", lab.path("logs"), mnt.clone()), ("tmpfs", "tmpfs".into(), mnt.join("deep"))]
        {
            std::fs::create_dir_all(&target).unwrap();
            lab.machine.run(&format!("mount -t {kind} {} {}", source.display(), target.display()));
        }
        facts::hold(&lab.machine, &mnt.join("deep"), None, false);
        let refused = daemon.try_call(
            "browser-clone-force-unmount",
            json!({"name": clone["name"], "clone_id": clone["clone_id"]}),
        );
        assert_eq!(refused.unwrap_err().code, "not_destroying");
        daemon.destroy(&clone).unwrap_or_else(|refused| panic!("{refused:?}\n{}", lab.log()));
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn a_slot_is_not_used_while_its_jail_is_dying() {
    in_private_machine("a_slot_is_not_used_while_its_jail_is_dying", || {
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);
        let clone = daemon.create("dies-slowly");
        let name = clone["name"].as_str().unwrap();
        // For ever, as far as this test can see.
        lab.machine.change(|world| world.lingering.insert(name.to_owned(), 1_000_000));
        daemon.destroy(&clone).unwrap_or_else(|refused| panic!("{refused:?}\n{}", lab.log()));
        assert_eq!(
            of_slot(&lab.machine.world(), name),
            [format!("jail {name}")],
            "all but the dying jail is gone"
        );
        let again = json!({"request_id": "same-slot", "name": name});
        assert_eq!(daemon.try_create(again.clone()).unwrap_err().code, "name_taken");
        lab.machine.change(|world| {
            world.lingering.clear();
            world.jails.retain(|jail| jail.dying.is_none());
        });
        let clone = lab.until("the slot is free again", || daemon.try_create(again.clone()).ok());
        daemon.destroy(&clone).unwrap();
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn members_come_back_after_a_restart_of_pf() {
    in_private_machine("members_come_back_after_a_restart_of_pf", || {
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let clones: Vec<Value> = (0..3).map(|number| daemon.create(&format!("pf-{number}"))).collect();
        let is_member = |clone: &Value| {
            let world = lab.machine.world();
            let table = world.pf.main.tables.get("browser_tasks");
            table.is_some_and(|table| table.members.contains(clone["ip"].as_str().unwrap()))
        };
        assert!(clones.iter().all(is_member));
        lab.write_pf_conf(true);
        lab.machine.run("service pf restart");
        assert!(!clones.iter().any(is_member), "a restart empties the table");
        lab.until("the members are back", || clones.iter().all(is_member).then_some(()));
        // The same without the anchor's rules, which hostd knows itself.
        lab.machine.run("pfctl -a browser -F all");
        lab.until("the anchor is back", || {
            (!lab.machine.world().pf.anchors["browser"].filter.is_empty()).then_some(())
        });
        lab.until("the host is ready", || (status(&daemon)["egress"] == "ok").then_some(()));
        for clone in &clones {
            assert_eq!(daemon.state(&clone["name"]), "ready");
            daemon.destroy(clone).unwrap();
        }
        lab.nobody_did_wrong();
    });
}

/// Rules that are gone block nothing: the clones' bridge goes down until they are back, and no clone is made.
fn without_rules(take_away: &str, give_back: &str) {
    let lab = Lab::new(&[]);
    let daemon = lab.ready();
    lab.write_pf_conf(true);
    let clone = daemon.create("firewall");
    let bridge_is_up = || lab.machine.world().interface(0, "bridge72").unwrap().up;
    assert!(bridge_is_up());
    lab.machine.run(take_away);
    lab.until("the bridge is down", || (!bridge_is_up()).then_some(()));
    lab.until("the status tells", || (status(&daemon)["egress"] == "rules_missing").then_some(()));
    let refused = daemon.try_create(json!({"request_id": "meanwhile"})).unwrap_err();
    assert_eq!(refused.code, "host_not_ready", "{refused:?}");
    assert!(!bridge_is_up());
    let findings = daemon.call("host-status", json!({"checks": true}))["findings"].clone();
    let told = |finding: &Value| finding["check"] == "egress" && finding["severity"] == "error";
    assert!(findings.as_array().unwrap().iter().any(told), "{findings}");
    lab.machine.run(&give_back.replace("PF_CONF", &lab.path("pf.conf").display().to_string()));
    lab.until("the bridge is up", || bridge_is_up().then_some(()));
    lab.until("the clone may go out", || {
        let world = lab.machine.world();
        world.pf.main.tables["browser_tasks"].members.contains(clone["ip"].as_str().unwrap()).then_some(())
    });
    let other = lab.until("clones are made", || daemon.try_create(json!({"request_id": "afterwards"})).ok());
    for clone in [clone, other] {
        daemon.destroy(&clone).unwrap();
    }
    lab.nobody_did_wrong();
}

/// A state that was made while the anchor was empty would outlive the reload of its rules.
#[test]
fn connections_made_without_rules_end_before_the_bridge_is_up() {
    in_private_machine("connections_made_without_rules_end_before_the_bridge_is_up", || {
        let lab = Lab::new(&[]);
        let daemon = lab.ready();
        let clone = daemon.create("states");
        let ip = clone["ip"].as_str().unwrap();
        let state = |source: String, destination: String, kind| State { source, destination, kind };
        let foreign = state("203.0.113.9:50000".into(), "203.0.113.254:22".into(), StateKind::Inner);
        lab.machine.forget_calls();
        lab.machine.change(|world| {
            world.pf.anchors.get_mut("browser").unwrap().filter.clear();
            world.pf.states = vec![
                state(format!("{ip}:40000"), "10.9.9.1:80".into(), StateKind::Inner),
                state(format!("{ip}:40000"), "10.9.9.1:80".into(), StateKind::Translated),
                state("10.9.9.1:80".into(), format!("{ip}:8080"), StateKind::ToClone),
                foreign.clone(),
            ];
        });
        lab.until("the host is ready", || {
            let rules = !lab.machine.world().pf.anchors["browser"].filter.is_empty();
            (rules && status(&daemon)["egress"] == "ok").then_some(())
        });
        assert_eq!(lab.machine.world().pf.states, [foreign], "the clones' states are gone, no other is");
        let lines: Vec<String> = lab.machine.calls().iter().map(|run| run.line()).collect();
        let first = |words: &str| lines.iter().position(|line| line.contains(words)).unwrap_or(usize::MAX);
        let (down, killed, up) = (first("bridge72 down"), first("-M -k 10.87.64.0/22"), first("bridge72 up"));
        assert!(down < killed && killed < up && up < usize::MAX, "{lines:#?}");
        daemon.destroy(&clone).unwrap();
        lab.nobody_did_wrong();
    });
}

/// The checks between inspections notice what the timer would notice an hour later.
#[test]
fn lost_rules_are_noticed_between_inspections() {
    in_private_machine("lost_rules_are_noticed_between_inspections", || {
        let settings = ["lifecycle.reconcile_interval_ms = 3600000", "freebsd.rules_interval_ms = 150"];
        let lab = Lab::new(&settings);
        let daemon = lab.ready();
        lab.write_pf_conf(true);
        let clone = daemon.create("watched");
        let bridge_is_up = || lab.machine.world().interface(0, "bridge72").unwrap().up;
        let reload = format!("pfctl -f {}", lab.path("pf.conf").display());
        // hostd loads its own anchor by itself.
        lab.machine.forget_calls();
        lab.machine.run("pfctl -a browser -F rules");
        lab.until("the anchor is back", || {
            (bridge_is_up() && !lab.machine.world().pf.anchors["browser"].filter.is_empty()).then_some(())
        });
        assert!(lab.machine.calls().iter().any(|run| run.line().contains("bridge72 down")));
        // What belongs to the administrator keeps the bridge down until the administrator has restored it.
        for (lose, restore) in [("pfctl -F rules", reload.as_str()), ("pfctl -d", "pfctl -e")] {
            lab.machine.run(lose);
            lab.until("the bridge is down", || (!bridge_is_up()).then_some(()));
            lab.machine.run(restore);
            lab.until("the bridge is up", || bridge_is_up().then_some(()));
        }
        daemon.destroy(&clone).unwrap();
        lab.nobody_did_wrong();
    });
}

#[test]
fn the_bridge_is_down_while_the_ruleset_is_gone() {
    in_private_machine("the_bridge_is_down_while_the_ruleset_is_gone", || {
        without_rules("pfctl -F all", "pfctl -f PF_CONF");
    });
}

#[test]
fn the_bridge_is_down_while_pf_is_off() {
    in_private_machine("the_bridge_is_down_while_pf_is_off", || without_rules("pfctl -d", "pfctl -e"));
}

#[test]
fn without_racct_no_clone_is_made_and_the_doctor_says_why() {
    in_private_machine("without_racct_no_clone_is_made_and_the_doctor_says_why", || {
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        lab.machine.change(|world| world.sysctl.insert("kern.racct.enable".into(), "0".into()));
        let daemon = lab.ready();
        let before = facts(&lab);
        let refused = daemon.try_create(json!({"request_id": "unlimited"})).unwrap_err();
        assert_eq!(refused.code, "host_not_ready", "{refused:?}");
        assert!(refused.message.contains("RACCT/RCTL present, but disabled"), "{refused:?}");
        assert!(refused.hint.contains("kern.racct.enable=1"), "{refused:?}");
        same(&before, &facts(&lab), &lab);
        let findings = daemon.call("host-status", json!({"checks": true}))["findings"].clone();
        let racct = findings.as_array().unwrap().iter().find(|finding| finding["check"] == "racct").cloned();
        assert_eq!(racct.unwrap_or_default()["severity"], "error", "{findings}");
        lab.nobody_did_wrong();
    });
}

#[test]
fn a_jail_that_died_by_itself_is_broken_and_leaves_nothing() {
    in_private_machine("a_jail_that_died_by_itself_is_broken_and_leaves_nothing", || {
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);
        let clone = daemon.create("dies");
        let name = clone["name"].as_str().unwrap();
        // Its own end of the pair had got another name inside, and comes back to the host with it.
        lab.machine.run(&format!("jexec {name} ifconfig e0b_bt{} name vnet0", &name[name.len() - 3..]));
        lab.machine.run(&format!("jail -R {name}"));
        lab.until("it is broken", || (daemon.state(&clone["name"]) == "broken").then_some(()));
        lab.until("it may not go out", || {
            let members = lab.machine.world().pf.main.tables["browser_tasks"].members.clone();
            (!members.contains(clone["ip"].as_str().unwrap())).then_some(())
        });
        assert!(lab.machine.world().limits.iter().any(|limit| limit.whose == name), "rules outlive the jail");
        daemon.destroy(&clone).unwrap();
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

/// After an import of the pool everything of the clone looks whole, but its browserd resets every connection.
#[test]
fn a_clone_whose_browserd_resets_connections_is_broken_and_keeps_everything() {
    in_private_machine("a_clone_whose_browserd_resets_connections_is_broken_and_keeps_everything", || {
        let lab = Lab::new(&["lifecycle.service_check_interval_ms = 200"]);
        let daemon = lab.ready();
        let clones = [daemon.create("resets"), daemon.create("answers")];
        let jid = lab.machine.world().jail(clones[0]["name"].as_str().unwrap()).unwrap().jid;
        lab.machine.change(|world| world.rootless.insert(jid));
        lab.until("it is broken", || (daemon.state(&clones[0]["name"]) == "broken").then_some(()));
        assert_eq!(daemon.state(&clones[1]["name"]), "ready");
        let listed = daemon.clones().into_iter().find(|clone| clone["name"] == clones[0]["name"]).unwrap();
        assert_eq!(listed["problem"], "its browser service does not answer");
        let again = daemon.create("resets");
        assert_eq!((&again["state"], &again["clone_id"]), (&json!("broken"), &clones[0]["clone_id"]));
        // Its owner decides: nothing is taken from it.
        daemon.call("browser-clone-reap", json!({}));
        let members = lab.machine.world().pf.main.tables["browser_tasks"].members.clone();
        assert!(members.contains(clones[0]["ip"].as_str().unwrap()), "{members:?}");
        lab.machine.change(|world| world.rootless.clear());
        lab.until("it is ready again", || (daemon.state(&clones[0]["name"]) == "ready").then_some(()));
        for clone in &clones {
            daemon.destroy(clone).unwrap();
        }
        lab.nobody_did_wrong();
    });
}

/// Without the bridge nothing is wrong with the rules, and nobody is told so.
#[test]
fn a_missing_bridge_is_told_as_what_it_is() {
    in_private_machine("a_missing_bridge_is_told_as_what_it_is", || {
        let lab = Lab::new(&[]);
        let daemon = lab.ready();
        let told = |state: &str, words: &str| {
            lab.until(state, || (status(&daemon)["egress"] == state).then_some(()));
            lab.until(words, || {
                let alarms = status(&daemon)["alarms"].to_string();
                assert!(!alarms.contains("not loaded"), "{alarms}");
                alarms.contains(words).then_some(())
            });
            let refused = daemon.try_create(json!({"request_id": "without"})).unwrap_err();
            assert!(refused.message.contains(words), "{refused:?}");
        };
        lab.machine.run("ifconfig bridge72 destroy");
        told("bridge_missing", "the clones' bridge does not exist");
        let findings = daemon.call("host-status", json!({"checks": true}))["findings"].clone();
        let egress =
            findings.as_array().unwrap().iter().find(|one| one["check"] == "egress").unwrap().clone();
        assert_eq!(egress["message"], "PF's rules are in place, but bridge72 does not exist");
        assert!(!lab.log().contains("in place again"), "nothing was repaired");
        lab.machine.run("ifconfig bridge create name bridge72");
        lab.machine.run("ifconfig bridge72 inet 10.87.64.1/22 up");
        lab.until("the host is ready", || (status(&daemon)["egress"] == "ok").then_some(()));
        // A bridge that somebody took down comes up by itself.
        lab.machine.run("ifconfig bridge72 down");
        lab.until("it is up", || lab.machine.world().interface(0, "bridge72").unwrap().up.then_some(()));
        lab.until("the host is ready", || (status(&daemon)["egress"] == "ok").then_some(()));
        lab.nobody_did_wrong();
    });
}

#[test]
fn the_doctor_finds_a_good_host_good() {
    in_private_machine("the_doctor_finds_a_good_host_good", || {
        let lab = Lab::new(&[]);
        let daemon = lab.ready();
        let findings = daemon.call("host-status", json!({"checks": true}))["findings"].clone();
        let bad: Vec<&Value> =
            findings.as_array().unwrap().iter().filter(|finding| finding["severity"] == "error").collect();
        assert!(bad.is_empty(), "{bad:#?}");
        lab.nobody_did_wrong();
    });
}

/// `ifconfig -a` tears the rows of interfaces that come and go. Nobody else's operation may fail because of that.
#[test]
fn parallel_creates_and_destroys_succeed_beside_torn_lists() {
    in_private_machine("parallel_creates_and_destroys_succeed_beside_torn_lists", || {
        let lab = Lab::new(&[]);
        let daemon = lab.ready();
        lab.machine.change(|world| world.tears = true);
        let before = facts(&lab);
        for round in 0..3 {
            let clones: Vec<Value> = std::thread::scope(|scope| {
                let create = |number| daemon.create(&format!("torn-{round}-{number}"));
                let running: Vec<_> = (0..10).map(|number| scope.spawn(move || create(number))).collect();
                running.into_iter().map(|one| one.join().unwrap()).collect()
            });
            std::thread::scope(|scope| {
                for clone in &clones {
                    let destroy = || daemon.destroy(clone).unwrap_or_else(|refused| panic!("{refused:?}"));
                    scope.spawn(destroy);
                }
            });
        }
        lab.machine.change(|world| {
            world.vanished.clear();
            world.interfaces.iter_mut().for_each(|interface| interface.moved = false);
            world.tears = false;
        });
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn an_interface_that_somebody_renamed_goes_with_its_clone() {
    in_private_machine("an_interface_that_somebody_renamed_goes_with_its_clone", || {
        let lab = Lab::new(&[]);
        facts::plant_foreign(&lab);
        let daemon = lab.ready();
        let before = facts(&lab);
        let clone = daemon.create("renamed");
        lab.machine.run("ifconfig e0a_bt001 name mine0");
        daemon.destroy(&clone).unwrap_or_else(|refused| panic!("{refused:?}\n{}", lab.log()));
        assert!(!lab.machine.run("ifconfig -a").contains("mine0"));
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

#[test]
fn every_slot_has_a_permanent_arp_entry_also_after_the_bridge_was_lost() {
    in_private_machine("every_slot_has_a_permanent_arp_entry_also_after_the_bridge_was_lost", || {
        let lab = Lab::new(&[]);
        let daemon = lab.ready();
        let entries = || lab.machine.world().arp;
        lab.until("the entries are set", || (entries().len() == 900).then_some(()));
        assert_eq!(entries()["10.87.64.16"].0, "02:0b:0a:57:40:10");
        let clone = daemon.create("arp");
        let calls = lab.machine.calls();
        let attached = calls.iter().any(|run| {
            run.line()
                == "ifconfig bridge72 addm e0a_bt001 private e0a_bt001 static e0a_bt001 02:0b:0a:57:40:10"
        });
        assert!(attached, "the bridge's entry is static");
        daemon.destroy(&clone).unwrap();
        lab.machine.run("ifconfig bridge72 destroy");
        assert!(entries().is_empty());
        lab.machine.run("ifconfig bridge create name bridge72");
        lab.machine.run("ifconfig bridge72 inet 10.87.64.1/22 up");
        lab.until("the entries are set again", || (entries().len() == 900).then_some(()));
        lab.nobody_did_wrong();
    });
}

/// The entries are set from a file. A host that cannot write it still inspects and removes.
#[test]
fn arp_entries_that_cannot_be_set_do_not_stop_the_reaper() {
    in_private_machine("arp_entries_that_cannot_be_set_do_not_stop_the_reaper", || {
        let lab = Lab::new(&[]);
        let daemon = lab.ready();
        let before = facts(&lab);
        let file = lab.path("state/arp");
        lab.until("the entries are set", || file.is_file().then_some(()));
        let made = daemon.try_create(json!({"request_id": "short", "deadline_seconds": 1})).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        lab.machine.change(|world| world.arp.clear());
        lab.until("the clone is reaped", || daemon.state(&made["name"]).is_empty().then_some(()));
        let alarms = status(&daemon)["alarms"].to_string();
        assert!(!alarms.contains("inspected"), "{alarms}");
        std::fs::remove_dir(&file).unwrap();
        lab.until("the entries are set again", || (lab.machine.world().arp.len() == 900).then_some(()));
        same(&before, &facts(&lab), &lab);
        lab.nobody_did_wrong();
    });
}

/// Whether the rules of ipfw let a clone's packet into the host. They know only the matches that hostd uses.
fn passes_ipfw(world: &fake_freebsd::World, protocol: &str, to: &str, port: u16, first: bool) -> bool {
    let to: std::net::Ipv4Addr = to.parse().unwrap();
    let own: Vec<String> = world
        .interfaces
        .iter()
        .filter(|interface| interface.jid == 0)
        .flat_map(|interface| interface.addresses.iter())
        .map(|address| address.split('/').next().unwrap().to_owned())
        .collect();
    let mut skip_to = 0;
    for rule in world.ipfw.iter() {
        if rule.number < skip_to || !world.ipfw_loaded {
            continue;
        }
        let body = rule.body.split(" //").next().unwrap();
        let (what, interface) = body.split_once(" in recv ").unwrap();
        assert_eq!(interface, "bridge72");
        let (action, what) = match what.strip_prefix("deny ") {
            Some(rest) => (None, rest),
            None => {
                let rest = what.strip_prefix("skipto ").unwrap();
                let (number, rest) = rest.split_once(' ').unwrap();
                (Some(number.parse::<u32>().unwrap()), rest)
            }
        };
        let words: Vec<&str> = what.split(' ').collect();
        let at = words.iter().position(|word| *word == "to").unwrap();
        let from_port = words[..at].get(3);
        let target = match words[at + 1] {
            "any" => true,
            "me" => own.contains(&to.to_string()),
            list => list.split(',').any(|net| {
                let net = if net.contains('/') { net.to_owned() } else { format!("{net}/32") };
                net.parse::<ipnet::Ipv4Net>().unwrap().contains(&to)
            }),
        };
        let matches = (words[0] == "ip" || words[0] == protocol)
            && target
            && words[at + 2..].iter().all(|word| match *word {
                "established" => !first,
                ports => ports.split(',').any(|one| one.parse() == Ok(port)),
            })
            && from_port.is_none_or(|from| *from == "8080" && !first);
        match (matches, action) {
            (true, None) => return false,
            (true, Some(number)) => skip_to = number,
            _ => {}
        }
    }
    true
}

/// PF is taken away in every way, at random moments of creates and destroys. What a clone may never reach stays blocked.
#[test]
fn the_second_barrier_holds_without_pf() {
    in_private_machine("the_second_barrier_holds_without_pf", || {
        let lab = Lab::new(&[]);
        let daemon = lab.ready();
        lab.write_pf_conf(true);
        let gateway = {
            let world = lab.machine.world();
            let bridge = world.interface(0, "bridge72").unwrap();
            bridge.addresses[0].split('/').next().unwrap().to_owned()
        };
        let holds = |when: &str| {
            let world = lab.machine.world();
            let forbidden =
                ["10.9.9.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", &gateway];
            for to in forbidden {
                for (protocol, port) in [("tcp", 80), ("tcp", 22), ("udp", 9999), ("udp", 853)] {
                    assert!(!passes_ipfw(&world, protocol, to, port, true), "{protocol} {to}:{port} {when}");
                }
            }
            assert!(!passes_ipfw(&world, "udp", "1.1.1.1", 53, true), "a foreign resolver {when}");
            assert!(passes_ipfw(&world, "tcp", "1.1.1.1", 443, true), "the Internet is PF's subject {when}");
            assert!(passes_ipfw(&world, "tcp", &gateway, 50000, false), "answers of browserd {when}");
        };
        holds("at first");
        let complete = lab.machine.world().ipfw;
        let ways = ["pfctl -d", "pfctl -F all", "pfctl -a browser -F rules", "kldunload pf", "ipfw -q flush"];
        for (number, way) in ways.into_iter().enumerate() {
            std::thread::scope(|scope| {
                let work = scope.spawn(|| {
                    if let Ok(clone) = daemon.try_create(json!({"request_id": format!("barrier-{number}")})) {
                        let _ = daemon.destroy(&clone);
                    }
                });
                let mut looks = 0;
                lab.machine.run(way);
                while !work.is_finished() || looks == 0 {
                    holds(way);
                    looks += 1;
                }
            });
            if !lab.machine.world().pf.loaded {
                lab.machine.run("kldload pf");
            }
            if !lab.machine.world().pf.enabled {
                lab.machine.run("pfctl -e");
            }
            lab.machine.run(&format!("pfctl -f {}", lab.path("pf.conf").display()));
            lab.until("the host is ready", || (status(&daemon)["egress"] == "ok").then_some(()));
        }
        // The barrier itself comes back when it is lost or changed.
        lab.machine.change(|world| drop(world.ipfw.pop()));
        lab.until("the rule is back", || (lab.machine.world().ipfw == complete).then_some(()));
        lab.machine.run("kldunload ipfw");
        lab.until("the doctor says so", || {
            let findings = daemon.call("host-status", json!({"checks": true}))["findings"].clone();
            let barrier =
                findings.as_array().unwrap().iter().find(|one| one["check"] == "second_barrier").cloned();
            (barrier.unwrap()["severity"] == "error").then_some(())
        });
        lab.machine.run("kldload ipfw");
        lab.until("the rules are back", || (lab.machine.world().ipfw == complete).then_some(()));
        holds("at last");
        lab.nobody_did_wrong();
    });
}
