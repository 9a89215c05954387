//! `hostctl doctor`: checks configuration, socket, daemon and host in this order, so it is useful when hostd is down.

use crate::args::DoctorArgs;
use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use hostd::api::{ErrorCode, Finding, Severity, StatusParams, StatusResult};
use hostd::config::Config;
use serde_json::json;
use settings::Settings as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use terminal::text::{Tone, clean};

pub(crate) async fn run(remote: Remote, output: &Output, args: DoctorArgs) -> Result<CommandOutput, Failure> {
    let mut findings = Vec::new();
    let paths = configuration(args.config.as_deref(), &mut findings).map(|config| config.paths);
    // The daemon listens where its configuration says.
    let remote = remote.with_default(paths.as_ref().map(|paths| paths.socket.clone()));
    let socket = socket(remote.path());
    let reachable = socket.severity == Severity::Ok;
    findings.push(socket);
    if let Some(paths) = paths.filter(|paths| reachable && paths.socket == remote.path()) {
        findings.extend(group_access(&paths.socket, &paths.socket_group));
    }
    if reachable {
        daemon(&remote, &mut findings).await;
    }

    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let warnings = findings.iter().filter(|finding| finding.severity == Severity::Warning).count();
    let mut text = lines(output, &findings);
    text.push_str(&format!("\n{errors} errors, {warnings} warnings\n"));
    let shown = CommandOutput { data: json!({ "findings": findings }), text };
    if errors == 0 {
        return Ok(shown);
    }
    let fix = findings.iter().find(|finding| finding.severity == Severity::Error && !finding.fix.is_empty());
    let hint = fix.map_or("see the findings", |finding| finding.fix.as_str()).to_owned();
    let message = format!("{errors} checks failed: this host cannot make clones");
    Err(Failure::of(ErrorCode::HostNotReady, message).hint(hint).with_output(shown))
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
            findings.push(bad("daemon", failure.message().to_owned(), failure.hint_text().to_owned()))
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

/// Check the configuration files only: the daemon's variables and flags are unknown here.
fn configuration(file: Option<&Path>, findings: &mut Vec<Finding>) -> Option<Config> {
    let path = file.map_or_else(Config::default_file, Path::to_owned);
    let shown = path.display();
    let opened = std::fs::File::open(&path);
    if opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
        findings.push(Finding {
            check: "config".into(),
            severity: Severity::Warning,
            message: format!("{shown} is not readable for you and was not checked"),
            fix: "run hostctl doctor as root".into(),
        });
        return None;
    }
    match settings::load::<Config>(file, std::iter::empty(), &[]) {
        Ok(config) => {
            let what = if path.exists() { "is valid" } else { "does not exist: defaults are used" };
            findings.push(good("config", format!("{shown} {what}")));
            let untrusted = config.check_trust().err().into_iter().flat_map(|error| error.problems);
            findings.extend(untrusted.map(|problem| {
                let fix = "run the command at the end of the message, or name another path".to_owned();
                bad("paths", problem.to_string(), fix)
            }));
            Some(config)
        }
        Err(error) => {
            for problem in &error.problems {
                let fix = "correct it and run hostd --check-config".to_owned();
                findings.push(bad("config", problem.to_string(), fix));
            }
            None
        }
    }
}

fn socket(path: &Path) -> Finding {
    let shown = path.display();
    let join = "join the group that owns it (paths.socket_group, usually hostd) and log in again";
    match std::fs::metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            bad("socket", format!("{shown} is not a socket"), "remove it, or correct paths.socket".into())
        }
        Ok(_) => match nix::unistd::access(path, nix::unistd::AccessFlags::W_OK) {
            Ok(()) => good("socket", format!("{shown} exists and you may connect")),
            Err(_) => bad("socket", format!("{shown} exists, but you may not connect"), join.into()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            bad("socket", format!("you may not enter the folder of {shown}"), join.into())
        }
        Err(error) => {
            let fix = "start hostd: systemctl start hostd, on FreeBSD service hostd start";
            bad("socket", format!("{shown}: {error}"), fix.into())
        }
    }
}

/// Whether members of the configured group can connect. The check above only shows that the caller can, and root always
/// can.
fn group_access(socket: &Path, group: &str) -> Option<Finding> {
    if group.is_empty() {
        return None;
    }
    let restart = "restart hostd, which sets group and mode; with systemd, change SocketGroup= in hostd.socket and \
                   the group in tmpfiles.d/hostd.conf too";
    let Ok(Some(found)) = nix::unistd::Group::from_name(group) else {
        return Some(Finding {
            check: "socket-group".into(),
            severity: Severity::Warning,
            message: format!("paths.socket_group: there is no group {group}: only root can connect"),
            fix: format!("groupadd {group}, then restart hostd"),
        });
    };
    let gid = found.gid.as_raw();
    let allows = |path: &Path, for_group: u32, for_others: u32| {
        path.metadata().is_ok_and(|seen| {
            let by_group = seen.gid() == gid && seen.mode() & for_group != 0;
            by_group || seen.mode() & for_others != 0
        })
    };
    let closed = socket.ancestors().skip(1).find(|folder| !allows(folder, 0o010, 0o001));
    let closed = closed.or_else(|| Some(socket).filter(|socket| !allows(socket, 0o020, 0o002)));
    Some(match closed {
        None => good("socket-group", format!("group {group} may connect")),
        Some(path) => {
            let message = format!("group {group} may not connect: {} is closed to it", path.display());
            bad("socket-group", message, restart.into())
        }
    })
}

/// One line for each check, followed by its fix.
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
