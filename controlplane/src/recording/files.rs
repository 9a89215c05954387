//! Files of recordings. Only the service's user can read them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Make a folder with all its parents; those that are new are of mode 0700.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Write a picture and make it durable. A file that exists is never changed, and nothing is left of one that failed.
pub(super) fn write(root: &Path, folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new_folder = !folder.is_dir();
    make_folder(folder)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    File::open(folder)?.sync_all()?;
    if new_folder {
        for parent in folder.ancestors().skip(1).take_while(|parent| parent.starts_with(root)) {
            File::open(parent)?.sync_all()?;
        }
    }
    Ok(())
}

/// The largest number of a picture in a folder; 0 if there is none.
pub(super) fn last_number(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let number = |entry: io::Result<std::fs::DirEntry>| {
        Path::new(&entry.ok()?.file_name()).file_stem()?.to_str()?.parse::<u64>().ok()
    };
    entries.filter_map(number).max().unwrap_or(0)
}

/// Remove the folder of a session, and that of its tenant if it is empty now.
pub(super) fn remove_folder(root: &Path, folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if let Some(tenant) = folder.parent()
        && tenant != root
    {
        // It fails while other sessions of the tenant are recorded.
        let _ = std::fs::remove_dir(tenant);
    }
    Ok(())
}
