//! What is mounted where, in the kernel's words.
//!
//! The list of all mounts has three lines for every clone, and the kernel takes microseconds for each. So what is asked
//! about one clone is asked of the kernel for that clone alone ([`statmount`], Linux 6.11 or later); an older kernel's list
//! is read whole.

use super::statmount;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/thread-self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) at: PathBuf,
    /// What of the file system is shown there.
    pub(super) root: PathBuf,
    pub(super) kind: String,
    /// The device, the dataset, or a word. Empty where the kernel is asked about one mount and does not tell (Linux 6.12
    /// and earlier).
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
    Ok(parse(&std::fs::read("/proc/thread-self/mountinfo")?))
}

/// The mount that is seen on a folder, if there is one. The folder's path is a real one, without links.
pub(super) fn on(folder: &Path) -> io::Result<Option<Mount>> {
    match statmount::on(folder)? {
        Some(found) => Ok(found),
        None => Ok(at(&all()?, folder).cloned()),
    }
}

/// The mounts on a folder and below it, in the same order, of which those that others cover may be left out: they are
/// seen when those are gone. The folder's path is a real one, without links.
pub(super) fn on_and_below(folder: &Path) -> io::Result<Vec<Mount>> {
    if let Some(found) = statmount::on_and_below(folder)? {
        return Ok(found);
    }
    Ok(all()?.into_iter().filter(|mount| mount.at.starts_with(folder)).collect())
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let (root, at) = (path(fields.get(3)?), path(fields.get(4)?));
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let [kind, source, options] = fields.get(dash + 1..dash + 4)? else { return None };
    Some(Mount { at, root, kind: text(kind), source: text(source), options: text(options) })
}

/// Blanks, tabs, newlines and backslashes are written as three octal digits.
pub(super) fn unescape(field: &[u8]) -> Vec<u8> {
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

/// Do something where mounts are nobody else's, for tests.
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

    fn tmpfs(at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        mount(Some("a word"), at, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
    }

    /// What the kernel tells of one folder is what its list of all mounts tells of it.
    #[test]
    fn one_folder_is_asked_about_as_the_whole_list_tells() {
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
                    // Kernels before 6.13 do not tell of one; and the options' order and defaults are theirs.
                    mount.source.clear();
                    mount.options = mount.option("upperdir").unwrap_or_default().to_owned();
                }
                assert_eq!(found, expected, "{folder:?}");
                let seen = on(folder).unwrap().map(|mount| mount.at);
                assert_eq!(seen, at(&everything, folder).map(|mount| mount.at.clone()));
            }
            let over = on_and_below(&base.join("over")).unwrap();
            assert_eq!(over[0].option("upperdir"), plain.join("inside/up").to_str());
            // An empty folder holds nothing, and a file is none.
            std::fs::write(base.join("file"), "").unwrap();
            std::fs::create_dir(base.join("empty")).unwrap();
            for name in ["file", "empty"] {
                assert_eq!(on_and_below(&base.join(name)).unwrap(), []);
            }
            // Of two at one place the upper one is seen.
            tmpfs(&view);
            assert_eq!(on_and_below(&view).unwrap().len(), 1);
        });
    }

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
