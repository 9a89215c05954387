//! The confined browser under limits that systemd enforces, as root and as an ordinary user with a user systemd.
//!
//! Containers and namespaces lack these, so the tests run in a virtual machine: `scripts/test --vm`.

mod common;

use common::{LAUNCHER, Setup, is_root};
use launcher::chromium::Flavor;
use launcher::{Browser, Config, Launcher};
use sandbox::{Layer, LimitEnforcer};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// An emulated machine is slow.
const TIMEOUT: Duration = Duration::from_secs(400);
/// The ordinary user of the machine that the tests run in.
const USER: &str = "tester";

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{program} {arguments:?}: {text}");
    text
}

/// Runs a test as the ordinary user in a login session.
fn as_user(name: &str) {
    run("loginctl", &["enable-linger", USER]);
    let uid = run("id", &["-u", USER]);
    let runtime = PathBuf::from(format!("/run/user/{}", uid.trim()));
    until("the user's systemd is there", || runtime.join("bus").exists());
    let own = std::env::current_exe().expect("own path");
    let again = format!(
        "XDG_RUNTIME_DIR={} {} --exact {name} --ignored --nocapture",
        runtime.display(),
        own.display()
    );
    let said = run("runuser", &["-l", USER, "-c", &again]);
    assert!(said.contains("1 passed"), "{said}");
    println!("{said}");
}

/// Calls the systemd that enforces the current user's limits.
fn systemctl(arguments: &[&str]) -> String {
    let manager: &[&str] = if is_root() { &[] } else { &["--user"] };
    run("systemctl", &[manager, arguments].concat())
}

fn limits(setup: &Setup) -> Config {
    Config { memory_mib: Some(700), max_processes: Some(400), cpu_percent: Some(190), ..setup.config.clone() }
}

fn start(config: Config) -> (Browser, PathBuf) {
    let browser = Launcher::new(config)
        .flavor(Flavor::HeadlessShell)
        .arguments(["--headless"])
        .expect("arguments")
        .launch()
        .unwrap_or_else(|error| panic!("{error}"));
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", browser.pid())).expect("its cgroup");
    let inside = text.lines().find_map(|line| line.strip_prefix("0::/")).expect("cgroup v2");
    let cgroup = Path::new("/sys/fs/cgroup").join(inside);
    (browser, cgroup)
}

/// A page that exceeds the memory limit is killed; the browser continues.
fn a_page_too_large() {
    let setup = Setup::new();
    let (mut browser, cgroup) = start(limits(&setup));
    let LimitEnforcer::Scope(unit) = browser.limits() else { panic!("{:?}", browser.limits()) };
    assert!(
        browser
            .layers()
            .iter()
            .any(|(layer, state)| { *layer == Layer::Limits && *state == sandbox::LayerState::On })
    );
    let read = |file: &str| std::fs::read_to_string(cgroup.join(file)).expect(file).trim().to_owned();
    assert_eq!(read("memory.max"), (700u64 << 20).to_string());
    assert_eq!(read("pids.max"), "400");
    assert_eq!(read("cpu.max"), "190000 100000");
    assert_eq!(systemctl(&["is-active", &unit]).trim(), "active");
    println!("{} in {unit}, timings {:?}", browser.version(), browser.timings());

    let cdp = browser.cdp();
    let target = cdp.call("Target.createTarget", json!({ "url": "about:blank" }), TIMEOUT).expect("a page");
    let attach = json!({ "targetId": target["targetId"], "flatten": true });
    let session = cdp.call("Target.attachToTarget", attach, TIMEOUT).expect("a session");
    let session = session["sessionId"].as_str().expect("its name").to_owned();
    cdp.call_in(Some(&session), "Inspector.enable", json!({}), TIMEOUT).expect("news of a crash");
    let hog = "setInterval(() => { (self.kept ??= []).push(new Uint8Array(16 << 20).fill(1)) }, 0); 1";
    let hog = json!({ "expression": hog });
    cdp.call_in(Some(&session), "Runtime.evaluate", hog, TIMEOUT).expect("the hog begins");
    cdp.wait_event("Inspector.targetCrashed", TIMEOUT).expect("the page ends");
    let kills = read("memory.events").lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
    assert!(kills.is_some_and(|count: u64| count >= 1), "{}", read("memory.events"));
    let version = cdp.call("Browser.getVersion", json!({}), TIMEOUT).expect("the browser continues");
    println!("after the page: {}, {}", version["product"], read("memory.events").replace('\n', ", "));
    assert_eq!(systemctl(&["is-active", &unit]).trim(), "active");

    browser.stop(TIMEOUT).expect("stops");
    drop(browser);
    until("the scope is gone", || !cgroup.exists());
    until("systemd forgot it", || {
        systemctl(&["list-units", "--all", "--no-legend", "sandbox-*"]).trim().is_empty()
    });
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn only_the_page_over_the_limit_is_killed_as_root() {
    a_page_too_large();
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn only_the_page_over_the_limit_is_killed_as_an_ordinary_user() {
    if is_root() {
        as_user("only_the_page_over_the_limit_is_killed_as_an_ordinary_user")
    } else {
        a_page_too_large()
    }
}

/// The launcher works as a service of the user's systemd. Stopping or killing the unit ends the browser and its scope.
#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn the_launcher_as_a_unit() {
    if is_root() {
        return as_user("the_launcher_as_a_unit");
    }
    let setup = Setup::new();
    let file = setup.folder.path().join("limits.toml");
    std::fs::write(&file, toml::to_string(&limits(&setup)).expect("toml")).expect("write");
    let file = file.display().to_string();
    for signal in ["SIGTERM", "SIGKILL"] {
        let unit = format!("browser-{}.service", signal.to_lowercase());
        let start =
            ["--user", "--quiet", "--collect", "--unit", unit.as_str(), LAUNCHER, "--config", file.as_str()];
        let arguments = ["run", "--", "--headless", "--remote-debugging-port=0"];
        run("systemd-run", &[&start[..], &arguments[..]].concat());
        let scope = || systemctl(&["list-units", "--no-legend", "--plain", "--state=active", "sandbox-*"]);
        until("the browser has a scope", || scope().contains(".scope"));
        let name = scope().split_whitespace().next().expect("its name").to_owned();
        let inside = systemctl(&["show", "--property=ControlGroup", "--value", &name]);
        let cgroup = Path::new("/sys/fs/cgroup").join(inside.trim().trim_start_matches('/'));
        let limit = std::fs::read_to_string(cgroup.join("memory.max")).expect("its limit");
        assert_eq!(limit.trim(), (700u64 << 20).to_string());
        println!("{unit}: the browser is in {}", cgroup.display());
        match signal {
            "SIGTERM" => systemctl(&["stop", &unit]),
            _ => systemctl(&["kill", "--signal=SIGKILL", "--kill-whom=main", &unit]),
        };
        until("the browser ended with its launcher", || !cgroup.exists());
        until("systemd forgot the scope", || scope().trim().is_empty());
    }
}
