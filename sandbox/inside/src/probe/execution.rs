//! Attempts to execute programs that the sandbox did not provide.

use super::{Attempt, Probe, raw};
use crate::findings::Canaries;
use crate::layer::Layer;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Copies this program to `folder` and runs the copy.
fn run_from(folder: &Path) -> Attempt {
    let path = folder.join("brought-in");
    let prepared = fs::read("/proc/self/exe")
        .and_then(|program| fs::write(&path, program))
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
    if let Err(error) = prepared {
        return Attempt::NotTried(format!("{}: {error}", path.display()));
    }
    let result = Command::new(&path).arg("nothing").status();
    let _ = fs::remove_file(&path);
    match result {
        Ok(status) if status.success() => Attempt::Open("it ran".to_owned()),
        Ok(status) => Attempt::Stopped(status.to_string()),
        Err(error) => Attempt::Stopped(error.to_string()),
    }
}

fn become_root(canaries: &Canaries) -> Attempt {
    let Some(path) = &canaries.setuid_program else {
        return Attempt::NotTried("the launcher is not root".to_owned());
    };
    match Command::new(path).arg("uid").output() {
        Ok(output) => {
            let uid = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Attempt::open_if(uid == "0", "became root", &format!("it ran as uid {uid}"))
        }
        Err(error) => Attempt::Stopped(error.to_string()),
    }
}

pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "run-from-writable-folder",
        attempt: "write a program into the writable folder and run it",
        layers: &[Layer::Landlock],
        run: |c| run_from(&c.writable),
    },
    Probe {
        name: "run-from-tmp",
        attempt: "write a program into /tmp and run it",
        layers: &[Layer::Landlock],
        run: |_| run_from(Path::new("/tmp")),
    },
    Probe {
        name: "run-from-shared-memory",
        attempt: "write a program into /dev/shm and run it",
        layers: &[Layer::Landlock],
        run: |_| run_from(Path::new("/dev/shm")),
    },
    Probe {
        name: "run-from-memory-file",
        attempt: "write a program into a memory file and run it",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::run_from_memory_file(), "it ran"),
    },
    Probe {
        name: "setuid-program",
        attempt: "become root with a setuid program",
        layers: &[Layer::Bubblewrap, Layer::Landlock],
        run: become_root,
    },
];
