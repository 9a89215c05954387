//! Hostile or faulty pages and callers do not stop the API.
#![allow(clippy::unwrap_used)]

mod support;

use browserd::api::types::*;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use support::site::{RULE, Site};
use support::{Browserd, code, wait};

fn to(url: String) -> Navigate {
    Navigate { url: Some(url), ..Default::default() }
}

fn script(expression: &str) -> Evaluate {
    Evaluate { expression: expression.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_crash_loop_or_use_much_memory_do_not_affect_other_tabs() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    let other_tab =
        client.open_tab(&NewTab { url: Some(site.url("/form")), background: true }).await.unwrap().tab;
    let other_tab_works = async || {
        let text = Text { tab: Some(other_tab.clone()), ..Default::default() };
        assert!(client.text(&text).await.unwrap().text.contains("A form"), "the other tab works");
    };

    // Endless alerts: the script is terminated, the tab stays usable.
    client.navigate(&to(site.url("/alertloop"))).await.unwrap();
    wait("the dialogs to be counted", || {
        let (_, tabs) = browserd.get("/v1/tabs");
        tabs["tabs"].as_array().unwrap().iter().find(|tab| tab["dialogs"].as_u64() > Some(50)).map(drop)
    });
    other_tab_works().await;
    assert_eq!(client.evaluate(&script("document.title")).await.unwrap().value, "loop");

    // An endless script: calls time out, the tab can be closed.
    let tab = client.open_tab(&NewTab::default()).await.unwrap().tab;
    client.navigate(&Navigate { wait_until: WaitUntil::Commit, ..to(site.url("/title?x")) }).await.unwrap();
    client.evaluate(&script("setTimeout(() => { for (;;); }, 0); 1")).await.unwrap();
    // Once a call has timed out, the script runs and never ends.
    let alive = Evaluate { timeout_ms: Some(700), ..script("1") };
    while client.evaluate(&alive).await.is_ok() {}
    let text = Text { timeout_ms: Some(700), tab: Some(tab.clone()), ..Default::default() };
    assert_eq!(code(client.text(&text).await), "timeout");
    let picture = Screenshot { timeout_ms: Some(700), tab: Some(tab.clone()), ..Default::default() };
    assert_eq!(code(client.screenshot(&picture).await), "timeout");
    other_tab_works().await;
    client.close_tab(&tab).await.unwrap();

    // A renderer that crashes during a call.
    let tab = client
        .open_tab(&NewTab { url: Some(site.url("/title?victim")), ..Default::default() })
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let (client, tab) = (browserd.client(), tab.tab.clone());
        async move {
            let forever = Evaluate { tab: Some(tab), ..script("new Promise(() => 0)") };
            client.evaluate(&forever).await
        }
    });
    wait("the call to run", || (browserd.health()["calls"] == 1).then_some(()));
    crash(&browserd, &tab.target_id).await;
    assert_eq!(code(waiting.await.unwrap()), "renderer_crashed");
    assert_eq!(
        code(client.text(&Text { tab: Some(tab.tab.clone()), ..Default::default() }).await),
        "renderer_crashed"
    );
    assert_eq!(browserd.health()["renderer_crashes"].as_u64(), Some(1));
    assert_eq!(browserd.get("/healthz").0, 200);
    other_tab_works().await;
    let again = Navigate { tab: Some(tab.tab.clone()), ..to(site.url("/title?revived")) };
    assert_eq!(client.navigate(&again).await.unwrap().title, "revived");
    assert!(!client.tabs().await.unwrap().tabs.iter().any(|tab| tab.crashed));

    // A page of a hundred megabytes.
    let huge = Navigate { timeout_ms: Some(120_000), ..to(site.url("/huge")) };
    assert_eq!(client.navigate(&huge).await.unwrap().title, "huge done");
    let dom = client.read_dom(&ReadDom { max_chars: Some(5000), ..Default::default() }).await.unwrap();
    assert_eq!((dom.html.len(), dom.truncated_to), (5000, Some(5000)));
    assert_eq!(code(client.snapshot(&Snapshot::default()).await), "page_too_large");
    let full = Screenshot { full_page: true, ..Default::default() };
    assert_eq!(code(client.screenshot(&full).await), "screenshot_too_large");
    assert_eq!(code(client.evaluate(&script("document.body.outerHTML")).await), "response_too_large");
    client.screenshot(&Screenshot::default()).await.unwrap();
    other_tab_works().await;
    let own = std::fs::read_to_string(format!("/proc/{}/status", browserd.pid())).unwrap();
    println!("browserd after the huge page: {}", own.lines().find(|line| line.starts_with("VmHWM")).unwrap());
}

/// Crashes a tab's renderer with chrome://crash over raw CDP; the API refuses that URL.
async fn crash(browserd: &Browserd, target: &str) {
    let (status, version) = browserd.get("/json/version");
    assert_eq!(status, 200);
    let url = version["webSocketDebuggerUrl"].as_str().unwrap();
    let stream = tokio::net::TcpStream::connect(browserd.address).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;
    let attach =
        json!({"id": 1, "method": "Target.attachToTarget", "params": {"targetId": target, "flatten": true}});
    socket.send(Message::text(attach.to_string())).await.unwrap();
    let session = loop {
        let message = socket.next().await.unwrap().unwrap();
        let message: serde_json::Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        if message["id"] == 1 {
            break message["result"]["sessionId"].clone();
        }
    };
    let navigate = json!({"id": 2, "method": "Page.navigate", "params": {"url": "chrome://crash"}, "sessionId": session});
    socket.send(Message::text(navigate.to_string())).await.unwrap();
    wait("the crash", || {
        let (_, tabs) = browserd.get("/v1/tabs");
        tabs["tabs"].as_array().unwrap().iter().any(|tab| tab["crashed"] == true).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_cannot_call_browserd() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    let address = browserd.address;
    client.navigate(&to(site.url("/title?evil"))).await.unwrap();
    let attack = format!(
        "(async () => {{
            const results = [];
            for (const url of ['http://{address}/v1/cookies', 'http://rebound.test:{port}/v1/cookies'])
                results.push(await fetch(url, {{ method: 'POST', mode: 'no-cors', body: '{{\"cookies\":[{{\"name\":\"evil\",\"value\":\"1\",\"domain\":\"app.test\"}}]}}' }}).then(() => 'sent', () => 'failed'));
            const {{ webSocketDebuggerUrl }} = {version};
            results.push(await new Promise((done) => {{
                const socket = new WebSocket(webSocketDebuggerUrl);
                socket.onopen = () => done('open');
                socket.onerror = () => done('refused');
            }}));
            return results;
        }})()",
        port = address.port(),
        version = browserd.get("/json/version").1,
    );
    let results = client.evaluate(&script(&attack)).await.unwrap().value;
    assert_eq!(results[2], "refused", "{results}");
    assert_eq!(client.cookies().await.unwrap().cookies, []);
    // A host name that resolves to browserd (DNS rebinding): the request is refused.
    let rebound =
        client.navigate(&to(format!("http://rebound.test:{}/v1/cookies", address.port()))).await.unwrap();
    assert_eq!(rebound.status, Some(403));

    // A caller that disconnects during its call cancels it.
    let body = json!({"expression": "new Promise(() => 0)"}).to_string();
    let mut leaving = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/evaluate HTTP/1.1\r\nhost: {address}\r\nauthorization: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        browserd.bearer(),
        body.len()
    );
    leaving.write_all((head + &body).as_bytes()).unwrap();
    wait("the call to run", || (browserd.health()["calls"] == 1).then_some(()));
    drop(leaving);
    wait("the call to be cancelled", || (browserd.health()["calls"] == 0).then_some(()));
    // browserd closes idle connections after ten seconds; the client reconnects. The client's connection is idle for longer
    // than this new one.
    let mut idle = TcpStream::connect(address).unwrap();
    assert_eq!(
        tokio::task::block_in_place(|| idle.read(&mut [0]).unwrap()),
        0,
        "an idle connection is closed"
    );
    assert_eq!(client.tabs().await.unwrap().tabs.len(), 1);
}

#[test]
fn limits_and_access_rules_apply_to_callers() {
    let limits = [
        "--max-calls",
        "2",
        "--max-request",
        "1000",
        "--no-evaluate",
        "--no-raw-cdp",
        "--max-connections",
        "8",
    ];
    let browserd = Browserd::ready(&limits);
    let error = |(status, body): (u16, serde_json::Value)| {
        (status, body["error"]["code"].as_str().unwrap_or("?").to_owned())
    };
    let host = browserd.address.to_string();
    let bearer = browserd.bearer();
    let secret = ("authorization", bearer.as_str());
    let json_headers = [("host", host.as_str()), secret, ("content-type", "application/json")];

    let large = json!({"expression": "x".repeat(2000)});
    assert_eq!(error(browserd.post("/v1/evaluate", large)), (413, "request_too_large".into()));
    assert_eq!(
        error(browserd.post("/v1/evaluate", json!({"expression": "1"}))),
        (403, "evaluate_disabled".into())
    );
    assert_eq!(error(browserd.get("/json/version")), (403, "raw_cdp_disabled".into()));
    assert_eq!(error(browserd.get("/devtools/browser/x")), (403, "raw_cdp_disabled".into()));
    assert_eq!(error(browserd.get("/missing")), (404, "not_found".into()));
    assert_eq!(error(browserd.get("/v1/navigate")), (405, "method_not_allowed".into()));
    assert_eq!(
        error(browserd.post("/v1/click", json!({"x": 1, "y": 2, "z": 3}))),
        (400, "bad_request".into())
    );
    assert_eq!(error(browserd.post("/v1/click", json!([]))), (400, "bad_request".into()));
    assert_eq!(error(browserd.request("POST", "/v1/click", &json_headers, "{")), (400, "bad_request".into()));
    let text = [("host", host.as_str()), secret, ("content-type", "text/plain")];
    assert_eq!(
        error(browserd.request("POST", "/v1/click", &text, "{}")),
        (415, "unsupported_media_type".into())
    );
    let page = [("host", host.as_str()), secret, ("origin", "http://evil.example")];
    assert_eq!(error(browserd.request("GET", "/v1/tabs", &page, "")), (403, "forbidden_origin".into()));
    assert_eq!(
        error(browserd.request("GET", "/v1/tabs", &[("host", "evil.example"), secret], "")),
        (403, "forbidden_origin".into())
    );
    let (_, answer) = browserd.get("/missing");
    assert_eq!(answer["success"], false);
    assert!(answer["error"]["hint"].as_str().unwrap().contains("openapi"), "{answer}");
    let (status, document) = browserd.get("/openapi.json");
    assert_eq!((status, document["openapi"].as_str()), (200, Some("3.1.0")));

    // Two calls that wait for their bodies reach the limit; the probes still respond.
    let mut waiting: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = TcpStream::connect(browserd.address).unwrap();
            let head = format!(
                "POST /v1/text HTTP/1.1\r\nhost: {host}\r\nauthorization: {bearer}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    wait("both to run", || (browserd.health()["calls"] == 2).then_some(()));
    assert_eq!(error(browserd.get("/v1/tabs")), (429, "too_many_calls".into()));
    assert_eq!(browserd.get("/readyz").0, 200);
    for stream in &mut waiting {
        stream.write_all(b"{}").unwrap();
        let mut start = [0; 15];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 200 OK");
    }
    drop(waiting);
    wait("both calls to finish", || (browserd.get("/v1/tabs").0 == 200).then_some(()));

    // Invalid HTTP.
    for invalid in [&b"\0\0\0\0\r\n\r\n"[..], b"GET / HTTP/9\r\n\r\n", &[b'A'; 100_000]] {
        let mut stream = TcpStream::connect(browserd.address).unwrap();
        let _ = stream.write_all(invalid);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
    assert_eq!(browserd.get("/readyz").0, 200);
    let refused = Browserd::start(&["--allow-peer", "192.0.2.1"]);
    assert_eq!(refused.get("/healthz").0, 0, "an address that is not allowed gets no response");
}
