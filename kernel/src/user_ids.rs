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
//! | [`PREFLIGHT`] | the checks of the machine that the sandbox runs as an ordinary user |
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
/// The id of the sandbox's checks of a machine.
pub const PREFLIGHT: u32 = 1_900_200_000;
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

/// Whether `id` may be the owner of a profile that the launcher made.
pub fn is_launchers(id: u32) -> bool {
    LAUNCHER.contains(&id) || LAUNCHER_BEFORE.contains(&id)
}

/// The databases that give ids to accounts, and the column of the id.
const ACCOUNTS: [(&str, usize); 2] = [("/etc/passwd", 2), ("/etc/group", 2)];
/// The databases that give ranges of ids to accounts for their containers.
const SUBORDINATE: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// The lines of the local databases that give ids of `range` to somebody. A missing database gives none.
///
/// Directory services are not asked: that can take seconds. See [`account_of`].
pub fn local_claims(range: &RangeInclusive<u32>) -> io::Result<Vec<String>> {
    let mut claims = Vec::new();
    for (path, column) in ACCOUNTS {
        claims.extend(account_claims(&read(path)?, column, range).map(|line| format!("{path}: {line}")));
    }
    for path in SUBORDINATE {
        claims.extend(subordinate_claims(&read(path)?, range).map(|line| format!("{path}: {line}")));
    }
    Ok(claims)
}

fn read(path: &str) -> io::Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
    }
}

fn account_claims<'a>(
    text: &'a str,
    column: usize,
    range: &'a RangeInclusive<u32>,
) -> impl Iterator<Item = &'a str> {
    text.lines().filter(move |line| {
        let id = line.split(':').nth(column).and_then(|id| id.parse().ok());
        id.is_some_and(|id| range.contains(&id))
    })
}

/// Lines are `name:first:count`.
fn subordinate_claims<'a>(text: &'a str, range: &'a RangeInclusive<u32>) -> impl Iterator<Item = &'a str> {
    text.lines().filter(move |line| {
        let mut numbers = line.split(':').skip(1).map(|number| number.parse::<u64>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(first), Some(count)) => {
                count > 0
                    && first <= u64::from(*range.end())
                    && first.saturating_add(count - 1) >= u64::from(*range.start())
            }
            _ => false,
        }
    })
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
        let ranges = [clones, LAUNCHER, single(PREFLIGHT), single(EXAMPLES), tests];
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
    fn accounts_and_subordinate_ranges_are_found() {
        let range = 1000..=1999;
        let passwd = "root:x:0:0::/:/bin/sh\nann:x:1000:50::/:/bin/sh\nbad line\nbob:x:2000:2000::/:/bin/sh\n";
        assert_eq!(account_claims(passwd, 2, &range).count(), 1);
        for (line, found) in [
            ("ann:100000:65536", false),
            ("ann:500:501", true),
            ("ann:500:500", false),
            ("ann:1999:1", true),
            ("ann:2000:1", false),
            ("ann:0:4294967296", true),
            ("ann:1500:0", false),
            ("ann:x:5", false),
        ] {
            assert_eq!(subordinate_claims(line, &range).count() == 1, found, "{line}");
        }
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
