//! Bounds on kernel objects that a program could otherwise make without end: namespaces, files in memory, watches, queued
//! signals, timers, locked memory, open files.
//!
//! Each bound is read back. Success is decided by what the kernel then reports, not by the result of the call that sets it.

use super::{Failure, sys};
use crate::layer::{Layer, Requirement};
use crate::protocol::Bounds;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::statvfs::statvfs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The most queued signals and timers of the program's user (`RLIMIT_SIGPENDING`).
pub const QUEUED_SIGNALS: u64 = 1024;
/// The most memory that may be locked, in bytes (`RLIMIT_MEMLOCK`). This is the kernel's own default.
pub const LOCKED_MEMORY: u64 = 8 << 20;

fn failed(what: impl std::fmt::Display, e: impl std::fmt::Display) -> Failure {
    Failure::of(Layer::Limits, format!("{what}: {e}"))
}

/// Runs one step. A failure is an error, or a missing layer if the policy makes limits optional. Without bounds the layer
/// is off and nothing is done.
pub fn apply(
    bounds: Option<&Bounds>,
    step: fn(&Bounds) -> Result<(), Failure>,
) -> Result<Option<(Layer, String)>, Failure> {
    match bounds.map(|bounds| (step(bounds), bounds.requirement)) {
        None | Some((Ok(()), _)) => Ok(None),
        Some((Err(failure), Requirement::Optional)) => Ok(Some((Layer::Limits, failure.message))),
        Some((Err(failure), _)) => Err(failure),
    }
}

/// Bounds the number of files in each folder in memory. An empty file uses no block, so the folder's size does not bound
/// it. Bubblewrap has no option for this. Needs `CAP_SYS_ADMIN` in the user namespace that owns the mounts.
pub fn limit_inodes(bounds: &Bounds) -> Result<(), Failure> {
    for (folder, inodes) in &bounds.inodes {
        let what = format!("the number of files in {}", folder.display());
        sys::reconfigure_mount(folder, c"nr_inodes", &inodes.to_string()).map_err(|e| failed(&what, e))?;
        verify_inodes(folder, *inodes).map_err(|e| failed(&what, e))?;
    }
    Ok(())
}

fn verify_inodes(folder: &Path, inodes: u64) -> Result<(), String> {
    match statvfs(folder) {
        Ok(seen) if seen.files() == inodes => Ok(()),
        Ok(seen) => Err(format!("{} after it was set to {inodes}", seen.files())),
        Err(e) => Err(e.to_string()),
    }
}

/// Bounds the namespaces and watches that the program and all of its descendants may have at the same time.
///
/// The kernel counts an object in the user namespace that made it and in every one above. A nested user namespace begins
/// without limits of its own, but its objects also count here. Only a process with `CAP_SYS_RESOURCE` in this namespace
/// can change these numbers, and the program has no capability.
pub fn limit_namespaces(bounds: &Bounds) -> Result<(), Failure> {
    let folder = sys::own(bounds.user_settings).map_err(|e| failed("/proc/sys/user", e))?;
    for (file, most) in &bounds.namespaces {
        set(folder.as_fd(), file, *most).map_err(|e| failed(format!("/proc/sys/user/{file}"), e))?;
    }
    for (file, most) in &bounds.watches {
        match set(folder.as_fd(), file, *most) {
            // This kernel has no such objects.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            other => other.map_err(|e| failed(format!("/proc/sys/user/{file}"), e))?,
        }
    }
    Ok(())
}

fn set(folder: BorrowedFd<'_>, file: &str, most: u32) -> std::io::Result<()> {
    let text = most.to_string();
    let seen = sys::write_setting(folder, file, &text)?;
    if seen.trim() == text {
        return Ok(());
    }
    Err(std::io::Error::other(format!("{} after it was set to {text}", seen.trim())))
}

/// Sets the limits of this process, which every later process inherits.
pub fn limit_process(bounds: &Bounds) -> Result<(), Failure> {
    for (resource, most) in [
        (Resource::RLIMIT_NOFILE, bounds.open_files),
        // No core dump: it would hold whatever was in memory.
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_MSGQUEUE, 0),
        (Resource::RLIMIT_SIGPENDING, QUEUED_SIGNALS),
        (Resource::RLIMIT_MEMLOCK, LOCKED_MEMORY),
        (Resource::RLIMIT_RTPRIO, 0),
    ] {
        // A lower hard limit stays: raising it needs CAP_SYS_RESOURCE outside.
        let lower = getrlimit(resource).map(|(_, granted)| most.min(granted));
        lower
            .and_then(|most| setrlimit(resource, most, most))
            .map_err(|e| failed(format!("{resource:?}"), e))?;
    }
    Ok(())
}
