//! The kernel's answers about single mounts (`statmount`, `listmount`): what no crate offers yet.
//!
//! Both came with Linux 6.8, the options of a mount with 6.11. Where anything of it is missing the answer is `None`, and the
//! list of all mounts tells.

#![allow(unsafe_code)]

use super::mounts::{Mount, unescape};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The same on every architecture: they are newer than the common table.
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;

/// `STATX_MNT_ID_UNIQUE`: a number that is never given to another mount.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// `STATMOUNT_*`
const MNT_ROOT: u64 = 0x8;
const MNT_POINT: u64 = 0x10;
const FS_TYPE: u64 = 0x20;
const MNT_OPTS: u64 = 0x80;
const SB_SOURCE: u64 = 0x200;
const NEEDED: u64 = MNT_ROOT | MNT_POINT | FS_TYPE | MNT_OPTS;

/// Where `struct statmount` says at which byte of its text each word begins, and where that text is.
const WORD_OPTIONS: usize = 4;
const MASK: usize = 8;
const WORD_KIND: usize = 36;
const WORD_ROOT: usize = 104;
const WORD_PLACE: usize = 108;
const WORD_SOURCE: usize = 124;
const TEXT: usize = 512;
/// Two paths and the options of an overlay, which are three more.
const LONGEST: usize = 64 << 10;

/// More mounts below one clone than this are an attack, and the whole list tells of them too.
const MOST: usize = 512;

/// `struct mnt_id_req` in its first form.
#[repr(C)]
struct Question {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
}

impl Question {
    fn new(mount: u64, param: u64) -> Question {
        Question { size: 24, spare: 0, mount, param }
    }
}

/// The mount that is seen on a folder. `None` outside: the kernel cannot tell that of this folder.
pub(super) fn on(folder: &Path) -> io::Result<Option<Option<Mount>>> {
    Ok(match number(folder)? {
        Number::OfMount(number) => ask_at(number, folder).map(Some),
        Number::Nothing | Number::Plain => Some(None),
        Number::Unknown => None,
    })
}

/// The same with all mounts below it, in the order of their making.
pub(super) fn on_and_below(folder: &Path) -> io::Result<Option<Vec<Mount>>> {
    Ok(match number(folder)? {
        Number::OfMount(number) => tree(number, folder),
        Number::Nothing => Some(Vec::new()),
        // What is mounted on something in it shows there.
        Number::Plain => folder.read_dir().is_ok_and(|mut entries| entries.next().is_none()).then(Vec::new),
        Number::Unknown => None,
    })
}

/// Which mount is seen on a folder.
enum Number {
    OfMount(u64),
    /// There is no such folder.
    Nothing,
    /// A part of the mount around it.
    Plain,
    /// The kernel does not tell.
    Unknown,
}

fn number(folder: &Path) -> io::Result<Number> {
    let seen = match statx(CWD, folder, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, UNIQUE) {
        Err(rustix::io::Errno::NOENT) => return Ok(Number::Nothing),
        other => other?,
    };
    let is_unique = StatxFlags::from_bits_retain(seen.stx_mask).contains(UNIQUE);
    let root = StatxAttributes::MOUNT_ROOT;
    Ok(match (seen.stx_attributes_mask.contains(root), seen.stx_attributes.contains(root)) {
        (true, false) => Number::Plain,
        (true, true) if is_unique => Number::OfMount(seen.stx_mnt_id),
        _ => Number::Unknown,
    })
}

fn tree(mount: u64, folder: &Path) -> Option<Vec<Mount>> {
    let mut found = vec![ask_at(mount, folder)?];
    for inner in below(mount)? {
        found.extend(ask(inner)?);
    }
    Some(found)
}

/// Reached by another path than that of its mount, nothing in a folder would be recognised.
fn ask_at(mount: u64, folder: &Path) -> Option<Mount> {
    ask(mount)?.filter(|own| own.at == folder)
}

/// The numbers of the mounts below a mount, in the order of their making.
fn below(mount: u64) -> Option<Vec<u64>> {
    let question = Question::new(mount, 0);
    let mut numbers = [0_u64; MOST];
    // SAFETY: the question says its own size, and the answer has room for as many numbers as the kernel is told.
    let count = unsafe { libc::syscall(SYS_LISTMOUNT, &raw const question, numbers.as_mut_ptr(), MOST, 0) };
    let count = usize::try_from(count).ok().filter(|count| *count < MOST)?;
    Some(numbers[..count].to_vec())
}

/// One mount; `None` inside: it is gone by now. `None` outside: the kernel cannot tell.
fn ask(mount: u64) -> Option<Option<Mount>> {
    let question = Question::new(mount, NEEDED | SB_SOURCE);
    let mut answer = vec![0_u8; 4096];
    loop {
        // SAFETY: the question says its own size, and the kernel writes no more than it is told there is room for.
        let done = unsafe {
            libc::syscall(SYS_STATMOUNT, &raw const question, answer.as_mut_ptr(), answer.len(), 0)
        };
        if done == 0 {
            return read(&answer).map(Some);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOENT) => return Some(None),
            Some(libc::EOVERFLOW) if answer.len() < LONGEST => answer.resize(answer.len() * 4, 0),
            _ => return None,
        }
    }
}

fn read(answer: &[u8]) -> Option<Mount> {
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let mask = u64::from_ne_bytes(answer.get(MASK..MASK + 8)?.try_into().ok()?);
    let word = |at: usize| {
        let rest = answer.get(TEXT + number(at)? as usize..)?;
        Some(rest[..rest.iter().position(|byte| *byte == 0)?].to_vec())
    };
    if mask & NEEDED != NEEDED {
        return None;
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    Some(Mount {
        at: path(word(WORD_PLACE)?),
        root: path(word(WORD_ROOT)?),
        kind: text(word(WORD_KIND)?),
        source: if mask & SB_SOURCE == 0 { String::new() } else { text(word(WORD_SOURCE)?) },
        options: text(unescape(&word(WORD_OPTIONS)?)),
    })
}
