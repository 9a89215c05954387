//! What Chromium cannot do to browserd, although both have the same user id.

use landlock::{ABI, Access, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The first ABI with scopes, which deny signals to processes outside of the domain. hostd's sandbox needs it too.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Chromium's confinement, prepared before the fork.
///
/// - A Landlock domain, inside of browserd's own if that has one. A process in a domain cannot trace a process outside of
///   it, which includes the memory, descriptors, root and environment of that process in /proc. The scopes deny it signals
///   and abstract Unix sockets too. Files and the network are not restricted further. browserd is outside of the domain,
///   so it can still signal Chromium.
/// - A seccomp filter for the calls by which a process changes limits and priorities of another one of the same user.
#[derive(Debug)]
pub(crate) struct Confinement {
    domain: OwnedFd,
    filter: BpfProgram,
}

impl Confinement {
    /// Prepares the confinement. Fails if the kernel does not support it.
    pub(crate) fn prepare() -> io::Result<Self> {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .scope(Scope::from_all(LANDLOCK_ABI))
            .and_then(Ruleset::create)
            .map_err(io::Error::other)?;
        let domain: Option<OwnedFd> = ruleset.into();
        let domain = domain.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        Ok(Self { domain, filter: filter().map_err(io::Error::other)? })
    }

    /// Confines the calling process. It runs between fork and exec, so it makes only system calls.
    pub(in crate::sys) fn enter(&self) -> io::Result<()> {
        // SAFETY: this option takes one integer and accesses no memory.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: this call takes integers only; the descriptor is open.
        if unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.domain.as_raw_fd(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        seccompiler::apply_filter(&self.filter).map_err(|error| match error {
            seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
            _ => io::ErrorKind::Unsupported.into(),
        })
    }
}

/// Refuses the calls that name browserd by its process id (it has one thread), its process group or its user. Chromium
/// names its own processes or none.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let pid = u64::from(std::process::id());
    // 0: the group is of another PID namespace, so no call can name it.
    let group = Some(u64::from(nix::unistd::getpgrp().as_raw().unsigned_abs())).filter(|group| *group > 0);
    let equals =
        |argument, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
    let when = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions);
    let mut rules = BTreeMap::new();
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
    ] {
        rules.insert(call, vec![when(vec![equals(0, pid)?])?]);
    }
    // Their first argument says whether the second is a process, a group or a user: from 0 on and from 1 on.
    for (call, process) in [(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)] {
        let mut refused =
            vec![when(vec![equals(0, process)?, equals(1, pid)?])?, when(vec![equals(0, process + 2)?])?];
        if let Some(group) = group {
            refused.push(when(vec![equals(0, process + 1)?, equals(1, group)?])?);
        }
        rules.insert(call, refused);
    }
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}
