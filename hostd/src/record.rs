//! Records: one file per clone in the state folder, written before the first effect and removed after verified absence.
//!
//! A record holds the intent, never existence, which is found by inspecting the host. A slot is claimed by creating its
//! record, which only one caller can do.

use crate::api::{CloneId, Flavor, Launch, Limits, RequestId, SnapshotName, StageTiming, Tenant};
use crate::clock::Stamp;
use crate::slot::{Slot, Slots};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The intent for one clone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The version of the record's format.
    pub version: u32,
    /// Its slot.
    pub slot: Slot,
    /// Its identity.
    pub clone_id: CloneId,
    /// The request that created or bound it. `None` for a member of the warm pool, and for an orphan that was adopted to be
    /// removed.
    pub request_id: Option<RequestId>,
    /// The tenant that the request named.
    pub tenant: Option<Tenant>,
    /// The user ID of the caller.
    pub owner_uid: Option<u32>,
    /// The template's snapshot.
    pub snapshot: SnapshotName,
    /// The granted limits.
    pub limits: Limits,
    /// When its create began.
    pub created: Stamp,
    /// Its deadline. Of a member of the warm pool: when it is too old to be bound.
    pub deadline: Stamp,
    /// Whether it is a member of the warm pool without an owner. The write that clears this also names the owner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pool: bool,
    /// Its phase.
    pub phase: Phase,
}

/// The phase of a clone. Creating, Pooled and Ready intend it to exist, the others to be gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Phase {
    /// Being created. After a crash it is rolled back, so its progress is not recorded.
    Creating,
    /// Created for the warm pool, verified and frozen, without an owner.
    Pooled {
        /// Which steps were done.
        flavor: Flavor,
        /// Where its browser service answers, if it has one.
        endpoint: Option<String>,
        /// Its raw CDP, if it has any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cdp_endpoint: Option<String>,
        /// The version of its template at that time, as the host reported it.
        template: String,
    },
    /// Created and verified.
    Ready {
        /// Where its browser service answers.
        endpoint: String,
        /// Its raw CDP, if it has any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cdp_endpoint: Option<String>,
        /// How long the stages of its create took. Of a bind only those before the thaw, which runs while this is written.
        stages: Vec<StageTiming>,
        /// How it was started.
        #[serde(default)]
        launch: Launch,
    },
    /// Being destroyed, or waiting for the reaper to continue.
    Destroying {
        /// Why.
        why: String,
        /// Whether a caller ever received it.
        was_ready: bool,
        /// The number of attempts.
        attempts: u32,
        /// The errors of the last attempt.
        errors: Vec<String>,
    },
    /// Verified to be gone. The slot is not used for a while.
    Quarantined {
        /// Since when.
        freed: Stamp,
        /// Whether a caller ever received it. Then its request ID cannot be used again.
        was_ready: bool,
    },
}

impl Record {
    /// The version of the format that this code writes.
    pub const VERSION: u32 = 1;

    /// Whether the clone counts against the host's capacity.
    pub fn is_live(&self) -> bool {
        !matches!(self.phase, Phase::Quarantined { .. })
    }

    /// Whether it counts against the callers' caps. Members of the warm pool do not.
    pub fn is_claimed(&self) -> bool {
        self.is_live() && !self.pool
    }

    /// Its flavour, if it is a member of the warm pool.
    pub fn pooled(&self) -> Option<Flavor> {
        match self.phase {
            Phase::Pooled { flavor, .. } if self.pool => Some(flavor),
            _ => None,
        }
    }

    /// Whether a caller ever received this clone.
    pub fn was_ready(&self) -> bool {
        match self.phase {
            Phase::Creating | Phase::Pooled { .. } => false,
            Phase::Ready { .. } => true,
            Phase::Destroying { was_ready, .. } | Phase::Quarantined { was_ready, .. } => was_ready,
        }
    }
}

/// A record as found on disk.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredRecord {
    /// Readable.
    Record(Box<Record>),
    /// Not readable: the slot is hostd's, but the intent is unknown. The text has the reason.
    Unreadable(String),
}

/// Why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct StoreError {
    path: PathBuf,
    why: String,
}

/// The records of one state folder. The caller holds the lock of the state folder.
pub struct Store {
    folder: PathBuf,
    #[cfg(feature = "fake-host")]
    hook: std::sync::Mutex<Option<WriteHook>>,
}

/// Called before (false) and after (true) every write, so that tests can simulate a crash in between.
#[cfg(feature = "fake-host")]
pub type WriteHook = Box<dyn FnMut(bool) + Send>;

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Store {
    /// Open the folder `records` below the state folder and read all of it.
    ///
    /// Refuses slots whose names differ from those that the existing records were written with: their clones would not be
    /// found.
    pub fn open(state: &Path, slots: &Slots) -> Result<(Store, BTreeMap<Slot, StoredRecord>), StoreError> {
        let folder = state.join("records");
        let failed =
            |path: &Path, error: io::Error| StoreError { path: path.to_owned(), why: error.to_string() };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|error| failed(&folder, error))?;
        let store = Store {
            folder: folder.clone(),
            #[cfg(feature = "fake-host")]
            hook: std::sync::Mutex::new(None),
        };
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&folder).map_err(|error| failed(&folder, error))? {
            let path = entry.map_err(|error| failed(&folder, error))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(TEMPORARY) {
                fs::remove_file(&path).map_err(|error| failed(&path, error))?;
                continue;
            }
            let slot = name
                .strip_prefix("slot-")
                .and_then(|rest| rest.strip_suffix(".json"))
                .and_then(|digits| digits.parse().ok())
                .and_then(Slot::new);
            let Some(slot) = slot else {
                let why = "this file is not a record: move it away".to_owned();
                return Err(StoreError { path, why });
            };
            found.insert(slot, read(&path, slot));
        }
        store.check_fingerprint(&state.join("pool.json"), slots, found.len())?;
        Ok((store, found))
    }

    /// Create the record of a slot that has none. This claims the slot; it fails if there is a record.
    ///
    /// The record is synced when this returns, so that files left by a power loss are recognised as hostd's.
    pub fn claim(&self, record: &Record) -> io::Result<()> {
        self.write(record, |file, path| {
            file.as_file().sync_all()?;
            file.persist_noclobber(path).map_err(|error| error.error)?;
            File::open(&self.folder)?.sync_all()
        })
    }

    /// Replace the record of a slot atomically.
    ///
    /// It is not synced, because it only has to survive this process. A power loss ends every clone, and after a boot every
    /// record of an earlier boot is reaped, readable or not.
    pub fn save(&self, record: &Record) -> io::Result<()> {
        self.write(record, |file, path| file.persist(path).map(drop).map_err(|error| error.error))
    }

    /// Remove the record of a slot, after verified absence.
    pub fn remove(&self, slot: Slot) -> io::Result<()> {
        self.hook(false);
        match fs::remove_file(self.path(slot)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.hook(true);
        Ok(())
    }

    /// Let a test observe the writes.
    #[cfg(feature = "fake-host")]
    pub fn set_hook(&self, hook: Option<WriteHook>) {
        *self.hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = hook;
    }

    fn write(
        &self,
        record: &Record,
        persist: impl FnOnce(tempfile::NamedTempFile, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        self.hook(false);
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.folder)?;
        serde_json::to_writer_pretty(&mut file, record)?;
        file.write_all(b"\n")?;
        persist(file, &self.path(record.slot))?;
        self.hook(true);
        Ok(())
    }

    fn path(&self, slot: Slot) -> PathBuf {
        self.folder.join(format!("slot-{slot}.json"))
    }

    fn check_fingerprint(&self, path: &Path, slots: &Slots, records: usize) -> Result<(), StoreError> {
        let failed = |why: String| StoreError { path: path.to_owned(), why };
        let fingerprint = slots.fingerprint();
        match fs::read_to_string(path) {
            Ok(before) if before == fingerprint => return Ok(()),
            Ok(before) if records > 0 => {
                return Err(failed(format!(
                    "the pool's names changed while {records} records exist, so their clones would become \
                     invisible. Put the old [pool] settings back and destroy them first.\nbefore: {before}now: {fingerprint}"
                )));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error.to_string())),
            _ => {}
        }
        let write = || -> io::Result<()> {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
            file.write_all(fingerprint.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path).map(drop).map_err(|error| error.error)
        };
        write().map_err(|error| failed(error.to_string()))
    }

    #[cfg(feature = "fake-host")]
    fn hook(&self, after: bool) {
        let mut hook = self.hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(hook) = hook.as_mut() {
            hook(after);
        }
    }

    #[cfg(not(feature = "fake-host"))]
    fn hook(&self, _after: bool) {}
}

/// The prefix of files that are being written. A crash may leave one, and the next start removes it.
const TEMPORARY: &str = ".tmp-";

fn read(path: &Path, slot: Slot) -> StoredRecord {
    let unreadable = |why: String| StoredRecord::Unreadable(format!("{}: {why}", path.display()));
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return unreadable(error.to_string()),
    };
    match serde_json::from_str::<Record>(&text) {
        Ok(record) if record.version != Record::VERSION => {
            unreadable(format!("version {} is not known to this hostd", record.version))
        }
        Ok(record) if record.slot != slot => unreadable(format!("it is about slot {}", record.slot)),
        Ok(record) => StoredRecord::Record(Box::new(record)),
        Err(error) => unreadable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PoolConfig;

    fn pool() -> Slots {
        Slots::new(&PoolConfig::default()).unwrap()
    }

    fn record(number: u16) -> Record {
        let stamp = Stamp { boot: "boot".into(), mono_ms: 5, wall_ms: 6 };
        Record {
            version: Record::VERSION,
            slot: Slot::new(number).unwrap(),
            clone_id: CloneId::random(),
            request_id: Some("r".parse().unwrap()),
            tenant: Some("t".parse().unwrap()),
            owner_uid: Some(3),
            snapshot: "default".parse().unwrap(),
            limits: Limits::default(),
            created: stamp.clone(),
            deadline: stamp,
            pool: false,
            phase: Phase::Creating,
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let (store, found) = Store::open(dir.path(), &pool()).unwrap();
        assert!(found.is_empty());
        let phases = [
            Phase::Creating,
            Phase::Ready {
                endpoint: "http://10.0.0.1:1".into(),
                cdp_endpoint: Some("ws://10.0.0.1:1/devtools/browser/a".into()),
                stages: vec![StageTiming { stage: "a".into(), seconds: 0.5 }],
                launch: Launch::Warm,
            },
            Phase::Pooled {
                flavor: Flavor::Ready,
                endpoint: Some("x".into()),
                cdp_endpoint: None,
                template: "t".into(),
            },
            Phase::Destroying { why: "x".into(), was_ready: true, attempts: 2, errors: vec!["busy".into()] },
            Phase::Quarantined { freed: record(1).created, was_ready: false },
        ];
        let mut expected = BTreeMap::new();
        for (number, phase) in (1..).zip(phases) {
            let record = Record { phase, ..record(number) };
            store.claim(&record).unwrap();
            expected.insert(record.slot, StoredRecord::Record(Box::new(record)));
        }
        let (_, found) = Store::open(dir.path(), &pool()).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_slot_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), &pool()).unwrap();
        let (first, second) = (record(1), record(1));
        store.claim(&first).unwrap();
        assert_eq!(store.claim(&second).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let (_, found) = Store::open(dir.path(), &pool()).unwrap();
        assert_eq!(found[&first.slot], StoredRecord::Record(Box::new(first)), "the first claim stands");
        store.remove(second.slot).unwrap();
        store.remove(second.slot).unwrap();
        store.claim(&second).unwrap();
    }

    #[test]
    fn damaged_records_are_found_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), &pool()).unwrap();
        for number in 1..=4 {
            store.claim(&record(number)).unwrap();
        }
        let folder = dir.path().join("records");
        let text = fs::read_to_string(folder.join("slot-001.json")).unwrap();
        fs::write(folder.join("slot-001.json"), &text[..text.len() / 2]).unwrap();
        fs::write(folder.join("slot-002.json"), text.replace("\"version\": 1", "\"version\": 9")).unwrap();
        fs::write(folder.join("slot-003.json"), "").unwrap();
        fs::write(folder.join("slot-004.json"), &text).unwrap();
        fs::write(folder.join(".tmp-half"), "{").unwrap();
        let (_, found) = Store::open(dir.path(), &pool()).unwrap();
        let told: Vec<bool> =
            found.values().map(|found| matches!(found, StoredRecord::Unreadable(_))).collect();
        assert_eq!(told, [true, true, true, true]);
        let StoredRecord::Unreadable(why) = &found[&Slot::new(4).unwrap()] else { panic!() };
        assert!(why.contains("slot-004.json") && why.contains("about slot 001"), "{why}");
        assert!(!folder.join(".tmp-half").exists(), "what a crash left half written is removed");
        fs::write(folder.join("notes.txt"), "mine").unwrap();
        let error = Store::open(dir.path(), &pool()).unwrap_err().to_string();
        assert!(error.contains("notes.txt") && error.contains("move it away"), "{error}");
    }

    #[test]
    fn a_pool_cannot_change_its_names_while_clones_exist() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), &pool()).unwrap();
        let other = Slots::new(&PoolConfig { prefix: "other".into(), ..PoolConfig::default() }).unwrap();
        Store::open(dir.path(), &other).unwrap();
        Store::open(dir.path(), &pool()).unwrap();
        store.claim(&record(1)).unwrap();
        let error = Store::open(dir.path(), &other).unwrap_err().to_string();
        assert!(error.contains("1 records exist") && error.contains("prefix=other"), "{error}");
        Store::open(dir.path(), &pool()).unwrap();
    }
}
