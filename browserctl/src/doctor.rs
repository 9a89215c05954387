//! `browserctl doctor`: checks the connection, the login, the service and what it needs, in this order.

use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use controlplane::client::ClientError;
use serde::Serialize;
use serde_json::{Value, json};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use terminal::Exit;
use terminal::text::{Tone, clean};

/// What one check found.
#[derive(Debug, Serialize)]
struct Finding {
    check: String,
    severity: Severity,
    message: String,
    /// What to do about it.
    fix: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    Ok,
    Warning,
    Error,
}

fn finding(severity: Severity, check: &str, message: impl Into<String>, fix: &str) -> Finding {
    Finding { check: check.into(), severity, message: message.into(), fix: fix.into() }
}

fn good(check: &str, message: impl Into<String>) -> Finding {
    finding(Severity::Ok, check, message, "")
}

fn bad(check: &str, message: impl Into<String>, fix: &str) -> Finding {
    finding(Severity::Error, check, message, fix)
}

fn warn(check: &str, message: impl Into<String>, fix: &str) -> Finding {
    finding(Severity::Warning, check, message, fix)
}

pub(crate) async fn run(remote: &Remote, output: &Output) -> Result<CommandOutput, Failure> {
    let mut findings = Vec::new();
    let client = remote.client();
    let reachable = match client.socket() {
        Some(path) => {
            let found = socket(path);
            let reachable = found.severity == Severity::Ok;
            findings.push(found);
            reachable
        }
        None => true,
    };
    if reachable {
        service(remote, &mut findings).await;
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let warnings = findings.iter().filter(|finding| finding.severity == Severity::Warning).count();
    let text = lines(output, &findings) + &format!("\n{errors} errors, {warnings} warnings\n");
    let shown = CommandOutput { data: json!({ "findings": findings }), text };
    if errors == 0 {
        return Ok(shown);
    }
    let fix = findings.iter().find(|finding| finding.severity == Severity::Error && !finding.fix.is_empty());
    let hint = fix.map_or("see the findings", |finding| finding.fix.as_str()).to_owned();
    let message = format!("{errors} checks failed");
    Err(Failure::local(Exit::NotReady, "not_ready", message).hint(hint).with_output(shown))
}

fn socket(path: &Path) -> Finding {
    let shown = path.display();
    let join = "join the group that owns it (paths.socket_group of the service) and log in again";
    match std::fs::metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            bad("socket", format!("{shown} is not a socket"), "remove it, or correct paths.socket")
        }
        Ok(_) => match nix::unistd::access(path, nix::unistd::AccessFlags::W_OK) {
            Ok(()) => good("socket", format!("{shown} exists and you may connect")),
            Err(_) => bad("socket", format!("{shown} exists, but you may not connect"), join),
        },
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            bad("socket", format!("you may not enter the folder of {shown}"), join)
        }
        Err(error) => {
            let fix =
                "start the service: systemctl start controlplane, on FreeBSD service controlplane start";
            bad("socket", format!("{shown}: {error}"), fix)
        }
    }
}

/// What the service says of you, and of itself.
async fn service(remote: &Remote, findings: &mut Vec<Finding>) {
    let client = remote.client();
    match client.get::<Value>("/v1/whoami").await {
        Ok(me) => {
            let scopes: Vec<&str> =
                me["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let name = me["name"].as_str().or(me["caller"].as_str()).unwrap_or("you");
            let tenant = me["tenant"].as_str().unwrap_or_default();
            findings.push(good("login", format!("{name} in tenant {tenant}: {}", scopes.join(", "))));
        }
        Err(error) => {
            let failure = Failure::from(error);
            findings.push(bad("login", failure.detail().message.clone(), &failure.detail().hint));
            return;
        }
    }
    match client.get::<Value>("/v1/status").await {
        Ok(status) => findings.extend(judge(&status)),
        Err(ClientError::Api(error)) if error.code == "forbidden" => {
            let message = "the state of the service is shown only with the scope admin";
            findings.push(warn("service", message, "run browserctl doctor as root"));
        }
        Err(error) => {
            let failure = Failure::from(error);
            findings.push(bad("service", failure.detail().message.clone(), &failure.detail().hint));
        }
    }
}

/// What the service's state means.
fn judge(status: &Value) -> Vec<Finding> {
    let (here, there) = (env!("CARGO_PKG_VERSION"), status["version"].as_str().unwrap_or_default());
    let mut findings = vec![match here == there {
        true => good("version", format!("controlplane {there} answers")),
        false => warn(
            "version",
            format!("the service is {there}, browserctl is {here}"),
            "install both of the same version",
        ),
    }];
    if let Some(started) = status["started_at"].as_str() {
        findings.extend(clock(started));
    }
    for (part, state) in status["checks"].as_object().into_iter().flatten() {
        let state = state.as_str().unwrap_or_default();
        findings.push(match state {
            "ok" => good(part, "ok"),
            problem => bad(part, problem, fix(part)),
        });
    }
    findings
}

/// What to do about a part that the service needs.
fn fix(part: &str) -> &'static str {
    match part {
        "store" => {
            "check that the database runs (store.url), and that its disk is neither full nor read-only"
        }
        "audit" => "check the database and its disk: nothing is done until the audit log can be written",
        "hostd" => "start hostd, and run hostctl doctor",
        "recordings" => "free space in recording.folder, or raise recording.quota_bytes",
        _ => "the log of the service says more",
    }
}

/// A clock that is behind the service's start makes deadlines and the audit log wrong.
fn clock(started: &str) -> Option<Finding> {
    let started = humantime::parse_rfc3339(started).ok()?;
    let behind =
        started.duration_since(std::time::SystemTime::now()).ok().filter(|behind| behind.as_secs() > 1);
    Some(match behind {
        None => good("clock", "the clock is after the start of the service"),
        Some(behind) => warn(
            "clock",
            format!("the service started {} s in the future of this clock", behind.as_secs()),
            "let NTP set the clocks of both machines",
        ),
    })
}

/// One line for each check, followed by what to do.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_that_fails_says_what_to_do() {
        let status = json!({
            "version": "0.0.0", "started_at": "2999-01-01T00:00:00Z",
            "checks": {"audit": "ok", "hostd": "hostd does not answer", "new": "broken"},
        });
        let findings = judge(&status);
        let of = |check: &str| findings.iter().find(|finding| finding.check == check).expect("a finding");
        assert_eq!(of("version").severity, Severity::Warning);
        assert_eq!(of("clock").severity, Severity::Warning);
        assert_eq!((of("audit").severity, of("audit").fix.as_str()), (Severity::Ok, ""));
        assert_eq!(of("hostd").severity, Severity::Error);
        assert!(of("hostd").fix.contains("hostctl doctor"));
        for finding in &findings {
            assert_eq!(finding.severity == Severity::Ok, finding.fix.is_empty(), "{finding:?}");
        }
    }
}
