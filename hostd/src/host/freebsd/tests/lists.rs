//! Jails, processes, limits and mounts.

use super::{id, names, recorded, runs};
use crate::api::Limits;
use crate::host::Identity;
use crate::host::freebsd::{conf, jails, mounts, processes, rctl};
use std::path::Path;

#[test]
fn jails_are_read_from_the_recorded_form() {
    let none = jails::read(&recorded("jls --libxo json").stdout).unwrap();
    assert_eq!(none, []);
    // Recorded without the identity's column, which is read like any other.
    let one = recorded("jls --libxo json name path jid dying vnet").stdout;
    assert_eq!(jails::read(&one).unwrap()[0].uuid, "", "a jail without identity");
    for column in ["name", "path", "jid", "dying"] {
        let without = one.replace(&format!("\"{column}\""), "\"another\"");
        assert!(jails::read(&without).is_err(), "{column} is missing");
    }
    let with = |uuid: &str| {
        one.replace("\"vnet\":\"inherit\"", &format!("\"vnet\":\"inherit\",\"host.hostuuid\":\"{uuid}\""))
    };
    let found = jails::read(&with("x")).unwrap();
    assert_eq!(
        (found[0].name.as_str(), found[0].jid, found[0].dying, found[0].vnet),
        ("pj", 2, false, false)
    );
    for (from, to) in [
        ("\"jid\":\"2\"", "\"jid\":\"0\""),
        ("\"jid\":\"2\"", "\"jid\":\"-2\""),
        ("\"jid\":\"2\"", "\"jid\":\"\""),
        ("\"false\"", "\"no\""),
    ] {
        let text = with("x").replace(from, to);
        assert!(jails::read(&text).is_err(), "{to}");
    }
    for other in [
        "",
        "{}",
        "[]",
        "   JID  IP Address      Hostname                      Path\n",
        &one[..one.len() / 2],
    ] {
        assert!(jails::read(other).is_err(), "{other:?}");
    }
}

/// Values in the other forms that libxo has, as a later release may print them.
#[test]
fn jails_are_read_with_values_of_any_form() {
    let names = names();
    let root = conf::root(&names).display().to_string();
    let text = jail("browsertask001", 5, false, &root, &conf::uuid(&id('a')));
    let plain = listed(std::slice::from_ref(&text));
    for (from, to) in
        [("\"5\"", "5"), ("\"false\"", "false"), ("\"false\"", "0"), ("\"vnet\"", "\"desc\":7,\"vnet\"")]
    {
        assert_ne!(text.replace(from, to), text);
        assert_eq!(listed(&[text.replace(from, to)]), plain, "{to}");
    }
    assert!(listed(&[text.replace("\"false\"", "true")])[0].dying);
    // A jail of others with an unknown word does not hide ours.
    let other = jail("www", 6, false, "/www", "").replace("\"new\"", "\"other\"");
    let both = listed(&[other.replace("\"\"", "null"), text]);
    assert_eq!(jails::observed(&both, &names).unwrap().identity, Identity::Clone(id('a')));
}

fn jail(name: &str, jid: u32, dying: bool, path: &str, uuid: &str) -> String {
    format!(
        r#"{{"name":"{name}","path":"{path}","jid":"{jid}","dying":"{dying}","vnet":"new","host.hostuuid":"{uuid}"}}"#
    )
}

fn listed(jails: &[String]) -> Vec<jails::Jail> {
    let text = format!(r#"{{"__version": "2", "jail-information": {{"jail": [{}]}}}}"#, jails.join(","));
    jails::read(&text).unwrap()
}

#[test]
fn a_live_jail_hides_the_dying_one_of_its_name() {
    let names = names();
    let root = conf::root(&names).display().to_string();
    let (old, new) = (conf::uuid(&id('a')), conf::uuid(&id('b')));
    let both = listed(&[
        jail("browsertask001", 52, true, &root, &old),
        jail("browsertask001", 53, false, &root, &new),
    ]);
    let seen = jails::observed(&both, &names).unwrap();
    assert_eq!((seen.identity, seen.dying), (Identity::Clone(id('b')), false));
    assert_eq!(jails::of(&both, &names).unwrap().jid, 53);
    let only = listed(&[jail("browsertask001", 52, true, &root, &old)]);
    assert!(jails::observed(&only, &names).unwrap().dying);
    assert_eq!(jails::observed(&listed(&[jail("browsertask0010", 1, false, &root, &old)]), &names), None);
}

#[test]
fn a_jail_is_identified_by_its_uuid_and_path() {
    let names = names();
    let root = conf::root(&names).display().to_string();
    let of = |path: &str, uuid: &str| {
        jails::observed(&listed(&[jail("browsertask001", 5, false, path, uuid)]), &names).unwrap().identity
    };
    assert_eq!(of(&root, &conf::uuid(&id('a'))), Identity::Clone(id('a')));
    assert_eq!(of(&root, "00000000-0000-0000-0000-000000000000"), Identity::Unmarked);
    assert!(matches!(of("/lab/j1", &conf::uuid(&id('a'))), Identity::Foreign(_)));
    let text =
        jail("browsertask001", 5, false, &root, &conf::uuid(&id('a'))).replace("\"new\"", "\"inherit\"");
    assert!(matches!(jails::observed(&listed(&[text]), &names).unwrap().identity, Identity::Foreign(_)));
}

#[test]
fn processes_are_attributed_by_their_jail() {
    let text = "  PID JID STAT\n    0   0 DLs\n    1   0 ILs\n24520  46 SsJ\n24802  46 SJ\n24836  47 SCJ\n24900  46 ZJ\n";
    let found = processes::read(text).unwrap();
    assert_eq!(found.len(), 5, "the dead do not count");
    assert_eq!(processes::inside(&found, 46).into_iter().collect::<Vec<_>>(), [24520, 24802]);
    assert!(processes::inside(&found, 0).is_empty(), "the host is no clone");
    assert!(processes::inside(&found, 99).is_empty());
    let own = format!("  PID JID STAT\n{} 46 SJ\n1 46 SJ\n", std::process::id());
    assert!(processes::inside(&processes::read(&own).unwrap(), 46).is_empty(), "neither hostd nor init");
    let recorded = recorded(
        "sh -c: jexec browser ps -axo pid,ppid,pgid,sid,state,command; jexec browser cat /var/run/labd.pid",
    );
    assert!(processes::read(&recorded.stdout).is_err(), "other columns");
    for other in [
        "",
        "  PID JID STAT\n",
        "  PID  JID\n1 0\n",
        "PID JID STAT\n1 0\n",
        "PID JID STAT\n1 0 S extra\n",
        "PID JID STAT\nx 0 S\n",
        "PID JID STAT\n1 0 S",
    ] {
        assert!(processes::read(other).is_err(), "{other:?}");
    }
}

#[test]
fn recorded_rules_are_read_and_converted_to_limits() {
    for run in
        runs().into_iter().filter(|run| run.command == "rctl" && run.exit == 0 && run.stderr.is_empty())
    {
        rctl::read(&run.stdout).unwrap_or_else(|error| panic!("{}: {error}", run.file));
    }
    let full =
        runs().into_iter().find(|run| run.command == "rctl" && run.stdout.lines().count() > 5).unwrap();
    let found = rctl::read(&full.stdout).unwrap();
    assert_eq!(found["rj"].len(), full.stdout.lines().count());
    assert!(found["rj"].contains(&("memoryuse:sigkill".into(), 1 << 30)));

    let limits = Limits {
        memory_bytes: Some(2 << 30),
        processes: Some(1024),
        open_files: Some(8192),
        cpu_percent: Some(200),
        disk_bytes: Some(10 << 30),
        read_bytes_per_second: Some(1 << 20),
        write_bytes_per_second: None,
    };
    let rules = rctl::rules(&names(), &limits);
    assert_eq!(
        rules,
        [
            "jail:browsertask001:memoryuse:sigkill=2147483648",
            "jail:browsertask001:maxproc:deny=1024",
            "jail:browsertask001:openfiles:deny=8192/process",
            "jail:browsertask001:pcpu:deny=200",
            "jail:browsertask001:readbps:throttle=1048576",
        ]
    );
    let text =
        rules.iter().rev().map(|rule| format!("{rule}\n")).collect::<String>() + "process:1:maxproc:deny=5\n";
    let seen = rctl::observed(&rctl::read(&text).unwrap(), &names());
    assert_eq!(seen, Some(Limits { disk_bytes: None, ..limits }), "the quota is the storage's");
    let by_hand = rctl::read("jail:browsertask001:pcpu:log=10\n").unwrap();
    assert_eq!(
        rctl::observed(&by_hand, &names()),
        Some(Limits::default()),
        "a rule is there, though none of ours"
    );
    assert_eq!(rctl::observed(&rctl::read("").unwrap(), &names()), None);
    assert_eq!(rctl::observed(&rctl::read("jail:browsertask0011:pcpu:deny=1\n").unwrap(), &names()), None);
    for other in [
        "jail:rj:maxproc:deny\n",
        "jail:rj:maxproc\n",
        "jail::maxproc:deny=5\n",
        "x:rj:maxproc:deny=5\n",
        "jail:rj:maxproc:deny=5k\n",
        "jail:rj:maxproc:deny=5/\n",
        "jail:rj:maxproc:deny=5",
        "\n",
    ] {
        assert!(rctl::read(other).is_err(), "{other:?}");
    }
}

#[test]
fn recorded_mounts_are_read_with_their_spaces() {
    let own = Path::new("/usr/local/bastille/jails");
    let all = mounts::read(&recorded("mount -p").stdout, own).unwrap();
    assert_eq!(all.len(), recorded("mount -p").stdout.lines().count());
    let jails = all.iter().find(|mount| mount.at == "/usr/local/bastille/jails").unwrap();
    assert_eq!((jails.source.as_str(), jails.kind.as_str()), ("zroot/bastille/jails", "zfs"));
    assert!(
        all.iter().any(|mount| mount.source == "/tmp/ms" && mount.at == "/tmp/mt" && mount.kind == "nullfs")
    );
    let spaced = recorded("sh -c: mount -p | grep with").stdout;
    assert_eq!(mounts::read(&spaced, own).unwrap()[0].at, "/tmp/with space");
    let twice = recorded("sh -c: ifconfig -l; mount -p | grep /lab/j1/dev").stdout;
    let (_, devfs) = twice.split_once('\n').unwrap();
    assert_eq!(mounts::read(devfs, own).unwrap().len(), 2, "one place can be mounted twice");

    let strange = "/dev/gpt/disk of /mine and /yours/x /mnt/a place ufs\trw\t\t0 0\n/dev/a\t\t\t/\t\t\tufs\trw\t\t1 1\n";
    assert_eq!(mounts::read(strange, own).unwrap().len(), 1, "what cannot be ours is passed over");
    let about_us = "/dev/gpt/disk of /mine and /yours/x /usr/local/bastille/jails/browsertask001/root/x ufs\trw\t\t0 0\n";
    assert!(mounts::read(about_us, own).is_err(), "what may be ours must be understood");
    for other in ["", "\n", "devfs\n", "devfs\t/dev\tdevfs\trw\t0\n", "/dev/a / ufs rw 1 1"] {
        assert!(mounts::read(other, own).is_err(), "{other:?}");
    }
}

#[test]
fn mounts_below_a_clone_are_listed_deepest_first_without_its_datasets() {
    let line = |source: &str, at: &str, kind: &str| format!("{source}\t{at}\t{kind}\trw\t\t0 0\n");
    let folder = "/usr/local/bastille/jails/browsertask001";
    let text = [
        line("zroot/bastille/jails/browsertask001", folder, "zfs"),
        line("zroot/bastille/jails/browsertask001/root", &format!("{folder}/root"), "zfs"),
        line("devfs", &format!("{folder}/root/dev"), "devfs"),
        line("fdescfs", &format!("{folder}/root/dev/fd"), "fdescfs"),
        line("/var/cache/pkg", &format!("{folder}/root/var/cache/pkg"), "nullfs"),
        line("devfs", &format!("{folder}/root/dev"), "devfs"),
        line("zroot/other", &format!("{folder}/root/mnt"), "zfs"),
        line("devfs", "/usr/local/bastille/jails/browsertask0010/root/dev", "devfs"),
        line("zroot/bastille/jails/browsertask001x", "/usr/local/bastille/jails/browsertask001x", "zfs"),
    ]
    .concat();
    let all = mounts::read(&text, Path::new("/usr/local/bastille/jails")).unwrap();
    let below: Vec<&str> =
        mounts::below(&all, &names()).into_iter().map(|mount| &mount.at[folder.len()..]).collect();
    assert_eq!(below, ["/root/var/cache/pkg", "/root/dev/fd", "/root/mnt", "/root/dev", "/root/dev"]);
}
