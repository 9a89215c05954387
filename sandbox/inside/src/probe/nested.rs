//! Does what a browser's own sandbox does inside this one: user namespace, id maps, empty root.

use nix::sched::{CloneFlags, unshare};
use std::process::ExitCode;

/// Exits with 0 on success; otherwise prints the step that failed.
pub fn run() -> ExitCode {
    match try_nested() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn try_nested() -> Result<(), String> {
    let said = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET)
        .map_err(|e| said("new user, pid and network namespace", &e))?;
    let write = |file: &str, text: String| {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(|e| said(file, &e))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{uid} {uid} 1\n"))?;
    write("gid_map", format!("{gid} {gid} 1\n"))?;
    nix::unistd::chroot("/proc/self/fdinfo").map_err(|e| said("chroot", &e))
}
