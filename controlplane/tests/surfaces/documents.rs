//! The generated documents in the repository must match the code.
//!
//! `UPDATE_DOCS=1 cargo test -p controlplane --test surfaces documents` rewrites them.

use crate::rig::repository;
use controlplane::config::Config;
use controlplane::error::ErrorCode;
use std::fmt::Write;

fn check(path: &str, fresh: &str) {
    let file = repository().join(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, fresh).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = committed.lines().zip(fresh.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| committed.lines().count().min(fresh.lines().count())) + 1;
    assert!(
        committed == fresh,
        "{path} differs from the code from line {line} on. \
         Rewrite it: UPDATE_DOCS=1 cargo test -p controlplane --test surfaces documents"
    );
}

fn head(title: &str) -> String {
    format!(
        "<!-- Generated from the code; do not edit. UPDATE_DOCS=1 cargo test -p controlplane --test surfaces documents -->\n\n\
         # {title}\n"
    )
}

#[test]
fn openapi() {
    let document = controlplane::surfaces::http::openapi::document();
    check("docs/controlplane-openapi.json", &format!("{document:#}\n"));
}

#[test]
fn typescript_client() {
    let document = controlplane::surfaces::http::openapi::document();
    check("controlplane/clients/contract.d.mts", &crate::typescript::contract(&document));
    check("controlplane/clients/operations.mjs", &crate::typescript::table(&document));
}

#[test]
fn default_configuration() {
    check("docs/controlplane.toml", &settings::default_toml::<Config>());
}

#[test]
fn configuration_reference() {
    let files =
        "`/etc/controlplane/controlplane.toml` (FreeBSD: `/usr/local/etc/controlplane/controlplane.toml`)";
    let text = head("Configuration of the control plane") + &settings::reference::<Config>(files);
    check("docs/controlplane-config.md", &text);
}

#[test]
fn error_reference() {
    let mut text = head("Errors of the control plane");
    text.push_str(
        "\nEvery error has this body, and a `Retry-After` header where the time is known:\n\n\
         ```json\n{\"success\":false,\"error\":{\"code\":\"tenant_sessions\",\"message\":\"…\",\"hint\":\"…\",\
         \"retryable\":true,\"retry_after_seconds\":1}}\n```\n\n\
         Errors of actions in a browser have browserd's codes, which `browserd.md` lists. The exit code is that of \
         `browserctl`.\n\n| code | status | retryable | exit code | what to do |\n|---|---|---|---|---|\n",
    );
    for code in ErrorCode::ALL {
        let retryable = if code.retryable() { "yes" } else { "no" };
        let _ = writeln!(
            text,
            "| `{code}` | {} | {retryable} | {} | {} |",
            code.status().as_u16(),
            code.exit_code(),
            code.hint()
        );
    }
    check("docs/controlplane-errors.md", &text);
}
