//! `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub at: PathBuf,
    /// The directory of the file system that is mounted there.
    pub root: PathBuf,
    /// The options of the mount itself, such as `ro,nosuid`.
    pub flags: String,
    /// The type of the file system.
    pub kind: String,
    /// The device, the dataset, or any name.
    pub source: String,
    /// The options of the file system, such as `lowerdir=…`.
    pub options: String,
}

impl Mount {
    /// The value of an option of the file system.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether the mount itself has this option.
    pub fn has_flag(&self, name: &str) -> bool {
        self.flags.split(',').any(|flag| flag == name)
    }
}

/// All mounts that the calling thread sees, in the order in which they were made: a later mount shadows an earlier one
/// at the same mount point.
pub fn read() -> io::Result<Vec<Mount>> {
    read_from(Path::new("/proc/thread-self/mountinfo"))
}

/// The mounts in this file of procfs.
pub fn read_from(file: &Path) -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read(file)?))
}

/// The mounts of a text in the format of mountinfo. Lines that are not in that format are skipped.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let (root, at, flags) = (path(fields.get(3)?), path(fields.get(4)?), text(fields.get(5)?));
    let [kind, source, options] = fields.get(dash + 1..dash + 4)? else { return None };
    Some(Mount { at, root, flags, kind: text(kind), source: text(source), options: text(options) })
}

/// Blanks, tabs, newlines and backslashes are written as a backslash and three octal digits.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    // Hardly any field has one.
    if !field.contains(&b'\\') {
        return field.to_vec();
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|digits| *first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match octal {
            Some(digits) => {
                let value =
                    digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0'));
                bytes.push(value);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        41 27 0:40 /sub /srv/a\\040b ro,nosuid shared:7 master:2 - tmpfs a\\011word rw,size=4k\n\
        42 41 0:41 / /srv/a\\040b/c rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
        not a mount\n";

    #[test]
    fn lines_are_parsed_with_their_escapes() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 3, "a line in another format is skipped");
        assert_eq!(
            (mounts[1].at.as_path(), mounts[1].root.as_path()),
            (Path::new("/srv/a b"), Path::new("/sub"))
        );
        assert_eq!((mounts[1].kind.as_str(), mounts[1].source.as_str()), ("tmpfs", "a\tword"));
        assert!(mounts[1].has_flag("ro") && !mounts[1].has_flag("no"));
        assert_eq!(mounts[2].option("upperdir"), Some("/u"));
        assert_eq!(mounts[2].option("upper"), None, "the beginning of a name is another name");
    }

    #[test]
    fn the_root_of_this_process_is_mounted() {
        assert!(read().unwrap().iter().any(|mount| mount.at == Path::new("/")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            prop_assert!(unescape(&bytes).len() <= bytes.len());
        }
    }
}
