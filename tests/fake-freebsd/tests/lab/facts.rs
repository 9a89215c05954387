//! What is on the host, as lines that can be compared before and after.

use super::Lab;
use fake_freebsd::{Dataset, Hold, Interface, Jail, Limit, Machine, World};
use std::collections::BTreeSet;
use std::path::Path;

/// Everything that a test can find again: nothing but numbers that the system gives out is left out.
pub fn facts(lab: &Lab) -> BTreeSet<String> {
    let world = lab.machine.world();
    let mut facts = BTreeSet::new();
    for (name, dataset) in &world.datasets {
        facts.insert(format!("dataset {name} {:?} {:?}", dataset.origin, dataset.properties));
    }
    facts.extend(world.snapshots.iter().map(|snapshot| format!("snapshot {}", snapshot.name)));
    facts.extend(world.mounts.iter().map(|mount| format!("mount {} on {}", mount.source, mount.target)));
    for jail in &world.jails {
        facts.insert(format!("jail {} {} {} {:?}", jail.jid, jail.name, jail.path, jail.dying));
    }
    facts.extend(world.processes.iter().map(|(pid, process)| format!("process {pid} {}", process.command)));
    for interface in &world.interfaces {
        let Interface { name, jid, ether, up, addresses, description, members, .. } = interface;
        facts
            .insert(format!("interface {name} {jid} {ether} {up} {addresses:?} {description:?} {members:?}"));
    }
    for (name, table) in &world.pf.main.tables {
        facts.insert(format!("table {name} {:?}", table.members));
    }
    facts.insert(format!("rules {:?} {:?}", world.pf.main.filter, world.pf.main.nat));
    facts.extend(world.pf.states.iter().map(|state| format!("state {state:?}")));
    facts.extend(world.limits.iter().map(|limit| format!("limit {limit:?}")));
    files(&lab.jails(), &mut facts);
    facts
}

fn files(folder: &Path, facts: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        facts.insert(format!("file {}", entry.path().display()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files(&entry.path(), facts);
        }
    }
}

/// Nothing came and nothing went.
pub fn same(before: &BTreeSet<String>, after: &BTreeSet<String>, lab: &Lab) {
    let gone: Vec<&String> = before.difference(after).collect();
    let left: Vec<&String> = after.difference(before).collect();
    assert!(gone.is_empty() && left.is_empty(), "gone: {gone:#?}\nleft: {left:#?}\n{}", lab.log());
}

/// Things of others, some of which look like clones of slots 3, 5 and 7.
pub fn plant_foreign(lab: &Lab) {
    let machine = &lab.machine;
    for name in ["zroot/data", "zroot/bastille/jails/www", "zroot/bastille/jails/browsertask003"] {
        machine.run(&format!("zfs create {name}"));
    }
    for name in ["www", "browsertask003"] {
        std::fs::write(lab.jails().join(name).join("settings.conf"), super::SETTINGS).unwrap();
    }
    machine.run("zfs snapshot zroot/data@yesterday");
    for line in ["ifconfig epair3 create", "ifconfig epair3a name e0a_www", "ifconfig epair4 create"] {
        machine.run(line);
    }
    machine.run("ifconfig epair4a name e0a_bt007");
    machine.run("pfctl -t browser_tasks -T add 192.0.2.7");
    machine.run("pfctl -t elsewhere -T add 10.87.64.20");
    machine.run("rctl -a jail:www:maxproc:deny=50");
    machine.change(|world| {
        world.interface_mut(0, "e0a_bt007").unwrap().description = "the lab's own".to_owned();
        for (jid, name) in [(901, "www"), (902, "browsertask005")] {
            let (name, path) = (name.to_owned(), "/".to_owned());
            world.jails.push(Jail { jid, name, path, ..Jail::default() });
            world.start(jid, 1, "/usr/local/sbin/nginx");
        }
        world.last.jid = 1000;
        world.pf.states.push(fake_freebsd::State {
            source: "192.0.2.7:1".to_owned(),
            destination: "203.0.113.1:80".to_owned(),
            kind: fake_freebsd::StateKind::Inner,
        });
    });
    machine.forget_calls();
}

/// What is on the host of a clone's name or slot.
pub fn of_slot(world: &World, name: &str) -> Vec<String> {
    let number = &name[name.len() - 3..];
    let mut found = Vec::new();
    let named = |text: &str| text.contains(name) || text.ends_with(&format!("_bt{number}"));
    found.extend(world.datasets.keys().filter(|name| named(name)).map(|name| format!("dataset {name}")));
    found.extend(world.mounts.iter().filter(|it| named(&it.target)).map(|it| format!("mount {}", it.target)));
    found.extend(world.jails.iter().filter(|it| named(&it.name)).map(|it| format!("jail {}", it.name)));
    found.extend(
        world.interfaces.iter().filter(|it| named(&it.name)).map(|it| format!("interface {}", it.name)),
    );
    let limit = |limit: &Limit| format!("limit {}:{}", limit.whose, limit.resource);
    found.extend(world.limits.iter().filter(|it| named(&it.whose)).map(limit));
    found
}

/// Keep a clone's files busy.
pub fn hold(machine: &Machine, path: &Path, tries: Option<u32>, stubborn: bool) {
    let path = path.display().to_string();
    machine.change(|world| world.holds.push(Hold { path, tries, stubborn }));
}

/// The identity that a dataset carries.
pub fn mark(dataset: &Dataset) -> Option<&str> {
    dataset.properties.get("org.hostd:clone_id").map(String::as_str)
}
