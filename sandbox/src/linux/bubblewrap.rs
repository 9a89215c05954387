//! Finds bubblewrap and checks that no other user could have replaced it.

use crate::{Error, Layer};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where distributions install it. `PATH` is not searched: the launcher's caller controls it.
const LOCATIONS: [&str; 4] =
    ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap"];

/// The bubblewrap to use, checked.
pub(crate) fn find(given: Option<&Path>) -> Result<PathBuf, Error> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => LOCATIONS
            .iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .ok_or_else(|| missing("bubblewrap is not installed".to_owned()))?,
    };
    check(&path)
}

/// The resolved path, if no other user can write the program or a folder above it.
fn check(path: &Path) -> Result<PathBuf, Error> {
    if !path.is_absolute() {
        return Err(missing(format!("{}: not an absolute path", path.display())));
    }
    let real = path.canonicalize().map_err(|e| missing(format!("{}: {e}", path.display())))?;
    let metadata = |path: &Path| path.metadata().map_err(|e| missing(format!("{}: {e}", path.display())));
    let program = metadata(&real)?;
    if !program.is_file() || program.mode() & 0o111 == 0 {
        return Err(missing(format!("{}: not a program", real.display())));
    }
    if program.mode() & 0o6000 != 0 {
        return Err(unsafe_place(
            &real,
            "is setuid: nested sandboxes such as Chromium's do not work under it, and its \
             vulnerabilities would give root",
        ));
    }
    for part in real.ancestors() {
        if let Some(problem) = writable_by_others(&metadata(part)?) {
            return Err(unsafe_place(part, &problem));
        }
    }
    Ok(real)
}

/// Whether a user other than root and the launcher's own could replace it.
fn writable_by_others(metadata: &Metadata) -> Option<String> {
    let own = nix::unistd::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != own {
        return Some(format!("belongs to uid {}", metadata.uid()));
    }
    // This includes sticky folders (/tmp), in which everybody can create files.
    if metadata.mode() & 0o022 != 0 {
        return Some(format!("can be written by others (mode {:o})", metadata.mode() & 0o7777));
    }
    None
}

fn missing(reason: String) -> Error {
    Error::Layer {
        layer: Layer::Bubblewrap,
        reason,
        fix: Some(super::fixes::install_bubblewrap(super::fixes::distribution())),
    }
}

fn unsafe_place(path: &Path, problem: &str) -> Error {
    Error::Layer {
        layer: Layer::Bubblewrap,
        reason: format!("{} {problem}", path.display()),
        fix: Some("use the bubblewrap of the distribution's package".to_owned()),
    }
}
