//! zfs(8) of OpenZFS 2.2.

mod change;
mod destroy;
mod list;
mod mounting;
mod properties;

use crate::fake::{Caller, Fake, Said};
use crate::laws::below;
use crate::options::{Options, Refused};
use crate::world::World;

const PROPERTIES: &str = include_str!("properties.txt");
const COMMANDS: &str = include_str!("usage.txt");
const MORE_HELP: &str = "\nFor the property list, run: zfs set|get\n\n\
    For the delegated permission list, run: zfs allow|unallow\n\n\
    For further help on a command or topic, run: zfs help [<topic>]\n";

pub(super) fn run(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let Some((command, rest)) = arguments.split_first() else {
        return Said::err(2, format!("missing command\n{COMMANDS}"));
    };
    fake.change(|world| match command.as_str() {
        "version" => Said::out("zfs-2.2.4-FreeBSD_g256659204\nzfs-kmod-2.2.4-FreeBSD_g256659204\n"),
        "list" => list::list(world, rest),
        "get" => list::get(world, rest),
        "set" => change::set(world, rest),
        "inherit" => change::inherit(world, rest),
        "create" => change::create(fake, world, rest),
        "snapshot" | "snap" => change::snapshot(fake, world, rest, caller),
        "clone" => change::clone(fake, world, rest),
        "rename" => change::rename(fake, world, rest),
        "hold" | "release" | "holds" => change::holds(world, command, rest),
        "destroy" => destroy::destroy(fake, world, rest, caller),
        "mount" => mounting::mount(fake, world, rest),
        "unmount" | "umount" => mounting::unmount(fake, world, rest),
        other => {
            world.violations.push(format!("zfs {other}: an unknown command"));
            Said::err(2, format!("unrecognized command '{other}'\n{COMMANDS}"))
        }
    })
}

/// What a command answers to arguments it does not understand.
fn usage(command: &str, problem: &str) -> Said {
    // Commands whose usage explains the properties.
    let with_properties = matches!(command, "list" | "get" | "set");
    let mut text = format!("{problem}\nusage:\n");
    let lines = COMMANDS.lines().skip_while(|line| !line.starts_with(&format!("\t{command} ")));
    for line in
        lines.take_while(|line| line.starts_with(&format!("\t{command} ")) || line.starts_with("\t    "))
    {
        text.push_str(line);
        text.push('\n');
    }
    match with_properties {
        true => text.push_str(&format!("\n{PROPERTIES}")),
        false => text.push_str(MORE_HELP),
    }
    Said::err(2, text)
}

/// Options, or the usage that zfs answers.
fn options(world: &mut World, command: &str, arguments: &[String], known: &str) -> Result<Options, Said> {
    Options::parse(arguments, known).map_err(|refused| {
        world.violations.push(format!("zfs {command} {}: {refused:?}", arguments.join(" ")));
        match refused {
            Refused::Unknown(letter) => usage(command, &format!("invalid option '{letter}'")),
            Refused::NoArgument(letter) => usage(command, &format!("missing argument for '{letter}' option")),
        }
    })
}

fn missing(name: &str) -> Said {
    Said::err(1, format!("cannot open '{name}': dataset does not exist\n"))
}

fn parent(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(parent, _)| parent)
}

/// A dataset and what is below it, in the order of their names.
fn tree(world: &World, name: &str) -> Vec<String> {
    world.datasets.keys().filter(|dataset| below(dataset, name)).cloned().collect()
}

/// The dataset of a snapshot's name.
fn dataset_of(snapshot: &str) -> &str {
    snapshot.split_once('@').map_or(snapshot, |(dataset, _)| dataset)
}

/// The longest name, without the terminating NUL.
const LONGEST_NAME: usize = 255;

/// Why a dataset cannot have this name.
fn bad_new_name(world: &World, name: &str) -> Option<String> {
    let why = if name.len() > LONGEST_NAME {
        "name is too long"
    } else if world.datasets.contains_key(name) {
        "dataset already exists"
    } else if parent(name).is_none_or(|parent| !world.datasets.contains_key(parent)) {
        "parent does not exist"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// `10G` in bytes.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        _ => return None,
    };
    number.checked_mul(1 << unit)
}

/// Where a dataset belongs.
pub(super) fn mountpoint_of(world: &World, name: &str) -> String {
    properties::mountpoint(world, name).0
}
