//! The examples of the README: each client drives a clone from each place, with the real packages.
//!
//! Needs browserd and hostctl beside hostd's program (`cargo build -p browserd -p hostctl`) and the clients that
//! `scripts/install-deps` installs.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use daemon::Home;
use lab::{PORT, PUBLIC, in_private_machine, run};
use life::{block_on, home};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// The account that the example's configuration names.
const AGENT: u32 = 65_510;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name(name);
    assert!(path.is_file(), "{} is missing: cargo build -p {name}", path.display());
    path
}

/// Where a client runs: as which user, in which network namespace.
struct Place {
    name: &'static str,
    user: u32,
    namespace: Option<&'static str>,
}

const PLACES: [Place; 4] = [
    Place { name: "the same account", user: 0, namespace: None },
    Place { name: "another account", user: AGENT, namespace: None },
    Place { name: "a container", user: 0, namespace: Some("container") },
    Place { name: "another machine", user: 0, namespace: Some("machine") },
];

impl Place {
    /// A command line there.
    fn run(&self, home: &Path, cdp: &str, line: &str) -> Output {
        let mut command = match self.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]);
                command.arg("timeout");
                command
            }
            None => Command::new("timeout"),
        };
        let user = self.user.to_string();
        command.args(["120", "setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
        command.args(["/bin/bash", "-c", line]).current_dir(home).env_clear();
        command.env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap()).env("LC_ALL", "C.UTF-8");
        command.env("CDP_ENDPOINT", cdp).env("HOSTD_SOCKET", home.join("sock"));
        // It would report to a server that does not exist here.
        command.env("ANONYMIZED_TELEMETRY", "false");
        command.output().unwrap()
    }
}

/// A bridge as Docker makes it, with address translation, and another machine's link.
fn neighbours() {
    run("ip netns add container");
    run("ip link add docker0 type bridge");
    run("ip addr add 172.17.0.1/16 dev docker0");
    run("ip link set docker0 up");
    run("ip link add c0 type veth peer name eth0 netns container");
    run("ip link set c0 master docker0 up");
    run("ip -n container addr add 172.17.0.2/16 dev eth0");
    run("ip -n container link set eth0 up");
    run("ip -n container link set lo up");
    run("ip -n container route add default via 172.17.0.1");
    run("nft add table ip docker");
    run("nft add chain ip docker post { type nat hook postrouting priority 100 ; }");
    run("nft add rule ip docker post ip saddr 172.17.0.0/16 oifname != docker0 masquerade");
    run("ip netns add machine");
    run("ip link add m0 type veth peer name eth0 netns machine");
    run("ip addr add 10.50.0.1/24 dev m0");
    run("ip link set m0 up");
    run("ip -n machine addr add 10.50.0.2/24 dev eth0");
    run("ip -n machine link set eth0 up");
    run("ip -n machine link set lo up");
    // The one command of the README for another machine.
    run("ip -n machine route add 10.87.64.0/22 via 10.50.0.1");
}

/// The examples' own settings for a daemon that the test starts.
fn example_settings(lab: &lab::Lab) -> Home {
    let example = fs::read_to_string(repository().join("examples/hostd.toml")).unwrap();
    let example: toml::Table = example.parse().unwrap();
    let control_plane = format!("egress.control_plane={}", example["egress"]["control_plane"]);
    let access = example["access"].to_string().replace("\"agent\"", &format!("\"{AGENT}\""));
    let browserd = format!("linux.browserd={}", program("browserd").display());
    home(lab, &[&browserd, &control_plane, &format!("access={access}"), "paths.socket_group="])
}

/// A command that the README shows runs as an ordinary user, so the checkout must be open to all.
#[test]
fn every_client_drives_a_clone_from_every_place() {
    in_private_machine("every_client_drives_a_clone_from_every_place", |lab| {
        neighbours();
        let repository = repository();
        let home = example_settings(lab);
        // What each place has installed: the clients beside the examples.
        let work = tempfile::Builder::new().prefix("drive").tempdir().unwrap();
        fs::set_permissions(work.path(), fs::Permissions::from_mode(0o777)).unwrap();
        for example in ["playwright.mjs", "puppeteer.mjs", "agent.py", "curl.sh"] {
            fs::copy(repository.join("examples").join(example), work.path().join(example)).unwrap();
        }
        let modules = repository.join("browserd/tests/clients/node_modules");
        std::os::unix::fs::symlink(modules, work.path().join("node_modules")).unwrap();
        std::os::unix::fs::symlink(home.socket(), work.path().join("sock")).unwrap();
        let (node, python) =
            (repository.join(".cache/node/bin/node"), repository.join(".cache/python-agents/bin/python"));
        let page = format!("http://{PUBLIC}:{PORT}/");
        let clients = [
            format!("{} playwright.mjs {page}", node.display()),
            format!("{} puppeteer.mjs {page}", node.display()),
            format!("{} agent.py {page}", python.display()),
            format!("bash curl.sh {page}"),
        ];
        block_on(async {
            let daemon = home.start().await;
            for (path, mode) in
                [(home.path().to_owned(), 0o755), (home.path().join("run"), 0o755), (home.socket(), 0o777)]
            {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            // The first line of the README, by each account.
            let hostctl = program("hostctl").display().to_string();
            let create = |place: &Place| {
                let line = format!(
                    "{hostctl} create --request-id task-4711 --json | jq -r .data.clone.cdp_endpoint"
                );
                let created = place.run(work.path(), "", &line);
                let cdp = String::from_utf8(created.stdout).unwrap().trim().to_owned();
                let error = String::from_utf8_lossy(&created.stderr);
                assert!(cdp.starts_with("ws://"), "{}: {cdp:?} {error}\n{}", place.name, home.log());
                cdp
            };
            let (own, agents) = (create(&PLACES[0]), create(&PLACES[1]));
            assert_ne!(own, agents);
            for place in &PLACES {
                let cdp = if place.user == AGENT { &agents } else { &own };
                for client in &clients {
                    let began = Instant::now();
                    let done = place.run(work.path(), cdp, client);
                    let said = String::from_utf8_lossy(&done.stdout);
                    let error = String::from_utf8_lossy(&done.stderr);
                    assert!(
                        done.status.success() && said.lines().any(|line| line == "rendered"),
                        "{} from {}: {}\n{said}\n{error}",
                        client,
                        place.name,
                        done.status
                    );
                    println!("{:<20} {:>6.1?} {client}", place.name, began.elapsed());
                }
            }
            // Nobody else connects, with the URL or without.
            let stranger = Place { name: "a stranger", user: 65_534, namespace: None };
            let outside = Place { name: "the Internet", user: 0, namespace: Some("internet") };
            run("ip -n internet route add 10.87.64.0/22 via 198.51.100.1");
            for place in [stranger, outside] {
                let line = format!("{} --max-time 3", "curl -sS http${CDP_ENDPOINT#ws}");
                let done = place.run(work.path(), &own, &line);
                assert!(!done.status.success() && done.stdout.is_empty(), "{}: {done:?}", place.name);
            }
            daemon.stop().await;
        });
    });
}

/// The README shows exactly these files.
#[test]
fn the_readme_shows_the_examples() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    for example in ["playwright.mjs", "puppeteer.mjs", "agent.py", "curl.sh", "hostd.toml"] {
        let text = fs::read_to_string(repository().join("examples").join(example)).unwrap();
        let shown = text.trim_end().lines().all(|line| readme.contains(line));
        assert!(
            shown && readme.contains(text.trim_end()),
            "README.md does not show examples/{example} as it is"
        );
    }
    for line in
        ["ip route add 10.87.64.0/22 via", "--network host", "hostctl create --request-id task-4711 --json"]
    {
        assert!(readme.contains(line), "{line}");
    }
}
