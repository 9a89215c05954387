//! Whether a file is safe to run: only root, or hostd's own user, can change or replace it.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
const EXECUTABLE: u32 = 0o111;

/// Check that only root or hostd's user can change or replace this executable, given by its real path. The error is the
/// reason against it.
pub(super) fn executable(path: &Path) -> Result<(), String> {
    let file = metadata(path)?;
    if !file.is_file() || file.permissions().mode() & EXECUTABLE == 0 {
        return Err(format!("{} is no executable file", path.display()));
    }
    if file.permissions().mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(format!("{} can be written by others", path.display()));
    }
    owner(path, &file)?;
    // A user who can write to a folder can replace the files in it, unless the folder is sticky.
    for folder in path.ancestors().skip(1) {
        let seen = metadata(folder)?;
        let mode = seen.permissions().mode();
        if mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0 {
            return Err(format!("the folder {} can be written by others", folder.display()));
        }
        owner(folder, &seen)?;
    }
    Ok(())
}

fn metadata(path: &Path) -> Result<Metadata, String> {
    path.symlink_metadata().map_err(|error| format!("{}: {error}", path.display()))
}

fn owner(path: &Path, seen: &Metadata) -> Result<(), String> {
    let us = nix::unistd::geteuid().as_raw();
    match seen.uid() {
        0 => Ok(()),
        uid if uid == us => Ok(()),
        uid => Err(format!("{} belongs to user {uid}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_what_others_cannot_change_is_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let file = folder.join("tool");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();

        set_mode(&file, 0o644);
        assert!(executable(&file).unwrap_err().contains("no executable"));
        set_mode(&file, 0o755);
        assert_eq!(executable(&file), Ok(()));
        for mode in [0o775, 0o757, 0o777] {
            set_mode(&file, mode);
            assert!(executable(&file).unwrap_err().contains("written by others"), "{mode:o}");
        }
        set_mode(&file, 0o755);
        for mode in [0o775, 0o757] {
            set_mode(&folder, mode);
            assert!(executable(&file).unwrap_err().contains("the folder"), "{mode:o}");
        }
        set_mode(&folder, 0o1777);
        assert_eq!(executable(&file), Ok(()), "in a sticky folder nobody else can replace it");
        set_mode(&folder, 0o700);

        assert!(executable(&folder).unwrap_err().contains("no executable"));
        assert!(executable(&folder.join("none")).is_err());
    }

    #[test]
    fn another_users_file_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().canonicalize().unwrap().join("tool");
        std::fs::write(&file, "").unwrap();
        set_mode(&file, 0o755);
        if !nix::unistd::geteuid().is_root() {
            // An ordinary user cannot give a file away; its own files are trusted, which the other test shows.
            assert!(nix::unistd::chown(&file, Some(12345.into()), None).is_err());
            return;
        }
        nix::unistd::chown(&file, Some(12345.into()), None).unwrap();
        assert!(executable(&file).unwrap_err().contains("belongs to user 12345"));
    }
}
