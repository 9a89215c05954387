//! Records: one file per clone in the state folder, written before the first effect and removed after verified absence.
//!
//! A record holds the intent, never existence, which is found by inspecting the host. A slot is claimed by creating its
//! record, which only one caller can do.

use crate::api::{
    CloneId, CloneSecret, Flavor, Launch, Limits, RequestId, SnapshotName, StageTiming, Tenant,
};
use crate::clock::Stamp;
use crate::disk::{is_disk_failure, make_folder, sync_folder};
use crate::slot::{Slot, Slots};
use serde::{Deserialize, Serialize};
use settings::trusted_path::{self, ParentRule};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
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
    /// What its browserd requires of callers; none for an orphan that was adopted in order to be removed, and for a clone of
    /// an earlier version of hostd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<CloneSecret>,
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
        /// Its raw CDP, if it has any, without the secret.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cdp_endpoint: Option<String>,
        /// The version of its template at that time, as the host reported it.
        template: String,
    },
    /// Created and verified.
    Ready {
        /// Where its browser service answers.
        endpoint: String,
        /// Its raw CDP, if it has any, without the secret.
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
        /// When the slot was freed.
        freed: Stamp,
        /// Whether a caller ever received it. Then its request ID cannot be used again.
        was_ready: bool,
    },
}

impl Record {
    /// The version of the format that this code writes.
    pub const VERSION: u32 = 1;

    /// Whether this user's request made the clone. Every user has request ids of its own.
    pub fn is_of(&self, owner: Option<u32>, request: &RequestId) -> bool {
        self.owner_uid == owner && self.request_id.as_ref() == Some(request)
    }

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
    pool_file: PathBuf,
    fingerprint: String,
    #[cfg(feature = "fake-host")]
    hook: std::sync::Mutex<Option<WriteHook>>,
}

/// Called before (false) and after (true) every write, so that tests can make it fail or simulate a crash.
#[cfg(feature = "fake-host")]
pub type WriteHook = Box<dyn FnMut(bool) -> io::Result<()> + Send>;

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Store {
    /// Open the folder `records` below the state folder and read all of it.
    ///
    /// A disk that is full or read-only is no error here: what can be read is used, so that clones go at their deadline,
    /// and [`Store::prepare`] is tried again later. Refuses a pool whose names differ from those the existing records were
    /// made with: their clones would become invisible.
    pub fn open(state: &Path, slots: &Slots) -> Result<(Store, BTreeMap<Slot, StoredRecord>), StoreError> {
        let folder = state.join("records");
        let store = Store {
            folder: folder.clone(),
            pool_file: state.join("pool.json"),
            fingerprint: slots.fingerprint(),
            #[cfg(feature = "fake-host")]
            hook: std::sync::Mutex::new(None),
        };
        let found = store.read_all()?;
        store.check_fingerprint(found.len())?;
        match store.prepare() {
            Err(error) if !is_disk_failure(&error) => {
                Err(StoreError { path: folder, why: error.to_string() })
            }
            Err(error) => {
                tracing::error!(folder = %folder.display(), %error, "records cannot be written; creates are refused");
                Ok((store, found))
            }
            Ok(()) => Ok((store, found)),
        }
    }

    /// Make what a write needs: the folder, and the file that names the pool. Existing ones are checked only.
    pub fn prepare(&self) -> io::Result<()> {
        let state = self.pool_file.parent().unwrap_or(Path::new("/"));
        make_folder(state, STATE_MODE)?;
        make_folder(&self.folder, 0o700)?;
        trusted_path::folder(&self.folder, ParentRule::Strict)?;
        if fs::read_to_string(&self.pool_file).is_ok_and(|before| before == self.fingerprint) {
            return Ok(());
        }
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(state)?;
        file.write_all(self.fingerprint.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&self.pool_file).map_err(|error| error.error)?;
        sync_folder(state)
    }

    /// Find out whether records can be written, by writing a file of the size of a record.
    pub fn probe(&self) -> io::Result<()> {
        self.hook(false)?;
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.folder)?;
        file.write_all(&[b' '; PROBE_BYTES])
    }

    /// The slots that have a file.
    pub fn slots(&self) -> io::Result<BTreeSet<Slot>> {
        let mut slots = BTreeSet::new();
        for entry in fs::read_dir(&self.folder)? {
            slots.extend(slot_of_file(&entry?.file_name().to_string_lossy()));
        }
        Ok(slots)
    }

    fn read_all(&self) -> Result<BTreeMap<Slot, StoredRecord>, StoreError> {
        let failed =
            |path: &Path, error: io::Error| StoreError { path: path.to_owned(), why: error.to_string() };
        let mut found = BTreeMap::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries.map_err(|error| failed(&self.folder, error))?,
        };
        for entry in entries {
            let path = entry.map_err(|error| failed(&self.folder, error))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(TEMPORARY) {
                match fs::remove_file(&path) {
                    Err(error) if !is_disk_failure(&error) => return Err(failed(&path, error)),
                    _ => continue,
                }
            }
            let Some(slot) = slot_of_file(name) else {
                let why = "this file is not a record: move it away".to_owned();
                return Err(StoreError { path, why });
            };
            found.insert(slot, read(&path, slot));
        }
        Ok(found)
    }

    /// Create the record of a slot that has none. This claims the slot: it fails if there is a record.
    ///
    /// It is synced before this returns, so that files that a loss of power leaves behind are recognised as ours.
    pub fn claim(&self, record: &Record) -> io::Result<()> {
        self.write(record, |file, path| {
            file.as_file().sync_all()?;
            file.persist_noclobber(path).map_err(|error| error.error)?;
            sync_folder(&self.folder)
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
        self.hook(false)?;
        match fs::remove_file(self.path(slot)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.hook(true)
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
        self.hook(false)?;
        let make = || tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.folder);
        let mut file = match make() {
            // Somebody removed the folder. The registry writes the other records again too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.prepare().and_then(|()| make())?,
            made => made?,
        };
        // One write(2): a serializer that writes to the file itself makes hundreds of them.
        let mut text = serde_json::to_vec_pretty(record)?;
        text.push(b'\n');
        file.write_all(&text)?;
        persist(file, &self.path(record.slot))?;
        self.hook(true)
    }

    fn path(&self, slot: Slot) -> PathBuf {
        self.folder.join(format!("slot-{slot}.json"))
    }

    fn check_fingerprint(&self, records: usize) -> Result<(), StoreError> {
        let failed = |why: String| StoreError { path: self.pool_file.clone(), why };
        match fs::read_to_string(&self.pool_file) {
            Ok(before) if before != self.fingerprint && records > 0 => Err(failed(format!(
                "the pool's names changed while {records} records exist, so their clones would become invisible. \
                 Put the old [pool] settings back and destroy them first.\nbefore: {before}now: {}",
                self.fingerprint
            ))),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error.to_string())),
            _ => Ok(()),
        }
    }

    #[cfg(feature = "fake-host")]
    fn hook(&self, after: bool) -> io::Result<()> {
        let mut hook = self.hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        hook.as_mut().map_or(Ok(()), |hook| hook(after))
    }

    #[cfg(not(feature = "fake-host"))]
    fn hook(&self, _after: bool) -> io::Result<()> {
        Ok(())
    }
}

fn slot_of_file(name: &str) -> Option<Slot> {
    name.strip_prefix("slot-")?.strip_suffix(".json")?.parse().ok().and_then(Slot::new)
}

/// The mode of the state folder: the clones' users must reach their folders below it. Secret files have modes of their own.
pub(crate) const STATE_MODE: u32 = 0o711;

/// No record is larger.
const PROBE_BYTES: usize = 8192;

/// The prefix of files that are being written. A crash may leave one, and it is removed at the next start.
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
    use std::os::unix::fs::PermissionsExt;

    fn pool() -> Slots {
        Slots::new(&PoolConfig::default()).unwrap()
    }

    fn record(number: u16) -> Record {
        let stamp = Stamp { boot: "boot".into(), mono_ms: 5, wall_ms: 6 };
        Record {
            version: Record::VERSION,
            slot: Slot::new(number).unwrap(),
            clone_id: CloneId::random(),
            secret: Some(CloneSecret::random()),
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
        for entry in fs::read_dir(dir.path().join("records")).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "a record contains a secret");
        }
        assert!(!format!("{found:?}").contains(record_secret(&found)), "and does not show it");
    }

    fn record_secret(found: &BTreeMap<Slot, StoredRecord>) -> &str {
        let Some(StoredRecord::Record(record)) = found.values().next() else { panic!("a record") };
        record.secret.as_ref().expect("a secret").as_str()
    }

    #[test]
    fn a_record_is_written_by_one_system_call() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), &pool()).unwrap();
        store.claim(&record(1)).unwrap();
        // The kernel counts the calls of each thread.
        let writes = || {
            let text = fs::read_to_string("/proc/thread-self/io").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap();
            line.parse::<u64>().unwrap()
        };
        let before = writes();
        store.save(&record(1)).unwrap();
        assert_eq!(writes() - before, 1);
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
    fn a_folder_that_is_gone_is_made_again_by_the_next_write() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let (store, _) = Store::open(&state, &pool()).unwrap();
        store.claim(&record(1)).unwrap();
        for gone in [state.join("records"), state.clone()] {
            fs::remove_dir_all(gone).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(store.slots().unwrap_err().kind(), io::ErrorKind::NotFound);
            store.save(&record(1)).unwrap();
            assert_eq!(store.slots().unwrap(), BTreeSet::from([record(1).slot]));
            assert_eq!(mode(&state.join("records")), 0o700);
            assert_eq!(mode(&state) & 0o011, 0o011, "{:o}", mode(&state));
            let (_, found) = Store::open(&state, &pool()).unwrap();
            assert_eq!(found.len(), 1);
        }
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        Store::open(dir.path(), &pool()).unwrap();
        fs::set_permissions(dir.path().join("records"), fs::Permissions::from_mode(0o770)).unwrap();
        let error = Store::open(dir.path(), &pool()).unwrap_err().to_string();
        assert!(error.contains("records") && error.contains("chmod go-w"), "{error}");
        // Who can rename a folder on the way decides which records hostd finds.
        let state = dir.path().join("open/state");
        fs::create_dir_all(&state).unwrap();
        fs::set_permissions(dir.path().join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        let error = Store::open(&state, &pool()).unwrap_err().to_string();
        assert!(error.contains("open can be written by others"), "{error}");
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
