//! `zfs destroy`.

use super::{dataset_of, mounting, options, properties, tree, usage};
use crate::fake::{Caller, Fake, Said};
use crate::world::World;
use std::fmt::Write;
use std::fs;

pub(super) fn destroy(fake: &Fake, world: &mut World, arguments: &[String], caller: Caller) -> Said {
    let given = match options(world, "destroy", arguments, "fnpRrvd") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let [name] = &given.operands[..] else {
        return usage("destroy", "missing dataset argument");
    };
    let all = given.has('R');
    if all {
        world.violations.push(format!("zfs destroy -R {name}"));
    }
    if name.contains('@') {
        return snapshots(fake, world, name, given.has('r') || all, all, given.has('d'), given.has('n'));
    }
    if !world.datasets.contains_key(name) {
        return super::missing(name);
    }
    if !name.contains('/') {
        let text = format!(
            "cannot destroy '{name}': operation does not apply to pools\n\
             use 'zfs destroy -r {name}' to destroy all datasets in the pool\n\
             use 'zpool destroy {name}' to destroy the pool itself\n"
        );
        return Said::err(1, text);
    }
    let victims = tree(world, name);
    let snapshots: Vec<String> = world
        .snapshots
        .iter()
        .filter(|snapshot| victims.iter().any(|victim| victim == dataset_of(&snapshot.name)))
        .map(|snapshot| snapshot.name.clone())
        .collect();
    if !given.has('r') && !all && victims.len() + snapshots.len() > 1 {
        let mut text = format!(
            "cannot destroy '{name}': filesystem has children\nuse '-r' to destroy the following datasets:\n"
        );
        for victim in victims.iter().rev().filter(|victim| *victim != name).chain(&snapshots) {
            let _ = writeln!(text, "{victim}");
        }
        return Said::err(1, text);
    }
    let mut dependents: Vec<String> = snapshots.iter().flat_map(|snapshot| clones(world, snapshot)).collect();
    dependents.retain(|clone| !victims.contains(clone));
    if !dependents.is_empty() && !all {
        let mut text = format!(
            "cannot destroy '{name}': filesystem has dependent clones\nuse '-R' to destroy the following datasets:\n"
        );
        dependents.iter().for_each(|clone| text.push_str(&format!("{clone}\n")));
        return Said::err(1, text);
    }
    if given.has('n') {
        let lead = if given.has('p') { "destroy\t" } else { "would destroy " };
        let lines: Vec<String> = victims.iter().rev().map(|victim| format!("{lead}{victim}\n")).collect();
        return Said::out(if given.has('v') { lines.concat() } else { String::new() });
    }
    if caller.nobody {
        return Said::err(
            1,
            format!("cannot unmount '{}': permission denied\n", properties::mountpoint(world, name).0),
        );
    }
    world.snapshots.retain(|snapshot| !snapshots.contains(&snapshot.name));
    let mut errors = String::new();
    for victim in victims.iter().rev().chain(dependents.iter()) {
        if world.datasets.contains_key(victim)
            && let Err(busy) = destroy_one(fake, world, victim, given.has('f'))
        {
            // A recursive destroy goes on with the others.
            errors.push_str(&busy);
        }
    }
    Said { out: String::new(), code: i32::from(!errors.is_empty()), err: errors }
}

/// Unmount and forget one dataset, its folder too.
fn destroy_one(fake: &Fake, world: &mut World, name: &str, force: bool) -> Result<(), String> {
    let (place, _) = properties::mountpoint(world, name);
    mounting::take(fake, world, name, force)?;
    if place.starts_with('/') {
        // The folder goes if it is empty, also when somebody had unmounted the dataset before.
        let _ = fs::remove_dir(world.real(place));
    }
    let Some(gone) = world.datasets.remove(name) else { return Ok(()) };
    let _ = fs::remove_dir_all(fake.store("files", gone.id));
    if let Some(origin) = gone.origin {
        let last = clones(world, &origin).is_empty();
        world.snapshots.retain(|snapshot| !(last && snapshot.deferred && snapshot.name == origin));
    }
    Ok(())
}

/// The clones of a snapshot, and what is below them.
fn clones(world: &World, snapshot: &str) -> Vec<String> {
    let direct = world.datasets.iter().filter(|(_, dataset)| dataset.origin.as_deref() == Some(snapshot));
    direct.flat_map(|(name, _)| tree(world, name).into_iter().rev()).collect()
}

fn snapshots(
    fake: &Fake,
    world: &mut World,
    name: &str,
    deep: bool,
    with_clones: bool,
    defer: bool,
    only_say: bool,
) -> Said {
    let (dataset, tag) = name.split_once('@').unwrap_or((name, ""));
    let datasets = if deep { tree(world, dataset) } else { vec![dataset.to_owned()] };
    // Several snapshots of one dataset may be named at once.
    let names = datasets.iter().flat_map(|dataset| tag.split(',').map(move |tag| format!("{dataset}@{tag}")));
    let names: Vec<String> = names.collect();
    let found: Vec<String> = names
        .into_iter()
        .filter(|name| world.snapshots.iter().any(|snapshot| snapshot.name == *name))
        .collect();
    if found.is_empty() {
        return Said::err(1, "could not find any snapshots to destroy; check snapshot names.\n");
    }
    if only_say {
        let lines: String = found.iter().map(|name| format!("would destroy {name}\n")).collect();
        return Said::out(format!("{lines}would reclaim 0B\n"));
    }
    let mut errors = String::new();
    for name in &found {
        let dependents = clones(world, name);
        if !dependents.is_empty() && !with_clones && !defer {
            let _ = writeln!(errors, "cannot destroy '{name}': snapshot has dependent clones");
            let _ = writeln!(errors, "use '-R' to destroy the following datasets:");
            dependents.iter().for_each(|clone| errors.push_str(&format!("{clone}\n")));
        }
        if world.snapshots.iter().any(|snapshot| snapshot.name == *name && !snapshot.holds.is_empty())
            && !defer
        {
            let _ = writeln!(errors, "cannot destroy snapshot {name}: dataset is busy");
        }
    }
    if !errors.is_empty() {
        return Said::err(1, errors);
    }
    for name in &found {
        let dependents = clones(world, name);
        if defer && !dependents.is_empty() {
            world.snapshots.iter_mut().filter(|one| one.name == *name).for_each(|one| one.deferred = true);
            continue;
        }
        for clone in dependents {
            if let Err(busy) = destroy_one(fake, world, &clone, false) {
                return Said::err(1, busy);
            }
        }
        if let Some(at) = world.snapshots.iter().position(|snapshot| snapshot.name == *name) {
            let gone = world.snapshots.remove(at);
            let _ = fs::remove_dir_all(fake.store("snapshots", gone.id));
        }
    }
    Said::nothing()
}
