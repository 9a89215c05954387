//! Real clients start the drop-in by its path, navigate, click and take a screenshot.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;

fn site(path: &str, _: std::net::SocketAddr) -> Vec<u8> {
    match path {
        "/file" => b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Disposition: attachment; filename=report.txt\r\nContent-Length: 7\r\nConnection: close\r\n\r\ncontent".to_vec(),
        _ => html(
            "<button id=button onclick=\"document.getElementById('result').textContent = 'yes'\">press</button>\
             <p id=result>no</p><a id=download href=/file>file</a>",
        ),
    }
}

fn scripts() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    assert!(
        folder.join("node_modules/playwright-core").exists(),
        "the clients are missing: run scripts/install-deps"
    );
    folder
}

/// Runs a client and returns its output.
fn client(setup: &Setup, script: &str, more: &[&str]) -> String {
    let server = Server::start(site);
    let mut config = setup.config.clone();
    config.allow = vec![server.address.to_string().parse().expect("allow")];
    // Clients choose their folders themselves.
    config.media = None;
    config.downloads = None;
    let setup = Setup { folder: tempfile::tempdir().expect("folder"), config };
    let picture = setup.folder.path().join("picture.png");
    let drop_in = setup.drop_in();
    let temporary = setup.folder.path().join("tmp");
    std::fs::create_dir(&temporary).expect("mkdir");
    let mut command = Command::new("node");
    command
        .arg(scripts().join(script))
        .arg(drop_in.get_program())
        .arg(server.url("/"))
        .arg(&picture)
        .args(more);
    command.env("BROWSER_LAUNCHER_CONFIG", setup.file()).env("TMPDIR", &temporary);
    let output = finish(command);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{script}: {said}\n{}", text(&output.stderr));
    assert!(said.contains("clicked: yes"), "{script}: {said}");
    assert!(is_png(&std::fs::read(&picture).expect("the screenshot")), "{script}");
    said
}

#[test]
fn playwright_over_the_pipe() {
    as_root_and_as_user("playwright_over_the_pipe", || {
        let said = client(&Setup::new(), "playwright.js", &[]);
        assert!(said.contains("downloaded: content report.txt"), "{said}");
        assert!(said.contains("persistent: test"), "{said}");
    });
}

#[test]
fn puppeteer_over_a_port() {
    as_root_and_as_user("puppeteer_over_a_port", || {
        let said = client(&Setup::new(), "puppeteer.mjs", &["port"]);
        assert!(said.contains("endpoint: ws://127.0.0.1:"), "{said}");
    });
}

#[test]
fn puppeteer_over_the_pipe() {
    as_root_and_as_user("puppeteer_over_the_pipe", || {
        client(&Setup::new(), "puppeteer.mjs", &["pipe"]);
    });
}

#[test]
fn selenium_with_chromedriver() {
    as_root_and_as_user("selenium_with_chromedriver", || {
        let said = client(&Setup::new(), "selenium.js", &[]);
        assert!(said.contains("browser: "), "{said}");
    });
}
