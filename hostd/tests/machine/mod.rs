//! A whole machine with systemd as process 1 and hostd installed as usual, for the tests in the VM.
//!
//! Everything here changes the machine, so it refuses to run anywhere but in the guest of `scripts/vm-test`.

// Every test file uses some of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use hostd::api::{CloneInfo, CloneState, CreateParams, DestroyParams, ListParams};
use hostd::client::Client;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The limit of every wait. An emulated machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(400);
const SOCKET: &str = "/run/hostd/hostd.sock";
/// The cgroup of the unit that holds the clones' cgroups.
pub const CLONES: &str = "/sys/fs/cgroup/hostd.slice/hostd-clones.service";

/// Run a command to its end. Returns its output.
pub fn run(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let done = Command::new(words[0])
        .args(&words[1..])
        .output()
        .unwrap_or_else(|error| panic!("{command}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command}: {}\n{text}", done.status);
    text
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}\n{}", journal());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The log of hostd and systemd.
pub fn journal() -> String {
    run("journalctl -b --no-pager -n 60 -u hostd.service -u hostd.socket -u hostd-clones.service")
}

/// hostd, installed with its units. It is uninstalled when this is dropped.
pub struct Machine {
    /// The state of the machine before the installation.
    before: Inventory,
    gone: bool,
}

impl Machine {
    /// Install it with this configuration.
    pub fn install(config: &str) -> Machine {
        let here = std::env::var("HOSTD_VM").expect("only in the machine of scripts/vm-test");
        assert!(Path::new("/run/systemd/system").is_dir(), "systemd is process 1");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding");
        let before = Inventory::now();
        fs::create_dir_all("/etc/hostd").unwrap();
        fs::write("/etc/hostd/hostd.toml", config).unwrap();
        // This machine has no Internet.
        fs::create_dir_all("/etc/hostd/conf.d").unwrap();
        fs::write("/etc/hostd/conf.d/probe.toml", "[egress]\nprobe = \"\"\n").unwrap();
        // Timeouts that a slow machine would miss.
        fs::create_dir_all("/etc/systemd/system/hostd.service.d").unwrap();
        let slow = "[Service]\nWatchdogSec=0\nTimeoutStartSec=900\nStartLimitBurst=100\n";
        fs::write("/etc/systemd/system/hostd.service.d/slow.conf", slow).unwrap();
        let machine = Machine { before, gone: false };
        println!("{}", run(&format!("{here}/scripts/systemd/install --programs {here}/bin")));
        machine
    }

    /// Uninstall it. The machine must be as before.
    pub fn uninstall(mut self) {
        self.gone = true;
        uninstall();
        self.before.until_again("hostd was taken off");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The test has failed already; a second panic would hide the reason.
        if !self.gone && std::panic::catch_unwind(uninstall).is_err() {
            println!("and hostd could not be taken off");
        }
    }
}

fn uninstall() {
    let here = std::env::var("HOSTD_VM").expect("only in the machine of scripts/vm-test");
    fs::remove_dir_all("/etc/systemd/system/hostd.service.d").unwrap();
    println!("{}", run(&format!("{here}/scripts/systemd/uninstall --purge")));
}

/// Everything that must be the same before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory(Vec<(&'static str, BTreeSet<String>)>);

impl Inventory {
    pub fn now() -> Inventory {
        let lines = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<String>>();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect();
        let links = run("ip -o link");
        let links = links.lines().filter_map(|line| line.split(':').nth(1)).map(str::to_owned).collect();
        let mut files = BTreeSet::new();
        for folder in [
            "/run/hostd",
            "/var/lib/hostd",
            "/var/log/hostd",
            "/etc/hostd",
            "/etc/systemd/system",
            "/usr/local",
            "/usr/lib/sysusers.d",
            "/usr/lib/tmpfiles.d",
        ] {
            list(Path::new(folder), &|_| true, &mut files);
        }
        let mut cgroups = BTreeSet::new();
        // systemd makes and removes these itself.
        let ours = |path: &Path| !path.starts_with("/sys/fs/cgroup/user.slice");
        list(Path::new("/sys/fs/cgroup"), &|path| path.is_dir() && ours(path), &mut cgroups);
        cgroups.retain(|path| !path.contains("/systemd-") && !path.contains("/dbus"));
        Inventory(vec![
            ("mounts", mounts),
            ("links", links),
            ("rules", lines(run("nft -s list ruleset"))),
            ("processes", processes()),
            ("files", files),
            ("cgroups", cgroups),
            ("groups", lines(fs::read_to_string("/etc/group").unwrap())),
        ])
    }

    /// Wait until everything is as before.
    pub fn until_again(&self, what: &str) {
        let began = Instant::now();
        loop {
            let left = self.differences(&Inventory::now());
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}, but:\n{}", left.join("\n"));
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn differences(&self, now: &Inventory) -> Vec<String> {
        let both = self.0.iter().zip(&now.0);
        both.flat_map(|((what, before), (_, now))| {
            let gone = before.difference(now).map(move |one| format!("{what}: {one} is gone"));
            gone.chain(now.difference(before).map(move |one| format!("{what}: {one} is there")))
        })
        .collect()
    }
}

fn list(folder: &Path, wanted: &dyn Fn(&Path) -> bool, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Log files are not leftovers.
        if !wanted(&path) || path.ends_with("audit.log") {
            continue;
        }
        into.insert(path.display().to_string());
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            list(&path, wanted, into);
        }
    }
}

/// The running programs, except those of the kernel, of systemd and of the tests.
fn processes() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let programs = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let program = program.to_str()?.to_owned();
        let ignored = program.contains("/systemd") || program.starts_with("/test/tests/");
        (!ignored && program != "/usr/sbin/nft" && program != "/usr/bin/ip").then_some(program)
    });
    programs.collect()
}

/// A property of a unit.
pub fn show(unit: &str, property: &str) -> String {
    run(&format!("systemctl show --property={property} --value {unit}")).trim().to_owned()
}

pub fn main_pid() -> u32 {
    show("hostd.service", "MainPID").parse().unwrap()
}

/// Call the daemon.
pub fn ask<T>(work: impl AsyncFnOnce(Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(SOCKET).await.expect("the socket of hostd").with_timeout(PATIENCE);
        work(client).await
    })
}

pub fn create(id: &str) -> CloneInfo {
    let params = CreateParams::new(id.parse().unwrap());
    let made = ask(async |client| client.create(params).await);
    made.unwrap_or_else(|error| panic!("create {id}: {error:?}\n{}", journal())).clone
}

pub fn destroy(clone: &CloneInfo) {
    let clone_id = clone.clone_id.clone().expect("an id");
    let params = DestroyParams::new(clone.name.clone(), clone_id);
    let gone = ask(async |client| client.destroy(params).await);
    gone.unwrap_or_else(|error| panic!("destroy {}: {error:?}\n{}", clone.name, journal()));
}

pub fn clones() -> Vec<CloneInfo> {
    ask(async |client| client.list(ListParams::default()).await).expect("a list").clones
}

/// Wait until a clone is in a state. Returns the clone.
pub fn until_state(clone: &CloneInfo, state: CloneState) -> CloneInfo {
    let mut found = None;
    until(&format!("{} is {state:?}", clone.name), || {
        found = clones().into_iter().find(|seen| seen.name == clone.name && seen.state == state);
        found.is_some()
    });
    found.unwrap()
}

pub fn until_empty() {
    until("no clone is left", || clones().is_empty());
}

/// A clone's cgroup.
pub fn cgroup(clone: &CloneInfo) -> PathBuf {
    Path::new(CLONES).join(clone.name.as_str())
}

pub fn read(folder: &Path, file: &str) -> String {
    let path = folder.join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

/// A number from a file with lines of a name and a number.
pub fn count(folder: &Path, file: &str, name: &str) -> u64 {
    let text = read(folder, file);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
}

/// The processes in a cgroup.
pub fn inside(folder: &Path) -> BTreeSet<u32> {
    read(folder, "cgroup.procs").lines().map(|line| line.parse().unwrap()).collect()
}

/// Whether a clone's service answers a request.
pub fn get(clone: &CloneInfo, path: &str) -> bool {
    let endpoint = clone.endpoint.clone().expect("an endpoint");
    let address = endpoint.strip_prefix("http://").unwrap_or_else(|| panic!("{endpoint}"));
    let address: std::net::SocketAddr = address.parse().unwrap();
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(20))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}
