//! Lines, rotation, torn lines, unsafe paths, and what happens while nothing can be written.

use super::*;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn caller() -> Actor {
    Actor::Peer { uid: 7, pid: Some(9) }
}

fn outcome() -> Outcome {
    Outcome { result: "ok".into(), name: Some("bt001".into()), error: None, seconds: 0.5 }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'), "{text:?}");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or(Value::String(line.to_owned()))).collect()
}

/// From now on the log cannot be written: its file is gone and something else has its name.
fn break_log(path: &Path) {
    fs::remove_file(path).unwrap();
    fs::create_dir(path).unwrap();
}

fn mend_log(path: &Path) {
    fs::remove_dir(path).unwrap();
}

#[test]
fn lines_are_json_and_survive_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = Audit::open(&path).unwrap();
    let call = audit.before(&caller(), Method::Create, &json!({"request_id": "a"})).unwrap();
    fs::rename(&path, dir.path().join("audit.log.0")).unwrap();
    audit.reopen().unwrap();
    audit.after(call, &caller(), Method::Create, &outcome()).unwrap();

    let (old, new) = (lines(&dir.path().join("audit.log.0")).remove(0), lines(&path).remove(0));
    assert_eq!(
        (&old["phase"], &old["call"], &old["request"]["request_id"]),
        (&"before".into(), &1.into(), &"a".into())
    );
    assert_eq!((&new["phase"], &new["call"], &new["result"]), (&"after".into(), &1.into(), &"ok".into()));
    assert_eq!(old["actor"]["peer"]["uid"], 7);
}

#[test]
fn a_torn_line_does_not_join_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    // Also a file that a rotation put there.
    for round in 0..2 {
        fs::write(&path, "{\"torn\":").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let audit = match round {
            0 => Audit::open(&path).unwrap(),
            _ => {
                let other = dir.path().join("other.log");
                fs::rename(&path, &other).unwrap();
                let audit = Audit::open(&path).unwrap();
                fs::rename(&other, &path).unwrap();
                audit.reopen().unwrap();
                audit
            }
        };
        audit.before(&caller(), Method::Create, &json!({})).unwrap();
        let found = lines(&path);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((&found[0], &found[1]["phase"]), (&json!("{\"torn\":"), &json!("before")));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_partly_written_line_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let mut file = LogFile::open(&path).unwrap();
    file.append(b"first\n").unwrap();
    file.write_partly(b"sec").unwrap_err();
    file.append(b"third\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "first\nthird\n");
}

#[test]
fn an_unsafe_path_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let target = dir.path().join("target");
    fs::write(&target, "").unwrap();
    symlink(&target, &path).unwrap();
    let refused = |what: &str| {
        let error = Audit::open(&path).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused("symbolic link");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    refused("written by others");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    refused("written by others");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let below = dir.path().join("open/log/audit.log");
    fs::create_dir_all(below.parent().unwrap()).unwrap();
    fs::set_permissions(dir.path().join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let error = Audit::open(&below).unwrap_err().to_string();
    assert!(error.contains("open can be written by others"), "on the way to it: {error}");
    Audit::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("regular file");
    assert_eq!(fs::read_to_string(&target).unwrap(), "", "nothing was written through the link");
}

#[test]
fn a_log_that_lost_its_file_or_folder_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("log");
    let path = folder.join("audit.log");
    let audit = Audit::open(&path).unwrap();
    audit.before(&caller(), Method::Create, &json!({})).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    audit.before(&caller(), Method::Create, &json!({})).unwrap();
    assert_eq!(lines(&path).len(), 1);
}

#[test]
fn a_removal_is_not_kept_back_and_its_lines_are_written_later_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = Audit::open(&path).unwrap();
    audit.before(&caller(), Method::Create, &json!({})).unwrap();
    break_log(&path);
    assert!(audit.before(&caller(), Method::Create, &json!({})).is_err(), "a create is refused");
    let (call, written) = audit.before_removal(&caller(), Method::Destroy, &json!({"name": "bt001"}));
    assert!(written.is_err());
    assert!(audit.after(call, &caller(), Method::Destroy, &outcome()).is_err());
    assert_eq!(audit.waiting(), (2, 0));
    assert!(audit.flush().is_err());
    assert!(audit.problem().is_some());
    mend_log(&path);
    // The next line of anything comes after those that wait.
    audit.before(&caller(), Method::Reap, &json!({})).unwrap();
    let found: Vec<_> =
        lines(&path).iter().map(|line| (line["call"].clone(), line["phase"].clone())).collect();
    let expected = [
        (json!(3), json!("before")),
        (json!(3), json!("after")),
        (Value::Null, json!("resumed")),
        (json!(4), json!("before")),
    ];
    assert_eq!(found, expected);
    assert_eq!(audit.waiting(), (0, 0));
}

#[test]
fn lines_that_do_not_fit_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = Audit::open(&path).unwrap();
    break_log(&path);
    let request = json!({ "padding": "x".repeat(300_000) });
    for _ in 0..6 {
        let _ = audit.before_removal(&caller(), Method::Destroy, &request);
    }
    let (waiting, lost) = audit.waiting();
    assert!(waiting > 0 && lost > 0 && waiting as u64 + lost == 6, "{waiting} {lost}");
    mend_log(&path);
    audit.flush().unwrap();
    let found = lines(&path);
    assert_eq!(found.len(), waiting + 1);
    let last = found.last().unwrap();
    assert_eq!((&last["phase"], &last["lost"]), (&json!("resumed"), &json!(lost)));
}

#[test]
fn refused_calls_are_summarised() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = Audit::open(&path).unwrap();
    for pid in 0..5000 {
        audit.refused(&Actor::Peer { uid: 7, pid: Some(pid) }, Method::Destroy, "denied");
    }
    for uid in 0..5000 {
        audit.refused(&Actor::Peer { uid, pid: None }, Method::Reap, "rate_limited");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    audit.flush().unwrap();
    audit.flush().unwrap();
    let found = lines(&path);
    assert_eq!(found.len(), MOST_REFUSALS + 1);
    let denied = found.iter().find(|line| line["result"] == "denied").unwrap();
    assert_eq!((&denied["phase"], &denied["count"]), (&json!("refused"), &json!(5000)));
    assert_eq!(denied["actor"]["peer"]["uid"], 7);
    let total: u64 = found.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    assert_eq!(total, 10_000);
}

#[test]
fn a_flush_notices_that_the_log_can_be_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = Audit::open(&path).unwrap();
    break_log(&path);
    audit.before(&caller(), Method::Create, &json!({})).unwrap_err();
    assert!(audit.flush().is_err(), "nothing waits, and the log is still broken");
    mend_log(&path);
    audit.flush().unwrap();
    assert_eq!(audit.problem(), None);
    audit.flush().unwrap();
    let found = lines(&path);
    assert_eq!((found.len(), &found[0]["phase"], &found[0]["lost"]), (1, &json!("resumed"), &json!(0)));
}
