//! Network namespaces: made by a thread, kept by a mount, entered by a thread.
//!
//! A namespace lives as long as something refers to it. A bind mount of it does so beyond the death of hostd, and is
//! visible to operators (`nsenter --net=FILE`).

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// `NSFS_MAGIC` of the kernel's `magic.h`.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Make a namespace and keep it by a mount on `pin`, a file that must not be there yet.
pub(super) fn make(pin: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(pin)?;
    let pin = pin.to_owned();
    // A thread of its own: the namespace is a property of the thread, and this one ends with it.
    in_thread(move || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let fresh = "/proc/thread-self/ns/net";
        mount(Some(fresh), &pin, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        File::open(&pin)
    })
}

/// Whether a namespace is mounted on this file.
pub(super) fn is_pinned(pin: &Path) -> bool {
    nix::sys::statfs::statfs(pin).is_ok_and(|seen| seen.filesystem_type().0 == NSFS_MAGIC)
}

/// The number by which `/proc/*/ns/net` shows the pinned namespace. Nobody else has it while it is pinned.
pub(super) fn inode(pin: &Path) -> Option<u64> {
    is_pinned(pin).then(|| std::fs::metadata(pin).ok().map(|meta| meta.ino()))?
}

/// Let the namespace go, and remove the file; absent is success.
pub(super) fn unpin(pin: &Path) -> io::Result<()> {
    while is_pinned(pin) {
        umount2(pin, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    match std::fs::remove_file(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Do something inside a namespace.
pub(super) fn inside<T: Send + 'static>(
    namespace: &File,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let namespace = namespace.try_clone()?;
    in_thread(move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET)?;
        work()
    })
}

fn in_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("netns".into()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the namespace's thread panicked")))
}
