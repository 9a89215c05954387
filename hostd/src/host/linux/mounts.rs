//! Mounts: all of them from mountinfo, or those of one folder from `statmount(2)`.
//!
//! mountinfo has three lines per clone, and the kernel takes microseconds for each line. So the mounts of one clone are
//! queried alone ([`statmount`], Linux 6.11 or later). On an older kernel the whole list is read.

pub(super) use kernel::mountinfo::{Mount, read as all};

use super::statmount;
use std::io;
use std::path::Path;

/// The mount on a folder that is not shadowed, if there is one. The folder's path must have no symbolic links.
pub(super) fn on(folder: &Path) -> io::Result<Option<Mount>> {
    match statmount::on(folder)? {
        Some(found) => Ok(found),
        None => Ok(at(&all()?, folder).cloned()),
    }
}

/// The mounts on a folder and below it, in the order in which they were made. Shadowed mounts may be left out: they show
/// when the mounts above them are gone. The folder's path must have no symbolic links.
pub(super) fn on_and_below(folder: &Path) -> io::Result<Vec<Mount>> {
    if let Some(found) = statmount::on_and_below(folder)? {
        return Ok(found);
    }
    Ok(all()?.into_iter().filter(|mount| mount.at.starts_with(folder)).collect())
}

/// The mounts strictly below a folder, deepest and latest first.
pub(super) fn below<'a>(mounts: &'a [Mount], folder: &Path) -> Vec<&'a Mount> {
    let mut found: Vec<&Mount> =
        mounts.iter().rev().filter(|mount| mount.at.starts_with(folder) && mount.at != folder).collect();
    found.sort_by_key(|mount| std::cmp::Reverse(mount.at.components().count()));
    found
}

/// The mount that holds a path.
pub(super) fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // A later mount shadows an earlier one at the same mount point; max_by_key returns the last of equals.
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.at))
        .max_by_key(|mount| mount.at.components().count())
}

/// The mount at exactly this mount point that is not shadowed.
pub(super) fn at<'a>(mounts: &'a [Mount], mount_point: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.at == mount_point)
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
            let everything = all().unwrap();
            let listed = |folder: &Path| -> Vec<Mount> {
                everything.iter().filter(|mount| mount.at.starts_with(folder)).cloned().collect()
            };
            for (folder, count) in [(&view, 3), (&plain, 1), (&base.join("over"), 1), (&base.join("none"), 0)]
            {
                let mut found = on_and_below(folder).unwrap();
                let mut expected = listed(folder);
                assert_eq!(expected.len(), count, "{folder:?}");
                for mount in found.iter_mut().chain(&mut expected) {
                    // Not queried for one mount, or only since Linux 6.13; and the order of the options differs.
                    mount.source.clear();
                    mount.flags.clear();
                    mount.options = mount.option("upperdir").unwrap_or_default().to_owned();
                }
                assert_eq!(found, expected, "{folder:?}");
                let seen = on(folder).unwrap().map(|mount| mount.at);
                assert_eq!(seen, at(&everything, folder).map(|mount| mount.at.clone()));
            }
            let over = on_and_below(&base.join("over")).unwrap();
            assert_eq!(over[0].option("upperdir"), plain.join("inside/up").to_str());
            // An empty folder and a file hold no mounts.
            std::fs::write(base.join("file"), "").unwrap();
            std::fs::create_dir(base.join("empty")).unwrap();
            for name in ["file", "empty"] {
                assert_eq!(on_and_below(&base.join(name)).unwrap(), []);
            }
            // Of two mounts at one mount point the later one shadows the other.
            tmpfs(&view);
            assert_eq!(on_and_below(&view).unwrap().len(), 1);
        });
    }

    const MOUNTINFO: &[u8] = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        41 27 0:40 / /srv/a\\040b rw,nosuid shared:7 - tmpfs t rw,size=4k\n\
        42 41 0:41 / /srv/a\\040b/c rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
        43 41 0:41 / /srv/a\\040b/c/d rw - tmpfs t rw\n";

    #[test]
    fn below_is_deepest_first_and_never_the_folder_itself() {
        let mounts = kernel::mountinfo::parse(MOUNTINFO);
        let names: Vec<_> = below(&mounts, Path::new("/srv/a b")).iter().map(|m| m.at.clone()).collect();
        assert_eq!(names, [PathBuf::from("/srv/a b/c/d"), PathBuf::from("/srv/a b/c")]);
        assert!(below(&mounts, Path::new("/srv/a")).is_empty(), "the beginning of a name is not a parent");
        assert_eq!(at(&mounts, Path::new("/srv/a b/c")).map(|m| m.kind.as_str()), Some("overlay"));
    }
}
