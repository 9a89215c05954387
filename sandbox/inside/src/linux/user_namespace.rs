//! The program's own user namespace, below the one that bubblewrap made.
//!
//! Bubblewrap's user namespace owns the mounts, the pid, ipc and uts namespaces of the sandbox. The program's owns nothing.
//! A program that gains capabilities in its own namespace can therefore not change what bubblewrap set up.

use super::Failure;
use crate::layer::Layer;
use nix::sched::{CloneFlags, unshare};

/// Makes the namespace and enters it, with the same ids as before. This process then has every capability in the new
/// namespace and none outside of it.
pub fn enter(uid: u32, gid: u32) -> Result<(), Failure> {
    let failed = |what: &str, e: &dyn std::fmt::Display| {
        Failure::of(Layer::Bubblewrap, format!("the program's own user namespace: {what}: {e}"))
    };
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|e| failed("unshare", &e))?;
    // The kernel accepts a map of groups only after setgroups is denied.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1\n")),
        ("gid_map", format!("{gid} {gid} 1\n")),
    ] {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(|e| failed(file, &e))?;
    }
    Ok(())
}
