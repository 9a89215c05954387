//! The documents must match the code: `docs/browserctl.md` is generated, the snippets of `docs/mcp.md` are files.
//!
//! `HOSTD_UPDATE_DOCS=1 cargo test -p browserctl --test docs` rewrites the generated one.

#![allow(clippy::unwrap_used)]

use browserctl::{EXIT_CODES, command};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs")
}

fn section(text: &mut String, title: &str, help: &str) {
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = writeln!(text, "\n## {title}\n\n```text\n{}\n```", help.join("\n").trim_end());
}

fn reference() -> String {
    let mut text = String::from(
        "<!-- Generated from the code; do not edit. HOSTD_UPDATE_DOCS=1 cargo test -p browserctl --test docs -->\n\n\
         # browserctl\n\n\
         ## Exit codes\n\nThe numbers mean the same as those of `hostctl`.\n\n| code | meaning |\n|---|---|\n",
    );
    for (exit, meaning) in EXIT_CODES {
        let _ = writeln!(text, "| {} | {meaning} |", exit as u8);
    }
    text.push_str(
        "\n## JSON\n\nWith `--json` every command prints one line on standard output and nothing on standard error:\n\n\
         ```json\n{\"success\":true,\"data\":{}}\n\
         {\"success\":false,\"error\":{\"code\":\"no_such_session\",\"message\":\"…\",\"hint\":\"…\",\"retryable\":false}}\n```\n\n\
         `data` is the result as in the HTTP API. `error.code` is one of the service's codes, or `usage`, `unreachable`, \
         `disconnected`, `denied`, `timeout`, `protocol`, `not_ready` from `browserctl` itself. `audit export` prints rows, \
         one object per line.\n",
    );
    // A fixed width: the page must not depend on the terminal the test runs in.
    let mut browserctl = command().term_width(100);
    browserctl.build();
    section(&mut text, "browserctl", &browserctl.clone().render_long_help().to_string());
    below(&mut text, "browserctl", &browserctl);
    text
}

/// The sections of the commands below one.
fn below(text: &mut String, name: &str, command: &clap::Command) {
    for mut inner in command.get_subcommands().cloned() {
        let title = format!("{name} {}", inner.get_name());
        // The global options are described once, above.
        for global in ["json", "session", "socket", "server", "key_file", "timeout"] {
            inner = inner.mut_arg(global, |arg| arg.hide(true));
        }
        section(text, &title, &inner.render_help().to_string());
        below(text, &title, &inner);
    }
}

#[test]
fn the_reference_is_up_to_date() {
    let (file, fresh) = (docs().join("browserctl.md"), reference());
    if std::env::var_os("HOSTD_UPDATE_DOCS").is_some() {
        std::fs::write(&file, fresh).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = committed.lines().zip(fresh.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| committed.lines().count().min(fresh.lines().count())) + 1;
    assert!(
        committed == fresh,
        "docs/browserctl.md differs from the code from line {line} on. \
         Rewrite it: HOSTD_UPDATE_DOCS=1 cargo test -p browserctl --test docs"
    );
}

#[test]
fn the_snippets_of_mcp_clients_can_be_used() {
    let page = std::fs::read_to_string(docs().join("mcp.md")).unwrap();
    let listen = controlplane::config::HttpConfig::default().listen;
    let mut count = 0;
    for entry in std::fs::read_dir(docs().join("mcp")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            page.contains(&format!("```json\n{}\n```", text.trim_end())),
            "{path:?} is not in docs/mcp.md"
        );
        let snippet: Value = serde_json::from_str(&text).unwrap();
        let servers = snippet.get("mcpServers").or_else(|| snippet.get("servers")).unwrap();
        let server = &servers["browser"];
        if let Some(url) = server["url"].as_str() {
            assert_eq!(url, format!("http://{listen}/mcp"), "{path:?}");
            assert!(
                server["headers"]["Authorization"].as_str().unwrap().starts_with("Bearer ${"),
                "{path:?}"
            );
        } else {
            assert!(server["command"].as_str().unwrap().ends_with("/browserctl"), "{path:?}");
            let words = server["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
            let parsed = command().try_get_matches_from(std::iter::once("browserctl").chain(words)).unwrap();
            assert_eq!(parsed.subcommand_name(), Some("mcp"), "{path:?}");
        }
        count += 1;
    }
    assert_eq!(count, page.matches("```json").count(), "every snippet is a file");
}
