//! A bubblewrap that does less than requested: stage 2 detects it and starts nothing.
//!
//! Each test replaces bubblewrap by a program that omits or changes one argument and then runs the
//! real bubblewrap.
#![cfg(target_os = "linux")]

mod common;

use common::{policy, shell};
use sandbox::{Error, Launch, Layer, Policy};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Changes bubblewrap's arguments with a line of Python, then executes the real one.
const CHANGER: &str = r#"#!/usr/bin/python3 -I
import os, sys
number = int(sys.argv[2])
words = os.fdopen(os.dup(number), "rb").read().decode().split("\0")[:-1]
def drop(word, following=0):
    global words
    at = words.index(word)
    words = words[:at] + words[at + 1 + following:]
CHANGE
file = os.memfd_create("changed")
os.write(file, "".join(word + "\0" for word in words).encode())
os.lseek(file, 0, 0)
os.set_inheritable(file, True)
os.execv("/usr/bin/bwrap", ["bwrap", "--args", str(file)] + sys.argv[3:])
"#;

/// A replacement for bubblewrap in a folder that only root may change, removed on drop.
struct FakeBubblewrap(PathBuf);

impl FakeBubblewrap {
    fn new(name: &str, text: &str) -> FakeBubblewrap {
        // Root does not use the checkout: it may be in a world-writable folder such as /tmp.
        let folder = if nix::unistd::geteuid().is_root() { "/run" } else { env!("CARGO_TARGET_TMPDIR") };
        let path = PathBuf::from(folder).join(format!("sandbox-lies-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        FakeBubblewrap(path)
    }

    fn changing(name: &str, change: &str) -> FakeBubblewrap {
        FakeBubblewrap::new(name, &CHANGER.replace("CHANGE", change))
    }

    fn launch(&self, policy: &Policy) -> Result<sandbox::Sandbox, Error> {
        Launch::new(shell(policy, "true")).bubblewrap(&self.0).spawn()
    }
}

impl Drop for FakeBubblewrap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn assert_detected(result: Result<sandbox::Sandbox, Error>, layer: Layer, words: &str) {
    match result {
        Err(Error::Layer { layer: named, reason, .. }) => {
            assert_eq!(named, layer, "{reason}");
            assert!(reason.contains(words), "{reason:?} does not contain {words:?}");
        }
        other => panic!("not detected: {other:?}"),
    }
}

#[test]
fn a_wrapper_that_changes_nothing_is_accepted() {
    let fake = FakeBubblewrap::changing("honest", "");
    let mut sandbox = fake.launch(&policy()).expect("starts");
    assert!(sandbox.wait().expect("ends").success());
}

#[test]
fn omitted_arguments_are_detected() {
    let cases = [
        ("ipc", "drop('--unshare-ipc')", Layer::IpcNamespace, "ipc namespace"),
        ("uts", "drop('--unshare-uts'); drop('--hostname', 1)", Layer::UtsNamespace, "uts"),
        ("cgroup", "drop('--unshare-cgroup')", Layer::CgroupNamespace, "cgroup"),
        ("net", "drop('--unshare-net')", Layer::Network, "net namespace"),
        ("pid", "drop('--unshare-pid')", Layer::PidNamespace, "pid namespace"),
        ("root", "words = words[:-2]", Layer::ReadOnlyRoot, "/ is writable"),
        ("files", "drop('--cap-add', 1)", Layer::Limits, "the number of files in /"),
        ("uid", "words[words.index('--uid') + 1] = '1001'", Layer::Bubblewrap, "uid or gid"),
        ("writable", "words[words.index('--ro-bind')] = '--bind'", Layer::Files, "/usr is writable"),
        ("mount", "at = words.index('/tmp'); words[at - 5:at + 1] = []", Layer::Files, "is not mounted"),
        ("more", "words[-2:-2] = ['--ro-bind', '/usr', '/more']", Layer::Files, "unexpected mount /more"),
    ];
    for (name, change, layer, words) in cases {
        let fake = FakeBubblewrap::changing(name, change);
        println!("{name}");
        assert_detected(fake.launch(&policy()), layer, words);
    }
}

/// Bubblewrap's capabilities end with its user namespace, and stage 2 empties every set.
#[test]
fn capabilities_that_bubblewrap_leaves_are_dropped() {
    let fake = FakeBubblewrap::changing("caps", "words[words.index('--cap-drop')] = '--cap-add'");
    let plan = shell(
        &policy(),
        "grep -q '^Cap[A-Za-z]*:[[:space:]]*0*[1-9a-f]' /proc/self/status && exit 3; exit 0",
    );
    let mut sandbox = Launch::new(plan).bubblewrap(&fake.0).spawn().expect("starts");
    assert_eq!(sandbox.wait().expect("ends").code(), Some(0), "a set is not empty");
}

#[test]
fn execution_without_bubblewrap_is_detected() {
    let script = |how: &str| format!("#!/bin/sh\nshift 3\nexec {how} \"$@\"\n");
    let plain = FakeBubblewrap::new("plain", &script(""));
    assert_detected(plain.launch(&policy()), Layer::Bubblewrap, "no_new_privs");
    let privileges = FakeBubblewrap::new("no-new-privs", &script("setpriv --no-new-privs"));
    assert_detected(privileges.launch(&policy()), Layer::Bubblewrap, "uid or gid");
    let mut policy = policy();
    policy.identity.uid = common::private_uid();
    policy.identity.gid = common::private_uid();
    assert_detected(privileges.launch(&policy), Layer::Bubblewrap, "still in the launcher's user namespace");
}
