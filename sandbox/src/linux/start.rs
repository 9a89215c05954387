//! The start of a sandbox, step by step. Everything is checked before the first effect.

use super::handle::{Inside, LayerState, Sandbox, Timings};
use super::limits::{self, Limiter};
use super::{bubblewrap, doing, embedded, fixes, seccomp, stages};
use crate::plan::Argument;
use crate::{Error, FileRule, Launch, Layer, Network, Plan, Requirement, Stdio};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sandbox_inside::linux::{channel, sys};
use sandbox_inside::protocol::{
    Descriptors, Executable, FIRST_DESCRIPTOR, GO, Instructions, Landlock, MAX_DESCRIPTORS,
    NamespaceCheck, Record, Seccomp, StageOne, Target, Verify,
};
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

impl Sandbox {
    pub(crate) fn start(launch: Launch) -> Result<Sandbox, Error> {
        let begin = Instant::now();
        let checked = Checked::new(&launch)?;
        let timeout = launch.ready_timeout;
        let limits = launch.plan.policy.limits.clone();
        let requirement = launch.plan.policy.layers.requirement(Layer::Limits);
        let mut limiter = Limiter::prepare(&limits, requirement, launch.cgroup.as_deref())?;
        let layers = expected_layers(&launch.plan, checked.become_user);
        let program = launch.plan.program.path.display().to_string();
        let mut package = Package::build(launch, &checked, limiter.entrance()?)?;

        let words: &[&str] = if package.pass_on_descriptors {
            &["guard", "pass-on"]
        } else {
            &["guard"]
        };
        let spawned = Instant::now();
        let (guard, socket) = stages::start(words)?;
        // From here on, dropping `inside` takes everything down.
        let mut inside = Inside::new(guard, socket)?;
        package.send(inside.socket())?;

        let deadline = spawned + timeout;
        let ready = wait_for_record(&package, deadline, timeout, &program)?;
        let (Record::Ready { missing }, Some(pid)) = (ready.record, ready.sender) else {
            return Err(doing("hear from stage 2")(
                std::io::ErrorKind::InvalidData.into(),
            ));
        };
        inside.found(pid)?;
        limiter.enclose(&inside.pids())?;
        let confined = Instant::now();

        channel::send(package.status.as_fd(), &[GO], &[]).map_err(doing("let stage 2 go on"))?;
        wait_for_execution(&package, deadline, timeout, &program)?;
        let executed = Instant::now();

        let mut layers = layers;
        for (layer, why) in missing.into_iter().chain(limiter.missing()) {
            set_state(&mut layers, layer, LayerState::Missing(why));
        }
        let timings = Timings {
            prepare: spawned - begin,
            confine: confined - spawned,
            execute: executed - confined,
        };
        let listener = ready.descriptors.into_iter().next().map(TcpListener::from);
        Ok(Sandbox::new(inside, layers, limiter, timings, listener))
    }
}

/// What was found out before anything was done.
struct Checked {
    bubblewrap: PathBuf,
    become_user: Option<u32>,
    filters: Option<Seccomp>,
}

impl Checked {
    fn new(launch: &Launch) -> Result<Self, Error> {
        let policy = &launch.plan.policy;
        let become_user = user_to_become(&launch.plan)?;
        check_network(launch)?;
        check_descriptors(launch)?;
        let bubblewrap = bubblewrap::find(launch.bubblewrap.as_deref())?;
        not_in_writable_folder(&bubblewrap, &launch.plan)?;
        let requirement = policy.layers.requirement(Layer::Seccomp);
        let filters = match requirement {
            Requirement::Off => None,
            requirement => Some(Seccomp {
                requirement,
                programs: seccomp::compile(&policy.syscalls)?,
            }),
        };
        Ok(Checked {
            bubblewrap,
            become_user,
            filters,
        })
    }
}

fn user_to_become(plan: &Plan) -> Result<Option<u32>, Error> {
    let current = nix::unistd::geteuid().as_raw();
    let wanted = plan.policy.identity.host_uid;
    match (current, wanted) {
        (0, _) if !plan.policy.layers.wanted(Layer::Identity) => Ok(None),
        (0, None) => Err(Error::RootNeedsPrivateUid),
        (0, Some(uid)) => Ok(Some(uid)),
        (_, None) => Ok(None),
        (current, Some(uid)) if uid == current => Ok(None),
        (current, Some(wanted)) => Err(Error::CannotBecome { wanted, current }),
    }
}

fn check_network(launch: &Launch) -> Result<(), Error> {
    let filtered = launch.plan.policy.network == Network::Filtered;
    match (filtered, &launch.network_namespace) {
        (true, None) => Err(Error::NetworkNamespace("none was given")),
        (false, Some(_)) => Err(Error::NetworkNamespace("the policy names another mode")),
        (true, Some(_)) if !nix::unistd::geteuid().is_root() => Err(Error::NetworkNamespace(
            "only root can enter one; an ordinary user has mode proxy",
        )),
        _ => Ok(()),
    }
}

fn check_descriptors(launch: &Launch) -> Result<(), Error> {
    match launch
        .descriptors
        .keys()
        .find(|number| !(3..FIRST_DESCRIPTOR).contains(*number))
    {
        Some(number) => Err(Error::Descriptor(*number)),
        None => Ok(()),
    }
}

/// A program that the sandboxed one could replace would be no sandbox the next time.
fn not_in_writable_folder(bubblewrap: &Path, plan: &Plan) -> Result<(), Error> {
    let folder = plan
        .policy
        .files
        .iter()
        .filter(|rule| matches!(rule, FileRule::Writable { .. }))
        .filter_map(FileRule::source)
        .find(|source| bubblewrap.starts_with(source));
    match folder {
        Some(folder) => Err(Error::Layer {
            layer: Layer::Bubblewrap,
            reason: format!(
                "{} is inside {}, which the program may write",
                bubblewrap.display(),
                folder.display()
            ),
            fix: Some("use the bubblewrap of the distribution's package".to_owned()),
        }),
        None => Ok(()),
    }
}

/// The descriptors and orders that go to stage 1.
struct Package {
    order: StageOne,
    descriptors: Vec<OwnedFd>,
    status: OwnedFd,
    complaints: OwnedFd,
    pass_on_descriptors: bool,
}

impl Package {
    fn build(launch: Launch, checked: &Checked, cgroup: Option<OwnedFd>) -> Result<Package, Error> {
        let mut cargo = Cargo::default();
        let (status, their_status) = channel::pair().map_err(doing("make a socket pair"))?;
        channel::want_sender(status.as_fd()).map_err(doing("ask for the sender's identity"))?;
        let status_number = cargo.load(their_status)?;
        let own_process = sys::pidfd_open(nix::unistd::getpid().as_raw())
            .map_err(doing("make a descriptor of this process"))?;
        let launcher = cargo.load(own_process)?;
        let complaints = embedded::scratch("bubblewrap-complaints")?;
        let complaints_number = cargo.load(copy(&complaints)?)?;
        let stages = cargo.load(copy(embedded::stages()?)?)?;
        let plan = &launch.plan;
        let network = namespace_checks(plan, launch.network_namespace.as_ref())?;
        let network_namespace = launch
            .network_namespace
            .map(|fd| cargo.load(fd))
            .transpose()?;
        let cgroup = cgroup.map(|fd| cargo.load(fd)).transpose()?;

        let mut inherit = Vec::new();
        let mut moves = Vec::new();
        let standard = [(0, launch.stdin), (1, launch.stdout), (2, launch.stderr)];
        let given = standard
            .into_iter()
            .map(|(number, stdio)| Ok((number, open(stdio, number)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        for (number, descriptor) in given.into_iter().chain(launch.descriptors) {
            let from = cargo.load(descriptor)?;
            inherit.push(from);
            moves.push((from, number));
        }
        let executable = match launch.executable {
            Some(file) => {
                let number = cargo.load(file)?;
                inherit.push(number);
                Executable::Descriptor(number)
            }
            None => Executable::Path(plan.program.path.clone()),
        };
        let (arguments, data) = argument_file(plan, &mut cargo)?;
        inherit.extend(data);
        let arguments = cargo.load(arguments)?;
        let instructions = instructions(plan, checked, status_number, network, moves, executable);
        let instructions = serde_json::to_vec(&instructions)
            .map_err(|e| doing("write the instructions")(e.into()))?;
        let instructions = cargo.load(embedded::data("instructions", &instructions)?)?;
        Ok(Package {
            order: StageOne {
                launcher,
                status: status_number,
                network_namespace,
                cgroup,
                become_user: checked.become_user,
                bubblewrap: checked.bubblewrap.clone(),
                arguments,
                complaints: complaints_number,
                stages,
                instructions,
                inherit,
            },
            descriptors: cargo.0,
            status,
            complaints,
            pass_on_descriptors: !plan.policy.layers.wanted(Layer::Descriptors),
        })
    }

    /// Sends everything and closes our copies: the ends of pipes must be held by the program only.
    fn send(&mut self, socket: &OwnedFd) -> Result<(), Error> {
        let order = serde_json::to_vec(&self.order)
            .map_err(|e| doing("write the order for stage 1")(e.into()))?;
        let numbers: Vec<i32> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        channel::send(socket.as_fd(), &order, &numbers).map_err(doing("send to stage 1"))?;
        self.descriptors.clear();
        Ok(())
    }

    fn complaints(&self) -> String {
        let mut text = String::new();
        let read = copy(&self.complaints)
            .map(std::fs::File::from)
            .map(|mut file| file.rewind().and_then(|()| file.read_to_string(&mut text)));
        match read {
            Ok(Ok(_)) => text.trim().replace('\n', "; "),
            _ => "(nothing readable)".to_owned(),
        }
    }
}

/// Descriptors in the order in which stage 1 will number them.
#[derive(Default)]
struct Cargo(Vec<OwnedFd>);

impl Cargo {
    fn load(&mut self, descriptor: OwnedFd) -> Result<i32, Error> {
        if self.0.len() == MAX_DESCRIPTORS {
            return Err(doing("hand over descriptors")(std::io::Error::other(
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
        Stdio::Null => std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map(OwnedFd::from),
        Stdio::Inherit => match number {
            0 => std::io::stdin().as_fd().try_clone_to_owned(),
            1 => std::io::stdout().as_fd().try_clone_to_owned(),
            _ => std::io::stderr().as_fd().try_clone_to_owned(),
        },
    };
    inherited.map_err(doing(format!("standard descriptor {number}")))
}

/// Bubblewrap's arguments, and the numbers of the files that they speak of.
fn argument_file(plan: &Plan, cargo: &mut Cargo) -> Result<(OwnedFd, Vec<i32>), Error> {
    let mut bytes = Vec::new();
    let mut numbers = Vec::new();
    for argument in &plan.arguments {
        match argument {
            Argument::Text(text) => bytes.extend(text.as_bytes()),
            Argument::Data(content) => {
                let number = cargo.load(embedded::data("synthetic", content.as_bytes())?)?;
                numbers.push(number);
                bytes.extend(number.to_string().as_bytes());
            }
        }
        bytes.push(0);
    }
    Ok((embedded::data("bubblewrap-arguments", &bytes)?, numbers))
}

fn instructions(
    plan: &Plan,
    checked: &Checked,
    status_fd: i32,
    namespaces: Vec<NamespaceCheck>,
    moves: Vec<(i32, i32)>,
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
        descriptors: Descriptors {
            moves,
            close_others: wanted(Layer::Descriptors),
        },
        open_files: wanted(Layer::Limits).then_some(policy.limits.open_files),
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

fn environment(plan: &Plan) -> Vec<(String, String)> {
    let own = plan.policy.environment.clone().into_iter();
    if plan.policy.layers.wanted(Layer::Environment) {
        return own.collect();
    }
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .chain(own)
        .collect()
}

/// What stage 2 compares its namespaces with: ours, or the prepared one.
fn namespace_checks(plan: &Plan, prepared: Option<&OwnedFd>) -> Result<Vec<NamespaceCheck>, Error> {
    let wanted = |layer| plan.policy.layers.wanted(layer);
    let kinds = [
        ("user", Layer::Bubblewrap, true),
        ("mnt", Layer::Bubblewrap, true),
        ("pid", Layer::PidNamespace, wanted(Layer::PidNamespace)),
        ("ipc", Layer::IpcNamespace, wanted(Layer::IpcNamespace)),
        ("uts", Layer::UtsNamespace, wanted(Layer::UtsNamespace)),
        (
            "cgroup",
            Layer::CgroupNamespace,
            wanted(Layer::CgroupNamespace),
        ),
        ("net", Layer::Network, plan.own_network()),
    ];
    let mut checks = Vec::new();
    for (kind, layer, checked) in kinds {
        if checked {
            let path = format!("/proc/thread-self/ns/{kind}");
            let inode = std::fs::metadata(&path).map_err(doing(path))?.ino();
            checks.push(NamespaceCheck {
                kind: kind.to_owned(),
                inode,
                same: false,
                layer,
            });
        }
    }
    if let Some(prepared) = prepared {
        let stat = nix::sys::stat::fstat(prepared)
            .map_err(|e| doing("look at the prepared network namespace")(e.into()))?;
        checks.push(NamespaceCheck {
            kind: "net".to_owned(),
            inode: stat.st_ino,
            same: true,
            layer: Layer::Network,
        });
    }
    Ok(checks)
}

/// Which layers will be in force if nothing is missing.
fn expected_layers(plan: &Plan, become_user: Option<u32>) -> Vec<(Layer, LayerState)> {
    Layer::ALL
        .into_iter()
        .map(|layer| {
            let on = plan.policy.layers.wanted(layer)
                && match layer {
                    Layer::Identity => become_user.is_some(),
                    Layer::Network => plan.policy.network != Network::Host,
                    _ => true,
                };
            (layer, if on { LayerState::On } else { LayerState::Off })
        })
        .collect()
}

fn set_state(layers: &mut [(Layer, LayerState)], layer: Layer, state: LayerState) {
    for entry in layers.iter_mut().filter(|(name, _)| *name == layer) {
        entry.1 = state.clone();
    }
}

struct Heard {
    record: Record,
    sender: Option<i32>,
    descriptors: Vec<OwnedFd>,
}

fn wait_for_record(
    package: &Package,
    deadline: Instant,
    timeout: Duration,
    program: &str,
) -> Result<Heard, Error> {
    let message = receive(package, deadline, timeout)?;
    if message.bytes.is_empty() {
        return Err(explain_complaints(package.complaints()));
    }
    let record = serde_json::from_slice(&message.bytes)
        .map_err(|e| doing("understand stage 2")(e.into()))?;
    match record {
        Record::Failed { layer, message } => Err(failed(layer, message, program)),
        record => Ok(Heard {
            record,
            sender: message.sender,
            descriptors: message.descriptors,
        }),
    }
}

/// The socket closes when the program is executed; anything else said on it is a failure.
fn wait_for_execution(
    package: &Package,
    deadline: Instant,
    timeout: Duration,
    program: &str,
) -> Result<(), Error> {
    let message = receive(package, deadline, timeout)?;
    if message.bytes.is_empty() {
        return Ok(());
    }
    match serde_json::from_slice(&message.bytes) {
        Ok(Record::Failed { layer, message }) => Err(failed(layer, message, program)),
        _ => Err(doing("understand stage 2")(
            std::io::ErrorKind::InvalidData.into(),
        )),
    }
}

fn receive(
    package: &Package,
    deadline: Instant,
    timeout: Duration,
) -> Result<channel::Message, Error> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let milliseconds = u16::try_from(left.as_millis()).unwrap_or(u16::MAX);
        let mut watched = [PollFd::new(package.status.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::from(milliseconds)) {
            Err(nix::Error::EINTR) => continue,
            Err(e) => return Err(doing("wait for stage 2")(e.into())),
            Ok(0) if Instant::now() >= deadline => {
                return Err(Error::Timeout(timeout, package.complaints()));
            }
            Ok(0) => continue,
            Ok(_) => {}
        }
        return channel::receive(package.status.as_fd()).map_err(doing("hear from stage 2"));
    }
}

fn failed(layer: Option<Layer>, reason: String, program: &str) -> Error {
    match layer {
        Some(layer) => Error::Layer {
            layer,
            reason,
            fix: match layer {
                Layer::Landlock => Some(fixes::landlock(fixes::distribution(), 6)),
                Layer::Seccomp => Some(fixes::seccomp()),
                _ => None,
            },
        },
        None => Error::Exec {
            program: program.to_owned(),
            reason,
        },
    }
}

/// Bubblewrap ended before stage 2 could speak: its own words are all there is.
fn explain_complaints(complaints: String) -> Error {
    let distribution = fixes::distribution();
    let has = |text: &str| complaints.contains(text);
    let fix = if has("mount proc") || has("/proc") && has("mount") {
        Some(fixes::mount_proc(distribution))
    } else if has("namespace") || has("userns") || has("uid map") || has("RTM_NEWADDR") {
        Some(fixes::allow_user_namespaces(distribution))
    } else {
        None
    };
    Error::Layer {
        layer: Layer::Bubblewrap,
        reason: if complaints.is_empty() {
            "bubblewrap ended without a word (killed?)".to_owned()
        } else {
            complaints
        },
        fix,
    }
}

impl From<limits::Unavailable> for Error {
    fn from(unavailable: limits::Unavailable) -> Self {
        Error::Layer {
            layer: Layer::Limits,
            reason: unavailable.0,
            fix: Some(fixes::limits()),
        }
    }
}
