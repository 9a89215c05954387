//! `hostctl doctor`: from the outside in, so that it says something useful even when nothing runs.

use super::args::DoctorArgs;
use super::exit::Exit;
use super::output::{Answer, Failure, Output};
use super::remote::Remote;
use super::text::{Table, Tone};
use crate::api::{ErrorCode, Finding, Method, Severity, StatusParams, StatusResult};
use crate::config::{self, Config};
use serde_json::json;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub(super) async fn run(remote: &Remote, output: &Output, args: DoctorArgs) -> Result<Answer, Failure> {
    let mut findings = Vec::new();
    let config = configuration(args.config.as_deref(), &mut findings);
    let configured = config.map(|config| config.paths.socket);
    // The daemon listens where its configuration says; a client without --socket asks the usual place.
    let remote = remote.or_at(configured.as_deref());
    socket(remote.path(), &mut findings);
    match remote.call::<StatusResult>(Method::Status, &StatusParams { checks: true, metrics: false }).await {
        Ok(status) => {
            findings.push(good("daemon", format!("hostd {} answers", status.version)));
            findings.extend(status.findings.unwrap_or_default());
            findings.extend(status.alarms.into_iter().map(|alarm| Finding {
                check: "alarm".into(),
                severity: Severity::Warning,
                message: alarm,
                fix: String::new(),
            }));
        }
        Err(failure) => findings.push(bad("daemon", failure.message().to_owned(), failure.advice().to_owned())),
    }

    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let warnings = findings.iter().filter(|finding| finding.severity == Severity::Warning).count();
    let mut text = table(output, &findings);
    text.push_str(&format!("\n{errors} errors, {warnings} warnings\n"));
    let answer = Answer { data: json!({ "findings": findings }), text };
    if errors == 0 {
        return Ok(answer);
    }
    let fix = findings.iter().find(|finding| finding.severity == Severity::Error && !finding.fix.is_empty());
    let hint = fix.map_or("see the findings", |finding| finding.fix.as_str()).to_owned();
    let code = ErrorCode::HostNotReady;
    let message = format!("{errors} checks failed: the host cannot serve clones");
    Err(Failure::local(Exit::NotReady, code.word(), message).hint(hint).retryable().with(answer))
}

fn good(check: &str, message: String) -> Finding {
    Finding { check: check.into(), severity: Severity::Ok, message, fix: String::new() }
}

fn bad(check: &str, message: String, fix: String) -> Finding {
    Finding { check: check.into(), severity: Severity::Error, message, fix }
}

/// The files alone: the daemon's variables and flags are not ours.
fn configuration(file: Option<&Path>, findings: &mut Vec<Finding>) -> Option<Config> {
    let path = file.map_or_else(config::default_file, Path::to_owned);
    let shown = path.display();
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            findings.push(Finding {
                check: "config".into(),
                severity: Severity::Warning,
                message: format!("{shown} cannot be read by you, so it was not checked"),
                fix: "run hostctl doctor as root".into(),
            });
            return None;
        }
        _ => {}
    }
    match config::load(file, std::iter::empty(), &[]) {
        Ok(config) => {
            let what = if path.exists() { "is valid" } else { "is not there: defaults are used" };
            findings.push(good("config", format!("{shown} {what}")));
            Some(config)
        }
        Err(error) => {
            for problem in &error.problems {
                let fix = "correct it, then run hostd --check-config".to_owned();
                findings.push(bad("config", problem.to_string(), fix));
            }
            None
        }
    }
}

fn socket(path: &Path, findings: &mut Vec<Finding>) {
    let shown = path.display();
    findings.push(match std::fs::metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            bad("socket", format!("{shown} is not a socket"), "remove it, or correct paths.socket".into())
        }
        Ok(_) => match nix::unistd::access(path, nix::unistd::AccessFlags::W_OK) {
            Ok(()) => good("socket", format!("{shown} is there and you may connect")),
            Err(_) => bad(
                "socket",
                format!("{shown} is there, but you may not connect"),
                "join the group that owns it (paths.socket_group, usually hostd) and log in anew".into(),
            ),
        },
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => bad(
            "socket",
            format!("you may not look into the folder of {shown}"),
            "join the group that owns it (paths.socket_group, usually hostd) and log in anew".into(),
        ),
        Err(error) => bad("socket", format!("{shown}: {error}"), "start hostd".into()),
    });
}

fn table(output: &Output, findings: &[Finding]) -> String {
    let mut table = Table::header(&["RESULT", "CHECK", "FINDING", "WHAT TO DO"]);
    for finding in findings {
        let result = match finding.severity {
            Severity::Ok => (Tone::Good, "ok".to_owned()),
            Severity::Warning => (Tone::Attention, "warning".to_owned()),
            Severity::Error => (Tone::Bad, "error".to_owned()),
        };
        let text = |text: &str| (Tone::Plain, text.to_owned());
        table.row(vec![result, text(&finding.check), text(&finding.message), text(&finding.fix)]);
    }
    table.render(output.paint())
}
