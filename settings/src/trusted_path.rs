//! Whether only root or hostd's own user can change a file, a folder, or the way to it.
//!
//! The path is followed one part at a time, as the kernel does it, and every folder and symbolic link on the way is
//! checked: who can rename a folder on the way, or replace a link, decides what the path means. A folder that others can
//! write is accepted on the way if it is sticky (such as /tmp), because nobody can replace another user's files in it.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
const EXECUTABLE: u32 = 0o111;
/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

/// Why a path is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum UntrustedPath {
    /// Somebody else can change it.
    #[error("{} {what} (owner {owner}, mode {mode:04o}): {fix}", .path.display())]
    Writable {
        /// The file, or a folder or link on the way to it.
        path: PathBuf,
        /// Who can change it.
        what: String,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// What the administrator can do.
        fix: String,
    },
    /// It is something else.
    #[error("{} is not {wanted}", .path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What is needed.
        wanted: &'static str,
    },
    /// It cannot be inspected.
    #[error("{}: {error}", .path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl UntrustedPath {
    /// Whether the path does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, UntrustedPath::Unreadable { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    fn writable(path: &Path, seen: &Metadata, what: String, fix: &str) -> UntrustedPath {
        let fix = format!("{fix} {}", path.display());
        UntrustedPath::Writable {
            path: path.to_owned(),
            what,
            owner: seen.uid(),
            mode: seen.mode() & 0o7777,
            fix,
        }
    }
}

impl From<UntrustedPath> for io::Error {
    fn from(refused: UntrustedPath) -> io::Error {
        match refused {
            // With its number, by which a disk that fails is recognised.
            UntrustedPath::Unreadable { error, .. } => error,
            refused => io::Error::new(io::ErrorKind::PermissionDenied, refused),
        }
    }
}

/// Which folders on the way are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentRule {
    /// Only root and hostd's user can write to them.
    Strict,
    /// Their group can write to them too. Ubuntu's /var/log belongs to group syslog.
    GroupMayWrite,
}

impl ParentRule {
    /// The mode bits that make a folder untrusted.
    fn harmful(self) -> u32 {
        match self {
            ParentRule::Strict => WRITABLE_BY_OTHERS,
            ParentRule::GroupMayWrite => WRITABLE_BY_OTHERS & !WRITABLE_BY_GROUP,
        }
    }
}

/// Check an executable: a regular file that can be run, and that nobody else can change or replace. Returns its real path.
pub fn executable(path: &Path) -> Result<PathBuf, UntrustedPath> {
    let (path, seen) = follow(path, ParentRule::Strict)?;
    if !seen.is_file() || seen.mode() & EXECUTABLE == 0 {
        return Err(UntrustedPath::WrongKind { path, wanted: "an executable file" });
    }
    only_ours(&path, &seen)?;
    Ok(path)
}

/// Check a file: regular, and nobody else can change or replace it.
pub fn file(path: &Path) -> Result<(), UntrustedPath> {
    let (path, seen) = follow(path, ParentRule::Strict)?;
    if !seen.is_file() {
        return Err(UntrustedPath::WrongKind { path, wanted: "a regular file" });
    }
    only_ours(&path, &seen)
}

/// Check an open file by itself, for a file that is made in a trusted folder.
pub fn opened(path: &Path, seen: &Metadata) -> Result<(), UntrustedPath> {
    if !seen.is_file() {
        return Err(UntrustedPath::WrongKind { path: path.to_owned(), wanted: "a regular file" });
    }
    owner(path, seen)?;
    only_ours(path, seen)
}

/// Check a folder: nobody else can add, change or replace anything in it. If it does not exist yet, nobody else can make it.
pub fn folder(path: &Path, parents: ParentRule) -> Result<(), UntrustedPath> {
    match follow(path, parents) {
        Ok((path, seen)) if !seen.is_dir() => Err(UntrustedPath::WrongKind { path, wanted: "a folder" }),
        Ok((path, seen)) => only_ours(&path, &seen),
        // All folders on the way that exist are checked by now. In a sticky one, others could make the missing one first.
        Err(UntrustedPath::Unreadable { path: missing, error })
            if error.kind() == io::ErrorKind::NotFound =>
        {
            let parent = missing.parent().unwrap_or(Path::new("/"));
            let seen = metadata(parent)?;
            match seen.mode() & parents.harmful() {
                0 => Ok(()),
                _ => Err(writable_by_others(parent, &seen)),
            }
        }
        Err(error) => Err(error),
    }
}

/// Follow a path to what it names, and check everything on the way.
fn follow(path: &Path, parents: ParentRule) -> Result<(PathBuf, Metadata), UntrustedPath> {
    let unreadable = |path: &Path, error| UntrustedPath::Unreadable { path: path.to_owned(), error };
    let absolute = std::path::absolute(path).map_err(|error| unreadable(path, error))?;
    let mut rest = Vec::new();
    push_parts(&mut rest, &absolute);
    let mut here = PathBuf::from("/");
    let mut seen = metadata(&here)?;
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            here.pop();
            seen = metadata(&here)?;
            continue;
        }
        passable(&here, &seen, parents)?;
        let next = here.join(part);
        let found = metadata(&next)?;
        owner(&next, &found)?;
        if !found.is_symlink() {
            (here, seen) = (next, found);
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(unreadable(&next, io::Error::from_raw_os_error(nix::errno::Errno::ELOOP as i32)));
        }
        let target = next.read_link().map_err(|error| unreadable(&next, error))?;
        if target.is_absolute() {
            here = PathBuf::from("/");
            seen = metadata(&here)?;
        }
        push_parts(&mut rest, &target);
    }
    Ok((here, seen))
}

/// Put the parts of a path onto the stack, the first one on top.
fn push_parts(stack: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    stack.extend(parts);
}

fn metadata(path: &Path) -> Result<Metadata, UntrustedPath> {
    path.symlink_metadata().map_err(|error| UntrustedPath::Unreadable { path: path.to_owned(), error })
}

/// A folder on the way: nobody else can replace what is in it.
fn passable(path: &Path, seen: &Metadata, parents: ParentRule) -> Result<(), UntrustedPath> {
    if seen.mode() & STICKY == 0 && seen.mode() & parents.harmful() != 0 {
        return Err(writable_by_others(path, seen));
    }
    Ok(())
}

/// The file or folder itself.
fn only_ours(path: &Path, seen: &Metadata) -> Result<(), UntrustedPath> {
    if seen.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(writable_by_others(path, seen));
    }
    Ok(())
}

fn writable_by_others(path: &Path, seen: &Metadata) -> UntrustedPath {
    UntrustedPath::writable(path, seen, "can be written by others".to_owned(), "chmod go-w")
}

fn owner(path: &Path, seen: &Metadata) -> Result<(), UntrustedPath> {
    let uid = seen.uid();
    if uid == 0 || uid == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    Err(UntrustedPath::writable(path, seen, format!("belongs to user {uid}"), "chown root"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A private folder with a file in it.
    fn with_file() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().canonicalize().unwrap();
        let file = folder.join("tool");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        set_mode(&file, 0o755);
        (temporary, folder, file)
    }

    fn problem<T: std::fmt::Debug>(outcome: Result<T, UntrustedPath>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn only_what_others_cannot_change_is_trusted() {
        let (_temporary, folder, path) = with_file();
        set_mode(&path, 0o644);
        assert!(problem(executable(&path)).ends_with("is not an executable file"));
        file(&path).unwrap();
        for mode in [0o755, 0o700, 0o500] {
            set_mode(&path, mode);
            executable(&path).unwrap();
            file(&path).unwrap();
        }
        for mode in [0o775, 0o757, 0o777] {
            set_mode(&path, mode);
            for outcome in [executable(&path).map(drop), file(&path)] {
                let uid = nix::unistd::geteuid();
                let shown = path.display();
                let expected = format!(
                    "{shown} can be written by others (owner {uid}, mode {mode:04o}): chmod go-w {shown}"
                );
                assert_eq!(problem(outcome), expected);
            }
        }
        set_mode(&path, 0o755);
        for mode in [0o775, 0o757] {
            set_mode(&folder, mode);
            let said = problem(executable(&path));
            assert!(said.starts_with(&format!("{} can be written", folder.display())), "{said}");
        }
        set_mode(&folder, 0o1777);
        executable(&path).expect("in a sticky folder nobody else can replace it");
        set_mode(&folder, 0o700);

        assert!(problem(executable(&folder)).ends_with("is not an executable file"));
        assert!(problem(file(&folder)).ends_with("is not a regular file"));
        assert!(executable(&folder.join("none")).unwrap_err().is_missing());
    }

    #[test]
    fn nobody_else_may_add_to_a_trusted_folder() {
        let (_temporary, top, path) = with_file();
        let inner = top.join("inner");
        std::fs::create_dir(&inner).unwrap();
        for mode in [0o700, 0o711, 0o750, 0o755] {
            set_mode(&inner, mode);
            folder(&inner, ParentRule::Strict).unwrap();
        }
        for mode in [0o770, 0o707, 0o1777] {
            set_mode(&inner, mode);
            for parents in [ParentRule::Strict, ParentRule::GroupMayWrite] {
                let said = problem(folder(&inner, parents));
                assert!(said.contains("inner can be written by others"), "{mode:o}: {said}");
            }
        }
        set_mode(&inner, 0o755);
        set_mode(&top, 0o775);
        assert!(folder(&inner, ParentRule::Strict).is_err());
        folder(&inner, ParentRule::GroupMayWrite).unwrap();
        set_mode(&top, 0o757);
        assert!(folder(&inner, ParentRule::GroupMayWrite).is_err());
        set_mode(&top, 0o700);
        assert!(problem(folder(&path, ParentRule::Strict)).ends_with("is not a folder"));
    }

    #[test]
    fn a_missing_folder_is_trusted_if_nobody_else_can_make_it() {
        let (_temporary, top, _) = with_file();
        let missing = top.join("a/b/c");
        folder(&missing, ParentRule::Strict).unwrap();
        for mode in [0o777, 0o1777] {
            set_mode(&top, mode);
            let said = problem(folder(&missing, ParentRule::Strict));
            assert!(said.starts_with(&format!("{} can be written", top.display())), "{said}");
        }
        set_mode(&top, 0o775);
        assert!(folder(&missing, ParentRule::Strict).is_err());
        folder(&missing, ParentRule::GroupMayWrite).unwrap();
        set_mode(&top, 0o700);
    }

    #[test]
    fn links_are_followed_and_everything_on_the_way_is_checked() {
        let (_temporary, top, path) = with_file();
        for name in ["ours", "open"] {
            std::fs::create_dir(top.join(name)).unwrap();
        }
        symlink("../tool", top.join("ours/relative")).unwrap();
        symlink(&path, top.join("ours/absolute")).unwrap();
        symlink("ours", top.join("folder")).unwrap();
        symlink("round", top.join("round")).unwrap();
        for name in ["ours/relative", "ours/absolute", "folder/relative", "ours/../folder/absolute"] {
            assert_eq!(executable(&top.join(name)).unwrap(), path);
        }
        assert!(problem(file(&top.join("round"))).contains("symbolic links"));

        // The target is trusted, but others can replace the link.
        symlink(&path, top.join("open/link")).unwrap();
        set_mode(&top.join("open"), 0o777);
        let said = problem(executable(&top.join("open/link")));
        assert!(said.contains("open can be written by others"), "{said}");
        // The link is trusted, but others can replace the target.
        std::fs::copy(&path, top.join("open/tool")).unwrap();
        symlink("../open/tool", top.join("ours/out")).unwrap();
        assert!(executable(&top.join("ours/out")).is_err());
    }

    #[test]
    fn what_belongs_to_another_user_is_not_trusted() {
        let (_temporary, top, path) = with_file();
        let link = top.join("link");
        symlink(&path, &link).unwrap();
        if !nix::unistd::geteuid().is_root() {
            // An ordinary user cannot give a file away; its own files are trusted, which the other tests show.
            assert!(nix::unistd::chown(&path, Some(12345.into()), None).is_err());
            return;
        }
        std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        let said = problem(executable(&link));
        assert!(said.contains("link belongs to user 12345 (owner 12345, mode 0777): chown root"), "{said}");
        nix::unistd::chown(&path, Some(12345.into()), None).unwrap();
        assert!(problem(executable(&path)).contains("tool belongs to user 12345"));
        nix::unistd::chown(&path, Some(0.into()), None).unwrap();
        nix::unistd::chown(&top, Some(12345.into()), None).unwrap();
        assert!(problem(executable(&path)).contains("belongs to user 12345"));
        assert!(problem(folder(&top, ParentRule::Strict)).contains("belongs to user 12345"));
    }
}
