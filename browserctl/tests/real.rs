//! MCP and the command line against the whole service with a real browserd and Chromium.

#![allow(clippy::unwrap_used)]

#[path = "../../controlplane/tests/surfaces/rig.rs"]
#[allow(dead_code)]
mod rig;
mod support;

use base64::Engine;
use rig::{RealBrowser, Rig};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use support::clients::session_life;

const PAGE: &str = "data:text/html,<title>A page</title><h1>Hello</h1><label>Name <input id=name></label><button>Save</button>";

fn png(encoded: &Value) -> Vec<u8> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded.as_str().unwrap()).unwrap();
    assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"));
    bytes
}

fn life(line: &str, transport: &str) {
    let browser = RealBrowser::start();
    let rig = Rig::over(browser.browser.clone(), |_| {});
    let scopes = ["read", "write"];
    let keys = [rig.key("acme", &scopes).0, rig.key("acme", &scopes).0];
    let keys = [keys[0].as_str(), keys[1].as_str()];
    let seen = rig.runtime.block_on(session_life(line, transport, rig.http, keys, PAGE));

    let text = |name: &str| {
        seen[name]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{name}: {}", seen[name]))
    };
    for name in ["opened", "navigated", "snapshot", "typed", "text", "shot", "closed"] {
        assert_ne!(seen[name]["isError"], true, "{name}: {}", seen[name]);
    }
    assert_eq!(seen["navigated"]["structuredContent"]["title"], "A page");
    assert!(text("snapshot").contains("button \"Save\" [ref=@e"), "{}", text("snapshot"));
    assert!(text("text").contains("Hello"), "{}", text("text"));
    let shot = &seen["shot"];
    assert_eq!(
        (&shot["content"][1]["type"], &shot["content"][1]["mimeType"]),
        (&json!("image"), &json!("image/png"))
    );
    png(&shot["content"][1]["data"]);
    assert!(shot["structuredContent"].get("image_base64").is_none());
    assert_eq!(seen["wrong"]["isError"], true);
    assert!(text("wrong").contains("\nWhat to do: "), "{}", text("wrong"));
    let session = &seen["opened"]["structuredContent"]["session_id"];
    assert!(text("stranger").starts_with("no_such_session: "), "{}", text("stranger"));
    assert_eq!((&seen["listed"], &seen["mine"]), (&json!([]), &json!([session])));
    assert!(text("after").starts_with("session_closed: "), "{}", text("after"));
    assert_eq!(seen["cancelled"], true);

    // What the agent typed is in no row.
    let rows = rig.audit("acme");
    let typed: Vec<&Value> = rows.iter().filter(|row| row["verb"] == "type").collect();
    assert!(!typed.is_empty() && !json!(rows).to_string().contains("Ada"), "{typed:?}");
}

#[test]
fn old_client_over_http() {
    life("sdk", "http");
}

#[test]
fn old_client_over_stdio() {
    life("sdk", "stdio");
}

#[test]
fn new_client_over_http() {
    life("client", "http");
}

#[test]
fn new_client_over_stdio() {
    life("client", "stdio");
}

/// At the Unix socket, where the login is the user.
#[test]
fn the_command_line_drives_a_browser() {
    let browser = RealBrowser::start();
    let rig = Rig::over(browser.browser.clone(), |_| {});
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_browserctl"));
        command.args(words).arg("--json").env_clear().current_dir(folder.path()).stdin(Stdio::null());
        let output = command.env("BROWSERCTL_SOCKET", &rig.socket).output().unwrap();
        let shape: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {output:?}"));
        assert_eq!(shape["success"], true, "{words:?}: {shape}");
        shape["data"].clone()
    };
    let session = run(&["open", "--deadline", "10m", "--labels", "task=demo"])["session_id"].clone();
    let within = |words: &[&str]| run(&[words, &["--session", session.as_str().unwrap()]].concat());
    assert_eq!(run(&["ls"])["sessions"][0]["labels"]["task"], "demo");
    assert_eq!(within(&["navigate", PAGE])["title"], "A page");
    within(&["fill", "#name", "Ada"]);
    let found = within(&["find", "--role", "textbox"]);
    assert_eq!(found["elements"][0]["value"], "Ada", "{found}");
    within(&["click", found["elements"][0]["ref"].as_str().unwrap()]);
    within(&["press", "Tab"]);
    assert_eq!(within(&["screenshot", "-o", "a.png"])["file"], "a.png");
    assert!(std::fs::read(folder.path().join("a.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(within(&["pdf", "-o", "a.pdf"])["file"] == "a.pdf");
    assert!(std::fs::read(folder.path().join("a.pdf")).unwrap().starts_with(b"%PDF"));
    assert!(within(&["cdp"])["cdp_url"].as_str().unwrap().starts_with("ws://"));
    assert_eq!(run(&["audit", "verify"])["intact"], true);
    let tail = run(&["audit", "tail", "-n", "1000"]);
    assert!(tail.to_string().contains("\"verb\":\"fill\"") && !tail.to_string().contains("Ada"), "{tail}");
    assert_eq!(run(&["whoami"])["tenant"], "default");
    let key = run(&["key", "issue", "--label", "crawler"]);
    assert!(run(&["key", "ls"]).to_string().contains("crawler"));
    run(&["key", "revoke", key["key_id"].as_str().unwrap()]);
    assert_eq!(run(&["close", session.as_str().unwrap()])["close_reason"], "requested");
}
