//! The readers and the classification of errors, on what was recorded on a running FreeBSD and on mutations of it.

mod damage;
mod lists;
mod network;

use super::errors::{Meaning, meaning};
use crate::api::CloneId;
use crate::config::PoolConfig;
use crate::slot::{Slot, SlotNames, Slots};

macro_rules! recordings {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../../../tests/data/freebsd/", $name, ".txt")))),*]
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

fn pool() -> Slots {
    let config = PoolConfig { clones_dir: "/usr/local/bastille/jails".into(), ..PoolConfig::default() };
    Slots::new(&config).unwrap()
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
