//! The files of datasets: real folders, moved aside while a dataset is not mounted.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The entries of a folder; one that is not there has none.
fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.collect(),
    }
}

/// Copy what is in a folder into another one; links stay links.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in entries(from)? {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&source, &target)?;
            fs::set_permissions(&target, entry.metadata()?.permissions())?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

/// Move what is in a folder into another one.
pub(crate) fn shift(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in entries(from)? {
        fs::rename(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Remove what is in a folder, but not the folder.
pub(crate) fn empty(folder: &Path) -> io::Result<()> {
    for entry in entries(folder)? {
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}
