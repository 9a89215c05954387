//! `statmount(2)` and `listmount(2)`: queries about single mounts, which no crate offers yet.
//!
//! Both calls exist since Linux 6.8, the file system's options in them since 6.11. If anything is missing, the functions
//! return `None`, and the caller reads mountinfo.

#![allow(unsafe_code)]

use super::mounts::Mount;
use kernel::mountinfo::unescape;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The same numbers on every architecture, like all system calls since Linux 5.1.
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;

/// `STATX_MNT_ID_UNIQUE`: an ID that is never reused for another mount.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// `STATMOUNT_*`
const MNT_ROOT: u64 = 0x8;
const MNT_POINT: u64 = 0x10;
const FS_TYPE: u64 = 0x20;
const MNT_OPTS: u64 = 0x80;
const SB_SOURCE: u64 = 0x200;
const NEEDED: u64 = MNT_ROOT | MNT_POINT | FS_TYPE | MNT_OPTS;

/// Offsets in `struct statmount`: of the mask, of the numbers that say where each string begins, and of the strings.
const OFFSET_OPTIONS: usize = 4;
const MASK: usize = 8;
const OFFSET_KIND: usize = 36;
const OFFSET_ROOT: usize = 104;
const OFFSET_MOUNT_POINT: usize = 108;
const OFFSET_SOURCE: usize = 124;
const STRINGS: usize = 512;
/// Enough for two paths and an overlay's options, which hold three more paths.
const LARGEST_ANSWER: usize = 64 << 10;

/// A clone has no mounts below its own. If there are more than this, mountinfo is read instead.
const MOST_MOUNTS: usize = 512;

/// `struct mnt_id_req` in its first version.
#[repr(C)]
struct MountRequest {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
}

impl MountRequest {
    fn new(mount: u64, param: u64) -> MountRequest {
        MountRequest { size: 24, spare: 0, mount, param }
    }
}

/// The mount on a folder. Outer `None`: the kernel cannot answer for this folder.
pub(super) fn on(folder: &Path) -> io::Result<Option<Option<Mount>>> {
    Ok(match mount_on(folder)? {
        MountOn::Root(id) => query_at(id, folder).map(Some),
        MountOn::Absent | MountOn::Plain => Some(None),
        MountOn::Unknown => None,
    })
}

/// The mount on a folder and all mounts below it, in the order in which they were made.
pub(super) fn on_and_below(folder: &Path) -> io::Result<Option<Vec<Mount>>> {
    Ok(match mount_on(folder)? {
        MountOn::Root(id) => tree(id, folder),
        MountOn::Absent => Some(Vec::new()),
        // Nothing can be mounted below an empty folder.
        MountOn::Plain => folder.read_dir().is_ok_and(|mut entries| entries.next().is_none()).then(Vec::new),
        MountOn::Unknown => None,
    })
}

/// What is mounted on a folder.
enum MountOn {
    /// The mount with this ID.
    Root(u64),
    /// There is no such folder.
    Absent,
    /// Nothing: it is a directory of the mount around it.
    Plain,
    /// The kernel does not report it.
    Unknown,
}

fn mount_on(folder: &Path) -> io::Result<MountOn> {
    let seen = match statx(CWD, folder, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, UNIQUE) {
        Err(rustix::io::Errno::NOENT) => return Ok(MountOn::Absent),
        other => other?,
    };
    let is_unique = StatxFlags::from_bits_retain(seen.stx_mask).contains(UNIQUE);
    let root = StatxAttributes::MOUNT_ROOT;
    Ok(match (seen.stx_attributes_mask.contains(root), seen.stx_attributes.contains(root)) {
        (true, false) => MountOn::Plain,
        (true, true) if is_unique => MountOn::Root(seen.stx_mnt_id),
        _ => MountOn::Unknown,
    })
}

fn tree(mount: u64, folder: &Path) -> Option<Vec<Mount>> {
    let mut found = vec![query_at(mount, folder)?];
    for inner in below(mount)? {
        found.extend(query(inner)?);
    }
    Some(found)
}

/// `None` if the folder is reached by another path than its mount point: then no mount below it would be recognised.
fn query_at(mount: u64, folder: &Path) -> Option<Mount> {
    query(mount)?.filter(|own| own.at == folder)
}

/// The IDs of the mounts below a mount, in the order in which they were made: `listmount(2)`.
fn below(mount: u64) -> Option<Vec<u64>> {
    let request = MountRequest::new(mount, 0);
    let mut ids = [0_u64; MOST_MOUNTS];
    // SAFETY: the request holds its own size, and `ids` has room for as many IDs as the kernel is told.
    let count = unsafe { libc::syscall(SYS_LISTMOUNT, &raw const request, ids.as_mut_ptr(), MOST_MOUNTS, 0) };
    let count = usize::try_from(count).ok().filter(|count| *count < MOST_MOUNTS)?;
    Some(ids[..count].to_vec())
}

/// One mount: `statmount(2)`. Inner `None`: it is gone. Outer `None`: the kernel cannot answer.
fn query(mount: u64) -> Option<Option<Mount>> {
    let request = MountRequest::new(mount, NEEDED | SB_SOURCE);
    let mut answer = vec![0_u8; 4096];
    loop {
        // SAFETY: the request holds its own size, and the kernel writes at most as many bytes as it is told.
        let done =
            unsafe { libc::syscall(SYS_STATMOUNT, &raw const request, answer.as_mut_ptr(), answer.len(), 0) };
        if done == 0 {
            return read(&answer).map(Some);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOENT) => return Some(None),
            Some(libc::EOVERFLOW) if answer.len() < LARGEST_ANSWER => answer.resize(answer.len() * 4, 0),
            _ => return None,
        }
    }
}

fn read(answer: &[u8]) -> Option<Mount> {
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let mask = u64::from_ne_bytes(answer.get(MASK..MASK + 8)?.try_into().ok()?);
    let string = |at: usize| {
        let rest = answer.get(STRINGS + number(at)? as usize..)?;
        Some(rest[..rest.iter().position(|byte| *byte == 0)?].to_vec())
    };
    if mask & NEEDED != NEEDED {
        return None;
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    Some(Mount {
        at: path(string(OFFSET_MOUNT_POINT)?),
        root: path(string(OFFSET_ROOT)?),
        kind: text(string(OFFSET_KIND)?),
        source: if mask & SB_SOURCE == 0 { String::new() } else { text(string(OFFSET_SOURCE)?) },
        // Not queried: nobody needs them of a single mount.
        flags: String::new(),
        options: text(unescape(&string(OFFSET_OPTIONS)?)),
    })
}
