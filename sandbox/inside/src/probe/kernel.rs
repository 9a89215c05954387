//! Attempts to use kernel interfaces that the program does not need.

use super::{Attempt, Probe, raw};
use crate::layer::Layer;
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;

const SECCOMP: &[Layer] = &[Layer::Seccomp];
/// The filter refuses the call, and the bound of this kind is 0.
const NAMESPACE: &[Layer] = &[Layer::Seccomp, Layer::Limits];

fn namespaces(flags: CloneFlags) -> Attempt {
    Attempt::from(unshare(flags).map_err(Into::into), "made")
}

pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "capabilities",
        attempt: "have a capability",
        layers: &[Layer::Capabilities],
        run: |_| {
            let sets = [
                caps::CapSet::Effective,
                caps::CapSet::Permitted,
                caps::CapSet::Inheritable,
                caps::CapSet::Ambient,
                caps::CapSet::Bounding,
            ];
            let some = sets.iter().any(|set| caps::read(None, *set).is_ok_and(|found| !found.is_empty()));
            Attempt::open_if(some, "there are some", "none in any set")
        },
    },
    Probe {
        name: "new-privileges",
        attempt: "be able to gain privileges by executing a program",
        layers: &[Layer::Bubblewrap],
        run: |_| {
            let unset = nix::sys::prctl::get_no_new_privs() == Ok(false);
            Attempt::open_if(unset, "no_new_privs is not set", "no_new_privs is set")
        },
    },
    Probe {
        name: "mount-in-nested-namespace",
        attempt: "make a user and mount namespace and mount in it",
        layers: &[Layer::Seccomp, Layer::Landlock, Layer::Limits],
        run: |_| {
            let result = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
                .map_err(std::io::Error::from)
                .and_then(|()| raw::mount_tmpfs("/tmp"));
            Attempt::from(result, "mounted")
        },
    },
    Probe {
        name: "nested-mount-namespace",
        attempt: "make a mount namespace",
        layers: NAMESPACE,
        run: |_| namespaces(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS),
    },
    Probe {
        name: "nested-ipc-namespace",
        attempt: "make an ipc namespace",
        layers: NAMESPACE,
        run: |_| namespaces(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWIPC),
    },
    Probe {
        name: "nested-uts-namespace",
        attempt: "make a uts namespace",
        layers: NAMESPACE,
        run: |_| namespaces(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWUTS),
    },
    Probe {
        name: "nested-cgroup-namespace",
        attempt: "make a cgroup namespace",
        layers: NAMESPACE,
        run: |_| namespaces(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWCGROUP),
    },
    Probe {
        name: "clone3",
        attempt: "make a namespace with clone3, whose flags a filter cannot see",
        layers: NAMESPACE,
        run: |_| Attempt::from(raw::clone3_with_mount_namespace(), "made"),
    },
    Probe {
        name: "enter-namespace",
        attempt: "enter a namespace through /proc (setns)",
        layers: SECCOMP,
        run: |_| {
            let result = File::open("/proc/self/ns/net").and_then(|own| {
                unshare(CloneFlags::CLONE_NEWUSER)?;
                // The new user namespace owns this network namespace, so only the filter stops setns.
                unshare(CloneFlags::CLONE_NEWNET)?;
                let new = File::open("/proc/self/ns/net")?;
                drop(own);
                Ok(setns(new, CloneFlags::CLONE_NEWNET)?)
            });
            Attempt::from(result, "entered")
        },
    },
    Probe {
        name: "mount",
        attempt: "mount over /tmp",
        layers: &[Layer::Seccomp, Layer::Capabilities, Layer::Landlock],
        run: |_| Attempt::from(raw::mount_tmpfs("/tmp"), "mounted"),
    },
    Probe {
        name: "change-host-name",
        attempt: "change the host's name",
        layers: &[Layer::Seccomp, Layer::Capabilities],
        run: |_| Attempt::from(nix::unistd::sethostname("probe").map_err(Into::into), "changed"),
    },
    Probe {
        name: "keyring",
        attempt: "use the kernel's keyring",
        layers: SECCOMP,
        run: |_| Attempt::from(raw::keyring(), "used"),
    },
    Probe {
        name: "io-uring",
        attempt: "make an io_uring",
        layers: SECCOMP,
        run: |_| Attempt::from(raw::io_uring(), "made"),
    },
    Probe {
        name: "userfaultfd",
        attempt: "handle page faults (userfaultfd)",
        layers: SECCOMP,
        run: |_| Attempt::from(raw::userfaultfd(), "made"),
    },
    Probe {
        name: "bpf",
        attempt: "load a map or program into the kernel (bpf)",
        layers: &[Layer::Seccomp, Layer::Capabilities],
        run: |_| Attempt::from(raw::bpf(), "loaded"),
    },
    Probe {
        name: "perf",
        attempt: "open a performance counter",
        layers: SECCOMP,
        run: |_| Attempt::from(raw::perf(), "opened"),
    },
    Probe {
        name: "personality",
        attempt: "switch off address randomisation",
        layers: SECCOMP,
        run: |_| Attempt::from(raw::personality(), "switched"),
    },
    Probe {
        name: "segment-table",
        attempt: "change the processor's segment table (modify_ldt)",
        layers: SECCOMP,
        run: |_| {
            raw::modify_ldt().map_or_else(
                || Attempt::NotTried("not on this architecture".to_owned()),
                |result| Attempt::from(result, "done"),
            )
        },
    },
    Probe {
        name: "foreign-calls",
        attempt: "use the 32-bit table of system calls",
        layers: SECCOMP,
        run: |_| {
            raw::call_as_i386().map_or_else(
                || Attempt::NotTried("not on this architecture".to_owned()),
                |result| Attempt::from(result, "answered"),
            )
        },
    },
    Probe {
        name: "x32-calls",
        attempt: "use the x32 table of system calls",
        layers: SECCOMP,
        run: |_| {
            raw::call_as_x32().map_or_else(
                || Attempt::NotTried("not on this architecture".to_owned()),
                |result| Attempt::from(result, "answered"),
            )
        },
    },
    Probe {
        name: "file-by-handle",
        attempt: "open a file by its handle instead of a path",
        layers: &[Layer::Seccomp, Layer::Capabilities],
        run: |_| Attempt::from(raw::open_by_handle(), "opened"),
    },
    Probe {
        name: "kernel-log",
        attempt: "read the kernel's log",
        layers: &[Layer::Seccomp, Layer::Capabilities],
        run: |_| Attempt::from(raw::kernel_log(), "read"),
    },
    Probe {
        name: "type-into-terminal",
        attempt: "use the call that puts characters into a terminal's input (TIOCSTI)",
        layers: SECCOMP,
        run: |_| Attempt::from(raw::type_into_terminal(), "answered"),
    },
];
