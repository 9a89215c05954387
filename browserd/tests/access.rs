//! Nobody is served without the secret, and no page gets anything. hostd's tests show the same in a clone.
#![allow(clippy::unwrap_used)]

mod support;

use browserd::Secret;
use browserd::api::types::*;
use browserd::client::Client;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use support::site::{RULE, Site};
use support::{Browserd, code};

fn error(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or("?")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_but_the_probes_needs_the_secret() {
    let browserd = Browserd::ready(&[]);
    let host = browserd.address.to_string();
    let host = ("host", host.as_str());
    let other = Secret::random().unwrap();
    let wrong = format!("Bearer {}", other.as_str());
    for probe in ["/healthz", "/readyz"] {
        let answer = browserd.request("GET", probe, &[host], "");
        assert_eq!(answer, (200, json!({"success": true})), "{probe}: yes or no, and nothing else");
    }
    let raw = browserd.get("/json/version").1["webSocketDebuggerUrl"].as_str().unwrap().to_owned();
    let raw = raw.split_once(browserd.secret.as_str()).unwrap().1.to_owned();
    let mut refusals = Vec::new();
    for path in ["/v1/cookies", "/v1/health", "/openapi.json", "/json/version", "/missing", &raw] {
        let with_wrong = format!("/{}{path}", other.as_str());
        refusals.push(browserd.request("GET", path, &[host], ""));
        refusals.push(browserd.request("GET", path, &[host, ("authorization", &wrong)], ""));
        refusals.push(browserd.request("GET", &with_wrong, &[host], ""));
    }
    let (status, answer) = refusals[0].clone();
    assert_eq!((status, error(&answer)), (401, "unauthorized"));
    assert!(answer["error"]["hint"].as_str().unwrap().contains("Authorization: Bearer"), "{answer}");
    assert!(refusals.iter().all(|refusal| *refusal == refusals[0]), "missing and wrong look the same");
    assert_eq!(code(Client::new(browserd.address, other).tabs().await), "unauthorized");

    // The secret may also be the first part of the path, for every call.
    let secret = browserd.secret.as_str().to_owned();
    let (status, tabs) = browserd.request("GET", &format!("/{secret}/v1/tabs"), &[host], "");
    assert_eq!((status, tabs["tabs"].as_array().map(Vec::len)), (200, Some(1)));
    assert_eq!(browserd.request("GET", &format!("/{secret}"), &[host], "").0, 404);
    let (status, version) = browserd.request("GET", &format!("/{secret}/json/version/"), &[host], "");
    assert_eq!(status, 200);
    let url = version["webSocketDebuggerUrl"].as_str().unwrap();
    assert_eq!(url, format!("ws://{}/{secret}{raw}", browserd.address));
    let stream = tokio::net::TcpStream::connect(browserd.address).await.unwrap();
    tokio_tungstenite::client_async(url, stream).await.unwrap();
    let stream = tokio::net::TcpStream::connect(browserd.address).await.unwrap();
    let refused = tokio_tungstenite::client_async(url.replace(&format!("/{secret}"), ""), stream).await;
    assert!(refused.unwrap_err().to_string().contains("401"));
    assert!(!browserd.log().contains(&secret), "the secret is in the log");
}

/// How a page leads a tab to another address.
const TRICKS: [&str; 6] = [
    "window.open(URL)",
    "location = URL",
    "{ const meta = document.createElement('meta'); meta.httpEquiv = 'refresh'; meta.content = '0;url=' + URL;
       document.head.append(meta) }",
    "{ const link = document.createElement('a'); link.href = URL; document.body.append(link); link.click() }",
    "{ const form = document.createElement('form'); form.action = URL; document.body.append(form); form.submit() }",
    "{ const frame = document.createElement('iframe'); frame.src = URL; document.body.append(frame) }",
];

/// On loopback the browser is a peer like any other, so only the secret and the checks of the headers protect browserd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tab_at_browserds_address_shows_no_data() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&Navigate { url: Some(site.url("/setcookie")), ..Default::default() }).await.unwrap();
    assert_eq!(client.cookies().await.unwrap().cookies.len(), 1);
    for trick in TRICKS {
        client.open_tab(&NewTab::default()).await.unwrap();
        client
            .navigate(&Navigate { url: Some(site.url("/title?start")), ..Default::default() })
            .await
            .unwrap();
        let expression = trick.replace("URL", &format!("'http://{}/v1/cookies'", browserd.address));
        // The navigation may end the script before it returns.
        let _ = client.evaluate(&Evaluate { expression, ..Default::default() }).await;
        let mut shown = String::new();
        // browserd's refusal is shown in a tab or in the frame.
        while !shown.contains("unauthorized") && !shown.contains("forbidden_origin") {
            shown.clear();
            for tab in client.tabs().await.unwrap().tabs {
                let snapshot = Snapshot { tab: Some(tab.tab), ..Default::default() };
                shown.push_str(
                    &client.snapshot(&snapshot).await.map(|page| page.snapshot).unwrap_or_default(),
                );
            }
        }
        assert!(!shown.contains("httpOnly") && !shown.contains("domain"), "{trick}: {shown}");
        for tab in client.tabs().await.unwrap().tabs.into_iter().skip(1) {
            client.close_tab(&tab.tab).await.unwrap();
        }
    }
}

/// A browserd that is started by hand makes its secret and tells only its parent process.
#[test]
fn a_browserd_without_a_given_secret_makes_one() {
    let folder = tempfile::tempdir().unwrap();
    let start = |more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_browserd"))
            .args([
                "--listen",
                "127.0.0.1:0",
                "--chromium",
                "/bin/false",
                "--max-restarts",
                "0",
                "--data-dir",
            ])
            .arg(folder.path())
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // An empty or missing descriptor is an error: a browserd that is told to have a secret must not run with another one.
    for wrong in ["0", "99"] {
        let output = start(&["--secret-fd", wrong]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("--secret-fd"), "{wrong}: {said}");
    }
    let mut browserd = start(&[]);
    let mut line = String::new();
    BufReader::new(browserd.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("failed "), "{line}");
    let address = std::fs::read_to_string(folder.path().join("browserd.address")).unwrap();
    let address = address.trim().parse().unwrap();
    let (status, answer) = support::raw_request(address, "GET", "/v1/tabs", &[("host", "localhost")], "");
    assert_eq!((status, error(&answer)), (401, "unauthorized"));
    support::signal(browserd.id(), nix::sys::signal::Signal::SIGTERM);
    assert!(browserd.wait().unwrap().success());
    let mut log = String::new();
    browserd.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("listening"), "{log}");
}

/// The line of a ready browserd contains the secret if browserd made it.
#[test]
fn the_ready_line_tells_a_secret_that_browserd_made() {
    let mut browserd = Browserd::start_own_secret();
    let line = browserd.status_line();
    let urls: Vec<&str> = line.trim_end().split(' ').collect();
    let secret =
        urls[1].strip_prefix(&format!("http://{}/", browserd.address)).expect("its address").to_owned();
    assert_eq!(secret.len(), 43, "{line}");
    assert!(urls[2].starts_with(&format!("ws://{}/{secret}/devtools/browser/", browserd.address)), "{line}");
    browserd.secret = secret.parse().unwrap();
    assert_eq!(browserd.get("/v1/tabs").0, 200);
    assert!(!browserd.log().contains(&secret), "the secret is in the log");
}
