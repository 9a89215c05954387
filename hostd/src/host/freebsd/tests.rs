//! The readers and the classification of errors, on what was recorded on a running FreeBSD and on mutations of it.

use super::errors::{Meaning, meaning};
use super::{conf, interfaces, jails, mounts, network, processes, rctl};
use crate::api::{CloneId, Limits};
use crate::config::PoolConfig;
use crate::host::Identity;
use crate::slot::{Pool, Slot, SlotNames};
use proptest::prelude::*;
use std::path::Path;

macro_rules! recordings {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../../tests/data/freebsd/", $name, ".txt")))),*]
    };
}

const RECORDINGS: &[(&str, &str)] = recordings!(
    "c-jails",
    "c2-jail-dying",
    "c3-dying-zfs",
    "d1-bastille-files-list",
    "d2-bastille-startstop",
    "e-rctl",
    "e2-rctl-enforce",
    "e3-rctl-disabled",
    "f-mount",
    "g-service",
    "j-misc"
);

/// One recorded command.
#[derive(Debug, Clone, Default)]
struct Run {
    file: &'static str,
    command: String,
    stdout: String,
    stderr: String,
    exit: i32,
}

fn runs() -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (file, text) in RECORDINGS {
        let mut stream = None;
        for line in text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                runs.push(Run { file, command: command.into(), ..Run::default() });
                stream = None;
            } else if let Some(rest) = line.strip_prefix("--- exit=") {
                runs.last_mut().unwrap().exit = rest.split_whitespace().next().unwrap().parse().unwrap();
                stream = None;
            } else if let Some(name) = line.strip_prefix("--- ") {
                stream = Some(name);
            } else if let (Some(name), Some(run)) = (stream, runs.last_mut()) {
                let text = if name == "stdout" { &mut run.stdout } else { &mut run.stderr };
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    runs
}

fn recorded(command: &str) -> Run {
    let mut found: Vec<Run> = runs().into_iter().filter(|run| run.command == command).collect();
    assert!(!found.is_empty(), "{command} was not recorded");
    found.remove(0)
}

fn pool() -> Pool {
    let config = PoolConfig { clones_dir: "/usr/local/bastille/jails".into(), ..PoolConfig::default() };
    Pool::new(&config).unwrap()
}

fn names() -> SlotNames {
    pool().names(Slot::new(1).unwrap())
}

fn id(digit: char) -> CloneId {
    CloneId::try_from(digit.to_string().repeat(32)).unwrap()
}

/// What every recorded complaint means. Each text is looked for in the recordings, so none can be invented here.
#[test]
fn every_recorded_complaint_is_understood_or_left_alone() {
    let cases = [
        ("ifconfig: interface nosuch0 does not exist", Meaning::Absent),
        ("ifconfig: interface epair0 already exists", Meaning::Exists),
        ("ifconfig: ioctl SIOCSIFNAME (set name): File exists", Meaning::Exists),
        ("ifconfig: ioctl SIOCSIFNAME (set name): File name too long", Meaning::Unknown),
        ("ifconfig: BRDGADD nosuch0: No such file or directory", Meaning::Absent),
        ("ifconfig: BRDGDEL nosuch0: No such file or directory", Meaning::Absent),
        ("ifconfig: SIOCIFDESTROY: Invalid argument", Meaning::Unknown),
        ("jail: \"pj\" already exists", Meaning::Exists),
        ("jail: cc: jail \"cc\" already exists", Meaning::Exists),
        ("jail: \"nosuch\" not found", Meaning::Absent),
        ("jail: path /nonexistent: No such file or directory", Meaning::Unknown),
        ("jail: unknown parameter: nosuch.param", Meaning::Unknown),
        ("jail: vj: /usr/bin/false: failed", Meaning::Unknown),
        ("jail: vj: /bin/sleep 100: timed out", Meaning::TimedOut),
        ("jail: /nonexistent: No such file or directory", Meaning::Unknown),
        ("jail: /tmp/q2.conf: unexpected EOF", Meaning::Unknown),
        ("jexec: jail \"nosuch\" not found", Meaning::Absent),
        ("jexec: jail \"vj\" is dying", Meaning::Dying),
        ("jls: jail \"vj\" is dying", Meaning::Dying),
        ("jls: jail 4242 not found", Meaning::Absent),
        ("rctl: failed to remove rule 'jail:rj': No such process", Meaning::Absent),
        ("rctl: failed to add rule 'jail:rj:nosuch:deny=1': Invalid argument", Meaning::Unknown),
        ("rctl: failed to add rule 'jail:rj:readbps:deny=1m': Operation not supported", Meaning::Unknown),
        ("rctl: failed to add rule 'jail:rj:maxproc:deny=8': Operation not permitted", Meaning::Permission),
        ("rctl: failed to show rules for '::': Operation not permitted", Meaning::Permission),
        (
            "rctl: RACCT/RCTL present, but disabled; enable using kern.racct.enable=1 tunable",
            Meaning::RacctOff,
        ),
        ("umount: /tmp/mt: not a file system root directory", Meaning::Absent),
        ("umount: unmount of /tmp/mt failed: Device busy", Meaning::Busy),
        ("umount: /nonexistent: unknown file system", Meaning::Absent),
        ("kill: 99999: No such process", Meaning::Absent),
        ("Jail not found \"nosuch\"", Meaning::Absent),
    ];
    let everything: String = RECORDINGS.iter().map(|(_, text)| *text).collect();
    for (text, expected) in cases {
        assert!(everything.lines().any(|line| line == text), "{text:?} was never recorded");
        assert_eq!(meaning(text), expected, "{text:?}");
        assert_eq!(meaning(&format!("{text}\n")), expected, "{text:?}");
    }
}

#[test]
fn of_two_complaints_the_one_that_says_more_counts() {
    // `jail -r` whose poststop failed because its interface was gone: the jail itself is what counts.
    let both = "ifconfig: interface e0a_vj does not exist\njail: vj: ifconfig e0a_vj destroy: failed\n";
    assert_eq!(meaning(both), Meaning::Absent);
    let busy = "umount: /a: not a file system root directory\numount: unmount of /b failed: Device busy\n";
    assert_eq!(meaning(busy), Meaning::Busy);
    assert_eq!(meaning(""), Meaning::Unknown);
    assert_eq!(
        meaning("ifconfig: Schnittstelle e0a_bt001 existiert nicht\n"),
        Meaning::Unknown,
        "never guessed"
    );
}

#[test]
fn every_recorded_list_of_interfaces_is_read() {
    let mut read = 0;
    for run in runs().into_iter().filter(|run| run.command.starts_with("ifconfig ") && run.exit == 0) {
        if !run.stdout.contains(": flags=") {
            continue;
        }
        let found = interfaces::read(&run.stdout).unwrap_or_else(|error| panic!("{}: {error}", run.command));
        let headers = run.stdout.lines().filter(|line| line.contains(": flags=") && !line.starts_with('\t'));
        assert_eq!(found.len(), headers.count(), "{}", run.command);
        read += 1;
    }
    assert!(read >= 3, "{read} were recorded");
    let bridge = interfaces::read(&recorded("ifconfig bridge72").stdout).unwrap().remove(0);
    assert_eq!(bridge.name, "bridge72");
    assert!(bridge.up && bridge.groups.contains("bridge"));
    assert!(bridge.addresses.contains(&[192, 168, 72, 1].into()));
    assert_eq!(bridge.members.keys().collect::<Vec<_>>(), ["e0a_vj"]);
    assert!(!bridge.members["e0a_vj"].contains("PRIVATE") && bridge.members["e0a_vj"].contains("LEARNING"));
    let end = interfaces::read(&recorded("ifconfig e0a_vj").stdout).unwrap().remove(0);
    assert_eq!(end.ether.as_deref(), Some("02:e4:98:65:ca:0a"));
    assert_eq!(end.description, None);
}

/// The recorded bridge and end, as they are for a clone of ours.
fn pair(description: Option<&str>, member: &str) -> String {
    let names = names();
    let describe = description.map(|text| format!("\tdescription: {text}\n")).unwrap_or_default();
    let end = recorded("ifconfig e0a_vj").stdout.replace("e0a_vj", &names.epair_host);
    let end = end.replace("02:e4:98:65:ca:0a", &names.mac_host.to_string());
    let (header, rest) = end.split_once('\n').unwrap();
    let bridge = recorded("ifconfig bridge72").stdout.replace("e0a_vj", &names.epair_host);
    let bridge = bridge.replace("flags=143<LEARNING,DISCOVER,AUTOEDGE,AUTOPTP>", member);
    format!("{bridge}{header}\n{describe}{rest}")
}

const PRIVATE: &str = "flags=943<LEARNING,DISCOVER,PRIVATE,AUTOEDGE,AUTOPTP>";

#[test]
fn a_pair_is_whole_only_when_it_is_up_private_and_named() {
    let plan = network::Plan { bridge: "bridge72".into(), base: 10_000 };
    let seen = |text: &str| plan.seen(&interfaces::read(text).unwrap(), &names());
    let mark = format!("hostd:{}", id('a'));
    let whole = pair(Some(&mark), PRIVATE);
    let found = seen(&whole).unwrap();
    assert!(found.complete);
    assert_eq!(found.identity, Identity::Clone(id('a')));

    let open = pair(Some(&mark), "flags=143<LEARNING,DISCOVER,AUTOEDGE,AUTOPTP>");
    assert!(!seen(&open).unwrap().complete, "without `private` clones reach each other");
    let other_mac = whole.replace(&names().mac_host.to_string(), "02:00:00:00:00:01");
    assert!(!seen(&other_mac).unwrap().complete);
    let down = whole.replace("e0a_bt001: flags=1008943<UP,", "e0a_bt001: flags=1008942<");
    assert_ne!(down, whole);
    assert!(!seen(&down).unwrap().complete);
    let unnamed = format!(
        "{whole}{}",
        whole.split("\ne0a_bt001: ").nth(1).map(|rest| format!("epair10001b: {rest}")).unwrap()
    );
    assert!(!seen(&unnamed).unwrap().complete, "the other end still has its first name");

    assert_eq!(seen(&pair(None, PRIVATE)).unwrap().identity, Identity::Unmarked);
    let theirs = seen(&pair(Some("vnet0 host interface for Bastille jail browser"), PRIVATE)).unwrap();
    assert!(matches!(theirs.identity, Identity::Foreign(_)));
    let tap = whole.replace("groups: epair", "groups: tap");
    assert!(matches!(seen(&tap).unwrap().identity, Identity::Foreign(_)));
    assert_eq!(plan.seen(&interfaces::read(&recorded("ifconfig bridge72").stdout).unwrap(), &names()), None);
}

#[test]
fn interfaces_lead_to_their_slots_and_no_others_do() {
    let plan = network::Plan { bridge: "bridge72".into(), base: 10_000 };
    let pool = pool();
    for (name, slot) in [
        ("e0a_bt001", Slot::new(1)),
        ("e0b_bt017", Slot::new(17)),
        ("epair10001a", Slot::new(1)),
        ("epair10900b", Slot::new(900)),
        ("epair10901b", None),
        ("epair10000a", None),
        ("epair1a", None),
        ("epair10001", None),
        ("epair10001c", None),
        ("epair+10001a", None),
        ("bt001", None),
        ("e0a_browser", None),
        ("bridge72", None),
    ] {
        assert_eq!(plan.slot_of(&pool, name), slot, "{name}");
    }
}

#[test]
fn jails_are_read_from_the_recorded_form() {
    let none = jails::read(&recorded("jls --libxo json").stdout).unwrap();
    assert_eq!(none, []);
    // Recorded without the identity's column, which is read like any other.
    let one = recorded("jls --libxo json name path jid dying vnet").stdout;
    assert!(jails::read(&one).is_err(), "a column is missing");
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
        ("inherit", "erben"),
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
    let seen = jails::seen(&both, &names).unwrap();
    assert_eq!((seen.identity, seen.dying), (Identity::Clone(id('b')), false));
    assert_eq!(jails::of(&both, &names).unwrap().jid, 53);
    let only = listed(&[jail("browsertask001", 52, true, &root, &old)]);
    assert!(jails::seen(&only, &names).unwrap().dying);
    assert_eq!(jails::seen(&listed(&[jail("browsertask0010", 1, false, &root, &old)]), &names), None);
}

#[test]
fn a_jails_identity_is_its_uuid_and_its_place() {
    let names = names();
    let root = conf::root(&names).display().to_string();
    let of = |path: &str, uuid: &str| {
        jails::seen(&listed(&[jail("browsertask001", 5, false, path, uuid)]), &names).unwrap().identity
    };
    assert_eq!(of(&root, &conf::uuid(&id('a'))), Identity::Clone(id('a')));
    assert_eq!(of(&root, "00000000-0000-0000-0000-000000000000"), Identity::Unmarked);
    assert!(matches!(of("/lab/j1", &conf::uuid(&id('a'))), Identity::Foreign(_)));
    let text =
        jail("browsertask001", 5, false, &root, &conf::uuid(&id('a'))).replace("\"new\"", "\"inherit\"");
    assert!(matches!(jails::seen(&listed(&[text]), &names).unwrap().identity, Identity::Foreign(_)));
}

#[test]
fn processes_are_proven_by_their_jail() {
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
fn recorded_rules_are_read_and_ours_lead_back_to_limits() {
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
    let seen = rctl::seen(&rctl::read(&text).unwrap(), &names());
    assert_eq!(seen, Some(Limits { disk_bytes: None, ..limits }), "the quota is the storage's");
    let by_hand = rctl::read("jail:browsertask001:pcpu:log=10\n").unwrap();
    assert_eq!(
        rctl::seen(&by_hand, &names()),
        Some(Limits::default()),
        "a rule is there, though none of ours"
    );
    assert_eq!(rctl::seen(&rctl::read("").unwrap(), &names()), None);
    assert_eq!(rctl::seen(&rctl::read("jail:browsertask0011:pcpu:deny=1\n").unwrap(), &names()), None);
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
    let ours = Path::new("/usr/local/bastille/jails");
    let all = mounts::read(&recorded("mount -p").stdout, ours).unwrap();
    assert_eq!(all.len(), recorded("mount -p").stdout.lines().count());
    let jails = all.iter().find(|mount| mount.at == "/usr/local/bastille/jails").unwrap();
    assert_eq!((jails.source.as_str(), jails.kind.as_str()), ("zroot/bastille/jails", "zfs"));
    assert!(
        all.iter().any(|mount| mount.source == "/tmp/ms" && mount.at == "/tmp/mt" && mount.kind == "nullfs")
    );
    let spaced = recorded("sh -c: mount -p | grep with").stdout;
    assert_eq!(mounts::read(&spaced, ours).unwrap()[0].at, "/tmp/with space");
    let twice = recorded("sh -c: ifconfig -l; mount -p | grep /lab/j1/dev").stdout;
    let (_, devfs) = twice.split_once('\n').unwrap();
    assert_eq!(mounts::read(devfs, ours).unwrap().len(), 2, "one place can be mounted twice");

    let strange = "/dev/gpt/disk of /mine and /yours/x /mnt/a place ufs\trw\t\t0 0\n/dev/a\t\t\t/\t\t\tufs\trw\t\t1 1\n";
    assert_eq!(mounts::read(strange, ours).unwrap().len(), 1, "what cannot be ours is passed over");
    let about_us = "/dev/gpt/disk of /mine and /yours/x /usr/local/bastille/jails/browsertask001/root/x ufs\trw\t\t0 0\n";
    assert!(mounts::read(about_us, ours).is_err(), "what may be ours must be understood");
    for other in ["", "\n", "devfs\n", "devfs\t/dev\tdevfs\trw\t0\n", "/dev/a / ufs rw 1 1"] {
        assert!(mounts::read(other, ours).is_err(), "{other:?}");
    }
}

#[test]
fn mounts_below_a_clone_go_deepest_first_and_its_datasets_stay() {
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

/// Every reader on every kind of damage: an error or a true part, never a panic and never something invented.
fn damaged() -> impl Strategy<Value = String> {
    let texts: Vec<String> = runs()
        .into_iter()
        .map(|run| run.stdout)
        .filter(|text| !text.is_empty() && text.len() < 4000)
        .collect();
    (proptest::sample::select(texts), any::<prop::sample::Index>(), 0..6u8).prop_map(|(text, at, kind)| {
        let at = (0..=at.index(text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        match kind {
            0 => text[..at].to_owned(),
            1 => format!("{}\u{fc}{}", &text[..at], &text[at..]),
            2 => text.replace(' ', "\t"),
            3 => text.lines().map(|line| format!("{line} mehr\n")).collect(),
            4 => format!("{}\n{}", &text[..at], &text[at..]),
            _ => text.to_uppercase(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn damage_is_an_error_and_never_a_panic(text in damaged()) {
        let _ = jails::read(&text);
        let _ = interfaces::read(&text);
        let _ = rctl::read(&text);
        let _ = meaning(&text);
        let _ = conf::clone_id(&text);
        if let Ok(found) = processes::read(&text) {
            prop_assert!(found.len() < text.lines().count());
        }
        if let Ok(found) = mounts::read(&text, Path::new("/usr/local/bastille/jails")) {
            for mount in found {
                prop_assert!(text.contains(&mount.at) && mount.at.starts_with('/'));
            }
        }
    }

    #[test]
    fn anything_at_all_is_read_without_a_panic(text in ".{0,300}") {
        let _ = jails::read(&text);
        let _ = interfaces::read(&text);
        let _ = rctl::read(&text);
        let _ = processes::read(&text);
        let _ = mounts::read(&text, Path::new("/usr"));
        prop_assert_eq!(meaning(&text), Meaning::Unknown);
    }

    #[test]
    fn a_list_cut_in_a_line_is_no_list(at in 1usize..200) {
        let whole = pair(Some("hostd:x"), PRIVATE);
        let cut = &whole[..whole.len() - at.min(whole.len() - 1)];
        if !cut.ends_with('\n') {
            prop_assert!(interfaces::read(cut).is_err());
        }
    }
}
