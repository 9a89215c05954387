//! Brings files that a client names into the sandbox: files for inputs of pages, and folders of extensions.
//!
//! Only a message of the client leads here, never one of the browser. The file is opened with the rights of the launcher's
//! user and copied into a folder that the browser sees read-only.
//!
//! A compromised browser can put links into the folders that it may write to. If the launcher followed one of them, a
//! client that uploads a download would give the browser any file of its user. So links are resolved one by one, and never
//! in such a folder; the browser sees these folders itself.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};

use crate::blueprint::{PROFILE, UPLOADS};

/// The largest file that is copied, and the most bytes of one browser.
const MAX_BYTES: u64 = 4 << 30;
const MAX_TOTAL: u64 = 16 << 30;
/// The most files of one browser.
const MAX_FILES: u32 = 10_000;
/// More levels than the folders of an extension have.
const MAX_DEPTH: usize = 32;
/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

#[derive(Debug)]
pub(crate) struct Uploads {
    /// The host's path of `UPLOADS`. Only the launcher's user can write to it.
    area: PathBuf,
    /// Folders that the browser may write to, at the same path inside.
    shared: Vec<PathBuf>,
    /// Folders and files that the browser may read, at the same path inside.
    readable: Vec<PathBuf>,
    profile: Option<PathBuf>,
    files: u32,
    bytes: u64,
}

impl Uploads {
    pub(crate) fn new(
        area: PathBuf,
        shared: Vec<PathBuf>,
        readable: Vec<PathBuf>,
        profile: Option<PathBuf>,
    ) -> Uploads {
        Uploads { area, shared, readable, profile, files: 0, bytes: 0 }
    }

    /// The path inside of a file or folder of the client.
    pub(crate) fn bring_in(&mut self, wanted: &Path) -> io::Result<PathBuf> {
        let real = match self.resolve(wanted)? {
            ResolvedFile::Inside(path) => return Ok(path),
            ResolvedFile::Outside(path) => path,
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let source = File::from(openat2(rustix::fs::CWD, &real, flags, Mode::empty(), resolve)?);
        let name = wanted.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let number = self.files.to_string();
        let folder = self.area.join(&number);
        self.count(0)?;
        make_folder(&folder)?;
        if let Err(error) = self.copy(source, &folder.join(name), MAX_DEPTH) {
            fs::remove_dir_all(&folder)?;
            return Err(error);
        }
        Ok(Path::new(UPLOADS).join(number).join(name))
    }

    /// Copies a regular file, or a folder with everything in it.
    fn copy(&mut self, source: File, target: &Path, levels: usize) -> io::Result<()> {
        let meta = source.metadata()?;
        if meta.is_dir() {
            return self.copy_folder(source, target, levels);
        }
        if !meta.is_file() {
            return Err(io::Error::other("it is not a regular file or folder"));
        }
        let size = meta.len();
        if size > MAX_BYTES {
            return Err(io::Error::other("it is larger than 4 GiB"));
        }
        self.count(size)?;
        let mut copy = File::options().write(true).create_new(true).mode(0o444).open(target)?;
        io::copy(&mut source.take(size), &mut copy)?;
        fs::set_permissions(target, fs::Permissions::from_mode(0o444))
    }

    /// Links in the folder are errors.
    fn copy_folder(&mut self, source: File, target: &Path, levels: usize) -> io::Result<()> {
        if levels == 0 {
            return Err(io::Error::other("its folders are nested too deep"));
        }
        self.count(0)?;
        make_folder(target)?;
        for entry in Dir::read_from(&source)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let flags =
                OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
            let opened = File::from(rustix::fs::openat(&source, name, flags, Mode::empty())?);
            self.copy(opened, &target.join(OsStr::from_bytes(name.to_bytes())), levels - 1)?;
        }
        Ok(())
    }

    /// Counts one more file or folder.
    fn count(&mut self, size: u64) -> io::Result<()> {
        if self.files >= MAX_FILES || self.bytes + size > MAX_TOTAL {
            return Err(io::Error::other("this browser has received 10000 files or 16 GiB; start a new one"));
        }
        self.files += 1;
        self.bytes += size;
        Ok(())
    }

    /// Follows the links in a path until it leads into a folder that the browser sees.
    fn resolve(&self, wanted: &Path) -> io::Result<ResolvedFile> {
        if !wanted.is_absolute() {
            return Err(io::Error::other("the path is relative"));
        }
        let mut real = PathBuf::from("/");
        let mut left: Vec<OsString> = parts(wanted);
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == ".." {
                real.pop();
                continue;
            }
            real.push(&part);
            if let Some(inside) = self.inside(&real) {
                left.reverse();
                return Ok(ResolvedFile::Inside(left.iter().fold(inside, |path, part| path.join(part))));
            }
            if real.symlink_metadata()?.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::other("too many links"));
                }
                let target = fs::read_link(&real)?;
                real.pop();
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                left.extend(parts(&target));
            }
        }
        Ok(ResolvedFile::Outside(real))
    }

    /// The path inside of a folder that the browser sees.
    fn inside(&self, real: &Path) -> Option<PathBuf> {
        if self.profile.as_deref() == Some(real) {
            return Some(PROFILE.into());
        }
        self.shared.iter().chain(&self.readable).any(|path| path == real).then(|| real.to_owned())
    }
}

/// A folder that everybody can read, whatever the launcher's umask is.
fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Where a file of a client's message is.
enum ResolvedFile {
    /// The browser sees the file at this path.
    Inside(PathBuf),
    /// A path of the host without links.
    Outside(PathBuf),
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Stage {
        base: tempfile::TempDir,
        uploads: Uploads,
    }

    impl Stage {
        fn new() -> Stage {
            let base = tempfile::tempdir().expect("folder");
            let real = base.path().canonicalize().expect("real");
            for name in ["area", "shared", "profile", "home"] {
                fs::create_dir(real.join(name)).expect("mkdir");
            }
            fs::write(real.join("home/secret"), "secret").expect("write");
            let uploads = Uploads::new(
                real.join("area"),
                vec![real.join("shared")],
                vec![real.join("readable")],
                Some(real.join("profile")),
            );
            Stage { base, uploads }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.base.path().canonicalize().expect("real").join(name)
        }

        fn bring_in(&mut self, name: &str) -> io::Result<PathBuf> {
            let path = self.path(name);
            self.uploads.bring_in(&path)
        }

        fn copies(&self) -> usize {
            fs::read_dir(self.path("area")).expect("list").count()
        }
    }

    #[test]
    fn a_file_is_copied_under_its_own_name() {
        let mut stage = Stage::new();
        fs::write(stage.path("home/a b.txt"), "one").expect("write");
        symlink(stage.path("home"), stage.path("link")).expect("link");
        assert_eq!(stage.bring_in("home/a b.txt").expect("copied"), Path::new(UPLOADS).join("0/a b.txt"));
        assert_eq!(
            stage.bring_in("link/../link/a b.txt").expect("link"),
            Path::new(UPLOADS).join("2/a b.txt")
        );
        assert_eq!(fs::read_to_string(stage.path("area/2/a b.txt")).expect("read"), "one");
        // What the browser sees already is not copied.
        assert_eq!(stage.bring_in("shared/x/y").expect("seen"), stage.path("shared/x/y"));
        assert_eq!(stage.bring_in("readable").expect("seen"), stage.path("readable"));
        assert_eq!(stage.bring_in("profile/x").expect("seen"), Path::new(PROFILE).join("x"));
        assert_eq!(stage.copies(), 2);
    }

    #[test]
    fn a_folder_is_copied_with_everything_in_it() {
        let mut stage = Stage::new();
        fs::create_dir_all(stage.path("extension/scripts")).expect("mkdir");
        fs::write(stage.path("extension/manifest.json"), "{}").expect("write");
        fs::write(stage.path("extension/scripts/a.js"), "1").expect("write");
        assert_eq!(stage.bring_in("extension").expect("copied"), Path::new(UPLOADS).join("0/extension"));
        assert_eq!(fs::read_to_string(stage.path("area/0/extension/scripts/a.js")).expect("read"), "1");
        assert_eq!(fs::read_to_string(stage.path("area/0/extension/manifest.json")).expect("read"), "{}");
    }

    #[test]
    fn a_link_that_the_browser_planted_is_not_followed() {
        let mut stage = Stage::new();
        symlink(stage.path("home/secret"), stage.path("shared/report")).expect("link");
        symlink(stage.path("home"), stage.path("shared/folder")).expect("link");
        symlink(stage.path("shared"), stage.path("downloads")).expect("the user's own link");
        for name in ["shared/report", "downloads/report", "downloads/folder/secret", "shared/folder/secret"] {
            let inside = stage.bring_in(name).expect("left to the browser");
            assert!(inside.starts_with(stage.path("shared")), "{}", inside.display());
        }
        assert_eq!(stage.copies(), 0);
    }

    #[test]
    fn only_readable_regular_files_of_a_limited_size_are_copied() {
        let mut stage = Stage::new();
        nix::unistd::mkfifo(&stage.path("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("fifo");
        symlink(stage.path("loop"), stage.path("loop")).expect("link");
        File::create(stage.path("huge")).expect("file").set_len(MAX_BYTES + 1).expect("sparse");
        fs::create_dir(stage.path("tree")).expect("mkdir");
        symlink(stage.path("home"), stage.path("tree/link")).expect("link");
        for name in ["absent", "fifo", "tree", "loop", "huge"] {
            assert!(stage.bring_in(name).is_err(), "{name}");
        }
        assert!(stage.uploads.bring_in(Path::new("relative")).is_err());
        assert!(stage.uploads.bring_in(Path::new("/dev/null")).is_err());
        stage.uploads.bytes = MAX_TOTAL;
        assert!(stage.bring_in("home/secret").is_err(), "too much altogether");
        assert_eq!(stage.copies(), 0);
    }
}
