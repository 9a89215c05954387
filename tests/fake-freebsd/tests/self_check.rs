//! The fake cannot drift from the recordings: what was recorded on a running FreeBSD is done once more, command by
//! command, with the fake tools on disk, and they must say the same on stdout and stderr and end with the same code.
//!
//! `transcripts/` holds excerpts of the recordings, in the recordings' own form and order. Lines that begin with `@` say
//! what the recording script did beside the recorded commands (a process that sits in a folder, a file that it wrote).
//! Numbers that a system gives out (of jails and processes) may differ, but one recorded number must always be the same
//! other one. Times and the addresses of new interfaces are compared by their form.

#![allow(clippy::unwrap_used)]

mod replay;

use replay::Replay;

#[test]
fn the_tools_say_what_was_recorded() {
    let mut wrong = Vec::new();
    let mut commands = 0;
    let mut tools = std::collections::BTreeMap::<String, usize>::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/transcripts")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let mut replay = Replay::new();
        for entry in replay::entries(&std::fs::read_to_string(&path).unwrap()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            match replay.play(&entry) {
                Ok(None) => {}
                Ok(Some(tool)) => {
                    commands += 1;
                    *tools.entry(tool).or_default() += 1;
                }
                Err(difference) => wrong.push(format!("{name}:{}: {difference}", entry.line)),
            }
        }
    }
    println!("self-check: {commands} recorded commands replayed: {tools:?}");
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    for tool in fake_freebsd::TOOLS {
        // What the driver never starts itself has no recording of its own. arp(8) and ipfw(8) were not recorded:
        // their fakes follow the manual pages.
        if !["arp", "ipfw", "kill", "pkill", "route"].contains(tool) {
            assert!(tools.contains_key(*tool), "no recording of {tool} is replayed");
        }
    }
    assert!(commands > 400, "{commands} commands are too few: are the transcripts whole?");
}

#[test]
fn an_unknown_argument_is_refused_and_noted() {
    for line in [
        "zfs list -H -Q",
        "zfs frobnicate",
        "jls -y",
        "jail -n -f /x -c y",
        "ifconfig lo0 frobnicate",
        "pfctl -t x -T frob",
        "rctl -y",
        "ps -axo pid,frob",
        "mount -Y",
        "umount",
        "kill -FROB 1",
        "bastille frob",
    ] {
        let replay = Replay::new();
        let said = replay.run(line);
        assert_ne!(said.code, 0, "{line} succeeds");
        assert!(!said.err.is_empty(), "{line} says nothing");
        let violations = replay.machine.world().violations;
        assert_eq!(violations.len(), 1, "{line}: {violations:?}");
    }
}
