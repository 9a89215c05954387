//! schemathesis against the served document.

use crate::rig::{RealBrowser, Rig, repository};
use std::process::Command;

/// A WebSocket, a stream, and the probe that is 503 because the host of this test has no status: tested elsewhere.
const LEFT_OUT: [&str; 3] = ["cdp", "recording_export", "readyz"];

#[test]
fn schemathesis_finds_nothing() {
    let program = repository().join(".cache/python-schemathesis/bin/schemathesis");
    assert!(program.is_file(), "{} is missing: scripts/install-deps", program.display());
    // A call whose parameters wait for something that never comes must end soon.
    let real = RealBrowser::start_with_timeout("2000");
    let rig = Rig::over(real.browser.clone(), |_| {});
    let (key, _) = rig.key("a", &["read", "write", "evaluate", "files", "cdp", "admin"]);
    let mut command = Command::new(program);
    command
        .arg("run")
        .arg(format!("http://{}/openapi.json", rig.http))
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method,ignored_auth,missing_required_header"])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--seed", "1"])
        .args(["--header", &format!("Authorization: Bearer {key}")])
        .args(["--generation-database", "none", "--no-color"]);
    for name in LEFT_OUT {
        command.args(["--exclude-operation-id", name]);
    }
    // These say, with a code, that a browser or another part is at fault: a page without a history is `navigation_failed`. A
    // defect of the service is 500.
    let config = "[checks]\nnot_a_server_error.expected-statuses = [\"2xx\", \"3xx\", \"4xx\", \"502\", \"503\", \"504\", \"507\"]\n";
    std::fs::write(rig.folder.path().join("schemathesis.toml"), config).unwrap();
    let done = command.current_dir(rig.folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert_eq!(rig.remote("GET", "/healthz", None, None).status, 200);
}
