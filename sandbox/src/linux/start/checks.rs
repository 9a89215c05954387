//! The checks before a launch has any effect.

use crate::linux::{bubblewrap, seccomp};
use crate::{Error, FileRule, Launch, Layer, Network, Requirement, SandboxPlan};
use sandbox_inside::protocol::{FIRST_DESCRIPTOR, Seccomp};
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
