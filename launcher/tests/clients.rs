//! Real clients start the drop-in by its path, navigate, click and take a screenshot.

mod common;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;

fn site(path: &str, _: std::net::SocketAddr) -> Vec<u8> {
    match path {
        "/file" => b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Disposition: attachment; filename=report.txt\r\nContent-Length: 7\r\nConnection: close\r\n\r\ncontent".to_vec(),
        _ => html(
            "<button id=button onclick=\"document.getElementById('result').textContent = 'yes'\">press</button>\
             <p id=result>no</p><a id=download href=/file>file</a><input id=file type=file>",
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

/// The program of `scripts/install-deps` that runs a client.
fn installed(path: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache").join(path);
    assert!(program.exists(), "{} is missing: run scripts/install-deps", program.display());
    program
}

/// Runs a client in JavaScript and returns its output.
fn client(setup: &Setup, script: &str, more: &[&str]) -> String {
    run(&installed("node/bin/node"), setup, script, more)
}

/// Runs a client in Python and returns its output.
fn python(environment: &str, name: &str) -> String {
    run(&installed(&format!("python-{environment}/bin/python")), &Setup::new(), "clients.py", &[name])
}

/// Runs a client, which clicks a button and takes a screenshot.
fn run(program: &Path, setup: &Setup, script: &str, more: &[&str]) -> String {
    let server = Server::start(site);
    let mut config = setup.config.clone();
    config.allow.push(server.address.to_string().parse().expect("allow"));
    // Clients choose their folders themselves.
    config.media = None;
    config.downloads = None;
    let setup = Setup { folder: tempfile::tempdir().expect("folder"), config };
    let path = |name: &str| setup.folder.path().join(name);
    let picture = path("picture.png");
    let drop_in = setup.drop_in();
    for name in ["tmp", "home"] {
        std::fs::create_dir(path(name)).expect("mkdir");
    }
    // The home of root is closed to others, and clients keep profiles in it.
    std::fs::set_permissions(path("home"), Permissions::from_mode(0o700)).expect("chmod");
    std::fs::write(path("upload.txt"), "from the host").expect("write");
    let mut command = Command::new(program);
    command
        .arg(scripts().join(script))
        .arg(drop_in.get_program())
        .arg(server.url("/"))
        .arg(&picture)
        .args(more);
    command.env("BROWSER_LAUNCHER_CONFIG", setup.file()).env("TMPDIR", path("tmp"));
    command.env("HOME", path("home")).env("UPLOAD", path("upload.txt")).env_remove("XDG_CACHE_HOME");
    let output = finish(command);
    let said = text(&output.stdout);
    let name = format!("{script} {more:?}");
    assert!(output.status.success(), "{name}: {said}\n{}", text(&output.stderr));
    assert!(said.contains("clicked: yes"), "{name}: {said}\n{}", text(&output.stderr));
    assert!(is_png(&std::fs::read(&picture).expect("the screenshot")), "{name}");
    said
}

#[test]
fn playwright_over_the_pipe() {
    as_root_and_as_user("playwright_over_the_pipe", || {
        let said = client(&Setup::new(), "playwright.js", &[]);
        assert!(said.contains("downloaded: content report.txt"), "{said}");
        assert!(said.contains("persistent: test"), "{said}");
        assert!(said.contains("uploaded: from the host"), "{said}");
        let refused = said.lines().find(|line| line.starts_with("absent: ")).expect("an error");
        assert!(refused.contains("upload.txt.absent"), "{refused}");
    });
}

#[test]
fn puppeteer_over_a_port() {
    as_root_and_as_user("puppeteer_over_a_port", || {
        let said = client(&Setup::new(), "puppeteer.mjs", &["port"]);
        assert!(said.contains("endpoint: ws://127.0.0.1:"), "{said}");
        assert!(said.contains("uploaded: from the host"), "{said}");
        assert!(said.contains("downloaded: report.txt content"), "{said}");
    });
}

#[test]
fn puppeteer_over_the_pipe() {
    as_root_and_as_user("puppeteer_over_the_pipe", || {
        let said = client(&Setup::new(), "puppeteer.mjs", &["pipe"]);
        assert!(said.contains("uploaded: from the host"), "{said}");
        assert!(said.contains("downloaded: report.txt content"), "{said}");
    });
}

#[test]
fn selenium_with_chromedriver() {
    as_root_and_as_user("selenium_with_chromedriver", || {
        let said = client(&Setup::new(), "selenium.js", &[]);
        assert!(said.contains("browser: "), "{said}");
        assert!(said.contains("uploaded: from the host"), "{said}");
    });
}

#[test]
fn stagehand_with_its_extension() {
    as_root_and_as_user("stagehand_with_its_extension", || {
        client(&Setup::new(), "stagehand.mjs", &[]);
    });
}

#[test]
fn chrome_launcher_and_lighthouse() {
    as_root_and_as_user("chrome_launcher_and_lighthouse", || {
        let said = client(&Setup::new(), "chrome-launcher.mjs", &[]);
        assert!(said.contains("lighthouse: 1 http://127.0.0.1:"), "{said}");
    });
}

#[test]
fn mcp_servers_with_their_default_profile() {
    as_root_and_as_user("mcp_servers_with_their_default_profile", || {
        for name in ["@playwright/mcp", "chrome-devtools-mcp"] {
            client(&Setup::new(), "mcp.mjs", &[name]);
        }
    });
}

#[test]
fn nodriver_and_zendriver() {
    as_root_and_as_user("nodriver_and_zendriver", || {
        for name in ["nodriver", "zendriver"] {
            python("agents", name);
        }
    });
}

#[test]
fn browser_use_in_a_container() {
    as_root_and_as_user("browser_use_in_a_container", || {
        python("agents", "browser-use");
    });
}

#[test]
fn pyppeteer_over_a_port() {
    as_root_and_as_user("pyppeteer_over_a_port", || {
        python("pyppeteer", "pyppeteer");
    });
}

/// A proxy that wants credentials and answers every request itself, so nothing is sent to the public address.
fn proxy_with_credentials(head: &str) -> Vec<u8> {
    match head.to_ascii_lowercase().contains("proxy-authorization: basic dxnlcjpwyxnz") {
        true if head.starts_with("GET http://93.184.216.34:80/through ") => site("/", ([127, 0, 0, 1], 0).into()),
        true => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        false => b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"test\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
    }
}

#[test]
fn playwrights_proxy_setting_is_used() {
    as_root_and_as_user("playwrights_proxy_setting_is_used", || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut head = Vec::new();
                    let mut stream = stream;
                    while !head.ends_with(b"\r\n\r\n") {
                        let mut byte = [0];
                        match std::io::Read::read(&mut stream, &mut byte) {
                            Ok(1) => head.push(byte[0]),
                            _ => return,
                        }
                    }
                    // The browser may have gone.
                    let _ = std::io::Write::write_all(&mut stream, &proxy_with_credentials(&text(&head)));
                });
            }
        });
        let mut setup = Setup::new();
        setup.config.allow.push(address.to_string().parse().expect("allow"));
        let said = client(&setup, "proxy.js", &[&format!("http://{address}")]);
        assert!(said.contains("set it for the whole browser, at its launch"), "{said}");
    });
}
