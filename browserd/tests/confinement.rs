//! Code in Chromium's place cannot harm browserd, although both have the same user id.
//!
//! The same stand-in runs in a clone in hostd's tests, inside of the sandbox.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use support::stand_in;

/// Runs a browserd whose browser is the stand-in, and returns its report by lines.
fn report() -> BTreeMap<String, String> {
    let folder = tempfile::Builder::new().prefix("browserd-test-").tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("stand-in");
    stand_in::write(&program);
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    // A descriptor that browserd inherits and must not pass on.
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "exec \"$0\" \"$@\" 7</etc/passwd", env!("CARGO_BIN_EXE_browserd")])
        .args(["--listen", "127.0.0.1:0", "--max-restarts", "0", "--chromium"])
        .arg(&program)
        .arg("--data-dir")
        .arg(&data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if nix::unistd::geteuid().is_root() {
        let uid = support::next_uid();
        chown(&data, Some(uid), Some(uid)).unwrap();
        command.uid(uid).gid(uid);
    }
    let mut browserd = command.spawn().unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(browserd.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    // Alive and unharmed: it stops when it is told to.
    support::signal(browserd.id(), nix::sys::signal::Signal::SIGTERM);
    let status = support::wait("browserd to stop", || browserd.try_wait().unwrap());
    assert!(status.success(), "{status}");
    stand_in::parse(&line)
}

#[test]
fn code_in_chromiums_place_cannot_touch_browserd() {
    let report = report();
    let attempts = stand_in::assert_refused(&report);
    // On a process of its own every attempt works, so it is the confinement that forbids it.
    assert_eq!(stand_in::worked(&report["child"]).len(), attempts, "{report:?}");
    // The standard descriptors and the two ends of the pipe; 5 and 6 are perl's own.
    let inherited: Vec<&str> = report["descriptors"].split(' ').collect();
    let known = |one: &&str| {
        let (_, target) = one.split_once(':').unwrap();
        target == "/dev/null" || target.starts_with("pipe:") || target.starts_with("socket:")
    };
    let (known, others): (Vec<&str>, Vec<&str>) = inherited.iter().partition(|one| known(one));
    assert_eq!(known.len(), 5, "{inherited:?}");
    assert!(others.iter().all(|one| one.ends_with("/stand-in") || one.contains("/proc/")), "{others:?}");
}
