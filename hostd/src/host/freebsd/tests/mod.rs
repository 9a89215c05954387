//! The readers and the classification of errors, on what was recorded on a running FreeBSD and on mutations of it.

mod damage;
mod lists;
mod network;

use super::errors::{Complaint, classify};
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

fn slots() -> Slots {
    let config = PoolConfig { clones_dir: "/usr/local/bastille/jails".into(), ..PoolConfig::default() };
    Slots::new(&config).unwrap()
}

fn names() -> SlotNames {
    slots().names(Slot::new(1).unwrap())
}

fn id(digit: char) -> CloneId {
    CloneId::try_from(digit.to_string().repeat(32)).unwrap()
}

/// The classification of recorded messages. Each text must occur in the recordings.
#[test]
fn every_recorded_message_is_classified() {
    let cases = [
        ("ifconfig: interface nosuch0 does not exist", Complaint::Absent),
        ("ifconfig: interface epair0 already exists", Complaint::Exists),
        ("ifconfig: ioctl SIOCSIFNAME (set name): File exists", Complaint::Exists),
        ("ifconfig: ioctl SIOCSIFNAME (set name): File name too long", Complaint::Unknown),
        ("ifconfig: BRDGADD nosuch0: No such file or directory", Complaint::Absent),
        ("ifconfig: BRDGDEL nosuch0: No such file or directory", Complaint::Absent),
        ("ifconfig: SIOCIFDESTROY: Invalid argument", Complaint::Unknown),
        ("jail: \"pj\" already exists", Complaint::Exists),
        ("jail: cc: jail \"cc\" already exists", Complaint::Exists),
        ("jail: \"nosuch\" not found", Complaint::Absent),
        ("jail: path /nonexistent: No such file or directory", Complaint::Unknown),
        ("jail: unknown parameter: nosuch.param", Complaint::Unknown),
        ("jail: vj: /usr/bin/false: failed", Complaint::Unknown),
        ("jail: vj: /bin/sleep 100: timed out", Complaint::TimedOut),
        ("jail: /nonexistent: No such file or directory", Complaint::Unknown),
        ("jail: /tmp/q2.conf: unexpected EOF", Complaint::Unknown),
        ("jexec: jail \"nosuch\" not found", Complaint::Absent),
        ("jexec: jail \"vj\" is dying", Complaint::Dying),
        ("jls: jail \"vj\" is dying", Complaint::Dying),
        ("jls: jail 4242 not found", Complaint::Absent),
        ("rctl: failed to remove rule 'jail:rj': No such process", Complaint::Absent),
        ("rctl: failed to add rule 'jail:rj:nosuch:deny=1': Invalid argument", Complaint::Unknown),
        ("rctl: failed to add rule 'jail:rj:readbps:deny=1m': Operation not supported", Complaint::Unknown),
        ("rctl: failed to add rule 'jail:rj:maxproc:deny=8': Operation not permitted", Complaint::Permission),
        ("rctl: failed to show rules for '::': Operation not permitted", Complaint::Permission),
        (
            "rctl: RACCT/RCTL present, but disabled; enable using kern.racct.enable=1 tunable",
            Complaint::RacctOff,
        ),
        ("umount: /tmp/mt: not a file system root directory", Complaint::Absent),
        ("umount: unmount of /tmp/mt failed: Device busy", Complaint::Busy),
        ("umount: /nonexistent: unknown file system", Complaint::Absent),
        ("Jail not found \"nosuch\"", Complaint::Absent),
    ];
    let everything: String = RECORDINGS.iter().map(|(_, text)| *text).collect();
    for (text, expected) in cases {
        assert!(everything.lines().any(|line| line == text), "{text:?} was never recorded");
        assert_eq!(classify(text), expected, "{text:?}");
        assert_eq!(classify(&format!("{text}\n")), expected, "{text:?}");
    }
}

#[test]
fn a_specific_message_outweighs_absent() {
    // `jail -r` whose poststop failed because its interface was gone: the jail itself is what counts.
    let both = "ifconfig: interface e0a_vj does not exist\njail: vj: ifconfig e0a_vj destroy: failed\n";
    assert_eq!(classify(both), Complaint::Absent);
    let busy = "umount: /a: not a file system root directory\numount: unmount of /b failed: Device busy\n";
    assert_eq!(classify(busy), Complaint::Busy);
    assert_eq!(classify(""), Complaint::Unknown);
    assert_eq!(
        classify("ifconfig: Schnittstelle e0a_bt001 existiert nicht\n"),
        Complaint::Unknown,
        "never guessed"
    );
}
