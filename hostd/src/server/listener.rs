//! The listening socket: passed by a service manager, or created with the right owner and mode.

#![allow(unsafe_code)]

use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::stat::{Mode, umask};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The mode of the socket's folder: the group can reach the socket and nothing else.
const FOLDER_MODE: u32 = 0o750;

/// Why the socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path cannot be used.
    #[error("the socket {} cannot be created: {error}; set paths.socket to a path in a folder that hostd may write", .path.display())]
    Path {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another daemon answers there.
    #[error("another daemon answers on {}; stop it, or give this one its own paths.socket", .0.display())]
    InUse(PathBuf),
    /// Something that is not a socket is there.
    #[error("{} exists and is not a socket: remove it, or set another paths.socket", .0.display())]
    NotASocket(PathBuf),
    /// The service manager passed something else.
    #[error("the service manager passed {0}; hostd needs one listening Unix stream socket")]
    Activation(String),
}

/// A listening socket. If it was created here, it is removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: tokio::net::UnixListener,
    made: Option<PathBuf>,
}

impl Listener {
    /// The service manager's socket if there is one, else a new one at `path`. Call it inside the runtime.
    /// The caller must hold the instance lock, because a stale socket is removed.
    pub fn open(path: &Path, group: &str) -> Result<Listener, ListenError> {
        let (socket, made) = match activated()? {
            Some(socket) => (socket, None),
            None => (bind(path, group)?, Some(path.to_owned())),
        };
        let socket = socket
            .set_nonblocking(true)
            .and_then(|()| tokio::net::UnixListener::from_std(socket))
            .map_err(|error| ListenError::Path { path: path.to_owned(), error })?;
        Ok(Listener { socket, made })
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<tokio::net::UnixStream> {
        Ok(self.socket.accept().await?.0)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

fn activated() -> Result<Option<UnixListener>, ListenError> {
    let wrong = |what: String| ListenError::Activation(what);
    let mut fds = sd_notify::listen_fds().map_err(|error| wrong(error.to_string()))?;
    let fd = match (fds.next(), fds.len()) {
        (None, _) => return Ok(None),
        (Some(fd), 0) => fd,
        (Some(_), more) => return Err(wrong(format!("{} sockets", more + 1))),
    };
    // SAFETY: LISTEN_PID names this process, so the service manager opened this descriptor for
    // this process and nothing else owns it.
    let socket = unsafe { UnixListener::from_raw_fd(fd) };
    let stream = getsockopt(&socket, sockopt::SockType) == Ok(nix::sys::socket::SockType::Stream);
    let listening = getsockopt(&socket, sockopt::AcceptConn) == Ok(true);
    if !stream || !listening || socket.local_addr().is_err() {
        return Err(wrong("a descriptor of another kind".to_owned()));
    }
    Ok(Some(socket))
}

fn bind(path: &Path, group: &str) -> Result<UnixListener, ListenError> {
    let fail = |error| ListenError::Path { path: path.to_owned(), error };
    let gid = group_id(group);
    if let Some(folder) = path.parent() {
        prepare_folder(folder, gid).map_err(fail)?;
    }
    remove_stale(path)?;
    // umask(2) closes the socket to others before bind(2) creates it: a later chmod(2) would leave a gap.
    let before = umask(Mode::from_bits_truncate(0o117));
    let bound = UnixListener::bind(path);
    umask(before);
    let socket = bound.map_err(fail)?;
    if gid.is_some() {
        chown(path, None, gid).map_err(fail)?;
    }
    Ok(socket)
}

/// Make the socket's folder, or give an existing one to the configured group, which may have changed since it was made.
///
/// An existing folder is changed only if it is hostd's own: it belongs to hostd's user, has mode 0750 and holds nothing
/// but the socket. So `/run` or a home folder is never changed.
fn prepare_folder(folder: &Path, gid: Option<u32>) -> io::Result<()> {
    match fs::symlink_metadata(folder) {
        Ok(seen) if is_socket_folder(folder, &seen)? => {}
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
            // The umask may have removed bits that the group needs to reach the socket.
            fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE))?;
        }
        Err(error) => return Err(error),
    }
    // Without a group it is hostd's own.
    chown(folder, None, Some(gid.unwrap_or_else(|| nix::unistd::getegid().as_raw())))
}

fn is_socket_folder(folder: &Path, seen: &fs::Metadata) -> io::Result<bool> {
    let ours = seen.is_dir() && seen.uid() == nix::unistd::geteuid().as_raw();
    if !ours || seen.mode() & 0o7777 != FOLDER_MODE {
        return Ok(false);
    }
    for entry in fs::read_dir(folder)? {
        if !entry?.file_type()?.is_socket() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn group_id(group: &str) -> Option<u32> {
    if group.is_empty() {
        return None;
    }
    match nix::unistd::Group::from_name(group) {
        Ok(Some(group)) => Some(group.gid.as_raw()),
        _ => {
            tracing::warn!(
                group,
                "paths.socket_group does not exist: only hostd's own user and group can connect"
            );
            None
        }
    }
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let fail = |error| ListenError::Path { path: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(fail(error)),
        Ok(meta) if !meta.file_type().is_socket() => Err(ListenError::NotASocket(path.to_owned())),
        // The instance lock protects the state folder; a daemon with another one may use this path.
        Ok(_) if UnixStream::connect(path).is_ok() => Err(ListenError::InUse(path.to_owned())),
        Ok(_) => fs::remove_file(path).map_err(fail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_of_this_process() -> String {
        let gid = nix::unistd::getegid();
        nix::unistd::Group::from_gid(gid).unwrap().map_or_else(String::new, |group| group.name)
    }

    #[tokio::test]
    async fn the_socket_and_its_folder_are_for_owner_and_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/hostd.sock");
        let listener = Listener::open(&path, &group_of_this_process()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o660, 0o750));
        assert_eq!(fs::metadata(&path).unwrap().gid(), nix::unistd::getegid().as_raw());
        UnixStream::connect(&path).unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_changed_group_gets_the_folder_and_the_socket() {
        if !nix::unistd::geteuid().is_root() {
            // Only root can give a folder to a group that it is not in; the test above shows its own group.
            assert!(chown("/", None, Some(1)).is_err());
            return;
        }
        let other = nix::unistd::Group::from_gid(1.into()).unwrap().expect("group 1").name;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/hostd.sock");
        let folder = path.parent().unwrap();
        let gid = |path: &Path| fs::metadata(path).unwrap().gid();
        drop(Listener::open(&path, &other).unwrap());
        assert_eq!(gid(folder), 1);
        let listener = Listener::open(&path, &group_of_this_process()).unwrap();
        assert_eq!((gid(folder), gid(&path)), (0, 0));
        drop(listener);
        let listener = Listener::open(&path, &other).unwrap();
        assert_eq!((gid(folder), gid(&path)), (1, 1));
        drop(listener);
        let listener = Listener::open(&path, "").unwrap();
        assert_eq!((gid(folder), gid(&path)), (0, 0), "without a group, hostd's own");
        drop(listener);

        // A folder that is not only the socket's is left as it is.
        fs::write(folder.join("other"), "").unwrap();
        let listener = Listener::open(&path, &other).unwrap();
        assert_eq!((gid(folder), gid(&path)), (0, 1));
        drop(listener);
        fs::remove_file(folder.join("other")).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        let listener = Listener::open(&path, &other).unwrap();
        assert_eq!((gid(folder), fs::metadata(folder).unwrap().mode() & 0o7777), (0, 0o755));
        drop(listener);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hostd.sock");
        drop(UnixListener::bind(&path).unwrap());
        let first = Listener::open(&path, "").unwrap();
        let error = Listener::open(&path, "").unwrap_err();
        assert!(matches!(error, ListenError::InUse(_)), "{error}");
        assert!(path.exists());
        drop(first);
    }

    #[tokio::test]
    async fn a_path_that_is_not_a_socket_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hostd.sock");
        fs::write(&path, "precious").unwrap();
        let error = Listener::open(&path, "").unwrap_err();
        assert!(matches!(error, ListenError::NotASocket(_)), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nonexistent", &path).unwrap();
        assert!(matches!(Listener::open(&path, "").unwrap_err(), ListenError::NotASocket(_)));
    }

    #[tokio::test]
    async fn an_unknown_group_does_not_prevent_listening() {
        let dir = tempfile::tempdir().unwrap();
        Listener::open(&dir.path().join("hostd.sock"), "no-such-group").unwrap();
    }
}
