//! Inspects the host paths that a policy names.

use crate::{Error, HostFacts, PathKind, Policy};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

impl HostFacts {
    /// Inspects every path whose facts a plan for `policy` needs.
    pub fn gather(policy: &Policy) -> Result<HostFacts, Error> {
        let inspect = |path: std::path::PathBuf| match kind_of(&path) {
            Ok(kind) => Ok((path, kind)),
            Err(source) => Err(Error::Io { what: format!("inspect {}", path.display()), source }),
        };
        let paths: Result<Vec<_>, Error> = policy.host_paths().into_iter().map(inspect).collect();
        Ok(HostFacts::from_paths(paths?))
    }
}

fn kind_of(path: &Path) -> io::Result<PathKind> {
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(e) if is_absent(&e) => return Ok(PathKind::Missing),
        Err(e) => return Err(e),
    };
    let kind = metadata.file_type();
    Ok(if kind.is_symlink() {
        let target = path.read_link()?;
        match path.canonicalize() {
            Ok(resolved) => PathKind::Link { target, ends_at: Box::new(kind_of(&resolved)?), resolved },
            Err(e) if is_absent(&e) => {
                PathKind::Link { resolved: target.clone(), target, ends_at: Box::new(PathKind::Missing) }
            }
            Err(e) => return Err(e),
        }
    } else if kind.is_dir() {
        PathKind::Folder
    } else if kind.is_socket() {
        PathKind::Socket
    } else {
        PathKind::File
    })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
