//! Malicious and broken clients: each gets a typed error or a closed connection, an honest client is served throughout,
//! and the daemon's memory stays bounded.

// The tests change the user of single threads and read /proc, which only Linux has.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]
// setresuid(2) on a single thread has no safe wrapper.
#![allow(unsafe_code)]

mod daemon;

use daemon::{Daemon, Home, PATIENCE, Raw, code, create, until};
use hostd::api::*;
use hostd::client::{Client, ClientError};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// A debug build with the fake host needs about 20 MB; a defect needs hundreds.
const MOST_MEMORY_KB: u64 = 96 * 1024;

const STATUS: &str = r#"{"jsonrpc":"2.0","id":1,"method":"host-status"}"#;

/// A client that works during an attack: every call must succeed.
struct Honest {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Honest {
    async fn beside(daemon: &Daemon) -> Honest {
        let client = daemon.client().await;
        let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), calls.clone());
        let task = tokio::spawn(async move {
            let mut round = 0;
            while !stopped.load(Ordering::Relaxed) {
                client.status(StatusParams::default()).await.expect("an honest status");
                round += 1;
                if round % 20 == 0 {
                    let made =
                        client.create(create(format!("h{round}"))).await.expect("an honest create").clone;
                    let clone_id = made.clone_id.unwrap();
                    let gone = DestroyParams::new(made.name, clone_id);
                    client.destroy(gone).await.expect("an honest destroy");
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Honest { stop, calls, task }
    }

    /// Wait until it has been served again.
    async fn is_served(&self) {
        let before = self.calls.load(Ordering::Relaxed);
        until("the honest client gets on", async || {
            self.task.is_finished() || self.calls.load(Ordering::Relaxed) >= before + 25
        })
        .await;
        assert!(!self.task.is_finished(), "the honest client failed");
    }

    async fn end(self) {
        self.is_served().await;
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("every honest call succeeded");
    }
}

/// Start a daemon, run the attack beside an honest client, and check both afterwards.
async fn attack(settings: &[&str], attack: impl AsyncFnOnce(&Home, &Daemon, &Honest)) {
    let home = Home::new(settings);
    let daemon = home.start().await;
    let honest = Honest::beside(&daemon).await;
    honest.is_served().await;
    attack(&home, &daemon, &honest).await;
    honest.end().await;
    let memory = daemon.memory("VmHWM");
    println!("the daemon's memory was at most {memory} kB");
    assert!(memory < MOST_MEMORY_KB, "the daemon needed {memory} kB");
    daemon.stop().await;
}

#[tokio::test]
async fn garbage_is_refused() {
    attack(&[], async |_, daemon, _| {
        let mut raw = daemon.raw().await;
        // A fixed pseudo-random sequence of bytes, split into non-empty lines.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..200 {
            let mut line: Vec<u8> = (0..64)
                .map(|_| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) as u8
                })
                .filter(|byte| *byte != b'\n')
                .collect();
            line.push(b'\n');
            raw.send(line).await;
            let answer = raw.line().await.expect("an answer");
            let seen = code(&answer);
            assert!(seen == "parse_error" || seen == "invalid_request", "{answer}");
            assert_eq!(answer["id"], Value::Null);
        }
        assert_eq!(raw.ask(STATUS).await, "ok", "the connection is still good");
    })
    .await;
}

#[tokio::test]
async fn invalid_requests_get_typed_errors() {
    attack(&[], async |_, daemon, _| {
        let clone = r#""name":"browsertask001","clone_id":"00000000000000000000000000000000""#;
        let call = |method: &str, params: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":"x","method":"{method}","params":{params}}}"#)
        };
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        let cases = [
            ("{".to_owned(), "parse_error"),
            ("".to_owned(), "parse_error"),
            ("[".repeat(50_000), "invalid_request"),
            (r#"{"a":"#.repeat(10_000), "invalid_request"),
            (call("host-status", &deep), "invalid_request"),
            (call("host-status", &format!(r#"{{"checks":{deep}}}"#)), "invalid_params"),
            (call("host-status", &format!(r#"{{"x":{deep}}}"#)), "invalid_params"),
            (format!("[{STATUS}]"), "invalid_request"),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"host-status"}"#.to_owned(), "invalid_request"),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"host-status","method":"host-status"}"#.to_owned(),
                "invalid_request",
            ),
            (r#"{"jsonrpc":"2.0","id":1,"method":"host-status","uid":0}"#.to_owned(), "invalid_request"),
            (r#"{"jsonrpc":"2.0","id":{},"method":"host-status"}"#.to_owned(), "invalid_request"),
            (call("host-status", "[]"), "invalid_request"),
            (call("host-status", "null"), "invalid_request"),
            (call("host-status", r#"{"checks":false,"checks":true}"#), "invalid_params"),
            (call("browser-clone-create", "{}"), "invalid_params"),
            (call("browser-clone-create", r#"{"request_id":"a","path":"/etc"}"#), "invalid_params"),
            (call("browser-clone-create", r#"{"request_id":"../../etc"}"#), "invalid_params"),
            (call("browser-clone-create", r#"{"request_id":"a","request_id":"b"}"#), "invalid_params"),
            (
                call("browser-clone-create", r#"{"request_id":"a","limits":{"processes":1,"processes":2}}"#),
                "invalid_params",
            ),
            (call("browser-clone-create", r#"{"request_id":"a","limits":[1,2]}"#), "invalid_params"),
            (call("browser-clone-create", r#"{"request_id":"a","deadline_seconds":-1}"#), "invalid_params"),
            (call("browser-clone-create", r#"{"request_id":"a","deadline_seconds":0}"#), "invalid_params"),
            (call("browser-clone-create", r#"{"request_id":"a","deadline_seconds":1.5}"#), "invalid_params"),
            (call("browser-clone-create", r#"{"request_id":"a","deadline_seconds":"9"}"#), "invalid_params"),
            (call("browser-clone-create", r#"{"request_id":"a","deadline_seconds":1e99}"#), "invalid_params"),
            (
                call("browser-clone-create", r#"{"request_id":"a","deadline_seconds":18446744073709551616}"#),
                "invalid_params",
            ),
            (
                call("browser-clone-create", r#"{"request_id":"a","deadline_seconds":18446744073709551615}"#),
                "limit_exceeded",
            ),
            (
                call("browser-clone-create", r#"{"request_id":"a","limits":{"disk_bytes":0}}"#),
                "invalid_params",
            ),
            (
                call("browser-clone-create", r#"{"request_id":"a","limits":{"memory_bytes":1}}"#),
                "invalid_params",
            ),
            (
                call(
                    "browser-clone-create",
                    r#"{"request_id":"a","limits":{"cpu_percent":18446744073709551615}}"#,
                ),
                "invalid_params",
            ),
            (
                call("browser-clone-create", r#"{"request_id":"a","limits":{"processes":1025}}"#),
                "limit_exceeded",
            ),
            (call("browser-clone-destroy", &format!(r#"{{{clone},"pid":1}}"#)), "invalid_params"),
            (call("browser-clone-destroy", r#"{"name":"browsertask001"}"#), "invalid_params"),
            (call("browser-clone-reap", r#"{"dry_run":"yes"}"#), "invalid_params"),
            (call("rpc.discover", r#"{"x":1}"#), "invalid_params"),
            (call("browser-clone-exec", "{}"), "method_not_found"),
            (call("", "{}"), "method_not_found"),
        ];
        let mut raw = daemon.raw().await;
        for (line, expected) in &cases {
            raw.send(format!("{line}\n")).await;
            let answer = raw.line().await.unwrap_or_else(|| panic!("no answer to {:.100}", line));
            assert_eq!(&code(&answer), expected, "{line:.100}: {answer}");
            let error = &answer["error"];
            assert!(error["message"].as_str().unwrap().len() < 600, "{answer}");
            assert!(!error["data"]["hint"].as_str().unwrap().is_empty(), "{answer}");
            assert!(error["code"].is_i64() && error["data"]["retryable"] == json!(false), "{answer}");
        }
        assert_eq!(raw.ask(STATUS).await, "ok", "the connection is still good");
    })
    .await;
}

#[tokio::test]
async fn a_line_of_one_gigabyte_is_refused() {
    attack(&[], async |_, daemon, honest| {
        let mut raw = daemon.raw().await;
        let chunk = vec![b'x'; 64 << 10];
        let mut sent = 0usize;
        while sent < 1 << 30 {
            match tokio::time::timeout(PATIENCE, raw.write.write_all(&chunk))
                .await
                .expect("the daemon takes or refuses")
            {
                Ok(()) => sent += chunk.len(),
                Err(_) => break,
            }
        }
        println!("{sent} bytes of the line were taken by the kernel before the connection was closed");
        assert!(sent <= 16 << 20, "refused while it arrives, not after {sent} bytes");
        let refusal = raw.line().await.expect("a refusal");
        assert_eq!((code(&refusal), &refusal["id"]), ("line_too_long".to_owned(), &Value::Null));
        honest.is_served().await;
    })
    .await;
}

#[tokio::test]
async fn many_concurrent_long_lines_use_bounded_memory() {
    attack(&[], async |_, daemon, honest| {
        let mut all = Vec::new();
        for _ in 0..100 {
            let mut raw = daemon.raw().await;
            // Just below the limit and without a newline: the most that can be buffered.
            raw.send(vec![b' '; 60_000]).await;
            all.push(raw);
        }
        honest.is_served().await;
        for raw in &mut all {
            raw.send(format!("{STATUS}\n")).await;
            assert_eq!(code(&raw.line().await.expect("an answer")), "ok");
        }
    })
    .await;
}

#[tokio::test]
async fn incomplete_and_slow_lines_time_out() {
    attack(&["server.line_timeout_seconds=2"], async |_, daemon, honest| {
        let mut half = daemon.raw().await;
        half.send(&STATUS[..20]).await;
        let mut drip = daemon.raw().await;
        let dripping = tokio::spawn(async move {
            // No pause reaches the timeout, and no newline follows.
            while drip.write.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            drip
        });
        for mut slow in [half, dripping.await.unwrap()] {
            let refusal = slow.line().await.expect("a refusal");
            assert_eq!((code(&refusal), &refusal["id"]), ("slow_line".to_owned(), &Value::Null));
            assert_eq!(slow.line().await, None, "and the connection is closed");
        }
        honest.is_served().await;
        // An idle connection is not closed.
        let mut silent = daemon.raw().await;
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(silent.ask(STATUS).await, "ok");
    })
    .await;
}

#[tokio::test]
async fn a_thousand_idle_connections_are_bounded() {
    let wanted = 1_400;
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, wanted.min(hard), hard)
        .unwrap();
    assert!(hard >= wanted, "this test needs {wanted} open files; the hard limit is {hard}");
    attack(&[], async |_, daemon, honest| {
        let mut idle = Vec::new();
        for n in 0..1_000 {
            idle.push(daemon.raw().await);
            if n % 250 == 0 {
                honest.is_served().await;
            }
        }
        honest.is_served().await;
        let client = daemon.client().await;
        let status = client.status(StatusParams { metrics: true, checks: false }).await.unwrap();
        println!("of 1000 idle connections {} are open", status.connections);
        assert!(status.connections <= 256, "{}", status.connections);
        // The first connections got the reason for their eviction; the last ones are still served.
        let eviction = idle[0].line().await.expect("the reason for the eviction");
        assert_eq!(code(&eviction), "too_many_connections");
        assert!(eviction["error"]["data"]["retry_after_ms"].is_u64());
        assert_eq!(idle[0].line().await, None);
        let newest = idle.last_mut().unwrap();
        assert_eq!(newest.ask(STATUS).await, "ok");
        let closed = status.metrics.unwrap();
        assert!(closed.contains("hostd_limit_rejections_total{limit=\"idle_connections\"}"), "{closed}");
    })
    .await;
}

#[tokio::test]
async fn clients_that_never_read_are_disconnected() {
    attack(&["server.line_timeout_seconds=2"], async |_, daemon, honest| {
        let mut all = Vec::new();
        for _ in 0..20 {
            let raw = daemon.raw().await;
            all.push(tokio::spawn(async move {
                let Raw { lines, mut write } = raw;
                let line = format!("{}\n", r#"{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}"#);
                let mut sent = 0u64;
                // Ends when the daemon closes the connection.
                while write.write_all(line.as_bytes()).await.is_ok() {
                    sent += 1;
                }
                drop(lines);
                sent
            }));
        }
        honest.is_served().await;
        for flood in all {
            let sent = tokio::time::timeout(PATIENCE, flood).await.expect("dropped in time").unwrap();
            assert!(sent > 0);
        }
    })
    .await;
}

#[tokio::test]
async fn short_connections_leak_nothing() {
    attack(&[], async |_, daemon, honest| {
        for n in 0..2_000 {
            let mut raw = daemon.raw().await;
            match n % 4 {
                0 => {}
                1 => raw.send("{\"jsonrpc\"").await,
                2 => raw.send(format!("{STATUS}\n")).await,
                _ => raw.send(b"\n\n\n\xff\xfe\n").await,
            }
        }
        honest.is_served().await;
        until("the places are given back", async || {
            daemon.client().await.status(StatusParams::default()).await.unwrap().connections <= 4
        })
        .await;
    })
    .await;
}

/// Connect as another user: the kernel records the credentials of the connecting thread.
fn connect_as(uid: u32, path: PathBuf) -> std::io::Result<std::os::unix::net::UnixStream> {
    std::thread::spawn(move || {
        let id = libc::c_long::from(uid);
        // SAFETY: a system call with integer arguments. Called directly it changes only this thread, which ends right
        // after.
        let groups = unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) };
        // SAFETY: as above.
        let gid = unsafe { libc::syscall(libc::SYS_setresgid, id, id, id) };
        // SAFETY: as above.
        let user = unsafe { libc::syscall(libc::SYS_setresuid, id, id, id) };
        assert_eq!((groups, gid, user), (0, 0, 0), "this test needs root to become another user");
        std::os::unix::net::UnixStream::connect(path)
    })
    .join()
    .unwrap()
}

/// Let every user reach the socket, so that only the access rules decide.
fn open_to_everybody(home: &Home) {
    for (path, mode) in
        [(home.path(), 0o755), (home.socket().parent().unwrap(), 0o755), (&home.socket(), 0o666)]
    {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn raw_as(uid: u32, home: &Home) -> Raw {
    let stream = connect_as(uid, home.socket()).unwrap();
    stream.set_nonblocking(true).unwrap();
    Raw::over(UnixStream::from_std(stream).unwrap())
}

fn client_as(uid: u32, home: &Home) -> Client {
    let stream = connect_as(uid, home.socket()).unwrap();
    stream.set_nonblocking(true).unwrap();
    Client::over(UnixStream::from_std(stream).unwrap()).with_timeout(PATIENCE)
}

/// The test's own user is operator; two other users may create, destroy and reap.
fn rules() -> String {
    let operations = r#"["browser-clone-create","browser-clone-destroy","browser-clone-reap"]"#;
    format!(
        r#"access=[{{users=["{}"],operator=true}},{{users=["{ONE}","{OTHER}"],operations={operations}}}]"#,
        nix::unistd::geteuid()
    )
}

const ONE: u32 = 65_534;
const OTHER: u32 = 65_533;

fn refusal(outcome: Result<impl std::fmt::Debug, ClientError>) -> RpcError {
    outcome.expect_err("a refusal").rpc().expect("hostd's own refusal").clone()
}

#[tokio::test]
async fn a_user_without_a_rule_is_refused() {
    attack(&[], async |home, daemon, honest| {
        let error = connect_as(65_534, home.socket()).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied,
            "the file system keeps others out first"
        );

        // The socket's mode alone must not be the only guard.
        open_to_everybody(home);
        for _ in 0..50 {
            let mut raw = raw_as(65_534, home);
            let _ = raw.write.write_all(format!("{STATUS}\n").as_bytes()).await;
            let refusal = raw.line().await.expect("a refusal");
            assert_eq!((code(&refusal), &refusal["id"]), ("denied".to_owned(), &Value::Null));
            assert!(refusal["error"]["message"].as_str().unwrap().contains("65534"), "{refusal}");
            assert_eq!(raw.line().await, None);
        }
        let error = refusal(client_as(65_534, home).create(create("a")).await);
        assert_eq!(error.code(), ErrorCode::Denied);
        honest.is_served().await;
        assert!(daemon.client().await.status(StatusParams::default()).await.unwrap().connections <= 2);
    })
    .await;
}

#[tokio::test]
async fn a_user_does_only_what_its_rule_lists() {
    let rules = format!(
        r#"access=[{{users=["{}"],operator=true}},{{users=["65534"],operations=["browser-clone-create"]}}]"#,
        nix::unistd::geteuid()
    );
    attack(&[&rules], async |home, _, _| {
        open_to_everybody(home);
        let client = client_as(65_534, home);
        let made = client.create(create("mine")).await.unwrap().clone;
        assert_eq!(made.owner_uid, Some(65_534));
        let clone_id = made.clone_id.clone().unwrap();
        let destroy = DestroyParams::new(made.name.clone(), clone_id.clone());
        let force_unmount = ForceUnmountParams::new(made.name.clone(), clone_id);
        for error in [
            refusal(client.destroy(destroy).await),
            refusal(client.reap(ReapParams::default()).await),
            refusal(client.force_unmount(force_unmount).await),
        ] {
            assert_eq!(error.code(), ErrorCode::Denied, "{error}");
        }
        client.status(StatusParams::default()).await.expect("a caller with any rule may read");
    })
    .await;
}

#[tokio::test]
async fn users_do_not_share_request_ids() {
    let home = Home::new(&[&rules()]);
    let daemon = home.start().await;
    open_to_everybody(&home);
    let (one, other) = (client_as(ONE, &home), client_as(OTHER, &home));
    let mine = one.create(create("same")).await.unwrap();
    let theirs = other.create(create("same")).await.unwrap();
    assert!(!mine.renewed && !theirs.renewed);
    assert_ne!(mine.clone.clone_id, theirs.clone.clone_id);
    for (client, clone) in [(&one, &mine.clone), (&other, &theirs.clone)] {
        let again = client.create(create("same")).await.unwrap();
        assert!(again.renewed && again.clone.clone_id == clone.clone_id);
    }
    let seen = other.list(ListParams::default()).await.unwrap().clones;
    let hidden = seen.iter().find(|clone| clone.owner_uid == Some(ONE)).unwrap();
    assert_eq!((&hidden.request_id, &hidden.clone_id), (&None, &None), "nothing that another user could use");
    let gone = DestroyParams::new(mine.clone.name.clone(), mine.clone.clone_id.clone().unwrap());
    assert_eq!(refusal(other.destroy(gone.clone()).await).code(), ErrorCode::Denied);
    one.destroy(gone).await.unwrap();
    assert!(other.create(create("same")).await.unwrap().renewed, "the other's is untouched");
    daemon.stop().await;
}

/// One user sends reaps and destroys on many connections as fast as it can. Only the shares limit it here, not the rates.
#[tokio::test]
async fn a_storm_of_one_user_leaves_room_for_others() {
    const SHARE: u64 = 4;
    let unlimited =
        |kind: &str| [format!("server.{kind}s_per_minute=1000000"), format!("server.{kind}_burst=1000000")];
    let mut settings = vec![
        rules(),
        "server.max_operations=16".to_owned(),
        format!("server.max_operations_per_user={SHARE}"),
    ];
    settings.extend(["destroy", "reap", "read"].into_iter().flat_map(unlimited));
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    attack(&settings, async |home, daemon, honest| {
        open_to_everybody(home);
        let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let lines = [
            r#"{"jsonrpc":"2.0","id":1,"method":"browser-clone-reap","params":{}}"#.to_owned(),
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"browser-clone-destroy","params":{{"name":"browsertask900","clone_id":"{}"}}}}"#,
                "0".repeat(32)
            ),
        ];
        let storm: Vec<JoinHandle<u64>> = (0..60)
            .map(|n| {
                let (mut raw, line) = (raw_as(ONE, home), lines[n % lines.len()].clone());
                let (stop, refused) = (stop.clone(), refused.clone());
                tokio::spawn(async move {
                    let mut served = 0;
                    while !stop.load(Ordering::Relaxed) {
                        match raw.ask(&line).await.as_str() {
                            "ok" => served += 1,
                            "too_many_requests" => drop(refused.fetch_add(1, Ordering::Relaxed)),
                            other => panic!("{other}"),
                        }
                    }
                    served
                })
            })
            .collect();
        until("the storm fills its share", async || refused.load(Ordering::Relaxed) > 100).await;

        // Not a single call of the others is refused.
        let (other, operator) = (client_as(OTHER, home), daemon.client().await);
        for round in 0..10 {
            let made = other.create(create(format!("o{round}"))).await.expect("another user's create").clone;
            let gone = DestroyParams::new(made.name, made.clone_id.unwrap());
            operator.destroy(gone).await.expect("an operator's destroy");
            // The storm's share, the honest client's operation, and the daemon's own reaper.
            let running = operator.status(StatusParams::default()).await.unwrap().operations;
            assert!(running <= SHARE + 2, "{running} operations are running");
        }
        honest.is_served().await;
        stop.store(true, Ordering::Relaxed);
        let mut served = 0;
        for task in storm {
            served += task.await.unwrap();
        }
        assert!(served > 0, "the storm has its share too");
        let refused = refused.load(Ordering::Relaxed);
        let metrics = StatusParams { metrics: true, checks: false };
        let metrics = operator.status(metrics).await.unwrap().metrics.unwrap();
        let counted = format!("hostd_limit_rejections_total{{limit=\"operations_per_user\"}} {refused}\n");
        assert!(metrics.contains(&counted), "{counted}{metrics}");
        let logged = home.log().matches("limit=\"operations_per_user\"").count() as u64;
        println!("{served} served, {refused} refused, {logged} refusals in the log");
        assert!(logged >= 1 && logged * 10 < refused, "{logged} of {refused} refusals are in the log");
    })
    .await;
}

#[tokio::test]
async fn every_method_has_a_rate_for_each_user() {
    let rates = [
        "creates_per_minute=1",
        "destroys_per_minute=1",
        "reaps_per_minute=1",
        "reads_per_minute=1",
        "renewals_per_minute=1",
    ];
    let bursts = ["create_burst=2", "destroy_burst=3", "reap_burst=4", "read_burst=5", "renewal_burst=1"];
    let mut settings: Vec<String> =
        rates.iter().chain(&bursts).map(|text| format!("server.{text}")).collect();
    settings.push(rules());
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let home = Home::new(&settings);
    let daemon = home.start().await;
    open_to_everybody(&home);
    let absent = format!(r#"{{"name":"browsertask900","clone_id":"{}"}}"#, "0".repeat(32));
    let calls = [
        // One create, and one renewal of its lease.
        ("browser-clone-create", r#"{"request_id":"a"}"#, 2),
        ("browser-clone-destroy", &absent, 3),
        ("browser-clone-reap", "{}", 4),
        ("browser-clone-list", "{}", 5),
    ];
    for (method, params, burst) in calls {
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let mut served = 0;
        for _ in 0..40 {
            // A new connection is no way around it.
            let mut raw = raw_as(ONE, &home);
            raw.send(format!("{line}\n")).await;
            let answer = raw.line().await.unwrap();
            if code(&answer) == "ok" {
                served += 1;
                continue;
            }
            assert_eq!(code(&answer), "rate_limited", "{answer}");
            let wait = answer["error"]["data"]["retry_after_ms"].as_u64().unwrap();
            assert!((1..=60_000).contains(&wait), "{answer}");
            assert_eq!(answer["error"]["data"]["retryable"], true);
        }
        // A token is refilled each minute.
        assert!((burst..burst + 10).contains(&served), "{method}: {served}");
        assert_eq!(raw_as(OTHER, &home).ask(&line).await, "ok", "{method}: each user has its own rate");
        let operator = daemon.raw().await.ask(&line).await;
        assert_eq!(operator, "ok", "{method}");
        let audit = fs::read_to_string(home.audit()).unwrap();
        let by_one = audit.lines().filter(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["phase"] == "before" && line["method"] == method && line.to_string().contains("65534")
        });
        let expected = if method == "browser-clone-list" { 0 } else { served };
        assert_eq!(by_one.count(), expected, "{method}: a refused call has no audit line");
    }
    daemon.stop().await;
}
