//! The JavaScript client under node: against a scripted server, and against the real daemon.

#![allow(clippy::unwrap_used)]

mod common;

use common::Lab;
use std::path::{Path, PathBuf};
use std::process::Command;

fn client(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(file)
}

/// Run one file with node's test runner; at least one test must run and all must pass.
fn run(file: &str, socket: Option<&Path>) -> Result<(), String> {
    let mut node = Command::new("node");
    // The default reporter depends on the terminal.
    node.arg("--test").arg("--test-reporter=tap").arg(client(file)).env_remove("HOSTD_SOCKET");
    node.envs(socket.map(|socket| ("HOSTD_SOCKET", socket)));
    let output = node.output().unwrap_or_else(|error| {
        panic!("node cannot be started ({error}); scripts/install-deps installs it");
    });
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = text.lines().any(|line| line.starts_with("# pass ") && line != "# pass 0");
    if output.status.success() && passed {
        return Ok(());
    }
    Err(format!("{file}: {}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_client_follows_the_protocol() {
    run("protocol.test.mjs", None).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_client_works_with_the_real_daemon() {
    let lab = Lab::new(8, "");
    std::fs::create_dir(lab.path().join("conf.d")).unwrap();
    std::fs::write(lab.path().join("conf.d/four.toml"), "[server]\nmax_clones = 4\n").unwrap();
    // Slow enough for a caller to time out.
    lab.set_latency(2);
    let mut daemon = lab.start();
    daemon.wait_ready().unwrap_or_else(|error| panic!("{error}\n{}", lab.log_tail()));
    run("hostd.test.mjs", Some(&lab.socket())).unwrap_or_else(|error| panic!("{error}\n{}", lab.log_tail()));
    assert!(daemon.stop().success(), "{}", lab.log_tail());
    assert!(lab.world().ours().is_empty(), "the clients destroyed everything: {:?}", lab.world().ours());
}
