//! A FreeBSD host for the daemon to drive: fake tools, a real network of its own, and the daemon itself.
//!
//! Nothing of the real machine is touched: a test starts itself once more in new namespaces, where the pool's addresses
//! exist on the loopback interface alone. browserd in the clones is played by the test: it answers at an address as long
//! as the world has a jail with that address, a way to it, and a browserd running inside.

// Every test file uses its own share of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod costs;
mod daemon;
pub mod facts;
#[path = "../../../../hostd/tests/common/wire.rs"]
pub mod wire;

pub use wire::wait_for;

use fake_freebsd::{Machine, World};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub use daemon::Daemon;

const INSIDE: &str = "FAKE_FREEBSD_INSIDE";
/// Nothing that a test waits for takes longer, even on a machine with other things to do.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The clones' network and its router.
const ROUTER: &str = "10.87.64.1/22";
/// The port of browserd. A second host in one test has the next one, because the first one's listener stays.
static PORT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(8080);
/// What Bastille puts into every jail's folder that has none, whosever it is.
pub const SETTINGS: &str = "boot=\"on\"\ndepend=\"\"\npriority=\"99\"\n";

/// Run the body in a private machine: the calling test is started once more inside of it.
pub fn in_private_machine(test: &str, body: impl FnOnce()) {
    assert!(nix::unistd::geteuid().is_root(), "these tests need root: run them with sudo");
    if std::env::var_os(INSIDE).is_some() {
        real("mount -t tmpfs lab /run");
        real("ip link set lo up");
        // On a loopback interface the whole network is local.
        real(&format!("ip addr add {ROUTER} dev lo"));
        return body();
    }
    let status = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(std::env::current_exe().expect("a path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .status()
        .expect("unshare (util-linux) can be started");
    assert!(status.success(), "{test} failed inside its private machine: {status}");
}

/// Run a command of the private machine's own system.
fn real(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let done = Command::new(words[0]).args(&words[1..]).output();
    let done = done.unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The daemon's executable: the one of the build, beside the fake's own, or the one that `HOSTD_BINARY` names.
fn hostd() -> PathBuf {
    if let Some(named) = std::env::var_os("HOSTD_BINARY") {
        return named.into();
    }
    let path = Path::new(env!("CARGO_BIN_EXE_fake-freebsd")).with_file_name("hostd");
    assert!(path.is_file(), "{} is missing: cargo build -p hostd", path.display());
    let built = path.metadata().and_then(|meta| meta.modified()).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hostd/src");
    assert!(newest(&source) <= built, "{} is older than its sources: cargo build -p hostd", path.display());
    path
}

fn newest(folder: &Path) -> std::time::SystemTime {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let times = entries.map(|entry| match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
        true => newest(&entry.path()),
        false => entry.metadata().and_then(|meta| meta.modified()).unwrap(),
    });
    times.max().unwrap_or(std::time::UNIX_EPOCH)
}

/// The host.
pub struct Lab {
    pub machine: Machine,
    folder: tempfile::TempDir,
    daemon: PathBuf,
    port: u16,
}

impl Lab {
    /// A host with a template, a bridge and PF, whose daemon has these settings besides the usual ones.
    pub fn new(settings: &[&str]) -> Lab {
        let folder = tempfile::Builder::new().prefix("fb").tempdir().unwrap();
        let base = folder.path();
        let machine = Machine::install(base, env!("CARGO_BIN_EXE_fake-freebsd").as_ref(), Path::new("/"));
        machine.change(|world| {
            world.bastille = base.join("bastille");
            world.pf.file = base.join("pf.conf");
            // Another way to the host's own networks than the real one's.
            world.interfaces[0].name = "vtnet0".to_owned();
        });
        fs::create_dir(base.join("logs")).unwrap();
        let port = PORT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let lab = Lab { machine, daemon: hostd(), folder, port };
        lab.make_template();
        for line in ["ifconfig bridge create name bridge72", &format!("ifconfig bridge72 inet {ROUTER} up")] {
            lab.machine.run(line);
        }
        lab.write_pf_conf(false);
        lab.machine.run(&format!("pfctl -f {}", lab.path("pf.conf").display()));
        lab.machine.run("pfctl -e");
        lab.write_config(settings);
        lab.serve();
        lab.machine.forget_calls();
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn jails(&self) -> PathBuf {
        self.path("bastille/jails")
    }

    /// The file that is inside a clone at this place.
    pub fn inside(&self, clone: &str, place: &str) -> PathBuf {
        self.jails().join(clone).join("root").join(place)
    }

    fn make_template(&self) {
        let bastille = self.path("bastille");
        self.machine.run(&format!("zfs create -o mountpoint={} zroot/bastille", bastille.display()));
        for name in ["jails", "jails/browser", "jails/browser/root"] {
            self.machine.run(&format!("zfs create zroot/bastille/{name}"));
        }
        let template = self.jails().join("browser");
        for folder in ["dev", "etc", "tmp", "var/run", "var/log", "mnt", "usr/local/etc/rc.d"] {
            fs::create_dir_all(template.join("root").join(folder)).unwrap();
        }
        // What Bastille writes for the template itself; none of it may come through to a clone.
        fs::write(template.join("jail.conf"), "browser {\n  exec.start = '/bin/sh /etc/rc';\n}\n").unwrap();
        fs::write(template.join("fstab"), "").unwrap();
        fs::write(template.join("settings.conf"), SETTINGS).unwrap();
        fs::write(template.join("rctl.conf"), "jail:browser:maxproc:deny=1/jail\n").unwrap();
        fs::write(template.join("root/etc/rc.conf"), "ifconfig_vnet0=\"inet 10.87.64.6/22\"\n").unwrap();
        self.change_template(|root| fs::write(root.join(Self::SERVICE), "#!/bin/sh\n").unwrap());
    }

    /// browserd's rc.d script in a clone. What is written in it, its service does.
    pub const SERVICE: &'static str = "usr/local/etc/rc.d/browserd";

    /// Change the template's files and take its snapshot anew. No clone may be there.
    pub fn change_template(&self, change: impl FnOnce(&Path)) {
        change(&self.jails().join("browser/root"));
        if self.machine.world().snapshots.iter().any(|snapshot| snapshot.name.ends_with("browser@default")) {
            self.machine.run("zfs destroy -r zroot/bastille/jails/browser@default");
        }
        self.machine.run("zfs snapshot -r zroot/bastille/jails/browser@default");
    }

    /// The administrator's rules, with or without the line that loads the clones' anchor too.
    pub fn write_pf_conf(&self, with_anchor: bool) {
        let mut text = String::from(
            "table <browser_tasks> persist\ntable <elsewhere> persist\nnat-anchor \"browser\"\nanchor \"browser\"\npass all\n",
        );
        if with_anchor {
            let file = self.path("state/browser.conf");
            text.push_str(&format!("load anchor \"browser\" from \"{}\"\n", file.display()));
        }
        fs::write(self.path("pf.conf"), text).unwrap();
    }

    fn write_config(&self, settings: &[&str]) {
        let path = |name: &str| self.path(name).display().to_string();
        let mut lines: Vec<String> = vec![
            format!("paths.socket = \"{}\"", path("sock")),
            "paths.socket_group = \"\"".into(),
            format!("paths.state = \"{}\"", path("state")),
            format!("paths.audit = \"{}\"", path("audit.log")),
            format!("pool.clones_dir = \"{}\"", self.jails().display()),
            "host.driver = \"freebsd\"".into(),
            format!("host.tool_folders = [\"{}\"]", self.machine.tools().display()),
            "egress.external = \"vtnet0\"".into(),
            // Not what the machine that runs the tests has.
            "egress.resolver = \"none\"".into(),
            format!("egress.browserd_port = {}", self.port),
            format!("freebsd.bastille_prefix = \"{}\"", path("bastille")),
            format!("freebsd.console_logs = \"{}\"", path("logs")),
            // The commands of an operation can be counted only without checks in between.
            "freebsd.rules_interval_ms = 0".into(),
            "lifecycle.quarantine_seconds = 0".into(),
            "lifecycle.orphan_grace_seconds = 0".into(),
            "lifecycle.reap_cap = 999".into(),
            "lifecycle.reconcile_interval_ms = 1000".into(),
            "lifecycle.busy_patience_ms = 300".into(),
            "lifecycle.shutdown_grace_seconds = 5".into(),
            "server.creates_per_minute = 1000000".into(),
            "server.create_burst = 1000000".into(),
            "log.filter = \"info,hostd=debug\"".into(),
        ];
        // A setting given by the test takes the place of the usual one.
        for setting in settings {
            let key = setting.split('=').next().unwrap().trim();
            lines.retain(|line| line.split('=').next().unwrap().trim() != key);
            lines.push((*setting).to_owned());
        }
        let access = format!("[[access]]\nusers = [\"{}\"]\noperator = true\n", nix::unistd::geteuid());
        fs::create_dir(self.path("state")).unwrap();
        fs::write(self.path("hostd.toml"), format!("{}\n{access}", lines.join("\n"))).unwrap();
    }

    /// Play the clones' network: who asks at an address is answered by the browserd that the world has there.
    fn serve(&self) {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)).unwrap();
        let machine = Machine::at(self.folder.path());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Ok(std::net::IpAddr::V4(address)) = stream.local_addr().map(|address| address.ip())
                else {
                    continue;
                };
                match browserd_at(&machine.world(), address) {
                    Some(Browserd::Answers) => drop(std::thread::spawn(move || answer(stream))),
                    Some(Browserd::Resets) => {
                        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
                        nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &linger)
                            .unwrap();
                    }
                    None => {}
                }
            }
        });
    }

    /// Start the daemon. Its log is appended to `hostd.log`.
    pub fn start(&self) -> Daemon {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.path("hostd.log")).unwrap();
        let child = Command::new(&self.daemon)
            .arg("--config")
            .arg(self.path("hostd.toml"))
            // Nothing of the test's environment may configure it.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Daemon::new(child, self.path("sock"))
    }

    /// As if the host had been started anew since the records were written.
    pub fn forget_boot(&self) {
        for entry in fs::read_dir(self.path("state/records")).unwrap().flatten() {
            let mut record: Value = serde_json::from_slice(&fs::read(entry.path()).unwrap()).unwrap();
            for stamp in ["created", "deadline"] {
                assert!(record[stamp]["boot"].is_string(), "{record}");
                record[stamp]["boot"] = json!("an earlier one");
            }
            fs::write(entry.path(), record.to_string()).unwrap();
        }
    }

    /// Start the daemon and wait until it answers.
    pub fn start_answering(&self) -> Daemon {
        let mut daemon = self.start();
        daemon.wait_ready().unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        daemon
    }

    /// Start the daemon and wait until it makes clones.
    pub fn ready(&self) -> Daemon {
        let daemon = self.start_answering();
        self.until("the host is ready", || {
            let status = daemon.call("host-status", json!({}));
            (status["egress"] == "ok").then_some(())
        });
        daemon
    }

    /// Wait until something is there.
    pub fn until<T>(&self, what: &str, ask: impl FnMut() -> Option<T>) -> T {
        wait_for(ask).unwrap_or_else(|| panic!("never: {what}\n{}", self.log()))
    }

    /// Wait until so many commands were started. None: it takes too long.
    pub fn count_up_to(&self, commands: usize) -> Option<()> {
        wait_for(|| (self.machine.calls().len() >= commands).then_some(()))
    }

    /// What must not have happened has not.
    pub fn nobody_did_wrong(&self) {
        let violations = self.machine.world().violations;
        assert!(violations.is_empty(), "{violations:#?}\n{}", self.log());
    }

    /// The last lines of the daemon's log.
    pub fn log(&self) -> String {
        tail(&self.path("hostd.log"))
    }

    /// Keep the folder for somebody to look at.
    pub fn keep(self) -> PathBuf {
        self.folder.keep()
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(120)..].join("\n")
}

/// What a browserd does with a connection.
enum Browserd {
    Answers,
    Resets,
}

/// The browserd at this address, if there is one.
fn browserd_at(world: &World, address: Ipv4Addr) -> Option<Browserd> {
    let has = |interface: &&fake_freebsd::Interface| {
        interface.jid != 0
            && interface.up
            && interface.addresses.iter().any(|given| given.split('/').next() == Some(&address.to_string()))
    };
    let end = world.interfaces.iter().find(has)?;
    let pair = &end.made_as[..end.made_as.len() - 1];
    let attached = world.interfaces.iter().any(|bridge| {
        let member = |id: &u64| {
            world.interfaces.iter().any(|it| it.id == *id && it.up && it.made_as.starts_with(pair))
        };
        bridge.name == "bridge72" && bridge.up && bridge.members.keys().any(member)
    });
    let runs = |process: &fake_freebsd::Process| {
        process.jid == end.jid && !process.stopped && process.command.ends_with("/browserd")
    };
    let there = attached && world.processes.values().any(runs);
    there.then(|| if world.rootless.contains(&end.jid) { Browserd::Resets } else { Browserd::Answers })
}

fn answer(mut stream: TcpStream) {
    let mut request = [0; 512];
    let Ok(length) = stream.read(&mut request) else { return };
    let ready = request[..length].starts_with(b"GET /readyz ");
    let status = if ready { "200 OK" } else { "404 Not Found" };
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}
