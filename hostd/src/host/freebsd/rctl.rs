//! A clone's limits as RCTL rules.
//!
//! Which action is effective was tested on a running system:
//!
//! | limit | rule | why this action |
//! |---|---|---|
//! | memory | `memoryuse:sigkill` | `deny` does not stop the growth; `vmemoryuse:deny` does, but Chromium reserves far more than it uses |
//! | processes | `maxproc:deny` | fork fails |
//! | open files | `openfiles:deny` for each process | open fails; it bounds the table of descriptors, which grows in steps |
//! | processor | `pcpu:deny` | the jail is slowed down |
//! | disk | `readbps:throttle`, `writebps:throttle` | `deny` is refused by the kernel |
//!
//! What a clone may add to its disk is the dataset's quota. Rules are kept by the jail's name: they can be there before
//! the jail, and they outlive it, so they are removed by name on every destroy.

use super::errors::{Complaint, Unreadable, classify, command_failed, digits, unreadable, whole};
use super::{FreebsdState, commands};
use crate::api::Limits;
use crate::host::{CloneSpec, HostResult};
use crate::slot::SlotNames;
use std::collections::BTreeMap;

/// Every jail's rules: `resource:action`, with `/per` if the amount is not per jail, and the amount.
pub(super) type Rules = BTreeMap<String, Vec<(String, u64)>>;

const MEMORY: &str = "memoryuse:sigkill";
const PROCESSES: &str = "maxproc:deny";
const OPEN_FILES: &str = "openfiles:deny/process";
const PROCESSOR: &str = "pcpu:deny";
const READ: &str = "readbps:throttle";
const WRITE: &str = "writebps:throttle";

/// A clone's rules. Empty: it has no limits.
pub(super) fn rules(names: &SlotNames, limits: &Limits) -> Vec<String> {
    let all = [
        (MEMORY, limits.memory_bytes),
        (PROCESSES, limits.processes),
        (OPEN_FILES, limits.open_files),
        (PROCESSOR, limits.cpu_percent),
        (READ, limits.read_bytes_per_second),
        (WRITE, limits.write_bytes_per_second),
    ];
    let rule = |(kind, amount): (&str, Option<u64>)| {
        let (what, per) =
            kind.split_once('/').map_or((kind, String::new()), |(what, per)| (what, format!("/{per}")));
        amount.map(|amount| format!("jail:{}:{what}={amount}{per}", names.name))
    };
    all.into_iter().filter_map(rule).collect()
}

/// Read `rctl`. Only rules for jails are kept.
pub(super) fn read(text: &str) -> Result<Rules, Unreadable> {
    let mut found = Rules::new();
    for line in whole("rctl", text)?.lines() {
        let mut parts = line.splitn(4, ':');
        let (subject, id, resource, rest) = (parts.next(), parts.next(), parts.next(), parts.next());
        let (Some(subject), Some(id), Some(resource), Some((action, amount))) =
            (subject, id, resource, rest.and_then(|rest| rest.split_once('=')))
        else {
            return unreadable("rctl", line, "subject:id:resource:action=amount");
        };
        let (amount, per) =
            amount.split_once('/').map_or((amount, None), |(amount, per)| (amount, Some(per)));
        let known = matches!(subject, "process" | "user" | "loginclass" | "jail");
        let plain = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let Some(amount) = digits::<u64>(amount)
            .filter(|_| known && !id.is_empty() && plain(resource) && plain(action) && per.is_none_or(plain))
        else {
            return unreadable("rctl", line, "subject:id:resource:action=amount");
        };
        if subject == "jail" {
            let kind = match per {
                Some(per) => format!("{resource}:{action}/{per}"),
                None => format!("{resource}:{action}"),
            };
            found.entry(id.to_owned()).or_default().push((kind, amount));
        }
    }
    Ok(found)
}

/// The limits in a clone's rules; `None` if it has no rule at all. Rules that were added by hand are ignored here and
/// removed with the clone. The disk quota is a property of the dataset.
pub(super) fn observed(rules: &Rules, names: &SlotNames) -> Option<Limits> {
    let rules = rules.get(names.name.as_str())?;
    let amount = |kind: &str| rules.iter().find(|(found, _)| found == kind).map(|(_, amount)| *amount);
    Some(Limits {
        memory_bytes: amount(MEMORY),
        processes: amount(PROCESSES),
        open_files: amount(OPEN_FILES),
        cpu_percent: amount(PROCESSOR),
        disk_bytes: None,
        read_bytes_per_second: amount(READ),
        write_bytes_per_second: amount(WRITE),
    })
}

impl FreebsdState {
    /// Every resource rule. There are none if RACCT is disabled.
    pub(super) async fn limits(&self) -> HostResult<Rules> {
        let outcome = self.tools.rctl.with(commands::list_limits()).run().await?;
        match classify(&outcome.stderr) {
            Complaint::RacctOff => Ok(Rules::new()),
            Complaint::Unknown if outcome.success() => Ok(read(outcome.text()?)?),
            // Without permission rctl writes an error and exits with 0.
            _ => Err(command_failed("limits", &outcome, "run `rctl` by hand, as root")),
        }
    }

    pub(super) async fn set_limits(&self, spec: &CloneSpec) -> HostResult<()> {
        let rules = rules(&spec.names, &spec.limits);
        if rules.is_empty() {
            return Ok(());
        }
        let outcome = self.tools.rctl.with(commands::add_limits(rules)).run().await?;
        match outcome.success() && classify(&outcome.stderr) == Complaint::Unknown {
            true => Ok(()),
            false => {
                let hint = "put kern.racct.enable=1 into /boot/loader.conf and restart the host";
                Err(command_failed(format!("limits of {}", spec.names.name), &outcome, hint))
            }
        }
    }

    pub(super) async fn drop_limits(&self, names: &SlotNames) -> HostResult<()> {
        let outcome = self.tools.rctl.with(commands::remove_limits(names)).run().await?;
        match classify(&outcome.stderr) {
            _ if outcome.success() => Ok(()),
            Complaint::Absent | Complaint::RacctOff => Ok(()),
            _ => Err(command_failed(format!("limits of {}", names.name), &outcome, "run `rctl` by hand")),
        }
    }
}
