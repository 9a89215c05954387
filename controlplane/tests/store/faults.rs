//! A database that fails: typed errors, nothing half done, and it heals by itself.

use crate::both;
use crate::rows::session;
use crate::support::database::Database;
use crate::support::postgres::Postgres;
use controlplane::audit::{Audit, Entry};
use controlplane::config::{AuditConfig, StoreConfig};
use controlplane::error::{ApiError, ErrorCode};
use controlplane::store::{Inserted, OpenError, Store, StoreError};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn assert_unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    let error = result.expect_err("the database does not work");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let api = ApiError::from(error);
    assert!(api.is(ErrorCode::StoreUnavailable) && api.retry_after_seconds() == Some(1), "{api}");
}

/// Wait until the call succeeds.
async fn healed(store: &Store) {
    let began = Instant::now();
    while let Err(error) =
        store.touch_sessions(&[("ses_0123456789abcdef0123456789abcdef".parse().expect("an id"), 1)]).await
    {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not heal: {error}");
    }
}

/// Every session that has an idempotency key is there, and the other way round.
fn assert_nothing_half_done(database: &Database) {
    let half = "SELECT (SELECT COUNT(*) FROM sessions WHERE id NOT IN (SELECT session FROM idempotency)) \
                + (SELECT COUNT(*) FROM idempotency WHERE session NOT IN (SELECT id FROM sessions))";
    assert_eq!(database.sql(half), "0");
}

both! {
    /// A database that somebody else holds, or that is gone, and comes back.
    async fn an_outage_heals(database: &mut Database) {
        database.config.timeout_seconds = 1;
        let store = database.open().await;
        let before = session("a", "uid:1", 1);
        store.insert_session(&before, Some(("before", b"r"))).await.expect("insert");
        for round in 0..2 {
            database.fail();
            let lost = session("a", "uid:1", 2);
            let key = format!("lost {round}");
            assert_unavailable(store.insert_session(&lost, Some((&key, b"r"))).await);
            assert_unavailable(store.set_session_closing(&before.id).await);
            database.heal();
            healed(&store).await;
            assert_eq!(store.session(&lost.id).await.expect("read"), None);
            assert_eq!(store.session(&before.id).await.expect("read"), Some(before.clone()));
            let again = store.insert_session(&lost, Some((&key, b"r"))).await.expect("insert");
            assert_eq!(again, Inserted::New);
            assert_nothing_half_done(database);
        }
    }

    /// The database fails again and again under load: what was confirmed is there, and nothing is half done.
    async fn outages_under_load(database: &mut Database) {
        database.config.timeout_seconds = 1;
        let store = database.open().await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..8 {
            let (store, stop) = (store.clone(), stop.clone());
            tasks.spawn(async move {
                let (mut confirmed, mut failed) = (Vec::new(), 0);
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let row = session("a", "uid:1", 1);
                    match store.insert_session(&row, Some((&format!("{worker} {number}"), b"r"))).await {
                        Ok(Inserted::New) => confirmed.push(row.id),
                        Ok(other) => panic!("the key is new: {other:?}"),
                        Err(StoreError::Unavailable(_)) => {
                            failed += 1;
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
                (confirmed, failed)
            });
        }
        let rows = |database: &Database| database.sql("SELECT COUNT(*) FROM sessions").parse::<u64>().expect("a number");
        for _ in 0..3 {
            // Work is done between the failures, so that they meet it.
            let (before, began) = (rows(database), Instant::now());
            while rows(database) < before + 20 {
                assert!(began.elapsed() < Duration::from_secs(60), "no work is done");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            database.fail();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            database.heal();
        }
        healed(&store).await;
        stop.store(true, Ordering::Relaxed);
        let results = tasks.join_all().await;
        assert!(results.iter().any(|(_, failed)| *failed > 0), "no call met an outage");
        for (confirmed, _) in &results {
            for id in confirmed {
                assert!(store.session(id).await.expect("read").is_some(), "{id} was confirmed");
            }
        }
        assert_nothing_half_done(database);
    }

    /// A caller that goes away in the middle of a call leaves nothing behind, and the store works on.
    async fn abandoned_calls(database: &mut Database) {
        let store = database.open().await;
        for micros in (0..4000).step_by(20) {
            let row = session("a", "uid:1", 1);
            let key = row.id.to_string();
            let insert = store.insert_session(&row, Some((&key, b"r")));
            let _ = tokio::time::timeout(Duration::from_micros(micros), insert).await;
        }
        healed(&store).await;
        assert_nothing_half_done(database);
        let row = session("a", "uid:1", 1);
        assert_eq!(store.insert_session(&row, None).await.expect("insert"), Inserted::New);
    }
}

/// The connection is cut while a transaction is under way: all of it is undone.
#[test]
fn a_connection_lost_within_a_transaction() {
    crate::run(Database::postgres(), async |database: &mut Database| {
        let store = database.open().await;
        let server = database.server.as_ref().expect("a server");
        // The transaction inserts the session and then waits for this lock.
        let mut holder = server
            .psql("test_0")
            .args(["-c", "BEGIN; LOCK TABLE idempotency; SELECT pg_sleep(600)"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("psql");
        let waiting = async |what: &str| {
            let began = Instant::now();
            while server.sql("test_0", what) == "0" {
                assert!(began.elapsed() < Duration::from_secs(60), "{what}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        waiting(
            "SELECT COUNT(*) FROM pg_locks WHERE relation = 'idempotency'::regclass AND mode = 'AccessExclusiveLock' AND granted",
        ).await;
        let row = session("a", "uid:1", 1);
        let (other, key) = (store.clone(), row.clone());
        let insert = tokio::spawn(async move { other.insert_session(&key, Some(("k", b"r"))).await });
        waiting("SELECT COUNT(*) FROM pg_locks WHERE relation = 'idempotency'::regclass AND NOT granted")
            .await;
        server.sql(
            "test_0",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'controlplane'",
        );
        assert_unavailable(insert.await.expect("no panic"));
        server.sql("test_0", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()");
        holder.wait().expect("wait");
        assert_eq!(store.session(&row.id).await.expect("it heals at once"), None);
        assert_eq!(store.insert_session(&row, Some(("k", b"r"))).await.expect("insert"), Inserted::New);
    });
}

/// A server that does not answer does not hold up a call for longer than the configured time.
#[test]
fn a_server_that_hangs() {
    let mut database = Database::postgres();
    database.config.timeout_seconds = 1;
    crate::run(database, async |database: &mut Database| {
        let store = database.open().await;
        let row = session("a", "uid:1", 1);
        store.insert_session(&row, None).await.expect("insert");
        let server = database.server.as_ref().expect("a server");
        server.freeze();
        assert_unavailable(store.insert_session(&session("a", "uid:1", 2), None).await);
        assert_unavailable(store.session(&row.id).await);
        server.thaw();
        healed(&store).await;
        assert_eq!(store.session(&row.id).await.expect("read"), Some(row));
    });
}

/// A server that is made read-only, as a standby is.
#[test]
fn a_read_only_server() {
    crate::run(Database::postgres(), async |database: &mut Database| {
        let store = database.open().await;
        let server = database.server.as_ref().expect("a server");
        let switch = |value: &str| {
            server.sql("test_0", &format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
            server.sql("test_0", "SELECT pg_reload_conf()");
        };
        switch("on");
        let began = Instant::now();
        let row = session("a", "uid:1", 1);
        // The processes of the server read the setting a moment later.
        let refused = loop {
            match store.insert_session(&row, None).await {
                Ok(_) => drop(store.set_session_closed(&row.id, 1, "requested").await),
                Err(StoreError::Refused(_)) if began.elapsed() < Duration::from_secs(60) => {}
                other => break other,
            }
        };
        assert_unavailable(refused);
        assert_unavailable(store.check().await);
        switch("off");
        healed(&store).await;
        store.check().await.expect("writable");
    });
}

/// A database that is no database, or is damaged, is not an outage.
#[test]
fn a_damaged_file() {
    crate::run(Database::sqlite(), async |database: &mut Database| {
        let file = database.state().join("controlplane.db");
        std::fs::write(&file, "no database".repeat(100)).expect("write");
        let error = database.try_open().await.expect_err("refused");
        assert!(
            matches!(error, OpenError::Connect(_)) && error.to_string().contains("not a database"),
            "{error}"
        );

        std::fs::remove_file(&file).expect("remove");
        let store = database.open().await;
        let row = session("a", "uid:1", 1);
        store.insert_session(&row, None).await.expect("insert");
        store.close().await;
        let store = database.open().await;
        let mut bytes = std::fs::read(&file).expect("read");
        bytes[4096..].fill(0x55);
        std::fs::write(&file, bytes).expect("write");
        let error = store.session(&row.id).await.expect_err("damaged");
        assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
    });
}

/// The server is ended with the thread that started it, whatever happens to the test.
#[test]
fn no_server_is_left() {
    let (folder, data) = std::thread::spawn(|| {
        let server = Postgres::start();
        let folder = server.folder().to_owned();
        let data = std::fs::read_to_string(folder.join("data/postmaster.pid")).expect("the server runs");
        // The thread ends without the destructor, as with a killed test.
        std::mem::forget(server);
        (folder, data)
    })
    .join()
    .expect("the thread");
    let pid: u32 = data.lines().next().expect("a line").parse().expect("a process id");
    // It is a zombie until this process ends, because nobody waits for it.
    let ended =
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    let began = Instant::now();
    while !ended() {
        assert!(began.elapsed() < Duration::from_secs(60), "the server runs without its test");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_dir_all(folder).expect("the folder");
}

const INSIDE: &str = "CONTROLPLANE_TEST_INSIDE";

/// Run the body where mounts are seen by this test only: the calling test is started again in a mount namespace.
fn with_private_mounts(test: &str, body: impl AsyncFnOnce(&Path)) {
    if let Some(proof) = std::env::var_os(INSIDE) {
        let folder = Path::new(&proof).parent().expect("a folder").join("mount");
        crate::runtime().block_on(body(&folder));
        return std::fs::write(&proof, test).expect("the proof that the body ran");
    }
    let folder = tempfile::Builder::new().prefix("cp-mount-").tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("mount")).expect("a folder");
    let proof = folder.path().join("proof");
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let status = command
        .args(["--mount", "--fork", "--kill-child", "--"])
        .arg(std::env::current_exe().expect("a path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, &proof)
        .status()
        .expect("unshare (util-linux) can be started");
    assert!(status.success(), "{test} failed in its mount namespace: {status}");
    assert_eq!(std::fs::read_to_string(proof).expect("the proof"), test);
}

fn mount(arguments: &[&str], target: &Path) {
    let status = Command::new("mount").args(arguments).arg(target).status().expect("mount");
    assert!(status.success(), "mount {arguments:?}");
}

/// The disk is full: writing fails, reading works, and it heals when there is room again.
#[test]
fn a_full_disk() {
    with_private_mounts("faults::a_full_disk", async |folder: &Path| {
        mount(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"], folder);
        let config = StoreConfig { timeout_seconds: 2, ..StoreConfig::default() };
        let store = Store::open(&config, folder).await.expect("opens");
        let first = session("a", "uid:1", 1);
        store.insert_session(&first, Some(("first", b"r"))).await.expect("insert");
        let audit = Audit::start(store.clone(), folder, &AuditConfig::default()).await.expect("starts");
        let entry = || Entry {
            actor: "uid:1".into(),
            tenant: "a".into(),
            session: None,
            verb: "click".into(),
            params: serde_json::json!({ "text": "x".repeat(5000) }),
        };

        for round in 0..3 {
            let ballast = folder.join("ballast");
            let mut full = Command::new("dd");
            full.arg("if=/dev/zero")
                .arg(format!("of={}", ballast.display()))
                .arg("bs=4k")
                .stderr(Stdio::null());
            assert!(!full.status().expect("dd").success(), "the disk is full");

            let mut refused = 0;
            let mut rows = Vec::new();
            for number in 0..50 {
                let row = session("a", "uid:1", 2);
                match store.insert_session(&row, Some((&format!("{round} {number}"), b"r"))).await {
                    Ok(_) => rows.push((row, true)),
                    Err(error) => {
                        assert_unavailable::<()>(Err(error));
                        refused += 1;
                        rows.push((row, false));
                    }
                }
            }
            assert!(refused > 0, "no call met the full disk");
            // A last page of the file may still have room for a check, which is remembered for a second.
            let began = Instant::now();
            let found = loop {
                let checked = store.check().await;
                if checked.is_err() || began.elapsed() > Duration::from_secs(60) {
                    break checked;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            assert_unavailable(found);
            let refused = loop {
                match audit.begin(entry()).await {
                    Ok(begun) => begun.end(Ok(())),
                    Err(error) => break error,
                }
            };
            assert!(refused.is(ErrorCode::AuditUnavailable), "{refused}");
            assert_eq!(store.session(&first.id).await.expect("reading works"), Some(first.clone()));

            std::fs::remove_file(&ballast).expect("remove");
            healed(&store).await;
            store.check().await.expect("writable");
            for (row, inserted) in rows {
                assert_eq!(store.session(&row.id).await.expect("read").is_some(), inserted);
            }
            audit.begin(entry()).await.expect("it heals").end(Ok(()));
        }
        audit.stop(Duration::from_secs(60)).await;
        let report = audit.verify().await.expect("verify");
        assert!(report.intact, "{report:?}");
        store.close().await;
    });
}

/// A read-only file system at the start: the error names the file.
#[test]
fn a_read_only_disk() {
    with_private_mounts("faults::a_read_only_disk", async |folder: &Path| {
        mount(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"], folder);
        Store::open(&StoreConfig::default(), folder).await.expect("opens").close().await;
        mount(&["-o", "remount,ro"], folder);
        let error = Store::open(&StoreConfig::default(), folder).await.expect_err("refused");
        assert!(matches!(error, OpenError::File { .. }), "{error:?}");
        assert!(error.to_string().contains("controlplane.db: Read-only file system"), "{error}");
    });
}
