//! hostd's own small files and folders. They are replaced atomically, and removed one by one.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The suffix of files that are being written.
const UNFINISHED: &str = ".new";

/// Make a folder and its parents. An existing folder is success, whatever its mode.
pub(super) fn make_folders(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Replace a file by rename(2): a reader finds the old content or the new, never a part.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let mut file: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&unfinished)?;
    file.write_all(bytes)?;
    std::fs::rename(&unfinished, path)
}

/// Remove the unfinished file that a crash left beside `name`.
pub(super) fn remove_leftovers(folder: &Path, name: &str) -> io::Result<()> {
    remove_file(&folder.join(format!("{name}{UNFINISHED}")))
}

/// Remove a file. An absent file is success.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    absent_is_fine(std::fs::remove_file(path))
}

/// Remove an empty folder. An absent folder is success; a folder with files is an error.
pub(super) fn remove_empty(path: &Path) -> io::Result<()> {
    absent_is_fine(std::fs::remove_dir(path))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
