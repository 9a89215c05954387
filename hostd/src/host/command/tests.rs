use super::*;
use crate::host::{HostError, HostErrorKind, chain};

fn sh() -> Tool {
    Tools::new(&["/bin".into()]).find("sh")
}

fn script(text: &str) -> Command {
    sh().with(["-c", text])
}

/// Whether a process exists and is no zombie.
fn lives(pid: i32) -> bool {
    let out =
        std::process::Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    let state = String::from_utf8(out.stdout).unwrap();
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}

/// A script that writes its own PID and that of a child of its group, and waits.
fn family(folder: &Path) -> (Command, impl Fn() -> Option<[i32; 2]> + use<>) {
    let file = folder.join("pids");
    let text = format!(
        "sleep 1000 & echo $$ $! > {0}.new; mv {0}.new {0}; trap '' TERM; wait; sleep 1000",
        file.display()
    );
    let pids = move || {
        let text = std::fs::read_to_string(&file).ok()?;
        let (one, two) = text.trim().split_once(' ')?;
        Some([one.parse().unwrap(), two.parse().unwrap()])
    };
    (script(&text), pids)
}

#[tokio::test]
async fn exit_code_and_both_outputs_are_reported() {
    let outcome = script("echo out; echo err >&2; exit 3").run().await.unwrap();
    assert_eq!(outcome.ended, Ended::Code(3));
    assert!(!outcome.success());
    assert_eq!(outcome.text().unwrap(), "out\n");
    assert_eq!(outcome.complaint(), "err");
    assert!(outcome.command.starts_with("sh -c"), "{}", outcome.command);
    assert!(script("true").run().await.unwrap().success());
    assert_eq!(script("exit 1").run().await.unwrap().complaint(), "exit code 1 and no error message");
}

#[tokio::test]
async fn an_end_by_a_signal_is_reported() {
    assert_eq!(script("kill -9 $$").run().await.unwrap().ended, Ended::Signal(9));
}

#[tokio::test]
async fn the_environment_is_not_inherited() {
    let outcome = script("env | sort; pwd; cat; ps -o pgid= -p $$ | tr -d ' '; echo $$").run().await.unwrap();
    let text = outcome.text().unwrap();
    let lines: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("PWD=") && !line.starts_with("_=")).collect();
    let [home, locale, path, folder, group, pid] = lines.as_slice() else { panic!("{text}") };
    assert_eq!([*home, *locale, *path, *folder], ["HOME=/", "LC_ALL=C", "PATH=/bin", "/"]);
    assert_eq!(group, pid, "a group of its own");
}

#[tokio::test]
async fn arguments_are_not_interpreted_by_a_shell() {
    let outcome =
        sh().with(["-c", "printf '%s\\n' \"$@\"", "sh", "a b", "$HOME", "", "*;`id`"]).run().await.unwrap();
    assert_eq!(outcome.text().unwrap(), "a b\n$HOME\n\n*;`id`\n");
    assert_eq!(sh().with(["a b", "", "c"]).to_string(), r#"sh "a b" "" c"#);
}

#[tokio::test]
async fn a_deadline_kills_the_whole_group() {
    let folder = tempfile::tempdir().unwrap();
    let (command, pids) = family(folder.path());
    // Long enough for the script to have written its PIDs on a loaded machine; it never ends by itself.
    let error = command.within(Duration::from_secs(5)).run().await.unwrap_err();
    assert!(matches!(error.problem, Problem::Deadline(limit) if limit == Duration::from_secs(5)));
    assert_eq!(HostError::from(error).kind, HostErrorKind::Timeout);
    let pids = pids().expect("the script ran");
    until("the group is gone", || pids.iter().all(|pid| !lives(*pid))).await;
}

#[tokio::test]
async fn a_dropped_run_kills_the_whole_group() {
    let folder = tempfile::tempdir().unwrap();
    let (command, pids) = family(folder.path());
    let run = tokio::spawn(command.run());
    until("the script runs", || pids().is_some()).await;
    let pids = pids().unwrap();
    assert!(pids.iter().all(|pid| lives(*pid)));
    run.abort();
    until("the group is gone", || pids.iter().all(|pid| !lives(*pid))).await;
}

#[tokio::test]
async fn a_daemon_that_keeps_the_pipes_open_survives_and_is_not_awaited() {
    let outcome = script("sleep 1000 & echo $!").run().await.unwrap();
    let daemon: i32 = outcome.text().unwrap().trim().parse().unwrap();
    assert!(lives(daemon), "a daemon that the command started survives it");
    nix::sys::signal::kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn output_is_bounded() {
    let exactly = script("head -c 70000 /dev/zero").at_most(70000);
    assert_eq!(exactly.run().await.unwrap().stdout.len(), 70000);
    for text in ["head -c 70001 /dev/zero", "head -c 70001 /dev/zero >&2", "yes"] {
        let error = script(text).at_most(70000).run().await.unwrap_err();
        assert!(matches!(error.problem, Problem::TooMuch(70000)), "{text}: {error:?}");
    }
}

#[tokio::test]
async fn output_that_is_not_utf8_is_an_error() {
    let outcome = script("printf '\\377'; printf '\\377' >&2").run().await.unwrap();
    assert!(matches!(outcome.text().unwrap_err().problem, Problem::NoText));
    assert_eq!(outcome.complaint(), "\u{fffd}");
}

#[tokio::test]
async fn a_tool_is_found_in_the_given_folders_only() {
    let folder = tempfile::tempdir().unwrap();
    let tools = Tools::new(&[folder.path().into()]);
    let missing = tools.find("sh");
    assert!(matches!(missing.path(), Err(ToolError::Missing { .. })));
    let error = missing.with(["-c", "true"]).run().await.unwrap_err();
    let error = HostError::from(error);
    assert_eq!(error.kind, HostErrorKind::NotReady);
    assert!(chain(&error).contains(&folder.path().display().to_string()), "{error:?}");
    assert!(error.hint.contains("host.tool_folders"), "{}", error.hint);

    std::os::unix::fs::symlink("/bin/sh", folder.path().join("sh")).unwrap();
    let found = tools.find("sh");
    assert_eq!(found.path().unwrap(), Path::new("/bin/sh").canonicalize().unwrap());
    assert!(found.with(["-c", "true"]).run().await.unwrap().success());
}

#[tokio::test]
async fn a_tool_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sh");
    std::fs::copy("/bin/sh", &file).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o777)).unwrap();
    // The first folder decides: an untrusted tool is not replaced by one of the same name in a later folder.
    let tool = Tools::new(&[folder.path().into(), "/bin".into()]).find("sh");
    assert!(matches!(tool.path(), Err(ToolError::Untrusted { .. })), "{tool:?}");
    let error = HostError::from(tool.with(["-c", "true"]).run().await.unwrap_err());
    assert_eq!(error.kind, HostErrorKind::NotReady);
}

#[tokio::test]
async fn runs_are_counted() {
    let tool = Tools::new(&["/bin".into()]).find("true");
    let before = runs_of("true");
    tool.with([""; 0]).run().await.unwrap();
    tool.with([""; 0]).run().await.unwrap();
    assert_eq!(runs_of("true") - before, 2);
}
