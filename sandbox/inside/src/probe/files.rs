//! Attempts to read host files and to write outside the writable folders.

use super::{Attempt, Probe, raw};
use crate::findings::Canaries;
use crate::layer::Layer;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The paths inside at which a path of the host could appear.
fn inside_paths(canaries: &Canaries, path: &Path) -> [PathBuf; 2] {
    let relative = path.strip_prefix("/").unwrap_or(path);
    [path.to_owned(), canaries.host_folder.join(relative)]
}

fn reads_token(canaries: &Canaries, path: &Path) -> Attempt {
    let mut last = String::new();
    for name in inside_paths(canaries, path) {
        match fs::read_to_string(&name) {
            Ok(text) if text.contains(&canaries.token) => {
                return Attempt::Open(format!("read {}", name.display()));
            }
            Ok(_) => last = "another file".to_owned(),
            Err(error) => last = error.to_string(),
        }
    }
    Attempt::Stopped(last)
}

fn exists(canaries: &Canaries, paths: &[&str]) -> Attempt {
    for path in paths {
        for name in inside_paths(canaries, Path::new(path)) {
            if name.symlink_metadata().is_ok() {
                return Attempt::Open(format!("{} exists", name.display()));
            }
        }
    }
    Attempt::Stopped("does not exist".to_owned())
}

pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "host-file",
        attempt: "read a file of the host that everybody there may read",
        layers: &[Layer::Files],
        run: |c| reads_token(c, &c.secret_file),
    },
    Probe {
        name: "host-shared-memory",
        attempt: "read a file in the host's /dev/shm",
        layers: &[Layer::Files],
        run: |c| reads_token(c, &c.shared_memory),
    },
    Probe {
        name: "password-hashes",
        attempt: "see /etc/shadow",
        layers: &[Layer::Files],
        run: |c| exists(c, &["/etc/shadow"]),
    },
    Probe {
        name: "home-folders",
        attempt: "see the home folders of the host's users",
        layers: &[Layer::Files],
        run: |c| exists(c, &["/root"]),
    },
    Probe {
        name: "machine-identity",
        attempt: "see what identifies the machine",
        layers: &[Layer::Files],
        run: |c| exists(c, &["/etc/machine-id", "/etc/hostname"]),
    },
    Probe {
        name: "kernel-settings-tree",
        attempt: "see /sys, with its devices and debugging files",
        layers: &[Layer::Files],
        run: |c| exists(c, &["/sys/kernel", "/sys/class"]),
    },
    Probe {
        name: "hardware-devices",
        attempt: "see devices of the host (memory, kernel log, disks, kvm)",
        layers: &[Layer::Files],
        run: |c| exists(c, &["/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/kvm"]),
    },
    Probe {
        name: "path-socket",
        attempt: "connect to a Unix socket in the host's files",
        layers: &[Layer::Files],
        run: |c| {
            let mut last = String::new();
            for name in inside_paths(c, &c.path_socket) {
                match UnixStream::connect(&name) {
                    Ok(_) => return Attempt::Open(format!("connected to {}", name.display())),
                    Err(error) => last = error.to_string(),
                }
            }
            Attempt::Stopped(last)
        },
    },
    Probe {
        name: "symlink-out",
        attempt: "read a host file through a link made in the writable folder",
        layers: &[Layer::Files],
        run: |c| {
            let mut last = Attempt::Stopped(String::new());
            for (index, name) in inside_paths(c, &c.secret_file).iter().enumerate() {
                let link = c.writable.join(format!("link-{index}"));
                if let Err(error) = symlink(name, &link) {
                    return Attempt::NotTried(error.to_string());
                }
                last = reads_token(c, &link);
                let _ = fs::remove_file(&link);
                if matches!(last, Attempt::Open(_)) {
                    break;
                }
            }
            last
        },
    },
    Probe {
        name: "climb-out",
        attempt: "read a host file by climbing up from the writable folder",
        layers: &[Layer::Files],
        run: |c| {
            let up = c.writable.join("../../../../../../../..");
            let mut last = Attempt::Stopped(String::new());
            for name in inside_paths(c, &c.secret_file) {
                last = reads_token(c, &up.join(name.strip_prefix("/").unwrap_or(&name)));
                if matches!(last, Attempt::Open(_)) {
                    break;
                }
            }
            last
        },
    },
    Probe {
        name: "hard-link-in",
        attempt: "hard-link a program of the host into the writable folder",
        layers: &[Layer::Files, Layer::Landlock],
        run: |c| {
            let link = c.writable.join("hard-link");
            let result =
                fs::hard_link("/proc/self/exe", &link).or_else(|_| fs::hard_link("/usr/bin/env", &link));
            let _ = fs::remove_file(&link);
            Attempt::from(result, "linked")
        },
    },
    Probe {
        name: "rename-out",
        attempt: "move a file from the writable folder to /etc",
        layers: &[Layer::Files, Layer::ReadOnlyRoot, Layer::Landlock],
        run: |c| {
            let file = c.writable.join("to-be-moved");
            if let Err(error) = fs::write(&file, "x") {
                return Attempt::NotTried(error.to_string());
            }
            let result = fs::rename(&file, "/etc/moved");
            let _ = fs::remove_file(&file);
            Attempt::from(result, "moved")
        },
    },
    Probe {
        name: "write-root",
        attempt: "make a file in /",
        layers: &[Layer::ReadOnlyRoot, Layer::Landlock],
        run: |_| Attempt::from(fs::write("/made-by-probe", "x"), "made"),
    },
    Probe {
        name: "root-folder-writable",
        attempt: "find / or /etc mounted so that it could be written",
        layers: &[Layer::ReadOnlyRoot],
        run: |_| {
            Attempt::open_if(
                raw::may_write("/") || raw::may_write("/dev"),
                "the kernel says that / or /dev may be written",
                "read-only",
            )
        },
    },
    Probe {
        name: "write-programs",
        attempt: "change a program or library of the host",
        layers: &[Layer::Files, Layer::Landlock],
        run: |_| {
            let result = fs::File::options()
                .append(true)
                .open("/usr/bin/env")
                .or_else(|_| fs::File::create("/usr/lib/made-by-probe"));
            Attempt::from(result, "opened for writing")
        },
    },
    Probe {
        name: "make-device",
        attempt: "make a device file in the writable folder",
        layers: &[Layer::Capabilities, Layer::Landlock],
        run: |c| {
            let path = c.writable.join("device");
            let result = raw::make_device(&path);
            let _ = fs::remove_file(&path);
            Attempt::from(result, "made")
        },
    },
    Probe {
        name: "root-owned-file",
        attempt: "read a file in a visible folder that only the host's root may read",
        layers: &[Layer::Identity],
        run: |c| match &c.root_only {
            Some(path) => Attempt::from(fs::read(path), "read it: this is the host's root"),
            None => Attempt::NotTried("the launcher is not root".to_owned()),
        },
    },
];
