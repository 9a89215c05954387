//! Isolation of the clones' mounts from each other and from the host's.
//!
//! bubblewrap reads the list of all mounts for every path that it binds, about forty times. With three mounts per clone
//! this took 150 ms beside 500 clones, and 11 ms beside none. So a clone's sandbox is built in a mount namespace that has
//! only the host's own mounts and those of this one clone. As a consequence no clone's process holds another clone's mounts.
//!
//! The folders with the clones' mounts are bind mounts of themselves with the propagation type `MS_UNBINDABLE`, so that a
//! recursive copy of the tree around them (`open_tree`) leaves them out. But `unshare(CLONE_NEWNS)` copies the whole mount
//! namespace, with everything in it. So hostd keeps an empty mount namespace, which each supervisor gets as its standard
//! input, enters, and fills with such copies.

use super::mounts::{self, Mount};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// The isolated folders, and the namespace that supervisors start from.
#[derive(Debug)]
pub(super) struct MountIsolation {
    /// The folders that are unbindable mounts of themselves.
    folders: Vec<PathBuf>,
    /// A mount namespace whose only mount is an empty tmpfs.
    empty_namespace: File,
}

impl MountIsolation {
    /// Isolate the mounts in these folders, all of them or none. A failure is not an error: clones are as safe without
    /// isolation, but the more clones there are, the longer a create takes.
    pub(super) fn set_up(folders: &[&Path]) -> Option<MountIsolation> {
        let mut isolated = Vec::new();
        let mut set_up = || {
            for folder in folders {
                isolated.push(isolate(folder)?);
            }
            make_empty_namespace(&isolated[0])
        };
        match set_up() {
            Ok(empty_namespace) => Some(MountIsolation { folders: isolated, empty_namespace }),
            Err(error) => {
                tracing::warn!(%error, "the clones' mounts are not isolated; creates take longer with many clones");
                release(&isolated);
                None
            }
        }
    }

    /// The empty mount namespace, for [`enter`].
    pub(super) fn empty_namespace(&self) -> io::Result<File> {
        self.empty_namespace.try_clone()
    }

    /// Unmount the isolated folders. A folder with clones in it stays as it is.
    pub(super) fn release(&self) {
        release(&self.folders);
    }
}

fn release(folders: &[PathBuf]) {
    for folder in folders {
        // umount2(2) without MNT_DETACH: EBUSY as long as a clone's mounts are in it.
        if let Err(error) = umount2(folder, MntFlags::UMOUNT_NOFOLLOW) {
            tracing::debug!(folder = %folder.display(), %error, "the folder stays isolated");
        }
    }
}

/// Make a folder an unbindable mount of itself.
fn isolate(folder: &Path) -> io::Result<PathBuf> {
    let folder = folder.canonicalize()?;
    let mounts = mounts::all()?;
    if !is_mounted_on_itself(&mounts, &folder) {
        // A new mount on the folder would shadow the mounts below it.
        if let Some(below) = mounts::below(&mounts, &folder).first() {
            let why = format!("{} is mounted; hostd tries again at its next start", below.at.display());
            return Err(io::Error::other(why));
        }
        // mount(2) with MS_BIND: a mount of its own, so that it can have its own propagation type.
        mount(Some(&folder), &folder, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    }
    // mount(2) with MS_UNBINDABLE: private, and left out when the tree around it is copied.
    mount(None::<&str>, &folder, None::<&str>, MsFlags::MS_UNBINDABLE, None::<&str>)?;
    Ok(folder)
}

/// Whether the mount on a folder is a bind mount of the folder itself.
fn is_mounted_on_itself(mounts: &[Mount], folder: &Path) -> bool {
    let mut on_folder = mounts.iter().rev().filter(|mount| mount.at == folder);
    let Some(own) = on_folder.next() else { return false };
    // What the mount shadows: another mount on the folder, or a directory of the mount around it.
    let (shadowed, inside) = match (on_folder.next(), folder.parent()) {
        (Some(shadowed), _) => (Some(shadowed), Path::new("")),
        (None, Some(parent)) => {
            let around = mounts::holding(mounts, parent);
            (around, around.and_then(|around| folder.strip_prefix(&around.at).ok()).unwrap_or(Path::new("")))
        }
        (None, None) => return false,
    };
    shadowed.is_some_and(|shadowed| {
        (&shadowed.source, &shadowed.kind) == (&own.source, &own.kind)
            && shadowed.root.join(inside) == own.root
    })
}

/// Make a mount namespace whose only mount is an empty tmpfs. It is built on `folder`, which stays as it is.
fn make_empty_namespace(folder: &Path) -> io::Result<File> {
    let make = || {
        // unshare(2): a copy of the host's mount namespace, for this thread alone.
        unshare(CloneFlags::CLONE_NEWNS)?;
        let namespace = File::open("/proc/thread-self/ns/mnt")?;
        // MS_PRIVATE: nothing that is mounted or unmounted here propagates to the host.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        mount(Some("hostd"), folder, Some("tmpfs"), MsFlags::empty(), Some("size=4k,mode=0755"))?;
        nix::unistd::chdir(folder)?;
        // pivot_root(2) with the same path twice stacks the old root on the new one; umount2(2) then detaches it, with all
        // mounts of the host below it.
        nix::unistd::pivot_root(".", ".")?;
        umount2(".", MntFlags::MNT_DETACH)?;
        Ok(namespace)
    };
    // In a thread of its own: the mount namespace is an attribute of the thread, and the thread ends here.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("mounts".into()).spawn_scoped(scope, make)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the namespace's thread panicked")))
    })
}

/// Move the calling thread into a new mount namespace that has the host's mounts and those on and below `own`, and no other
/// clone's. Later mounts and unmounts of the host are propagated into it, if the host's mounts are shared.
pub(super) fn enter(empty_namespace: BorrowedFd<'_>, own: &Path) -> io::Result<()> {
    // open_tree(2) with OPEN_TREE_CLONE and AT_RECURSIVE: a detached copy of the tree. Unbindable mounts are left out.
    let copy = |path: &Path| {
        let whole = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE;
        open_tree(CWD, path, whole | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)
    };
    let (host, files) = (copy(Path::new("/"))?, copy(own)?);
    // setns(2) to a mount namespace needs an fs_struct that no other thread shares.
    unshare(CloneFlags::CLONE_FS)?;
    setns(empty_namespace, CloneFlags::CLONE_NEWNS)?;
    // A copy of the empty namespace: other supervisors start from it too.
    unshare(CloneFlags::CLONE_NEWNS)?;
    // move_mount(2) attaches the copy of the host's tree on the empty root, which it shadows.
    let attach = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&host, "", CWD, "/", attach)?;
    // fchdir(2) and chroot(2) instead of pivot_root(2), which walks through all processes of the host. The shadowed tmpfs is
    // empty, so it does not matter that it stays.
    nix::unistd::fchdir(&host)?;
    nix::unistd::chroot(".")?;
    // MS_SLAVE: the host's mounts propagate here, and nothing propagates to the host.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    move_mount(&files, "", CWD, own, attach)?;
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
    fn only_the_own_clones_mounts_are_visible() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        let (clones, run) = (base.join("clones"), base.join("run"));
        for folder in [&clones, &run] {
            std::fs::create_dir(folder).unwrap();
        }
        mounts::in_private(|| {
            // As on most hosts: mounts are shared, so they propagate to copies of the namespace.
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>)
                .unwrap();
            let isolation = MountIsolation::set_up(&[&clones, &run]).expect("this kernel supports it");
            for folder in ["own", "own/deep", "other"] {
                tmpfs(&clones.join(folder));
            }
            tmpfs(&run.join("pin"));
            std::fs::write(clones.join("own/file"), "of the clone").unwrap();
            let before = mounts::all().unwrap();
            let seen = std::thread::scope(|scope| {
                let inside = || {
                    enter(isolation.empty_namespace.as_fd(), &clones.join("own")).unwrap();
                    let text = std::fs::read_to_string(clones.join("own/file")).unwrap();
                    (mounts::all().unwrap(), below(&base), text)
                };
                scope.spawn(inside).join().unwrap()
            });
            assert_eq!(seen.1, [clones.join("own/deep"), clones.join("own")]);
            assert_eq!(seen.2, "of the clone");
            // All other mounts of the host are there, and nothing propagated to the host.
            let elsewhere = |all: &[Mount]| {
                let mut folders: Vec<PathBuf> = all.iter().map(|mount| mount.at.clone()).collect();
                folders.retain(|folder| !folder.starts_with(&base));
                folders.sort();
                folders
            };
            assert_eq!(elsewhere(&seen.0), elsewhere(&before));
            assert_eq!(mounts::all().unwrap(), before);

            // The next hostd finds the folders isolated. A hostd that leaves clones leaves the isolation.
            let again = MountIsolation::set_up(&[&clones, &run]).expect("as before");
            assert_eq!(mounts::all().unwrap(), before);
            again.release();
            assert_eq!(mounts::all().unwrap(), before);
            for folder in ["clones/own/deep", "clones/own", "clones/other", "run/pin"] {
                umount2(&base.join(folder), MntFlags::empty()).unwrap();
            }
            again.release();
            assert_eq!(below(&base), [] as [PathBuf; 0]);
        });
    }

    #[test]
    fn existing_mounts_are_not_shadowed() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        mounts::in_private(|| {
            let (clones, run) = (base.join("clones"), base.join("run"));
            tmpfs(&run.join("pin"));
            // A separate disk for the clones is not a bind mount of the folder itself.
            tmpfs(&clones);
            let before = mounts::all().unwrap();
            assert!(MountIsolation::set_up(&[&clones, &run]).is_none());
            assert_eq!(mounts::all().unwrap(), before);
            umount2(&run.join("pin"), MntFlags::empty()).unwrap();
            let isolation = MountIsolation::set_up(&[&clones, &run]).expect("no mount is below");
            let isolated = mounts::all().unwrap();
            assert_eq!(isolated.len(), before.len() + 1, "one mount less, two more");
            assert!(MountIsolation::set_up(&[&clones, &run]).is_some());
            assert_eq!(mounts::all().unwrap(), isolated);
            isolation.release();
            assert_eq!(below(&base), [clones.as_path()]);
        });
    }
}
