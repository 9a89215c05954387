//! The generated documents in the repository must match the code.
//!
//! `HOSTD_UPDATE_DOCS=1 cargo test -p hostctl` rewrites them.

#![allow(clippy::unwrap_used)]

#[path = "../../../hostd/tests/common/binary.rs"]
mod binary;
mod markdown;
mod typescript;

use std::path::Path;
use std::process::Command;

fn check(path: &str, fresh: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(path);
    if std::env::var_os("HOSTD_UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(file.parent().expect("a folder")).unwrap();
        std::fs::write(&file, fresh).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = committed.lines().zip(fresh.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| committed.lines().count().min(fresh.lines().count())) + 1;
    assert!(
        committed == fresh,
        "{path} differs from the code from line {line} on. \
         Rewrite it: HOSTD_UPDATE_DOCS=1 cargo test -p hostctl"
    );
}

#[test]
fn openrpc_document() {
    let document = hostd::api::openrpc::document();
    check("docs/openrpc.json", &format!("{}\n", serde_json::to_string_pretty(&document).unwrap()));
}

#[test]
fn default_configuration() {
    check("docs/hostd.toml", &settings::default_toml::<hostd::config::Config>());
}

#[test]
fn typescript_types() {
    check("hostd/clients/contract.d.mts", &typescript::contract(&hostd::api::openrpc::document()));
}

#[test]
fn configuration_reference() {
    check("docs/config.md", &markdown::configuration());
}

#[test]
fn error_reference() {
    check("docs/errors.md", &markdown::errors(&hostd::api::openrpc::document()));
}

#[test]
fn command_line_reference() {
    let help = Command::new(binary::hostd()).arg("--help").env_clear().output().unwrap();
    assert!(help.status.success(), "{help:?}");
    check("docs/cli.md", &markdown::command_line(&String::from_utf8(help.stdout).unwrap()));
}
