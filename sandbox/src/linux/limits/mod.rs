//! Limits that need a cgroup: memory, processes, processor time.
//!
//! The cgroup is created in a cgroup v2 folder that is delegated to the launcher (daemons), or
//! systemd creates a transient scope (ordinary users). If neither is available, the launch fails,
//! unless limits are optional in the policy.

mod cgroup;
mod scope;

use crate::{Error, Layer, Limits, Requirement};
use cgroup::Cgroup;
pub(crate) use scope::available as scopes_available;
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What enforces the cgroup limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitEnforcer {
    /// The policy sets no limit that needs a cgroup.
    NotNeeded,
    /// A cgroup created directly in a delegated folder.
    Cgroup(PathBuf),
    /// A transient scope of systemd.
    Scope(String),
    /// Nothing, because limits are optional in the policy and unavailable for this reason.
    #[serde(rename = "nobody")]
    Unavailable(String),
}

/// Whether the cgroup limits of `policy` would be enforced here.
pub(crate) fn would_be_enforced(policy: &crate::Policy, parent: Option<&Path>) -> bool {
    policy.layers.wanted(Layer::Limits)
        && policy.limits.need_cgroup()
        && (parent.is_some() || scope::available().is_ok())
}

/// Why limits cannot be enforced here.
#[derive(Debug)]
pub(crate) struct Unavailable(pub(crate) String);

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        Error::Layer { layer: Layer::Limits, reason: unavailable.0, fix: Some(super::fixes::limits()) }
    }
}

/// The limits of one sandbox.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: Limits,
    requirement: Requirement,
    enforcer: LimitEnforcer,
    cgroup: Option<Cgroup>,
}

impl Limiter {
    /// Decides what will enforce the limits, and creates the cgroup if it is created directly.
    pub(crate) fn prepare(
        limits: &Limits,
        requirement: Requirement,
        parent: Option<&Path>,
    ) -> Result<Limiter, Error> {
        let mut limiter =
            Limiter { limits: limits.clone(), requirement, enforcer: LimitEnforcer::NotNeeded, cgroup: None };
        if !limits.need_cgroup() || requirement == Requirement::Off {
            return Ok(limiter);
        }
        let attempt = match parent {
            Some(parent) => Cgroup::make(parent, limits).map(|cgroup| {
                limiter.enforcer = LimitEnforcer::Cgroup(cgroup.path().to_owned());
                limiter.cgroup = Some(cgroup);
            }),
            None => scope::available().map(|()| {
                limiter.enforcer = LimitEnforcer::Scope(scope::new_name());
            }),
        };
        limiter.record_attempt(attempt)?;
        Ok(limiter)
    }

    /// Turns a failure into an error, or records it if limits are optional.
    fn record_attempt(&mut self, attempt: Result<(), Unavailable>) -> Result<(), Error> {
        match attempt {
            Err(Unavailable(why)) if self.requirement == Requirement::Optional => {
                self.enforcer = LimitEnforcer::Unavailable(why);
                self.cgroup = None;
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// The `cgroup.procs` file through which stage 1 enters the cgroup before it starts bubblewrap.
    pub(crate) fn procs_file(&self) -> Result<Option<OwnedFd>, Error> {
        let file = self.cgroup.as_ref().map(Cgroup::procs_file);
        file.transpose().map_err(Error::from)
    }

    /// Moves running processes into the systemd scope, if one is used.
    pub(crate) fn move_into_scope(&mut self, pids: &[u32]) -> Result<(), Error> {
        let LimitEnforcer::Scope(name) = &self.enforcer else {
            return Ok(());
        };
        let attempt = scope::move_into(name, pids, &self.limits);
        self.record_attempt(attempt)
    }

    pub(crate) fn enforcer(&self) -> &LimitEnforcer {
        &self.enforcer
    }

    /// The missing layer and the reason, for the list of layers.
    pub(crate) fn missing(&self) -> Option<(Layer, String)> {
        match &self.enforcer {
            LimitEnforcer::Unavailable(why) => Some((Layer::Limits, why.clone())),
            _ => None,
        }
    }
}
