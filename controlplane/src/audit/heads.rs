//! Signed heads of the log: in the database, and in a file beside the signing key, so that a database that was rewritten or
//! cut is found.

use crate::store::{AuditHead, CheckpointRow};
use crate::time::now;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Lines that the file keeps when it is shortened, and how long it may become. The newest head alone covers every row before it,
/// so old ones say only more exactly where a change is.
const KEEP_LINES: usize = 10_000;
const MAX_LINES: usize = 20_000;

/// Why the audit log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A file of the state folder.
    #[error("cannot use {path}: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The signing key is not one.
    #[error(
        "{path} is not a signing key of this program: {why}; restore it from a backup, or move it away to begin with a new key",
        path = .path.display()
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The database.
    #[error("the audit log cannot be read: {0}")]
    Store(#[from] crate::store::StoreError),
}

/// The signing key and the file of signed heads.
pub(super) struct Heads {
    key: SigningKey,
    path: PathBuf,
    lines: usize,
}

#[derive(Serialize, Deserialize)]
struct Line {
    seq: i64,
    hash: String,
    at: i64,
    public_key: String,
    signature: String,
}

impl Heads {
    pub(super) fn open(folder: &Path) -> Result<Self, StartError> {
        let key = load_or_create(&folder.join("audit-key"))?;
        let path = folder.join("audit-heads.jsonl");
        let lines = read(&path).map_err(|source| StartError::File { path: path.clone(), source })?.len();
        Ok(Self { key, path, lines })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn public_key(&self) -> VerifyingKey {
        self.key.verifying_key()
    }

    /// The newest head of the file that this key signed.
    pub(super) fn newest_own(&self) -> io::Result<Option<CheckpointRow>> {
        let own = self.public_key().to_bytes();
        let mut heads = read(&self.path)?.into_iter().rev();
        Ok(heads.find(|head| head.public_key == own && is_genuine(head)))
    }

    pub(super) fn sign(&self, head: &AuditHead) -> CheckpointRow {
        let at = now();
        let signature = self.key.sign(&message(head.seq, &head.hash, at));
        CheckpointRow {
            seq: head.seq,
            hash: head.hash.to_vec(),
            at,
            public_key: self.public_key().to_bytes().to_vec(),
            signature: signature.to_bytes().to_vec(),
        }
    }

    /// Append a head to the file; it is on the disk when this returns.
    pub(super) fn append(&mut self, head: &CheckpointRow) -> io::Result<()> {
        if self.lines >= MAX_LINES {
            self.shorten()?;
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(&self.path)?;
        // A line that was cut by a crash must not swallow this one: empty lines are ignored.
        file.write_all(format!("\n{}", line(head)).as_bytes())?;
        file.sync_data()?;
        self.lines += 1;
        Ok(())
    }

    fn shorten(&mut self) -> io::Result<()> {
        let heads = read(&self.path)?;
        let kept = &heads[heads.len().saturating_sub(KEEP_LINES)..];
        let text: String = kept.iter().map(line).collect();
        replace(&self.path, text.as_bytes())?;
        self.lines = kept.len();
        Ok(())
    }
}

impl std::fmt::Debug for Heads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heads").field("path", &self.path).finish_non_exhaustive()
    }
}

fn line(head: &CheckpointRow) -> String {
    let line = Line {
        seq: head.seq,
        hash: hex(&head.hash),
        at: head.at,
        public_key: hex(&head.public_key),
        signature: hex(&head.signature),
    };
    let mut text = serde_json::to_string(&line).expect("texts and numbers");
    text.push('\n');
    text
}

/// The heads of the file, in its order. A missing file is empty; a line that was cut by a crash is skipped.
pub(super) fn read(path: &Path) -> io::Result<Vec<CheckpointRow>> {
    let mut heads = Vec::new();
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(heads),
        other => other?,
    };
    for text in BufReader::new(file).split(b'\n') {
        let text = text?;
        if text.is_empty() {
            continue;
        }
        let head = serde_json::from_slice::<Line>(&text).ok().and_then(|line| {
            Some(CheckpointRow {
                seq: line.seq,
                hash: unhex(&line.hash)?,
                at: line.at,
                public_key: unhex(&line.public_key)?,
                signature: unhex(&line.signature)?,
            })
        });
        heads.extend(head);
    }
    Ok(heads)
}

/// Whether the head was signed with the key that it names.
pub(super) fn is_genuine(head: &CheckpointRow) -> bool {
    let key = <[u8; 32]>::try_from(head.public_key.as_slice())
        .ok()
        .and_then(|key| VerifyingKey::from_bytes(&key).ok());
    let signature =
        <[u8; 64]>::try_from(head.signature.as_slice()).ok().map(|bytes| Signature::from_bytes(&bytes));
    match (key, signature) {
        (Some(key), Some(signature)) => {
            key.verify_strict(&message(head.seq, &head.hash, head.at), &signature).is_ok()
        }
        _ => false,
    }
}

fn message(seq: i64, hash: &[u8], at: i64) -> Vec<u8> {
    format!("controlplane audit head\n{seq}\n{}\n{at}\n", hex(hash)).into_bytes()
}

fn load_or_create(path: &Path) -> Result<SigningKey, StartError> {
    let file_error = |source| StartError::File { path: path.into(), source };
    let bad = |why: &str| StartError::Key { path: path.into(), why: why.into() };
    let mut file = match OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut seed = [0; 32];
            getrandom::fill(&mut seed).map_err(|error| file_error(io::Error::other(error)))?;
            let key = SigningKey::from_bytes(&seed);
            replace(path, format!("{}\n", hex(&seed)).as_bytes()).map_err(file_error)?;
            return Ok(key);
        }
        Err(error) => return Err(file_error(error)),
    };
    let mode = file.metadata().map_err(file_error)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(bad(&format!("its mode is {mode:04o}, so others can read it; it must be 0600")));
    }
    let mut text = String::new();
    Read::by_ref(&mut file).take(1000).read_to_string(&mut text).map_err(file_error)?;
    let seed = unhex(text.trim()).and_then(|seed| <[u8; 32]>::try_from(seed).ok());
    let seed = seed.ok_or_else(|| bad("it does not have 64 hexadecimal digits"))?;
    Ok(SigningKey::from_bytes(&seed))
}

/// Replace a file at once, or not at all. It is private and on the disk when this returns.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_shortened() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut heads = Heads::open(folder.path()).expect("opens");
        let old: String =
            (1..=MAX_LINES as i64).map(|seq| line(&heads.sign(&AuditHead { seq, hash: [7; 32] }))).collect();
        // The last line was cut by a crash.
        fs::write(heads.path(), format!("{old}{{\"seq\":2000")).expect("write");
        heads = Heads::open(folder.path()).expect("opens");
        let new = heads.sign(&AuditHead { seq: 20_001, hash: [8; 32] });
        assert!(is_genuine(&new));
        heads.append(&new).expect("written");
        let kept = read(heads.path()).expect("read");
        assert_eq!((kept.len(), kept[0].seq, kept.last()), (KEEP_LINES + 1, 10_001, Some(&new)));
        assert_eq!(heads.newest_own().expect("read"), Some(new));
        assert_eq!(fs::metadata(heads.path()).expect("there").permissions().mode() & 0o7777, 0o600);
    }
}
