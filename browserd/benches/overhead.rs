//! Measures browserd's overhead compared with the same CDP commands on a bare pipe.
//!
//! Two instances of Chromium with the same arguments run side by side. browserd controls one; a minimal blocking loop in
//! this program controls the other. They alternate action by action, so that other load on the machine affects both
//! equally. Medians are compared.
#![allow(clippy::unwrap_used)]

use cdp_pipe::Decoder;
use serde_json::{Value, json};
use std::collections::{HashSet, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const UID: u32 = 60990;
const PAGE: &str = include_str!("page.html");
const INFO: &str = include_str!("../src/browser/js/info.js");
/// browserd's functions for elements, as it composes them.
macro_rules! on_element_script {
    ($file:literal) => {
        concat!(
            "async function (selector, ...given) {\n",
            include_str!("../src/browser/js/locate.js"),
            include_str!(concat!("../src/browser/js/", $file)),
            "}"
        )
    };
}
const POINT: &str = on_element_script!("point.js");
const FOCUS: &str = on_element_script!("focus.js");

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let json_file =
        arguments.iter().position(|argument| argument == "--json").map(|at| arguments[at + 1].clone());
    let rounds = std::env::var("BROWSERD_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let chromium = std::env::var("BROWSERD_TEST_CHROMIUM")
        .unwrap_or_else(|_| "/usr/lib/chromium/chromium-headless-shell".into());
    assert!(
        Path::new(&chromium).exists(),
        "{chromium} is missing: install Chromium or set BROWSERD_TEST_CHROMIUM"
    );

    let site = serve();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut api = Api::start(&chromium, folder.path());
    let mut raw = Raw::start(api.chromium_pid(), folder.path());

    let mut table = Vec::new();
    let mut measure =
        |name: &'static str, goal: Goal, api: &mut Api, raw: &mut Raw, times: usize, work: [Work<'_>; 2]| {
            let [on_raw, on_api] = work;
            let (mut raws, mut apis) = (Vec::new(), Vec::new());
            for round in 0..times + 5 {
                let one = |which: usize, api: &mut Api, raw: &mut Raw| {
                    let start = Instant::now();
                    if which == 0 {
                        on_raw(api, raw)
                    } else {
                        on_api(api, raw)
                    };
                    let time = start.elapsed();
                    // Closing the tabs is not part of the measurement.
                    api.close_opened();
                    raw.close_opened();
                    time
                };
                // The order alternates. The first rounds are warm-up.
                let (first, second) = (round % 2, 1 - round % 2);
                let times = [(first, one(first, api, raw)), (second, one(second, api, raw))];
                if round >= 5 {
                    for (which, time) in times {
                        if which == 0 { raws.push(time) } else { apis.push(time) }
                    }
                }
            }
            table.push(Row::new(name, goal, raws, apis));
        };

    let url = format!("http://{site}/");
    let navigate_api = |api: &mut Api, _: &mut Raw| drop(api.post("/v1/navigate", json!({ "url": url })));
    let navigate_raw = |_: &mut Api, raw: &mut Raw| raw.navigate(&url);
    measure("navigate", Goal::Ratio(1.15), &mut api, &mut raw, rounds, [&navigate_raw, &navigate_api]);

    let shot = json!({ "format": "png", "optimizeForSpeed": true });
    let shot_api = |api: &mut Api, _: &mut Raw| drop(api.post("/v1/screenshot", json!({})));
    let shot_raw = |_: &mut Api, raw: &mut Raw| drop(raw.call("Page.captureScreenshot", shot.clone()));
    measure("screenshot", Goal::Ratio(1.15), &mut api, &mut raw, rounds, [&shot_raw, &shot_api]);

    let click_api =
        |api: &mut Api, _: &mut Raw| drop(api.post("/v1/click", json!({ "selector": "#button" })));
    let click_raw = |_: &mut Api, raw: &mut Raw| raw.click("#button");
    measure("click", Goal::Added(1.0), &mut api, &mut raw, rounds, [&click_raw, &click_api]);

    let type_api = |api: &mut Api, _: &mut Raw| {
        drop(api.post("/v1/type", json!({ "selector": "#field", "text": "some text", "clear": true })));
    };
    let type_raw = |_: &mut Api, raw: &mut Raw| raw.type_text("#field", "some text");
    measure("type", Goal::Added(1.0), &mut api, &mut raw, rounds, [&type_raw, &type_api]);

    let evaluate_api = |api: &mut Api, _: &mut Raw| {
        drop(api.post("/v1/evaluate", json!({ "expression": "document.title" })))
    };
    let evaluate_raw = |_: &mut Api, raw: &mut Raw| {
        let params = json!({ "expression": "document.title", "returnByValue": true, "awaitPromise": true,
            "userGesture": true, "timeout": 30000 });
        drop(raw.call("Runtime.evaluate", params));
    };
    measure("evaluate", Goal::Added(1.0), &mut api, &mut raw, rounds * 2, [&evaluate_raw, &evaluate_api]);

    let second_api = |api: &mut Api, _: &mut Raw| {
        api.opened = api.post("/v1/tabs", json!({}))["tab"].as_str().map(str::to_owned);
        api.post("/v1/navigate", json!({ "url": url }));
    };
    let second_raw = |_: &mut Api, raw: &mut Raw| raw.second_page(&url);
    measure("second page", Goal::Ratio(1.1), &mut api, &mut raw, rounds / 2, [&second_raw, &second_api]);

    let (rss, pss) = api.memory();
    print!("{}", render(&table, rss, pss));
    if let Some(file) = json_file {
        std::fs::write(file, serde_json::to_string_pretty(&to_json(&table, rss, pss)).unwrap() + "\n")
            .unwrap();
    }
    let met = table.iter().all(Row::met) && pss < 10 * 1024;
    drop((api, raw));
    if !met {
        std::process::exit(1);
    }
}

type Work<'a> = &'a dyn Fn(&mut Api, &mut Raw);

/// The target of a measurement.
#[derive(Clone, Copy)]
enum Goal {
    /// Maximum ratio to the bare pipe.
    Ratio(f64),
    /// Maximum number of additional milliseconds.
    Added(f64),
}

struct Row {
    name: &'static str,
    goal: Goal,
    raw: f64,
    api: f64,
    raw_p90: f64,
    api_p90: f64,
    times: usize,
}

impl Row {
    fn new(name: &'static str, goal: Goal, mut raws: Vec<Duration>, mut apis: Vec<Duration>) -> Self {
        raws.sort();
        apis.sort();
        let at = |list: &[Duration], part: f64| {
            list[((list.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3
        };
        let times = raws.len();
        Self {
            name,
            goal,
            raw: at(&raws, 0.5),
            api: at(&apis, 0.5),
            raw_p90: at(&raws, 0.9),
            api_p90: at(&apis, 0.9),
            times,
        }
    }

    fn met(&self) -> bool {
        match self.goal {
            Goal::Ratio(most) => self.api / self.raw <= most,
            Goal::Added(most) => self.api - self.raw < most,
        }
    }

    fn goal_text(&self) -> String {
        match self.goal {
            Goal::Ratio(most) => format!("<= {most:.2}x"),
            Goal::Added(most) => format!("< {most:.1} ms added"),
        }
    }
}

fn render(table: &[Row], rss: u64, pss: u64) -> String {
    let mut text = format!(
        "{:<12} {:>5} {:>10} {:>10} {:>7} {:>9} {:>9} {:>9}  {:<15} met\n",
        "action", "n", "raw ms", "api ms", "ratio", "added ms", "raw p90", "api p90", "goal"
    );
    for row in table {
        text += &format!(
            "{:<12} {:>5} {:>10.3} {:>10.3} {:>7.3} {:>9.3} {:>9.3} {:>9.3}  {:<15} {}\n",
            row.name,
            row.times,
            row.raw,
            row.api,
            row.api / row.raw,
            row.api - row.raw,
            row.raw_p90,
            row.api_p90,
            row.goal_text(),
            if row.met() { "yes" } else { "NO" }
        );
    }
    let met = if pss < 10 * 1024 { "yes" } else { "NO" };
    text + &format!("own memory: RSS {rss} KiB, PSS {pss} KiB  (goal: PSS < 10240 KiB) {met}\n")
}

fn to_json(table: &[Row], rss: u64, pss: u64) -> Value {
    let actions: Vec<Value> = table
        .iter()
        .map(|row| {
            json!({
                "action": row.name, "n": row.times, "raw_ms": row.raw, "api_ms": row.api, "ratio": row.api / row.raw,
                "added_ms": row.api - row.raw, "raw_p90_ms": row.raw_p90, "api_p90_ms": row.api_p90,
                "goal": row.goal_text(), "met": row.met(),
            })
        })
        .collect();
    json!({ "actions": actions, "rss_kib": rss, "pss_kib": pss, "memory_met": pss < 10 * 1024 })
}

/// Serves the page on loopback.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.set_nodelay(true);
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut stream = stream;
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                    if line == "\r\n" {
                        let head =
                            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncache-control: no-store\r\n";
                        let answer = format!("{head}content-length: {}\r\n\r\n{PAGE}", PAGE.len());
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

fn as_user(command: &mut Command) -> &mut Command {
    if nix::unistd::geteuid().is_root() { command.uid(UID).gid(UID) } else { command }
}

fn own(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    if nix::unistd::geteuid().is_root() {
        chown(folder, Some(UID), Some(UID)).unwrap();
    }
}

/// browserd and a persistent connection to it.
struct Api {
    child: Child,
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    secret: browserd::Secret,
    opened: Option<String>,
}

impl Api {
    fn start(chromium: &str, folder: &Path) -> Self {
        let data = folder.join("data");
        own(&data);
        let mut command = Command::new(env!("CARGO_BIN_EXE_browserd"));
        command.args(["--listen", "127.0.0.1:0", "--chromium", chromium, "--data-dir"]).arg(&data);
        command.args(["--secret-fd", "0"]).stdin(Stdio::piped());
        let mut child = as_user(&mut command).env_clear().env("PATH", "/usr/bin:/bin").spawn().unwrap();
        let secret = browserd::Secret::random().unwrap();
        child.stdin.take().unwrap().write_all(secret.as_str().as_bytes()).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let address: SocketAddr = loop {
            assert!(Instant::now() < end, "browserd does not listen");
            match std::fs::read_to_string(data.join("browserd.address")) {
                Ok(text) => break text.trim().parse().unwrap(),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let connect = || {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            BufReader::new(stream)
        };
        let mut api = Self { child, stream: connect(), address, secret, opened: None };
        while api.request("GET", "/readyz", "").0 != 200 {
            assert!(Instant::now() < end, "browserd is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        api
    }

    fn request(&mut self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            self.secret.as_str(),
            body.len()
        );
        self.stream.get_mut().write_all(head.as_bytes()).unwrap();
        let (mut status, mut length, mut line) = (0, 0, String::new());
        loop {
            line.clear();
            assert!(self.stream.read_line(&mut line).unwrap() > 0, "browserd closed the connection");
            let text = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = text.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(rest) = text.strip_prefix("content-length: ") {
                length = rest.parse().unwrap();
            } else if text.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn post(&mut self, path: &str, body: Value) -> Value {
        let (status, answer) = self.request("POST", path, &body.to_string());
        assert!(status < 300, "{path}: {answer}");
        answer
    }

    fn close_opened(&mut self) {
        if let Some(tab) = self.opened.take() {
            self.request("DELETE", &format!("/v1/tabs/{tab}"), "");
        }
    }

    fn chromium_pid(&mut self) -> u64 {
        self.request("GET", "/v1/health", "").1["browser_pid"].as_u64().unwrap()
    }

    fn memory(&self) -> (u64, u64) {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        (field("Rss:"), field("Pss:"))
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

/// A Chromium on a bare pipe, controlled with minimal code.
struct Raw {
    child: Child,
    pipe: UnixStream,
    decoder: Decoder,
    chunk: Vec<u8>,
    next_id: u64,
    session: String,
    target: String,
    world: Option<u64>,
    events: VecDeque<Value>,
    loaded: HashSet<String>,
    first: Option<(String, String, Option<u64>)>,
}

impl Raw {
    /// Starts Chromium with the arguments of browserd's Chromium and another profile.
    fn start(like: u64, folder: &Path) -> Self {
        let data = folder.join("raw");
        own(&data);
        let line = std::fs::read_to_string(format!("/proc/{like}/cmdline")).unwrap();
        let mut arguments = line.split('\0').filter(|argument| !argument.is_empty()).map(str::to_owned);
        let program = arguments.next().unwrap();
        let profile = format!("--user-data-dir={}", data.join("profile").display());
        let arguments: Vec<String> = arguments
            .map(|argument| if argument.starts_with("--user-data-dir=") { profile.clone() } else { argument })
            .collect();
        let (pipe, chromium_end) = UnixStream::pair().unwrap();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null", &program])
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(chromium_end.try_clone().unwrap())))
            .stdout(Stdio::from(OwnedFd::from(chromium_end)))
            .stderr(Stdio::null())
            .env_clear()
            .env("HOME", &data)
            .env("TMPDIR", &data);
        let child = as_user(&mut command).spawn().unwrap();
        drop(command);
        let mut raw = Self {
            child,
            pipe,
            decoder: Decoder::new(256 << 20),
            chunk: vec![0; 64 * 1024],
            next_id: 0,
            session: String::new(),
            target: String::new(),
            world: None,
            events: VecDeque::new(),
            loaded: HashSet::new(),
            first: None,
        };
        let pages = json!([{ "type": "page" }, { "exclude": true }]);
        let attach =
            json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true, "filter": pages });
        raw.browser_call("Target.setDiscoverTargets", json!({ "discover": true, "filter": pages }));
        raw.browser_call("Target.setAutoAttach", attach);
        raw.open();
        raw
    }

    fn send(&mut self, method: &str, params: Value, session: bool) -> u64 {
        self.next_id += 1;
        let mut message = json!({ "id": self.next_id, "method": method, "params": params });
        if session {
            message["sessionId"] = json!(self.session);
        }
        self.pipe.write_all(&cdp_pipe::encode(serde_json::to_vec(&message).unwrap())).unwrap();
        self.next_id
    }

    fn receive(&mut self) -> Value {
        let message: Value = loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                break serde_json::from_slice(message.payload()).unwrap();
            }
            let length = self.pipe.read(&mut self.chunk).unwrap();
            assert_ne!(length, 0, "the raw Chromium has ended");
            self.decoder.feed(&self.chunk[..length]);
        };
        if message["method"] == "Page.lifecycleEvent" && message["params"]["name"] == "load" {
            self.loaded.insert(message["params"]["loaderId"].as_str().unwrap().to_owned());
        } else if message["method"] == "Target.attachedToTarget" {
            self.events.push_back(message["params"].clone());
        }
        message
    }

    fn answer(&mut self, id: u64) -> Value {
        loop {
            let mut message = self.receive();
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{message}");
                return message["result"].take();
            }
        }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params, true);
        self.answer(id)
    }

    fn browser_call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params, false);
        self.answer(id)
    }

    /// Opens a page and sets it up with the commands that browserd uses.
    fn open(&mut self) {
        self.events.clear();
        let created =
            self.browser_call("Target.createTarget", json!({ "url": "about:blank", "background": false }));
        self.target = created["targetId"].as_str().unwrap().to_owned();
        self.session = loop {
            match self.events.pop_front() {
                Some(event) => break event["sessionId"].as_str().unwrap().to_owned(),
                None => drop(self.receive()),
            }
        };
        self.world = None;
        let frames = json!({
            "autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true,
            "filter": [{ "type": "iframe" }, { "exclude": true }],
        });
        self.send("Page.enable", json!({}), true);
        self.send("Page.setLifecycleEventsEnabled", json!({ "enabled": true }), true);
        self.send("Emulation.setFocusEmulationEnabled", json!({ "enabled": true }), true);
        self.send("Target.setAutoAttach", frames, true);
        let last = self.send("Runtime.runIfWaitingForDebugger", json!({}), true);
        self.answer(last);
        // browserd returns the tab's title, so this call is part of the comparison.
        self.browser_call("Target.getTargets", json!({}));
    }

    fn run(&mut self, function: &str, arguments: &[Value]) -> Value {
        let world = match self.world {
            Some(world) => world,
            None => {
                let params = json!({ "frameId": self.target, "worldName": "bench" });
                let world =
                    self.call("Page.createIsolatedWorld", params)["executionContextId"].as_u64().unwrap();
                *self.world.insert(world)
            }
        };
        let arguments: Vec<Value> = arguments.iter().map(|value| json!({ "value": value })).collect();
        let params = json!({
            "functionDeclaration": function, "executionContextId": world, "arguments": arguments,
            "returnByValue": true, "awaitPromise": true, "userGesture": true,
        });
        self.call("Runtime.callFunctionOn", params)["result"]["value"].take()
    }

    fn navigate(&mut self, url: &str) {
        self.world = None;
        let started = self.call("Page.navigate", json!({ "url": url, "transitionType": "typed" }));
        let loader = started["loaderId"].as_str().unwrap().to_owned();
        while !self.loaded.contains(&loader) {
            self.receive();
        }
        assert!(self.run(INFO, &[])["title"].is_string());
    }

    fn click(&mut self, selector: &str) {
        let point = self.run(POINT, &[json!(selector)]);
        let mut last = 0;
        for (kind, button, count) in
            [("mouseMoved", "none", 0), ("mousePressed", "left", 1), ("mouseReleased", "left", 1)]
        {
            let params = json!({ "type": kind, "x": point["x"], "y": point["y"], "button": button, "clickCount": count });
            last = self.send("Input.dispatchMouseEvent", params, true);
        }
        self.answer(last);
    }

    fn type_text(&mut self, selector: &str, text: &str) {
        self.run(FOCUS, &[json!(selector), json!(true)]);
        self.call("Input.insertText", json!({ "text": text }));
    }

    fn second_page(&mut self, url: &str) {
        self.first = Some((self.session.clone(), self.target.clone(), self.world));
        self.open();
        self.navigate(url);
    }

    fn close_opened(&mut self) {
        if let Some((session, target, world)) = self.first.take() {
            let closing = std::mem::replace(&mut self.target, target);
            (self.session, self.world) = (session, world);
            self.browser_call("Target.closeTarget", json!({ "targetId": closing }));
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.send("Browser.close", json!({}), false);
        let end = Instant::now() + Duration::from_secs(5);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
