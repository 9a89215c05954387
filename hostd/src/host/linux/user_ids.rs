//! The clones' user ids. Nobody else may have them: processes of one id may signal each other, and they share files and
//! limits.
//!
//! Three checks keep them private. At the start the local databases of accounts are read, and creates in a slot whose id has
//! an account are refused. Stage 1 of the sandbox refuses an id that another process has. `hostctl doctor` also asks directory
//! services and looks for foreign processes.

use super::LinuxHostState;
use super::checks::{finding, good};
use super::errors::refused;
use super::processes;
use crate::api::{Finding, Severity};
use crate::host::{HostErrorKind, HostResult};
use crate::slot::{SlotNames, Slots};
use kernel::user_ids::{self, Claim};
use std::io;

const FIX: &str =
    "remove that account or range, or set pool.uid_base to a free range while there are no clones";

/// The accounts that have ids of these slots. An unreadable database is logged; doctor reports it too.
pub(super) fn claimed(slots: &Slots) -> Vec<Claim> {
    let claims = user_ids::local_claims(&slots.user_ids()).unwrap_or_else(|error| {
        tracing::error!(%error, "the accounts cannot be read, so their user ids are not compared with the clones'");
        Vec::new()
    });
    for claim in &claims {
        tracing::error!(
            claim = claim.line,
            hint = FIX,
            "an account has user ids of clones; such slots are not used"
        );
    }
    claims
}

/// Refuse a slot whose user id has an account.
pub(super) fn refuse_claimed(claims: &[Claim], names: &SlotNames) -> HostResult<()> {
    match claims.iter().find(|claim| claim.ids.contains(&names.uid)) {
        None => Ok(()),
        Some(claim) => Err(refused(
            format!("user id {}", names.uid),
            "use it for a clone",
            HostErrorKind::NotReady,
            format!("{} has it; {FIX}", claim.line),
        )),
    }
}

/// What doctor says about the user ids.
pub(super) fn check(state: &LinuxHostState) -> Finding {
    let ids = state.slots.user_ids();
    let wrong = |message: String, fix: &str| finding("user-ids", Severity::Error, message, fix);
    match user_ids::local_claims(&ids) {
        Ok(claims) if claims.is_empty() => {}
        Ok(claims) => {
            let lines: Vec<&str> = claims.iter().map(|claim| claim.line.as_str()).collect();
            return wrong(format!("accounts have user ids of clones: {}", lines.join(", ")), FIX);
        }
        Err(error) => {
            return wrong(format!("the accounts cannot be read: {error}"), "make them readable for root");
        }
    }
    match ids.clone().find_map(|id| user_ids::account_of(id).transpose().map(|found| (id, found))) {
        None => {}
        Some((id, Ok(account))) => return wrong(format!("{account} has the user id {id} of a clone"), FIX),
        Some((id, Err(error))) => {
            return wrong(
                format!("user id {id} cannot be looked up: {error}"),
                "repair the name service (nsswitch.conf)",
            );
        }
    }
    match foreign_processes(state) {
        Ok(foreign) if foreign.is_empty() => {}
        Ok(foreign) => {
            let list: Vec<String> =
                foreign.iter().map(|(pid, id)| format!("process {pid} has user id {id}")).collect();
            let fix = "end these processes, or set pool.uid_base to a free range while there are no clones";
            return wrong(format!("no clone owns them: {}", list.join(", ")), fix);
        }
        Err(error) => return wrong(format!("the processes cannot be listed: {error}"), "mount /proc"),
    }
    let (first, last) = (ids.start(), ids.end());
    let dynamic = &user_ids::SYSTEMD_DYNAMIC;
    if first <= dynamic.end() && last >= dynamic.start() {
        return finding(
            "user-ids",
            Severity::Warning,
            format!(
                "the clones' user ids {first} to {last} overlap those that systemd gives to services (DynamicUser)"
            ),
            &format!("set pool.uid_base = {} while there are no clones", user_ids::CLONES),
        );
    }
    good("user-ids", format!("nobody else has the clones' user ids {first} to {last}"))
}

/// Processes with a clone's user id that are not in that clone.
fn foreign_processes(state: &LinuxHostState) -> io::Result<Vec<(u32, u32)>> {
    let mut foreign = Vec::new();
    for (pid, id) in user_ids::processes_in(&state.slots.user_ids())? {
        let Some(slot) = state.slots.slots().find(|slot| state.slots.names(*slot).uid == id) else {
            continue;
        };
        let names = state.slots.names(slot);
        let run = state.run(&names);
        let inside = || processes::inside(state.clone_ref(&names, &run));
        // The second look is for a process that started after the first.
        if !inside()?.contains(&pid) && still_has(pid, id) && !inside()?.contains(&pid) {
            foreign.push((pid, id));
        }
    }
    Ok(foreign)
}

/// Whether a process still runs with this id. A zombie does not.
fn still_has(pid: u32, id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start);
    let real = field("Uid:").and_then(|ids| ids.split_whitespace().next()?.parse::<u32>().ok());
    real == Some(id) && !field("State:").is_some_and(|state| state.starts_with('Z'))
}
