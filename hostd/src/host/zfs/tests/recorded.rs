//! The readers on recorded output and on mutations of it.

use super::*;
use crate::host::command::{Ended, Outcome};
use crate::host::zfs::datasets::Datasets;
use crate::host::zfs::listing::{self, Table};
use crate::host::zfs::refusal::{Refusal, RefusalKind};
use proptest::prelude::*;
use std::time::Duration;

const FREEBSD: &str = include_str!("../../../../tests/data/zfs/freebsd.txt");
const LINUX: &str = include_str!("../../../../tests/data/zfs/linux.txt");

/// One recorded command.
struct Entry {
    command: String,
    stdout: String,
    stderr: String,
    code: i32,
}

fn recorded() -> Vec<Entry> {
    let mut entries = Vec::new();
    for block in FREEBSD.split("\n\n").chain(LINUX.split("\n\n")) {
        let Some(rest) = block.trim_start_matches('\n').strip_prefix("$ ") else { continue };
        let mut lines = rest.lines();
        let mut entry = Entry {
            command: lines.next().unwrap().to_owned(),
            stdout: String::new(),
            stderr: String::new(),
            code: -1,
        };
        let mut into = 0;
        for line in lines {
            match line {
                "--- stdout" => into = 1,
                "--- stderr" => into = 2,
                _ => match line.strip_prefix("--- exit ") {
                    Some(code) => entry.code = code.parse().unwrap(),
                    None => {
                        let text = if into == 1 { &mut entry.stdout } else { &mut entry.stderr };
                        text.push_str(line);
                        text.push('\n');
                    }
                },
            }
        }
        assert!(entry.code >= 0, "{}", entry.command);
        entries.push(entry);
    }
    assert!(entries.len() > 300, "{} recorded commands", entries.len());
    entries
}

fn refusal(stderr: &str) -> Refusal {
    Refusal::of(&Outcome {
        tool: "zfs",
        command: "zfs".into(),
        ended: Ended::Code(1),
        stdout: Vec::new(),
        stderr: stderr.into(),
        duration: Duration::ZERO,
    })
}

#[test]
fn every_recorded_refusal_is_classified_as_in_the_table() {
    let mut text = String::new();
    for entry in recorded().iter().filter(|entry| entry.code != 0) {
        let why = refusal(&entry.stderr).kind;
        let first = entry.stderr.lines().next().unwrap_or_default();
        // Very long names say no more than long ones.
        let short = |text: &str| {
            text.replace(&"x".repeat(40), "").replace(&"v".repeat(40), "").replace(&"n".repeat(40), "")
        };
        text.push_str(&format!("{why:?}\n    $ {}\n    {}\n", short(&entry.command), short(first)));
    }
    super::commands::golden("refusals.txt", &text);
}

#[test]
fn messages_from_the_source_of_libzfs_are_classified() {
    let known = [
        ("cannot open 'tank': pool I/O is currently suspended\n", RefusalKind::Suspended),
        ("cannot create 'tank/a': pool is read-only\n", RefusalKind::ReadOnly),
        ("cannot create 'tank/a': dataset name is too long\n", RefusalKind::NameTooLong),
        ("cannot unmount 'tank/a': not currently mounted\n", RefusalKind::NotMounted),
        (
            "The ZFS modules are not loaded.\nTry running 'modprobe zfs' as root to load them.\n",
            RefusalKind::NotLoaded,
        ),
        (
            "The ZFS modules cannot be auto-loaded.\nTry running 'modprobe zfs' as root.\n",
            RefusalKind::NotLoaded,
        ),
        ("internal error: failed to initialize ZFS library\n", RefusalKind::NotLoaded),
    ];
    for (words, why) in known {
        assert_eq!(refusal(words).kind, why, "{words}");
    }
}

#[test]
fn an_unknown_message_is_passed_on_unchanged() {
    for words in [
        "",
        "\n",
        "cannot",
        "cannot ",
        "cannot destroy 'tank/a': ",
        "cannot destroy 'tank/a': dataset is busy now",
        "cannot destroy 'tank/a': Dataset is busy",
        "kann 'tank/a' nicht aushängen: Das Gerät ist belegt",
        "no datasets available",
        "Permission denied the ZFS utilities must be run as root.",
    ] {
        let refusal = refusal(words);
        assert_eq!(refusal.kind, RefusalKind::Unknown, "{words:?}");
        let error = refusal.about("tank/a");
        assert_eq!(error.kind, crate::host::HostErrorKind::Failed);
        assert!(words.trim().is_empty() || crate::host::chain(&error).contains(words.trim()), "{error:?}");
    }
}

#[test]
fn datasets_in_the_way_are_named() {
    let words = "cannot destroy 'p/t': filesystem has children\nuse '-r' to destroy the following datasets:\np/t@a\np/t/root\n";
    assert_eq!(refusal(words).kind, RefusalKind::Children(vec!["p/t@a".into(), "p/t/root".into()]));
}

/// The properties that a recorded `zfs get` asked for, if it printed the four columns.
fn asked(command: &str) -> Option<Vec<&str>> {
    let rest = command.strip_prefix("zfs get -Hp ").or_else(|| command.strip_prefix("zfs get -H "))?;
    let rest = rest.strip_prefix("-p ").unwrap_or(rest).strip_prefix("-o name,property,value,source ")?;
    let words: Vec<&str> = rest.split(' ').filter(|word| *word != "-r").collect();
    Some(words.first()?.split(',').collect())
}

fn recorded_tables() -> Vec<(String, Vec<String>)> {
    let entries = recorded();
    let tables = entries.iter().filter(|entry| entry.code == 0).filter_map(|entry| {
        let properties = asked(&entry.command)?;
        Some((entry.stdout.clone(), properties.into_iter().map(str::to_owned).collect()))
    });
    tables.collect()
}

/// What was read, written again as `zfs` would.
fn written(table: &Table, properties: &[&str]) -> BTreeLines {
    let lines = table.iter().flat_map(|(name, values)| {
        let both = properties.iter().zip(values);
        both.map(move |(property, value)| format!("{name}\t{property}\t{}\t{}", value.value, value.source))
    });
    lines.collect()
}
type BTreeLines = std::collections::BTreeSet<String>;

#[test]
fn recorded_output_is_read_completely() {
    let tables = recorded_tables();
    assert!(tables.len() >= 10, "{} recorded tables", tables.len());
    for (text, properties) in &tables {
        let properties: Vec<&str> = properties.iter().map(String::as_str).collect();
        let table = listing::read(text, &properties).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(written(&table, &properties), text.lines().map(str::to_owned).collect(), "{text}");
    }
}

/// A look as `zfs get` prints it: four clones in different states, below the default parent.
pub(super) const LOOK: &str = include_str!("../../../../tests/data/zfs/look.txt");

#[test]
fn an_inspection_is_read() {
    let parent = "zroot/bastille/jails";
    let seen = Datasets::read(LOOK, parent).unwrap();
    let (layout, slots) = (layout(), slots());
    let used: Vec<String> = seen.slots(&layout, &slots).map(|slot| slot.to_string()).collect();
    assert_eq!(used, ["001", "002", "003", "004"]);
    assert_eq!(seen.aside(&layout), [id(OTHER)].into());
    let first = seen.get("zroot/bastille/jails/browsertask001").unwrap();
    assert_eq!((first.quota, first.mounted, first.mark.as_deref()), (10737418240, true, Some(ID)));
    assert!(Datasets::read(LOOK, "zroot/other").is_err(), "not what was asked for");
    assert!(Datasets::read("", parent).is_err(), "no zfs that works says nothing");
    for columns in ["list", "get"] {
        // Columns of another command are never taken for these.
        let wrong = format!("zroot/bastille/jails\t{columns}\n");
        assert!(Datasets::read(&wrong, parent).is_err());
    }
}

#[derive(Debug, Clone)]
enum Mutation {
    Truncate(usize),
    Replace(usize, String),
    Insert(usize, String),
    DropLine(usize),
    DoubleLine(usize),
    SwapLines(usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let piece = prop_oneof![
        Just("\t".to_owned()),
        Just("\n".to_owned()),
        Just("-".to_owned()),
        Just("ja".to_owned()),
        Just("\u{fffd}".to_owned()),
        "[ -~]{0,6}",
        any::<char>().prop_map(String::from),
    ];
    prop_oneof![
        any::<usize>().prop_map(Mutation::Truncate),
        (any::<usize>(), piece.clone()).prop_map(|(at, piece)| Mutation::Replace(at, piece)),
        (any::<usize>(), piece).prop_map(|(at, piece)| Mutation::Insert(at, piece)),
        any::<usize>().prop_map(Mutation::DropLine),
        any::<usize>().prop_map(Mutation::DoubleLine),
        (any::<usize>(), any::<usize>()).prop_map(|(one, other)| Mutation::SwapLines(one, other)),
    ]
}

fn mutated(text: &str, mutation: &Mutation) -> String {
    let place = |at: usize| {
        let at = at % (text.len() + 1);
        (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap()
    };
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let count = lines.len().max(1);
    match mutation {
        Mutation::Truncate(at) => return text[..place(*at)].to_owned(),
        Mutation::Replace(at, piece) => {
            let at = place(*at);
            let end = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
            return format!("{}{piece}{}", &text[..at], &text[end..]);
        }
        Mutation::Insert(at, piece) => {
            return format!("{}{piece}{}", &text[..place(*at)], &text[place(*at)..]);
        }
        Mutation::DropLine(at) => drop(lines.remove(at % count)),
        Mutation::DoubleLine(at) => lines.insert(at % count, lines[at % count]),
        Mutation::SwapLines(one, other) => lines.swap(one % count, other % count),
    }
    lines.concat()
}

proptest! {
    /// Changed output is refused or read exactly: no panic, no guess.
    #[test]
    fn changed_output_is_refused_or_read_exactly(which in any::<usize>(), mutation in mutation()) {
        let mut tables = recorded_tables();
        tables.push((LOOK.to_owned(), crate::host::zfs::layout::LOOK.map(str::to_owned).into()));
        let (text, properties) = &tables[which % tables.len()];
        let properties: Vec<&str> = properties.iter().map(String::as_str).collect();
        let changed = mutated(text, &mutation);
        if let Ok(table) = listing::read(&changed, &properties) {
            let lines: Vec<&str> = changed.lines().collect();
            prop_assert_eq!(written(&table, &properties).len(), lines.len());
            prop_assert!(changed.is_empty() || changed.ends_with('\n'));
            prop_assert_eq!(written(&table, &properties), changed.lines().map(str::to_owned).collect());
        }
    }

    /// A dataset is shown with the values that its lines have, or the whole look is refused.
    #[test]
    fn a_changed_inspection_invents_no_dataset(mutation in mutation()) {
        let changed = mutated(LOOK, &mutation);
        if let Ok(seen) = Datasets::read(&changed, "zroot/bastille/jails") {
            for slot in seen.slots(&layout(), &slots()) {
                let names = slots().names(slot);
                let mounted = changed.contains(&format!("{}\tmounted\tyes\t-\n", names.dataset));
                let storage = seen.storage(&layout(), &names).unwrap();
                prop_assert!(!storage.mounted || mounted);
                if let crate::host::Identity::Clone(id) = &storage.identity {
                    let line = format!("\torg.hostd:clone_id\t{id}\tlocal\n");
                    prop_assert!(changed.contains(&line), "{}", line);
                }
            }
        }
    }

    #[test]
    fn a_changed_message_is_unknown(which in any::<usize>(), tail in "[ -~]{1,12}") {
        let refusals: Vec<Entry> = recorded().into_iter().filter(|entry| entry.code != 0).collect();
        let stderr = &refusals[which % refusals.len()].stderr;
        let first = stderr.lines().next().unwrap_or_default();
        let held = first.contains("it's being held. ") || first.contains("no such pool '");
        let why = refusal(&format!("{first}{tail}\n")).kind;
        prop_assert!(held || why == RefusalKind::Unknown || tail.contains(": "), "{:?}: {}{}", why, first, tail);
        let _ = refusal(&tail);
    }
}
