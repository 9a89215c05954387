//! Limits that need a cgroup: memory, processes, processor time.
//!
//! There are two ways to one: a folder of the cgroup v2 tree that was delegated to the launcher
//! (what a daemon has), or a transient scope that systemd makes on request (what an ordinary user
//! has). Where neither is to be had, that is an error, unless the policy calls limits optional.

mod cgroup;
mod scope;

use crate::{Error, Layer, Limits, Requirement};
use cgroup::Cgroup;
pub(crate) use scope::available as scopes_available;
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Who keeps the cgroup limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKeeper {
    /// The policy sets none that need a cgroup.
    NotNeeded,
    /// A cgroup made directly in a delegated folder.
    Cgroup(PathBuf),
    /// A transient scope of systemd.
    Scope(String),
    /// Nobody (the policy calls limits optional); the reason.
    Nobody(String),
}

/// Whether the cgroup limits of `policy` would be kept here.
pub(crate) fn would_be_kept(policy: &crate::Policy, parent: Option<&Path>) -> bool {
    policy.layers.wanted(Layer::Limits)
        && policy.limits.need_cgroup()
        && (parent.is_some() || scope::available().is_ok())
}

/// Why no limits can be kept here.
#[derive(Debug)]
pub(crate) struct Unavailable(pub(crate) String);

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        Error::Layer {
            layer: Layer::Limits,
            reason: unavailable.0,
            fix: Some(super::fixes::limits()),
        }
    }
}

/// Keeps the limits of one sandbox.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: Limits,
    requirement: Requirement,
    keeper: LimitKeeper,
    cgroup: Option<Cgroup>,
}

impl Limiter {
    /// Decides who will keep the limits, and makes the cgroup if it is made directly.
    pub(crate) fn prepare(
        limits: &Limits,
        requirement: Requirement,
        parent: Option<&Path>,
    ) -> Result<Limiter, Error> {
        let mut limiter = Limiter {
            limits: limits.clone(),
            requirement,
            keeper: LimitKeeper::NotNeeded,
            cgroup: None,
        };
        if !limits.need_cgroup() || requirement == Requirement::Off {
            return Ok(limiter);
        }
        let attempt = match parent {
            Some(parent) => Cgroup::make(parent, limits).map(|cgroup| {
                limiter.keeper = LimitKeeper::Cgroup(cgroup.path().to_owned());
                limiter.cgroup = Some(cgroup);
            }),
            None => scope::available().map(|()| {
                limiter.keeper = LimitKeeper::Scope(scope::new_name());
            }),
        };
        limiter.settle(attempt)?;
        Ok(limiter)
    }

    /// An attempt that failed is an error, or a note if the policy can do without.
    fn settle(&mut self, attempt: Result<(), Unavailable>) -> Result<(), Error> {
        match attempt {
            Err(Unavailable(why)) if self.requirement == Requirement::Optional => {
                self.keeper = LimitKeeper::Nobody(why);
                self.cgroup = None;
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// The file through which stage 1 enters the cgroup before anything else runs.
    pub(crate) fn entrance(&self) -> Result<Option<OwnedFd>, Error> {
        let entrance = self.cgroup.as_ref().map(Cgroup::entrance);
        entrance.transpose().map_err(Error::from)
    }

    /// Puts processes that already run under the limits, where that is done afterwards.
    pub(crate) fn enclose(&mut self, pids: &[u32]) -> Result<(), Error> {
        let LimitKeeper::Scope(name) = &self.keeper else {
            return Ok(());
        };
        let attempt = scope::enclose(name, pids, &self.limits);
        self.settle(attempt)
    }

    pub(crate) fn keeper(&self) -> &LimitKeeper {
        &self.keeper
    }

    /// For the list of layers.
    pub(crate) fn missing(&self) -> Option<(Layer, String)> {
        match &self.keeper {
            LimitKeeper::Nobody(why) => Some((Layer::Limits, why.clone())),
            _ => None,
        }
    }
}
