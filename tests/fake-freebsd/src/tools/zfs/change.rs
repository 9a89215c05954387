//! Everything that makes or changes a dataset.

use super::{bad_new_name, dataset_of, mounting, options, parent, properties, tree, usage};
use crate::fake::{Caller, Fake, Said};
use crate::files;
use crate::laws::now;
use crate::world::{Dataset, Snapshot, World};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// `name=value` words as properties, or the first that cannot be.
fn pairs(world: &World, dataset: Option<&str>, words: &[&str]) -> Result<BTreeMap<String, String>, String> {
    let mut pairs = BTreeMap::new();
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        if let Some(why) = properties::refuses(world, dataset, name, value) {
            return Err(why);
        }
        pairs.insert(name.to_owned(), value.to_owned());
    }
    Ok(pairs)
}

pub(super) fn set(world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "set", arguments, "u") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let (words, names): (Vec<&String>, Vec<&String>) =
        given.operands.iter().partition(|word| word.contains('=') && !word.starts_with('/'));
    if words.is_empty() || names.is_empty() {
        world.violations.push(format!("zfs set {}", arguments.join(" ")));
        return usage("set", "missing property=value argument(s)");
    }
    let words: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
    for name in names {
        if !world.datasets.contains_key(name) {
            return super::missing(name);
        }
        let new = match pairs(world, Some(name), &words) {
            Ok(new) => new,
            Err(why) => return Said::err(255, format!("cannot set property for '{name}': {why}\n")),
        };
        world.datasets.get_mut(name).expect("it exists").properties.extend(new);
    }
    Said::nothing()
}

pub(super) fn inherit(world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "inherit", arguments, "rS") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let [property, names @ ..] = &given.operands[..] else {
        return usage("inherit", "missing property argument");
    };
    for name in names {
        match world.datasets.get_mut(name) {
            Some(dataset) => drop(dataset.properties.remove(property)),
            None => return super::missing(name),
        }
    }
    Said::nothing()
}

pub(super) fn create(fake: &Fake, world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "create", arguments, "Pnpuvo:") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let [name] = &given.operands[..] else { return usage("create", "missing filesystem argument") };
    if given.has('p') && world.datasets.contains_key(name) {
        return Said::nothing();
    }
    if let Some(why) = bad_new_name(world, name) {
        return Said::err(1, format!("cannot create '{name}': {why}\n"));
    }
    let properties = match pairs(world, None, &given.values('o')) {
        Ok(properties) => properties,
        Err(why) => return Said::err(1, format!("cannot create '{name}': {why}\n")),
    };
    let id = world.new_id();
    let new = Dataset { id, created: now(), origin: None, properties, referenced: 24_576, own: 24_576 };
    world.datasets.insert(name.clone(), new);
    if !given.has('u') {
        mounting::put(fake, world, name);
    }
    Said::nothing()
}

pub(super) fn snapshot(fake: &Fake, world: &mut World, arguments: &[String], caller: Caller) -> Said {
    let given = match options(world, "snapshot", arguments, "ro:") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let [name] = &given.operands[..] else { return usage("snapshot", "missing snapshot argument") };
    let (dataset, tag) = name.split_once('@').unwrap_or((name, ""));
    if !world.datasets.contains_key(dataset) {
        return usage("snapshot", super::missing(dataset).err.trim_end());
    }
    if tag.contains('/') {
        return Said::err(1, format!("cannot create snapshot '{name}': trailing slash in name\n"));
    }
    if caller.nobody {
        return Said::err(1, "cannot create snapshots : permission denied\n");
    }
    let datasets = if given.has('r') { tree(world, dataset) } else { vec![dataset.to_owned()] };
    let names: Vec<String> = datasets.iter().map(|dataset| format!("{dataset}@{tag}")).collect();
    let taken: Vec<&String> =
        names.iter().filter(|name| world.snapshots.iter().any(|snapshot| snapshot.name == **name)).collect();
    if !taken.is_empty() {
        let mut text = String::new();
        for name in taken {
            let _ = writeln!(text, "cannot create snapshot '{name}': dataset already exists");
        }
        // Said of a recursive one only.
        if given.has('r') {
            text.push_str("no snapshots were created\n");
        }
        return Said::err(1, text);
    }
    let properties = match pairs(world, None, &given.values('o')) {
        Ok(properties) => properties,
        Err(why) => return Said::err(1, format!("cannot create snapshot '{name}': {why}\n")),
    };
    let transaction = world.new_id();
    for name in names {
        let id = world.new_id();
        let files = match world.mount_of(dataset_of(&name)) {
            Some(mount) => world.real(&mount.target),
            None => fake.store("files", world.datasets[dataset_of(&name)].id),
        };
        let store = fake.store("snapshots", id);
        files::copy(&files, &store).expect("a snapshot's files can be kept");
        // What is mounted below belongs to other datasets.
        let target = world.mount_of(dataset_of(&name)).map(|mount| mount.target.clone()).unwrap_or_default();
        for mount in world.mounts.iter().filter(|mount| mount.target.starts_with(&format!("{target}/"))) {
            files::empty(&store.join(&mount.target[target.len() + 1..])).expect("a mount point is empty");
        }
        let snapshot = Snapshot {
            id,
            name,
            created: now(),
            transaction,
            properties: properties.clone(),
            holds: BTreeSet::new(),
            deferred: false,
        };
        world.snapshots.push(snapshot);
    }
    Said::nothing()
}

pub(super) fn clone(fake: &Fake, world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "clone", arguments, "po:") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let [origin, name] = &given.operands[..] else {
        return usage("clone", "missing source dataset argument");
    };
    let Some(snapshot) = world.snapshots.iter().find(|snapshot| snapshot.name == *origin) else {
        return super::missing(origin);
    };
    let from = fake.store("snapshots", snapshot.id);
    if given.has('p') {
        if world.datasets.contains_key(name) {
            return Said::nothing();
        }
        let above = parent(name).unwrap_or_default().to_owned();
        let made = create(fake, world, &["-p".to_owned(), above]);
        if made.code != 0 {
            return made;
        }
    }
    if let Some(why) = bad_new_name(world, name) {
        return Said::err(1, format!("cannot create '{name}': {why}\n"));
    }
    let properties = match pairs(world, None, &given.values('o')) {
        Ok(properties) => properties,
        Err(why) => return Said::err(1, format!("cannot create '{name}': {why}\n")),
    };
    let id = world.new_id();
    let referenced = world.datasets.get(dataset_of(origin)).map_or(0, |dataset| dataset.referenced);
    let new = Dataset { id, created: now(), origin: Some(origin.clone()), properties, referenced, own: 0 };
    world.datasets.insert(name.clone(), new);
    let store = fake.store("files", id);
    files::copy(&from, &store).expect("a clone's files can be made");
    mounting::put(fake, world, name);
    Said::nothing()
}

pub(super) fn rename(fake: &Fake, world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "rename", arguments, "fpru") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let [from, to] = &given.operands[..] else { return usage("rename", "missing source dataset argument") };
    if !world.datasets.contains_key(from) {
        return super::missing(from);
    }
    match bad_new_name(world, to).as_deref() {
        None => {}
        Some("parent does not exist") if given.has('p') => {
            let made = create(fake, world, &["-p".to_owned(), parent(to).unwrap_or_default().to_owned()]);
            if made.code != 0 {
                return made;
            }
        }
        Some("parent does not exist") => {
            return Said::err(1, format!("cannot create '{to}': parent does not exist\n"));
        }
        Some(why) => return Said::err(1, format!("cannot rename '{from}': {why}\n")),
    }
    let moved = tree(world, from);
    let mounted: Vec<String> = moved.iter().filter(|name| world.mount_of(name).is_some()).cloned().collect();
    // With -u mounted file systems stay where they are; otherwise all are unmounted first.
    if !given.has('u') {
        for name in mounted.iter().rev() {
            let target = world.mount_of(name).map(|mount| mount.target.clone());
            if let Err(busy) = mounting::take(fake, world, name, given.has('f')) {
                mounted.iter().for_each(|name| mounting::put(fake, world, name));
                return Said::err(1, busy);
            }
            if let Some(target) = target {
                let _ = std::fs::remove_dir(world.real(target));
            }
        }
    }
    let renamed = |name: &str| format!("{to}{}", &name[from.len()..]);
    for name in &moved {
        let dataset = world.datasets.remove(name).expect("it was listed");
        world.datasets.insert(renamed(name), dataset);
        for snapshot in world.snapshots.iter_mut().filter(|snapshot| dataset_of(&snapshot.name) == name) {
            let old = snapshot.name.clone();
            snapshot.name = format!("{}{}", renamed(name), &old[name.len()..]);
            let new = snapshot.name.clone();
            let clones = world.datasets.values_mut().filter(|clone| clone.origin.as_deref() == Some(&old));
            clones.for_each(|clone| clone.origin = Some(new.clone()));
        }
        for mount in world.mounts.iter_mut().filter(|mount| mount.kind == "zfs" && mount.source == *name) {
            mount.source = renamed(name);
        }
    }
    if !given.has('u') {
        mounted.iter().for_each(|name| mounting::put(fake, world, &renamed(name)));
    }
    Said::nothing()
}

pub(super) fn holds(world: &mut World, command: &str, arguments: &[String]) -> Said {
    let given = match options(world, command, arguments, "rHp") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let Some(name) = given.operands.last() else { return usage(command, "missing snapshot argument") };
    let Some(snapshot) = world.snapshots.iter_mut().find(|snapshot| snapshot.name == *name) else {
        return super::missing(name);
    };
    let tag = given.operands[0].clone();
    match command {
        "hold" if !snapshot.holds.insert(tag) => {
            Said::err(1, format!("cannot hold snapshot '{name}': tag already exists on this dataset\n"))
        }
        "release" if !snapshot.holds.remove(&given.operands[0]) => {
            Said::err(1, format!("cannot release hold from snapshot '{name}': no such tag on this dataset\n"))
        }
        "holds" => {
            let when = properties::held_since(snapshot.created);
            Said::out(snapshot.holds.iter().map(|tag| format!("{name}\t{tag}\t{when}\n")).collect::<String>())
        }
        _ => Said::nothing(),
    }
}
