//! The escape battery: no probe gets through, and without any single layer one does.
#![cfg(target_os = "linux")]

mod common;

use common::{as_ordinary_user, in_own_network, is_root, policy};
use sandbox::battery::{Options, Outcome, Report, run};
use sandbox::{Layer, LayerState, Policy, Requirement};
use std::net::IpAddr;

/// Addresses that exist only in the tests' own network namespace.
const ADDRESSES: [&str; 3] = ["169.254.169.254/32", "10.77.0.1/32", "fd77::1/128"];

fn options() -> Options {
    let mut options = Options::default();
    options.addresses.extend(ADDRESSES.iter().filter_map(|a| a.split('/').next()?.parse::<IpAddr>().ok()));
    options
}

fn battery(policy: &Policy) -> Report {
    run(policy, &options()).expect("the battery runs")
}

fn battery_in_own_network(policy: Policy) -> Report {
    in_own_network(&ADDRESSES, move || battery(&policy))
}

/// Checks that every required layer is on, no probe got through, and enough probes ran.
fn assert_tight(report: &Report) {
    let open: Vec<_> = report.open().collect();
    assert!(open.is_empty(), "got through: {open:#?}");
    let tried = report.findings.iter().filter(|f| !matches!(f.outcome, Outcome::NotTried(_))).count();
    assert!(tried >= 75, "only {tried} probes were tried:\n{report}");
    for finding in &report.findings {
        assert!(!finding.layers.is_empty(), "{} names no layer", finding.name);
    }
    for (layer, state) in &report.layers {
        let not_applicable = *layer == Layer::Identity && !is_root();
        assert!(*state == LayerState::On || not_applicable, "{layer} is {state:?}");
    }
}

#[test]
fn nothing_gets_through_as_root_with_a_private_uid() {
    assert_tight(&battery_in_own_network(policy()));
}

#[test]
fn nothing_gets_through_as_an_ordinary_user() {
    in_own_network(&ADDRESSES, || as_ordinary_user("ordinary_user_battery"));
}

#[test]
#[ignore = "run as an ordinary user by the test above"]
fn ordinary_user_battery() {
    assert!(!is_root());
    assert_tight(&battery(&policy()));
}

/// Tests the battery itself: removing a single layer must let one of its probes through.
#[test]
fn without_any_single_layer_a_probe_gets_through() {
    let mut undetected = Vec::new();
    for layer in Layer::ALL {
        // Bubblewrap cannot be switched off. The session layer has its own test below, because it
        // needs a terminal.
        if matches!(layer, Layer::Bubblewrap | Layer::Session) {
            continue;
        }
        let mut policy = policy();
        policy.layers.set(layer, Requirement::Off);
        let report = battery_in_own_network(policy);
        let through: Vec<&str> = report
            .open()
            .filter(|finding| finding.layers.contains(&layer))
            .map(|finding| finding.name.as_str())
            .collect();
        println!("without {layer}: {}", through.join(", "));
        if through.is_empty() {
            undetected.push(format!("{layer}:\n{report}"));
        }
        let state = report.layers.iter().find(|(l, _)| *l == layer);
        assert_eq!(state, Some(&(layer, LayerState::Off)));
    }
    assert!(undetected.is_empty(), "no probe got through without {undetected:#?}");
}

#[test]
fn without_the_session_layer_the_terminal_is_open() {
    // script(1) runs the ignored test below with a terminal.
    let output = std::process::Command::new("script")
        .args(["--quiet", "--return", "--command"])
        .arg(format!(
            "{} --exact battery_with_a_terminal --ignored --nocapture --test-threads=1",
            std::env::current_exe().expect("own path").display()
        ))
        .arg("/dev/null")
        .output()
        .expect("script(1) gives a terminal");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run with a terminal by the test above"]
fn battery_with_a_terminal() {
    std::fs::File::open("/dev/tty").expect("there is a terminal");
    let terminal = |policy: Policy| {
        let report = battery_in_own_network(policy);
        let finding = report.findings.into_iter().find(|f| f.name == "terminal");
        finding.expect("the probe ran").is_open()
    };
    assert!(!terminal(policy()), "the terminal must not be reachable");
    let mut open = policy();
    open.layers.set(Layer::Session, Requirement::Off);
    assert!(terminal(open), "without the layer the terminal must be reachable");
}

/// The probes that make kernel objects without end are stopped by the bounds, not by chance: without the layer they get
/// through, each with one object more than the bound.
#[test]
fn every_bound_of_kernel_objects_stops_its_probe() {
    let bounded = [
        "many-user-namespaces",
        "many-pid-namespaces",
        "many-network-namespaces",
        "many-empty-files",
        "many-queued-signals",
        "many-timers",
        "many-file-watches",
    ];
    let mut unlimited = policy();
    unlimited.layers.set(Layer::Limits, Requirement::Off);
    let (with, without) = (battery_in_own_network(policy()), battery_in_own_network(unlimited));
    for name in bounded {
        let outcome = |report: &Report| {
            let finding = report.findings.iter().find(|finding| finding.name == name);
            finding.expect("the probe ran").outcome.clone()
        };
        let stopped = outcome(&with);
        assert!(
            matches!(&stopped, Outcome::Stopped(why) if why.starts_with("after ")),
            "{name}: {stopped:?}"
        );
        let open = outcome(&without);
        assert!(matches!(open, Outcome::Open(_)), "{name} without the layer: {open:?}");
    }
}

/// The fork bomb and the memory hog detect limits that are not enforced. The cgroup here is an
/// ordinary folder.
#[test]
fn limits_that_are_not_enforced_are_detected() {
    let parent = tempfile::tempdir().expect("folder");
    for file in ["cgroup.controllers", "cgroup.subtree_control"] {
        std::fs::write(parent.path().join(file), "cpu memory pids\n").expect("write");
    }
    let mut policy = policy();
    policy.limits.memory_bytes = Some(32 << 20);
    policy.limits.processes = Some(40);
    let mut options = options();
    options.cgroup_parent = Some(parent.path().to_owned());
    let report = in_own_network(&ADDRESSES, move || run(&policy, &options).expect("the battery runs"));
    for name in ["many-processes", "much-memory"] {
        let finding = report.findings.iter().find(|f| f.name == name);
        let finding = finding.expect("the probe ran");
        assert!(finding.is_open(), "{finding:?}");
    }
}
