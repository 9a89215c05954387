//! A private machine for tests of the Linux host: own mount, PID and network namespaces, and a namespace that plays the
//! Internet.
//!
//!     clones ── bt001 ── the test's own network ("the host") ── up0 ═══ up1 ── a namespace that plays the Internet
//!
//! The real machine's mounts, links and rules are not touched: the test starts itself again inside new namespaces, which
//! end with it.

// Every test file uses some of this.
#![allow(dead_code, unreachable_pub)]

use launcher::cdp::Connection;
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const INSIDE: &str = "HOSTD_TEST_INSIDE";
/// The process id of the test outside of its private machine.
const OUTSIDE: &str = "HOSTD_TEST_OUTSIDE";
pub const LIMIT: Duration = Duration::from_secs(60);

/// A public address in the namespace that plays the Internet. The range is reserved for documentation.
pub const PUBLIC: &str = "203.0.113.10";
pub const PUBLIC6: &str = "2001:db8:1::10";
/// The port that every address listens on.
pub const PORT: u16 = 8088;

/// Run the body in a private machine: the calling test is started again inside of it.
pub fn in_private_machine(test: &str, body: impl FnOnce(&Lab)) {
    assert!(nix::unistd::geteuid().is_root(), "these tests need root: run them with sudo");
    if let Some(proof) = std::env::var_os(INSIDE) {
        body(&Lab::new());
        return fs::write(proof, test).expect("the proof that the body ran");
    }
    let proof = tempfile::NamedTempFile::new().expect("a file");
    let status = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(std::env::current_exe().expect("a path"))
        .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(INSIDE, proof.path())
        .env(OUTSIDE, std::process::id().to_string())
        .status()
        .expect("unshare (util-linux) can be started");
    assert!(status.success(), "{test} failed inside its private machine: {status}");
    // A wrong name runs no test, which the test program reports as success.
    let ran = fs::read_to_string(proof.path()).expect("the proof");
    assert_eq!(ran, test, "no test ran: its name, with its modules, is another one");
}

/// The `pool.uid_base` of this test's daemon. The ids belong to the test's process outside of its private machine, because
/// user ids are the same inside and outside: a hostd on this machine and other tests have others.
pub fn uid_base() -> u32 {
    let outside = std::env::var(OUTSIDE).ok().and_then(|process| process.parse().ok());
    *kernel::user_ids::of_test(outside.unwrap_or_else(std::process::id)).start()
}

/// Run a command of the fixture.
pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let done =
        Command::new(program).args(words).output().unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

fn output(command: &str) -> String {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let done =
        Command::new(program).args(words).output().unwrap_or_else(|error| panic!("{command}: {error}"));
    String::from_utf8(done.stdout).expect("text")
}

/// The private machine.
pub struct Lab {
    pub templates: PathBuf,
    _folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Lab {
        // `ip netns` keeps its files here; they must not appear in the real folder.
        run("mount -t tmpfs lab /run");
        run("ip link set lo up");
        run("ip netns add internet");
        run("ip link add up0 type veth peer name up1 netns internet");
        run("ip addr add 198.51.100.1/24 dev up0");
        run("ip -6 addr add 2001:db8::1/64 dev up0 nodad");
        run("ip link set up0 up");
        run("ip route add default via 198.51.100.2");
        run("ip -n internet link set lo up");
        run("ip -n internet addr add 198.51.100.2/24 dev up1");
        run("ip -n internet -6 addr add 2001:db8::2/64 dev up1 nodad");
        run("ip -n internet link set up1 up");
        run("ip -6 route add default via 2001:db8::2");
        run(&format!("ip -n internet addr add {PUBLIC}/32 dev lo"));
        run(&format!("ip -n internet -6 addr add {PUBLIC6}/128 dev lo nodad"));
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding");
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("forwarding");
        serve("internet", SocketAddr::new("::".parse().expect("an address"), PORT));
        let folder = tempfile::Builder::new().prefix("lab").tempdir().expect("a folder");
        let templates = folder.path().join("templates");
        let snapshot = "default".to_owned().try_into().expect("a name");
        hostd::host::linux::create_template(&templates, "browser", &snapshot, None).expect("a template");
        Lab { templates, _folder: folder }
    }

    /// The settings of a daemon on this machine.
    pub fn settings(&self) -> Vec<String> {
        vec![
            "host.driver=native".to_owned(),
            format!("linux.templates={}", self.templates.display()),
            // cgroup v2 or rlimits, as the machine that runs the tests has.
            "linux.limits=available".to_owned(),
            "linux.browserd=".to_owned(),
            "lifecycle.default_deadline_seconds=600".to_owned(),
            format!("egress.probe={PUBLIC}:{PORT}"),
            "pool.last_slot=40".to_owned(),
            format!("pool.uid_base={}", uid_base()),
            "pool.subnet6=fd87:64::/64".to_owned(),
            "log.filter=hostd=debug,info".to_owned(),
        ]
    }

    /// Everything that must be the same before and after: mounts, links, rules, processes, namespaces, cgroups, files.
    pub fn inventory(&self, home: &Path) -> Vec<(String, String)> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mounts: BTreeSet<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
        let links: BTreeSet<String> = output("ip -o link")
            .lines()
            .filter_map(|line| Some(line.split(':').nth(1)?.trim().to_owned()))
            .collect();
        let mut processes = Vec::new();
        let mut networks = BTreeSet::new();
        for entry in fs::read_dir("/proc").expect("proc").flatten() {
            let path = entry.path();
            let Ok(stat) = fs::read_to_string(path.join("stat")) else { continue };
            let Some((name, rest)) = stat.rsplit_once(')') else { continue };
            // The dead that nobody waited for, and the commands of this very look.
            if rest.trim_start().starts_with('Z') || name.ends_with("(ip") || name.ends_with("(nft") {
                continue;
            }
            processes.push(name.rsplit_once('(').map_or("", |(_, name)| name).to_owned());
            networks.extend(fs::read_link(path.join("ns/net")).map(|link| link.display().to_string()));
        }
        processes.sort();
        let mut files = Vec::new();
        list(home, &mut files);
        let kept = |path: &String| !path.contains("/log") && !path.contains("audit.log");
        let files: Vec<String> = files.into_iter().filter(kept).collect();
        let shown = |what: &str, text: String| (what.to_owned(), text);
        vec![
            shown("mounts", format!("{mounts:#?}")),
            shown("links", format!("{links:?}")),
            shown("rules", output("nft -s list ruleset")),
            shown("processes", format!("{processes:?}")),
            shown("network namespaces", format!("{}", networks.len())),
            shown("cgroups", cgroups()),
            shown("files", files.join("\n")),
        ]
    }
}

/// hostd's cgroups, where this machine has cgroup v2.
fn cgroups() -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let roots = mounts.lines().filter(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let mut folders = Vec::new();
    for root in roots.filter_map(|line| line.split(' ').nth(1)) {
        list(&Path::new(root).join("hostd"), &mut folders);
    }
    // Every cgroup is full of files; the folders are what comes and goes.
    folders.retain(|path| Path::new(path).is_dir());
    folders.join("\n")
}

fn list(folder: &Path, into: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        into.push(path.display().to_string());
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            list(&path, into);
        }
    }
}

/// A clone's processes with their command lines: those in its network namespace and whatever descends from them
/// (Chromium puts its renderers into namespaces of their own).
pub fn processes(run: &Path) -> BTreeMap<u32, String> {
    let network = fs::metadata(run.join("net")).expect("the clone's namespace").ino();
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // One that ends while we look is none.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        let inside = fs::metadata(entry.path().join("ns/net")).is_ok_and(|meta| meta.ino() == network);
        all.insert(pid, (parent.unwrap_or(0), inside));
    }
    let is_inside = |mut pid: u32| {
        while let Some((parent, inside)) = all.get(&pid) {
            if *inside {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let command = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    all.keys().filter(|pid| is_inside(**pid)).map(|pid| (*pid, command(pid))).collect()
}

/// Enter a network namespace for as long as the calling thread lives.
pub fn enter(namespace: &Path) {
    let namespace = File::open(namespace).unwrap_or_else(|error| panic!("{}: {error}", namespace.display()));
    setns(namespace, CloneFlags::CLONE_NEWNET).expect("entering a namespace");
}

/// A web server in a namespace of the test: `/redirect/ADDRESS` leads there, `/cookies` tells which cookies came and sets
/// one more, everything else is a page.
pub fn serve(namespace: impl AsRef<Path>, address: SocketAddr) {
    // A name is one of `ip netns`; a path stays what it is.
    let namespace = Path::new("/run/netns").join(namespace);
    let (ready, listening) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        enter(&namespace);
        let listener = TcpListener::bind(address).expect("listening");
        ready.send(()).expect("the test waits");
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    listening.recv_timeout(LIMIT).expect("the server listens");
}

fn answer(mut stream: TcpStream) {
    let mut request = [0; 4096];
    let Ok(count) = stream.read(&mut request) else { return };
    let request = String::from_utf8_lossy(&request[..count]);
    let path = request.split_whitespace().nth(1).unwrap_or("/");
    let html = |headers: &str, page: &str| {
        let length = page.len();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{page}"
        )
    };
    let reply = if let Some(target) = path.strip_prefix("/redirect/") {
        format!(
            "HTTP/1.1 302 Found\r\nLocation: http://{target}:{PORT}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
    } else if path.starts_with("/cookies") {
        let came = request.lines().find_map(|line| line.strip_prefix("Cookie: ")).unwrap_or("none");
        html("Set-Cookie: visited=yes; Path=/\r\n", &format!("<!doctype html><title>cookies</title>{came}"))
    } else {
        html(
            "",
            "<!doctype html><title>rendered</title><body style='background:#0a0'><h1>Hello from outside</h1>",
        )
    };
    let _ = stream.write_all(reply.as_bytes());
}

/// Whether a connection from inside a namespace to an address comes about.
pub fn reaches(namespace: &Path, address: IpAddr, port: u16, patience: Duration) -> bool {
    let namespace = namespace.to_owned();
    let attempt = std::thread::spawn(move || {
        enter(&namespace);
        TcpStream::connect_timeout(&SocketAddr::new(address, port), patience).is_ok()
    });
    attempt.join().expect("the attempt does not panic")
}

/// A resolver in a namespace of the test: names that begin with `rebind` lead to a private address, all others to the
/// public one.
pub fn resolve(namespace: &str, address: IpAddr, rebind: Ipv4Addr) {
    let namespace = Path::new("/run/netns").join(namespace);
    let (ready, listening) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        enter(&namespace);
        let socket = UdpSocket::bind((address, 53)).expect("listening");
        ready.send(()).expect("the test waits");
        let mut query = [0; 512];
        while let Ok((count, from)) = socket.recv_from(&mut query) {
            let query = &query[..count];
            // Header (12 bytes), labels up to a zero byte, type and class (4 bytes).
            let Some(end) = query.iter().skip(12).position(|byte| *byte == 0).map(|at| 12 + at + 5) else {
                continue;
            };
            let Some(question) = query.get(12..end) else { continue };
            let is_a = question[question.len() - 4..] == [0, 1, 0, 1];
            let address =
                if question[1..].starts_with(b"rebind") { rebind } else { PUBLIC.parse().expect("IPv4") };
            let mut reply = vec![query[0], query[1], 0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0];
            reply.extend_from_slice(question);
            if is_a {
                reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                reply.extend_from_slice(&address.octets());
            }
            let _ = socket.send_to(&reply, from);
        }
    });
    listening.recv_timeout(LIMIT).expect("the resolver listens");
}

/// What `/etc/resolv.conf` says in this private machine.
pub fn set_resolv_conf(text: &str) {
    let path = Path::new("/run/resolv.conf");
    if !path.exists() {
        fs::write(path, "").expect("a file");
        run("mount --bind /run/resolv.conf /etc/resolv.conf");
    }
    // In place: the mount is of this file.
    fs::write(path, text).expect("written");
}

/// Every file below a folder whose name or content holds the word.
pub fn holding(folder: &Path, word: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let (path, named) = (entry.path(), entry.file_name().to_string_lossy().contains(word));
        let Ok(kind) = entry.file_type() else { continue };
        let holds = |bytes: Vec<u8>| bytes.windows(word.len()).any(|part| part == word.as_bytes());
        if kind.is_dir() {
            found.extend(holding(&path, word));
        } else if named || (kind.is_file() && std::fs::read(&path).is_ok_and(holds)) {
            found.push(path);
        }
    }
    found
}

/// Whether a resolver answers inside a namespace.
pub fn resolves(namespace: &Path, resolver: IpAddr) -> bool {
    let namespace = namespace.to_owned();
    let attempt = std::thread::spawn(move || {
        enter(&namespace);
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(700))).expect("a timeout");
        let query = b"\x01\x02\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04name\x00\x00\x01\x00\x01";
        socket.send_to(query, (resolver, 53)).is_ok() && socket.recv(&mut [0; 512]).is_ok()
    });
    attempt.join().expect("the attempt does not panic")
}

/// The browser of a clone, over its debugging socket.
pub struct Page {
    cdp: Connection,
    session: String,
}

impl Page {
    pub fn open(endpoint: &str) -> Page {
        let path = endpoint.strip_prefix("cdp+unix://").unwrap_or_else(|| panic!("{endpoint}"));
        let stream = UnixStream::connect(path).expect("the browser's socket");
        let write = OwnedFd::from(stream.try_clone().expect("a copy"));
        let mut cdp = Connection::new(stream.into(), write);
        let target = cdp.call("Target.createTarget", json!({ "url": "about:blank" }), LIMIT).expect("a page");
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = cdp.call("Target.attachToTarget", attach, LIMIT).expect("a session");
        let session = session["sessionId"].as_str().expect("a session's name").to_owned();
        Page { cdp, session }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.cdp
            .call_in(Some(&self.session), method, params, LIMIT)
            .unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Load a page and answer its title; an empty one and the reason if it cannot be reached in time.
    pub fn load(&mut self, url: &str, patience: Duration) -> (String, String) {
        self.call("Page.enable", json!({}));
        let answer =
            match self.cdp.call_in(Some(&self.session), "Page.navigate", json!({ "url": url }), patience) {
                Ok(answer) => answer,
                Err(error) => {
                    self.call("Page.stopLoading", json!({}));
                    return (String::new(), error.to_string());
                }
            };
        if let Some(error) = answer["errorText"].as_str() {
            return (String::new(), error.to_owned());
        }
        self.cdp.wait_event("Page.loadEventFired", LIMIT).expect("the page is loaded");
        let title = self.call("Runtime.evaluate", json!({ "expression": "document.title" }));
        (title["result"]["value"].as_str().unwrap_or_default().to_owned(), String::new())
    }

    /// What a script in the page comes to.
    pub fn evaluate(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{script}: {answer}");
        answer["result"]["value"].clone()
    }

    /// A picture of the page, as base64.
    pub fn screenshot(&mut self) -> String {
        self.call("Page.captureScreenshot", json!({ "format": "png" }))["data"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}
