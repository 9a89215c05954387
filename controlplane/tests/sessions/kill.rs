//! The service and hostd are killed at random under load. No session is lost silently, no clone is left over, and the audit
//! log is whole. `CONTROLPLANE_KILLS` is the number of kills, 50 by default.

use crate::rig::{Redirected, Rig, Service, caller, until};
use crate::support::database::Database;
use controlplane::app::App;
use controlplane::audit::Audit;
use controlplane::config::Config;
use controlplane::store::Store;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

const ARGUMENTS: &str = "CONTROLPLANE_TEST_SERVICE";

/// What the other process gets.
#[derive(serde::Serialize, serde::Deserialize)]
struct Arguments {
    config: Config,
    store_url: String,
    state: PathBuf,
    hostd: PathBuf,
    browser: std::net::SocketAddr,
    socket: PathBuf,
}

/// Not a test: the service as a process of its own. It answers one line of JSON with another.
#[test]
#[ignore = "it is the other process of the kill loop"]
fn service_process() {
    let arguments = std::env::var(ARGUMENTS).expect("started by the kill loop");
    let arguments: Arguments = serde_json::from_str(&arguments).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(serve(arguments));
}

async fn serve(arguments: Arguments) {
    let Arguments { mut config, store_url, state, hostd, browser, socket } = arguments;
    config.store.url = store_url;
    let store = loop {
        match Store::open(&config.store, &state).await {
            Ok(store) => break store,
            Err(error) => eprintln!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let audit = Audit::start(store.clone(), &state, &config.audit).await.unwrap();
    let app =
        App::start(Arc::new(config), store, audit, Redirected::to_stand_in(&hostd, browser)).await.unwrap();
    let service = Service { app, me: caller(1000, "default") };
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service.clone();
        tokio::spawn(async move {
            let (read, mut write) = stream.into_split();
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let call: Value = serde_json::from_str(&line).unwrap();
                let verb = call["verb"].as_str().unwrap();
                let answer = service.call(verb, call["session"].as_str(), call["params"].clone()).await;
                let answer = match answer {
                    Ok(result) => json!({ "result": result }),
                    Err(error) => json!({ "error": error.code() }),
                };
                if write.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// The other process.
struct Process(Option<Child>);

impl Process {
    fn start(arguments: &Arguments) -> Self {
        let log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(arguments.socket.with_extension("log"));
        let log = log.unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["kill::service_process", "--exact", "--ignored", "--nocapture"])
            .env(ARGUMENTS, serde_json::to_string(arguments).unwrap())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self(Some(child.unwrap()))
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One client's connection.
struct Caller(Option<BufReader<UnixStream>>);

impl Caller {
    /// None if the service ended meanwhile.
    async fn call(
        &mut self,
        socket: &Path,
        verb: &str,
        session: Option<&str>,
        params: Value,
    ) -> Option<Value> {
        if self.0.is_none() {
            self.0 = UnixStream::connect(socket).await.ok().map(BufReader::new);
        }
        let stream = self.0.as_mut()?;
        let line = format!("{}\n", json!({"verb": verb, "session": session, "params": params}));
        let mut answer = String::new();
        let sent = stream.get_mut().write_all(line.as_bytes()).await;
        let read = stream.read_line(&mut answer).await;
        if sent.is_err() || !matches!(read, Ok(length) if length > 0) || !answer.ends_with('\n') {
            self.0 = None;
            return None;
        }
        Some(serde_json::from_str(&answer).unwrap())
    }
}

/// What the load did.
#[derive(Default)]
struct Done {
    /// Sessions that a caller got, and whether a close of it was answered.
    opened: Mutex<BTreeMap<String, bool>>,
    calls: AtomicU64,
    ends: AtomicBool,
}

async fn load(socket: PathBuf, done: Arc<Done>, worker: u64) {
    let mut service = Caller(None);
    let mut number = 0;
    while !done.ends.load(Ordering::SeqCst) {
        let Some(answer) = service.call(&socket, "open_session", None, json!({"record": "off"})).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let Some(id) = answer["result"]["session_id"].as_str().map(str::to_owned) else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        done.opened.lock().unwrap().insert(id.clone(), false);
        for _ in 0..5 {
            number += 1;
            let url = format!("https://example.org/{worker}/{number}");
            if service.call(&socket, "navigate", Some(&id), json!({ "url": url })).await.is_some() {
                done.calls.fetch_add(1, Ordering::SeqCst);
            }
        }
        // Some sessions stay open.
        if number % 3 != 0 {
            let closed = service.call(&socket, "close_session", Some(&id), json!({})).await;
            if closed.is_some_and(|answer| answer["result"]["closed_at"].is_string()) {
                done.opened.lock().unwrap().insert(id, true);
            }
        }
    }
}

/// Numbers that look random, from a seed that a failure shows.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

async fn kill_at_random(database: Database) {
    let kills: u64 = std::env::var("CONTROLPLANE_KILLS").map_or(50, |count| count.parse().expect("a number"));
    let seed = u64::from(std::process::id()) << 20 | 0x5eed;
    println!("{kills} kills, seed {seed:#x}");
    let mut dice = Dice(seed);
    let mut rig = Rig::with(&["server.max_clones=200", "server.max_clones_per_tenant=200"], database).await;
    rig.config.sessions.lease_seconds = 10;
    rig.config.limits.sessions = 200;
    rig.config.limits.sessions_per_tenant = 200;
    let folder = tempfile::Builder::new().prefix("ck").tempdir().unwrap();
    let arguments = Arguments {
        config: rig.config.clone(),
        store_url: rig.database.config.url.clone(),
        state: rig.database.state().to_owned(),
        hostd: rig.hostd.socket(),
        browser: rig.browser.address,
        socket: folder.path().join("s"),
    };
    let mut process = Process::start(&arguments);
    let done = Arc::new(Done::default());
    let workers: Vec<_> =
        (0..4).map(|worker| tokio::spawn(load(arguments.socket.clone(), done.clone(), worker))).collect();
    let (mut service_kills, mut hostd_kills) = (0, 0);
    for kill in 0..kills {
        // So that there is something to kill: a few calls were answered since the last time.
        let before = done.calls.load(Ordering::SeqCst);
        until("the load goes on", async || done.calls.load(Ordering::SeqCst) >= before + 3).await;
        tokio::time::sleep(Duration::from_millis(dice.roll(250))).await;
        let which = dice.roll(4);
        if which != 1 {
            process.kill();
            service_kills += 1;
        }
        if which == 1 || which == 2 {
            rig.hostd.kill();
            hostd_kills += 1;
        }
        if rig.database.server.is_some() && kill % 10 == 9 {
            rig.database.fail();
            tokio::time::sleep(Duration::from_millis(dice.roll(300))).await;
            rig.database.heal();
        }
        if which == 1 || which == 2 {
            rig.hostd.spawn();
        }
        if which != 1 {
            process = Process::start(&arguments);
        }
    }
    done.ends.store(true, Ordering::SeqCst);
    // A worker whose service is gone connects again and ends.
    for worker in workers {
        tokio::time::timeout(Duration::from_secs(60), worker).await.expect("the load ends").unwrap();
    }
    process.kill();
    println!(
        "{service_kills} of the service, {hostd_kills} of hostd, {} calls",
        done.calls.load(Ordering::SeqCst)
    );

    // Started once more, every session is usable or closed with a reason.
    let service = rig.app().await;
    until("every session is open or closed", async || {
        let counts = service.app.sessions.counts();
        counts.opening + counts.finding + counts.closing == 0
    })
    .await;
    let list = service.call("sessions", None, json!({"all": true, "limit": 1000})).await.unwrap();
    let sessions: BTreeMap<String, Value> = list["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|view| (view["session_id"].as_str().unwrap().to_owned(), view.clone()))
        .collect();
    assert!(sessions.len() < 1000, "the list is complete");
    let opened = done.opened.lock().unwrap().clone();
    assert!(opened.len() >= 5, "there was load: {}", opened.len());
    let mut open = BTreeSet::new();
    for (id, closed) in &opened {
        let view = sessions.get(id).unwrap_or_else(|| panic!("session {id} is lost"));
        match view["state"].as_str().unwrap() {
            "open" => {
                assert!(!closed, "a session whose close was answered is open: {view}");
                service.call("navigate", Some(id), json!({"url": "https://example.org/"})).await.unwrap();
            }
            "closed" => assert!(view["close_reason"].is_string() && view["closed_at"].is_string(), "{view}"),
            _ => panic!("{view}"),
        }
    }
    for (id, view) in &sessions {
        if view["state"] == "open" {
            open.insert(id.as_str());
        }
    }
    let open: Vec<&str> = open.into_iter().collect();
    rig.hostd.until_only(&open).await;

    // Every call that a browser got is in the log, and the log is whole.
    let report = service.app.audit.verify().await.unwrap();
    assert!(report.intact, "{report:?}");
    let mut audited = BTreeSet::new();
    let mut after_seq = 0;
    loop {
        let filter = controlplane::store::AuditFilter { after_seq, limit: 1000, ..Default::default() };
        let rows = service.app.store.audit_rows(&filter).await.unwrap();
        let Some(last) = rows.last() else { break };
        after_seq = last.seq;
        for row in rows {
            let params: Value =
                row.params.as_deref().map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
            audited.extend(params["url"].as_str().map(str::to_owned));
        }
    }
    for (path, body) in rig.browser.asked() {
        let url = body["url"].as_str().unwrap_or_default();
        assert!(audited.contains(url), "{path} {body} was forwarded and is not in the log");
    }
    for id in open {
        service.call("close_session", Some(id), json!({})).await.unwrap();
    }
    rig.hostd.until_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_sqlite() {
    kill_at_random(Database::sqlite()).await;
}

#[test]
fn nothing_is_lost_on_postgres() {
    // The server is started and ended by this thread, not by one of the runtime.
    let database = Database::postgres();
    tokio::runtime::Runtime::new().unwrap().block_on(kill_at_random(database));
}
