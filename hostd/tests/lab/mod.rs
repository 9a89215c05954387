//! A private machine for tests of the Linux host: own mount, PID and network namespaces, and a namespace that plays the
//! Internet.
//!
//!     clones ── bt001 ── the test's own network ("the host") ── up0 ═══ up1 ── a namespace that plays the Internet
//!
//! The real machine's mounts, links and rules are not touched: the test starts itself again inside new namespaces, which
//! end with it.

// Every test file uses some of this.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod network;
mod page;

pub use network::{enter, reaches, resolve, resolves, serve};
pub use page::Page;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
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
        // `ip netns` keeps its files in /run. They must not appear on the real machine.
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

    /// Everything that must be the same before and after a test: mounts, links, rules, processes, namespaces, cgroups, files.
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
            // Zombies, and the commands of this inspection.
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
    // Only folders: each is a cgroup, and the files in it are the kernel's.
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

/// The children of a process that have ended and were not waited for.
pub fn zombies_of(parent: u32) -> Vec<u32> {
    let mut zombies = Vec::new();
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().take(2).collect();
        if fields == ["Z", parent.to_string().as_str()] {
            zombies.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    zombies
}

/// A clone's processes with their command lines: those in its network namespace and their descendants (Chromium puts its
/// renderers into namespaces of their own).
pub fn processes(run: &Path) -> BTreeMap<u32, String> {
    let network = fs::metadata(run.join("net")).expect("the clone's namespace").ino();
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // It may have ended meanwhile.
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

/// Every file below a folder whose name or content contains the word.
pub fn files_with(folder: &Path, word: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let (path, named) = (entry.path(), entry.file_name().to_string_lossy().contains(word));
        let Ok(kind) = entry.file_type() else { continue };
        let contains = |bytes: Vec<u8>| bytes.windows(word.len()).any(|part| part == word.as_bytes());
        if kind.is_dir() {
            found.extend(files_with(&path, word));
        } else if named || (kind.is_file() && std::fs::read(&path).is_ok_and(contains)) {
            found.push(path);
        }
    }
    found
}
