//! The clients of other people, which the tests run.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

pub(crate) fn clients() -> PathBuf {
    let clients = workspace().join("controlplane/tests/clients");
    assert!(clients.join("node_modules").exists(), "run scripts/install-deps: the clients are not installed");
    clients
}

/// The Node that the clients need.
pub(crate) fn node() -> PathBuf {
    let node = workspace().join(".cache/node/bin/node");
    assert!(node.exists(), "run scripts/install-deps: {} is missing", node.display());
    node
}

/// Variables of `browserctl` that talks to the stand-in with one of the keys.
pub(crate) fn variables(address: SocketAddr, key: &str) -> BTreeMap<String, String> {
    let url = format!("http://{address}");
    [("BROWSERCTL_URL", url.as_str()), ("BROWSERCTL_KEY", key)]
        .map(|(name, value)| (name.into(), value.into()))
        .into()
}

pub(crate) async fn output(mut command: Command) -> String {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(120), command.output()).await.unwrap().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The life of a session by one of the official clients (`sdk`, `client`) over a transport (`http`, `stdio`), and what a client
/// with the second key sees of it.
pub(crate) async fn session_life(
    line: &str,
    transport: &str,
    address: SocketAddr,
    keys: [&str; 2],
    page: &str,
) -> Value {
    let mut command = Command::new(node());
    command.arg("mcp.mjs").args([line, transport]).current_dir(clients());
    command.env("MCP_URL", format!("http://{address}/mcp")).env("MCP_PAGE", page);
    for (number, key) in keys.into_iter().enumerate() {
        let number = number + 1;
        command.env(format!("MCP_KEY_{number}"), key);
        let server = json!({"command": env!("CARGO_BIN_EXE_browserctl"), "args": ["mcp"], "env": variables(address, key)});
        command.env(format!("MCP_COMMAND_{number}"), server.to_string());
    }
    serde_json::from_str(&output(command).await).unwrap()
}
