//! `hostctl` against the real daemon with the fake host.

#![allow(clippy::unwrap_used)]

#[path = "../../hostd/tests/common/mod.rs"]
mod common;

use common::wire::{Wire, wait_for};
use common::{Daemon, Lab};
use hostd::host::Part;
use hostd::slot::Slot;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A daemon that is ready.
fn started(slots: u16, more: &str) -> (Lab, Daemon) {
    let lab = Lab::new(slots, more);
    let daemon = start(&lab);
    (lab, daemon)
}

/// Settings in addition to the lab's file.
fn drop_in(lab: &Lab, text: &str) {
    let folder = lab.path().join("conf.d");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("test.toml"), text).unwrap();
}

fn start(lab: &Lab) -> Daemon {
    let mut daemon = lab.start();
    daemon.wait_ready().unwrap_or_else(|error| panic!("{error}\n{}", lab.log_tail()));
    // Creates are refused before the first inspection of the host; a dry run triggers it. It is refused as well if the
    // test is about a caller without rights.
    let _ = Wire::connect(&lab.socket()).unwrap().call("browser-clone-reap", json!({"dry_run": true}));
    daemon
}

fn command(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hostctl"));
    command.args(args).env_clear().env("HOSTD_SOCKET", socket).stdin(Stdio::null());
    command
}

/// The result of a run: exit code, standard output, standard error.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    fn of(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// The only output line, which must have the documented JSON shape.
    fn json(&self) -> Value {
        assert_eq!(self.err, "", "{self:?}");
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        let shape: Value = serde_json::from_str(&self.out).unwrap();
        assert_eq!(shape["success"], self.code == 0, "{self:?}");
        assert_eq!(shape.get("error").is_none(), self.code == 0, "{self:?}");
        if self.code != 0 {
            let error = &shape["error"];
            assert!(error["code"].is_string() && error["message"].is_string(), "{self:?}");
            assert!(error["hint"].is_string() && error["retryable"].is_boolean(), "{self:?}");
        }
        shape
    }
}

fn at(socket: &Path, args: &[&str]) -> Ran {
    Ran::of(command(socket, args).output().unwrap())
}

fn hostctl(lab: &Lab, args: &[&str]) -> Ran {
    at(&lab.socket(), args)
}

/// Run it and expect success.
fn good(lab: &Lab, args: &[&str]) -> Ran {
    let ran = hostctl(lab, args);
    assert_eq!(ran.code, 0, "{args:?}: {ran:?}\n{}", lab.log_tail());
    ran
}

/// The `data` of a JSON run.
fn data(lab: &Lab, args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    good(lab, &args).json()["data"].take()
}

/// Run it with `--json` and expect this exit code and error code.
fn refused(socket: &Path, args: &[&str], exit: i32, code: &str) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let ran = at(socket, &args);
    assert_eq!(ran.code, exit, "{args:?}: {ran:?}");
    let mut shape = ran.json();
    assert_eq!(shape["error"]["code"], code, "{args:?}: {shape}");
    shape["error"].take()
}

/// Run it on a pseudo terminal; returns its output.
fn on_terminal(socket: &Path, args: &[&str], env: &[(&str, &str)]) -> String {
    let pty = nix::pty::openpty(None, None).unwrap();
    let side = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    let mut command = command(socket, args);
    command
        .envs(env.iter().copied())
        .stdin(side(&pty.slave))
        .stdout(side(&pty.slave))
        .stderr(side(&pty.slave));
    let mut child = command.spawn().unwrap();
    // The reader sees the end when all descriptors of the other side are closed.
    drop((command, pty.slave));
    let mut text = Vec::new();
    let mut terminal = std::fs::File::from(pty.master);
    let mut chunk = [0; 4096];
    // Linux ends with EIO, FreeBSD with an empty read.
    while let Ok(length @ 1..) = terminal.read(&mut chunk) {
        text.extend_from_slice(&chunk[..length]);
    }
    let status = child.wait().unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(status.success(), "{args:?}: {status}: {text}");
    text
}

const ESCAPE: char = '\x1b';

#[test]
fn a_clone_from_create_to_destroy_in_words() {
    let (lab, _daemon) = started(3, "");
    assert_eq!(good(&lab, &["ls"]).out, "no clones\n");

    let made = good(&lab, &["create", "--tenant", "acme", "--deadline", "30m"]);
    for part in ["name       browsertask001\n", "state      ready\n", "address    10.87.64.16\n"] {
        assert!(made.out.contains(part), "{part:?} in {made:?}");
    }
    assert!(made.out.contains("deadline   in 29m ") || made.out.contains("deadline   in 30m "), "{made:?}");
    let table = made.out.split("\n\n").nth(1).unwrap();
    let stages: Vec<&str> = table.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(stages, ["STAGE", "storage", "limits", "network", "egress", "jail", "service", "total"]);
    // Piped: a plain line for every step, and none of a terminal's tricks.
    let steps: Vec<&str> = made.err.lines().collect();
    assert_eq!(steps.len(), 6, "{made:?}");
    assert!(steps[0].starts_with("browsertask001  storage ") && steps[0].ends_with(" s  done"), "{made:?}");
    assert!(!made.out.contains(ESCAPE) && !made.err.contains(ESCAPE) && !made.err.contains('\r'));

    let list = good(&lab, &["ls"]).out;
    let lines: Vec<Vec<&str>> = list.lines().map(|line| line.split("  ").collect()).collect();
    let cells: Vec<Vec<&str>> = lines
        .iter()
        .map(|cells| cells.iter().map(|c| c.trim()).filter(|c| !c.is_empty()).collect())
        .collect();
    assert_eq!(cells[0], ["NAME", "STATE", "AGE", "LEFT", "ADDRESS", "OWNER", "TENANT"]);
    let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    assert_eq!(cells[1][..2], ["browsertask001", "ready"], "{list}");
    assert_eq!(cells[1][4..], ["10.87.64.16", me.as_str(), "acme"], "{list}");
    let id = data(&lab, &["ls"])["clones"][0]["clone_id"].as_str().unwrap().to_owned();
    assert!(good(&lab, &["ls", "--ids"]).out.contains(&id));
    assert_eq!(good(&lab, &["ls", "--tenant", "other"]).out, "no clones\n");

    let status = good(&lab, &["status"]).out;
    assert!(status.contains("clones      1 ready (at most 3)\n"), "{status}");
    assert!(status.contains("egress      ok\n"), "{status}");
    let metrics = good(&lab, &["metrics"]).out;
    assert!(metrics.contains("hostd_clones{state=\"ready\"} 1\n"), "{metrics}");
    let called = good(&lab, &["call", "browser-clone-list", "{\"tenant\":\"acme\"}"]).out;
    assert_eq!(serde_json::from_str::<Value>(&called).unwrap()["clones"][0]["clone_id"], id.as_str());

    let gone = good(&lab, &["destroy", "browsertask001"]);
    assert!(gone.out.starts_with("browsertask001 is gone\n"), "{gone:?}");
    assert!(gone.err.starts_with(&format!("browsertask001 is clone {id} now (ready)\n")), "{gone:?}");
    let again = good(&lab, &["destroy", "browsertask001", &id]);
    assert_eq!(again.out, "browsertask001 was already gone\n");
}

#[test]
fn every_command_speaks_json() {
    let (lab, _daemon) = started(3, "");
    let made = data(&lab, &["create", "--request-id", "task-1", "--memory", "256M", "--cpu", "50"]);
    assert_eq!((&made["renewed"], &made["clone"]["state"]), (&false.into(), &"ready".into()));
    assert_eq!(made["clone"]["limits"]["memory_bytes"], 256 << 20);
    assert_eq!(made["clone"]["limits"]["cpu_percent"], 50);
    let renewed = data(&lab, &["create", "--request-id", "task-1", "--memory", "256M", "--cpu", "50"]);
    assert_eq!(
        (&renewed["renewed"], &renewed["clone"]["clone_id"]),
        (&true.into(), &made["clone"]["clone_id"])
    );

    assert_eq!(data(&lab, &["ls"])["clones"].as_array().unwrap().len(), 1);
    assert_eq!(data(&lab, &["status"])["clones"]["ready"], 1);
    assert!(data(&lab, &["metrics"])["metrics"].as_str().unwrap().contains("hostd_operations_total"));
    assert_eq!(data(&lab, &["call", "host-status"])["slots"], 3);
    let methods = data(&lab, &["call", "rpc.discover"]);
    assert_eq!(methods["methods"].as_array().unwrap().len(), hostd::api::Method::ALL.len());
    let plan = data(&lab, &["reap", "--dry-run"]);
    assert_eq!((&plan["dry_run"], &plan["kept"][0]["name"]), (&true.into(), &"browsertask001".into()));
    let config = lab.path().join("hostd.toml");
    let findings = data(&lab, &["doctor", "--config", config.to_str().unwrap()]);
    assert!(findings["findings"].as_array().unwrap().len() >= 3, "{findings}");
    assert!(data(&lab, &["completions", "bash"])["completions"].as_str().unwrap().contains("force-unmount"));
    assert!(data(&lab, &["man"])["man"].as_str().unwrap().contains("hostctl"));
    let gone = data(&lab, &["destroy", "browsertask001"]);
    assert_eq!((&gone["already_gone"], &gone["clone_id"]), (&false.into(), &made["clone"]["clone_id"]));
    assert_eq!(gone["complete"], true);
    assert_eq!(
        data(&lab, &["destroy", "--no-wait", "browsertask001", gone["clone_id"].as_str().unwrap()])["already_gone"],
        true
    );
}

#[test]
fn parameters_may_come_from_standard_input() {
    let (lab, _daemon) = started(2, "");
    let mut child = command(&lab.socket(), &["call", "browser-clone-create", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{\"request_id\": \"from-stdin\"}\n").unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.json()["data"]["clone"]["request_id"], "from-stdin");
}

#[test]
fn exit_codes_name_the_kind_of_failure() {
    let lab = Lab::new(3, "");
    let socket = lab.socket();
    drop_in(&lab, "[server]\nmax_clones = 1\n");
    let daemon = start(&lab);
    let id = data(&lab, &["create"])["clone"]["clone_id"].as_str().unwrap().to_owned();

    let busy = refused(&socket, &["create"], 5, "host_full");
    assert_eq!(busy["retryable"], true);
    refused(&socket, &["destroy", "browsertask002"], 3, "not_found");
    refused(&socket, &["destroy", "browsertask001", &"0".repeat(32)], 3, "wrong_clone");
    let failed = refused(&socket, &["force-unmount", "browsertask001", &id], 1, "not_destroying");
    assert_eq!(failed["name"], "browsertask001");
    refused(&socket, &["call", "browser-clone-pause"], 2, "method_not_found");
    refused(&socket, &["call", "host-status", "{\"cheks\":true}"], 2, "invalid_params");
    refused(&socket, &["call", "host-status", "{"], 2, "usage");
    let small = refused(&socket, &["create", "--disk", "1M"], 2, "invalid_params");
    assert_eq!(small["message"], "limits.disk_bytes: 1048576 is too small: at least 16777216");
    let large = refused(&socket, &["create", "--cpu", "201"], 5, "limit_exceeded");
    assert_eq!(large["message"], "limits.cpu_percent: 201 is above clone_limits.cpu_percent, which is 200");
    refused(&socket, &["create", "--deadline", "2days"], 5, "limit_exceeded");
    refused(&socket, &["call", "host-status", "[]"], 2, "usage");
    good(&lab, &["destroy", "browsertask001", &id]);
    refused(&socket, &["create", "--snapshot", "nosuch"], 7, "template_unusable");

    // As text the same on standard error, with the hint.
    let words = hostctl(&lab, &["destroy", "browsertask002"]);
    assert_eq!((words.code, words.out.as_str()), (3, ""));
    assert_eq!(words.err, "error: there is no clone browsertask002\nhint: hostctl ls lists the clones\n");

    // A caller without rights.
    drop_in(&lab, "[[access]]\nusers = [\"64999\"]\noperator = true\n");
    assert!(daemon.stop().success());
    let daemon = start(&lab);
    refused(&socket, &["ls"], 4, "denied");
    assert!(daemon.stop().success());

    let down = refused(&socket, &["ls"], 7, "unreachable");
    assert_eq!(down["retryable"], true);
    assert!(down["hint"].as_str().unwrap().contains("is hostd running"), "{down}");
}

#[test]
fn usage_errors_exit_with_2() {
    let no_daemon = Path::new("/nonexistent/hostd.sock");
    for args in [
        &["create", "--deadline", "soon"][..],
        &["create", "--memory", "lots"],
        &["create", "--name", "../x"],
        &["destroy"],
        &["destroy", "browsertask001", "short"],
        &["explode"],
        &["--no-such-flag"],
        &["ls", "--timeout", "0"],
        &["completions", "tcl"],
    ] {
        let ran = at(no_daemon, args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}: {ran:?}");
        assert!(ran.err.starts_with("error: "), "{args:?}: {ran:?}");
        refused(no_daemon, args, 2, "usage");
    }
    let bare = at(no_daemon, &[]);
    assert_eq!(bare.code, 2, "{bare:?}");
    assert!(bare.err.contains("Usage: hostctl"), "{bare:?}");
}

#[test]
fn a_timeout_exits_with_6_also_if_the_server_never_answers() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("sock");
    let _silent = UnixListener::bind(&socket).unwrap();
    let error = refused(&socket, &["ls", "--timeout", "100ms"], 6, "timeout");
    assert!(error["message"].as_str().unwrap().contains("100ms"), "{error}");
}

#[test]
fn a_create_that_takes_too_long_can_be_joined() {
    let lab = Lab::new(2, "");
    lab.set_latency(100);
    let _daemon = start(&lab);
    let error = refused(&lab.socket(), &["create", "--timeout", "50ms"], 6, "timeout");
    let hint = error["hint"].as_str().unwrap();
    let request = hint.split("--request-id ").nth(1).unwrap().split(' ').next().unwrap();
    let joined = data(&lab, &["create", "--request-id", request]);
    assert_eq!(
        (&joined["clone"]["name"], &joined["clone"]["request_id"]),
        (&"browsertask001".into(), &request.into())
    );
}

#[test]
fn a_server_that_is_not_hostd_is_a_protocol_error() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        let _ = stream.read(&mut [0; 1024]);
    });
    refused(&socket, &["status"], 1, "protocol");
    server.join().unwrap();
}

#[test]
fn a_dry_run_explains_every_decision() {
    let lab = Lab::new(5, "");
    // No timer: unfinished work stays until this test continues it.
    drop_in(&lab, "[lifecycle]\nreconcile_interval_ms = 3600000\n");
    assert!(lab.world().plant_foreign(Slot::new(4).unwrap(), Part::Storage));
    let _daemon = start(&lab);
    for _ in 0..2 {
        good(&lab, &["create"]);
    }
    lab.world().stick_mount(Slot::new(2).unwrap(), false);
    let ran = hostctl(&lab, &["destroy", "browsertask002"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("failed\n") && ran.err.contains("\nerror: "), "{ran:?}");

    let state = |name: &str| {
        let clones = data(&lab, &["ls"]);
        let clones = clones["clones"].as_array().unwrap().clone();
        clones.iter().find(|clone| clone["name"] == name).map(|clone| clone["state"].clone())
    };
    assert_eq!(state("browsertask002"), Some("incomplete".into()));
    assert_eq!(state("browsertask004"), Some("foreign".into()));

    let plan = good(&lab, &["reap", "--dry-run"]).out;
    let line = |name: &str| {
        let mut lines = plan.lines().filter(|line| line.contains(name));
        lines.next().unwrap_or_else(|| panic!("{name} in {plan}")).to_owned()
    };
    assert!(plan.starts_with("DECISION"), "{plan}");
    assert!(line("browsertask001").starts_with("keep "), "{plan}");
    assert!(line("browsertask001").contains("within its deadline"), "{plan}");
    assert!(line("browsertask002").starts_with("would reap "), "{plan}");
    assert!(line("browsertask002").contains("destroy_unfinished"), "{plan}");
    assert!(line("browsertask004").starts_with("keep "), "{plan}");
    let taken = plan.lines().filter(|line| line.starts_with("would reap ")).count();
    let last = format!("Dry run, nothing was changed: {taken} would be reaped, 2 kept.\n");
    assert!(plan.ends_with(&last), "{plan}");
    assert_eq!(state("browsertask002"), Some("incomplete".into()), "a dry run changes nothing");

    // The real run fails on the stuck mount, names it, and still prints its result.
    let ran = hostctl(&lab, &["reap", "browsertask002", "--json"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let shape = ran.json();
    assert_eq!(
        (&shape["error"]["code"], &shape["data"]["failed"][0]["name"]),
        (&"incomplete".into(), &"browsertask002".into())
    );

    let ran = hostctl(&lab, &["force-unmount", "browsertask002"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.out.contains("left       "), "{ran:?}");
    let refusal = refused(&lab.socket(), &["destroy", "browsertask004"], 4, "denied");
    assert!(refusal["message"].as_str().unwrap().contains("never changes it"), "{refusal}");

    lab.world().unstick_mount(Slot::new(2).unwrap());
    good(&lab, &["reap", "browsertask002"]);
    assert_ne!(state("browsertask002"), Some("incomplete".into()));
    assert_eq!(state("browsertask001"), Some("ready".into()));
}

#[test]
fn ls_all_shows_quarantined_clones() {
    let lab = Lab::new(2, "");
    drop_in(&lab, "[lifecycle]\nquarantine_seconds = 3600\n");
    let _daemon = start(&lab);
    good(&lab, &["create"]);
    good(&lab, &["destroy", "browsertask001"]);
    assert_eq!(good(&lab, &["ls"]).out, "no clones\n");
    let all = good(&lab, &["ls", "--all"]).out;
    assert!(all.lines().nth(1).unwrap().starts_with("browsertask001  quarantined "), "{all}");
    assert_eq!(data(&lab, &["ls"])["clones"], Value::Array(vec![]));
    assert_eq!(data(&lab, &["ls", "-a"])["clones"][0]["state"], "quarantined");
}

#[test]
fn a_terminal_gets_live_steps_and_colours_unless_no_color_is_set() {
    let (lab, _daemon) = started(4, "");
    let made = on_terminal(&lab.socket(), &["create"], &[("TERM", "xterm")]);
    assert!(made.contains("\r\x1b[Kbrowsertask001  storage …"), "{made:?}");
    assert!(made.contains("\x1b[32mdone\x1b[0m"), "{made:?}");
    assert!(!made.contains("STAGE"), "the steps were just shown with their times: {made:?}");
    let list = on_terminal(&lab.socket(), &["ls"], &[("TERM", "xterm")]);
    assert!(list.contains("\x1b[32mready\x1b[0m"), "{list:?}");

    let list = on_terminal(&lab.socket(), &["ls"], &[("TERM", "xterm"), ("NO_COLOR", "1")]);
    assert!(!list.contains(ESCAPE), "{list:?}");
    let made = on_terminal(&lab.socket(), &["create"], &[("TERM", "xterm"), ("NO_COLOR", "1")]);
    assert!(made.contains("  done\r\n") && !made.contains("\x1b[3"), "{made:?}");
    let made = on_terminal(&lab.socket(), &["create"], &[("TERM", "dumb")]);
    assert!(!made.contains(ESCAPE), "{made:?}");
    let made = on_terminal(&lab.socket(), &["create", "--json"], &[("TERM", "xterm")]);
    assert!(made.starts_with('{') && !made.contains(ESCAPE) && made.lines().count() == 1, "{made:?}");
}

#[test]
fn the_doctor_works_when_the_daemon_is_down() {
    let (lab, daemon) = started(2, "");
    let config = lab.path().join("hostd.toml");
    let doctor = |more: &[&str]| {
        let args = [&["doctor", "--config", config.to_str().unwrap()], more].concat();
        // Without HOSTD_SOCKET the socket comes from the configuration.
        Ran::of(command(Path::new(""), &args).env_remove("HOSTD_SOCKET").output().unwrap())
    };
    let well = doctor(&[]);
    assert_eq!(well.code, 0, "{well:?}");
    for check in ["ok       config ", "ok       socket ", "ok       daemon ", "ok       egress "] {
        assert!(well.out.contains(check), "{check:?} in {}", well.out);
    }
    assert!(well.out.ends_with("\n0 errors, 0 warnings\n"), "{}", well.out);

    // Errors that the daemon finds count.
    lab.world().lose_rules();
    let ill =
        wait_for(|| Some(doctor(&[])).filter(|ran| ran.code == 7)).expect("the lost rules are an error");
    assert!(ill.out.contains("error    egress"), "{}", ill.out);
    lab.world().restore_rules();

    assert!(daemon.stop().success());
    let down = doctor(&[]);
    assert_eq!(down.code, 7, "{down:?}");
    assert!(down.out.contains("ok       config "), "{}", down.out);
    assert!(down.out.contains("error    socket ") && down.out.contains("to do: start hostd"), "{}", down.out);
    let shape = doctor(&["--json"]).json();
    assert_eq!(shape["error"]["code"], "host_not_ready");
    assert_eq!(shape["data"]["findings"][1]["severity"], "error");

    // A stale socket: the file exists, but no process listens.
    drop(UnixListener::bind(lab.socket()).unwrap());
    let stale = doctor(&[]);
    assert_eq!(stale.code, 7, "{stale:?}");
    assert!(
        stale.out.contains("ok       socket ") && stale.out.contains("error    daemon "),
        "{}",
        stale.out
    );

    std::fs::write(&config, "[pool]\nprefx = \"a\"\n").unwrap();
    let broken = doctor(&[]);
    assert_eq!(broken.code, 7, "{broken:?}");
    assert!(
        broken.out.contains("hostd.toml:2: pool.prefx: unknown key; did you mean pool.prefix?"),
        "{broken:?}"
    );
}

#[test]
fn the_doctor_notices_that_the_group_cannot_connect() {
    if !nix::unistd::geteuid().is_root() {
        // Only root can give the socket to another group. Without a group there is nothing to check.
        assert!(nix::unistd::chown(Path::new("/"), None, Some(1.into())).is_err());
        return;
    }
    let (lab, daemon) = started(2, "");
    let config = lab.path().join("hostd.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let doctor = |group: &str| {
        let group = format!("socket_group = \"{group}\"");
        std::fs::write(&config, text.replace("socket_group = \"\"", &group)).unwrap();
        hostctl(&lab, &["doctor", "--config", config.to_str().unwrap()])
    };
    let other = nix::unistd::Group::from_gid(1.into()).unwrap().expect("group 1").name;
    let closed = doctor(&other);
    assert_eq!(closed.code, 7, "{closed:?}");
    assert!(closed.out.contains(&format!("group {other} may not connect")), "{}", closed.out);
    // Both the folder and the socket count.
    nix::unistd::chown(lab.path(), None, Some(1.into())).unwrap();
    std::fs::set_permissions(lab.path(), PermissionsExt::from_mode(0o750)).unwrap();
    assert_eq!(doctor(&other).code, 7);
    nix::unistd::chown(&lab.socket(), None, Some(1.into())).unwrap();
    let open = doctor(&other);
    assert_eq!(open.code, 0, "{open:?}");
    assert!(open.out.contains(&format!("group {other} may connect")), "{}", open.out);
    let unknown = doctor("no-such-group");
    assert!(unknown.code == 0 && unknown.out.contains("there is no group no-such-group"), "{unknown:?}");
    assert!(daemon.stop().success());
}

#[test]
fn the_doctor_notices_folders_that_others_can_write() {
    let (lab, daemon) = started(2, "");
    let config = lab.path().join("hostd.toml");
    let state = lab.path().join("state");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o777)).unwrap();
    let open = hostctl(&lab, &["doctor", "--config", config.to_str().unwrap()]);
    assert_eq!(open.code, 7, "{open:?}");
    let shown = state.display();
    assert!(
        open.out.contains(&format!("paths.state: is refused: {shown} can be written by others")),
        "{open:?}"
    );
    assert!(open.out.contains(&format!("mode 0777): chmod go-w {shown}")), "{open:?}");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o711)).unwrap();
    assert_eq!(hostctl(&lab, &["doctor", "--config", config.to_str().unwrap()]).code, 0);
    assert!(daemon.stop().success());
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let no_daemon = Path::new("/nonexistent/hostd.sock");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = at(no_daemon, &["completions", shell]);
        assert_eq!(ran.code, 0, "{shell}: {ran:?}");
        assert!(ran.out.contains("force-unmount") && ran.out.contains("dry-run"), "{shell}");
    }
    let page = at(no_daemon, &["man"]);
    assert_eq!(page.code, 0, "{page:?}");
    assert!(page.out.contains(".TH hostctl 1") && page.out.contains("Exit codes"), "{page:?}");

    let folder = tempfile::tempdir().unwrap();
    let ran = at(no_daemon, &["man", "--dir", folder.path().to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let mut pages = vec!["hostctl.1".to_owned()];
    pages.extend(
        hostctl::command().get_subcommands().map(|command| format!("hostctl-{}.1", command.get_name())),
    );
    assert_eq!(pages.len(), 15);
    for page in &pages {
        assert!(ran.out.contains(page), "{page} in {}", ran.out);
        assert!(std::fs::read_to_string(folder.path().join(page)).unwrap().len() > 300, "{page}");
    }
    // Every written file is printed, including those of subcommands of a command.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), ran.out.lines().count());
    let ran = at(no_daemon, &["man", "--dir", "/nonexistent"]);
    assert_eq!(ran.code, 1, "{ran:?}");
}

#[test]
fn every_command_has_help_and_the_examples_in_it_are_valid() {
    let no_daemon = Path::new("/nonexistent/hostd.sock");
    for subcommand in hostctl::command().get_subcommands() {
        let name = subcommand.get_name().to_owned();
        for flag in ["-h", "--help"] {
            let help = at(no_daemon, &[&name, flag]);
            assert_eq!((help.code, help.err.as_str()), (0, ""), "{name}: {help:?}");
            assert!(help.out.contains("Usage: hostctl"), "{name}: {help:?}");
        }
        let after = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
        for example in after.lines().filter_map(|line| line.strip_prefix("  hostctl ")) {
            // Pipes, redirections and quotes belong to the shell.
            let words: Vec<String> = example
                .split([' '])
                .take_while(|word| !["|", ">", "<"].contains(word))
                .map(|word| word.trim_matches('\'').to_owned())
                .collect();
            let words = std::iter::once("hostctl".to_owned()).chain(words);
            let parsed = hostctl::command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
    }
    let version = at(no_daemon, &["--version"]);
    assert_eq!(version.out, format!("hostctl {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let mut child = command(Path::new("/nonexistent"), &["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""));

    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(Path::new("/nonexistent"), &["completions", "zsh"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "output that cannot be written is a failure");
}
