//! The clones' mounts, kept apart from the host's.
//!
//! bubblewrap reads the list of all mounts for everything that it shows to a browser, some forty times. With three mounts
//! for every clone that took 150 ms beside 500 clones, and 11 ms beside none. So a clone's sandbox is made where only the
//! host's own mounts are, and those of that one clone. No clone's process ever holds a mount of another, either.
//!
//! The folders with the clones' mounts are mounts themselves, each of itself, that are not copied when the tree around
//! them is. A namespace of mounts begins as a copy of another, though, with everything that is in that. So hostd keeps one
//! with nothing in it to begin with, which a supervisor gets as its standard input.

use super::mounts::{self, Mount};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// What a host needs to keep the clones' mounts apart.
#[derive(Debug)]
pub(super) struct MountIsolation {
    /// The folders that are mounts of themselves.
    folders: Vec<PathBuf>,
    /// A namespace without mounts, but for an empty folder.
    nowhere: File,
}

impl MountIsolation {
    /// Keep the mounts in these folders apart, all of them or none. That it cannot be done now is no error: clones are as
    /// safe without it, and take longer to start the more of them there are.
    pub(super) fn keep(folders: &[&Path]) -> Option<MountIsolation> {
        let mut kept = Vec::new();
        let mut make = || {
            for folder in folders {
                kept.push(keep(folder)?);
            }
            nowhere(&kept[0])
        };
        match make() {
            Ok(nowhere) => Some(MountIsolation { folders: kept, nowhere }),
            Err(error) => {
                tracing::warn!(%error, "the clones' mounts are not kept apart");
                let_go(&kept);
                None
            }
        }
    }

    /// A namespace without mounts, for [`enter`].
    pub(super) fn nowhere(&self) -> io::Result<File> {
        self.nowhere.try_clone()
    }

    /// The folders are plain ones again, as far as no clone is left in them.
    pub(super) fn let_go(&self) {
        let_go(&self.folders);
    }
}

fn let_go(folders: &[PathBuf]) {
    for folder in folders {
        if let Err(error) = umount2(folder, MntFlags::UMOUNT_NOFOLLOW) {
            tracing::debug!(folder = %folder.display(), %error, "stays a mount of its own");
        }
    }
}

fn keep(folder: &Path) -> io::Result<PathBuf> {
    let folder = folder.canonicalize()?;
    let seen = mounts::all()?;
    if !is_on_itself(&seen, &folder) {
        // A mount on top would hide them.
        if let Some(there) = mounts::below(&seen, &folder).first() {
            let why = format!("{} is mounted; hostd tries again at its next start", there.at.display());
            return Err(io::Error::other(why));
        }
        mount(Some(&folder), &folder, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    }
    mount(None::<&str>, &folder, None::<&str>, MsFlags::MS_UNBINDABLE, None::<&str>)?;
    Ok(folder)
}

/// Whether what is mounted on a folder is the folder itself.
fn is_on_itself(seen: &[Mount], folder: &Path) -> bool {
    let mut there = seen.iter().rev().filter(|mount| mount.at == folder);
    let Some(own) = there.next() else { return false };
    // What would be seen without it: another mount there, or a part of the one around it.
    let (covered, inside) = match (there.next(), folder.parent()) {
        (Some(covered), _) => (Some(covered), Path::new("")),
        (None, Some(parent)) => {
            let around = mounts::holding(seen, parent);
            (around, around.and_then(|around| folder.strip_prefix(&around.at).ok()).unwrap_or(Path::new("")))
        }
        (None, None) => return false,
    };
    covered.is_some_and(|covered| {
        (&covered.source, &covered.kind) == (&own.source, &own.kind) && covered.root.join(inside) == own.root
    })
}

/// Make a namespace without mounts. The folder is any: something has to be mounted somewhere in the making.
fn nowhere(folder: &Path) -> io::Result<File> {
    let make = || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let made = File::open("/proc/thread-self/ns/mnt")?;
        // Nothing of this reaches the host.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        mount(Some("hostd"), folder, Some("tmpfs"), MsFlags::empty(), Some("size=4k,mode=0755"))?;
        nix::unistd::chdir(folder)?;
        // The old root comes to lie on the new one, and is taken off from there.
        nix::unistd::pivot_root(".", ".")?;
        umount2(".", MntFlags::MNT_DETACH)?;
        Ok(made)
    };
    // A thread of its own: the namespace is a property of the thread, and this one ends with it.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("mounts".into()).spawn_scoped(scope, make)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the namespace's thread panicked")))
    })
}

/// From here on this thread, and what it starts, sees the host's mounts and those on and below `own`, and no other clone's.
/// What the host mounts and unmounts later it sees too, as far as the host shares that with anybody.
pub(super) fn enter(nowhere: BorrowedFd<'_>, own: &Path) -> io::Result<()> {
    let copy = |path: &Path| {
        let whole = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE;
        open_tree(CWD, path, whole | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)
    };
    let (host, files) = (copy(Path::new("/"))?, copy(own)?);
    unshare(CloneFlags::CLONE_FS)?;
    setns(nowhere, CloneFlags::CLONE_NEWNS)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let on_top = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&host, "", CWD, "/", on_top)?;
    // Not `pivot_root`, which looks at every process of the host. What lies below the root of a namespace is seen by nobody.
    nix::unistd::fchdir(&host)?;
    nix::unistd::chroot(".")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    move_mount(&files, "", CWD, own, on_top)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn tmpfs(at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        mount(Some("t"), at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    }

    fn below(folder: &Path) -> Vec<PathBuf> {
        mounts::below(&mounts::all().unwrap(), folder).iter().map(|mount| mount.at.clone()).collect()
    }

    #[test]
    fn one_clone_is_seen_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        let (clones, run) = (base.join("clones"), base.join("run"));
        for folder in [&clones, &run] {
            std::fs::create_dir(folder).unwrap();
        }
        mounts::in_private(|| {
            // As on most hosts: what is mounted is told to everybody who wants to know.
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>)
                .unwrap();
            let apart = MountIsolation::keep(&[&clones, &run]).expect("this kernel can");
            for place in ["own", "own/deep", "other"] {
                tmpfs(&clones.join(place));
            }
            tmpfs(&run.join("pin"));
            std::fs::write(clones.join("own/file"), "of the clone").unwrap();
            let before = mounts::all().unwrap();
            let seen = std::thread::scope(|scope| {
                let inside = || {
                    enter(apart.nowhere.as_fd(), &clones.join("own")).unwrap();
                    let text = std::fs::read_to_string(clones.join("own/file")).unwrap();
                    (mounts::all().unwrap(), below(&base), text)
                };
                scope.spawn(inside).join().unwrap()
            });
            assert_eq!(seen.1, [clones.join("own/deep"), clones.join("own")]);
            assert_eq!(seen.2, "of the clone");
            // Everything else of the host is there, and nothing of this was seen outside.
            let elsewhere = |all: &[Mount]| {
                let mut places: Vec<PathBuf> = all.iter().map(|mount| mount.at.clone()).collect();
                places.retain(|place| !place.starts_with(&base));
                places.sort();
                places
            };
            assert_eq!(elsewhere(&seen.0), elsewhere(&before));
            assert_eq!(mounts::all().unwrap(), before);

            // The next hostd finds it as it is; one that leaves clones leaves it.
            let again = MountIsolation::keep(&[&clones, &run]).expect("as before");
            assert_eq!(mounts::all().unwrap(), before);
            again.let_go();
            assert_eq!(mounts::all().unwrap(), before);
            for place in ["clones/own/deep", "clones/own", "clones/other", "run/pin"] {
                umount2(&base.join(place), MntFlags::empty()).unwrap();
            }
            again.let_go();
            assert_eq!(below(&base), [] as [PathBuf; 0]);
        });
    }

    #[test]
    fn nothing_that_is_there_is_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        mounts::in_private(|| {
            let (clones, run) = (base.join("clones"), base.join("run"));
            tmpfs(&run.join("pin"));
            // A disk of its own for the clones is no mount of itself.
            tmpfs(&clones);
            let before = mounts::all().unwrap();
            assert!(MountIsolation::keep(&[&clones, &run]).is_none());
            assert_eq!(mounts::all().unwrap(), before);
            umount2(&run.join("pin"), MntFlags::empty()).unwrap();
            let apart = MountIsolation::keep(&[&clones, &run]).expect("nothing is in the way");
            let kept = mounts::all().unwrap();
            assert_eq!(kept.len(), before.len() + 1, "one is gone, two are new");
            assert!(MountIsolation::keep(&[&clones, &run]).is_some());
            assert_eq!(mounts::all().unwrap(), kept);
            apart.let_go();
            assert_eq!(below(&base), [clones.as_path()]);
        });
    }
}
