//! Attempts to reach other processes, their memory, environment and kernel objects.

use super::{Attempt, Probe, raw};
use crate::findings::Canaries;
use crate::layer::Layer;
use crate::linux::verify::controlling_terminal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::MetadataExt;

fn shares(canaries: &Canaries, kind: &str) -> Attempt {
    let own = fs::metadata(format!("/proc/self/ns/{kind}")).map(|m| m.ino());
    match (own, canaries.namespaces.get(kind)) {
        (Ok(own), Some(theirs)) => Attempt::open_if(own == *theirs, "the same", "another one"),
        (Err(error), _) => Attempt::NotTried(error.to_string()),
        (_, None) => Attempt::NotTried("not known".to_owned()),
    }
}

/// Field 22 of `/proc/<pid>/stat`: when the process started.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

fn sees_launcher(canaries: &Canaries) -> bool {
    let (pid, started) = canaries.launcher;
    start_time(pid) == Some(started)
}

pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "see-launcher",
        attempt: "see the launcher in /proc",
        layers: &[Layer::PidNamespace],
        run: |c| Attempt::open_if(sees_launcher(c), "seen", "not there"),
    },
    Probe {
        name: "count-processes",
        attempt: "see processes that are not its own",
        layers: &[Layer::PidNamespace],
        run: |_| {
            // Expected: bubblewrap's process 1, the battery, this probe.
            let count = fs::read_dir("/proc").map_or(0, |entries| {
                entries.flatten().filter(|e| e.file_name().to_string_lossy().parse::<u32>().is_ok()).count()
            });
            Attempt::open_if(count > 3, &format!("{count} are seen"), &format!("{count}, its own"))
        },
    },
    Probe {
        name: "signal-launcher",
        attempt: "signal the launcher",
        layers: &[Layer::PidNamespace, Layer::Landlock],
        run: |c| {
            if !sees_launcher(c) {
                return Attempt::Stopped("not there".to_owned());
            }
            Attempt::from(kill(Pid::from_raw(c.launcher.0), None).map_err(Into::into), "may be signalled")
        },
    },
    Probe {
        name: "signal-process-1",
        attempt: "signal bubblewrap's process 1",
        layers: &[Layer::Landlock],
        run: |_| Attempt::from(kill(Pid::from_raw(1), None).map_err(Into::into), "may be signalled"),
    },
    Probe {
        name: "launcher-root-folder",
        attempt: "reach the host's files through /proc/PID/root of other processes",
        layers: &[Layer::PidNamespace, Layer::Landlock],
        run: |c| {
            let relative = c.secret_file.strip_prefix("/").unwrap_or(&c.secret_file);
            let mut last = "no other process".to_owned();
            for pid in [1, c.launcher.0] {
                let path = std::path::Path::new("/proc").join(pid.to_string()).join("root").join(relative);
                match fs::read_to_string(path) {
                    Ok(text) if text.contains(&c.token) => {
                        return Attempt::Open(format!("read through process {pid}"));
                    }
                    Ok(_) => {}
                    Err(error) => last = error.to_string(),
                }
            }
            Attempt::Stopped(last)
        },
    },
    Probe {
        name: "process-1-environment",
        attempt: "read the environment of process 1",
        layers: &[Layer::Environment, Layer::Landlock],
        run: |_| match fs::read("/proc/1/environ") {
            Ok(bytes) => Attempt::open_if(!bytes.is_empty(), "there is something", "empty"),
            Err(error) => Attempt::Stopped(error.to_string()),
        },
    },
    Probe {
        name: "process-1-arguments",
        attempt: "read what the host's folders are called from the arguments of process 1",
        layers: &[Layer::Bubblewrap],
        run: |_| match fs::read_to_string("/proc/1/cmdline") {
            Ok(text) => Attempt::open_if(
                text.contains("bind") || text.contains("--uid"),
                "the whole policy",
                "only a descriptor's number",
            ),
            Err(error) => Attempt::Stopped(error.to_string()),
        },
    },
    Probe {
        name: "process-1-memory",
        attempt: "open the memory of process 1",
        layers: &[Layer::Landlock, Layer::Bubblewrap],
        run: |_| Attempt::from(fs::File::open("/proc/1/mem"), "opened"),
    },
    Probe {
        name: "launcher-environment",
        attempt: "find variables of the launcher in its own environment",
        layers: &[Layer::Environment],
        run: |c| {
            let foreign: Vec<String> = std::env::vars_os()
                .filter_map(|(name, _)| name.into_string().ok())
                .filter(|name| !c.environment.contains(name))
                .collect();
            Attempt::open_if(!foreign.is_empty(), &foreign.join(", "), "only the policy's")
        },
    },
    Probe {
        name: "inherited-descriptor",
        attempt: "read a file that the launcher had open",
        layers: &[Layer::Descriptors],
        run: |c| {
            for number in 3..1024 {
                if raw::read_descriptor(number).is_some_and(|text| text.contains(&c.token)) {
                    return Attempt::Open(format!("read descriptor {number}"));
                }
            }
            Attempt::Stopped("none open".to_owned())
        },
    },
    Probe {
        name: "system-v-memory",
        attempt: "attach a System V memory segment of the host",
        layers: &[Layer::IpcNamespace, Layer::Seccomp],
        run: |c| Attempt::from(raw::find_shared_segment(c.system_v_key), "found"),
    },
    Probe {
        name: "message-queue",
        attempt: "open a POSIX message queue of the host",
        layers: &[Layer::IpcNamespace, Layer::Landlock, Layer::Seccomp],
        run: |c| match &c.message_queue {
            Some(name) => Attempt::from(raw::open_message_queue(name), "opened"),
            None => Attempt::NotTried("the kernel has no message queues".to_owned()),
        },
    },
    Probe {
        name: "shared-user-namespace",
        attempt: "be in the launcher's user namespace",
        layers: &[Layer::Bubblewrap],
        run: |c| shares(c, "user"),
    },
    Probe {
        name: "shared-mount-namespace",
        attempt: "be in the launcher's mount namespace",
        layers: &[Layer::Bubblewrap],
        run: |c| shares(c, "mnt"),
    },
    Probe {
        name: "shared-pid-namespace",
        attempt: "be in the launcher's pid namespace",
        layers: &[Layer::PidNamespace],
        run: |c| shares(c, "pid"),
    },
    Probe {
        name: "shared-ipc-namespace",
        attempt: "be in the launcher's ipc namespace (message queues, semaphores)",
        layers: &[Layer::IpcNamespace],
        run: |c| shares(c, "ipc"),
    },
    Probe {
        name: "shared-host-name",
        attempt: "be in the launcher's uts namespace",
        layers: &[Layer::UtsNamespace],
        run: |c| shares(c, "uts"),
    },
    Probe {
        name: "host-name",
        attempt: "learn the host's name",
        layers: &[Layer::UtsNamespace],
        run: |c| {
            let name =
                nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
            Attempt::open_if(name == c.host_name, &name, "another name")
        },
    },
    Probe {
        name: "shared-cgroup-namespace",
        attempt: "see the host's tree of control groups",
        layers: &[Layer::CgroupNamespace],
        run: |c| shares(c, "cgroup"),
    },
    Probe {
        name: "terminal",
        attempt: "have the launcher's terminal",
        layers: &[Layer::Session],
        run: |_| match controlling_terminal() {
            Some(device) => Attempt::open_if(device != 0, &format!("device {device:#x}"), "none"),
            None => Attempt::NotTried("/proc/self/stat cannot be read".to_owned()),
        },
    },
    Probe {
        name: "trace-process-1",
        attempt: "trace process 1",
        layers: &[Layer::Seccomp, Layer::Landlock],
        run: |_| Attempt::from(raw::trace(1), "traced"),
    },
    Probe {
        name: "trace-child",
        attempt: "trace a process of its own (ptrace)",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::trace_me(), "traced"),
    },
    Probe {
        name: "read-process-memory",
        attempt: "read another process's memory with process_vm_readv",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::read_own_memory(), "read"),
    },
    Probe {
        name: "take-descriptor",
        attempt: "take a descriptor out of another process with pidfd_getfd",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::take_descriptor(), "taken"),
    },
    Probe {
        name: "compare-processes",
        attempt: "compare kernel objects of processes with kcmp",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::compare_processes(), "compared"),
    },
];
