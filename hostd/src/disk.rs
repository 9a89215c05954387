//! What the audit log and the records share about files on a disk that may be full or read-only.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Whether the disk is the problem: full, over quota, read-only or failing. hostd continues without such a disk, because
/// clones must go at their deadline. Every other error is a mistake that an operator has to correct.
pub(crate) fn is_disk_failure(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::ReadOnlyFilesystem];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(libc::EIO)
}

/// Make a folder and those above it, so that a loss of power does not take it away again. An existing one is success.
pub(crate) fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Write a folder's entries to the disk.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
