//! Files into and out of the clone, through the API and through clients of raw CDP.
#![allow(clippy::unwrap_used)]

mod support;

use browserd::api::types::*;
use browserd::client::Client;
use bytes::Bytes;
use serde_json::json;
use std::io::{Read, Write};
use std::path::Path;
use support::site::{RULE, Site};
use support::{Browserd, code, wait};

fn to(url: String) -> Navigate {
    Navigate { url: Some(url), ..Default::default() }
}

async fn finished(client: &Client, guid: &str) -> Download {
    let mut since = 0;
    loop {
        let list = client.downloads().await.unwrap().downloads;
        let download = list.into_iter().find(|download| download.guid == guid).unwrap();
        if download.state != "in_progress" {
            return download;
        }
        let next = Events { since: Some(since), wait_ms: Some(10_000), ..Default::default() };
        since = client.events(&next).await.unwrap().last;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_are_fetched_and_removed() {
    let (browserd, site) = (Browserd::ready(&[RULE, "--max-download", "100000"]), Site::start().await);
    let client = browserd.client();
    let started = client.navigate(&to(site.url("/download?10"))).await.unwrap();
    let guid = started.download_guid.expect("a download has an id");
    let done = finished(&client, &guid).await;
    assert_eq!(
        (done.state.as_str(), done.mime_type.as_str(), done.tab.as_deref()),
        ("completed", "text/csv", Some("t1"))
    );
    let content = "the file's content\n".repeat(10);
    assert_eq!(client.get_download(&guid, false).await.unwrap(), content);

    // The response names the file; no browser would show it as a page.
    let mut stream = std::net::TcpStream::connect(browserd.address).unwrap();
    let path = format!("/{}/v1/downloads/{guid}?delete=true", browserd.secret.as_str());
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", browserd.address).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    for line in [
        "content-length: 190",
        "content-type: text/csv",
        "content-disposition: attachment; filename=\"report.csv\"; filename*=utf-8''report.csv",
        "x-content-type-options: nosniff",
    ] {
        assert!(head.lines().any(|has| has == line), "{line} is missing in\n{head}");
    }
    assert_eq!(body, content);
    // It was removed after it was sent.
    let file = browserd.data().join("downloads").join(&guid);
    wait("the file to be removed", || (!file.exists()).then_some(()));
    assert_eq!(code(client.get_download(&guid, false).await), "no_such_download");
    assert!(client.downloads().await.unwrap().downloads[0].removed);

    let second = client.navigate(&to(site.url("/download?20"))).await.unwrap().download_guid.unwrap();
    assert_ne!(second, guid);
    finished(&client, &second).await;
    client.delete_download(&second).await.unwrap();
    assert_eq!(code(client.get_download(&second, false).await), "no_such_download");
    assert!(!browserd.data().join("downloads").join(&second).exists());

    // Too large: cancelled. Unknown, malformed and other folders: refused.
    let large = client.navigate(&to(site.url("/download?100000"))).await.unwrap().download_guid.unwrap();
    assert_eq!(finished(&client, &large).await.state, "canceled");
    assert_eq!(code(client.get_download(&large, false).await), "download_failed");
    for unknown in ["nothing", "..", "%2e%2e%2fbrowserd.pid"] {
        assert_eq!(code(client.get_download(unknown, false).await), "no_such_download", "{unknown}");
    }
    assert_eq!(browserd.get(&format!("/v1/downloads/{large}?delete=yes")).0, 400);
    assert_eq!(browserd.get(&format!("/v1/downloads/{large}?other=1")).0, 400);

    // A file that a hostile browser replaced by a link is not sent.
    let third = client.navigate(&to(site.url("/download?1"))).await.unwrap().download_guid.unwrap();
    finished(&client, &third).await;
    let file = browserd.data().join("downloads").join(&third);
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    assert_eq!(code(client.get_download(&third, false).await), "storage_failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_download_is_told_apart_and_cancelled() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    let started = client.navigate(&to(site.url("/endless"))).await.unwrap();
    let guid = started.download_guid.unwrap();
    assert_eq!(code(client.get_download(&guid, true).await), "download_not_complete");
    client.delete_download(&guid).await.unwrap();
    assert_eq!(finished(&client, &guid).await.state, "canceled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pdfs_arrive_as_downloads_or_are_shown() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    let shown = client.navigate(&to(site.url("/pdf"))).await.unwrap();
    // The headless shell has no viewer for PDF files, a full Chromium has one.
    if !client.version().await.unwrap().browser.starts_with("HeadlessChrome/") {
        assert_eq!((shown.download, shown.status), (false, Some(200)), "{shown:?}");
        return;
    }
    assert!(shown.download, "{shown:?}");
    let guid = shown.download_guid.unwrap();
    assert_eq!(finished(&client, &guid).await.mime_type, "application/pdf");
    assert!(client.get_download(&guid, false).await.unwrap().starts_with(b"%PDF-1.4"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_put_into_the_clone_and_given_to_pages() {
    let (browserd, site) = (Browserd::ready(&[RULE, "--max-files", "1000000"]), Site::start().await);
    let client = browserd.client();
    let one = client.put_file("Größe 1.csv", Bytes::from_static(b"a,b\n")).await.unwrap();
    let two = client.put_file("two.txt", Bytes::from_static(b"second")).await.unwrap();
    assert!(Path::new(&one.path).starts_with(browserd.data().join("files")), "{one:?}");
    assert_eq!(client.files().await.unwrap().files, [one.clone(), two.clone()]);
    let value = async |expression: &str| {
        client
            .evaluate(&Evaluate { expression: expression.into(), ..Default::default() })
            .await
            .unwrap()
            .value
    };
    let told = |expected: &'static str| {
        wait(expected, || {
            let log = browserd.post("/v1/evaluate", json!({ "expression": "log.join('|')" })).1;
            (log["value"] == expected).then_some(())
        })
    };
    let files = |files: &[&str]| Upload {
        files: files.iter().map(|file| (*file).into()).collect(),
        ..Default::default()
    };
    let into = |selector: &str, paths: &[&str]| Upload { selector: Some(selector.into()), ..files(paths) };

    client.navigate(&to(site.url("/upload"))).await.unwrap();
    client.upload(&into("#one", &[&one.path])).await.unwrap();
    told("one:Größe 1.csv=a,b\n");
    value("log.length = 0").await;
    client.upload(&into("#many", &[&one.file, &two.path])).await.unwrap();
    told("many:Größe 1.csv=a,b\n+two.txt=second");
    value("log.length = 0").await;
    client.upload(&into("#many", &[])).await.unwrap();
    told("many:");
    // By ref; by a label; by a button that opens a file chooser.
    value("log.length = 0").await;
    let input = client
        .find(&Find { text: Some("one".into()), ..Default::default() })
        .await
        .unwrap()
        .elements
        .remove(0);
    client.upload(&Upload { reference: Some(input.reference), ..files(&[&two.path]) }).await.unwrap();
    told("one:two.txt=second");
    value("log.length = 0").await;
    client.upload(&into("#label", &[&one.path])).await.unwrap();
    told("hidden:Größe 1.csv=a,b\n");
    value("log.length = 0").await;
    let button = client
        .find(&Find { text: Some("Attach".into()), ..Default::default() })
        .await
        .unwrap()
        .elements
        .remove(0);
    client.upload(&Upload { reference: Some(button.reference), ..files(&[&two.path]) }).await.unwrap();
    told("hidden:two.txt=second");

    for (request, expected) in [
        (into("#one", &[&one.path, &two.path]), "invalid_value"),
        (into("#one", &["/etc/passwd"]), "no_such_file"),
        (into("#off", &[&one.path]), "element_not_editable"),
        (into("#none", &[&one.path]), "no_such_element"),
        (Upload { timeout_ms: Some(700), ..into("#nothing", &[&one.path]) }, "wait_timeout"),
        (files(&[&one.path]), "bad_request"),
    ] {
        assert_eq!(code(client.upload(&request).await), expected, "{request:?}");
    }

    // Limits: all files together, the name, the type of the body, a body that breaks off.
    assert_eq!(code(client.put_file("big", Bytes::from(vec![0; 1_000_000])).await), "files_full");
    assert_eq!(code(client.put_file("../x", Bytes::new()).await), "bad_request");
    let host = browserd.address.to_string();
    let bearer = browserd.bearer();
    let base = [("host", host.as_str()), ("authorization", bearer.as_str())];
    let (status, answer) = browserd.request("POST", "/v1/files?name=x", &base, "data");
    assert_eq!((status, &answer["error"]["code"]), (415, &json!("unsupported_media_type")));
    let octets = [base[0], base[1], ("content-type", "application/octet-stream")];
    assert_eq!(browserd.request("POST", "/v1/files", &octets, "data").0, 400, "without a name");
    assert_eq!(browserd.request("POST", "/v1/files?name=a+b", &octets, "data").1["name"], "a b");
    let mut stream = std::net::TcpStream::connect(browserd.address).unwrap();
    write!(stream, "POST /v1/files?name=half HTTP/1.1\r\nhost: {host}\r\nauthorization: {bearer}\r\ncontent-length: 100\r\ncontent-type: application/octet-stream\r\n\r\nhalf").unwrap();
    drop(stream);
    client.delete_file(&one.file).await.unwrap();
    assert_eq!(code(client.delete_file(&one.file).await), "no_such_file");
    wait("only whole files", || {
        let folders = std::fs::read_dir(browserd.data().join("files")).unwrap().count();
        (folders == 2).then_some(())
    });
    let left = client.files().await.unwrap();
    assert_eq!((left.bytes, left.files.len(), left.max_bytes), (10, 2, 1_000_000));

    // They stay when the browser is restarted.
    support::signal(
        browserd.health()["browser_pid"].as_u64().unwrap() as u32,
        nix::sys::signal::Signal::SIGKILL,
    );
    wait("the new browser", || {
        let health = browserd.health();
        (health["browser_generation"] == 2 && health["status"] == "ready").then_some(())
    });
    client.navigate(&to(site.url("/upload"))).await.unwrap();
    client.upload(&into("#one", &[&two.path])).await.unwrap();
    told("one:two.txt=second");
}

async fn run_client(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let output = tokio::process::Command::new("node")
        .arg(folder.join(name))
        .arg(browserd.url())
        .arg(site.url(""))
        .output()
        .await
        .expect("node runs; the packages are installed by scripts/install-deps");
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && printed.contains(": ok"), "{printed}");
    // Chromium forgets the settings of a client that leaves. Those of browserd hold again.
    let client = browserd.client();
    wait("the client to leave", || (browserd.health()["raw_clients"] == 0).then_some(()));
    let guid = wait("a download without clients", || {
        let answer = browserd.post("/v1/navigate", json!({ "url": site.url("/download?3") })).1;
        answer["download_guid"].as_str().map(str::to_owned)
    });
    assert_eq!(finished(&client, &guid).await.state, "completed");
    assert_eq!(client.get_download(&guid, true).await.unwrap().len(), 57);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_playwright() {
    run_client("playwright-files.mjs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_puppeteer() {
    run_client("puppeteer-files.mjs").await;
}
