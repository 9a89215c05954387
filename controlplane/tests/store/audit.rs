//! The audit log.

use crate::both;
use crate::support::database::Database;
use controlplane::audit::{Audit, Entry, Problem, Report};
use controlplane::config::AuditConfig;
use controlplane::error::{ApiError, ErrorCode};
use controlplane::ids::SessionId;
use controlplane::store::{AuditFilter, AuditRow, Store};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const STOP: Duration = Duration::from_secs(60);

fn entry(tenant: &str, verb: &str) -> Entry {
    Entry {
        actor: "uid:1".into(),
        tenant: tenant.into(),
        session: None,
        verb: verb.into(),
        params: json!({ "b": "\u{0}ü'\"", "a": [1, 2.5, null] }),
    }
}

async fn start(store: &Store, folder: &Path) -> Audit {
    Audit::start(store.clone(), folder, &AuditConfig::default()).await.expect("starts")
}

async fn rows(store: &Store) -> Vec<AuditRow> {
    store.audit_rows(&AuditFilter { limit: 1_000_000, ..AuditFilter::default() }).await.expect("rows")
}

/// Wait until nothing is queued.
async fn written(audit: &Audit) {
    let began = Instant::now();
    while audit.status().waiting > 0 || !audit.status().healthy {
        assert!(began.elapsed() < Duration::from_secs(120), "{:?}", audit.status());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn verified(audit: &Audit) -> Report {
    let report = audit.verify().await.expect("verify");
    assert!(report.intact && report.problems.is_empty(), "{report:?}");
    report
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Ten calls in a log that was stopped, so that its head is signed.
async fn ten_calls(database: &Database) -> Store {
    let store = database.open().await;
    let audit = start(&store, database.state()).await;
    for _ in 0..10 {
        audit.begin(entry("a", "click")).await.expect("committed").end(Ok(()));
    }
    audit.stop(STOP).await;
    store
}

/// What a program finds that is started on this database now.
async fn problems(database: &Database, store: &Store) -> Vec<Problem> {
    let audit = start(store, database.state()).await;
    let report = audit.verify().await.expect("verify");
    assert_eq!(report.intact, report.problems.is_empty());
    audit.stop(STOP).await;
    report.problems
}

both! {
    /// A call has a row before it and a row after it, in one chain.
    async fn rows_and_chain(database: &mut Database) {
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        let session = SessionId::random();
        let first = Entry { session: Some(session.clone()), ..entry("a", "click") };
        let begun = audit.begin(first).await.expect("committed");
        // Committed when it returns.
        assert_eq!(rows(&store).await.len(), 1);
        begun.end(Ok(()));
        let failed = audit.begin(entry("b", "navigate")).await.expect("committed");
        failed.end(Err(&ApiError::new(ErrorCode::Timeout, "the page is slow")));
        let mut opened = audit.begin_always(entry("a", "open_session")).await;
        opened.set_session(&session);
        drop(opened);
        audit.stop(STOP).await;

        let rows = rows(&store).await;
        let seen: Vec<_> = rows.iter().map(|row| (row.seq, row.event.as_str(), row.verb.as_str(), row.outcome.as_deref())).collect();
        assert_eq!(seen, [
            (1, "begin", "click", None), (2, "end", "click", Some("ok")),
            (3, "begin", "navigate", None), (4, "end", "navigate", Some("timeout")),
            (5, "begin", "open_session", None), (6, "end", "open_session", Some("cancelled")),
        ]);
        assert_eq!(rows[0].call, rows[1].call);
        assert_ne!(rows[1].call, rows[2].call);
        let params: serde_json::Value = serde_json::from_str(rows[0].params.as_deref().expect("parameters")).expect("JSON");
        assert_eq!(params, entry("a", "click").params);
        assert_eq!(rows[0].session.as_deref(), Some(session.as_str()));
        assert_eq!(rows[5].session.as_deref(), Some(session.as_str()));
        assert_eq!(rows[0].previous, [0; 32]);

        let of = async |filter: AuditFilter| -> Vec<i64> {
            store.audit_rows(&filter).await.expect("rows").iter().map(|row| row.seq).collect()
        };
        let all = AuditFilter { limit: 100, ..AuditFilter::default() };
        let tenant = Some("a".parse().expect("a tenant"));
        assert_eq!(of(AuditFilter { tenant: tenant.clone(), ..all.clone() }).await, [1, 2, 5, 6]);
        assert_eq!(of(AuditFilter { tenant, after_seq: 1, limit: 2, ..all.clone() }).await, [2, 5]);
        assert_eq!(of(AuditFilter { session: Some(session), ..all }).await, [1, 2, 6]);

        let report = verified(&audit).await;
        assert_eq!((report.rows, report.head, report.signed_up_to), (6, 6, 6));
        let late = audit.begin(entry("a", "click")).await.expect_err("stopped");
        assert!(late.is(ErrorCode::ShuttingDown), "{late}");
    }

    /// The hash of a row is what the documentation says.
    async fn the_hash_can_be_recomputed(database: &mut Database) {
        use sha2::{Digest, Sha256};
        let store = ten_calls(database).await;
        for row in rows(&store).await {
            let mut text = format!(
                r#"{{"seq":{},"at":{},"call":"{}","event":"{}","actor":"uid:1","tenant":"a","verb":"click""#,
                row.seq, row.at, row.call, row.event
            );
            if let Some(params) = &row.params {
                text.push_str(&format!(r#","params":{params}"#));
            }
            if let Some(outcome) = &row.outcome {
                text.push_str(&format!(r#","outcome":"{outcome}""#));
            }
            text.push('}');
            let hash = Sha256::new().chain_update(&row.previous).chain_update(&text).finalize();
            assert_eq!(row.hash, hash.as_slice(), "{text}");
        }
    }

    /// Many callers share commits, and every call has its two rows.
    async fn many_callers(database: &mut Database) {
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..30 {
            let audit = audit.clone();
            tasks.spawn(async move {
                for call in 0..20 {
                    let begun = audit.begin(entry("a", "click")).await.expect("committed");
                    match call % 3 {
                        0 => drop(begun),
                        1 => begun.end(Ok(())),
                        _ => begun.end(Err(&ApiError::new(ErrorCode::Timeout, "slow"))),
                    }
                }
            });
        }
        tasks.join_all().await;
        audit.stop(STOP).await;
        assert_eq!(verified(&audit).await.rows, 1200);
        let unpaired = "SELECT COUNT(*) FROM (SELECT call FROM audit GROUP BY call HAVING COUNT(*) <> 2 OR MIN(event) = MAX(event)) x";
        assert_eq!(database.sql(unpaired), "0");
    }

    /// A caller that goes away while it waits leaves a call with an outcome, or no row at all.
    async fn abandoned_calls(database: &mut Database) {
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        for micros in (0..6000).step_by(30) {
            let _ = tokio::time::timeout(Duration::from_micros(micros), audit.begin(entry("a", "click"))).await;
        }
        audit.stop(STOP).await;
        let unpaired = "SELECT COUNT(*) FROM (SELECT call FROM audit GROUP BY call HAVING COUNT(*) <> 2 OR MIN(event) = MAX(event)) x";
        assert_eq!(database.sql(unpaired), "0");
        verified(&audit).await;
    }

    /// Two programs on one database continue one chain.
    async fn two_programs(database: &mut Database) {
        let (store, other_store) = (database.open().await, database.open().await);
        let other_folder = database.state().join("other");
        std::fs::create_dir(&other_folder).expect("a folder");
        let audits = [start(&store, database.state()).await, start(&other_store, &other_folder).await];
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..10 {
            let audit = audits[number % 2].clone();
            tasks.spawn(async move {
                for _ in 0..20 {
                    audit.begin(entry("a", "click")).await.expect("committed").end(Ok(()));
                }
            });
        }
        tasks.join_all().await;
        for audit in &audits {
            audit.stop(STOP).await;
        }
        for audit in &audits {
            let report = verified(audit).await;
            assert_eq!((report.rows, report.other_keys.len()), (400, 1));
        }
    }

    /// Rows that somebody changed, removed, moved or cut off, with access to the database.
    async fn tampering_is_found(database: &mut Database) {
        let store = ten_calls(database).await;
        assert_eq!(problems(database, &store).await, []);
        database.sql("CREATE TABLE saved AS SELECT * FROM audit");
        let cases: &[(&str, &[Problem])] = &[
            ("UPDATE audit SET verb = 'wait' WHERE seq = 3", &[Problem::Changed { seq: 3 }]),
            ("UPDATE audit SET at = at + 1 WHERE seq = 20", &[Problem::Changed { seq: 20 }]),
            ("UPDATE audit SET outcome = 'timeout' WHERE seq = 2", &[Problem::Changed { seq: 2 }]),
            ("UPDATE audit SET params = '{}' WHERE seq = 1", &[Problem::Changed { seq: 1 }]),
            ("UPDATE audit SET params = 'no JSON' WHERE seq = 1", &[Problem::Changed { seq: 1 }]),
            ("UPDATE audit SET tenant = 'b', actor = 'uid:2' WHERE seq = 5", &[Problem::Changed { seq: 5 }]),
            ("DELETE FROM audit WHERE seq = 3", &[Problem::Missing { from: 3, to: 3 }]),
            ("DELETE FROM audit WHERE seq <= 4", &[Problem::Missing { from: 1, to: 4 }]),
            ("UPDATE audit SET seq = -1 WHERE seq = 7; UPDATE audit SET seq = 7 WHERE seq = 8; UPDATE audit SET seq = 8 WHERE seq = -1",
                &[Problem::Moved { seq: 7, written_as: 8 }, Problem::Moved { seq: 8, written_as: 7 }]),
            ("DELETE FROM audit WHERE seq = 20", &[Problem::Cut { last: 19, known: 20 }]),
            ("DELETE FROM audit WHERE seq > 2", &[Problem::Cut { last: 2, known: 20 }]),
            ("DELETE FROM audit", &[Problem::Cut { last: 0, known: 20 }]),
            ("DELETE FROM audit WHERE seq > 4; DELETE FROM audit_checkpoints", &[Problem::Cut { last: 4, known: 20 }]),
            ("UPDATE audit_checkpoints SET at = at + 1", &[Problem::BadSignature { seq: 20 }]),
        ];
        for (sql, expected) in cases {
            database.sql("CREATE TABLE saved_heads AS SELECT * FROM audit_checkpoints");
            database.sql(sql);
            assert_eq!(problems(database, &store).await, *expected, "{sql}");
            database.sql(
                "DELETE FROM audit; INSERT INTO audit SELECT * FROM saved; DELETE FROM audit_checkpoints; \
                 INSERT INTO audit_checkpoints SELECT * FROM saved_heads; DROP TABLE saved_heads",
            );
            assert_eq!(problems(database, &store).await, [], "restored after {sql}");
        }
    }

    /// Signed heads that somebody removed from the database are still in the file.
    async fn removed_heads_are_found(database: &mut Database) {
        let store = database.open().await;
        for _ in 0..3 {
            let audit = start(&store, database.state()).await;
            audit.begin(entry("a", "click")).await.expect("committed").end(Ok(()));
            audit.stop(STOP).await;
        }
        assert_eq!(database.sql("SELECT seq FROM audit_checkpoints ORDER BY seq"), "2\n4\n6");
        assert_eq!(problems(database, &store).await, []);
        database.sql("DELETE FROM audit_checkpoints WHERE seq = 4");
        assert_eq!(problems(database, &store).await, [Problem::HeadRemoved { seq: 4 }]);
    }

    /// A row that the database refuses does not stop the log: the others are written, and the loss of one that had to be written is
    /// said.
    async fn a_row_that_the_database_refuses(database: &mut Database) {
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        database.sql("CREATE UNIQUE INDEX poison ON audit (verb) WHERE verb = 'poison'");
        let first = audit.begin(entry("a", "poison")).await.expect("committed");
        let error = audit.begin(entry("a", "poison")).await.expect_err("refused");
        assert!(error.is(ErrorCode::AuditUnavailable), "{error}");
        assert_eq!(audit.status().lost, 0, "the call was refused, so nothing was lost");
        first.end(Ok(()));
        audit.begin_always(entry("a", "close_session")).await.end(Ok(()));
        audit.stop(STOP).await;
        assert_eq!(audit.status().lost, 1, "the outcome of the first call");
        verified(&audit).await;
        let verbs: Vec<_> = rows(&store).await.into_iter().map(|row| row.verb).collect();
        let count = |verb: &str| verbs.iter().filter(|other| *other == verb).count();
        assert_eq!((count("poison"), count("close_session"), count("audit_lost")), (1, 2, 1), "{verbs:?}");
    }

    /// A log that was rewritten from a row on, with right hashes: only the signature tells.
    async fn a_rewritten_log_is_found(database: &mut Database) {
        let store = ten_calls(database).await;
        let mut previous = Vec::new();
        for mut row in rows(&store).await {
            if row.seq == 5 {
                row.verb = "wait".into();
            }
            if row.seq > 5 {
                row.previous = previous;
            }
            row.hash = row.expected_hash().expect("JSON").to_vec();
            let bytes = |bytes: &[u8]| {
                if database.server.is_some() { format!("'\\x{}'", digits(bytes)) } else { format!("x'{}'", digits(bytes)) }
            };
            database.sql(&format!(
                "UPDATE audit SET verb = '{}', previous = {}, hash = {} WHERE seq = {}",
                row.verb, bytes(&row.previous), bytes(&row.hash), row.seq
            ));
            previous = row.hash;
        }
        assert_eq!(problems(database, &store).await, [Problem::Rewritten { seq: 20 }]);
        // Without the heads in the database, the file tells.
        database.sql("DELETE FROM audit_checkpoints");
        assert_eq!(problems(database, &store).await, [Problem::Rewritten { seq: 20 }]);

        // One row with a right hash of its own, and the row after it as it was.
        let store = database.open().await;
        let row = store.audit_rows(&AuditFilter { after_seq: 9, limit: 1, ..AuditFilter::default() }).await.expect("rows").remove(0);
        let changed = AuditRow { verb: "wait".into(), ..row };
        let hash = digits(&changed.expected_hash().expect("JSON"));
        let hash = if database.server.is_some() { format!("'\\x{hash}'") } else { format!("x'{hash}'") };
        database.sql(&format!("UPDATE audit SET verb = 'wait', hash = {hash} WHERE seq = 10"));
        assert!(problems(database, &store).await.contains(&Problem::Replaced { seq: 10 }));
    }

    /// Rows that are cut off under a running program: it notices at the next call, and does nothing unaudited.
    async fn a_cut_under_a_running_program(database: &mut Database) {
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        for _ in 0..3 {
            audit.begin(entry("a", "click")).await.expect("committed").end(Ok(()));
        }
        written(&audit).await;
        database.sql("DELETE FROM audit WHERE seq > 4");
        let error = audit.begin(entry("a", "click")).await.expect_err("refused");
        assert!(error.is(ErrorCode::AuditUnavailable) && error.message().contains("removed or replaced"), "{error}");
        let report = audit.verify().await.expect("verify");
        assert_eq!(report.problems, [Problem::Cut { last: 4, known: 6 }]);
        assert_eq!(database.sql("SELECT COUNT(*) FROM audit"), "4");
        audit.stop(Duration::ZERO).await;
    }

    /// The database fails: calls are refused, closing goes on, and its rows are written when it works again. No row is lost or
    /// written twice.
    async fn an_outage(database: &mut Database) {
        database.config.timeout_seconds = 1;
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        for round in 1..=2 {
            let running = audit.begin(entry("a", "navigate")).await.expect("committed");
            database.fail();
            running.end(Ok(()));
            let error = audit.begin(entry("a", "click")).await.expect_err("refused");
            assert!(error.is(ErrorCode::AuditUnavailable) && error.retry_after_seconds() == Some(1), "{error}");
            assert!(!audit.status().healthy);
            let closing = audit.begin_always(entry("a", "close_session")).await;
            closing.end(Ok(()));
            assert_eq!(audit.status().waiting, 3);
            database.heal();
            written(&audit).await;
            audit.begin(entry("a", "after")).await.expect("it heals").end(Ok(()));
            written(&audit).await;
            let verbs: Vec<_> = rows(&store).await.into_iter().filter(|row| row.verb != "click").map(|row| (row.verb, row.event)).collect();
            let expected: Vec<_> = ["navigate", "close_session", "after"]
                .repeat(round)
                .into_iter()
                .flat_map(|verb| ["begin", "end"].map(|event| (verb.to_owned(), event.to_owned())))
                .collect();
            assert_eq!(verbs, expected);
        }
        audit.stop(STOP).await;
        verified(&audit).await;
    }

    /// Outages under load: every call that was allowed has its two rows, once; every call that was refused has none, or says so.
    async fn outages_under_load(database: &mut Database) {
        database.config.timeout_seconds = 1;
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..10 {
            let (audit, stop) = (audit.clone(), stop.clone());
            tasks.spawn(async move {
                let (mut allowed, mut refused) = (Vec::new(), Vec::new());
                for number in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("{worker}-{number}");
                    match audit.begin(Entry { verb: name.clone(), ..entry("a", "") }).await {
                        Ok(begun) => {
                            begun.end(Ok(()));
                            allowed.push(name);
                        }
                        Err(error) => {
                            assert!(error.is(ErrorCode::AuditUnavailable), "{error}");
                            refused.push(name);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                (allowed, refused)
            });
        }
        for _ in 0..3 {
            let (before, began) = (audit.status().head, Instant::now());
            while audit.status().head < before + 100 {
                assert!(began.elapsed() < Duration::from_secs(60), "no work is done: {:?}", audit.status());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            database.fail();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            database.heal();
        }
        // Calls go on meanwhile, so some row always waits.
        let began = Instant::now();
        while !audit.status().healthy {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", audit.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let results = tasks.join_all().await;
        audit.stop(STOP).await;
        verified(&audit).await;
        let mut there: std::collections::HashMap<String, Vec<(String, Option<String>)>> = Default::default();
        for row in rows(&store).await {
            there.entry(row.verb).or_default().push((row.event, row.outcome));
        }
        let pair = |outcome: &str| vec![("begin".to_owned(), None), ("end".to_owned(), Some(outcome.to_owned()))];
        let mut met = 0;
        for (allowed, refused) in results {
            for name in allowed {
                assert_eq!(there.remove(&name), Some(pair("ok")), "{name}");
            }
            met += refused.len();
            for name in refused {
                if let Some(rows) = there.remove(&name) {
                    assert_eq!(rows, pair("audit_unavailable"), "{name}");
                }
            }
        }
        assert!(met > 0, "no call met an outage");
        assert!(there.is_empty(), "{there:?}");
    }

    /// Stopped while the database does not work: what waits is in a file, and committed at the next start.
    async fn stopped_in_an_outage(database: &mut Database) {
        database.config.timeout_seconds = 1;
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        let running = audit.begin(entry("a", "navigate")).await.expect("committed");
        database.fail();
        running.end(Ok(()));
        audit.begin_always(entry("a", "close_session")).await.end(Ok(()));
        audit.stop(Duration::ZERO).await;
        let file = database.state().join("audit-unwritten.jsonl");
        assert_eq!(file.metadata().expect("the file").permissions().mode() & 0o7777, 0o600);
        store.close().await;
        database.heal();

        let store = database.open().await;
        for _ in 0..2 {
            let audit = start(&store, database.state()).await;
            let verbs: Vec<_> = rows(&store).await.into_iter().map(|row| (row.verb, row.event)).collect();
            let expected = [("navigate", "begin"), ("navigate", "end"), ("close_session", "begin"), ("close_session", "end")];
            assert_eq!(verbs, expected.map(|(verb, event)| (verb.to_owned(), event.to_owned())));
            assert!(!file.exists());
            audit.stop(STOP).await;
            verified(&audit).await;
        }
    }

    /// Heads are signed while the program runs.
    async fn heads_are_signed_from_time_to_time(database: &mut Database) {
        let store = database.open().await;
        let config = AuditConfig { sign_every_seconds: 1 };
        let audit = Audit::start(store.clone(), database.state(), &config).await.expect("starts");
        audit.begin(entry("a", "click")).await.expect("committed").end(Ok(()));
        let began = Instant::now();
        while store.checkpoints().await.expect("heads").last().is_none_or(|head| head.seq < 2) {
            assert!(began.elapsed() < Duration::from_secs(60), "no head is signed");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for file in ["audit-key", "audit-heads.jsonl"] {
            let mode = database.state().join(file).metadata().expect("there").permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{file}");
        }
        // Nothing new is signed for nothing new.
        let heads = store.checkpoints().await.expect("heads").len();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(store.checkpoints().await.expect("heads").len(), heads);
        audit.stop(STOP).await;
        assert_eq!(store.checkpoints().await.expect("heads").len(), heads);
    }
}

/// The memory for rows that wait is bounded; the log says how many were lost.
#[test]
fn what_waits_is_bounded() {
    let mut database = Database::sqlite();
    database.config.timeout_seconds = 1;
    crate::run(database, async |database: &mut Database| {
        let store = database.open().await;
        let audit = start(&store, database.state()).await;
        database.fail();
        audit.begin(entry("a", "click")).await.expect_err("refused");
        let large = Entry { params: json!({ "text": "x".repeat(10_000) }), ..entry("a", "close_session") };
        let mut offered = 0_u64;
        while audit.status().lost == 0 {
            audit.begin_always(large.clone()).await.end(Ok(()));
            offered += 2;
            assert!(offered < 100_000, "nothing bounds the memory");
        }
        database.heal();
        written(&audit).await;
        let lost = audit.status().lost;
        audit.stop(STOP).await;
        verified(&audit).await;
        let said = database.sql("SELECT params FROM audit WHERE verb = 'audit_lost'");
        assert_eq!(said, format!("{{\"rows\":{lost}}}"));
        let kept: u64 = database
            .sql("SELECT COUNT(*) FROM audit WHERE verb = 'close_session'")
            .parse()
            .expect("a number");
        assert_eq!(kept + lost, offered);
    });
}

/// A signing key that others can read, or that is none, is refused; a head of the file that was changed is found.
#[test]
fn files_of_the_log() {
    crate::run(Database::sqlite(), async |database: &mut Database| {
        let store = ten_calls(database).await;
        let key = database.state().join("audit-key");
        let set_mode =
            |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("chmod");
        let refused = async || {
            Audit::start(store.clone(), database.state(), &AuditConfig::default())
                .await
                .expect_err("refused")
                .to_string()
        };
        set_mode(0o640);
        assert!(refused().await.contains("0600"));
        set_mode(0o600);
        let text = std::fs::read_to_string(&key).expect("the key");
        std::fs::write(&key, &text[..40]).expect("write");
        assert!(refused().await.contains("64 hexadecimal digits"));

        // A new key: heads of the old one count, and are listed.
        std::fs::remove_file(&key).expect("remove");
        let audit = start(&store, database.state()).await;
        let report = verified(&audit).await;
        assert_eq!((report.other_keys.len(), report.signed_up_to), (1, 20));
        audit.stop(STOP).await;
        std::fs::write(&key, &text).expect("write");

        let heads = database.state().join("audit-heads.jsonl");
        let lines = std::fs::read_to_string(&heads).expect("the heads");
        std::fs::write(&heads, lines.replace("\"seq\":20", "\"seq\":18")).expect("write");
        assert!(problems(database, &store).await.contains(&Problem::BadSignature { seq: 18 }));
    });
}
