//! Lists and unmounts what is mounted below a clone, deepest first.

use super::errors::{Complaint, Unreadable, classify, command_failed, unreadable, whole};
use super::files::Folder;
use super::{FreebsdState, commands, conf};
use crate::host::{HostError, HostErrorKind, HostResult, Unmount};
use crate::slot::SlotNames;
use std::collections::BTreeSet;
use std::path::Path;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) source: String,
    pub(super) at: String,
    pub(super) kind: String,
}

/// Read `mount -p`. Columns are padded by tabs up to 24 characters and divided by one space beyond, and names may
/// contain spaces: a line that could mean two things is an error if it may be about `ours`, and passed over otherwise.
pub(super) fn read(text: &str, own: &Path) -> Result<Vec<Mount>, Unreadable> {
    let own = own.to_string_lossy();
    let mut found = Vec::new();
    for line in whole("mount", text)?.lines() {
        match one(line) {
            Some(mount) => found.push(mount),
            None if line.contains(own.as_ref()) || !line.contains('/') => {
                return unreadable("mount", line, "source, path, kind, options and two numbers");
            }
            None => {}
        }
    }
    if found.is_empty() {
        return unreadable("mount", text, "at least the root file system");
    }
    Ok(found)
}

fn one(line: &str) -> Option<Mount> {
    // From the right: two numbers, the options, a tab, the kind.
    let (rest, pass) = line.rsplit_once(' ')?;
    let (rest, dump) = rest.rsplit_once(['\t', ' '])?;
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !number(pass) || !number(dump) {
        return None;
    }
    let (rest, _options) = rest.trim_end().rsplit_once('\t')?;
    let at = rest.rfind(['\t', ' '])?;
    let (rest, kind) = (rest[..at].trim_end_matches('\t'), &rest[at + 1..]);
    if kind.is_empty() || !kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return None;
    }
    // From the left: tabs if there are any, else the only position where a path can begin.
    let (source, place) = match rest.split_once('\t') {
        Some((source, place)) => (source, place.trim_start_matches('\t')),
        None => {
            let mut starts = rest.match_indices(" /");
            match (starts.next(), starts.next()) {
                (Some((at, _)), None) => (&rest[..at], &rest[at + 1..]),
                _ => return None,
            }
        }
    };
    let good = !source.is_empty() && place.starts_with('/') && !place.contains('\t');
    good.then(|| Mount { source: source.to_owned(), at: place.to_owned(), kind: kind.to_owned() })
}

/// The mounts below a clone's folder that are not its datasets: deepest first, and at one path the newest first.
pub(super) fn below<'a>(mounts: &'a [Mount], names: &SlotNames) -> Vec<&'a Mount> {
    let own = |mount: &Mount| {
        let rest = mount.source.strip_prefix(&names.dataset);
        mount.kind == "zfs" && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let inside = |mount: &&Mount| Path::new(&mount.at).starts_with(&names.folder) && !own(mount);
    let mut found: Vec<&Mount> = mounts.iter().rev().filter(inside).collect();
    // Stable: later mounts stay before earlier ones of the same depth.
    found.sort_by_key(|mount| std::cmp::Reverse(Path::new(&mount.at).components().count()));
    found
}

/// The paths of these mounts, for the lifecycle.
pub(super) fn observed(mounts: &[Mount], names: &SlotNames) -> BTreeSet<String> {
    below(mounts, names).into_iter().map(|mount| mount.at.clone()).collect()
}

impl FreebsdState {
    pub(super) async fn mounts(&self) -> HostResult<Vec<Mount>> {
        let outcome = self.tools.mount.with(commands::list_mounts()).run().await?;
        if !outcome.success() {
            return Err(command_failed("mounts", &outcome, "run `mount -p` by hand"));
        }
        Ok(read(outcome.text()?, &self.config.pool.clones_dir)?)
    }

    /// Unmount everything below the clone. All paths are tried; the first error is returned. The devfs of a running jail is
    /// left to jail(8), which unmounts it with the jail and would report it missing.
    pub(super) async fn unmount_below(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let (mounts, jail) = tokio::try_join!(self.own_mounts(names), self.own_jail(names))?;
        let runs = jail.is_some_and(|jail| !jail.dying);
        let devices = conf::root(names).join("dev");
        let left_alone = |mount: &Mount| {
            how == Unmount::Gentle && runs && mount.kind == "devfs" && Path::new(&mount.at) == devices
        };
        let mut first = Ok(());
        for mount in mounts.iter().filter(|mount| !left_alone(mount)) {
            self.looks.forget_mounts(names.slot);
            first = first.and(self.unmount_one(names, &mount.at, how).await);
        }
        first
    }

    async fn unmount_one(&self, names: &SlotNames, path: &str, how: Unmount) -> HostResult<()> {
        refuse_links(names, path)?;
        let outcome = self.tools.umount.with(commands::unmount(path, how == Unmount::Force)).run().await?;
        match classify(&outcome.stderr) {
            _ if outcome.success() => Ok(()),
            Complaint::Absent => Ok(()),
            _ => Err(command_failed(path, &outcome, "find its users with fstat -f; the reaper tries again")),
        }
    }
}

/// Refuse a path with a symbolic link: umount(8) follows links, and a clone's could lead to a mount of the host.
fn refuse_links(names: &SlotNames, path: &str) -> HostResult<()> {
    let failed = |why: String| {
        HostError::new(HostErrorKind::Failed, path, why, "check its folders and unmount it by hand")
    };
    let inside = Path::new(path).strip_prefix(conf::root(names)).unwrap_or(Path::new(""));
    // Folders inside a clone may have any owner. Only links are refused.
    let mut way = conf::root(names);
    for part in inside.components() {
        let name = part.as_os_str().to_string_lossy();
        match Folder::look_through(&way).and_then(|folder| folder.is_link(&name)) {
            Ok(false) => {}
            Ok(true) => return Err(failed(format!("{name} in its path is a symbolic link"))),
            Err(error) if error.is_absent() => return Ok(()),
            Err(error) => return Err(failed("its path cannot be checked".to_owned()).caused_by(error)),
        }
        way.push(part);
    }
    Ok(())
}
