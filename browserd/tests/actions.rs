//! Tests every endpoint and every error of a tab with a real browser.
#![allow(clippy::unwrap_used)]

mod support;

use base64::Engine;
use browserd::api::types::*;
use serde_json::json;
use support::site::{RULE, Site};
use support::{Browserd, code};

fn to(url: String) -> Navigate {
    Navigate { url: Some(url), ..Default::default() }
}

fn click(selector: &str) -> Click {
    Click { selector: Some(selector.into()), ..Default::default() }
}

fn script(expression: &str) -> Evaluate {
    Evaluate { expression: expression.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn navigation_follows_redirects_history_and_deadlines() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();

    let plain = client.navigate(&to(site.url("/title?one"))).await.unwrap();
    assert_eq!((plain.status, plain.title.as_str()), (Some(200), "one"));
    assert_eq!(plain.final_url, site.url("/title?one"));
    let redirected = client.navigate(&to(site.url("/redirect?3"))).await.unwrap();
    assert_eq!((redirected.final_url, redirected.title.as_str()), (site.url("/title?end"), "end"));
    let missing = client.navigate(&to(site.url("/missing"))).await.unwrap();
    assert_eq!((missing.status, missing.title.as_str()), (Some(404), "missing"));
    assert_eq!(client.navigate(&to(site.url("/status?503"))).await.unwrap().status, Some(503));
    let network_idle = Navigate { wait_until: WaitUntil::NetworkIdle, ..to(site.url("/jsredirect")) };
    assert_eq!(client.navigate(&network_idle).await.unwrap().title, "byscript");
    let pictured = Navigate { after_screenshot: true, ..to(site.url("/title?two")) };
    assert!(client.navigate(&pictured).await.unwrap().after_screenshot.is_some());

    let history = |history| Navigate { history: Some(history), ..Default::default() };
    assert_eq!(client.navigate(&history(History::Back)).await.unwrap().title, "byscript");
    assert_eq!(client.navigate(&history(History::Forward)).await.unwrap().title, "two");
    assert_eq!(client.navigate(&history(History::Reload)).await.unwrap().title, "two");
    assert_eq!(code(client.navigate(&history(History::Forward)).await), "navigation_failed");
    // A navigation within the document loads nothing.
    assert_eq!(client.navigate(&to(site.url("/title?two#part"))).await.unwrap().title, "two");

    // A slow page: states that it reaches succeed, others time out, and the tab stays usable.
    let half = |wait_until| Navigate { wait_until, ..to(site.url("/halfslow")) };
    assert_eq!(client.navigate(&half(WaitUntil::DomContentLoaded)).await.unwrap().title, "half");
    assert_eq!(client.navigate(&half(WaitUntil::Commit)).await.unwrap().status, Some(200));
    let never = Navigate { timeout_ms: Some(1500), ..half(WaitUntil::Load) };
    assert_eq!(code(client.navigate(&never).await), "navigation_timeout");
    let slow = Navigate { timeout_ms: Some(700), ..to(site.url("/slow")) };
    assert_eq!(code(client.navigate(&slow).await), "navigation_timeout");
    assert_eq!(client.navigate(&to(site.url("/title?after"))).await.unwrap().title, "after");

    // A closed port, an empty response, URLs that are not allowed.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(code(client.navigate(&to(format!("http://{closed}/"))).await), "navigation_failed");
    assert_eq!(code(client.navigate(&to(site.url("/nocontent"))).await), "navigation_failed");
    for bad in ["file:///etc/passwd", "chrome://version", "javascript:1", "nonsense", ""] {
        assert_eq!(code(client.navigate(&to(bad.into())).await), "bad_request", "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_are_filled_with_text_keys_and_clicks() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/form"))).await.unwrap();
    let value =
        |expression: &'static str| async { client.evaluate(&script(expression)).await.unwrap().value };
    let into = |selector: &str, text: &str| Type {
        text: text.into(),
        selector: Some(selector.into()),
        ..Default::default()
    };

    client.type_text(&into("#name", " and more")).await.unwrap();
    assert_eq!(value("document.querySelector('#name').value").await, "old and more");
    client.type_text(&Type { clear: true, ..into("#name", "new äöü 漢字 🙂") }).await.unwrap();
    assert_eq!(value("document.querySelector('#name').value").await, "new äöü 漢字 🙂");
    client.type_text(&Type { clear: true, ..into("#name", "") }).await.unwrap();
    assert_eq!(value("document.querySelector('#name').value").await, "");
    client.type_text(&into("#rich", "er")).await.unwrap();
    assert_eq!(value("document.querySelector('#rich').textContent").await, "richer");
    client.type_text(&into("#mail", "a@example.org")).await.unwrap();
    client.type_text(&Type { keys: true, ..into("#notes", "Hi!\nü") }).await.unwrap();
    assert_eq!(value("document.querySelector('#notes').value").await, "Hi!\nü");
    assert!(value("log.join()").await.as_str().unwrap().contains("keydown:H,input:H,keyup:H"));
    // Without a target, keys and text go to the focused element.
    let press = |key: &str| Press { key: key.into(), ..Default::default() };
    client.press(&press("Control+A")).await.unwrap();
    client.press(&press("Backspace")).await.unwrap();
    client.type_text(&Type { text: "focused".into(), ..Default::default() }).await.unwrap();
    assert_eq!(value("document.querySelector('#notes').value").await, "focused");
    client.press(&press("Shift+Tab")).await.unwrap();
    assert_eq!(value("document.activeElement.id").await, "mail");

    assert_eq!(code(client.type_text(&into("#fixed", "x")).await), "element_not_editable");
    assert_eq!(code(client.type_text(&into("#agree", "x")).await), "element_not_editable");
    assert_eq!(code(client.type_text(&into("#none", "x")).await), "no_such_element");
    assert_eq!(code(client.click(&click("#hidden")).await), "element_not_visible");
    assert_eq!(code(client.click(&click("#none")).await), "no_such_element");
    assert_eq!(code(client.click(&click("a[")).await), "invalid_selector");
    assert_eq!(code(client.click(&Click::default()).await), "bad_request");
    assert_eq!(code(client.press(&press("Hyper+Foo")).await), "bad_request");

    // Clicks by selector, also outside the viewport; by point; a double click; the right button.
    client.click(&click("#later")).await.unwrap();
    assert_eq!(value("log.includes('later')").await, true);
    let clicked = client.click(&click("#agree")).await.unwrap().point.unwrap();
    assert_eq!(value("document.querySelector('#agree').checked").await, true);
    let point =
        Click { x: Some(clicked.x), y: Some(clicked.y), after_screenshot: true, ..Default::default() };
    assert!(client.click(&point).await.unwrap().after_screenshot.is_some());
    assert_eq!(value("document.querySelector('#agree').checked").await, false);
    client.click(&Click { count: Some(2), ..click("h1") }).await.unwrap();
    client.click(&Click { button: Button::Right, ..click("h1") }).await.unwrap();
    let log = value("log.join()").await;
    assert!(
        log.as_str().unwrap().contains("dblclick") && log.as_str().unwrap().contains("contextmenu"),
        "{log}"
    );

    client.type_text(&Type { submit: true, clear: true, ..into("#name", "sent") }).await.unwrap();
    support::wait("the submitted form", || {
        let (_, tabs) = browserd.get("/v1/tabs");
        (tabs["tabs"][0]["title"] == "submitted").then_some(())
    });
    let text = client.text(&Text { selector: Some("#got".into()), ..Default::default() }).await.unwrap().text;
    assert!(text.contains("name=sent") && text.contains("notes=focused"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_read_captured_scrolled_and_printed() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/links"))).await.unwrap();
    let links = client.links(&Links::default()).await.unwrap();
    let seen: Vec<_> = links.links.iter().map(|link| (link.url.as_str(), link.text.as_str())).collect();
    assert_eq!(
        seen,
        [(site.url("/form").as_str(), "the form"), ("https://elsewhere.example/x?y=1#z", "elsewhere")]
    );
    assert_eq!(
        client.links(&Links { max: Some(1), ..Default::default() }).await.unwrap().truncated_to,
        Some(1)
    );
    let text = client.text(&Text::default()).await.unwrap();
    assert_eq!((text.text.as_str(), text.truncated_to), ("the form elsewhereno", None));
    let dom = client.read_dom(&ReadDom::default()).await.unwrap();
    assert!(
        dom.html.contains("<a href=\"/form\">the form</a>") && dom.truncated_to.is_none(),
        "{}",
        dom.html
    );
    let cut = client.read_dom(&ReadDom { max_chars: Some(10), ..Default::default() }).await.unwrap();
    assert_eq!((cut.html.chars().count(), cut.truncated_to), (10, Some(10)));
    let one = ReadDom { selector: Some("b".into()), ..Default::default() };
    assert_eq!(client.read_dom(&one).await.unwrap().html, "<b>else</b>");
    let none = ReadDom { selector: Some("nav".into()), ..Default::default() };
    assert_eq!(code(client.read_dom(&none).await), "no_such_element");

    // evaluate: values, promises, undefined, exceptions, an endless loop.
    assert_eq!(
        client.evaluate(&script("({a: [1, 'x', null]})")).await.unwrap().value,
        json!({"a": [1, "x", null]})
    );
    assert_eq!(client.evaluate(&script("Promise.resolve(7)")).await.unwrap().value, 7);
    assert_eq!(client.evaluate(&script("undefined")).await.unwrap().kind, "undefined");
    assert_eq!(code(client.evaluate(&script("throw new Error('mine')")).await), "script_error");
    assert_eq!(code(client.evaluate(&script("syntax error here")).await), "script_error");
    // Chromium reports a terminated script in several ways. All are a timeout, and the tab stays usable.
    let endless = Evaluate { timeout_ms: Some(100), ..script("for (;;);") };
    for _ in 0..20 {
        assert_eq!(code(client.evaluate(&endless).await), "timeout");
        assert_eq!(client.evaluate(&script("1 + 1")).await.unwrap().value, 2);
    }
    // browserd's scripts are not affected when the page replaces built-in functions.
    client.evaluate(&script("Document.prototype.querySelector = () => null; 0")).await.unwrap();
    assert_eq!(client.read_dom(&one).await.unwrap().html, "<b>else</b>");

    client.navigate(&to(site.url("/tall"))).await.unwrap();
    let start =
        |picture: &Picture| base64::engine::general_purpose::STANDARD.decode(&picture.image_base64).unwrap();
    let picture = client.screenshot(&Screenshot::default()).await.unwrap();
    assert_eq!((picture.width, picture.height), (1280, 720));
    assert!(start(&picture).starts_with(b"\x89PNG"));
    let full =
        Screenshot { full_page: true, format: ImageFormat::Jpeg, quality: Some(50), ..Default::default() };
    let picture = client.screenshot(&full).await.unwrap();
    assert_eq!((picture.width, picture.height), (1280, 5000));
    assert!(start(&picture).starts_with(b"\xff\xd8"));
    let clip = Some(Clip { x: 10.0, y: 4000.0, width: 33.0, height: 21.0 });
    let picture = client
        .screenshot(&Screenshot { clip, format: ImageFormat::Webp, ..Default::default() })
        .await
        .unwrap();
    assert_eq!((picture.width, picture.height), (33, 21));
    assert_eq!(&start(&picture)[8..12], b"WEBP");
    let clip = Some(Clip { x: 0.0, y: 0.0, width: 100_000.0, height: 100_000.0 });
    assert_eq!(
        code(client.screenshot(&Screenshot { clip, ..Default::default() }).await),
        "screenshot_too_large"
    );
    let quality = Screenshot { quality: Some(5), ..Default::default() };
    assert_eq!(code(client.screenshot(&quality).await), "bad_request");

    let scrolled = client.scroll(&Scroll { dy: 700.0, ..Default::default() }).await.unwrap();
    assert!(scrolled.position.y > 0.0, "{scrolled:?}");
    let low = Scroll { selector: Some("#low".into()), ..Default::default() };
    assert!(client.scroll(&low).await.unwrap().position.y > 3000.0);
    assert_eq!(code(client.scroll(&Scroll::default()).await), "bad_request");

    let pdf = client.pdf(&Pdf { landscape: true, background: true, ..Default::default() }).await.unwrap();
    let pdf = base64::engine::general_purpose::STANDARD.decode(pdf.pdf_base64).unwrap();
    assert!(pdf.starts_with(b"%PDF-"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elements_in_frames_and_shadow_roots_are_found_by_selector_or_ref() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url_at("app.test", "/shadow"))).await.unwrap();
    client.click(&click("#deep")).await.unwrap();
    let tabs = || async { client.tabs().await.unwrap().tabs };
    assert_eq!(client.evaluate(&script("document.title")).await.unwrap().value, "deep hit");
    let snapshot = client.snapshot(&Snapshot::default()).await.unwrap();
    let by_name = |snapshot: &PageSnapshot, name: &str| {
        let all: Vec<String> =
            snapshot.refs.iter().filter(|(_, info)| info.name == name).map(|(id, _)| id.clone()).collect();
        assert!(!all.is_empty(), "{name} is missing in\n{}", snapshot.snapshot);
        all
    };
    let field = by_name(&snapshot, "deepfield").remove(0);
    let typed = Type { text: "by ref".into(), reference: Some(field), ..Default::default() };
    client.type_text(&typed).await.unwrap();
    let dom = client.read_dom(&ReadDom::default()).await.unwrap().html;
    assert!(dom.contains("<template shadowrootmode=\"open\"><button id=\"deep\">"), "{dom}");
    let value = "host.shadowRoot.querySelector('#deepfield').value";
    assert_eq!(client.evaluate(&script(value)).await.unwrap().value, "by ref");

    // Selectors find elements in same-origin frames; refs also reach cross-site frames.
    client.navigate(&to(site.url_at("app.test", "/frames"))).await.unwrap();
    client.click(&click("#inner")).await.unwrap();
    let same = "document.querySelector('#same').contentDocument.querySelector('#inner').textContent";
    assert_eq!(client.evaluate(&script(same)).await.unwrap().value, "pressed");
    let snapshot = client.snapshot(&Snapshot { interactive_only: true, ..Default::default() }).await.unwrap();
    assert!(!snapshot.snapshot.contains("outside"), "{}", snapshot.snapshot);
    let button = by_name(&snapshot, "inner").remove(0);
    client.click(&Click { reference: Some(button), ..Default::default() }).await.unwrap();
    let after = client.snapshot(&Snapshot::default()).await.unwrap();
    assert_eq!(by_name(&after, "pressed").len(), 2, "{}", after.snapshot);
    assert!(after.snapshot.contains("outside"));
    for field in by_name(&after, "field") {
        let typed = Type { text: "framed".into(), reference: Some(field), ..Default::default() };
        client.type_text(&typed).await.unwrap();
    }
    let filled = client.snapshot(&Snapshot::default()).await.unwrap().snapshot;
    assert_eq!(filled.matches("\"framed\"").count(), 2, "{filled}");

    // Nested cross-site frames.
    client.navigate(&to(site.url_at("app.test", "/outer"))).await.unwrap();
    let nested = loop {
        let snapshot = client.snapshot(&Snapshot::default()).await.unwrap();
        if snapshot.refs.values().any(|info| info.name == "inner") {
            break snapshot;
        }
    };
    let button = by_name(&nested, "inner").remove(0);
    client.click(&Click { reference: Some(button), ..Default::default() }).await.unwrap();
    let nested = client.snapshot(&Snapshot::default()).await.unwrap();
    assert_eq!(by_name(&nested, "pressed").len(), 1, "{}", nested.snapshot);

    // A ref becomes stale with its document or its element.
    let stale = Click { reference: Some("@e1".into()), ..Default::default() };
    client.navigate(&to(site.url("/form"))).await.unwrap();
    assert_eq!(code(client.click(&stale).await), "stale_ref");
    let snapshot = client.snapshot(&Snapshot::default()).await.unwrap();
    let send = by_name(&snapshot, "Send").remove(0);
    client.evaluate(&script("document.querySelector('#send').remove()")).await.unwrap();
    assert_eq!(code(client.click(&Click { reference: Some(send), ..Default::default() }).await), "stale_ref");
    let wrong = Click { reference: Some("e-1".into()), ..Default::default() };
    assert_eq!(code(client.click(&wrong).await), "bad_request");
    assert_eq!(tabs().await.len(), 1);
    let cut = client.snapshot(&Snapshot { max_chars: Some(30), ..Default::default() }).await.unwrap();
    assert!(cut.snapshot.len() <= 30 && cut.truncated_to == Some(30), "{cut:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tabs_popups_dialogs_and_downloads_are_managed() {
    let extra = [RULE, "--max-tabs", "4", "--max-download", "100000"];
    let (browserd, site) = (Browserd::ready(&extra), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/popup"))).await.unwrap();
    client.click(&click("#open")).await.unwrap();
    let popup = support::wait("the popup", || {
        let (_, tabs) = browserd.get("/v1/tabs");
        tabs["tabs"].as_array().unwrap().iter().find(|tab| tab["title"] == "form").cloned()
    });
    assert_eq!((&popup["opener"], &popup["active"]), (&json!("t1"), &json!(false)));
    let in_popup = Type {
        text: "typed".into(),
        selector: Some("#mail".into()),
        tab: Some("t2".into()),
        ..Default::default()
    };
    client.type_text(&in_popup).await.unwrap();
    client.activate_tab("t2").await.unwrap();
    assert_eq!(
        client.evaluate(&script("document.querySelector('#mail').value")).await.unwrap().value,
        "typed"
    );
    client.close_tab("t2").await.unwrap();
    assert_eq!(code(client.close_tab("t2").await), "no_such_tab");
    assert_eq!(
        code(client.text(&Text { tab: Some("t9".into()), ..Default::default() }).await),
        "no_such_tab"
    );
    assert_eq!(client.text(&Text::default()).await.unwrap().text.lines().next(), Some("openblank"));

    for _ in 0..3 {
        client.open_tab(&NewTab { background: true, ..Default::default() }).await.unwrap();
    }
    assert_eq!(code(client.open_tab(&NewTab::default()).await), "too_many_tabs");
    client.click(&click("#open")).await.unwrap();
    for tab in client.tabs().await.unwrap().tabs.iter().skip(1) {
        client.close_tab(&tab.tab).await.unwrap_or(Done { success: true });
    }
    support::wait("the tabs to close", || {
        (browserd.get("/v1/tabs").1["tabs"].as_array().unwrap().len() == 1).then_some(())
    });

    client.navigate(&to(site.url("/dialogs"))).await.unwrap();
    let title = || async { client.evaluate(&script("document.title")).await.unwrap().value };
    client.click(&click("#alert")).await.unwrap();
    assert_eq!(title().await, "after alert");
    client.click(&click("#confirm")).await.unwrap();
    assert_eq!(title().await, "confirm false");
    client.click(&click("#prompt")).await.unwrap();
    assert_eq!(title().await, "prompt null");
    client
        .dialogs(&Dialogs { accept: true, prompt_text: Some("somebody".into()), ..Default::default() })
        .await
        .unwrap();
    client.click(&click("#confirm")).await.unwrap();
    assert_eq!(title().await, "confirm true");
    client.click(&click("#prompt")).await.unwrap();
    assert_eq!(title().await, "prompt somebody");
    let tab = client.tabs().await.unwrap().tabs.remove(0);
    assert_eq!((tab.dialogs, tab.last_dialog.unwrap().message.as_str()), (5, "name?"));

    // beforeunload dialogs block neither navigation nor closing.
    for _ in 0..2 {
        client.navigate(&to(site.url("/beforeunload"))).await.unwrap();
        client.click(&click("#touch")).await.unwrap();
    }
    assert_eq!(client.navigate(&to(site.url("/title?left"))).await.unwrap().title, "left");
    let tab = client
        .open_tab(&NewTab { url: Some(site.url("/beforeunload")), ..Default::default() })
        .await
        .unwrap()
        .tab;
    client.click(&click("#touch")).await.unwrap();
    client.close_tab(&tab).await.unwrap();

    let download = client.navigate(&to(site.url("/download?10"))).await.unwrap();
    assert!(download.download);
    let finished = |at: usize, state: &'static str| {
        support::wait("the download", || {
            let (_, list) = browserd.get("/v1/downloads");
            (list["downloads"][at]["state"] == state).then(|| list["downloads"][at].clone())
        })
    };
    let done = finished(0, "completed");
    assert_eq!((&done["suggested_filename"], &done["received_bytes"]), (&json!("report.csv"), &json!(190)));
    let file = browserd.data().join("downloads").join(done["guid"].as_str().unwrap());
    assert_eq!(std::fs::read_to_string(file).unwrap(), "the file's content\n".repeat(10));
    client.navigate(&to(site.url("/download?100000"))).await.unwrap();
    finished(1, "canceled");

    // A call without open tabs opens one.
    for tab in client.tabs().await.unwrap().tabs {
        client.close_tab(&tab.tab).await.unwrap();
    }
    assert_eq!(client.navigate(&to(site.url("/title?fresh"))).await.unwrap().title, "fresh");
}
