//! MCP with the official clients: both lines, over HTTP and over stdio, and the inspector.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use std::path::Path;
use support::clients::{clients, node, output, session_life, variables};
use support::{KEYS, PAGE_TEXT, PICTURE, StandIn};
use tokio::process::Command;

async fn life(line: &str, transport: &str) {
    let service = StandIn::default();
    let address = service.start().await;
    let seen = session_life(line, transport, address, KEYS, "https://example.org/").await;

    if line == "client" {
        assert_eq!(seen["version"], "2026-07-28");
    }
    let tools = seen["tools"].as_array().unwrap();
    let tool = |name: &str| tools.iter().find(|tool| tool["name"] == name);
    assert!(tool("browser_read_dom").is_none(), "only the core tools are offered");
    let hints = |name: &str| {
        let annotations = &tool(name).unwrap()["annotations"];
        ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
            .map(|hint| annotations[hint].as_bool().unwrap())
    };
    assert_eq!(hints("browser_snapshot"), [true, false, true, true]);
    assert_eq!(hints("browser_click"), [false, true, false, true]);
    assert_eq!(hints("browser_close_session"), [false, true, true, false]);
    assert_eq!(hints("browser_open_session"), [false, false, false, false]);
    let input = &tool("browser_click").unwrap()["inputSchema"];
    assert_eq!(input["required"], json!(["session_id"]));
    assert!(input["properties"]["selector"].is_object());

    let ok = |name: &str| assert_ne!(seen[name]["isError"], true, "{name}: {}", seen[name]);
    ["opened", "navigated", "snapshot", "typed", "text", "shot", "closed"].into_iter().for_each(ok);
    let session = &seen["opened"]["structuredContent"]["session_id"];
    assert!(session.as_str().unwrap().starts_with("ses_"));
    assert!(!seen["progress"].as_array().unwrap().is_empty(), "opening reports progress");
    assert_eq!(seen["navigated"]["structuredContent"]["status"], 200);
    assert_eq!(seen["snapshot"]["content"][0]["text"], "- button \"Save\" [ref=@e1]");
    // A page's text is alone in its block, and has no say about the result.
    assert_eq!(seen["text"]["content"], json!([{"type": "text", "text": PAGE_TEXT}]));
    let pictures: Vec<&Value> =
        seen["shot"]["content"].as_array().unwrap().iter().filter(|block| block["type"] == "image").collect();
    assert_eq!(pictures, [&json!({"type": "image", "data": PICTURE, "mimeType": "image/png"})]);
    assert_eq!(seen["shot"].to_string().matches(PICTURE).count(), 1);
    // Errors are results that a model can act on.
    let refusal = |name: &str| {
        assert_eq!(seen[name]["isError"], true, "{name}: {}", seen[name]);
        let text = seen[name]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("\nWhat to do: "), "{text}");
        text.split(": ").next().unwrap().to_owned()
    };
    assert_eq!(refusal("wrong"), "timeout");
    // Knowing a session is not enough.
    assert_eq!(refusal("stranger"), "no_such_session");
    assert_eq!((&seen["listed"], &seen["mine"]), (&json!([]), &json!([session])));
    assert_eq!(refusal("after"), "session_closed");
    assert_eq!(seen["cancelled"], true);
    // Clients of 2025-11-25 over HTTP announce a cancellation by a request of its own, which names nothing that a service
    // without MCP sessions could find; their call ends by its deadline.
    if !(line == "sdk" && transport == "http") {
        service.wait_cancelled(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_client_over_http() {
    life("sdk", "http").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_client_over_stdio() {
    life("sdk", "stdio").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_client_over_http() {
    life("client", "http").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_client_over_stdio() {
    life("client", "stdio").await;
}

/// The inspector's command line, with its files in a folder of the test.
async fn inspect(home: &Path, words: &[&str], target: &[&str]) -> Value {
    let mut command = Command::new(node());
    let launcher =
        clients().join("node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js");
    command.arg(launcher).arg("--cli").args(words).args(target).current_dir(home);
    command.env("HOME", home);
    let text = output(command).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspector_lists_and_calls_tools() {
    let service = StandIn::default();
    let address = service.start().await;
    let home = tempfile::tempdir().unwrap();
    let all = format!("http://{address}/mcp?tools=all");
    let header = format!("Authorization: Bearer {}", KEYS[0]);
    let http = ["--transport", "http", "--server-url", all.as_str(), "--header", header.as_str()];
    let listed = inspect(home.path(), &["--method", "tools/list"], &http).await;
    let listed = listed["tools"].as_array().unwrap();
    assert_eq!(listed.len(), controlplane::actions::verbs().len(), "?tools=all offers every verb");
    let words = ["--method", "tools/call", "--tool-name", "browser_open_session"];
    let opened = inspect(home.path(), &words, &http).await;
    let session = opened["structuredContent"]["session_id"].as_str().unwrap().to_owned();

    let config = home.path().join("servers.json");
    let server = json!({"command": env!("CARGO_BIN_EXE_browserctl"), "args": ["mcp", "--tools", "all"], "env": variables(address, KEYS[0])});
    std::fs::write(&config, json!({"mcpServers": {"browser": server}}).to_string()).unwrap();
    let stdio = ["--config", config.to_str().unwrap(), "--server", "browser"];
    let over_stdio = inspect(home.path(), &["--method", "tools/list"], &stdio).await;
    assert_eq!(over_stdio["tools"].as_array().unwrap().len(), listed.len());
    let argument = format!("session_id={session}");
    let words = ["--method", "tools/call", "--tool-name", "browser_text", "--tool-arg", argument.as_str()];
    let text = inspect(home.path(), &words, &stdio).await;
    assert_eq!(text["structuredContent"]["text"], PAGE_TEXT, "a session does not depend on the connection");
}
