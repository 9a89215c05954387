//! Sessions, recordings, keys, migrations.

use crate::both;
use crate::support::database::Database;
use controlplane::ids::{KeyId, SessionId, TenantId};
use controlplane::store::{
    FrameRow, IDEMPOTENCY_MS, Inserted, KeyRow, OpenError, SessionFilter, SessionRow, Store, StoreError,
};
use controlplane::time::now;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn tenant(name: &str) -> TenantId {
    name.parse().expect("a tenant")
}

pub(crate) fn session(tenant_name: &str, owner: &str, created_at: i64) -> SessionRow {
    SessionRow {
        id: SessionId::random(),
        tenant: tenant(tenant_name),
        owner: owner.into(),
        state: "opening".into(),
        credential_mode: "clean".into(),
        domains: "[]".into(),
        record: "transient".into(),
        labels: r#"{"name":"grüße \u0000 'quoted'"}"#.into(),
        created_at,
        started_at: None,
        deadline_at: created_at + 60_000,
        idle_ms: 10_000,
        used_at: created_at,
        clone_name: None,
        clone_id: None,
        closed_at: None,
        close_reason: None,
    }
}

fn frame(session: &SessionRow, number: i64, bytes: i64) -> FrameRow {
    FrameRow {
        session: session.id.clone(),
        tenant: session.tenant.clone(),
        number,
        captured_at: 1000 + number,
        bytes,
        format: "png".into(),
        width: 1280,
        height: 720,
        verb: "screenshot".into(),
    }
}

async fn insert(store: &Store, row: &SessionRow) {
    assert_eq!(store.insert_session(row, None).await.expect("insert"), Inserted::New);
}

both! {
    /// A session's row is stored as it is, and each step of its life happens once.
    async fn life_of_a_session(database: &mut Database) {
        let store = database.open().await;
        let mut row = session("a", "uid:1", 1_000);
        insert(&store, &row).await;
        assert_eq!(store.session(&row.id).await.expect("read"), Some(row.clone()));
        assert_eq!(store.session(&SessionId::random()).await.expect("read"), None);
        assert_eq!(store.unclosed_sessions().await.expect("list"), std::slice::from_ref(&row));

        assert!(store.set_session_open(&row.id, "clone-1", "id-1", 1_500).await.expect("open"));
        assert!(!store.set_session_open(&row.id, "clone-2", "id-2", 1_600).await.expect("open"), "a second time");
        store.touch_sessions(&[(row.id.clone(), 3_000), (SessionId::random(), 1)]).await.expect("touch");
        store.touch_sessions(&[(row.id.clone(), 2_000)]).await.expect("touch");
        row.state = "open".into();
        row.clone_name = Some("clone-1".into());
        row.clone_id = Some("id-1".into());
        row.started_at = Some(1_500);
        row.used_at = 3_000;
        assert_eq!(store.session(&row.id).await.expect("read"), Some(row.clone()));
        assert_eq!(store.count_open(None).await.expect("count"), 1);

        assert!(store.set_session_closing(&row.id).await.expect("closing"));
        assert!(!store.set_session_closing(&row.id).await.expect("closing"), "a second time");
        assert_eq!(store.count_open(None).await.expect("count"), 1);
        assert!(store.set_session_closed(&row.id, 4_000, "idle").await.expect("close"));
        assert!(!store.set_session_closed(&row.id, 5_000, "deadline").await.expect("close"), "a second time");
        assert!(!store.set_session_closing(&row.id).await.expect("closing"), "after the end");
        row.state = "closed".into();
        row.closed_at = Some(4_000);
        row.close_reason = Some("idle".into());
        assert_eq!(store.session(&row.id).await.expect("read"), Some(row.clone()));
        assert_eq!(store.count_open(None).await.expect("count"), 0);
        assert!(store.unclosed_sessions().await.expect("list").is_empty());

        // What was committed is there for the next process.
        store.close().await;
        assert_eq!(database.open().await.session(&row.id).await.expect("read"), Some(row));
    }

    /// Lists have pages, and show only what belongs to the tenant and the owner.
    async fn lists_of_sessions(database: &mut Database) {
        let store = database.open().await;
        let mut mine = Vec::new();
        for created in [10, 20, 20, 30, 40] {
            let row = session("a", "uid:1", created);
            insert(&store, &row).await;
            mine.push(row);
        }
        let colleague = session("a", "uid:2", 25);
        let stranger = session("b", "uid:1", 26);
        insert(&store, &colleague).await;
        insert(&store, &stranger).await;
        mine.sort_by(|x, y| (y.created_at, &y.id).cmp(&(x.created_at, &x.id)));

        let mut filter =
            SessionFilter { tenant: tenant("a"), owner: Some("uid:1".into()), open_only: false, limit: 2, before: None };
        let mut seen = Vec::new();
        loop {
            let page = store.sessions(&filter).await.expect("list");
            assert!(page.len() <= 2);
            let Some(last) = page.last() else { break };
            filter.before = Some(last.id.clone());
            seen.extend(page);
        }
        assert_eq!(seen, mine);

        filter.limit = 100;
        filter.before = Some(stranger.id.clone());
        assert!(store.sessions(&filter).await.expect("list").is_empty(), "the session of another tenant is no cursor");

        filter.before = None;
        filter.owner = None;
        assert_eq!(store.sessions(&filter).await.expect("list").len(), 6);
        store.set_session_closed(&colleague.id, 50, "requested").await.expect("close");
        filter.open_only = true;
        assert_eq!(store.sessions(&filter).await.expect("list"), mine);
        assert_eq!(store.count_open(Some(&tenant("a"))).await.expect("count"), 5);
        assert_eq!(store.count_open(Some(&tenant("b"))).await.expect("count"), 1);
        assert_eq!(store.count_open(None).await.expect("count"), 6);
    }

    /// An idempotency key belongs to tenant and owner, and makes one session in 24 hours.
    async fn idempotency_keys(database: &mut Database) {
        let store = database.open().await;
        let first = session("a", "uid:1", 1_000);
        let key = Some(("k", b"request".as_slice()));
        assert_eq!(store.insert_session(&first, key).await.expect("insert"), Inserted::New);

        let again = session("a", "uid:1", 2_000);
        let found = store.insert_session(&again, key).await.expect("insert");
        assert_eq!(found, Inserted::Existing(Box::new(first.clone())));
        assert_eq!(store.session(&again.id).await.expect("read"), None, "no second session");

        let other = Some(("k", b"another".as_slice()));
        assert_eq!(store.insert_session(&again, other).await.expect("insert"), Inserted::Conflict);
        assert_eq!(store.session(&again.id).await.expect("read"), None);

        for row in [session("b", "uid:1", 2_000), session("a", "uid:2", 2_000)] {
            assert_eq!(store.insert_session(&row, other).await.expect("insert"), Inserted::New);
        }
        let later = session("a", "uid:1", 1_000 + IDEMPOTENCY_MS);
        assert_eq!(store.insert_session(&later, other).await.expect("insert"), Inserted::New);
    }

    /// Many requests with one key at the same time: one session.
    async fn concurrent_opens_with_one_key(database: &mut Database) {
        let store = database.open().await;
        let second = database.open().await;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..40 {
            let store = if number % 2 == 0 { store.clone() } else { second.clone() };
            tasks.spawn(async move {
                let row = session("a", "uid:1", 1_000);
                let result = store.insert_session(&row, Some(("k", b"request"))).await.expect("insert");
                match result {
                    Inserted::New => (true, row.id),
                    Inserted::Existing(existing) => (false, existing.id),
                    Inserted::Conflict => panic!("the requests are equal"),
                }
            });
        }
        let results = tasks.join_all().await;
        assert_eq!(results.iter().filter(|(new, _)| *new).count(), 1);
        assert!(results.iter().all(|(_, id)| *id == results[0].1));
        assert_eq!(store.count_open(None).await.expect("count"), 1);
    }

    /// Old sessions are forgotten, but not before their recordings; keys of opens after 24 hours.
    async fn retention(database: &mut Database) {
        let store = database.open().await;
        let old = session("a", "uid:1", 1_000);
        let recorded = session("a", "uid:1", 1_000);
        let open = session("a", "uid:1", 1_000);
        let recent = session("a", "uid:1", now());
        for (number, row) in [&old, &recorded, &open, &recent].into_iter().enumerate() {
            let key = format!("k{number}");
            store.insert_session(row, Some((&key, b"r"))).await.expect("insert");
        }
        store.insert_frame(&frame(&recorded, 1, 10)).await.expect("frame");
        for row in [&old, &recorded, &recent] {
            store.set_session_closed(&row.id, row.created_at + 1, "requested").await.expect("close");
        }
        assert_eq!(store.forget_sessions(1_001).await.expect("forget"), 0, "closed at 1001, not before");
        assert_eq!(store.forget_sessions(1_002).await.expect("forget"), 1);
        assert_eq!(store.session(&old.id).await.expect("read"), None);
        assert_eq!(database.sql("SELECT COUNT(*) FROM idempotency"), "1", "only the recent one");
        assert_eq!(store.expired_recordings(1_002).await.expect("list").len(), 1);
        assert_eq!(store.delete_frames(&recorded.id).await.expect("delete"), 1);
        assert_eq!(store.forget_sessions(1_002).await.expect("forget"), 1);
        assert!(store.session(&open.id).await.expect("read").is_some());
        assert!(store.session(&recent.id).await.expect("read").is_some());
    }

    /// Frames and their sums.
    async fn recordings(database: &mut Database) {
        let store = database.open().await;
        let first = session("a", "uid:1", 1_000);
        let second = session("a", "uid:2", 2_000);
        let stranger = session("b", "uid:1", 3_000);
        for row in [&first, &second, &stranger] {
            insert(&store, row).await;
        }
        assert_eq!(store.recorded_bytes().await.expect("sum"), 0);
        for number in [2, 1, 3] {
            store.insert_frame(&frame(&first, number, 100 * number)).await.expect("frame");
        }
        store.insert_frame(&frame(&second, 1, 5_000_000_000)).await.expect("frame");
        store.insert_frame(&frame(&stranger, 1, 7)).await.expect("frame");
        let twice = store.insert_frame(&frame(&first, 3, 1)).await;
        assert!(matches!(twice, Err(StoreError::Refused(_))), "{twice:?}");
        let nowhere = store.insert_frame(&frame(&session("a", "uid:1", 1), 1, 1)).await;
        assert!(matches!(nowhere, Err(StoreError::Refused(_))), "{nowhere:?}");

        let numbers: Vec<i64> =
            store.frames(&first.id).await.expect("frames").iter().map(|frame| frame.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(store.frames(&first.id).await.expect("frames")[1], frame(&first, 2, 200));
        assert_eq!(store.recorded_bytes().await.expect("sum"), 5_000_000_607);

        let all = store.recordings(&tenant("a"), None, None, 10).await.expect("list");
        assert_eq!(all.iter().map(|row| &row.session).collect::<Vec<_>>(), [&second.id, &first.id]);
        assert_eq!((all[1].frames, all[1].bytes, all[1].first_at, all[1].last_at), (3, 600, 1001, 1003));
        assert_eq!(store.recording(&first.id).await.expect("read").as_ref(), Some(&all[1]));
        let rest = store.recordings(&tenant("a"), None, Some(&second.id), 10).await.expect("list");
        assert_eq!(rest, all[1..]);
        let mine = store.recordings(&tenant("a"), Some("uid:2"), None, 10).await.expect("list");
        assert_eq!(mine, all[..1]);
        assert!(store.recordings(&tenant("a"), None, Some(&stranger.id), 10).await.expect("list").is_empty());

        assert!(store.expired_recordings(i64::MAX).await.expect("list").is_empty(), "no session is closed");
        store.set_session_closed(&first.id, 5_000, "idle").await.expect("close");
        assert_eq!(store.expired_recordings(5_001).await.expect("list")[0].session, first.id);

        assert!(store.delete_frame(&first.id, 2).await.expect("delete"));
        assert!(!store.delete_frame(&first.id, 2).await.expect("delete"));
        assert_eq!(store.delete_frames(&first.id).await.expect("delete"), 2);
        assert_eq!(store.recording(&first.id).await.expect("read"), None);
    }

    /// Keys are found by id and tenant, and revoked once.
    async fn keys(database: &mut Database) {
        let store = database.open().await;
        let row = KeyRow {
            id: KeyId::random(),
            tenant: tenant("a"),
            label: "ci".into(),
            secret_hash: vec![0, 1, 255],
            scopes: "read,write".into(),
            issued_by: "uid:0".into(),
            issued_at: 5,
            expires_at: Some(50),
            revoked_at: None,
            used_at: None,
        };
        store.insert_key(&row).await.expect("insert");
        assert!(matches!(store.insert_key(&row).await, Err(StoreError::Refused(_))));
        assert_eq!(store.key(&row.id).await.expect("read"), Some(row.clone()));
        assert_eq!(store.keys(&tenant("a")).await.expect("list"), std::slice::from_ref(&row));
        assert!(store.keys(&tenant("b")).await.expect("list").is_empty());
        store.touch_key(&row.id, 9).await.expect("touch");
        store.touch_key(&row.id, 8).await.expect("touch");
        assert!(!store.revoke_key(&row.id, &tenant("b"), 10).await.expect("revoke"), "of another tenant");
        assert!(store.revoke_key(&row.id, &tenant("a"), 10).await.expect("revoke"));
        assert!(!store.revoke_key(&row.id, &tenant("a"), 11).await.expect("revoke"));
        let stored = store.key(&row.id).await.expect("read").expect("there");
        assert_eq!((stored.used_at, stored.revoked_at), (Some(9), Some(10)));
    }

    /// Processes that start at the same time wait for each other's migrations.
    async fn many_processes_start_at_once(database: &mut Database) {
        let (config, state) = (Arc::new(database.config.clone()), Arc::new(database.state().to_owned()));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (config, state) = (config.clone(), state.clone());
            tasks.spawn(async move { Store::open(&config, &state).await.map(|_| ()) });
        }
        for result in tasks.join_all().await {
            result.expect("every process opens the database");
        }
        assert_eq!(database.sql("SELECT COUNT(*), MAX(version) FROM schema_version"), "1|1");
    }

    /// A database of a newer program, or of another build, is refused and not touched.
    async fn foreign_schemas_are_refused(database: &mut Database) {
        database.open().await.close().await;
        database.sql("INSERT INTO schema_version SELECT 7, digest, 0 FROM schema_version");
        let error = database.try_open().await.expect_err("refused");
        assert!(matches!(error, OpenError::TooNew { found: 7, known: 1 }), "{error}");
        assert!(error.to_string().contains("schema version 7"), "{error}");
        assert_eq!(database.sql("SELECT COUNT(*) FROM schema_version"), "2");

        database.sql("DELETE FROM schema_version WHERE version = 7");
        let bytes = if database.server.is_some() { "'\\x00'" } else { "x'00'" };
        database.sql(&format!("UPDATE schema_version SET digest = {bytes}"));
        let error = database.try_open().await.expect_err("refused");
        assert!(matches!(error, OpenError::OtherSchema(1)), "{error}");
    }

    /// A row that the program cannot have written is an error that says so.
    async fn a_foreign_row_is_corrupt(database: &mut Database) {
        let store = database.open().await;
        let row = session("a", "uid:1", 1);
        insert(&store, &row).await;
        database.sql("UPDATE sessions SET tenant = '../../etc'");
        let error = store.session(&row.id).await.expect_err("refused");
        assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
        let api: controlplane::error::ApiError = error.into();
        assert_eq!(api.code(), "internal");
    }

    /// The readiness check writes.
    async fn check_writes(database: &mut Database) {
        let store = database.open().await;
        store.check().await.expect("writable");
        store.check().await.expect("writable");
        assert_eq!(database.sql("SELECT COUNT(*) FROM probe"), "1");
    }
}

#[tokio::test]
async fn the_embedded_database_is_private() {
    let database = Database::sqlite();
    let folder = database.state().join("new");
    let open = || Store::open(&database.config, &folder);
    let mode = |path: &std::path::Path| path.metadata().expect("there").permissions().mode() & 0o7777;
    let store = open().await.expect("opens");
    store.check().await.expect("writable");
    assert_eq!(mode(&folder), 0o700);
    let mut files = 0;
    for file in std::fs::read_dir(&folder).expect("the folder") {
        let path = file.expect("a file").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        files += 1;
    }
    assert_eq!(files, 3, "the database, its log, the index of the log");
    store.close().await;

    // A mode that somebody widened is narrowed again.
    let file = folder.join("controlplane.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    open().await.expect("opens").close().await;
    assert_eq!(mode(&file), 0o600);

    // A link is not followed.
    let target = database.state().join("target");
    std::fs::rename(&file, &target).expect("rename");
    std::os::unix::fs::symlink(&target, &file).expect("link");
    let error = open().await.expect_err("refused");
    assert!(matches!(error, OpenError::File { .. }), "{error}");
}

#[tokio::test]
async fn addresses_are_checked_and_not_shown() {
    for url in
        ["mysql://root:hunter2@host/db", "sqlite:///tmp/x", "postgres://u:hunter2@host:notaport/db", "x"]
    {
        let config = controlplane::config::StoreConfig { url: url.into(), ..Default::default() };
        let error = Store::open(&config, std::path::Path::new("/nowhere")).await.expect_err("refused");
        assert!(matches!(error, OpenError::Url(_)), "{error:?}");
        assert!(!format!("{error} {error:?} {config:?}").contains("hunter2"), "{error:?}");
    }
}
