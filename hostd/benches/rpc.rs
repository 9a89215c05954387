//! What the daemon costs: round trips against a bare echo, a long list, memory, reconcile.
//!
//! `scripts/bench rpc` runs it. Everything is the release build with the fake host behind it, over a real
//! socket between processes. Times on a shared machine jump, so the round trip is compared in pairs: each
//! round measures the echo and the daemon right after each other, and the median of the rounds counts.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 60;
const CALLS: usize = 300;
const CLONES: usize = 900;
const PATIENCE: Duration = Duration::from_secs(120);
/// Set for the child that is the echo; its value is the socket.
const ECHO: &str = "HOSTD_BENCH_ECHO";
/// The daemon to measure.
const DAEMON: &str = "HOSTD_BENCH_DAEMON";

fn main() {
    if let Some(path) = std::env::var_os(ECHO) {
        return echo(Path::new(&path));
    }
    let strict = std::env::args().any(|argument| argument == "--strict");
    let folder = tempfile::Builder::new().prefix("hb").tempdir().unwrap();
    let mut table = Table::default();

    let echo_socket = folder.path().join("echo");
    let _echo = Process(
        Command::new(std::env::current_exe().unwrap())
            .env(ECHO, &echo_socket)
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let hostd_socket = folder.path().join("sock");
    let hostd = Process(start_hostd(folder.path()));
    let mut echo = Peer::connect(&echo_socket);
    let mut peer = Peer::connect(&hostd_socket);
    until("the host was looked at", || {
        let status = peer.call("host-status", json!({"metrics": true}));
        metric(status["metrics"].as_str().unwrap(), "hostd_reconcile_duration_seconds_count") >= 1.0
    });
    table.add("memory of the idle daemon", hostd.memory_mib(), "MiB", Some(8.0));

    let (status, bare, ratio) = round_trips(&mut peer, &mut echo);
    table.add("bare echo, median round trip", bare, "µs", None);
    table.add("host-status, median round trip", status, "µs", None);
    table.add("host-status against echo, median of pairs", ratio, "×", Some(2.0));

    let began = Instant::now();
    fill(&hostd_socket);
    table.add(
        "create on the fake host, each",
        began.elapsed().as_secs_f64() * 1000.0 / CLONES as f64,
        "ms",
        None,
    );

    let mut lists: Vec<f64> = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        peer.send(br#"{"jsonrpc":"2.0","id":1,"method":"browser-clone-list"}"#);
        lists.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    let listed = peer.call("browser-clone-list", json!({}));
    assert_eq!(listed["clones"].as_array().unwrap().len(), CLONES);
    table.add("browser-clone-list of 900, median", median(&mut lists), "ms", Some(5.0));

    let reconcile = reconcile(&mut peer);
    table.add("reconcile of 900 clones, mean", reconcile * 1000.0, "ms", None);
    table.add(
        "memory with 900 clones (the fake host's world included)",
        hostd.memory_mib(),
        "MiB",
        Some(16.0),
    );

    let missed = table.print();
    table.save();
    drop(hostd);
    if strict && missed > 0 {
        std::process::exit(1);
    }
}

/// The least a server can do: give every line back.
fn echo(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = [0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => stream.write_all(&buffer[..length]).unwrap(),
        }
    }
}

fn start_hostd(folder: &Path) -> Child {
    let at = |name: &str| folder.join(name).display().to_string();
    fs::write(folder.join("hostd.toml"), "").unwrap();
    let settings = [
        format!("paths.socket={}", at("sock")),
        "paths.socket_group=".to_owned(),
        format!("paths.state={}", at("state")),
        format!("paths.audit={}", at("audit.log")),
        format!("pool.clones_dir={}", at("clones")),
        "host.driver=fake".to_owned(),
        "server.creates_per_minute=1000000".to_owned(),
        "server.create_burst=1000000".to_owned(),
        format!("server.max_clones={CLONES}"),
        format!("server.max_clones_per_tenant={CLONES}"),
        "lifecycle.reconcile_interval_ms=1000".to_owned(),
        "lifecycle.default_deadline_seconds=86400".to_owned(),
        "log.filter=warn".to_owned(),
        format!("access=[{{users=[\"{}\"],operator=true}}]", nix::unistd::geteuid()),
    ];
    // Built like a release: the one that cargo builds for a benchmark has what the tests need of its dependencies too.
    let program = std::env::var_os(DAEMON).unwrap_or_else(|| env!("CARGO_BIN_EXE_hostd").into());
    let mut command = Command::new(program);
    command.arg("--config").arg(folder.join("hostd.toml")).env_clear().stdin(Stdio::null());
    for setting in settings {
        command.arg("--set").arg(setting);
    }
    command.spawn().unwrap()
}

/// Medians of a round trip to the daemon and to the echo in microseconds, and of their ratio in each round.
fn round_trips(peer: &mut Peer, echo: &mut Peer) -> (f64, f64, f64) {
    let line = br#"{"jsonrpc":"2.0","id":1,"method":"host-status"}"#;
    let round = |peer: &mut Peer| {
        let mut times: Vec<f64> = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let began = Instant::now();
            peer.send(line);
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        median(&mut times)
    };
    round(peer);
    round(echo);
    let (mut statuses, mut echoes, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (bare, status) = (round(echo), round(peer));
        ratios.push(status / bare);
        echoes.push(bare);
        statuses.push(status);
    }
    (median(&mut statuses), median(&mut echoes), median(&mut ratios))
}

/// Make all the clones, a few at a time.
fn fill(socket: &Path) {
    std::thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                let mut peer = Peer::connect(socket);
                for n in (worker..CLONES).step_by(4) {
                    let params = json!({"request_id": format!("r{n}"), "tenant": format!("tenant{}", n % 7)});
                    let made = peer.call("browser-clone-create", params);
                    assert_eq!(made["clone"]["state"], "ready");
                }
            });
        }
    });
}

/// The mean time of a few reconciles, by the daemon's own histogram.
fn reconcile(peer: &mut Peer) -> f64 {
    let mut look = || {
        let status = peer.call("host-status", json!({"metrics": true}));
        let text = status["metrics"].as_str().unwrap().to_owned();
        let of = |name: &str| metric(&text, &format!("hostd_reconcile_duration_seconds_{name}"));
        (of("sum"), of("count"))
    };
    let (sum, count) = look();
    let mut later = (sum, count);
    until("five reconciles", || {
        later = look();
        later.1 >= count + 5.0
    });
    (later.0 - sum) / (later.1 - count)
}

fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A blocking connection: one line there, one line back.
struct Peer {
    lines: BufReader<UnixStream>,
    answer: Vec<u8>,
}

impl Peer {
    fn connect(path: &Path) -> Peer {
        let mut stream = None;
        until("the server takes connections", || {
            stream = UnixStream::connect(path).ok();
            stream.is_some()
        });
        Peer { lines: BufReader::with_capacity(256 * 1024, stream.unwrap()), answer: Vec::new() }
    }

    fn send(&mut self, line: &[u8]) {
        let stream = self.lines.get_mut();
        self.answer.clear();
        self.answer.extend_from_slice(line);
        self.answer.push(b'\n');
        stream.write_all(&self.answer).unwrap();
        self.answer.clear();
        self.lines.read_until(b'\n', &mut self.answer).unwrap();
        assert_eq!(self.answer.last(), Some(&b'\n'));
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.send(request.to_string().as_bytes());
        let mut answer: Value = serde_json::from_slice(&self.answer).unwrap();
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }
}

/// A child that ends with us.
struct Process(Child);

impl Process {
    fn memory_mib(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Default)]
struct Table(Vec<(&'static str, f64, &'static str, Option<f64>)>);

impl Table {
    fn add(&mut self, what: &'static str, value: f64, unit: &'static str, target: Option<f64>) {
        self.0.push((what, value, unit, target));
    }

    /// Answers how many targets were missed.
    fn print(&self) -> usize {
        println!("{:<58} {:>10}      {:>8}", "", "measured", "target");
        let mut missed = 0;
        for (what, value, unit, target) in &self.0 {
            let verdict = match target {
                Some(target) if value <= target => format!("≤ {target:>6} ok"),
                Some(target) => {
                    missed += 1;
                    format!("≤ {target:>6} MISSED")
                }
                None => String::new(),
            };
            println!("{what:<58} {value:>10.2} {unit:<4} {verdict}");
        }
        missed
    }

    fn save(&self) {
        // …/target/release/hostd → …/target/bench
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_hostd"));
        let folder = binary.ancestors().nth(2).unwrap().join("bench");
        fs::create_dir_all(&folder).unwrap();
        let rows: Vec<Value> = self
            .0
            .iter()
            .map(|(what, value, unit, target)| json!({"what": what, "value": value, "unit": unit, "target": target}))
            .collect();
        let file = folder.join("rpc.json");
        fs::write(&file, format!("{:#}\n", json!({"bench": "rpc", "rows": rows}))).unwrap();
        println!("written to {}", file.display());
    }
}
