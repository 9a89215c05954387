//! Files into and out of the clone.

use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{ClientFile, ClientFiles};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Number of files that callers can put into the clone.
const MAX_FILES: usize = 200;
/// Longest name of a file, which is also that of Linux and FreeBSD.
const MAX_NAME: usize = 255;
/// Longest time between two parts of a body.
const PAUSE: Duration = Duration::from_secs(30);
const CHUNK: usize = 128 * 1024;

/// The files that callers put into the clone.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    limit: u64,
    kept: Mutex<Vec<ClientFile>>,
    /// Bytes of kept files and of those that are arriving.
    used: AtomicU64,
    last_id: AtomicU64,
}

/// Bytes that an arriving file uses. Dropping it removes the file and gives them back.
struct Arriving<'a> {
    files: &'a Files,
    folder: PathBuf,
    bytes: u64,
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.files.used.fetch_sub(self.bytes, Ordering::Relaxed);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn storage(what: &str, error: io::Error) -> ApiError {
    ApiError::new(ErrorCode::StorageFailed, format!("{what}: {error}"))
}

/// A name that is one component of a path and that a person can read.
fn check_name(name: &str) -> Result<(), ApiError> {
    let bad = |message: &str| Err(ApiError::new(ErrorCode::BadRequest, format!("name: {message}")));
    match name {
        "" | "." | ".." => bad("give a file name, for example report.csv"),
        _ if name.len() > MAX_NAME => bad("longer than 255 bytes"),
        _ if name.contains(['/', '\\']) => bad("a file name without folders"),
        _ if name.chars().any(char::is_control) => bad("it contains control characters"),
        _ => Ok(()),
    }
}

impl Files {
    /// Files of an earlier browserd are removed.
    pub(crate) fn new(folder: PathBuf, limit: u64) -> Self {
        if let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %folder.display(), %error, "cannot remove files of an earlier start");
        }
        Self { folder, limit, kept: Mutex::default(), used: AtomicU64::new(0), last_id: AtomicU64::new(0) }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<ClientFile>> {
        self.kept.lock().expect("no panic while held")
    }

    pub(crate) fn list(&self) -> ClientFiles {
        let files = self.kept().clone();
        let bytes = files.iter().map(|file| file.bytes).sum();
        ClientFiles { files, bytes, max_bytes: self.limit }
    }

    /// Writes the body to a new file. Nothing is left of a body that does not arrive as a whole.
    pub(crate) async fn receive<B>(&self, name: &str, body: B) -> Result<ClientFile, ApiError>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        check_name(name)?;
        let full = || {
            let message =
                format!("all files together may have {} bytes, and there may be {MAX_FILES}", self.limit);
            ApiError::new(ErrorCode::FilesFull, message)
        };
        if self.kept().len() >= MAX_FILES {
            return Err(full());
        }
        let id = format!("f{}", self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        let folder = self.folder.join(&id);
        // A folder for each file: two files may have the same name, and pages see it.
        let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder);
        let mut arriving = Arriving { files: self, folder: folder.clone(), bytes: 0 };
        made.map_err(|error| storage("cannot make a folder for the file", error))?;
        let path = folder.join(name);
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let mut file = File::from_std(file.map_err(|error| storage("cannot create the file", error))?);
        let mut body = body;
        loop {
            let frame = tokio::time::timeout(PAUSE, body.frame())
                .await
                .map_err(|_| ApiError::new(ErrorCode::RequestTimeout, "the file did not arrive in time"))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|_| ApiError::new(ErrorCode::BadRequest, "the file is incomplete"))?;
            let Ok(data) = frame.into_data() else { continue };
            let bytes = data.len() as u64;
            let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
            arriving.bytes += bytes;
            if used > self.limit {
                return Err(full());
            }
            file.write_all(&data).await.map_err(|error| storage("cannot write the file", error))?;
        }
        file.flush().await.map_err(|error| storage("cannot write the file", error))?;
        let path =
            path.to_str().ok_or_else(|| ApiError::new(ErrorCode::Internal, "the path is not UTF-8"))?;
        let kept = ClientFile { file: id, name: name.into(), path: path.into(), bytes: arriving.bytes };
        let mut all = self.kept();
        if all.len() >= MAX_FILES {
            return Err(full());
        }
        all.push(kept.clone());
        std::mem::forget(arriving);
        Ok(kept)
    }

    pub(crate) fn remove(&self, id: &str) -> Result<(), ApiError> {
        let mut kept = self.kept();
        let at = kept.iter().position(|file| file.file == id).ok_or_else(|| no_such_file(id))?;
        let folder = self.folder.join(&kept[at].file);
        std::fs::remove_dir_all(folder).map_err(|error| storage("cannot remove the file", error))?;
        let removed = kept.remove(at);
        self.used.fetch_sub(removed.bytes, Ordering::Relaxed);
        Ok(())
    }

    /// The paths of files that are named by path or id.
    pub(crate) fn paths(&self, names: &[String]) -> Result<Vec<String>, ApiError> {
        let kept = self.kept();
        let path_of = |name: &String| {
            let file = kept.iter().find(|file| file.path == *name || file.file == *name);
            file.map(|file| file.path.clone()).ok_or_else(|| no_such_file(name))
        };
        names.iter().map(path_of).collect()
    }
}

fn no_such_file(name: &str) -> ApiError {
    let short: String = name.chars().take(100).collect();
    ApiError::new(ErrorCode::NoSuchFile, format!("no file {short:?}"))
}

/// A file on its way to a caller.
#[derive(Debug)]
pub(crate) struct OutgoingFile {
    file: File,
    path: PathBuf,
    name: String,
    pub(crate) mime_type: String,
    pub(crate) bytes: u64,
    delete: bool,
}

impl OutgoingFile {
    /// Opens a finished download. It must be a regular file: the browser may have put anything in its place.
    pub(crate) async fn open(path: PathBuf, name: &str, delete: bool) -> Result<Self, ApiError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => ApiError::new(ErrorCode::NoSuchDownload, "the file was removed"),
            _ => storage("cannot read the file", error),
        };
        let mut options = std::fs::OpenOptions::new();
        let file = options
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(ApiError::new(ErrorCode::NoSuchDownload, "it is not a regular file"));
        }
        let (file, bytes) = (File::from_std(file), about.len());
        Ok(Self { file, path, name: name.to_owned(), mime_type: mime_type(name), bytes, delete })
    }

    /// The header with the file's name: for old clients in ASCII, for others in UTF-8 (RFC 6266).
    pub(crate) fn disposition(&self) -> String {
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%' | '/') || c == ' ';
        let ascii: String = self.name.chars().map(|c| if plain(c) { c } else { '_' }).collect();
        let encoded: String = self
            .name
            .bytes()
            .map(|byte| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                true => char::from(byte).to_string(),
                false => format!("%{byte:02X}"),
            })
            .collect();
        format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{encoded}")
    }

    /// Exactly as many bytes as announced. The file is removed after the last one, if that was asked for.
    pub(crate) fn into_body(self) -> impl Body<Data = Bytes, Error = io::Error> + Send {
        let Self { file, path, bytes, delete, .. } = self;
        // The server does not ask for more than the announced bytes, so the end is known only here.
        let remove = move |left: u64| {
            if left == 0 && delete {
                let _ = std::fs::remove_file(&path);
            }
        };
        remove(bytes);
        let parts = stream::try_unfold((file, bytes, remove), |(mut file, left, remove)| async move {
            if left == 0 {
                return Ok(None);
            }
            let mut buffer = vec![0; CHUNK.min(left as usize)];
            let read = file.read(&mut buffer).await?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            buffer.truncate(read);
            let left = left - read as u64;
            remove(left);
            Ok(Some((Frame::data(Bytes::from(buffer)), (file, left, remove))))
        });
        StreamBody::new(parts)
    }
}

/// The media type of a file name.
pub(crate) fn mime_type(name: &str) -> String {
    mime_guess::from_path(Path::new(name)).first_or_octet_stream().essence_str().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    fn files(limit: u64) -> (Files, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (Files::new(folder.path().join("files"), limit), folder)
    }

    async fn put(files: &Files, name: &str, text: &str) -> Result<ClientFile, ErrorCode> {
        files.receive(name, Full::new(Bytes::from(text.to_owned()))).await.map_err(|error| error.code)
    }

    #[tokio::test]
    async fn names_are_one_readable_component() {
        let (files, _folder) = files(1000);
        for good in ["a", "Report 2026 (final).csv", "ü漢🙂.txt", "..a", ".profile", &"x".repeat(255)] {
            let file = put(&files, good, "1").await.unwrap();
            assert_eq!(std::fs::read_to_string(&file.path).unwrap(), "1", "{good}");
            assert!(file.path.ends_with(&format!("/{good}")));
        }
        for bad in
            ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\\b", "a\0b", "a\nb", "\u{85}", &"x".repeat(256)]
        {
            assert_eq!(put(&files, bad, "1").await, Err(ErrorCode::BadRequest), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn the_limit_counts_all_files_and_what_is_refused_leaves_nothing() {
        let (files, folder) = files(10);
        let one = put(&files, "same", "12345").await.unwrap();
        let two = put(&files, "same", "123").await.unwrap();
        assert_ne!(one.path, two.path);
        assert_eq!(put(&files, "big", "123").await, Err(ErrorCode::FilesFull));
        assert_eq!((files.list().bytes, files.list().files.len()), (8, 2));
        let left = std::fs::read_dir(folder.path().join("files")).unwrap().count();
        assert_eq!(left, 2, "the refused file is removed");
        files.remove(&one.file).unwrap();
        assert_eq!(files.remove(&one.file).unwrap_err().code, ErrorCode::NoSuchFile);
        put(&files, "fits", "1234567").await.unwrap();
        let paths = files.paths(&[two.file.clone(), two.path.clone()]).unwrap();
        assert_eq!(paths, [two.path.clone(), two.path]);
        for foreign in ["/etc/passwd", &one.path, ""] {
            assert_eq!(
                files.paths(&[foreign.to_owned()]).unwrap_err().code,
                ErrorCode::NoSuchFile,
                "{foreign}"
            );
        }
    }

    #[tokio::test]
    async fn a_download_is_sent_whole_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guid");
        std::fs::write(&path, "x".repeat(300_000)).unwrap();
        let file = OutgoingFile::open(path.clone(), "Übersicht \"1\".pdf", true).await.unwrap();
        assert_eq!((file.bytes, file.mime_type.as_str()), (300_000, "application/pdf"));
        let disposition = file.disposition();
        assert_eq!(
            disposition,
            "attachment; filename=\"_bersicht _1_.pdf\"; filename*=UTF-8''%C3%9Cbersicht%20%221%22.pdf"
        );
        let body = Box::pin(file.into_body()).collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), 300_000);
        assert!(!path.exists(), "removed after the last byte");

        std::fs::write(folder.path().join("target"), "secret").unwrap();
        std::os::unix::fs::symlink(folder.path().join("target"), &path).unwrap();
        assert!(OutgoingFile::open(path.clone(), "x", false).await.is_err());
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(OutgoingFile::open(path, "x", false).await.unwrap_err().code, ErrorCode::NoSuchDownload);
        assert_eq!(mime_type("no ending"), "application/octet-stream");
    }
}
