//! Playwright, Puppeteer and faulty clients on the raw CDP endpoint.
#![allow(clippy::unwrap_used)]

mod support;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::path::Path;
use support::site::{RULE, Site};
use support::{Browserd, wait};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

async fn run_client(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    assert!(
        folder.join("node_modules").exists(),
        "Playwright and Puppeteer are not installed: run scripts/install-deps"
    );
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let output = tokio::process::Command::new("node")
        .arg(folder.join(name))
        .arg(browserd.url())
        .arg(site.url(""))
        .output()
        .await
        .expect("node runs");
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains(": ok"), "{printed}");
    // The clients and their sessions are closed, and the browser still works.
    let health = wait("the clients to leave", || {
        let health = browserd.health();
        (health["raw_clients"] == 0).then_some(health)
    });
    assert_eq!((health["status"].as_str(), health["restarts"].as_u64()), (Some("ready"), Some(0)));
    assert_eq!(browserd.post("/v1/navigate", json!({"url": site.url("/title?after")})).1["title"], "after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn playwright_works_over_raw_cdp() {
    run_client("playwright.mjs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puppeteer_works_over_raw_cdp() {
    run_client("puppeteer.mjs").await;
}

struct RawClient(WebSocketStream<tokio::net::TcpStream>);

impl RawClient {
    async fn connect(browserd: &Browserd) -> Self {
        let url = browserd.get("/json/version").1["webSocketDebuggerUrl"].as_str().unwrap().to_owned();
        // The line contains no secret: it may end in a log.
        let announced = url.replace(&format!("/{}", browserd.secret.as_str()), "");
        assert_ne!(url, announced);
        assert_eq!(browserd.status_line(), format!("ready http://{} {announced}\n", browserd.address));
        let stream = tokio::net::TcpStream::connect(browserd.address).await.unwrap();
        Self(tokio_tungstenite::client_async(url, stream).await.unwrap().0)
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            match self.0.next().await?.ok()? {
                Message::Text(text) => return serde_json::from_str(text.as_str()).ok(),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    async fn call(&mut self, message: Value) -> Option<Value> {
        self.0.send(Message::text(message.to_string())).await.ok()?;
        loop {
            let answer = self.next().await?;
            if answer["id"] == message["id"] {
                return Some(answer);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_clients_are_isolated_and_limited() {
    let browserd = Browserd::ready(&[RULE, "--max-response", "3000000"]);
    let (mut one, mut two) = (RawClient::connect(&browserd).await, RawClient::connect(&browserd).await);
    // Both use the same id at the same time.
    let (a, b) = tokio::join!(
        one.call(json!({"id": 5, "method": "Browser.getVersion"})),
        two.call(json!({"id": 5, "method": "Target.getTargets"}))
    );
    assert!(a.unwrap()["result"]["product"].is_string());
    let target = b.unwrap()["result"]["targetInfos"][0]["targetId"].clone();
    let attach =
        json!({"id": 6, "method": "Target.attachToTarget", "params": {"targetId": target, "flatten": true}});
    let session = one.call(attach).await.unwrap()["result"]["sessionId"].clone();
    let evaluate = |id: u64, expression: &str| json!({"id": id, "method": "Runtime.evaluate", "params": {"expression": expression}, "sessionId": session});
    let answer = one.call(evaluate(7, "6 * 7")).await.unwrap();
    assert_eq!((&answer["result"]["result"]["value"], &answer["sessionId"]), (&json!(42), &session));
    assert_eq!(two.call(evaluate(7, "6 * 7")).await.unwrap()["error"]["code"], -32001);
    // Events of a session reach only its client.
    one.call(json!({"id": 8, "method": "Runtime.enable", "sessionId": session})).await.unwrap();
    one.0.send(Message::text(evaluate(9, "console.log('mine')").to_string())).await.unwrap();
    loop {
        let event = one.next().await.unwrap();
        if event["method"] == "Runtime.consoleAPICalled" {
            assert_eq!(event["sessionId"], session);
            break;
        }
    }
    let answer = two.call(json!({"id": 10, "method": "Browser.getVersion"})).await.unwrap();
    assert!(answer["result"].is_object());

    // Errors and invalid messages get a reply; the connection stays open.
    assert_eq!(two.call(json!({"id": 11, "method": "No.such"})).await.unwrap()["error"]["code"], -32601);
    two.0.send(Message::text("not json")).await.unwrap();
    assert_eq!(two.next().await.unwrap()["error"]["code"], -32700);

    // A client that does not read is disconnected; the other is not affected.
    for id in 0..40 {
        let big = json!({
            "id": 100 + id, "method": "Runtime.evaluate", "sessionId": session,
            "params": {"expression": "'x'.repeat(900000)"},
        });
        if one.0.send(Message::text(big.to_string())).await.is_err() {
            break;
        }
    }
    wait("the slow client to be disconnected", || (browserd.health()["raw_clients"] == 1).then_some(()));
    let answer = two.call(json!({"id": 12, "method": "Browser.getVersion"})).await.unwrap();
    assert!(answer["result"].is_object());

    // Browser.close only disconnects its client.
    assert!(two.call(json!({"id": 13, "method": "Browser.close"})).await.is_some());
    assert_eq!(two.next().await, None);
    wait("the client to be disconnected", || (browserd.health()["raw_clients"] == 0).then_some(()));
    assert_eq!(browserd.health()["restarts"], 0);
    assert_eq!(browserd.get("/devtools/browser/wrong").0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chrome_remote_interface_and_chromedriver_discover_targets() {
    run_client("discovery.mjs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_is_that_of_chromiums_port() {
    let browserd = Browserd::ready(&["--max-tabs", "3"]);
    let url = browserd.url();
    for path in ["/json", "/json/", "/json/list", "/json/list/"] {
        let (status, list) = browserd.get(path);
        assert_eq!((status, list.as_array().map(Vec::len)), (200, Some(1)), "{path}: {list}");
    }
    let first = browserd.get("/json").1[0].clone();
    assert_eq!((&first["type"], &first["url"]), (&json!("page"), &json!("about:blank")));
    let id = first["id"].as_str().unwrap();
    let socket = first["webSocketDebuggerUrl"].as_str().unwrap();
    assert_eq!(socket, format!("{}/devtools/page/{id}", url.replace("http://", "ws://")));

    // The WebSocket of a page: commands without a session are the page's, and dialogs are the client's.
    let stream = tokio::net::TcpStream::connect(browserd.address).await.unwrap();
    let mut page = RawClient(tokio_tungstenite::client_async(socket, stream).await.unwrap().0);
    let answer =
        page.call(json!({"id": 1, "method": "Runtime.evaluate", "params": {"expression": "1 + 1"}})).await;
    assert_eq!(answer.unwrap()["result"]["result"]["value"], 2);
    assert_eq!(
        (&browserd.health()["raw_clients"], browserd.get("/v1/tabs").1["tabs"].as_array().unwrap().len()),
        (&json!(1), 1)
    );
    page.call(json!({"id": 2, "method": "Page.enable"})).await.unwrap();
    page.0
        .send(Message::text(
            json!({"id": 3, "method": "Runtime.evaluate", "params": {"expression": "confirm('x')"}})
                .to_string(),
        ))
        .await
        .unwrap();
    loop {
        let event = page.next().await.unwrap();
        if event["method"] == "Page.javascriptDialogOpening" {
            assert_eq!(event.get("sessionId"), None);
            break;
        }
    }
    page.call(json!({"id": 4, "method": "Page.handleJavaScriptDialog", "params": {"accept": true}}))
        .await
        .unwrap();

    // New tabs, with the address as query; what the API refuses is refused here too.
    let put = |path: &str| {
        browserd.request("PUT", path, &[("host", "127.0.0.1"), ("authorization", &browserd.bearer())], "")
    };
    let (status, opened) = put("/json/new?about:blank%23two");
    assert_eq!((status, &opened["url"]), (200, &json!("about:blank#two")));
    assert_eq!(put("/json/new?file:///etc/passwd").0, 400);
    assert_eq!(browserd.get("/json/new").0, 200, "old tools use GET");
    let (status, refused) = put("/json/new");
    assert_eq!((status, &refused["error"]["code"]), (429, &json!("too_many_tabs")));
    let opened = opened["id"].as_str().unwrap();
    assert_eq!(put(&format!("/json/activate/{opened}")).0, 200);
    assert_eq!(put(&format!("/json/close/{opened}")).0, 200);
    for unknown in
        ["/json/close/nothing", "/json/activate/nothing", "/devtools/page/nothing", "/json/other", "/jsonx"]
    {
        assert_eq!(browserd.get(unknown).0, 404, "{unknown}");
    }
    let (status, protocol) = browserd.get("/json/protocol");
    assert_eq!((status, protocol["version"]["major"].as_str()), (200, Some("1")));
    assert!(protocol["domains"].as_array().unwrap().len() > 40);

    // A page that is closed disconnects its client.
    assert_eq!(put(&format!("/json/close/{id}")).0, 200);
    while page.next().await.is_some() {}
    wait("the client to be disconnected", || (browserd.health()["raw_clients"] == 0).then_some(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tab_above_the_limit_is_refused_with_the_limit() {
    let browserd = Browserd::ready(&[]);
    let mut client = RawClient::connect(&browserd).await;
    // All at once, as a client with many tasks does.
    for id in 1..=40 {
        let create = json!({"id": id, "method": "Target.createTarget", "params": {"url": "about:blank"}});
        client.0.send(Message::text(create.to_string())).await.unwrap();
    }
    let (mut created, mut refused) = (0, 0);
    while created + refused < 40 {
        let answer = client.next().await.unwrap();
        if answer["result"]["targetId"].is_string() {
            created += 1;
        } else if answer["id"].is_u64() {
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains("limit of 32 open tabs"), "{answer}");
            refused += 1;
        }
    }
    // One tab was open before.
    assert_eq!((created, refused), (31, 9));
    assert_eq!(browserd.get("/v1/tabs").1["tabs"].as_array().unwrap().len(), 32);
    let events = browserd.post("/v1/events", json!({"max": 500})).1;
    assert!(!events.to_string().contains("tab_refused"), "none was opened and closed again: {events}");
}
