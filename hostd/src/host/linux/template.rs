//! Templates of the overlay: what clones are made from.
//!
//! ```text
//! TEMPLATES/browser/default/template.toml    which browser; its presence shows that the template is finished
//! TEMPLATES/browser/default/files/           the lower layer of every clone
//! ```
//!
//! A template is made under a temporary name and renamed when it is complete, so a template under its final name is
//! quiescent. It is never written again: a change is a new snapshot. The browser's programs are those of the system,
//! mounted read-only; the template records which browser.
//!
//! The operator's commands work on the host directly, beside a running daemon. A lock (`flock(2)` on `.lock` in the
//! template's folder) orders them. A create holds it shared, from opening the template until the clone is labelled and
//! mounted. A command holds it exclusively while it renames a template into place or out of it. So a template cannot be
//! removed while it is being cloned, and the clones made from it are found by their labels and mounts. Both hold the lock
//! for a moment only; slow work is done before or after.

use super::errors::{failed, refused};
use super::{files, mounts, overlay};
use crate::api::SnapshotName;
use crate::host::{HostError, HostErrorKind, HostResult};
use launcher::chromium::{Chromium, Flavor};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for the lock, and the pause between two attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(2);

const MANIFEST: &str = "template.toml";
const FILES: &str = "files";
/// The folders of every clone: the browser's profile, its downloads, and the files that callers ask it to save.
pub(super) const PROFILE: &str = "profile";
pub(super) const DOWNLOADS: &str = "downloads";
pub(super) const MEDIA: &str = "media";

/// Names of files with credentials. Every clone would have the identity of their owner.
const CREDENTIALS: &[&str] = &[
    "Cookies",
    "Extension Cookies",
    "Login Data",
    "Login Data For Account",
    "Web Data",
    "Account Web Data",
    "Trusted Vault",
    ".ssh",
    ".aws",
    ".gnupg",
    ".kube",
    ".docker",
    ".azure",
    ".netrc",
    ".git-credentials",
    ".pgpass",
    "id_rsa",
    "id_ed25519",
];

/// The content of `template.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// The browser's executable.
    browser: PathBuf,
    /// Its version when the template was made.
    version: String,
}

/// A template that can be cloned.
#[derive(Debug, Clone)]
pub(super) struct Template {
    folder: PathBuf,
    manifest: Manifest,
}

impl Template {
    /// Verify that this template can be cloned: it exists, is finished, only root can change it, and it has no credentials.
    pub(super) fn open(templates: &Path, name: &str, snapshot: &SnapshotName) -> HostResult<Template> {
        let folder = templates.join(name).join(snapshot.as_str());
        let shown = folder.display().to_string();
        let wrong = |why: String| {
            let hint = format!("make it again: hostctl template create --snapshot {snapshot}");
            HostError::new(HostErrorKind::Template, &shown, why, hint)
        };
        let folder =
            folder.canonicalize().map_err(|error| wrong(format!("there is no such template: {error}")))?;
        let manifest = std::fs::read_to_string(folder.join(MANIFEST))
            .map_err(|error| wrong(format!("{MANIFEST} cannot be read: {error}")))?;
        let manifest: Manifest =
            toml::from_str(&manifest).map_err(|error| wrong(format!("{MANIFEST}: {error}")))?;
        for path in [&folder, &folder.join(MANIFEST), &folder.join(FILES)] {
            let meta =
                path.symlink_metadata().map_err(|error| wrong(format!("{}: {error}", path.display())))?;
            if meta.uid() != nix::unistd::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
                return Err(wrong(format!("{} can be changed by other users", path.display())));
            }
        }
        if let Err(error) = std::fs::metadata(&manifest.browser) {
            return Err(wrong(format!("its browser {} does not exist: {error}", manifest.browser.display())));
        }
        let template = Template { folder, manifest };
        refuse_credentials(&template.files())
            .map_err(|error| wrong(format!("its files cannot be read: {error}")))?
            .map_or(Ok(()), |path| {
                Err(wrong(format!("{} is a credential; clones must have none", path.display())))
            })?;
        Ok(template)
    }

    /// The lower layer of the clones.
    pub(super) fn files(&self) -> PathBuf {
        self.folder.join(FILES)
    }

    /// The browser's executable.
    pub(super) fn browser(&self) -> &Path {
        &self.manifest.browser
    }

    /// The browser's version when the template was made.
    pub(super) fn version(&self) -> &str {
        &self.manifest.version
    }
}

/// A text that changes whenever the template changes. Its files are not read: a template is never written again, so it
/// changes only by being made again, and its browser by being installed again.
pub(super) fn version(templates: &Path, name: &str, snapshot: &SnapshotName) -> HostResult<String> {
    let path = templates.join(name).join(snapshot.as_str()).join(MANIFEST);
    let read = || -> io::Result<String> {
        let manifest: Manifest =
            toml::from_str(&std::fs::read_to_string(&path)?).map_err(io::Error::other)?;
        let state = |path: &Path| {
            let meta = std::fs::metadata(path)?;
            io::Result::Ok(format!("{}:{}:{}.{}", meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
        };
        Ok(format!("{} {} {}", manifest.version, state(&path)?, state(&manifest.browser)?))
    };
    read().map_err(|error| {
        let hint = format!("make it again: hostctl template create --snapshot {snapshot}");
        HostError::new(
            HostErrorKind::Template,
            path.display().to_string(),
            format!("the template cannot be read: {error}"),
            hint,
        )
    })
}

/// Make a template of this system's browser. An existing template is an error: templates do not change.
pub fn create(
    templates: &Path,
    name: &str,
    snapshot: &SnapshotName,
    browser: Option<&Path>,
) -> HostResult<String> {
    let parent = templates.join(name);
    let folder = parent.join(snapshot.as_str());
    let shown = folder.display().to_string();
    let absent = || match folder.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) => {
            let why = "it exists; use another snapshot name";
            Err(refused(&shown, "make the template", HostErrorKind::Template, why))
        }
    };
    absent()?;
    let (browser, version) = system_browser(browser)?;
    let io = |error: io::Error| {
        failed(&shown, "the template cannot be made", error, "check the folder's file system")
    };
    let unfinished = parent.join(format!(".{snapshot}.{}", std::process::id()));
    files::make_folders(&unfinished.join(FILES), 0o755).map_err(io)?;
    fill(&unfinished.join(FILES)).map_err(io)?;
    let manifest = Manifest { browser, version: version.clone() };
    let text = toml::to_string(&manifest).map_err(|error| io(io::Error::other(error)))?;
    files::write_atomically(&unfinished.join(MANIFEST), text.as_bytes()).map_err(io)?;
    let named = lock(&parent).and_then(|_lock| {
        // Another command may have made it meanwhile.
        absent()?;
        std::fs::rename(&unfinished, &folder).map_err(io)
    });
    if named.is_err() {
        // The temporary name has this process ID, so no other command uses it.
        std::fs::remove_dir_all(&unfinished).map_err(io)?;
    }
    named.map(|()| version)
}

/// This system's browser, or the named one, and its version.
pub(super) fn system_browser(named: Option<&Path>) -> HostResult<(PathBuf, String)> {
    let unusable = |why: String| HostError::new(HostErrorKind::NotReady, "browser", why, "install Chromium");
    let chromium =
        Chromium::find(named, Flavor::HeadlessShell).map_err(|error| unusable(error.to_string()))?;
    let version = chromium.version().map_err(|error| unusable(error.to_string()))?.trim().to_owned();
    Ok((chromium.executable, version))
}

/// Make the folders of every clone.
pub(super) fn fill(folder: &Path) -> io::Result<()> {
    let parts = [PROFILE, DOWNLOADS, MEDIA];
    parts.iter().try_for_each(|part| files::make_folders(&folder.join(part), 0o700))
}

/// The existing templates, each with its browser's version or the reason why it cannot be used.
pub(super) fn list(templates: &Path, name: &str) -> HostResult<Vec<(SnapshotName, Result<String, String>)>> {
    let folder = templates.join(name);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(failed(folder.display().to_string(), "cannot be listed", error, "run it as root"));
        }
    };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| SnapshotName::try_from(entry.file_name().into_string().ok()?).ok())
        .map(|snapshot| {
            let state = Template::open(templates, name, &snapshot);
            let state = state.map(|template| template.version().to_owned()).map_err(|error| error.message);
            (snapshot, state)
        })
        .collect();
    found.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
    Ok(found)
}

/// Remove a template that no clone below `clones` was made from. It is renamed first, so that no create finds a part of it.
pub(super) fn remove(templates: &Path, name: &str, snapshot: &SnapshotName, clones: &Path) -> HostResult<()> {
    let parent = templates.join(name);
    let folder = parent.join(snapshot.as_str());
    let shown = folder.display().to_string();
    let io = |error: io::Error| failed(&shown, "the template cannot be removed", error, "run it as root");
    let doomed = parent.join(format!(".{snapshot}.{}.gone", std::process::id()));
    {
        let _lock = lock(&parent)?;
        let real = folder.canonicalize().map_err(io)?;
        let mut users = overlay::made_from(clones, snapshot).map_err(io)?;
        // Also the clones of another hostd, which have another folder.
        let mounted = |mount: &mounts::Mount| {
            let lower = mount.option("lowerdir").map(Path::new);
            lower.is_some_and(|lower| lower.starts_with(&real)).then(|| mount.at.display().to_string())
        };
        users.extend(mounts::all().map_err(io)?.iter().filter_map(mounted));
        if !users.is_empty() {
            let users: Vec<String> = users.into_iter().collect();
            return Err(HostError::new(
                HostErrorKind::Busy,
                shown,
                format!("clones were made from the template: {}", users.join(", ")),
                "destroy them first, or wait for their deadlines",
            ));
        }
        std::fs::rename(&real, &doomed).map_err(io)?;
    }
    // remove_dir_all does not follow symbolic links. A template has no mounts below it: rename(2) would have failed (EBUSY).
    std::fs::remove_dir_all(&doomed).map_err(io)
}

/// The lock of a command that renames a template into place or out of it.
pub(super) fn lock(folder: &Path) -> HostResult<Flock<File>> {
    hold(folder, FlockArg::LockExclusiveNonblock)
}

/// The lock of a create that uses a template. No command removes a template while it is held.
pub(super) fn share(templates: &Path, name: &str) -> HostResult<Flock<File>> {
    hold(&templates.join(name), FlockArg::LockSharedNonblock)
}

/// Every holder is quick. A holder that keeps the lock for long is stopped or hangs, which is an error. flock(2) has no
/// timeout, so the lock is polled.
fn hold(folder: &Path, how: FlockArg) -> HostResult<Flock<File>> {
    let path = folder.join(".lock");
    let shown = path.display().to_string();
    let unlockable = |error: io::Error| failed(&shown, "cannot be locked", error, "run it as root");
    let open = || {
        files::make_folders(folder, 0o755)?;
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
    };
    let mut file = open().map_err(unlockable)?;
    let began = Instant::now();
    loop {
        file = match Flock::lock(file, how) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK)) if began.elapsed() < LOCK_TIMEOUT => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(HostError::new(
                    HostErrorKind::Busy,
                    shown,
                    "a command or a create holds the templates' lock and does not release it",
                    "find it with fuser -v on that file",
                ));
            }
            Err((_, error)) => return Err(unlockable(error.into())),
        };
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// The first file with credentials, or that is neither a regular file, a folder nor a symbolic link.
pub(super) fn refuse_credentials(folder: &Path) -> io::Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let named = entry.file_name().to_str().is_some_and(|name| CREDENTIALS.contains(&name));
        if named || !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
            return Ok(Some(entry.path()));
        }
        if kind.is_dir()
            && let Some(found) = refuse_credentials(&entry.path())?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CloneId;

    fn snapshot(name: &str) -> SnapshotName {
        SnapshotName::try_from(name.to_owned()).unwrap()
    }

    #[test]
    fn a_template_is_made_completely_and_refused_when_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (templates, first) = (folder.path(), snapshot("one"));
        assert_eq!(Template::open(templates, "browser", &first).unwrap_err().kind, HostErrorKind::Template);
        create(templates, "browser", &first, None).unwrap();
        let template = Template::open(templates, "browser", &first).unwrap();
        assert!(template.files().join(PROFILE).is_dir());
        assert!(template.version().chars().any(|c| c.is_ascii_digit()), "{}", template.version());
        assert!(create(templates, "browser", &first, None).is_err(), "a template never changes");
        create(templates, "browser", &snapshot("two"), None).unwrap();
        let before = version(templates, "browser", &snapshot("two")).unwrap();
        assert_eq!(version(templates, "browser", &snapshot("two")).unwrap(), before);
        // Neither a clone that is being made nor an existing one lets the template be removed.
        let clones = templates.join("clones");
        let store = clones.join(".store/browsertask001");
        std::fs::create_dir_all(&store).unwrap();
        let removed = || remove(templates, "browser", &snapshot("two"), &clones);
        let cloning = share(templates, "browser").unwrap();
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(removed);
            let label =
                r#"{"clone_id":"CLONE","snapshot":"two"}"#.replace("CLONE", CloneId::random().as_str());
            std::fs::write(store.join("clone"), label).unwrap();
            drop(cloning);
            waiting.join().unwrap()
        });
        let refused = waiting.unwrap_err();
        assert_eq!(refused.kind, HostErrorKind::Busy);
        assert!(refused.message.contains("browsertask001"), "{refused}");
        std::fs::remove_file(store.join("clone")).unwrap();
        removed().unwrap();
        assert!(removed().is_err(), "it does not exist any more");
        let gone = version(templates, "browser", &snapshot("two")).unwrap_err();
        assert_eq!(gone.kind, HostErrorKind::Template);
        create(templates, "browser", &snapshot("two"), None).unwrap();
        assert_ne!(version(templates, "browser", &snapshot("two")).unwrap(), before, "made again");
        removed().unwrap();
        let all = list(templates, "browser").unwrap();
        assert_eq!(all, [(first.clone(), Ok(template.version().to_owned()))]);

        std::fs::write(template.files().join(PROFILE).join("Login Data"), "x").unwrap();
        let error = Template::open(templates, "browser", &first).unwrap_err();
        assert!(
            error.message.contains("Login Data") && error.hint.contains("hostctl template create"),
            "{error:?}"
        );
    }
}
