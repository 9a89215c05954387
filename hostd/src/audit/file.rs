//! The log's file: opened without following links, checked, and always continued with a whole line.

use crate::disk::{make_folder, sync_folder};
use settings::trusted_path::{self, ParentRule};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// The open file.
#[derive(Debug)]
pub(super) struct LogFile {
    file: Arc<File>,
    /// The file ends in the middle of a line: the process died, or the disk was full.
    torn: bool,
}

impl LogFile {
    /// Open or make the file. Its folder is made too if it is missing.
    pub(super) fn open(path: &Path) -> io::Result<LogFile> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        make_folder(folder, 0o750)?;
        trusted_path::folder(folder, ParentRule::GroupMayWrite)?;
        let mut options = OpenOptions::new();
        // Nonblocking, so that a pipe in its place is refused instead of waited for.
        options.read(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = options.create_new(true).open(path)?;
                sync_folder(folder)?;
                file
            }
            // The system's own text for a link does not name it.
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                let why = format!("{} is a symbolic link: put a file in its place", path.display());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            opened => opened?,
        };
        let meta = file.metadata()?;
        trusted_path::opened(path, &meta)?;
        let mut last = [b'\n'];
        if meta.len() > 0 {
            file.read_exact_at(&mut last, meta.len() - 1)?;
        }
        Ok(LogFile { file: Arc::new(file), torn: last != [b'\n'] })
    }

    /// Whether the file still has a name. What is written to one without is lost.
    pub(super) fn has_name(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.nlink() > 0)
    }

    /// Append a line, completely or not at all.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.write(b"\n")?;
            self.torn = false;
        }
        self.write(line)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match (&*self.file).write(&bytes[written..]) {
                Ok(0) => return Err(self.cut_back(written, io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.cut_back(written, error)),
            }
        }
        Ok(())
    }

    /// Remove the part of a line that was written before the error.
    fn cut_back(&mut self, written: usize, error: io::Error) -> io::Error {
        if written > 0 {
            let cut = self.file.metadata().and_then(|meta| {
                let before = meta.len().saturating_sub(u64::try_from(written).unwrap_or(0));
                self.file.set_len(before)
            });
            self.torn |= cut.is_err();
        }
        error
    }

    /// As if the disk was full after these bytes.
    #[cfg(test)]
    pub(super) fn write_partly(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes)?;
        Err(self.cut_back(bytes.len(), io::ErrorKind::StorageFull.into()))
    }

    /// The file, to sync it without keeping other writers waiting.
    pub(super) fn handle(&self) -> Arc<File> {
        self.file.clone()
    }
}
