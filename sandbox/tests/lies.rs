//! A bubblewrap that does less than it was told: stage 2 finds out and starts nothing.
//!
//! Each test puts a program in bubblewrap's place that leaves out or changes one thing and then runs
//! the real one.
#![cfg(target_os = "linux")]

mod common;

use common::{policy, shell};
use sandbox::{Error, Launch, Layer, Policy};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Changes bubblewrap's arguments with a line of Python and goes on to the real one.
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

/// A program in a folder that only root may change, removed afterwards.
struct Liar(PathBuf);

impl Liar {
    fn new(name: &str, text: &str) -> Liar {
        // For root not below the checkout: that may be in a folder that everybody can write to, such as /tmp.
        let folder = if nix::unistd::geteuid().is_root() { "/run" } else { env!("CARGO_TARGET_TMPDIR") };
        let path = PathBuf::from(folder).join(format!("sandbox-lies-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        Liar(path)
    }

    fn changing(name: &str, change: &str) -> Liar {
        Liar::new(name, &CHANGER.replace("CHANGE", change))
    }

    fn launch(&self, policy: &Policy) -> Result<sandbox::Sandbox, Error> {
        Launch::new(shell(policy, "true")).bubblewrap(&self.0).spawn()
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn assert_found_out(result: Result<sandbox::Sandbox, Error>, layer: Layer, words: &str) {
    match result {
        Err(Error::Layer { layer: named, reason, .. }) => {
            assert_eq!(named, layer, "{reason}");
            assert!(reason.contains(words), "{reason:?} does not say {words:?}");
        }
        other => panic!("not found out: {other:?}"),
    }
}

#[test]
fn an_honest_go_between_is_not_noticed() {
    let liar = Liar::changing("honest", "");
    let mut sandbox = liar.launch(&policy()).expect("starts");
    assert!(sandbox.wait().expect("ends").success());
}

#[test]
fn what_is_left_out_is_found_out() {
    let cases = [
        ("ipc", "drop('--unshare-ipc')", Layer::IpcNamespace, "ipc namespace"),
        ("uts", "drop('--unshare-uts'); drop('--hostname', 1)", Layer::UtsNamespace, "uts"),
        ("cgroup", "drop('--unshare-cgroup')", Layer::CgroupNamespace, "cgroup"),
        ("net", "drop('--unshare-net')", Layer::Network, "net namespace"),
        ("pid", "drop('--unshare-pid')", Layer::PidNamespace, "pid namespace"),
        ("root", "words = words[:-2]", Layer::ReadOnlyRoot, "/ is writable"),
        ("caps", "words[words.index('--cap-drop')] = '--cap-add'", Layer::Capabilities, "capabilities left"),
        ("uid", "words[words.index('--uid') + 1] = '1001'", Layer::Bubblewrap, "uid or gid"),
        ("writable", "words[words.index('--ro-bind')] = '--bind'", Layer::Files, "/usr is writable"),
        ("mount", "at = words.index('--tmpfs'); words[at - 4:at + 2] = []", Layer::Files, "is not mounted"),
        ("more", "words[-2:-2] = ['--ro-bind', '/usr', '/more']", Layer::Files, "unexpected mount /more"),
    ];
    for (name, change, layer, words) in cases {
        let liar = Liar::changing(name, change);
        println!("{name}");
        assert_found_out(liar.launch(&policy()), layer, words);
    }
}

#[test]
fn no_bubblewrap_at_all_is_found_out() {
    let script = |how: &str| format!("#!/bin/sh\nshift 3\nexec {how} \"$@\"\n");
    let plain = Liar::new("plain", &script(""));
    assert_found_out(plain.launch(&policy()), Layer::Bubblewrap, "no_new_privs");
    let privileges = Liar::new("no-new-privs", &script("setpriv --no-new-privs"));
    assert_found_out(privileges.launch(&policy()), Layer::Bubblewrap, "uid or gid");
    let mut policy = policy();
    policy.identity.uid = common::PRIVATE_UID;
    policy.identity.gid = common::PRIVATE_UID;
    assert_found_out(privileges.launch(&policy), Layer::Bubblewrap, "still in the launcher's user namespace");
}
