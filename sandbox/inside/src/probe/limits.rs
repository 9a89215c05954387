//! Attempts to exceed the resource limits.

use super::{Attempt, Probe, raw};
use crate::layer::Layer;
use crate::linux::sys;
use nix::sys::resource::{Resource, getrlimit};
use std::fs::File;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "open-files",
        attempt: "open more files than the limit",
        layers: &[Layer::Limits],
        run: |c| {
            let mut files = Vec::new();
            // Some files are open already, so this is more than the limit allows.
            for _ in 0..c.open_files {
                match File::open("/dev/null") {
                    Ok(file) => files.push(file),
                    Err(error) => return Attempt::Stopped(format!("{}: {error}", files.len())),
                }
            }
            Attempt::Open(format!("{} are open", files.len()))
        },
    },
    Probe {
        name: "core-dump",
        attempt: "leave a core dump (with whatever was in memory)",
        layers: &[Layer::Limits],
        run: |_| match getrlimit(Resource::RLIMIT_CORE) {
            Ok((_, 0)) => Attempt::Stopped("the hard limit is 0".to_owned()),
            Ok((_, hard)) => Attempt::Open(format!("up to {hard} bytes")),
            Err(error) => Attempt::NotTried(error.to_string()),
        },
    },
    Probe {
        name: "many-processes",
        attempt: "start more processes than the limit",
        layers: &[Layer::Limits],
        run: |c| match c.processes {
            Some(limit) => many_processes(limit),
            None => Attempt::NotTried("no limit of processes is enforced here".to_owned()),
        },
    },
    Probe {
        name: "much-memory",
        attempt: "use more memory than the limit",
        layers: &[Layer::Limits],
        run: |c| match c.memory_bytes {
            // An enforced limit makes the kernel kill this process, which counts as stopped.
            Some(limit) => {
                let used = raw::use_memory(limit + (64 << 20));
                Attempt::Open(format!("{used} bytes were used"))
            }
            None => Attempt::NotTried("no limit of memory is enforced here".to_owned()),
        },
    },
];

fn many_processes(limit: u32) -> Attempt {
    let mut children = Vec::new();
    let mut attempt = Attempt::Open(format!("{limit} run"));
    for count in 0..limit {
        match sys::fork() {
            Ok(Some(child)) => children.push(child),
            Ok(None) => {
                nix::unistd::pause();
                std::process::exit(0)
            }
            Err(error) => {
                attempt = Attempt::Stopped(format!("after {count}: {error}"));
                break;
            }
        }
    }
    for child in children {
        let child = nix::unistd::Pid::from_raw(child);
        let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(child, None);
    }
    attempt
}
