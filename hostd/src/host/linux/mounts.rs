//! Mounts: all of them from mountinfo, or those of one folder from `statmount(2)`.
//!
//! mountinfo has three lines per clone, and the kernel takes microseconds for each line. So the mounts of one clone are
//! queried alone ([`statmount`], Linux 6.11 or later). On an older kernel the whole list is read.

pub(super) use kernel::mountinfo::Mount;

use super::statmount;
use kernel::mountinfo;
use std::io;
use std::path::Path;

/// Mounts at one moment, sorted by mount point. Mounts on the same mount point are in the order in which they were made: a
/// later one shadows an earlier one. An inspection of all clones looks up several mounts per clone, so a lookup must not
/// walk through all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MountTable(Vec<Mount>);

impl MountTable {
    /// These mounts, in the order in which they were made.
    pub(super) fn new(mut mounts: Vec<Mount>) -> MountTable {
        // A stable sort: it keeps the order of equal mount points. Paths are compared by components, so everything below a
        // folder follows it.
        mounts.sort_by(|one, other| one.at.cmp(&other.at));
        MountTable(mounts)
    }

    /// All mounts that the calling thread sees.
    pub(super) fn read() -> io::Result<MountTable> {
        mountinfo::read().map(MountTable::new)
    }

    /// The mounts on a folder and below it, and the mount on `other`. Shadowed mounts may be left out: they show when the
    /// mounts above them are gone. The paths must have no symbolic links.
    pub(super) fn read_below(folder: &Path, other: Option<&Path>) -> io::Result<MountTable> {
        let on_other = other.map_or(Ok(Some(None)), statmount::on)?;
        Ok(MountTable::new(match (statmount::on_and_below(folder)?, on_other) {
            (Some(mut found), Some(on_other)) => {
                found.extend(on_other);
                found
            }
            _ => {
                let wanted =
                    |mount: &Mount| mount.at.starts_with(folder) || Some(mount.at.as_path()) == other;
                mountinfo::read()?.into_iter().filter(wanted).collect()
            }
        }))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// The mounts at exactly this mount point; the last one is not shadowed.
    pub(super) fn stack_at(&self, mount_point: &Path) -> &[Mount] {
        let first = self.0.partition_point(|mount| mount.at.as_path() < mount_point);
        let rest = &self.0[first..];
        &rest[..rest.iter().take_while(|mount| mount.at == mount_point).count()]
    }

    /// The mount at exactly this mount point that is not shadowed.
    pub(super) fn at(&self, mount_point: &Path) -> Option<&Mount> {
        self.stack_at(mount_point).last()
    }

    /// The mounts strictly below a folder, deepest and latest first.
    pub(super) fn below(&self, folder: &Path) -> Vec<&Mount> {
        let first = self.0.partition_point(|mount| mount.at.as_path() <= folder);
        let mut found: Vec<&Mount> =
            self.0[first..].iter().take_while(|mount| mount.at.starts_with(folder)).collect();
        found.reverse();
        found.sort_by_key(|mount| std::cmp::Reverse(mount.at.components().count()));
        found
    }

    /// The mount that holds a path.
    pub(super) fn holding(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|folder| self.at(folder))
    }
}

/// Run something in a private mount namespace, for tests.
#[cfg(test)]
pub(super) fn in_private<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    use nix::mount::{MsFlags, mount};
    assert!(nix::unistd::geteuid().is_root(), "this test mounts: run it with sudo");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("a namespace");
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("private mounts");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::mount::{MsFlags, mount};
    use std::path::PathBuf;

    fn tmpfs(at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        mount(Some("a word"), at, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
    }

    #[test]
    fn statmount_and_mountinfo_agree_about_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        in_private(|| {
            let (view, plain) = (base.join("a view, \\ of\nit"), base.join("plain"));
            tmpfs(&view);
            tmpfs(&view.join("deep/er"));
            tmpfs(&view.join("deep/er/still"));
            tmpfs(&plain.join("inside"));
            for part in ["lower", "inside/up", "inside/work"] {
                std::fs::create_dir_all(plain.join(part)).unwrap();
            }
            let shown = plain.display();
            let options =
                format!("lowerdir={shown}/lower,upperdir={shown}/inside/up,workdir={shown}/inside/work");
            std::fs::create_dir(base.join("over")).unwrap();
            mount(Some("o"), &base.join("over"), Some("overlay"), MsFlags::empty(), Some(options.as_str()))
                .unwrap();
            let everything = MountTable::read().unwrap();
            let listed = |folder: &Path| -> Vec<Mount> {
                everything.iter().filter(|mount| mount.at.starts_with(folder)).cloned().collect()
            };
            let queried = |folder: &Path| MountTable::read_below(folder, None).unwrap();
            for (folder, count) in [(&view, 3), (&plain, 1), (&base.join("over"), 1), (&base.join("none"), 0)]
            {
                let MountTable(mut found) = queried(folder);
                let mut expected = listed(folder);
                assert_eq!(expected.len(), count, "{folder:?}");
                for mount in found.iter_mut().chain(&mut expected) {
                    // Not queried for one mount, or only since Linux 6.13; and the order of the options differs.
                    mount.source.clear();
                    mount.flags.clear();
                    mount.options = mount.option("upperdir").unwrap_or_default().to_owned();
                }
                assert_eq!(found, expected, "{folder:?}");
            }
            let over = queried(&base.join("over"));
            assert_eq!(over.0[0].option("upperdir"), plain.join("inside/up").to_str());
            // An empty folder and a file hold no mounts.
            std::fs::write(base.join("file"), "").unwrap();
            std::fs::create_dir(base.join("empty")).unwrap();
            for name in ["file", "empty"] {
                assert_eq!(queried(&base.join(name)), MountTable::default());
            }
            // Of two mounts at one mount point the later one shadows the other.
            tmpfs(&view);
            assert_eq!(queried(&view).0.len(), 1);
        });
    }

    const MOUNTINFO: &[u8] = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        41 27 0:40 / /srv/a\\040b rw,nosuid shared:7 - tmpfs t rw,size=4k\n\
        42 41 0:41 / /srv/a\\040b/c rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
        43 41 0:41 / /srv/a\\040b/c/d rw - tmpfs t rw\n";

    #[test]
    fn below_is_deepest_first_and_never_the_folder_itself() {
        let mounts = MountTable::new(mountinfo::parse(MOUNTINFO));
        let names: Vec<_> = mounts.below(Path::new("/srv/a b")).iter().map(|m| m.at.clone()).collect();
        assert_eq!(names, [PathBuf::from("/srv/a b/c/d"), PathBuf::from("/srv/a b/c")]);
        assert!(mounts.below(Path::new("/srv/a")).is_empty(), "the beginning of a name is not a parent");
        assert_eq!(mounts.at(Path::new("/srv/a b/c")).map(|m| m.kind.as_str()), Some("overlay"));
        let held = |path: &str| mounts.holding(Path::new(path)).map(|mount| mount.at.display().to_string());
        assert_eq!(held("/srv/a b/x/y").as_deref(), Some("/srv/a b"));
        assert_eq!(held("/srv/a"), None, "nothing of the list holds it");
    }

    #[test]
    fn a_later_mount_shadows_an_earlier_one_at_the_same_mount_point() {
        let mounts = MountTable::new(mountinfo::parse(
            b"30 1 0:1 / /c rw - tmpfs later rw\n\
              20 1 0:2 / /b rw - tmpfs b rw\n\
              31 30 0:3 / /c rw - overlay latest rw\n\
              32 1 0:4 / /c-d rw - tmpfs other rw\n",
        ));
        let sources = |mounts: &[Mount]| mounts.iter().map(|mount| mount.source.clone()).collect::<Vec<_>>();
        assert_eq!(sources(mounts.stack_at(Path::new("/c"))), ["later", "latest"]);
        assert_eq!(mounts.at(Path::new("/c")).map(|mount| mount.source.as_str()), Some("latest"));
        assert!(mounts.below(Path::new("/c")).is_empty(), "/c-d is not below /c");
    }
}
