//! What the warm pool shall be, and why a member is drained. A part of the pure [`super::planner`].

use super::planner::Facts;
use crate::api::{BrowserSettings, Flavor, Limits, SnapshotName};
use crate::record::Record;

/// What the members of the warm pool shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmPoolTarget {
    /// The template's snapshot.
    pub snapshot: SnapshotName,
    /// The version of that snapshot now. `None`: it could not be read, so no member is drained because of it.
    pub template: Option<String>,
    /// Their limits.
    pub limits: Limits,
    /// The settings of their browsers.
    pub browser: BrowserSettings,
    /// The flavours.
    pub flavors: Vec<Flavor>,
    /// How many of each.
    pub size: usize,
}

/// Why the warm pool does not want this member any more, if it does not.
pub(super) fn why_not_wanted(
    record: &Record,
    flavor: Flavor,
    template: &str,
    facts: &Facts<'_>,
) -> Option<String> {
    let Some(target) = facts.target else { return Some("there is no warm pool any more".into()) };
    let same = |other: &&Record| other.pooled() == Some(flavor) && other.slot < record.slot;
    if record.snapshot != target.snapshot
        || record.limits != target.limits
        || record.browser != target.browser
        || !target.flavors.contains(&flavor)
    {
        return Some("it was made for another configuration".into());
    }
    if record.secret.is_none() {
        return Some("it was made by an earlier version of hostd".into());
    }
    if target.template.as_ref().is_some_and(|now| now != template) {
        return Some("its template changed since".into());
    }
    if facts.records.values().filter(same).count() >= target.size {
        return Some("the warm pool has enough without it".into());
    }
    match facts.now.until(&record.deadline) {
        None => Some("the host was restarted since it was made".into()),
        Some(left) if left.is_zero() => Some("it is too old".into()),
        Some(_) => None,
    }
}
