//! Everything that is sent to the stages: order, instructions and descriptors.

use super::checks::Checked;
use crate::linux::{doing, embedded};
use crate::plan::Argument;
use crate::{Error, FileRule, Launch, Layer, NestedNamespace, Network, Requirement, SandboxPlan, Stdio};
use rustix::fs::{Mode, OFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use sandbox_inside::linux::channel;
use sandbox_inside::protocol::{
    Bounds, Descriptors, Executable, FIRST_DESCRIPTOR, Instructions, Landlock, MAX_DESCRIPTORS,
    NamespaceCheck, StageOne, Target, Verify,
};
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// How much of bubblewrap's error output is read.
const LONGEST_COMPLAINT: u64 = 16 << 10;

/// The order and descriptors for stage 1.
pub(super) struct Package {
    order: StageOne,
    descriptors: Vec<OwnedFd>,
    /// The socket for reports of the stages.
    pub(super) status: OwnedFd,
    complaints: OwnedFd,
    /// Whether the layer `descriptors` is off.
    pub(super) pass_on_descriptors: bool,
    pub(super) landlock_abi: u8,
}

impl Package {
    pub(super) fn build(
        launch: Launch,
        checked: &Checked,
        cgroup: Option<OwnedFd>,
    ) -> Result<Package, Error> {
        let mut descriptors = DescriptorList::default();
        let (status, stage_status) = channel::pair().map_err(doing("make a socket pair"))?;
        channel::want_sender(status.as_fd()).map_err(doing("enable SO_PASSCRED"))?;
        let status_number = descriptors.push(stage_status)?;
        let own_process = pidfd_open(getpid(), PidfdFlags::empty())
            .map_err(|e| doing("pidfd_open of this process")(e.into()))?;
        let launcher = descriptors.push(own_process)?;
        let complaints = embedded::scratch("bubblewrap-complaints")?;
        let complaints_number = descriptors.push(copy(&complaints)?)?;
        let stages = descriptors.push(copy(embedded::stages()?)?)?;
        let plan = &launch.plan;
        let network = namespace_checks(plan, launch.network_namespace.as_ref())?;
        let network_namespace = launch.network_namespace.map(|fd| descriptors.push(fd)).transpose()?;
        let cgroup = cgroup.map(|fd| descriptors.push(fd)).transpose()?;

        let mut inherit = Vec::new();
        let mut moves = Vec::new();
        let standard = [(0, launch.stdin), (1, launch.stdout), (2, launch.stderr)];
        let given = standard
            .into_iter()
            .map(|(number, stdio)| Ok((number, open(stdio, number)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        for (number, descriptor) in given.into_iter().chain(launch.descriptors) {
            let from = descriptors.push(descriptor)?;
            inherit.push(from);
            moves.push((from, number));
        }
        let executable = match launch.executable {
            Some(file) => {
                let number = descriptors.push(file)?;
                inherit.push(number);
                Executable::Descriptor(number)
            }
            None => Executable::Path(plan.program.path.clone()),
        };
        let (arguments, data) = argument_file(plan, &mut descriptors)?;
        inherit.extend(data);
        let arguments = descriptors.push(arguments)?;
        let bounds = match plan.policy.layers.wanted(Layer::Limits) {
            true => {
                let settings = user_settings()?;
                let number = descriptors.push(settings)?;
                inherit.push(number);
                Some(bounds(plan, number))
            }
            false => None,
        };
        let instructions = instructions(plan, checked, status_number, network, moves, bounds, executable);
        let instructions =
            serde_json::to_vec(&instructions).map_err(|e| doing("write the instructions")(e.into()))?;
        let instructions = descriptors.push(embedded::data("instructions", &instructions)?)?;
        Ok(Package {
            order: StageOne {
                launcher,
                status: status_number,
                network_namespace,
                cgroup,
                show_at: launch.show_at,
                become_user: checked.become_user,
                bubblewrap: checked.bubblewrap.clone(),
                arguments,
                complaints: complaints_number,
                stages,
                instructions,
                inherit,
            },
            descriptors: descriptors.0,
            status,
            complaints,
            pass_on_descriptors: !plan.policy.layers.wanted(Layer::Descriptors),
            landlock_abi: plan.policy.landlock.abi,
        })
    }

    /// Sends everything and closes the local copies, so that only the program holds its pipe ends.
    pub(super) fn send(&mut self, socket: &OwnedFd) -> Result<(), Error> {
        let order =
            serde_json::to_vec(&self.order).map_err(|e| doing("write the order for stage 1")(e.into()))?;
        let numbers: Vec<i32> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        channel::send(socket.as_fd(), &order, &numbers).map_err(doing("send to stage 1"))?;
        self.descriptors.clear();
        Ok(())
    }

    /// The beginning of bubblewrap's error output.
    pub(super) fn complaints(&self) -> String {
        let mut text = Vec::new();
        let read = copy(&self.complaints)
            .map(std::fs::File::from)
            .map(|mut file| file.rewind().and_then(|()| file.take(LONGEST_COMPLAINT).read_to_end(&mut text)));
        match read {
            Ok(Ok(_)) => String::from_utf8_lossy(&text).trim().trim_end_matches('.').replace('\n', "; "),
            _ => "(nothing readable)".to_owned(),
        }
    }
}

/// Descriptors in the order in which stage 1 numbers them.
#[derive(Default)]
struct DescriptorList(Vec<OwnedFd>);

impl DescriptorList {
    fn push(&mut self, descriptor: OwnedFd) -> Result<i32, Error> {
        if self.0.len() == MAX_DESCRIPTORS {
            return Err(doing("send descriptors to stage 1")(std::io::Error::other(
                "too many files and descriptors in one policy",
            )));
        }
        let index = i32::try_from(self.0.len()).expect("below MAX_DESCRIPTORS");
        self.0.push(descriptor);
        Ok(FIRST_DESCRIPTOR + index)
    }
}

fn copy(descriptor: &OwnedFd) -> Result<OwnedFd, Error> {
    descriptor.try_clone().map_err(doing("copy a descriptor"))
}

fn open(stdio: Stdio, number: i32) -> Result<OwnedFd, Error> {
    let inherited = match stdio {
        Stdio::Descriptor(descriptor) => return Ok(descriptor),
        Stdio::Null => std::fs::File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from),
        Stdio::Inherit => match number {
            0 => std::io::stdin().as_fd().try_clone_to_owned(),
            1 => std::io::stdout().as_fd().try_clone_to_owned(),
            _ => std::io::stderr().as_fd().try_clone_to_owned(),
        },
    };
    inherited.map_err(doing(format!("standard descriptor {number}")))
}

/// Bubblewrap's arguments and the descriptor numbers in them.
fn argument_file(plan: &SandboxPlan, descriptors: &mut DescriptorList) -> Result<(OwnedFd, Vec<i32>), Error> {
    let mut bytes = Vec::new();
    let mut numbers = Vec::new();
    for argument in &plan.arguments {
        match argument {
            Argument::Text(text) => bytes.extend(text.as_bytes()),
            Argument::Data(content) => {
                let number = descriptors.push(embedded::data("synthetic", content.as_bytes())?)?;
                numbers.push(number);
                bytes.extend(number.to_string().as_bytes());
            }
        }
        bytes.push(0);
    }
    Ok((embedded::data("bubblewrap-arguments", &bytes)?, numbers))
}

fn instructions(
    plan: &SandboxPlan,
    checked: &Checked,
    status_fd: i32,
    namespaces: Vec<NamespaceCheck>,
    moves: Vec<(i32, i32)>,
    bounds: Option<Bounds>,
    program: Executable,
) -> Instructions {
    let policy = &plan.policy;
    let wanted = |layer| policy.layers.wanted(layer);
    let requirement = policy.layers.requirement(Layer::Landlock);
    let mut arguments = vec![plan.program.path.display().to_string()];
    arguments.extend(plan.program.arguments.iter().cloned());
    Instructions {
        status_fd,
        verify: Verify {
            namespaces,
            read_only_root: wanted(Layer::ReadOnlyRoot),
            mounts: plan.mounts.clone(),
            own_process_ids: wanted(Layer::PidNamespace),
            uid: policy.identity.uid,
            gid: policy.identity.gid,
            own_session: wanted(Layer::Session),
        },
        listen: match policy.network {
            Network::Proxy { port } => Some(port),
            _ => None,
        },
        descriptors: Descriptors { moves, close_others: wanted(Layer::Descriptors) },
        bounds,
        landlock: (requirement != Requirement::Off).then(|| Landlock {
            abi: policy.landlock.abi,
            requirement,
            rules: plan.landlock.clone(),
        }),
        drop_capabilities: wanted(Layer::Capabilities),
        seccomp: checked.filters.clone(),
        target: Target {
            program,
            arguments,
            environment: environment(plan),
            working_folder: policy.working_folder.clone(),
        },
    }
}

/// The folder of this user namespace's settings. A lookup in it gives the settings of the user namespace of the process
/// that looks, so stage 2 reaches its own through this descriptor.
fn user_settings() -> Result<OwnedFd, Error> {
    const FOLDER: &str = "/proc/sys/user";
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(FOLDER, flags, Mode::empty()).map_err(|e| Error::Layer {
        layer: Layer::Limits,
        reason: format!("{FOLDER}: {e}"),
        fix: Some("use a kernel with CONFIG_USER_NS and CONFIG_SYSCTL, and a /proc that shows it".to_owned()),
    })
}

/// The most watches of files, which pin the kernel's memory of each file. Chromium uses a few; `fanotify` is refused.
const WATCHES: [(&str, u32); 4] = [
    ("max_inotify_instances", 64),
    ("max_inotify_watches", 8192),
    ("max_fanotify_groups", 0),
    ("max_fanotify_marks", 0),
];

fn bounds(plan: &SandboxPlan, user_settings: i32) -> Bounds {
    let policy = &plan.policy;
    let namespaces = NestedNamespace::ALL.map(|kind| (kind.setting().to_owned(), policy.syscalls.most(kind)));
    Bounds {
        requirement: policy.layers.requirement(Layer::Limits),
        open_files: policy.limits.open_files,
        user_settings,
        namespaces: namespaces.into(),
        watches: WATCHES.map(|(file, most)| (file.to_owned(), most)).into(),
        inodes: policy.files.iter().filter_map(FileRule::inodes).collect(),
    }
}

fn environment(plan: &SandboxPlan) -> Vec<(String, String)> {
    let own = plan.policy.environment.clone().into_iter();
    if plan.policy.layers.wanted(Layer::Environment) {
        return own.collect();
    }
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .chain(own)
        .collect()
}

/// The namespaces that stage 2 compares with its own: this process's, or the prepared one.
fn namespace_checks(plan: &SandboxPlan, prepared: Option<&OwnedFd>) -> Result<Vec<NamespaceCheck>, Error> {
    let wanted = |layer| plan.policy.layers.wanted(layer);
    let kinds = [
        ("user", Layer::Bubblewrap, true),
        ("mnt", Layer::Bubblewrap, true),
        ("pid", Layer::PidNamespace, wanted(Layer::PidNamespace)),
        ("ipc", Layer::IpcNamespace, wanted(Layer::IpcNamespace)),
        ("uts", Layer::UtsNamespace, wanted(Layer::UtsNamespace)),
        ("cgroup", Layer::CgroupNamespace, wanted(Layer::CgroupNamespace)),
        ("net", Layer::Network, plan.own_network()),
    ];
    let mut checks = Vec::new();
    for (kind, layer, checked) in kinds {
        if checked {
            let path = format!("/proc/thread-self/ns/{kind}");
            let inode = std::fs::metadata(&path).map_err(doing(path))?.ino();
            checks.push(NamespaceCheck { kind: kind.to_owned(), inode, same: false, layer });
        }
    }
    if let Some(prepared) = prepared {
        let stat = nix::sys::stat::fstat(prepared)
            .map_err(|e| doing("fstat of the prepared network namespace")(e.into()))?;
        checks.push(NamespaceCheck {
            kind: "net".to_owned(),
            inode: stat.st_ino,
            same: true,
            layer: Layer::Network,
        });
    }
    Ok(checks)
}
