//! The Landlock domain: repeats the mount view by inode and adds rules that mounts cannot express.

use super::{Failure, sys};
use crate::layer::{Layer, Requirement};
use crate::protocol::{Landlock, LandlockRule, Right};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::os::fd::AsFd;

/// Enforces the domain. Returns `Some(reason)` if the kernel cannot and the layer is optional.
///
/// An optional layer is enforced with the whole named ABI or not at all. A partial domain would be
/// reported as "on" without matching the policy.
pub fn restrict(orders: &Landlock) -> Result<Option<String>, Failure> {
    match try_restrict(orders) {
        Ok(()) => Ok(None),
        Err(reason) => match orders.requirement {
            Requirement::Optional => Ok(Some(reason)),
            _ => Err(Failure::of(Layer::Landlock, reason)),
        },
    }
}

fn try_restrict(orders: &Landlock) -> Result<(), String> {
    // Some ABI versions add no rights but fix behaviour, so the version itself is checked.
    let kernel = sys::landlock_abi();
    if kernel < orders.abi {
        return Err(match kernel {
            0 => "this kernel has no Landlock, or it is not switched on".to_owned(),
            kernel => format!("this kernel has Landlock ABI {kernel}, the policy needs {}", orders.abi),
        });
    }
    let abi = ABI::from(i32::from(orders.abi));
    let named = |e: &dyn std::fmt::Display| format!("Landlock ABI {}: {e}", orders.abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(|e| named(&e))?;
    // Scopes exist from ABI 6 on, and the ruleset rejects an empty set.
    if !Scope::from_all(abi).is_empty() {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(|e| named(&e))?;
    }
    let mut created = ruleset.create().map_err(|e| named(&e))?;
    for rule in &orders.rules {
        if let Some(beneath) = rule_for(rule, abi)? {
            created = created.add_rule(beneath).map_err(|e| format!("{}: {e}", rule.path.display()))?;
        }
    }
    let status = created.restrict_self().map_err(|e| named(&e))?;
    if status.ruleset != RulesetStatus::FullyEnforced || !status.no_new_privs {
        return Err(named(&format!("the ruleset is only {:?}", status.ruleset)));
    }
    Ok(())
}

fn rule_for(rule: &LandlockRule, abi: ABI) -> Result<Option<PathBeneath<PathFd>>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", rule.path.display());
    let file = PathFd::new(&rule.path).map_err(|e| failed(&e))?;
    let stat = nix::sys::stat::fstat(file.as_fd()).map_err(|e| failed(&e))?;
    let mut access =
        rule.rights.iter().map(|right| rights_of(*right)).fold(BitFlags::empty(), |all, right| all | right)
            & AccessFs::from_all(abi);
    if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
        access &= AccessFs::from_file(abi);
    }
    Ok((!access.is_empty()).then(|| PathBeneath::new(file, access)))
}

fn rights_of(right: Right) -> BitFlags<AccessFs> {
    match right {
        Right::Read => AccessFs::ReadFile | AccessFs::ReadDir,
        Right::Execute => AccessFs::Execute.into(),
        Right::Modify => AccessFs::WriteFile | AccessFs::Truncate,
        Right::Create => {
            AccessFs::MakeReg
                | AccessFs::MakeDir
                | AccessFs::MakeSym
                | AccessFs::MakeSock
                | AccessFs::MakeFifo
                | AccessFs::RemoveFile
                | AccessFs::RemoveDir
                | AccessFs::Refer
        }
        Right::Ioctl => AccessFs::IoctlDev.into(),
        Right::Connect => AccessFs::ResolveUnix.into(),
    }
}
