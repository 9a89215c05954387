//! Every verb with a real browserd and a real Chromium.

use crate::rig::{Redirected, Rig, Service, example, until};
use axum::Router;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::Html;
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use controlplane::actions::{Target, verbs};
use controlplane::error::ErrorCode;
use futures_util::{StreamExt, TryStreamExt};
use hostd::api::CloneSecret;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PAGE: &str = r#"<!doctype html><title>One</title>
<script>console.log('hello-console'); addEventListener('mousedown', () => document.body.dataset.down = '1');
addEventListener('mouseup', () => document.body.dataset.up = '1');</script>
<h1>Heading</h1><a id="two" href="/two">To two</a> <a id="file" href="/file" download>File</a>
<input id="name" placeholder="Your name"><input id="box" type="checkbox">
<select id="colour"><option value="r">Red</option><option value="g">Green</option></select>
<button id="ask" onclick="document.title = confirm('Really?') ? 'yes' : 'no'">Ask</button>
<button id="press" onmouseenter="this.textContent='over'" onclick="this.textContent='pressed'">Press</button>
<input id="upload" type="file" onchange="this.files[0].text().then(text => document.title = 'got ' + text)">
<div style="height:3000px"></div><p id="end">The end</p>"#;

async fn site() -> SocketAddr {
    let router = Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/two", get(async || Html("<!doctype html><title>Two</title><p>Second page</p>")))
        .route(
            "/file",
            get(async || {
                let disposition = "attachment; filename=\"report.csv\"";
                ([(CONTENT_TYPE, "text/csv"), (CONTENT_DISPOSITION, disposition)], "a,b\n1,2\n")
            }),
        );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// A browserd with a Chromium, under a user of its own.
struct Browserd {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
    secret: CloneSecret,
}

impl Browserd {
    async fn start() -> Self {
        let chromium = [
            "/usr/lib/chromium/chromium-headless-shell",
            "/usr/lib/chromium/chromium",
            "/usr/local/bin/chrome",
        ];
        let chromium = chromium.into_iter().find(|path| std::path::Path::new(path).exists());
        let chromium =
            chromium.expect("Chromium is needed: install the packages chromium and chromium-shell");
        let folder = tempfile::Builder::new().prefix("cp-browserd-").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(example("controlplane-browserd"));
        command
            .args(["--listen", "127.0.0.1:0", "--secret-fd", "0", "--chromium", chromium, "--data-dir"])
            .arg(&data)
            .args(["--start-timeout-ms", "240000"])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log);
        if nix::unistd::geteuid().is_root() {
            // Chromium refuses to run as root with its sandbox.
            let uid = *kernel::user_ids::of_test(std::process::id()).start();
            chown(&data, Some(uid), Some(uid)).unwrap();
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        let secret = CloneSecret::random();
        child.stdin.take().unwrap().write_all(secret.as_str().as_bytes()).unwrap();
        let mut address = None;
        until("browserd listens", async || {
            let text = std::fs::read_to_string(data.join("browserd.address")).unwrap_or_default();
            address = text.trim().parse().ok();
            address.is_some()
        })
        .await;
        Self { child, address: address.unwrap(), folder, secret }
    }
}

impl Drop for Browserd {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && self.child.try_wait().is_ok_and(|status| status.is_none()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- browserd's log\n{}", &log[log.len().saturating_sub(3000)..]);
        }
    }
}

/// A session, and the verbs that were called in it.
struct Driver {
    service: Service,
    session: String,
    called: RefCell<BTreeSet<String>>,
}

impl Driver {
    async fn does(&self, verb: &str, params: Value) -> Value {
        self.called.borrow_mut().insert(verb.to_owned());
        match self.service.call(verb, Some(&self.session), params.clone()).await {
            Ok(result) => result,
            Err(error) => panic!("{verb} {params}: {error}"),
        }
    }

    async fn value(&self, expression: &str) -> Value {
        self.does("evaluate", json!({ "expression": expression })).await["value"].clone()
    }
}

#[test]
fn every_verb_works_with_a_real_browser() {
    // Without optimisation the future of all these calls is larger than the stack of a test's thread.
    let test = || tokio::runtime::Runtime::new().expect("a runtime").block_on(try_every_verb());
    let thread = std::thread::Builder::new().stack_size(32 << 20).spawn(test).expect("a thread");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

async fn try_every_verb() {
    let browserd = Browserd::start().await;
    let at = site().await;
    let (one, two) = (format!("http://{at}/"), format!("http://{at}/two"));
    let rig = Rig::new().await;
    let hosts = Redirected::to_browserd(&rig.hostd.socket(), browserd.address, browserd.secret.clone());
    let service = rig.app_on(hosts).await;
    let session = service.open(json!({"record": "audit"})).await;
    let page = Driver { service: service.clone(), session: session.clone(), called: RefCell::default() };
    until("the browser is ready", async || service.call("tabs", Some(&session), json!({})).await.is_ok())
        .await;

    let navigated = page.does("navigate", json!({"url": one, "after_screenshot": true})).await;
    assert_eq!(
        (&navigated["status"], &navigated["final_url"], &navigated["title"]),
        (&json!(200), &json!(one), &json!("One"))
    );
    let persisted = navigated["after_screenshot"]["persisted_path"].as_str().unwrap();
    let image = STANDARD.decode(navigated["after_screenshot"]["image_base64"].as_str().unwrap()).unwrap();
    assert_eq!(std::fs::read(persisted).unwrap(), image);

    // Reading.
    assert!(page.does("read_dom", json!({})).await["html"].as_str().unwrap().contains("<h1>Heading</h1>"));
    assert!(page.does("html", json!({"selector": "h1"})).await["html"].as_str().unwrap().contains("Heading"));
    assert!(page.does("text", json!({})).await["text"].as_str().unwrap().contains("Heading"));
    assert_eq!(page.does("links", json!({})).await["links"][0]["url"], two);
    assert_eq!(page.does("url", json!({})).await["url"], one);
    assert!(page.does("snapshot", json!({})).await["snapshot"].as_str().unwrap().contains("heading"));
    let shot = page.does("screenshot", json!({"format": "jpeg", "quality": 40})).await;
    assert!(shot["persisted_path"].as_str().unwrap().ends_with("/2.jpeg"), "{shot}");
    assert_eq!(&STANDARD.decode(shot["image_base64"].as_str().unwrap()).unwrap()[..2], [0xff, 0xd8]);
    let pdf = page.does("pdf", json!({})).await;
    assert!(STANDARD.decode(pdf["pdf_base64"].as_str().unwrap()).unwrap().starts_with(b"%PDF"));
    page.does("reload", json!({})).await;
    let console = page.does("console", json!({})).await;
    assert!(console.to_string().contains("hello-console"), "{console}");
    assert!(page.does("network", json!({})).await.to_string().contains(&one));

    // Acting.
    page.does("click", json!({"selector": "#name"})).await;
    page.does("type", json!({"text": "Ann"})).await;
    page.does("press", json!({"key": "Backspace"})).await;
    assert_eq!(page.value("document.querySelector('#name').value").await, "An");
    page.does("fill", json!({"selector": "#name", "text": "Berta"})).await;
    assert_eq!(page.value("document.querySelector('#name').value").await, "Berta");
    page.does("select", json!({"selector": "#colour", "values": ["Green"]})).await;
    page.does("set_value", json!({"selector": "#box", "checked": true})).await;
    let set =
        page.value("document.querySelector('#colour').value + document.querySelector('#box').checked").await;
    assert_eq!(set, "gtrue");
    page.does("hover", json!({"selector": "#press"})).await;
    assert_eq!(page.value("document.querySelector('#press').textContent").await, "over");
    page.does("mouse_move", json!({"selector": "h1"})).await;
    page.does("mouse_down", json!({})).await;
    page.does("mouse_up", json!({})).await;
    assert_eq!(page.value("document.body.dataset.down + document.body.dataset.up").await, "11");
    page.does("drag", json!({"from": {"selector": "h1"}, "to": {"x": 300, "y": 200}})).await;
    let scrolled = page.does("scroll", json!({"selector": "#end"})).await;
    assert!(scrolled["position"]["y"].as_f64().unwrap() > 1000.0, "{scrolled}");
    page.does("dialogs", json!({"accept": true})).await;
    page.does("click", json!({"selector": "#ask"})).await;
    until("the dialog is answered", async || page.value("document.title").await == "yes").await;
    assert_eq!(page.does("recent_dialogs", json!({})).await["dialogs"][0]["accepted"], true);

    // The history.
    let found = page.does("find", json!({"role": "link", "text": "to two"})).await;
    let link = found["elements"][0]["ref"].clone();
    page.does("click", json!({"ref": link})).await;
    page.does("wait_for", json!({"url": two, "text": "Second page"})).await;
    assert_eq!(page.does("back", json!({})).await["title"], "One");
    assert_eq!(page.does("forward", json!({})).await["title"], "Two");

    // Tabs.
    let tab = page.does("new_tab", json!({"url": one})).await["tab"].clone();
    assert_eq!(page.does("tabs", json!({})).await["tabs"].as_array().unwrap().len(), 2);
    page.does("activate_tab", json!({"tab": tab})).await;
    page.does("wait_for", json!({"selector": "#upload"})).await;

    // Files.
    let put = page
        .does("put_file", json!({"name": "in.txt", "content_base64": STANDARD.encode("put before")}))
        .await;
    let file = put["file"].clone();
    page.does("upload", json!({"selector": "#upload", "file_ids": [file]})).await;
    until("the page has the file", async || page.value("document.title").await == "got put before").await;
    let new = json!([{"name": "b.txt", "content_base64": STANDARD.encode("in the call")}]);
    page.does("upload", json!({"selector": "#upload", "files": new})).await;
    until("the page has the file", async || page.value("document.title").await == "got in the call").await;
    let parts = futures_util::stream::iter([Ok("in ".into()), Ok("parts".into())]).boxed();
    let streamed = service.app.put_file(&service.me, &session, "c.txt", parts).await.unwrap();
    assert!(streamed.get().contains("\"bytes\":8"), "{streamed}");
    assert_eq!(page.does("files", json!({})).await["files"].as_array().unwrap().len(), 3);
    page.does("delete_file", json!({"file": file})).await;
    page.does("click", json!({"selector": "#file"})).await;
    until("the download is complete", async || {
        page.does("downloads", json!({})).await["downloads"][0]["state"] == "completed"
    })
    .await;
    let guid = page.does("downloads", json!({})).await["downloads"][0]["guid"].as_str().unwrap().to_owned();
    let file = page.does("download", json!({ "guid": guid })).await;
    assert_eq!((&file["name"], &file["bytes"]), (&json!("report.csv"), &json!(8)));
    assert_eq!(STANDARD.decode(file["content_base64"].as_str().unwrap()).unwrap(), b"a,b\n1,2\n");
    let file = service.app.download(&service.me, &session, &guid, false).await.unwrap();
    assert_eq!((file.name.as_str(), file.bytes), ("report.csv", 8));
    let parts: Vec<bytes::Bytes> = file.content.try_collect().await.unwrap();
    assert_eq!(parts.concat(), b"a,b\n1,2\n");
    page.does("delete_download", json!({ "guid": guid })).await;
    let events = page.does("events", json!({})).await.to_string();
    assert!(events.contains("download_completed") && events.contains("tab_opened"), "{events}");
    page.does("close_tab", json!({"tab": tab})).await;

    // browserd's errors keep their codes.
    let error = service.call("click", Some(&session), json!({"selector": "#none"})).await.unwrap_err();
    assert_eq!(error.code(), "no_such_element");
    let error = service
        .call("evaluate", Some(&session), json!({"expression": "throw new Error('x')"}))
        .await
        .unwrap_err();
    assert_eq!(error.code(), "script_error");
    let slow = json!({"selector": "#never", "timeout_ms": 300});
    assert_eq!(service.call("wait_for", Some(&session), slow).await.unwrap_err().code(), "wait_timeout");
    let reader = service.as_caller(controlplane::access::Caller {
        scopes: controlplane::access::DEFAULT_SCOPES.into(),
        ..service.me.clone()
    });
    let error = reader.call("evaluate", Some(&session), json!({"expression": "1"})).await.unwrap_err();
    assert!(error.is(ErrorCode::Forbidden), "{error}");

    let called = page.called.into_inner();
    for verb in verbs().iter().filter(|verb| verb.target != Target::Service) {
        let of_the_session = ["session", "close_session"].contains(&verb.name);
        assert!(of_the_session || called.contains(verb.name), "{} was not tried", verb.name);
    }
    service.call("close_session", Some(&session), json!({})).await.unwrap();
    assert!(service.app.audit.verify().await.unwrap().intact);
}
