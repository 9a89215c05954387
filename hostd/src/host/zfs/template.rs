//! The template: two datasets with one recursive snapshot each, which never change.

use super::layout::{LOOK_TEMPLATE, inner};
use super::listing::{self, Table, Unreadable, Value};
use super::refusal::{Refusal, RefusalKind};
use super::{Zfs, unreadable};
use crate::api::SnapshotName;
use crate::host::{HostError, HostErrorKind, HostResult};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(super) const HINT: &str = "take a snapshot of the stopped template: hostctl template create (Linux), \
                               scripts/freebsd/setup-template (FreeBSD)";

/// A snapshot of the template that can be cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateSeen {
    /// The browser's executable, where the system provides it.
    pub browser: Option<PathBuf>,
    /// Its version when the snapshot was taken.
    pub version: Option<String>,
}

impl Zfs {
    /// Check that a snapshot of the template can be cloned: both datasets have it, from one transaction, not to be destroyed.
    pub async fn check_template(&self, snapshot: &SnapshotName) -> HostResult<TemplateSeen> {
        let [top, root] = self.layout().snapshots(snapshot);
        let outcome = self.run(self.layout().look_template(snapshot)).await?;
        if !outcome.success() {
            let refusal = Refusal::of(&outcome);
            return Err(match refusal.kind {
                RefusalKind::Missing => {
                    HostError::new(HostErrorKind::Template, top, "does not exist", HINT).caused_by(refusal)
                }
                _ => refusal.about(&top),
            });
        }
        let table =
            listing::read(outcome.text()?, &LOOK_TEMPLATE).map_err(|error| unreadable(&top, error))?;
        let seen = usable(&table, &top, &root).map_err(|error| unreadable(&top, error))?;
        seen.map_err(|why| HostError::new(HostErrorKind::Template, top, why, HINT))
    }

    /// The template's snapshots, each with its properties or the reason why it cannot be used.
    pub async fn templates(&self) -> HostResult<Vec<(SnapshotName, Result<TemplateSeen, String>)>> {
        let template = &self.layout().template;
        let outcome = self.run(self.layout().look_templates()).await?;
        if !outcome.success() {
            return match Refusal::of(&outcome) {
                Refusal { kind: RefusalKind::Missing, .. } => Ok(Vec::new()),
                refusal => Err(refusal.about(template)),
            };
        }
        let table =
            listing::read(outcome.text()?, &LOOK_TEMPLATE).map_err(|error| unreadable(template, error))?;
        let mut found = BTreeMap::new();
        for name in table.keys() {
            let Some((_, snapshot)) = name.split_once('@') else { continue };
            let Ok(snapshot) = SnapshotName::try_from(snapshot.to_owned()) else { continue };
            let [top, root] = self.layout().snapshots(&snapshot);
            let seen = usable(&table, &top, &root).map_err(|error| unreadable(template, error))?;
            found.insert(snapshot, seen);
        }
        Ok(found.into_iter().collect())
    }

    /// Make the template's two datasets, if they are not there.
    pub async fn make_template(&self) -> HostResult<()> {
        for (arguments, dataset) in self
            .layout()
            .make_template()
            .into_iter()
            .zip([self.layout().template.clone(), inner(&self.layout().template)])
        {
            match self.try_to(arguments).await? {
                Ok(()) | Err(Refusal { kind: RefusalKind::Exists, .. }) => {}
                Err(refusal) => return Err(refusal.about(&dataset)),
            }
        }
        Ok(())
    }

    /// Take a snapshot of the template as it is now.
    pub async fn take_snapshot(
        &self,
        snapshot: &SnapshotName,
        browser: &str,
        version: &str,
    ) -> HostResult<()> {
        let [top, _] = self.layout().snapshots(snapshot);
        match self.try_to(self.layout().take_snapshot(snapshot, browser, version)).await? {
            Ok(()) => Ok(()),
            Err(refusal) if refusal.kind == RefusalKind::Exists => {
                let hint = "a template never changes: choose another snapshot name";
                Err(HostError::new(HostErrorKind::Template, top, "already exists", hint).caused_by(refusal))
            }
            Err(refusal) => Err(refusal.about(&top)),
        }
    }

    /// Remove a snapshot of the template that no clone is made from.
    pub async fn remove_snapshot(&self, snapshot: &SnapshotName) -> HostResult<()> {
        let [top, root] = self.layout().snapshots(snapshot);
        let mut found = false;
        // The inner one first: while the outer one exists, the template is listed and the removal can be repeated.
        for name in [root, top.clone()] {
            match self.try_to(self.layout().destroy(&name)).await? {
                Ok(()) => found = true,
                Err(Refusal { kind: RefusalKind::Missing, .. }) => {}
                Err(refusal) => return Err(refusal.about(&name)),
            }
        }
        match found {
            true => Ok(()),
            false => Err(HostError::new(
                HostErrorKind::Template,
                top,
                "there is no such snapshot",
                "hostctl template ls shows what there is",
            )),
        }
    }
}

/// Whether the two snapshots can be cloned, or why not.
fn usable(table: &Table, top: &str, root: &str) -> Result<Result<TemplateSeen, String>, Unreadable> {
    let mut transactions = Vec::new();
    let mut seen = TemplateSeen { browser: None, version: None };
    for name in [top, root] {
        let Some([transaction, going, browser, version]) = table.get(name).map(Vec::as_slice) else {
            return Ok(Err(format!("{name} does not exist")));
        };
        if listing::flag(going)? {
            return Ok(Err(format!("{name} is marked to be destroyed with its last clone")));
        }
        transactions.push(listing::number(transaction)?);
        let local = |value: &Value| value.local().map(str::to_owned);
        seen.browser = seen.browser.or(local(browser).map(PathBuf::from));
        seen.version = seen.version.or(local(version));
    }
    match transactions.as_slice() {
        [one, other] if one != other => {
            Ok(Err(format!("{top} and {root} were not taken in one transaction: use zfs snapshot -r")))
        }
        _ => Ok(Ok(seen)),
    }
}
