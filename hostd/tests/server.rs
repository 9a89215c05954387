//! The daemon's interfaces to callers and service managers: the real binary with the fake host.

#![allow(clippy::unwrap_used)]

mod daemon;

use daemon::{Home, PATIENCE, Raw, code, create, until};
use futures_util::future::join_all;
use hostd::api::*;
use hostd::client::{Client, ClientError};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn refused(outcome: Result<impl std::fmt::Debug, ClientError>) -> RpcError {
    outcome.expect_err("a refusal").rpc().expect("hostd's own refusal").clone()
}

fn destroy_params(clone: &CloneInfo) -> DestroyParams {
    DestroyParams::new(clone.name.clone(), clone.clone_id.clone().unwrap())
}

#[tokio::test]
async fn all_seven_methods_answer() {
    let home = Home::new(&[]);
    let daemon = home.start().await;
    let client = daemon.client().await;

    let mut steps = Vec::new();
    let made = client.create_with_progress(create("a"), |progress| steps.push(progress)).await.unwrap();
    assert_eq!((made.renewed, made.clone.state), (false, CloneState::Ready));
    assert!(steps.iter().any(|step| step.state == ProgressState::Done), "{steps:?}");
    assert!(steps.iter().all(|step| step.name == made.clone.name), "{steps:?}");

    let listed = client.list(ListParams::default()).await.unwrap();
    assert_eq!(listed.clones.iter().map(|clone| &clone.name).collect::<Vec<_>>(), [&made.clone.name]);

    let asked = StatusParams { checks: true, metrics: true };
    let status = client.status(asked).await.unwrap();
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    assert_eq!((status.clones[&CloneState::Ready], status.egress), (1, EgressHealth::Ok));
    assert!(status.connections >= 1 && status.slots == 900 && status.max_clones == 100, "{status:?}");
    assert!(!status.host.is_empty() && !status.findings.unwrap().is_empty());
    let metrics = status.metrics.unwrap();
    assert!(
        metrics.contains(r#"hostd_operations_total{op="browser-clone-create",result="ok"} 1"#),
        "{metrics}"
    );
    assert!(metrics.contains("hostd_pool_available 99\n"), "{metrics}");
    let plain = client.status(StatusParams::default()).await.unwrap();
    assert_eq!((plain.findings, plain.metrics), (None, None));

    let force_unmount =
        ForceUnmountParams::new(made.clone.name.clone(), made.clone.clone_id.clone().unwrap());
    assert_eq!(refused(client.force_unmount(force_unmount).await).code(), ErrorCode::NotDestroying);
    let reaped = client.reap(ReapParams { dry_run: true, ..ReapParams::default() }).await.unwrap();
    assert!(reaped.dry_run && reaped.reaped.is_empty(), "{reaped:?}");
    let mut steps = 0;
    let gone = client.destroy_with_progress(destroy_params(&made.clone), |_| steps += 1).await.unwrap();
    assert!(!gone.already_gone && gone.complete && steps > 0);
    let again = client.destroy(destroy_params(&made.clone)).await.unwrap();
    assert!(again.already_gone && again.complete);

    let document = client.discover().await.unwrap();
    let names: Vec<&str> = document["methods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|method| method["name"].as_str().unwrap())
        .collect();
    for method in Method::ALL {
        assert!(method == Method::Discover || names.contains(&method.name()), "{method} is not in {names:?}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn one_connection_carries_concurrent_calls() {
    let home = Home::new(&["server.max_clones=50"]);
    let daemon = home.start().await;
    let client = daemon.client().await;
    let made = join_all((0..40).map(|n| client.create(create(format!("r{n}"))))).await;
    let made: Vec<CreateResult> = made.into_iter().map(Result::unwrap).collect();
    let names: BTreeSet<&CloneName> = made.iter().map(|made| &made.clone.name).collect();
    assert_eq!(names.len(), 40);
    for (n, made) in made.iter().enumerate() {
        assert_eq!(
            made.clone.request_id.as_ref().unwrap().as_str(),
            format!("r{n}"),
            "answers are not mixed up"
        );
    }
    let gone = join_all(made.iter().map(|made| client.destroy(destroy_params(&made.clone)))).await;
    assert!(gone.iter().all(Result::is_ok), "{gone:?}");
    daemon.stop().await;
}

#[tokio::test]
async fn a_quick_call_overtakes_a_slow_one_and_ids_are_echoed() {
    let home = Home::new(&[]);
    home.set_latency(100);
    let daemon = home.start().await;
    let mut raw = daemon.raw().await;
    let slow = r#"{"jsonrpc":"2.0","id":"slow \u00e9","method":"browser-clone-create","params":{"request_id":"a","progress_token":"t"}}"#;
    raw.send(format!("{slow}\n{}\n", r#"{"jsonrpc":"2.0","id":1.0,"method":"host-status"}"#)).await;
    let mut ids = Vec::new();
    let mut progress = 0;
    while ids.len() < 2 {
        let line = raw.line().await.unwrap();
        if line["method"] == "progress" {
            assert_eq!(line["params"]["progress_token"], "t");
            assert!(!ids.contains(&json!("slow é")), "progress comes before the answer");
            progress += 1;
        } else {
            ids.push(line["id"].clone());
        }
    }
    assert_eq!(ids, [json!(1.0), json!("slow é")]);
    assert!(progress > 0);
    daemon.stop().await;
}

#[tokio::test]
async fn an_operation_continues_when_its_caller_disconnects() {
    let home = Home::new(&[]);
    home.set_latency(50);
    let daemon = home.start().await;
    let mut raw = daemon.raw().await;
    raw.send("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"browser-clone-create\",\"params\":{\"request_id\":\"a\"}}\n")
        .await;
    let client = daemon.client().await;
    until("the create has begun", async || {
        !client.list(ListParams::default()).await.unwrap().clones.is_empty()
    })
    .await;
    drop(raw);
    until("the clone is ready", async || {
        let listed = client.list(ListParams::default()).await.unwrap();
        listed.clones.iter().any(|clone| clone.state == CloneState::Ready)
    })
    .await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_caller_that_closed_its_write_side_still_gets_its_answer() {
    let home = Home::new(&[]);
    home.set_latency(20);
    let daemon = home.start().await;
    let mut raw = daemon.raw().await;
    raw.send("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"browser-clone-create\",\"params\":{\"request_id\":\"a\"}}\n")
        .await;
    raw.write.shutdown().await.unwrap();
    let answer = raw.line().await.unwrap();
    assert_eq!(answer["result"]["clone"]["state"], "ready");
    assert_eq!(raw.line().await, None);
    daemon.stop().await;
}

#[tokio::test]
async fn notifications_are_neither_answered_nor_executed() {
    let home = Home::new(&[]);
    let daemon = home.start().await;
    let mut raw = daemon.raw().await;
    raw.send("{\"jsonrpc\":\"2.0\",\"method\":\"browser-clone-create\",\"params\":{\"request_id\":\"a\"}}\n")
        .await;
    raw.send("{\"jsonrpc\":\"2.0\",\"method\":\"host-status\"}\n").await;
    raw.send("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"browser-clone-list\"}\n").await;
    let answer = raw.line().await.unwrap();
    assert_eq!((&answer["id"], &answer["result"]["clones"]), (&json!(7), &json!([])));
    assert!(home.log().contains("a notification is not executed"), "{}", home.log());
    assert!(!fs::read_to_string(home.audit()).unwrap().contains("\"request_id\":\"a\""));
    daemon.stop().await;
}

#[tokio::test]
async fn the_socket_is_for_owner_and_group_only() {
    let home = Home::new(&[]);
    let daemon = home.start().await;
    assert_eq!(fs::metadata(home.socket()).unwrap().mode() & 0o7777, 0o660);
    assert_eq!(fs::metadata(home.socket().parent().unwrap()).unwrap().mode() & 0o7777, 0o750);
    // The state folder allows access to the clones' folders; its files have private modes.
    assert_eq!(fs::metadata(home.path().join("state")).unwrap().mode() & 0o077, 0o011);
    assert_eq!(fs::metadata(home.path().join("state/records")).unwrap().mode() & 0o077, 0);
    assert_eq!(fs::metadata(home.audit()).unwrap().mode() & 0o7777, 0o600);
    daemon.stop().await;
    assert!(!home.socket().exists(), "a stopped daemon takes its socket away");
}

async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_second_daemon_is_refused_and_the_first_keeps_serving() {
    let home = Home::new(&[]);
    let daemon = home.start().await;
    let second = run(home.command()).await;
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(7), "{said}");
    assert!(said.contains(&format!("another hostd (process {})", daemon.pid())), "{said}");
    // The same socket with another state folder is refused as well.
    let mut other = home.command();
    other.arg("--set").arg(format!("paths.state={}", home.path().join("other").display()));
    let other = run(other).await;
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(other.status.code(), Some(7), "{said}");
    assert!(said.contains("another daemon answers on"), "{said}");
    daemon.client().await.status(StatusParams::default()).await.unwrap();
    daemon.stop().await;
}

#[tokio::test]
async fn a_daemon_starts_after_its_predecessor_was_killed() {
    let home = Home::new(&[]);
    let daemon = home.start().await;
    let client = daemon.client().await;
    let made = client.create(create("a")).await.unwrap();
    daemon.kill9().await;
    assert!(home.socket().exists());
    let error = client.status(StatusParams::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::Closed(_)), "{error}");
    let error = Client::connect(home.socket()).await.unwrap_err();
    assert!(error.to_string().contains("is hostd running"), "{error}");
    let daemon = home.start().await;
    let listed = daemon.client().await.list(ListParams::default()).await.unwrap();
    assert_eq!(listed.clones[0].clone_id, made.clone.clone_id);
    daemon.stop().await;
}

#[tokio::test]
async fn stopping_lets_running_operations_end_and_refuses_new_ones() {
    let home = Home::new(&[]);
    home.set_latency(300);
    let mut daemon = home.start().await;
    let client = daemon.client().await;
    let running = {
        let client = client.clone();
        tokio::spawn(async move { client.create(create("a")).await })
    };
    until("the create has begun", async || {
        client.status(StatusParams::default()).await.unwrap().operations > 0
    })
    .await;
    daemon.signal(Signal::SIGTERM);
    until("the socket is gone", async || !home.socket().exists()).await;
    assert_eq!(refused(client.create(create("b")).await).code(), ErrorCode::ShuttingDown);
    client.status(StatusParams::default()).await.expect("reading is served to the end");
    let made = running.await.unwrap().expect("the running create is finished and answered");
    assert_eq!(made.clone.state, CloneState::Ready);
    assert_eq!(daemon.ended().await.code(), Some(0));
    let error = client.status(StatusParams::default()).await.unwrap_err();
    assert_eq!(refused(Err::<(), _>(error)).code(), ErrorCode::ShuttingDown, "the connection's last word");
}

#[tokio::test]
async fn a_second_signal_does_not_wait_and_the_next_start_rolls_back() {
    let home = Home::new(&["lifecycle.shutdown_grace_seconds=3600", "lifecycle.step_timeout_seconds=3600"]);
    home.set_latency(2_000);
    let mut daemon = home.start().await;
    let client = daemon.client().await;
    let running = tokio::spawn({
        let client = client.clone();
        async move { client.create(create("a")).await }
    });
    until("the create has begun", async || {
        !client.list(ListParams::default()).await.unwrap().clones.is_empty()
    })
    .await;
    daemon.signal(Signal::SIGTERM);
    until("it is stopping", async || !home.socket().exists()).await;
    daemon.signal(Signal::SIGINT);
    assert_eq!(daemon.ended().await.code(), Some(0));
    assert!(running.await.unwrap().is_err());
    home.set_latency(0);
    let daemon = home.start().await;
    let client = daemon.client().await;
    until("the half-made clone is gone", async || {
        client.list(ListParams::default()).await.unwrap().clones.is_empty()
    })
    .await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_hangup_reopens_the_audit_log() {
    let home = Home::new(&[]);
    let daemon = home.start().await;
    let client = daemon.client().await;
    client.create(create("before")).await.unwrap();
    let rotated = home.path().join("audit.log.1");
    fs::rename(home.audit(), &rotated).unwrap();
    daemon.signal(Signal::SIGHUP);
    until("the log is there again", async || home.audit().exists()).await;
    client.create(create("after")).await.unwrap();
    let (old, new) = (fs::read_to_string(rotated).unwrap(), fs::read_to_string(home.audit()).unwrap());
    assert!(old.contains("\"before\"") && !old.contains("\"request_id\":\"after\""), "{old}");
    assert!(new.contains("\"request_id\":\"after\""), "{new}");
    daemon.stop().await;
}

#[tokio::test]
async fn without_an_audit_log_nothing_is_created() {
    let home = Home::new(&[]);
    let daemon = home.start().await;
    let client = daemon.client().await;
    fs::remove_file(home.audit()).unwrap();
    fs::create_dir(home.audit()).unwrap();
    assert_eq!(refused(client.create(create("a")).await).code(), ErrorCode::AuditUnavailable);
    client.reap(ReapParams::default()).await.unwrap();
    assert!(client.list(ListParams::default()).await.unwrap().clones.is_empty());
    daemon.stop().await;
}

#[tokio::test]
async fn a_service_manager_may_pass_the_socket() {
    let home = Home::new(&[]);
    fs::create_dir(home.path().join("run")).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(home.socket()).unwrap();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", r#"exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@""#, "sh"])
        .arg(env!("CARGO_BIN_EXE_hostd"))
        .args(home.arguments())
        .env_clear()
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener.try_clone().unwrap())));
    let daemon = home.start_command(command).await;
    daemon.client().await.create(create("a")).await.unwrap();
    daemon.stop().await;
    assert!(home.socket().exists(), "the socket belongs to the service manager");
    // A client that connects while no daemon runs waits for the next one.
    let waiting = Client::connect(home.socket()).await.unwrap();
    drop(waiting);
    drop(listener);
}

#[tokio::test]
async fn a_passed_descriptor_that_is_not_a_socket_is_refused() {
    let home = Home::new(&[]);
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", r#"exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@""#, "sh"])
        .arg(env!("CARGO_BIN_EXE_hostd"))
        .args(home.arguments())
        .env_clear();
    let ended = run(command).await;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(7), "{said}");
    assert!(said.contains("needs one listening Unix stream socket"), "{said}");
}

#[tokio::test]
async fn a_service_manager_is_notified() {
    let home = Home::new(&[]);
    let path = home.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = home.command();
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    let daemon = home.start_command(command).await;
    let heard = move || {
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let wait_for = |word: &str| {
        for _ in 0..200 {
            let message = heard();
            if message.lines().any(|line| line == word) {
                return message;
            }
        }
        panic!("never heard {word}");
    };
    wait_for("READY=1");
    for _ in 0..3 {
        wait_for("WATCHDOG=1");
    }
    daemon.signal(Signal::SIGHUP);
    assert!(wait_for("RELOADING=1").contains("MONOTONIC_USEC="));
    wait_for("READY=1");
    daemon.signal(Signal::SIGTERM);
    wait_for("STOPPING=1");
    let mut daemon = daemon;
    assert_eq!(daemon.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_rate_limited_user_gets_the_time_to_retry() {
    let home = Home::new(&["server.creates_per_minute=1", "server.create_burst=2"]);
    let daemon = home.start().await;
    let client = daemon.client().await;
    client.create(create("a")).await.unwrap();
    client.create(create("b")).await.unwrap();
    let error = refused(client.create(create("c")).await);
    assert_eq!((error.code(), error.data.retryable), (ErrorCode::RateLimited, true));
    let wait = error.data.retry_after_ms.unwrap();
    assert!((1..=60_000).contains(&wait), "{wait}");
    let metrics =
        client.status(StatusParams { metrics: true, checks: false }).await.unwrap().metrics.unwrap();
    assert!(metrics.contains("hostd_limit_rejections_total{limit=\"create_rate\"} 1\n"), "{metrics}");
    until("the audit log counts the refusal", async || {
        let audit = fs::read_to_string(home.audit()).unwrap();
        let lines = audit.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut summaries = lines.filter(|line| line["phase"] == "refused");
        summaries.any(|line| line["result"] == "rate_limited" && line["count"] == 1)
    })
    .await;
    daemon.stop().await;
}

#[tokio::test]
async fn requests_and_operations_have_caps() {
    let home = Home::new(&["server.max_requests_per_connection=2", "server.max_operations=3"]);
    home.set_latency(500);
    let daemon = home.start().await;
    let (one, two) = (daemon.client().await, daemon.client().await);
    let start = |client: &Client, id: &str| {
        let (client, params) = (client.clone(), create(id));
        tokio::spawn(async move { client.create(params).await })
    };
    let running = [start(&one, "a"), start(&one, "b"), start(&two, "c")];
    let watch = daemon.client().await;
    until("three run", async || watch.status(StatusParams::default()).await.unwrap().operations == 3).await;
    let error = refused(one.create(create("d")).await);
    assert_eq!(error.code(), ErrorCode::TooManyRequests);
    assert!(error.message.contains("on this connection") && error.data.retry_after_ms.is_some(), "{error:?}");
    let error = refused(two.create(create("d")).await);
    assert_eq!(error.code(), ErrorCode::TooManyRequests);
    assert!(error.message.contains("on this host") && error.data.retry_after_ms.is_some(), "{error:?}");
    for running in running {
        running.await.unwrap().unwrap();
    }
    two.create(create("d")).await.expect("there is room again");
    daemon.stop().await;
}

#[tokio::test]
async fn at_the_connection_cap_idle_connections_are_evicted() {
    let home = Home::new(&["server.max_connections_per_user=3"]);
    home.set_latency(300);
    let daemon = home.start().await;
    let busy = daemon.only_client().await;
    let mut idle = daemon.raw().await;
    let watch = daemon.client().await;
    watch.status(StatusParams::default()).await.unwrap();
    let running = tokio::spawn({
        let busy = busy.clone();
        async move { busy.create(create("a")).await }
    });
    until("the create has begun", async || {
        watch.status(StatusParams::default()).await.unwrap().operations > 0
    })
    .await;

    let mut fourth = daemon.raw().await;
    assert_eq!(fourth.ask(r#"{"jsonrpc":"2.0","id":1,"method":"host-status"}"#).await, "ok");
    let last = idle.line().await.expect("the reason for the eviction");
    assert_eq!((last["id"].clone(), code(&last)), (Value::Null, "too_many_connections".to_owned()));
    assert!(last["error"]["data"]["retry_after_ms"].is_u64());
    assert_eq!(idle.line().await, None);
    assert_eq!(
        running.await.unwrap().unwrap().clone.state,
        CloneState::Ready,
        "the busy one was not touched"
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_connection_is_refused_when_all_others_are_busy() {
    let home = Home::new(&["server.max_connections=2"]);
    home.set_latency(500);
    let daemon = home.start().await;
    let (one, two) = (daemon.only_client().await, daemon.client().await);
    let running = [(one, "a"), (two.clone(), "b")]
        .map(|(client, id)| tokio::spawn(async move { client.create(create(id)).await }));
    until("both run", async || two.status(StatusParams::default()).await.unwrap().operations == 2).await;
    let mut third = daemon.raw().await;
    let refusal = third.line().await.expect("a refusal");
    assert_eq!((refusal["id"].clone(), code(&refusal)), (Value::Null, "too_many_connections".to_owned()));
    assert_eq!(third.line().await, None);
    let error = refused(daemon.client().await.status(StatusParams::default()).await);
    assert_eq!(error.code(), ErrorCode::TooManyConnections, "the client library understands it too");
    for running in running {
        running.await.unwrap().unwrap();
    }
    daemon.stop().await;
}

#[tokio::test]
async fn metrics_are_served_on_loopback() {
    // A port that was just free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let home = Home::new(&[&format!("metrics.listen=127.0.0.1:{port}")]);
    let daemon = home.start().await;
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("hostd_build_info{") && text.contains("hostd_egress_ok 1\n"), "{text}");
    daemon.stop().await;
}

#[tokio::test]
async fn an_unusable_configuration_is_refused_at_start() {
    let home = Home::new(&[]);
    for (setting, exit, words) in [
        ("metrics.listen=0.0.0.0:9469", 2, "loopback"),
        ("paths.audit=/proc/nope/audit.log", 7, "audit log"),
        ("server.max_clone=1", 2, "max_clones"),
        (r#"access=[{users=["root"],operations=["browser-clone-force-unmount"]}]"#, 2, "operators only"),
    ] {
        let mut command = home.command();
        command.arg("--set").arg(setting);
        let ended = run(command).await;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(exit), "{setting}: {said}");
        assert!(said.contains(words), "{setting}: {said}");
    }
    let home = Home::new(&[]);
    let mut command = home.command();
    command.arg("--check-config");
    let good = run(command).await;
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    assert!(!home.path().join("state").exists(), "checking touches nothing");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hostd"));
    command.arg("--print-default-config");
    let printed = run(command).await;
    assert!(printed.status.success());
    assert!(String::from_utf8(printed.stdout).unwrap().contains("[pool]"));
}

#[tokio::test]
async fn a_state_folder_that_others_can_write_is_refused_at_start() {
    let home = Home::new(&[]);
    let state = home.path().join("state");
    fs::create_dir(&state).unwrap();
    for (mode, exit) in [(0o777, 2), (0o770, 2), (0o711, 0)] {
        fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = home.command();
        command.arg("--check-config");
        let ended = run(command).await;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(exit), "{mode:o}: {said}");
        let refused = format!("paths.state: is refused: {} can be written by others", state.display());
        assert_eq!(said.contains(&refused), exit != 0, "{said}");
    }
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(run(home.command()).await.status.code(), Some(2));
    assert_eq!(fs::read_dir(&state).unwrap().count(), 0, "nothing was written to it");
}

#[tokio::test]
async fn the_log_can_be_json() {
    let home = Home::new(&["log.format=json"]);
    let daemon = home.start().await;
    daemon.stop().await;
    let log = home.log();
    assert!(log.lines().count() >= 2, "{log}");
    for line in log.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(value["level"].is_string() && value["timestamp"].is_string(), "{line}");
    }
}

#[tokio::test]
async fn a_client_times_out_and_the_operation_continues() {
    let home = Home::new(&[]);
    home.set_latency(200);
    let daemon = home.start().await;
    let client = daemon.client().await;
    let error = client.with_timeout(Duration::from_millis(1)).create(create("a")).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout(_)), "{error}");
    let made = client.create(create("a")).await.unwrap();
    assert_eq!(made.clone.state, CloneState::Ready);
    let error = Client::connect(home.path().join("nowhere")).await.unwrap_err();
    assert!(error.to_string().contains("is hostd running"), "{error}");
    daemon.stop().await;
}

#[tokio::test]
async fn a_client_reports_a_connection_that_breaks() {
    let (near, far) = tokio::net::UnixStream::pair().unwrap();
    let client = Client::over(near);
    let mut daemon = Raw::over(far);
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.status(StatusParams::default()).await }
    });
    let request = daemon.line().await.unwrap();
    assert_eq!(request["method"], "host-status");
    daemon.send("{\"jsonrpc\":\"2.0\",\"id\":").await;
    drop(daemon);
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Closed(_)), "{error}");

    let (near, far) = tokio::net::UnixStream::pair().unwrap();
    let client = Client::over(near);
    let mut daemon = Raw::over(far);
    daemon.send("this is no hostd\n").await;
    let error = client.status(StatusParams::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error}");
}

#[test]
fn the_help_names_every_flag() {
    let help = Command::new(env!("CARGO_BIN_EXE_hostd")).arg("--help").output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    for flag in [
        "--config",
        "--socket",
        "--state-dir",
        "--log-format",
        "--set",
        "--check-config",
        "--print-default-config",
    ] {
        assert!(text.contains(flag), "{flag} is not in\n{text}");
    }
}

/// The systemd units repeat some defaults of the daemon.
#[test]
fn the_systemd_units_match_the_defaults() {
    let units = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/systemd");
    let read = |name: &str| fs::read_to_string(units.join(name)).unwrap();
    let setting = |unit: &str, key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
        line.unwrap_or_else(|| panic!("{key} is missing")).to_owned()
    };
    let config = hostd::config::Config::default();
    let (service, socket) = (read("hostd.service"), read("hostd.socket"));
    assert_eq!(setting(&socket, "ListenStream"), config.paths.socket.to_str().unwrap());
    assert_eq!(setting(&socket, "SocketGroup"), config.paths.socket_group);
    assert_eq!(setting(&socket, "SocketMode"), "0660");
    assert_eq!(setting(&service, "Type"), "notify");
    let stop: u64 = setting(&service, "TimeoutStopSec").parse().unwrap();
    assert!(stop > config.lifecycle.shutdown_grace_seconds + 5, "{stop}");
    let state = format!("/var/lib/{}", setting(&service, "StateDirectory"));
    assert_eq!(state, config.paths.state.to_str().unwrap());
    let folder = config.paths.socket.parent().unwrap().to_str().unwrap().to_owned();
    assert!(
        read("hostd.tmpfiles").contains(&format!("d {folder} 0750 root {}\n", config.paths.socket_group))
    );
    assert!(read("hostd.sysusers").contains(&format!("g {} -\n", config.paths.socket_group)));
    // A mount namespace of the service would hide the clones' mounts from the host.
    for harmful in
        ["ProtectSystem=", "PrivateTmp=", "PrivateMounts=", "ReadWritePaths=", "MemoryDenyWriteExecute="]
    {
        assert!(!service.lines().any(|line| line.starts_with(harmful)), "{harmful}");
    }
}
