//! mount(8) and umount(8).

use crate::fake::{Fake, Said};
use crate::laws::below;
use crate::options::Options;
use crate::world::{Mount, World};
use std::fmt::Write;

pub(super) fn mount(fake: &Fake, arguments: &[String]) -> Said {
    const USAGE: &str = "usage: mount [-adflpruvw] [-F fstab] [-o options] [-t ufs | external_type]\n";
    let given = match Options::parse(arguments, "adflpruvwF:o:t:") {
        Ok(given) => given,
        Err(why) => return super::refused(fake, "mount", arguments, why, USAGE),
    };
    fake.change(|world| match &given.operands[..] {
        [] if given.has('p') => Said::out(table(world)),
        [source, target] => {
            mount_one(world, given.value('t').unwrap_or("ufs"), source, target, given.value('o'))
        }
        _ => {
            world.violations.push(format!("mount {}: not known to the fake", arguments.join(" ")));
            Said::err(1, USAGE)
        }
    })
}

/// The mounts in the form of an fstab: columns of 24, by tabs.
fn table(world: &World) -> String {
    let mut text = String::new();
    let column = |text: &mut String, word: &str| {
        text.push_str(word);
        text.push_str(match word.len() {
            0..8 => "\t\t\t",
            8..16 => "\t\t",
            16..24 => "\t",
            _ => " ",
        });
    };
    for mount in &world.mounts {
        column(&mut text, &mount.source);
        column(&mut text, &mount.target);
        let pad = if mount.options.len() < 8 { '\t' } else { ' ' };
        let passes = if mount.kind == "ufs" { "1 1" } else { "0 0" };
        let _ = writeln!(text, "{}\t{}{pad}\t{passes}", mount.kind, mount.options);
    }
    text
}

fn mount_one(world: &mut World, kind: &str, source: &str, target: &str, options: Option<&str>) -> Said {
    if !["nullfs", "tmpfs", "devfs", "procfs", "fdescfs"].contains(&kind) {
        return Said::err(1, format!("mount: {source}: Invalid fstype: Invalid argument\n"));
    }
    if !world.real(target).is_dir() {
        return Said::err(1, format!("mount: {target}: No such file or directory\n"));
    }
    if kind == "nullfs" {
        if !world.real(source).is_dir() {
            return Said::err(64, format!("mount_nullfs: {source}: No such file or directory\n"));
        }
        if world
            .mounts
            .iter()
            .any(|mount| mount.kind == kind && mount.source == source && mount.target == target)
        {
            return Said::err(1, format!("mount_nullfs: {target}: Resource deadlock avoided\n"));
        }
    }
    // A nullfs mount has the flags of what it shows.
    let mut shown = world.mounts.iter().filter(|mount| mount.kind == "zfs" && below(source, &mount.target));
    let flags = match (options, shown.next_back()) {
        (Some(options), _) => options.to_owned(),
        (None, Some(mount)) if kind == "nullfs" => mount.options.clone(),
        _ => "rw".to_owned(),
    };
    let (source, target, kind) = (source.to_owned(), target.to_owned(), kind.to_owned());
    world.mounts.push(Mount { source, target, kind, options: flags });
    Said::nothing()
}

/// Unmount the newest mount on a place, or of a source.
pub(super) fn unmount_one(world: &mut World, place: &str, force: bool) -> Result<(), String> {
    let found = world.mounts.iter().rposition(|mount| mount.target == place);
    let found = found.or_else(|| world.mounts.iter().rposition(|mount| mount.source == place));
    let Some(at) = found else {
        if !world.real(place).exists() {
            return Err(format!(
                "umount: {place}: statfs: No such file or directory\numount: {place}: unknown file system\n"
            ));
        }
        return Err(format!("umount: {place}: not a file system root directory\n"));
    };
    let target = world.mounts[at].target.clone();
    let inside = |mount: &Mount| mount.target != target && below(&mount.target, &target);
    let busy = world.mounts.iter().any(inside) && !force;
    if world.busy(&target, force) || busy {
        return Err(format!("umount: unmount of {target} failed: Device busy\n"));
    }
    if world.mounts[at].kind == "zfs" {
        world
            .violations
            .push(format!("umount of the dataset {}: zfs unmount is for that", world.mounts[at].source));
        return Err(format!("fake umount: {target} is a dataset\n"));
    }
    world.holds.retain(|hold| !below(&hold.path, &target));
    world.mounts.remove(at);
    Ok(())
}

pub(super) fn umount(fake: &Fake, arguments: &[String]) -> Said {
    const USAGE: &str = "usage: umount [-fNnv] special ... | node ... | fsid ...\n";
    let given = match Options::parse(arguments, "aAfNnvF:h:t:") {
        Ok(given) => given,
        Err(why) => return super::refused(fake, "umount", arguments, why, USAGE),
    };
    if given.operands.is_empty() {
        fake.violation(format!("umount {}", arguments.join(" ")));
        return Said::err(1, USAGE);
    }
    fake.change(|world| {
        let mut said = Said::nothing();
        for place in &given.operands {
            if let Err(text) = unmount_one(world, place, given.has('f')) {
                said.err.push_str(&text);
                said.code = 1;
            }
        }
        said
    })
}
