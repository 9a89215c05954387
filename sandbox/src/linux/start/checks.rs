//! The checks before a launch has any effect.

use crate::linux::{bubblewrap, seccomp};
use crate::{Error, FileRule, Launch, Layer, Network, Requirement, SandboxPlan, Stdio};
use sandbox_inside::protocol::{FIRST_DESCRIPTOR, Seccomp};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// The results of the checks.
pub(super) struct Checked {
    pub(super) bubblewrap: PathBuf,
    pub(super) become_user: Option<u32>,
    pub(super) filters: Option<Seccomp>,
}

impl Checked {
    pub(super) fn new(launch: &Launch) -> Result<Self, Error> {
        let policy = &launch.plan.policy;
        let become_user = user_to_become(&launch.plan)?;
        check_network(launch)?;
        check_descriptors(launch)?;
        no_terminal(launch)?;
        let bubblewrap = bubblewrap::find(launch.bubblewrap.as_deref())?;
        not_in_writable_folder(&bubblewrap, &launch.plan)?;
        let requirement = policy.layers.requirement(Layer::Seccomp);
        let filters = match requirement {
            Requirement::Off => None,
            requirement => Some(Seccomp { requirement, programs: seccomp::compile(&policy.syscalls)? }),
        };
        Ok(Checked { bubblewrap, become_user, filters })
    }
}

fn user_to_become(plan: &SandboxPlan) -> Result<Option<u32>, Error> {
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
        (true, Some(_)) if !nix::unistd::geteuid().is_root() => {
            Err(Error::NetworkNamespace("only root can enter one; an ordinary user has mode proxy"))
        }
        _ => Ok(()),
    }
}

fn check_descriptors(launch: &Launch) -> Result<(), Error> {
    match launch.descriptors.keys().find(|number| !(3..FIRST_DESCRIPTOR).contains(*number)) {
        Some(number) => Err(Error::Descriptor(*number)),
        None => Ok(()),
    }
}

/// A program that holds a descriptor of a terminal can read what is typed there and write escape sequences to it, whatever
/// session it is in. Callers pass pipes.
fn no_terminal(launch: &Launch) -> Result<(), Error> {
    if !launch.plan.policy.layers.wanted(Layer::Session) {
        return Ok(());
    }
    let standard = [(0, &launch.stdin), (1, &launch.stdout), (2, &launch.stderr)];
    let standard = standard.into_iter().filter(|(number, stdio)| match stdio {
        Stdio::Null => false,
        Stdio::Descriptor(descriptor) => descriptor.is_terminal(),
        Stdio::Inherit => match number {
            0 => std::io::stdin().is_terminal(),
            1 => std::io::stdout().is_terminal(),
            _ => std::io::stderr().is_terminal(),
        },
    });
    let others = launch.descriptors.iter().filter(|(_, descriptor)| descriptor.is_terminal());
    match standard.map(|(number, _)| number).chain(others.map(|(number, _)| *number)).next() {
        Some(number) => Err(Error::Terminal(number)),
        None => Ok(()),
    }
}

/// Refuses a bubblewrap that the confined program could replace for the next launch.
fn not_in_writable_folder(bubblewrap: &Path, plan: &SandboxPlan) -> Result<(), Error> {
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
