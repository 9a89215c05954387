//! `browserctl` against the stand-in of the service.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use support::{KEYS, StandIn, picture};
use tokio::process::Command;

/// The result of a run: exit code, standard output, standard error.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Ran {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// The only output line, which must have the documented JSON shape.
    fn json(&self) -> Value {
        assert_eq!(self.err, "", "{self:?}");
        assert_eq!(self.text().lines().count(), 1, "{self:?}");
        let shape: Value = serde_json::from_str(self.text()).unwrap();
        assert_eq!(shape["success"], self.code == 0, "{self:?}");
        assert_eq!(shape.get("error").is_none(), self.code == 0, "{self:?}");
        shape
    }
}

struct Lab {
    service: StandIn,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Lab {
    async fn new() -> Lab {
        let service = StandIn::default();
        Lab { address: service.start().await, service, folder: tempfile::tempdir().unwrap() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_browserctl"));
        command
            .args(words)
            .env_clear()
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command.env("BROWSERCTL_URL", format!("http://{}", self.address)).env("BROWSERCTL_KEY", KEYS[0]);
        command
    }

    async fn run(&self, words: &[&str]) -> Ran {
        ran(self.command(words)).await
    }

    /// Run it in a session.
    async fn within(&self, session: &str, words: &[&str]) -> Ran {
        let mut command = self.command(words);
        command.env("BROWSERCTL_SESSION", session);
        ran(command).await
    }

    fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.path().join(name)).unwrap()
    }

    async fn open(&self) -> String {
        let opened = self.run(&["open"]).await;
        assert_eq!(opened.code, 0, "{opened:?}");
        opened.text().trim().to_owned()
    }
}

async fn ran(mut command: Command) -> Ran {
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.unwrap().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: output.stdout,
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_from_open_to_close() {
    let lab = Lab::new().await;
    let session = lab.open().await;
    assert!(session.starts_with("ses_"), "{session}");
    let listed = lab.run(&["ls"]).await;
    assert!(listed.text().starts_with("SESSION ID ") && listed.text().contains(&session), "{listed:?}");

    let page = lab.within(&session, &["navigate", "https://example.org/"]).await;
    assert!(page.text().contains("final_url  https://example.org/"), "{page:?}");
    assert!(page.text().contains("title      A\\u{202e}B"), "{page:?}");
    assert_eq!(lab.within(&session, &["click", "@e1"]).await.text(), "done\n");
    assert_eq!(lab.within(&session, &["type", "Ada", "#name", "--timeout", "2s"]).await.code, 0);
    let last = lab.service.calls.lock().unwrap().last().cloned().unwrap();
    assert_eq!(last, ("type".to_owned(), json!({"text": "Ada", "selector": "#name", "timeout_ms": 2000})));
    // A page's escape sequences do not reach the terminal.
    let text = lab.within(&session, &["text"]).await;
    assert!(text.text().starts_with("Hello\n\\u{1b}]0;owned\\u{7}"), "{text:?}");
    let same = lab.within(&session, &["text", "--json"]).await.json();
    assert_eq!(same["data"]["text"], support::PAGE_TEXT);

    let closed = lab.run(&["close", &session, "--json"]).await.json();
    assert_eq!(closed["data"]["close_reason"], "requested");
    let gone = lab.within(&session, &["text"]).await;
    assert_eq!(gone.code, 3, "{gone:?}");
    assert!(gone.err.contains("error: the session was closed") && gone.err.contains("hint: "), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_go_into_files() {
    let lab = Lab::new().await;
    let session = lab.open().await;
    let shot = lab.within(&session, &["screenshot", "-o", "a.png"]).await;
    assert_eq!((shot.code, shot.text()), (0, "a.png\n"), "{shot:?}");
    assert_eq!(lab.file("a.png"), picture());
    let shot = lab.within(&session, &["screenshot"]).await;
    assert_eq!((shot.text(), lab.file("screenshot.png")), ("screenshot.png\n", picture()));
    let piped = lab.within(&session, &["screenshot", "-o", "-"]).await;
    assert_eq!(piped.out, picture());
    let named = lab.within(&session, &["screenshot", "-o", "b.png", "--json"]).await.json();
    assert_eq!(named["data"]["file"], "b.png");
    assert!(named["data"].get("image_base64").is_none());
    let whole = lab.within(&session, &["screenshot", "--json"]).await.json();
    assert_eq!(whole["data"]["image_base64"], support::PICTURE);
    let full = lab.within(&session, &["screenshot", "-o", "missing/a.png"]).await;
    assert_eq!(full.code, 1);
    assert!(full.err.contains("missing/a.png"), "{full:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_the_documented_exit_codes() {
    let lab = Lab::new().await;
    let session = lab.open().await;
    let code = |ran: &Ran| (ran.code, ran.json()["error"]["code"].as_str().unwrap().to_owned());

    let nobody = lab.run(&["text", "--json"]).await;
    assert_eq!(code(&nobody), (2, "usage".into()), "no session is named");
    let unknown = lab.within("ses_00000000000000000000000000000000", &["text", "--json"]).await;
    assert_eq!(code(&unknown), (3, "no_such_session".into()));
    let bad = lab.within(&session, &["click", "--json"]).await;
    assert_eq!(bad.code, 2, "{bad:?}");
    let slow = lab.within(&session, &["click", "#none", "--json"]).await;
    assert_eq!(code(&slow), (6, "timeout".into()));
    let mut stranger = lab.command(&["text", "--session", &session, "--json"]);
    stranger.env("BROWSERCTL_KEY", KEYS[1]);
    assert_eq!(code(&ran(stranger).await), (3, "no_such_session".into()));
    let mut denied = lab.command(&["ls", "--json"]);
    denied.env("BROWSERCTL_KEY", "cp_wrong");
    assert_eq!(code(&ran(denied).await), (4, "unauthorized".into()));
    let away = lab.run(&["ls", "--json", "--socket", "/nonexistent/sock"]).await;
    assert_eq!(code(&away), (7, "unreachable".into()), "a flag wins over the variable");
    let wrong = lab.run(&["fly", "--json"]).await;
    assert_eq!(code(&wrong), (2, "usage".into()));
    let injected = lab.run(&["close", "../keys?x=", "--json"]).await;
    assert_eq!(code(&injected), (3, "no_such_session".into()), "a session stays in its place of the path");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_too_long_is_cancelled() {
    let lab = Lab::new().await;
    let session = lab.open().await;
    let mut command = lab.command(&["wait-for", "#never", "--session", &session]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !lab.service.calls.lock().unwrap().iter().any(|(verb, _)| verb == "wait_for") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    child.kill().await.unwrap();
    lab.service.wait_cancelled(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_read_in_pages() {
    let lab = Lab::new().await;
    let export = lab.run(&["audit", "export"]).await;
    let rows: Vec<Value> = export.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2500);
    assert!(rows.iter().enumerate().all(|(index, row)| row["seq"] == index + 1));
    let tail = lab.run(&["audit", "tail", "-n", "2"]).await;
    assert!(
        tail.text().contains("2499") && tail.text().contains("2500") && !tail.text().contains("2498"),
        "{tail:?}"
    );
    assert!(!tail.text().contains('\x1b'), "{tail:?}");
    let verify = lab.run(&["audit", "verify", "--json"]).await;
    let shape = verify.json();
    assert_eq!((verify.code, &shape["error"]["code"]), (1, &json!("audit_broken")));
    assert_eq!(shape["data"]["problems"][0]["seq"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_is_managed() {
    let lab = Lab::new().await;
    let key = lab.run(&["key", "issue", "--label", "crawler", "--scope", "read", "--expires", "2d"]).await;
    assert_eq!((key.code, key.text()), (0, "cp_new\n"), "{key:?}");
    let issued = lab.run(&["key", "issue", "--json", "--expires", "2d"]).await.json();
    assert_eq!(issued["data"]["expires_in_seconds"], 172_800);
    let me = lab.run(&["whoami"]).await;
    assert_eq!(me.text(), "name    key_1\ntenant  acme\nscopes  read\n");
    let exported = lab.run(&["recording", "export", "ses_1", "-o", "r.html"]).await;
    assert_eq!((exported.text(), lab.file("r.html")), ("r.html\n", b"<!doctype html>".to_vec()));
    assert!(!Path::new(&lab.folder.path().join("r.html.part")).exists());
    let doctor = lab.run(&["doctor"]).await;
    assert_eq!(doctor.code, 7, "{doctor:?}");
    assert!(
        doctor.text().contains("hostd does not answer") && doctor.text().contains("hostctl doctor"),
        "{doctor:?}"
    );
    let down = lab.run(&["doctor", "--socket", "/nonexistent/sock"]).await;
    assert_eq!(down.code, 7);
    assert!(down.text().contains("to do: start the service"), "{down:?}");
}
