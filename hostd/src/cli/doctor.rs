//! `hostctl doctor`: from the outside in, so that it says something useful even when nothing runs.

use super::args::DoctorArgs;
use super::output::{Answer, Failure, Output};
use super::remote::Remote;
use super::text::{Tone, clean};
use crate::api::{ErrorCode, Finding, Severity, StatusParams, StatusResult};
use crate::config::{self, Config};
use serde_json::json;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub(super) async fn run(remote: Remote, output: &Output, args: DoctorArgs) -> Result<Answer, Failure> {
    let mut findings = Vec::new();
    let config = configuration(args.config.as_deref(), &mut findings);
    let configured = config.map(|config| config.paths.socket);
    // The daemon listens where its configuration says; a client without --socket asks the usual place.
    let remote = remote.usually_at(configured);
    let socket = socket(remote.path());
    let reachable = socket.severity == Severity::Ok;
    findings.push(socket);
    if reachable {
        daemon(&remote, &mut findings).await;
    }

    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let warnings = findings.iter().filter(|finding| finding.severity == Severity::Warning).count();
    let mut text = lines(output, &findings);
    text.push_str(&format!("\n{errors} errors, {warnings} warnings\n"));
    let answer = Answer { data: json!({ "findings": findings }), text };
    if errors == 0 {
        return Ok(answer);
    }
    let fix = findings.iter().find(|finding| finding.severity == Severity::Error && !finding.fix.is_empty());
    let hint = fix.map_or("see the findings", |finding| finding.fix.as_str()).to_owned();
    let message = format!("{errors} checks failed: the host cannot serve clones");
    Err(Failure::of(ErrorCode::HostNotReady, message).hint(hint).with(answer))
}

/// The daemon's own findings and alarms.
async fn daemon(remote: &Remote, findings: &mut Vec<Finding>) {
    match ask(remote).await {
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
        Err(failure) => {
            findings.push(bad("daemon", failure.message().to_owned(), failure.advice().to_owned()))
        }
    }
}

async fn ask(remote: &Remote) -> Result<StatusResult, Failure> {
    let params = StatusParams { checks: true, metrics: false };
    Ok(remote.client().await?.status(params).await?)
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
    let opened = std::fs::File::open(&path);
    if opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
        findings.push(Finding {
            check: "config".into(),
            severity: Severity::Warning,
            message: format!("{shown} cannot be read by you, so it was not checked"),
            fix: "run hostctl doctor as root".into(),
        });
        return None;
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

fn socket(path: &Path) -> Finding {
    let shown = path.display();
    let join = "join the group that owns it (paths.socket_group, usually hostd) and log in anew";
    match std::fs::metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            bad("socket", format!("{shown} is not a socket"), "remove it, or correct paths.socket".into())
        }
        Ok(_) => match nix::unistd::access(path, nix::unistd::AccessFlags::W_OK) {
            Ok(()) => good("socket", format!("{shown} is there and you may connect")),
            Err(_) => bad("socket", format!("{shown} is there, but you may not connect"), join.into()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            bad("socket", format!("you may not look into the folder of {shown}"), join.into())
        }
        Err(error) => {
            let fix = "start hostd: systemctl start hostd, on FreeBSD service hostd start";
            bad("socket", format!("{shown}: {error}"), fix.into())
        }
    }
}

/// One line a check, and below it what to do.
fn lines(output: &Output, findings: &[Finding]) -> String {
    let widest = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let (tone, word) = match finding.severity {
            Severity::Ok => (Tone::Good, "ok"),
            Severity::Warning => (Tone::Attention, "warning"),
            Severity::Error => (Tone::Bad, "error"),
        };
        let result = output.paint().paint(tone, &format!("{word:<7}"));
        let (check, message) = (clean(&finding.check), clean(&finding.message));
        text.push_str(&format!("{result}  {check:<widest$}  {message}\n"));
        if !finding.fix.is_empty() {
            text.push_str(&format!("{:9}{:widest$}  to do: {}\n", "", "", clean(&finding.fix)));
        }
    }
    text
}
