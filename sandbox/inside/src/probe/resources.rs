//! Attempts to make kernel objects without end. Most of them are not part of a process's memory, so a limit of memory alone
//! does not bound them.

use super::{Attempt, Probe, raw};
use crate::findings::Canaries;
use crate::layer::Layer;
use crate::linux::bounds::{LOCKED_MEMORY, QUEUED_SIGNALS};
use crate::linux::sys;
use nix::sched::{CloneFlags, unshare};
use nix::sys::inotify::{InitFlags, Inotify};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

const LIMITS: &[Layer] = &[Layer::Limits];

pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "many-user-namespaces",
        attempt: "make more user namespaces than the limit",
        layers: LIMITS,
        run: |c| many_namespaces(c, "user", CloneFlags::CLONE_NEWUSER),
    },
    Probe {
        name: "many-pid-namespaces",
        attempt: "make more pid namespaces than the limit, in a nested user namespace",
        layers: LIMITS,
        run: |c| many_namespaces(c, "pid", CloneFlags::CLONE_NEWPID),
    },
    Probe {
        name: "many-network-namespaces",
        attempt: "make more network namespaces than the limit, in a nested user namespace",
        layers: LIMITS,
        run: |c| many_namespaces(c, "net", CloneFlags::CLONE_NEWNET),
    },
    Probe {
        name: "raise-namespace-limit",
        attempt: "raise the limit of namespaces",
        layers: &[Layer::Limits, Layer::Capabilities],
        run: |_| {
            let path = "/proc/sys/user/max_net_namespaces";
            Attempt::from(fs::write(path, i32::MAX.to_string()), "raised")
        },
    },
    Probe {
        name: "nested-time-namespace",
        attempt: "make a time namespace",
        layers: &[Layer::Seccomp, Layer::Limits],
        run: |_| {
            // libc's flag of unshare for time namespaces has no name in nix.
            let flags = CloneFlags::from_bits_retain(0x80) | CloneFlags::CLONE_NEWUSER;
            Attempt::from(unshare(flags).map_err(io::Error::from), "made")
        },
    },
    Probe {
        name: "pseudo-terminal",
        attempt: "make a terminal",
        layers: &[Layer::Files],
        run: |_| {
            let made = nix::pty::posix_openpt(nix::fcntl::OFlag::O_RDWR).map_err(io::Error::from);
            Attempt::from(made, "made")
        },
    },
    Probe {
        name: "many-empty-files",
        attempt: "make more files in a folder in memory than the limit",
        layers: LIMITS,
        run: |c| match &c.temporary {
            Some((folder, most)) => many_files(folder, *most),
            None => Attempt::NotTried("there is no folder in memory".to_owned()),
        },
    },
    Probe {
        name: "system-v-objects",
        attempt: "make System V memory, semaphores or message queues",
        layers: &[Layer::Seccomp],
        run: |_| Attempt::from(raw::make_system_v_objects(), "made"),
    },
    Probe {
        name: "posix-message-queue",
        attempt: "make a POSIX message queue",
        layers: &[Layer::Seccomp, Layer::Limits],
        run: |_| Attempt::from(raw::make_message_queue("/probe"), "made"),
    },
    Probe {
        name: "many-queued-signals",
        attempt: "queue more signals than the limit",
        layers: LIMITS,
        run: |_| match raw::block_queued_signal() {
            Ok(()) => many(QUEUED_SIGNALS + 1, |_| raw::queue_signal()),
            Err(error) => Attempt::NotTried(error.to_string()),
        },
    },
    Probe {
        name: "many-timers",
        attempt: "make more timers than the limit",
        layers: LIMITS,
        run: |_| many(QUEUED_SIGNALS + 1, |_| raw::make_timer()),
    },
    Probe {
        name: "locked-memory",
        attempt: "lock more memory than the limit",
        layers: LIMITS,
        run: |_| Attempt::from(raw::lock_memory(LOCKED_MEMORY as usize + (1 << 20)), "locked"),
    },
    Probe {
        name: "many-file-watches",
        attempt: "make more inotify instances than the limit",
        layers: LIMITS,
        run: |_| {
            let mut held = Vec::new();
            many(65, |_| {
                held.push(Inotify::init(InitFlags::IN_CLOEXEC)?);
                Ok(())
            })
        },
    },
    Probe {
        name: "mount-watches",
        attempt: "watch whole file systems (fanotify)",
        layers: &[Layer::Seccomp, Layer::Limits],
        run: |_| Attempt::from(raw::fanotify(), "made"),
    },
    Probe {
        name: "large-pipe",
        attempt: "make a pipe larger than the host allows an ordinary user",
        layers: &[Layer::Capabilities],
        run: |_| Attempt::from(raw::enlarge_pipe(), "made"),
    },
    Probe {
        name: "realtime-priority",
        attempt: "run before every other process of the host (SCHED_FIFO)",
        layers: &[Layer::Limits, Layer::Capabilities],
        run: |_| Attempt::from(raw::realtime_priority(), "granted"),
    },
];

/// Makes `count` objects; the probe is stopped when one of them fails.
fn many(count: u64, mut make: impl FnMut(u64) -> io::Result<()>) -> Attempt {
    for number in 0..count {
        if let Err(error) = make(number) {
            return Attempt::Stopped(format!("after {number}: {error}"));
        }
    }
    Attempt::Open(format!("{count} were made"))
}

/// Makes one file more than the limit, and removes all of them for the probes that follow.
fn many_files(folder: &Path, most: u64) -> Attempt {
    let inside = folder.join("many-empty-files");
    if let Err(error) = fs::create_dir(&inside) {
        return Attempt::NotTried(format!("{}: {error}", inside.display()));
    }
    let attempt = many(most + 1, |number| File::create(inside.join(number.to_string())).map(drop));
    let _ = fs::remove_dir_all(inside);
    attempt
}

/// Starts one process more than the limit allows namespaces, each with a namespace of its own. User namespaces are made side
/// by side. The others are made in one nested user namespace, where the program has every capability.
fn many_namespaces(canaries: &Canaries, kind: &str, flag: CloneFlags) -> Attempt {
    let Some(most) = canaries.nested_namespaces.get(kind) else {
        return Attempt::NotTried("the policy does not name this kind".to_owned());
    };
    if flag != CloneFlags::CLONE_NEWUSER
        && let Err(error) = enter_user_namespace()
    {
        return Attempt::NotTried(format!("a user namespace: {error}"));
    }
    let mut children = Vec::new();
    let attempt = many(u64::from(*most) + 1, |_| {
        let (child, made) = hold_namespace(flag)?;
        children.push(child);
        made
    });
    for child in children {
        let child = nix::unistd::Pid::from_raw(child);
        let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(child, None);
    }
    attempt
}

/// Enters a new user namespace. The kernel releases the namespaces of the last probe a moment after its processes end, and
/// they count until then.
fn enter_user_namespace() -> nix::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match unshare(CloneFlags::CLONE_NEWUSER) {
            Err(nix::Error::ENOSPC) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

/// A process that holds a new namespace until it is killed, and whether it got one.
fn hold_namespace(flag: CloneFlags) -> io::Result<(i32, io::Result<()>)> {
    let (mut reader, mut writer) = io::pipe()?;
    match sys::fork()? {
        Some(child) => {
            drop(writer);
            let mut answer = [0; 4];
            let made = reader.read_exact(&mut answer).and_then(|()| match i32::from_ne_bytes(answer) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            });
            Ok((child, made))
        }
        None => {
            let errno = unshare(flag).map_or_else(|error| error as i32, |()| 0);
            let _ = writer.write_all(&errno.to_ne_bytes());
            if errno == 0 {
                nix::unistd::pause();
            }
            std::process::exit(0)
        }
    }
}
