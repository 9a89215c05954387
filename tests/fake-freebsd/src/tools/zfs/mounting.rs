//! Mounting and unmounting datasets, with their files.

use super::{options, properties, tree, usage};
use crate::fake::{Fake, Said};
use crate::files;
use crate::laws::below;
use crate::world::{Mount, World};
use std::fs;

/// Mount a dataset where it belongs, over whatever is there. Its files come from the store.
pub(super) fn put(fake: &Fake, world: &mut World, name: &str) {
    let (target, _) = properties::mountpoint(world, name);
    let canmount = world.datasets[name].properties.get("canmount").map_or("on", String::as_str);
    if !target.starts_with('/') || canmount == "off" || world.mount_of(name).is_some() {
        return;
    }
    let (id, real) = (world.datasets[name].id, world.real(&target));
    files::shift(&real, &fake.store("hidden", id)).expect("what is below a mount can be put away");
    files::shift(&fake.store("files", id), &real).expect("a dataset's files can be put in place");
    world.mounts.push(Mount {
        source: name.to_owned(),
        target,
        kind: "zfs".to_owned(),
        options: "rw,noatime,nfsv4acls".to_owned(),
    });
}

/// Unmount a dataset, if nothing keeps it. Its files go to the store, what it hid comes back.
pub(super) fn take(fake: &Fake, world: &mut World, name: &str, force: bool) -> Result<(), String> {
    let Some(mount) = world.mount_of(name).cloned() else { return Ok(()) };
    let target = mount.target;
    let busy = format!("cannot unmount '{target}': pool or dataset is busy\n");
    // Held by a process, being somebody's jail, or having a mount inside.
    let jailed = world.jails.iter().any(|jail| below(&jail.path, &target));
    let inside = world.mounts.iter().any(|other| other.target != target && below(&other.target, &target));
    let datasets_inside = world
        .mounts
        .iter()
        .any(|other| other.kind == "zfs" && other.target != target && below(&other.target, &target));
    // Force orphans what is mounted below, but neither datasets nor a nullfs mount that shows this one elsewhere.
    let shown_elsewhere =
        world.mounts.iter().any(|other| other.kind == "nullfs" && below(&other.source, &target));
    let held = world.busy(&target, force);
    if held || datasets_inside || shown_elsewhere || (!force && (jailed || inside)) {
        return Err(busy);
    }
    // Whoever sat in it sits in nothing now.
    world.holds.retain(|hold| !below(&hold.path, &target));
    let id = world.datasets[name].id;
    let real = world.real(&target);
    files::shift(&real, &fake.store("files", id)).expect("a dataset's files can be put away");
    files::shift(&fake.store("hidden", id), &real).expect("what was below a mount comes back");
    let _ = fs::remove_dir(fake.store("hidden", id));
    world.mounts.retain(|mount| !(mount.kind == "zfs" && mount.source == name));
    Ok(())
}

pub(super) fn mount(fake: &Fake, world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "mount", arguments, "flvOo:") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let [name] = &given.operands[..] else {
        world.violations.push(format!("zfs mount {}", arguments.join(" ")));
        return usage("mount", "missing dataset argument");
    };
    if !world.datasets.contains_key(name) {
        return super::missing(name);
    }
    if world.mount_of(name).is_some() {
        return Said::err(1, format!("cannot mount '{name}': filesystem already mounted\n"));
    }
    put(fake, world, name);
    Said::nothing()
}

pub(super) fn unmount(fake: &Fake, world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "unmount", arguments, "fu") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let [name] = &given.operands[..] else {
        world.violations.push(format!("zfs unmount {}", arguments.join(" ")));
        return usage("unmount", "missing filesystem argument");
    };
    let name = match world.mounts.iter().find(|mount| mount.kind == "zfs" && mount.target == *name) {
        Some(mount) => mount.source.clone(),
        None => name.clone(),
    };
    if !world.datasets.contains_key(&name) {
        return super::missing(&name);
    }
    if world.mount_of(&name).is_none() {
        return Said::err(1, format!("cannot unmount '{name}': not currently mounted\n"));
    }
    // With what is below it, the deepest first; the first failure ends it.
    for dataset in tree(world, &name).iter().rev() {
        if let Err(busy) = take(fake, world, dataset, given.has('f')) {
            return Said::err(1, busy);
        }
    }
    Said::nothing()
}
