//! Network namespaces that a bind mount keeps.
//!
//! A namespace exists as long as something refers to it. A bind mount of `/proc/…/ns/net` does, also after hostd exits, and
//! operators can use it (`nsenter --net=FILE`).

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// `NSFS_MAGIC` of the kernel's `magic.h`.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Make a namespace and mount it on `pin`, a file that must not exist yet.
pub(super) fn make(pin: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(pin)?;
    let pin = pin.to_owned();
    // In a thread of its own: the network namespace is an attribute of the thread, and the thread ends here.
    in_thread(move || {
        // unshare(2) makes the namespace, and mount(2) with MS_BIND keeps it.
        unshare(CloneFlags::CLONE_NEWNET)?;
        let own = "/proc/thread-self/ns/net";
        mount(Some(own), &pin, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        File::open(&pin)
    })
}

/// Whether a namespace is mounted on this file: `statfs(2)` shows nsfs.
pub(super) fn is_pinned(pin: &Path) -> bool {
    nix::sys::statfs::statfs(pin).is_ok_and(|found| found.filesystem_type().0 == NSFS_MAGIC)
}

/// The inode of the pinned namespace, by which `/proc/PID/ns/net` shows it. No other namespace has it while it is pinned.
pub(super) fn inode(pin: &Path) -> Option<u64> {
    is_pinned(pin).then(|| std::fs::metadata(pin).ok().map(|meta| meta.ino()))?
}

/// Unmount the namespace and remove the file. An absent file is success.
pub(super) fn unpin(pin: &Path) -> io::Result<()> {
    while is_pinned(pin) {
        umount2(pin, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    match std::fs::remove_file(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Run something in a namespace, by setns(2) in a thread of its own.
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
