//! `zfs list` and `zfs get`, in the forms that programs use.

use super::{options, properties, tree, usage};
use crate::fake::Said;
use crate::world::World;
use std::fmt::Write;

/// What `-t` names.
struct Kinds {
    filesystems: bool,
    snapshots: bool,
}

impl Kinds {
    fn of(text: Option<&str>) -> Option<Kinds> {
        let mut kinds = Kinds { filesystems: text.is_none(), snapshots: false };
        for word in text.into_iter().flat_map(|text| text.split(',')) {
            match word {
                "filesystem" | "fs" => kinds.filesystems = true,
                "snapshot" | "snap" => kinds.snapshots = true,
                "all" => (kinds.filesystems, kinds.snapshots) = (true, true),
                "volume" | "bookmark" => {}
                _ => return None,
            }
        }
        Some(kinds)
    }
}

/// What is listed, and the names that do not exist.
fn chosen(
    world: &World,
    operands: &[String],
    kinds: &Kinds,
    deep: Option<usize>,
) -> (Vec<String>, String, i32) {
    let (mut found, mut errors) = (Vec::new(), String::new());
    let all: Vec<String> = world.datasets.keys().filter(|name| !name.contains('/')).cloned().collect();
    let (operands, deep) = match operands {
        [] => (all.as_slice(), Some(deep.unwrap_or(usize::MAX))),
        some => (some, deep),
    };
    for name in operands {
        if name.contains('@') {
            match world.snapshots.iter().any(|snapshot| snapshot.name == *name) {
                true => found.push(name.clone()),
                false => errors.push_str(&super::missing(name).err),
            }
            continue;
        }
        if !world.datasets.contains_key(name) {
            errors.push_str(&super::missing(name).err);
            continue;
        }
        let level = |dataset: &str| dataset[name.len()..].matches('/').count();
        // Snapshots of a dataset are one level below it.
        let (deep, only_snapshots) = (deep.unwrap_or(0), kinds.snapshots && !kinds.filesystems);
        for dataset in tree(world, name) {
            if kinds.filesystems && level(&dataset) <= deep {
                found.push(dataset.clone());
            }
            if kinds.snapshots && (level(&dataset) < deep || (only_snapshots && level(&dataset) <= deep)) {
                let of = |snapshot: &&crate::Snapshot| super::dataset_of(&snapshot.name) == dataset;
                found.extend(world.snapshots.iter().filter(of).map(|snapshot| snapshot.name.clone()));
            }
        }
    }
    let code = i32::from(!errors.is_empty());
    (found, errors, code)
}

/// How deep: nothing, `-r` or `-d N`.
fn depth(given: &crate::options::Options) -> Option<usize> {
    match given.value('d') {
        Some(text) => text.parse().ok(),
        None => given.has('r').then_some(usize::MAX),
    }
}

pub(super) fn list(world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "list", arguments, "Hprd:o:s:S:t:") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let columns: Vec<&str> =
        given.value('o').unwrap_or("name,used,avail,refer,mountpoint").split(',').collect();
    if let Some(bad) = columns.iter().find(|column| !properties::exists(column)) {
        world.violations.push(format!("zfs list of the property {bad}"));
        return usage("list", &format!("bad property list: invalid property '{bad}'"));
    }
    let Some(kinds) = Kinds::of(given.value('t')) else {
        world.violations.push(format!("zfs list {}", arguments.join(" ")));
        return usage("list", "invalid type");
    };
    if !given.has('H') {
        world.violations.push("zfs list for people: the fake only knows -H".to_owned());
        return Said::err(99, "fake zfs: use -H\n");
    }
    let (found, err, code) = chosen(world, &given.operands, &kinds, depth(&given));
    let mut out = String::new();
    for name in found {
        let row: Vec<String> =
            columns.iter().map(|column| properties::value(world, &name, column, given.has('p')).0).collect();
        let _ = writeln!(out, "{}", row.join("\t"));
    }
    Said { out, err, code }
}

pub(super) fn get(world: &mut World, arguments: &[String]) -> Said {
    let given = match options(world, "get", arguments, "Hprd:o:s:t:") {
        Ok(given) => given,
        Err(said) => return said,
    };
    let Some((wanted, operands)) = given.operands.split_first() else {
        world.violations.push("zfs get of nothing".to_owned());
        return usage("get", "missing property argument");
    };
    let wanted: Vec<&str> = wanted.split(',').collect();
    if let Some(bad) = wanted.iter().find(|name| !properties::exists(name)) {
        world.violations.push(format!("zfs get of the property {bad}"));
        return usage("get", &format!("bad property list: invalid property '{bad}'"));
    }
    let kinds = match given.value('t') {
        None => Kinds { filesystems: true, snapshots: true },
        some => Kinds::of(some).unwrap_or(Kinds { filesystems: true, snapshots: false }),
    };
    if !given.has('H') {
        world.violations.push("zfs get for people: the fake only knows -H".to_owned());
        return Said::err(99, "fake zfs: use -H\n");
    }
    let fields: Vec<&str> = given.value('o').unwrap_or("name,property,value,source").split(',').collect();
    let sources: Option<Vec<&str>> = given.value('s').map(|text| text.split(',').collect());
    let (found, err, code) = chosen(world, operands, &kinds, depth(&given));
    let mut out = String::new();
    for name in found {
        for property in &wanted {
            let (value, source) = properties::value(world, &name, property, given.has('p'));
            let kind = source.split(' ').next().unwrap_or("-");
            let kind = if kind == "-" { "none" } else { kind };
            if sources.as_ref().is_some_and(|sources| !sources.contains(&kind)) {
                continue;
            }
            let row: Vec<&str> = fields
                .iter()
                .map(|field| match *field {
                    "name" => name.as_str(),
                    "property" => property,
                    "value" => value.as_str(),
                    "source" => source.as_str(),
                    _ => "-",
                })
                .collect();
            let _ = writeln!(out, "{}", row.join("\t"));
        }
    }
    Said { out, err, code }
}
