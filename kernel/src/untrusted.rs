//! Works in folders that an untrusted program can write to: opens entries, and removes whole trees.
//!
//! The program can replace any entry at any moment, so a path is never used twice. An entry is opened relative to the
//! descriptor of its folder, and everything else is done with the entry's descriptor.

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, chmod, fchmod, fstat, openat, openat2, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A name is looked up in its folder only: no link, no mount point and no path leads elsewhere.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// A folder may need several passes, because some file systems skip entries while others are removed.
const PASSES: usize = 100;

/// Removes a folder and everything in it.
///
/// `std::fs::remove_dir_all` follows no links either, but it recurses and holds one descriptor per level. A program can
/// nest folders so deep that the recursion overflows the stack or runs out of descriptors. This walk uses constant
/// stack and a constant number of descriptors, whatever the depth.
///
/// Nothing else may rename or link the folders above `path`. It is an error if
/// something is mounted in the tree or if a running program moves folders at the same time.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = openat(CWD, parent, FOLDER, Mode::empty())?;
    let name = CString::new(name.as_bytes())?;
    let mut folder = open_folder(&parent, &name)?;
    // The folders between `path` and `folder`: the name in its parent, and the parent's identity.
    let mut above: Vec<(CString, (u64, u64))> = Vec::new();
    loop {
        if let Some(inner) = empty(&folder)? {
            let below = open_folder(&folder, &inner)?;
            above.push((inner, identity(&folder)?));
            folder = below;
            continue;
        }
        let Some((name, parent)) = above.pop() else { break };
        let outer = openat(&folder, c"..", FOLDER, Mode::empty())?;
        if identity(&outer)? != parent {
            return Err(io::Error::other("a folder was moved while it was being removed"));
        }
        unlinkat(&outer, &name, AtFlags::REMOVEDIR)?;
        folder = outer;
    }
    Ok(unlinkat(&parent, &name, AtFlags::REMOVEDIR)?)
}

/// Removes the files and the empty folders in `folder`. Returns the first folder that is not empty.
fn empty(folder: &OwnedFd) -> io::Result<Option<CString>> {
    for _ in 0..PASSES {
        let mut seen = false;
        let mut entries = Dir::read_from(folder)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            seen = true;
            match remove_entry(folder, name) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_owned())),
                Err(Errno::ACCESS) => {
                    // The owner of the folder took his own right to write; root does not need it.
                    fchmod(folder, Mode::RWXU)?;
                    match remove_entry(folder, name) {
                        Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_owned())),
                        other => other?,
                    }
                }
                other => other?,
            }
        }
        if !seen {
            return Ok(None);
        }
    }
    Err(io::ErrorKind::DirectoryNotEmpty.into())
}

/// Removes a file or an empty folder; absent is success.
fn remove_entry(folder: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let removed = match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => unlinkat(folder, name, AtFlags::REMOVEDIR),
        other => other,
    };
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn open_folder(parent: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    match openat2(parent, name, FOLDER, Mode::empty(), BENEATH) {
        Err(Errno::ACCESS) => {
            let path = openat2(parent, name, OFlags::PATH.union(FOLDER), Mode::empty(), BENEATH)?;
            chmod(format!("/proc/self/fd/{}", path.as_raw_fd()), Mode::RWXU)?;
            Ok(openat2(parent, name, FOLDER, Mode::empty(), BENEATH)?)
        }
        other => Ok(other?),
    }
}

fn identity(folder: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = fstat(folder)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens the entry `name` of a folder that an untrusted program writes to, without any effect on the entry
/// (`O_PATH`). The caller inspects it before it uses it.
pub fn open_entry(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat2(folder, name, flags, Mode::empty(), BENEATH)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkdirat;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_tree_of_any_depth_is_removed() {
        // In memory: a disk's file system takes milliseconds for each folder.
        let base = tempfile::tempdir_in("/dev/shm").unwrap();
        let tree = base.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        // Deeper than the stack of a thread, the limit of open files and the longest path allow.
        let mut folder = OwnedFd::from(std::fs::File::open(&tree).unwrap());
        for _ in 0..20_000 {
            mkdirat(&folder, c"d", Mode::RWXU).unwrap();
            folder = open_folder(&folder, c"d").unwrap();
        }
        drop(folder);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let victim = base.path().join("victim");
        std::fs::create_dir(&victim).unwrap();
        std::fs::write(victim.join("file"), "precious").unwrap();
        let tree = base.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        for name in ["link", "a/link", "a/b/link"] {
            symlink(&victim, tree.join(name)).unwrap();
        }
        for number in 0..3000 {
            std::fs::write(tree.join(format!("a/{number}")), "").unwrap();
        }
        for mode in [0o000, 0o500] {
            let folder = tree.join(format!("mode-{mode}"));
            std::fs::create_dir_all(folder.join("inner")).unwrap();
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert_eq!(std::fs::read_to_string(victim.join("file")).unwrap(), "precious");
        symlink(&victim, &tree).unwrap();
        assert!(remove_tree(&tree).is_err(), "a link is not a tree");
        assert!(victim.join("file").exists());
    }
}
