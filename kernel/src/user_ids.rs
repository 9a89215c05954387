//! The registry of user ids: which range belongs to which part of the project.
//!
//! All ids are between 0x70000000 and 0x7FFFFFFE. systemd's table of user ids assigns that range to nobody, and no
//! distribution, container manager or directory service uses it by default. Two programs must never share an id: processes
//! of one id may signal each other, own each other's files and share `RLIMIT_NPROC` and other limits per user.
//!
//! | ids | user |
//! |---|---|
//! | [`CLONES`] | hostd's clones: this number plus the slot (`pool.uid_base`) |
//! | [`LAUNCHER`] | browsers that root starts with the launcher |
//! | [`of_preflight`] | the checks of the machine that the sandbox runs as an ordinary user |
//! | [`EXAMPLES`] | examples and benchmarks |
//! | [`of_test`] | tests; a thousand for each test process |

use std::fs;
use std::io;
use std::ops::RangeInclusive;

/// The ids that this project may use.
pub const ALL: RangeInclusive<u32> = 0x7000_0000..=0x7fff_fffe;
/// The default of `pool.uid_base`. Slots are 1 to 999.
pub const CLONES: u32 = 1_900_000_000;
/// The ids of browsers that root starts. Each browser takes one that is free.
pub const LAUNCHER: RangeInclusive<u32> = 1_900_100_000..=1_900_100_999;
/// The ids that earlier versions of the launcher used. Profiles on disk may still belong to them.
pub const LAUNCHER_BEFORE: RangeInclusive<u32> = 60_578..=61_183;
/// The ids of the sandbox's checks of a machine. Each process that runs them uses its own.
const PREFLIGHT: RangeInclusive<u32> = 1_900_200_000..=1_900_209_999;
/// The id of examples and benchmarks.
pub const EXAMPLES: u32 = 1_900_300_000;
/// Ids that systemd gives to services with `DynamicUser=`.
pub const SYSTEMD_DYNAMIC: RangeInclusive<u32> = 61_184..=65_519;

/// The first id of a test's range.
const TESTS: u32 = 2_000_000_000;
/// How many ids one test process has.
pub const PER_TEST: u32 = 1000;
/// How many test processes have ranges of their own at the same time.
const TEST_PROCESSES: u32 = 100_000;

/// The ids of a test: `process` is the test's process id outside of any pid namespace that it makes. Concurrent tests,
/// also of another checkout, have different ids unless their process ids differ by a multiple of 100,000.
pub const fn of_test(process: u32) -> RangeInclusive<u32> {
    let first = TESTS + process % TEST_PROCESSES * PER_TEST;
    first..=first + PER_TEST - 1
}

/// The id of the checks of a machine that the process `process` runs.
pub const fn of_preflight(process: u32) -> u32 {
    *PREFLIGHT.start() + process % (*PREFLIGHT.end() - *PREFLIGHT.start() + 1)
}

/// Whether `id` may be the owner of a profile that the launcher made.
pub fn is_launchers(id: u32) -> bool {
    LAUNCHER.contains(&id) || LAUNCHER_BEFORE.contains(&id)
}

/// What a line of a database gives to somebody.
type LineReader = fn(&str) -> Option<RangeInclusive<u32>>;

/// The databases that give ids to accounts, and ranges of ids to their containers.
const DATABASES: [(&str, LineReader); 4] = [
    ("/etc/passwd", account),
    ("/etc/group", account),
    ("/etc/subuid", subordinate),
    ("/etc/subgid", subordinate),
];

/// A line of a database that gives ids to somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The ids.
    pub ids: RangeInclusive<u32>,
    /// The database and the line.
    pub line: String,
}

/// What the local databases give to somebody of the ids in `range`. A missing database gives nothing.
///
/// Directory services are not asked: that can take seconds. See [`account_of`].
pub fn local_claims(range: &RangeInclusive<u32>) -> io::Result<Vec<Claim>> {
    let mut claims = Vec::new();
    for (path, claimed) in DATABASES {
        let text = match fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        };
        for line in text.lines() {
            let ids = claimed(line).filter(|ids| ids.start() <= range.end() && range.start() <= ids.end());
            claims.extend(ids.map(|ids| Claim { ids, line: format!("{path}: {line}") }));
        }
    }
    Ok(claims)
}

/// A line of passwd or group: `name:password:id:…`.
fn account(line: &str) -> Option<RangeInclusive<u32>> {
    let id = line.split(':').nth(2)?.parse().ok()?;
    Some(id..=id)
}

/// A line of subuid or subgid: `name:first:count`.
fn subordinate(line: &str) -> Option<RangeInclusive<u32>> {
    let mut numbers = line.split(':').skip(1);
    let first: u32 = numbers.next()?.parse().ok()?;
    let count: u64 = numbers.next()?.parse().ok()?;
    let last = u64::from(first) + count.checked_sub(1)?;
    Some(first..=u32::try_from(last).unwrap_or(u32::MAX))
}

/// The name of the account or group with this id, from every configured database. It may ask a directory service over the
/// network, so it is only for checks that an operator waits for.
#[cfg(target_os = "linux")]
pub fn account_of(id: u32) -> io::Result<Option<String>> {
    use nix::unistd::{Gid, Group, Uid, User};
    if let Some(user) = User::from_uid(Uid::from_raw(id))? {
        return Ok(Some(format!("user {}", user.name)));
    }
    Ok(Group::from_gid(Gid::from_raw(id))?.map(|group| format!("group {}", group.name)))
}

/// The processes whose real or effective user id is in `range`, with that id.
#[cfg(target_os = "linux")]
pub fn processes_in(range: &RangeInclusive<u32>) -> io::Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that ends meanwhile is none.
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        if let Some(id) = user_id_in(&status, range) {
            found.push((pid, id));
        }
    }
    Ok(found)
}

#[cfg(target_os = "linux")]
fn user_id_in(status: &str, range: &RangeInclusive<u32>) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().take(2).filter_map(|id| id.parse().ok()).find(|id| range.contains(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_are_in_the_projects_range_and_do_not_overlap() {
        let clones = CLONES..=CLONES + 999;
        let single = |id: u32| id..=id;
        let tests = *of_test(0).start()..=*of_test(TEST_PROCESSES - 1).end();
        let ranges = [clones, LAUNCHER, PREFLIGHT, single(EXAMPLES), tests];
        for (index, one) in ranges.iter().enumerate() {
            assert!(ALL.contains(one.start()) && ALL.contains(one.end()), "{one:?}");
            for other in &ranges[index + 1..] {
                assert!(one.end() < other.start() || other.end() < one.start(), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn concurrent_tests_have_different_ids() {
        assert_eq!(of_test(7), 2_000_007_000..=2_000_007_999);
        assert!(of_test(4_194_303).end() < of_test(4_194_304).start());
    }

    #[test]
    fn accounts_and_subordinate_ranges_are_read() {
        assert_eq!(account("ann:x:1000:50::/:/bin/sh"), Some(1000..=1000));
        assert_eq!(account("bad line"), None);
        assert_eq!(account("ann:x:many:50"), None);
        assert_eq!(subordinate("ann:100000:65536"), Some(100_000..=165_535));
        assert_eq!(subordinate("ann:7:1"), Some(7..=7));
        assert_eq!(subordinate("ann:0:4294967297"), Some(0..=u32::MAX));
        for nothing in ["ann:7:0", "ann:x:5", "ann:5", ""] {
            assert_eq!(subordinate(nothing), None, "{nothing}");
        }
        let root = local_claims(&(0..=0)).expect("the databases can be read");
        assert!(root.iter().any(|claim| claim.line.starts_with("/etc/passwd: root:")), "{root:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processes_are_found_by_their_user() {
        let status = "Name:\tx\nUid:\t7\t8\t9\t9\nGid:\t1\t1\t1\t1\n";
        assert_eq!(user_id_in(status, &(7..=7)), Some(7));
        assert_eq!(user_id_in(status, &(8..=8)), Some(8));
        assert_eq!(user_id_in(status, &(9..=9)), None);
        let own = nix::unistd::getuid().as_raw();
        let found = processes_in(&(own..=own)).expect("/proc");
        assert!(found.contains(&(std::process::id(), own)));
        assert_eq!(account_of(0).expect("the database answers"), Some("user root".to_owned()));
    }
}
