//! Checks the folders of the host that a browser may write to, and changes their owner.
//!
//! Clients choose folders on the command line (`--user-data-dir`). Such a folder becomes writable for a program that
//! shows untrusted pages, so mistakes like `--user-data-dir=$HOME` are refused.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use kernel::user_ids;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat};
use nix::unistd::{Gid, Uid, fchown, fchownat};

/// The purpose of a folder; it determines what the folder may already contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A browser profile: new, empty, or used by a browser before.
    Profile,
    /// A folder for files that the user configured.
    Files,
}

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{path} cannot be given to the browser: {problem}")]
    Refused { path: PathBuf, problem: String },
    #[error("cannot prepare {path}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is in use by another confined browser; give each its own")]
    InUse { path: PathBuf },
}

/// Folders of the system. Neither they nor anything below them becomes writable.
const SYSTEM: &[&str] = &[
    "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/dev", "/proc", "/sys",
];
/// Folders that contain folders of several users. They are refused, but a folder below may be allowed.
const SHARED: &[&str] = &[
    "/",
    "/home",
    "/root",
    "/tmp",
    "/var",
    "/var/tmp",
    "/var/lib",
    "/run",
    "/run/user",
    "/opt",
    "/srv",
    "/mnt",
    "/media",
];
/// Folders in a home that contain secrets. Neither they nor anything below them becomes writable.
const SECRET: &[&str] = &[
    ".ssh",
    ".aws",
    ".gnupg",
    ".kube",
    ".docker",
    ".azure",
    ".password-store",
    ".config/gcloud",
    ".local/share/keyrings",
    ".mozilla",
];
/// Folders in a home that are refused, although a folder below may be allowed.
const HOME_SHARED: &[&str] = &["", ".config", ".local", ".local/share", ".cache"];
/// Files of a browser profile; one of them identifies it.
const PROFILE_MARKS: &[&str] =
    &["Local State", "Default", "First Run", "Preferences", "DevToolsActivePort", "Last Version"];

/// Files that clients write into a new profile before they start the browser (chrome-launcher, Lighthouse).
const CLIENT_FILES: &[&str] = &["chrome.pid", "chrome-out.log", "chrome-err.log"];

/// Checks a folder and creates it if needed. Returns its resolved path.
pub(crate) fn prepare(path: &Path, purpose: Purpose) -> Result<PathBuf, FolderError> {
    let refused = |problem: String| FolderError::Refused { path: path.to_owned(), problem };
    let io = |source| FolderError::Io { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(io)?;
    // Links in the existing part are resolved before the checks, so that nothing is created outside the checked path.
    let existing =
        absolute.ancestors().find(|part| part.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    let missing = absolute.strip_prefix(existing).expect("an ancestor is a prefix");
    if missing.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return Err(refused("it contains `..`".into()));
    }
    let real = match missing.as_os_str().is_empty() {
        true => existing.canonicalize().map_err(io)?,
        false => existing.canonicalize().map_err(io)?.join(missing),
    };
    if real.to_str().is_none() {
        return Err(refused("its name is not valid UTF-8".into()));
    }
    refuse_by_location(&real).map_err(refused)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&real).map_err(io)?;
    let meta = real.symlink_metadata().map_err(io)?;
    if !meta.is_dir() {
        return Err(refused("it is not a folder".into()));
    }
    let own = nix::unistd::geteuid();
    if meta.uid() != own.as_raw() && !(own.is_root() && is_private_uid(meta.uid())) {
        return Err(refused(format!("it belongs to another user (uid {})", meta.uid())));
    }
    if purpose == Purpose::Profile {
        let mut others = false;
        for entry in fs::read_dir(&real).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            others |= !CLIENT_FILES.iter().any(|file| name == *file);
        }
        let used_by_a_browser =
            || PROFILE_MARKS.iter().any(|mark| real.join(mark).symlink_metadata().is_ok());
        if others && !used_by_a_browser() {
            return Err(refused(
                "it contains files, but none of a browser profile; use an empty or a new folder".into(),
            ));
        }
    }
    Ok(real)
}

fn refuse_by_location(real: &Path) -> Result<(), String> {
    if let Some(system) = SYSTEM.iter().find(|system| real.starts_with(system)) {
        return Err(format!("it is in {system}, which belongs to the system"));
    }
    if SHARED.iter().any(|shared| real == Path::new(shared)) {
        return Err("it holds the folders of others; use a folder below it".into());
    }
    for home in homes() {
        if home.starts_with(real) || HOME_SHARED.iter().any(|part| real == home.join(part)) {
            return Err("it is or contains a home folder; use a separate folder for the browser".into());
        }
        if let Some(secret) = SECRET.iter().find(|part| real.starts_with(home.join(part))) {
            return Err(format!("it is in ~/{secret}, which holds secrets"));
        }
    }
    Ok(())
}

/// The home folders of the environment and of the user database, which may differ.
fn homes() -> Vec<PathBuf> {
    let named = std::env::var_os("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute() && home != Path::new("/"));
    let database = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.dir);
    let database = database.filter(|home| home.is_absolute() && home != Path::new("/"));
    let canonical = |home: PathBuf| home.canonicalize().unwrap_or(home);
    named.into_iter().chain(database).map(canonical).collect()
}

/// Whether a user without groups can follow a path to its last part.
pub(crate) fn can_reach(path: &Path, uid: u32) -> bool {
    path.ancestors().skip(1).all(|folder| {
        folder.metadata().is_ok_and(|meta| {
            let bits = if meta.uid() == uid { meta.mode() >> 6 } else { meta.mode() };
            bits & 0o1 != 0
        })
    })
}

pub(crate) fn is_private_uid(uid: u32) -> bool {
    user_ids::is_launchers(uid)
}

/// A uid that no other confined browser on this machine uses while this value exists.
#[derive(Debug)]
pub(crate) struct PrivateUid {
    pub(crate) uid: u32,
    _lock: Flock<fs::File>,
}

impl PrivateUid {
    /// Root only. The kernel releases the lock when the process ends.
    pub(crate) fn take() -> Result<PrivateUid, FolderError> {
        Self::take_in(Path::new("/run/browser-launcher"))
    }

    fn take_in(folder: &Path) -> Result<PrivateUid, FolderError> {
        let io = |source| FolderError::Io { path: folder.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io)?;
        let claims = user_ids::local_claims(&user_ids::LAUNCHER).map_err(io)?;
        for uid in user_ids::LAUNCHER.filter(|uid| !claims.iter().any(|claim| claim.ids.contains(uid))) {
            let file = fs::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(folder.join(format!("uid-{uid}")))
                .map_err(io)?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(PrivateUid { uid, _lock: lock }),
                Err((_, Errno::EWOULDBLOCK)) => {}
                Err((_, errno)) => return Err(io(errno.into())),
            }
        }
        Err(FolderError::Refused {
            path: folder.to_owned(),
            problem: format!("all {} private uids are in use", user_ids::LAUNCHER.count()),
        })
    }
}

/// Locks a folder against other confined browsers while the returned value exists. Chromium's own profile lock contains
/// a host name and a process id, which have no meaning across sandboxes.
pub(crate) fn lock(path: &Path) -> Result<Flock<OwnedFd>, FolderError> {
    let io = |errno: Errno| FolderError::Io { path: path.to_owned(), source: errno.into() };
    // The path is resolved, so a link in it was put there afterwards by another user.
    let resolve = rustix::fs::ResolveFlags::NO_SYMLINKS | rustix::fs::ResolveFlags::NO_MAGICLINKS;
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let folder = rustix::fs::openat2(rustix::fs::CWD, path, flags, rustix::fs::Mode::empty(), resolve)
        .map_err(|errno| FolderError::Io { path: path.to_owned(), source: errno.into() })?;
    Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => FolderError::InUse { path: path.to_owned() },
        errno => io(errno),
    })
}

/// A profile has about ten levels of folders. A browser that nests them deeper does so to exhaust the launcher's stack.
const MAX_DEPTH: usize = 100;

/// Changes the owner of a locked folder and its content to the private uid of a browser. Links below the folder are not
/// followed. A file of another user or with a second hard link is an error.
pub(crate) fn change_owner(folder: &Flock<OwnedFd>, path: &Path, uid: u32) -> Result<(), FolderError> {
    let stat = fstat(folder.as_fd()).map_err(in_path(path))?;
    refuse_foreign(&stat, path)?;
    change_owner_below(folder.as_fd(), path, uid, MAX_DEPTH)
}

fn in_path(path: &Path) -> impl Fn(Errno) -> FolderError {
    move |errno| FolderError::Io { path: path.to_owned(), source: errno.into() }
}

/// Changes the owner of a folder and of everything in it.
///
/// A browser that has not quite ended yet may replace entries. It could make a hard link to a file of root and remove it
/// again after the file was opened here and before its links are counted. So each folder belongs to root alone while its
/// entries are handled: nobody else can add or remove a link in it.
fn change_owner_below(
    folder: BorrowedFd<'_>,
    path: &Path,
    uid: u32,
    levels: usize,
) -> Result<(), FolderError> {
    let io = in_path(path);
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let closed = openat(folder, c".", flags, Mode::empty()).map_err(&io)?;
    let mode = Mode::from_bits_truncate(fstat(&closed).map_err(&io)?.st_mode & 0o7777);
    fchown(&closed, Some(Uid::from_raw(0)), Some(Gid::from_raw(0))).map_err(&io)?;
    fchmod(&closed, Mode::S_IRWXU).map_err(&io)?;
    let mut entries = Dir::openat(&closed, c".", flags, Mode::empty()).map_err(&io)?;
    let (user, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
    for entry in entries.iter() {
        let entry = entry.map_err(&io)?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let shown = path.join(name.to_string_lossy().as_ref());
        let entry = kernel::untrusted::open_entry(closed.as_fd(), name)
            .map_err(|source| FolderError::Io { path: shown.clone(), source })?;
        let io = in_path(&shown);
        let stat = fstat(&entry).map_err(&io)?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFREG && stat.st_nlink > 1 {
            let problem = "it has a second hard link".into();
            return Err(FolderError::Refused { path: shown.clone(), problem });
        }
        refuse_foreign(&stat, &shown)?;
        if kind == SFlag::S_IFDIR {
            if levels == 0 {
                let problem = format!("its folders are nested more than {MAX_DEPTH} levels deep");
                return Err(FolderError::Refused { path: path.to_owned(), problem });
            }
            change_owner_below(entry.as_fd(), &shown, uid, levels - 1)?;
        } else if stat.st_uid != uid {
            fchownat(&entry, c"", user, group, AtFlags::AT_EMPTY_PATH).map_err(&io)?;
        }
    }
    fchmod(&closed, mode).map_err(&io)?;
    fchown(&closed, user, group).map_err(&io)
}

fn refuse_foreign(stat: &nix::sys::stat::FileStat, path: &Path) -> Result<(), FolderError> {
    if stat.st_uid == 0 || is_private_uid(stat.st_uid) {
        return Ok(());
    }
    let problem = format!("it belongs to uid {}", stat.st_uid);
    Err(FolderError::Refused { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn problem(path: impl AsRef<Path>, purpose: Purpose) -> String {
        prepare(path.as_ref(), purpose).expect_err("refused").to_string()
    }

    #[test]
    fn folders_of_the_system_and_of_others_are_refused() {
        for path in [
            "/",
            "/etc/x",
            "/usr/share/x",
            "/proc/self",
            "/tmp",
            "/var/tmp",
            "/home",
            "/tmp/../etc/x",
            "/dev/shm/x",
        ] {
            assert!(problem(path, Purpose::Profile).contains("cannot be given"), "{path}");
        }
        for home in homes() {
            assert!(problem(&home, Purpose::Files).contains("cannot be given"));
            assert!(problem(home.join(".ssh"), Purpose::Files).contains("secrets"));
            assert!(problem(home.join(".aws/x/y"), Purpose::Profile).contains("secrets"));
        }
    }

    #[test]
    fn a_new_folder_and_a_used_profile_are_accepted() {
        let base = tempfile::tempdir().expect("folder");
        let fresh = prepare(&base.path().join("a/b"), Purpose::Profile).expect("new");
        assert_eq!(fresh.metadata().expect("meta").mode() & 0o777, 0o700);
        fs::create_dir(fresh.join("Default")).expect("mkdir");
        fs::write(fresh.join("other"), "x").expect("write");
        assert_eq!(prepare(&fresh, Purpose::Profile).expect("used"), fresh);
    }

    #[test]
    fn a_folder_with_other_files_is_not_a_profile() {
        let base = tempfile::tempdir().expect("folder");
        fs::write(base.path().join("thesis.txt"), "x").expect("write");
        assert!(problem(base.path(), Purpose::Profile).contains("none of a browser profile"));
        assert!(prepare(base.path(), Purpose::Files).is_ok());
    }

    #[test]
    fn a_folder_with_only_the_files_of_a_client_is_a_new_profile() {
        let base = tempfile::tempdir().expect("folder");
        for name in CLIENT_FILES {
            fs::write(base.path().join(name), "").expect("write");
        }
        assert!(prepare(base.path(), Purpose::Profile).is_ok());
        fs::write(base.path().join("thesis.txt"), "x").expect("write");
        assert!(problem(base.path(), Purpose::Profile).contains("none of a browser profile"));
    }

    #[test]
    fn links_are_checked_by_their_target() {
        let base = tempfile::tempdir().expect("folder");
        std::os::unix::fs::symlink("/etc", base.path().join("link")).expect("link");
        assert!(problem(base.path().join("link"), Purpose::Files).contains("belongs to the system"));
        assert!(problem(base.path().join("link/new"), Purpose::Files).contains("belongs to the system"));
        std::os::unix::fs::symlink("/nowhere/at/all", base.path().join("dangling")).expect("link");
        assert!(prepare(&base.path().join("dangling"), Purpose::Files).is_err());
    }

    #[test]
    fn a_folder_below_a_closed_one_cannot_be_reached() {
        let base = tempfile::tempdir().expect("folder");
        let inner = base.path().join("a/b");
        fs::create_dir_all(&inner).expect("mkdir");
        let own = base.path().metadata().expect("meta").uid();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
        assert!(can_reach(&inner, own));
        assert!(!can_reach(&inner, own + 1));
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o711)).expect("chmod");
        assert!(can_reach(&inner, own + 1));
    }

    #[test]
    fn two_browsers_never_share_a_private_uid() {
        let base = tempfile::tempdir().expect("folder");
        let first = PrivateUid::take_in(base.path()).expect("first");
        let second = PrivateUid::take_in(base.path()).expect("second");
        assert_ne!(first.uid, second.uid);
        let freed = first.uid;
        drop(first);
        assert_eq!(PrivateUid::take_in(base.path()).expect("again").uid, freed);
    }

    /// Changing owners needs root; the launcher does it only as root.
    #[test]
    fn change_owner_does_not_follow_links_and_refuses_hard_links() {
        if !nix::unistd::geteuid().is_root() {
            return assert!(PrivateUid::take().is_err(), "only root has private uids");
        }
        let base = tempfile::tempdir().expect("folder");
        let uid = *user_ids::LAUNCHER.start();
        fs::create_dir(base.path().join("sub")).expect("mkdir");
        fs::write(base.path().join("sub/file"), "x").expect("write");
        std::os::unix::fs::symlink("/etc/hostname", base.path().join("link")).expect("link");
        let before = fs::metadata("/etc/hostname").expect("meta").uid();
        let held = lock(base.path()).expect("locked");
        change_owner(&held, base.path(), uid).expect("given");
        assert_eq!(base.path().join("sub/file").metadata().expect("meta").uid(), uid);
        assert_eq!(base.path().metadata().expect("meta").uid(), uid);
        assert_eq!(fs::metadata("/etc/hostname").expect("meta").uid(), before, "the link was not followed");
        assert!(matches!(lock(base.path()), Err(FolderError::InUse { .. })));
        fs::hard_link(base.path().join("sub/file"), base.path().join("second")).expect("link");
        assert!(
            change_owner(&held, base.path(), uid)
                .expect_err("hard link")
                .to_string()
                .contains("second hard link")
        );
    }
    #[test]
    fn a_link_in_the_path_is_not_followed() {
        let base = tempfile::tempdir().expect("folder");
        let real = base.path().canonicalize().expect("real");
        fs::create_dir_all(real.join("victim/inner")).expect("mkdir");
        std::os::unix::fs::symlink(real.join("victim"), real.join("link")).expect("link");
        assert!(lock(&real.join("victim/inner")).is_ok());
        assert!(matches!(lock(&real.join("link/inner")), Err(FolderError::Io { .. })));
        assert!(matches!(lock(&real.join("link")), Err(FolderError::Io { .. })));
    }

    #[test]
    fn change_owner_refuses_folders_that_are_nested_too_deep() {
        if !nix::unistd::geteuid().is_root() {
            return assert!(PrivateUid::take().is_err(), "only root has private uids");
        }
        let base = tempfile::tempdir().expect("folder");
        let mut deep = base.path().to_owned();
        deep.extend(std::iter::repeat_n("d", MAX_DEPTH));
        fs::create_dir_all(&deep).expect("mkdir");
        let held = lock(&base.path().canonicalize().expect("real")).expect("locked");
        let uid = *user_ids::LAUNCHER.start();
        change_owner(&held, base.path(), uid).expect("the limit is allowed");
        fs::create_dir(deep.join("d")).expect("mkdir");
        let error = change_owner(&held, base.path(), uid).expect_err("too deep").to_string();
        assert!(error.contains("nested more than"), "{error}");
    }
    /// A process of an earlier browser swaps entries for links while the owner is changed.
    #[test]
    fn change_owner_is_not_deceived_by_swapped_entries() {
        if !nix::unistd::geteuid().is_root() {
            return assert!(PrivateUid::take().is_err(), "only root has private uids");
        }
        let base = tempfile::tempdir().expect("folder");
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let (profile, victim) = (base.path().join("profile"), base.path().join("victim"));
        fs::create_dir(&profile).expect("mkdir");
        fs::create_dir(&victim).expect("mkdir");
        // Everybody may link to a file that they can write, also where hard links are protected.
        fs::write(victim.join("file"), "x").expect("write");
        fs::set_permissions(victim.join("file"), fs::Permissions::from_mode(0o666)).expect("mode");
        let held = lock(&profile).expect("locked");
        let (uid, old) = (*user_ids::LAUNCHER.start(), *user_ids::LAUNCHER.start() + 1);
        let ended = std::sync::atomic::AtomicBool::new(false);
        let swaps = std::sync::atomic::AtomicUsize::new(0);
        let order = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The browser that has not quite ended: this thread accesses files as its user, without root's rights.
                nix::unistd::setfsuid(Uid::from_raw(old));
                let (entry, away) = (profile.join("entry"), profile.join("away"));
                while !ended.load(order) {
                    // Each call fails if the entry of the round before is in the way, or while the folder is root's; only
                    // the swapping matters.
                    let _ = fs::write(&entry, "own");
                    let _ = fs::rename(&entry, &away);
                    let linked = fs::hard_link(victim.join("file"), &entry).is_ok();
                    let _ = fs::remove_file(&entry);
                    let _ = fs::create_dir(&entry);
                    let _ = fs::remove_dir(&entry);
                    let _ = std::os::unix::fs::symlink(&victim, &entry);
                    let _ = fs::remove_file(&entry);
                    let _ = fs::remove_file(&away);
                    swaps.fetch_add(usize::from(linked), order);
                }
            });
            let mut rounds = 0;
            while rounds < 2000 || swaps.load(order) < 200 {
                fchown(&*held, Some(Uid::from_raw(old)), Some(Gid::from_raw(old))).expect("the old owner");
                std::thread::yield_now();
                // An entry that disappears or has a second link is an error. What counts is the victim.
                let _ = change_owner(&held, &profile, uid);
                rounds += 1;
            }
            ended.store(true, order);
        });
        for path in [victim.clone(), victim.join("file")] {
            assert_eq!(path.metadata().expect("meta").uid(), 0, "{}", path.display());
        }
    }
}
