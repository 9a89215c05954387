//! What is mounted where, in the kernel's words.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) at: PathBuf,
    pub(super) kind: String,
    /// The device, the dataset, or a word.
    pub(super) source: String,
    /// The options of the file system itself, such as `lowerdir=…`.
    pub(super) options: String,
}

impl Mount {
    /// The value of an option of the file system.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// All mounts, in the order of their making: a later one on the same place covers an earlier one.
pub(super) fn all() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let at = PathBuf::from(OsString::from_vec(unescape(fields.get(4)?)));
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let [kind, source, options] = fields.get(dash + 1..dash + 4)? else { return None };
    Some(Mount { at, kind: text(kind), source: text(source), options: text(options) })
}

/// Blanks, tabs, newlines and backslashes are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(digits) => {
                bytes.push(
                    digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

/// The mounts strictly below a folder, deepest and latest first.
pub(super) fn below<'a>(mounts: &'a [Mount], folder: &Path) -> Vec<&'a Mount> {
    let mut found: Vec<&Mount> =
        mounts.iter().rev().filter(|mount| mount.at.starts_with(folder) && mount.at != folder).collect();
    found.sort_by_key(|mount| std::cmp::Reverse(mount.at.components().count()));
    found
}

/// The mount that a path is on.
pub(super) fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // Of several at one place the last is seen, which is the last of equals here.
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.at))
        .max_by_key(|mount| mount.at.components().count())
}

/// The mount that is seen at this very place.
pub(super) fn at<'a>(mounts: &'a [Mount], place: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.at == place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: &[u8] = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        41 27 0:40 / /srv/a\\040b rw,nosuid shared:7 - tmpfs t rw,size=4k\n\
        42 41 0:41 / /srv/a\\040b/c rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
        43 41 0:41 / /srv/a\\040b/c/d rw - tmpfs t rw\n";

    #[test]
    fn lines_of_the_kernel_are_read_with_their_escapes() {
        let mounts = parse(SEEN);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[1].at, PathBuf::from("/srv/a b"));
        assert_eq!((mounts[1].kind.as_str(), mounts[1].source.as_str()), ("tmpfs", "t"));
        assert_eq!(mounts[2].option("upperdir"), Some("/u"));
        assert_eq!(mounts[2].option("upper"), None);
    }

    #[test]
    fn below_is_deepest_first_and_never_the_folder_itself() {
        let mounts = parse(SEEN);
        let names: Vec<_> = below(&mounts, Path::new("/srv/a b")).iter().map(|m| m.at.clone()).collect();
        assert_eq!(names, [PathBuf::from("/srv/a b/c/d"), PathBuf::from("/srv/a b/c")]);
        assert!(below(&mounts, Path::new("/srv/a")).is_empty(), "a name's beginning is no parent");
        assert_eq!(at(&mounts, Path::new("/srv/a b/c")).map(|m| m.kind.as_str()), Some("overlay"));
    }
}
