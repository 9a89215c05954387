//! Tests the mouse, form controls, finding, waiting, records and events with a real browser.
#![allow(clippy::unwrap_used)]

mod support;

use browserd::api::types::*;
use browserd::client::Client;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use support::site::{RULE, Site};
use support::{Browserd, code, wait};

fn to(url: String) -> Navigate {
    Navigate { url: Some(url), ..Default::default() }
}

fn at(selector: &str) -> Place {
    Place { selector: Some(selector.into()), ..Default::default() }
}

fn point(x: f64, y: f64) -> Place {
    Place { x: Some(x), y: Some(y), ..Default::default() }
}

async fn value(client: &Client, expression: &str) -> Value {
    client.evaluate(&Evaluate { expression: expression.into(), ..Default::default() }).await.unwrap().value
}

async fn by_name(client: &Client, name: &str) -> String {
    let found =
        client.find(&Find { text: Some(name.into()), exact: true, ..Default::default() }).await.unwrap();
    assert_eq!(found.elements.len(), 1, "{name}: {:?}", found.elements);
    found.elements[0].reference.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mouse_hovers_drags_and_clicks_with_modifiers() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/dnd"))).await.unwrap();
    let hover =
        client.hover(&Hover { selector: Some("#target".into()), ..Default::default() }).await.unwrap();
    assert_eq!(hover.point, Some(Point { x: 460.0, y: 260.0 }));
    assert_eq!(value(&client, "document.querySelector('#target:hover') !== null").await, true);
    assert_eq!(value(&client, "trail.at(-1)").await, json!([460, 260, 0]));

    // An element that follows the mouse, by coordinates and along a path.
    let path = vec![Point { x: 100.0, y: 60.0 }, Point { x: 150.0, y: 90.0 }];
    let drag = Drag { from: at("#handle"), to: point(300.0, 100.0), path, ..Default::default() };
    assert_eq!(client.drag(&drag).await.unwrap().point, Some(Point { x: 300.0, y: 100.0 }));
    assert_eq!(value(&client, "[handle.offsetLeft, handle.offsetTop]").await, json!([280, 80]));
    for passed in ["100,60,1", "150,90,1", "300,100,1"] {
        let seen = format!("trail.some((at) => at.join() === '{passed}')");
        assert_eq!(value(&client, &seen).await, true, "{passed}");
    }
    assert_eq!(value(&client, "log.join()").await, "mousedown:0,mouseup,click");

    // HTML drag and drop, by selector and by ref; the page may refuse to start it.
    let dropped = "dragstart,dragover,drop:carried";
    value(&client, "log.length = 0").await;
    client.drag(&Drag { from: at("#item"), to: at("#target"), ..Default::default() }).await.unwrap();
    let log = value(&client, "log.join()").await;
    assert!(log.as_str().unwrap().contains(dropped), "{log}");
    value(&client, "log.length = 0").await;
    let by_ref = Place { reference: Some(by_name(&client, "item").await), ..Default::default() };
    client.drag(&Drag { from: by_ref, to: at("#target"), ..Default::default() }).await.unwrap();
    let log = value(&client, "log.join()").await;
    assert!(log.as_str().unwrap().contains(dropped), "{log}");
    value(&client, "log.length = 0").await;
    client.drag(&Drag { from: at("#stuck"), to: at("#target"), ..Default::default() }).await.unwrap();
    let log = value(&client, "log.join()").await;
    assert!(
        log.as_str().unwrap().starts_with("mousedown:0,refused") && !log.as_str().unwrap().contains("drop")
    );

    // Single steps: the button stays down between calls; up happens where the pointer is.
    let step = |action, place: Place| Mouse {
        action,
        x: place.x,
        y: place.y,
        selector: place.selector,
        ..Default::default()
    };
    for round in 0..2 {
        value(&client, "log.length = 0").await;
        client.mouse(&step(MouseAction::Down, at("#item"))).await.unwrap();
        client.mouse(&step(MouseAction::Move, point(200.0, 230.0))).await.unwrap();
        client.mouse(&step(MouseAction::Move, at("#target"))).await.unwrap();
        let up = client.mouse(&step(MouseAction::Up, Place::default())).await.unwrap();
        assert_eq!(up.point, Some(Point { x: 460.0, y: 260.0 }));
        let log = value(&client, "log.join()").await;
        assert!(log.as_str().unwrap().contains(dropped), "round {round}: {log}");
    }
    // A drag to an element that does not exist leaves no button down.
    assert_eq!(
        code(client.drag(&Drag { from: at("#handle"), to: at("#none"), ..Default::default() }).await),
        "no_such_element"
    );
    client.hover(&Hover { x: Some(5.0), y: Some(5.0), ..Default::default() }).await.unwrap();
    assert_eq!(value(&client, "trail.at(-1)").await, json!([5, 5, 0]));

    value(&client, "log.length = 0").await;
    let click = Click {
        x: Some(600.0),
        y: Some(400.0),
        modifiers: vec![Modifier::Shift, Modifier::Alt],
        ..Default::default()
    };
    client.click(&click).await.unwrap();
    assert_eq!(value(&client, "log.join()").await, "mousedown:0:shift,mouseup,click:shift:alt");

    let right = Mouse { button: Button::Right, ..step(MouseAction::Down, point(600.0, 400.0)) };
    value(&client, "log.length = 0").await;
    client.mouse(&right).await.unwrap();
    client.mouse(&Mouse { button: Button::Right, ..step(MouseAction::Up, Place::default()) }).await.unwrap();
    assert_eq!(value(&client, "log.join()").await, "mousedown:2,mouseup");

    assert_eq!(code(client.mouse(&step(MouseAction::Move, Place::default())).await), "bad_request");
    assert_eq!(code(client.drag(&Drag { from: at("#item"), ..Default::default() }).await), "bad_request");
    assert_eq!(code(client.hover(&Hover::default()).await), "bad_request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_repeat_and_are_held() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/keys"))).await.unwrap();
    client.press(&Press { key: "x".into(), repeat: Some(3), ..Default::default() }).await.unwrap();
    assert_eq!(value(&client, "field.value").await, "xxx");
    assert_eq!(value(&client, "log.filter((e) => e[0] === 'keydown' && !e[2]).length").await, 3);

    value(&client, "log.length = 0; field.value = ''").await;
    let began = Instant::now();
    client.press(&Press { key: "y".into(), hold_ms: Some(700), ..Default::default() }).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(700));
    let log = value(&client, "log").await;
    let log = log.as_array().unwrap();
    assert_eq!(
        (&log[0], log.last().unwrap()),
        (&json!(["keydown", "y", false]), &json!(["keyup", "y", false]))
    );
    assert!(log[1..log.len() - 1].iter().all(|event| *event == json!(["keydown", "y", true])), "{log:?}");
    assert!(log.len() > 3, "the key repeats: {log:?}");
    assert_eq!(value(&client, "field.value.length").await, log.len() - 1);

    // A short hold does not repeat. A caller that leaves does not leave the key down.
    value(&client, "log.length = 0").await;
    client.press(&Press { key: "Shift".into(), hold_ms: Some(50), ..Default::default() }).await.unwrap();
    assert_eq!(value(&client, "log.length").await, 2);
    value(&client, "log.length = 0").await;
    let long =
        Press { key: "z".into(), hold_ms: Some(60_000), timeout_ms: Some(100_000), ..Default::default() };
    let leaving = browserd.client();
    let cancelled = tokio::time::timeout(Duration::from_millis(300), leaving.press(&long));
    assert!(cancelled.await.is_err());
    drop(leaving);
    wait("the key to be released", || {
        let call = browserd.post("/v1/evaluate", json!({ "expression": "log.at(-1)" }));
        (call.1["value"] == json!(["keyup", "z", false])).then_some(())
    });

    for bad in [
        Press { key: "a".into(), repeat: Some(0), ..Default::default() },
        Press { key: "a".into(), repeat: Some(2), hold_ms: Some(5), ..Default::default() },
        Press { key: "a".into(), hold_ms: Some(500), timeout_ms: Some(400), ..Default::default() },
    ] {
        assert_eq!(code(client.press(&bad).await), "bad_request", "{bad:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn form_controls_get_values() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/controls"))).await.unwrap();
    let of = |selector: &str| SetValue { selector: Some(selector.into()), ..Default::default() };
    let text = |selector: &str, value: &str| SetValue { value: Some(value.into()), ..of(selector) };
    let check = |selector: &str, checked| SetValue { checked: Some(checked), ..of(selector) };

    // A select by value or by label; a change is told once, an unchanged value not at all.
    let set = client.set_value(&text("#colour", "g")).await.unwrap();
    assert_eq!((set.value.as_str(), set.values), ("g", Some(vec!["g".to_owned()])));
    client.set_value(&text("#colour", "g")).await.unwrap();
    assert_eq!(value(&client, "log.splice(0).join()").await, "input:colour,change:colour");
    assert_eq!(client.set_value(&text("#colour", "Red")).await.unwrap().value, "r");
    assert_eq!(client.set_value(&text("#colour", "Green one")).await.unwrap().value, "g");
    let many = |values: &[&str]| SetValue {
        values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
        ..of("#many")
    };
    let set = client.set_value(&many(&["three", "one"])).await.unwrap();
    assert_eq!(set.values.unwrap(), ["one", "three"]);
    assert_eq!(client.set_value(&many(&[])).await.unwrap().values.unwrap(), [] as [&str; 0]);

    // Checkboxes and radio buttons, also by label, by ref and of a component.
    value(&client, "log.length = 0").await;
    assert_eq!(client.set_value(&check("#box", true)).await.unwrap().checked, Some(true));
    assert_eq!(client.set_value(&check("#box", true)).await.unwrap().checked, Some(true));
    assert_eq!(value(&client, "log.splice(0).join()").await, "input:box,change:box");
    client.set_value(&check("#boxlabel", false)).await.unwrap();
    assert_eq!(value(&client, "box.checked").await, false);
    let boxes = Find { role: Some("checkbox".into()), text: Some("agree".into()), ..Default::default() };
    let reference = client.find(&boxes).await.unwrap().elements.remove(0).reference;
    let by_ref = SetValue { reference: Some(reference), checked: Some(true), ..Default::default() };
    client.set_value(&by_ref).await.unwrap();
    assert_eq!(value(&client, "box.checked").await, true);
    client.set_value(&check("#large", true)).await.unwrap();
    assert_eq!(value(&client, "[small.checked, large.checked].join()").await, "false,true");
    assert_eq!(client.set_value(&check("#toggle", true)).await.unwrap().checked, Some(true));

    // Inputs into which nobody types.
    value(&client, "log.length = 0").await;
    assert_eq!(client.set_value(&text("#date", "2026-02-28")).await.unwrap().value, "2026-02-28");
    assert_eq!(client.set_value(&text("#range", "7")).await.unwrap().value, "7");
    assert_eq!(client.set_value(&text("#shade", "#FF8800")).await.unwrap().value, "#ff8800");
    assert_eq!(client.set_value(&text("#plain", "Ada")).await.unwrap().value, "Ada");
    assert_eq!(client.set_value(&text("#area", "a\nb")).await.unwrap().value, "a\nb");
    let log = value(&client, "log.join()").await;
    for id in ["date", "range", "shade", "plain", "area"] {
        assert!(log.as_str().unwrap().contains(&format!("input:{id},change:{id}")), "{log}");
    }
    // A framework that replaces the setter of the element itself notices the change, by selector and by ref.
    value(
        &client,
        "(() => { let told = ''; Object.defineProperty(plain, 'value', { configurable: true,
        get() { return told }, set(text) { told = 'intercepted' } }) })()",
    )
    .await;
    client.set_value(&text("#plain", "Grace")).await.unwrap();
    let plain = Find { placeholder: Some("full name".into()), ..Default::default() };
    let reference = client.find(&plain).await.unwrap().elements.remove(0).reference;
    let by_ref = SetValue { reference: Some(reference), value: Some("Hopper".into()), ..Default::default() };
    client.set_value(&by_ref).await.unwrap();
    assert_eq!(value(&client, "delete plain.value; plain.value").await, "Hopper");

    let refused = [
        (text("#colour", "Mauve"), "invalid_value"),
        (text("#colour", "Blue"), "invalid_value"),
        (SetValue { values: Some(vec![]), ..of("#colour") }, "invalid_value"),
        (check("#colour", true), "invalid_value"),
        (text("#box", "on"), "invalid_value"),
        (check("#large", false), "invalid_value"),
        (check("#stubborn", true), "invalid_value"),
        (text("#date", "tomorrow"), "invalid_value"),
        (text("#range", "99"), "invalid_value"),
        (check("#plain", true), "invalid_value"),
        (text("#locked", "x"), "element_not_editable"),
        (text("#file", "x"), "element_not_editable"),
        (text("#rich", "x"), "element_not_editable"),
        (text("#none", "x"), "no_such_element"),
        (of("#plain"), "bad_request"),
        (SetValue { value: Some("x".into()), ..Default::default() }, "bad_request"),
    ];
    for (request, expected) in refused {
        assert_eq!(code(client.set_value(&request).await), expected, "{request:?}");
    }
    // What was refused has changed nothing.
    assert_eq!(value(&client, "[date.value, range.value, colour.value].join()").await, "2026-02-28,7,g");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elements_are_found_and_parts_of_the_tree_are_read() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/tree"))).await.unwrap();
    let whole = client.snapshot(&Snapshot::default()).await.unwrap();
    let find = |request: Find| {
        let client = &client;
        async move { client.find(&request).await.unwrap().elements }
    };
    // Text is found in any case; a ref of find is the same as that of the snapshot, and both stay valid.
    let found = find(Find { text: Some("DEEP butt".into()), ..Default::default() }).await;
    assert_eq!((found.len(), found[0].role.as_str(), found[0].name.as_str()), (1, "button", "deep button"));
    assert_eq!(whole.refs[&found[0].reference].name, "deep button");
    assert_eq!(client.snapshot(&Snapshot::default()).await.unwrap().refs, whole.refs);
    let links = find(Find { role: Some("Link".into()), ..Default::default() }).await;
    assert_eq!(links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    let exact = Find { text: Some("deep".into()), exact: true, ..Default::default() };
    assert_eq!(find(exact).await, []);
    let one = Find { role: Some("link".into()), max: Some(1), ..Default::default() };
    assert_eq!(client.find(&one).await.unwrap().truncated_to, Some(1));
    let heading = find(Find { text: Some("heading".into()), ..Default::default() }).await;
    assert_eq!((heading.len(), heading[0].role.as_str()), (1, "heading"));
    // An element that is not interactive has a ref too, and can be clicked.
    let clicked =
        client.click(&Click { reference: Some(heading[0].reference.clone()), ..Default::default() }).await;
    assert!(clicked.unwrap().point.is_some());

    // A part of the tree, and its upper levels.
    let content = by_name(&client, "content").await;
    let part = client
        .snapshot(&Snapshot { reference: Some(content.clone()), ..Default::default() })
        .await
        .unwrap()
        .snapshot;
    assert!(part.starts_with("- region \"content\"") && part.contains("deep button"), "{part}");
    assert!(!part.contains("second"), "{part}");
    let upper = client.snapshot(&Snapshot { depth: Some(2), ..Default::default() }).await.unwrap().snapshot;
    assert_eq!(upper, "- main \"page\"\n  - navigation \"menu\" [more]\n  - region \"content\" [more]\n");
    let link = by_name(&client, "first").await;
    client.navigate(&to(site.url("/controls"))).await.unwrap();
    for stale in [&content, &link] {
        let request = Snapshot { reference: Some(stale.clone()), ..Default::default() };
        assert_eq!(code(client.snapshot(&request).await), "stale_ref", "{stale}");
    }

    // Placeholders, alone and with a role; in frames, also in those of another site.
    let found = find(Find { placeholder: Some("full name".into()), ..Default::default() }).await;
    assert_eq!((found.len(), found[0].role.as_str()), (1, "textbox"));
    let typed =
        Type { text: "Ada".into(), reference: Some(found[0].reference.clone()), ..Default::default() };
    client.type_text(&typed).await.unwrap();
    assert_eq!(value(&client, "plain.value").await, "Ada");
    let by_value =
        find(Find { text: Some("ada".into()), role: Some("textbox".into()), ..Default::default() }).await;
    assert_eq!((by_value.len(), by_value[0].value.as_deref()), (1, Some("Ada")));
    let none =
        Find { placeholder: Some("full name".into()), role: Some("button".into()), ..Default::default() };
    assert_eq!(find(none).await, []);
    client.navigate(&to(site.url_at("app.test", "/frames"))).await.unwrap();
    let buttons = Find { text: Some("inner".into()), role: Some("button".into()), ..Default::default() };
    let found = find(buttons).await;
    assert_eq!(found.len(), 2, "{found:?}");
    for element in &found {
        client
            .click(&Click { reference: Some(element.reference.clone()), ..Default::default() })
            .await
            .unwrap();
    }
    assert_eq!(find(Find { text: Some("pressed".into()), ..Default::default() }).await.len(), 2);

    assert_eq!(code(client.find(&Find::default()).await), "bad_request");
    assert_eq!(
        code(client.find(&Find { text: Some(" ".into()), ..Default::default() }).await),
        "bad_request"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_for_elements_texts_urls_and_loads() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    let start = async || {
        client.navigate(&to(site.url("/appear"))).await.unwrap();
        client.click(&Click { selector: Some("#go".into()), ..Default::default() }).await.unwrap();
    };
    let selector = |selector: &str| WaitFor { selector: Some(selector.into()), ..Default::default() };
    start().await;
    let text = WaitFor { text: Some("the result IS".into()), ..Default::default() };
    let waited = client.wait_for(&text).await.unwrap();
    assert!(waited.waited_ms >= 100, "{waited:?}");
    start().await;
    client.wait_for(&selector("#result")).await.unwrap();
    start().await;
    client.wait_for(&WaitFor { gone: true, ..selector("#spinner") }).await.unwrap();
    assert_eq!(value(&client, "result.style.display").await, "block");
    start().await;
    let waited =
        client.wait_for(&WaitFor { url: Some("*/appear?step=*".into()), ..Default::default() }).await;
    assert_eq!(waited.unwrap().url, site.url("/appear?step=2"));
    let where_is = client.url(&Url::default()).await.unwrap();
    assert_eq!((where_is.url, where_is.title.as_str()), (site.url("/appear?step=2"), "appear"));
    // By ref: the element goes away with its ref.
    start().await;
    let spinner = by_name(&client, "Loading, please wait").await;
    let gone = WaitFor { reference: Some(spinner.clone()), gone: true, ..Default::default() };
    client.wait_for(&gone).await.unwrap();
    client.wait_for(&gone).await.unwrap();
    let again = WaitFor { reference: Some(spinner), timeout_ms: Some(500), ..Default::default() };
    assert_eq!(code(client.wait_for(&again).await), "stale_ref");
    // All conditions together; `gone` does not reverse the URL.
    start().await;
    let all = WaitFor {
        text: Some("please wait".into()),
        gone: true,
        url: Some("step=2".into()),
        ..selector("#spinner")
    };
    client.wait_for(&all).await.unwrap();

    // Another call brings about what one waits for, also in another document.
    client.navigate(&to(site.url("/form"))).await.unwrap();
    let other = browserd.client();
    let submitted = WaitFor { load: Some(WaitUntil::Load), ..selector("#got") };
    let (waited, _) = tokio::join!(client.wait_for(&submitted), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        other.click(&Click { selector: Some("#send".into()), ..Default::default() }).await.unwrap()
    });
    assert_eq!(waited.unwrap().url, site.url("/submitted"));

    // What never holds is told by name, and what is hidden is not visible.
    client.navigate(&to(site.url("/form"))).await.unwrap();
    for (never, what) in [
        (selector("#hidden"), "element of the selector is not visible"),
        (WaitFor { text: Some("no such text".into()), ..Default::default() }, "text is not visible"),
        (WaitFor { gone: true, ..selector("#send") }, "still visible"),
        (WaitFor { url: Some("elsewhere".into()), ..Default::default() }, "URL"),
    ] {
        let request = WaitFor { timeout_ms: Some(400), ..never };
        let error = client.wait_for(&request).await.unwrap_err().to_string();
        assert!(error.starts_with("wait_timeout") && error.contains(what), "{error}");
    }
    client
        .navigate(&Navigate { wait_until: WaitUntil::DomContentLoaded, ..to(site.url("/halfslow")) })
        .await
        .unwrap();
    assert!(client.url(&Url::default()).await.unwrap().loading);
    let load = WaitFor { load: Some(WaitUntil::Load), timeout_ms: Some(400), ..Default::default() };
    assert_eq!(code(client.wait_for(&load).await), "wait_timeout");
    assert_eq!(code(client.wait_for(&selector("a[")).await), "invalid_selector");
    assert_eq!(code(client.wait_for(&WaitFor::default()).await), "bad_request");
    assert_eq!(
        code(client.wait_for(&WaitFor { gone: true, url: Some("x".into()), ..Default::default() }).await),
        "bad_request"
    );
    client.navigate(&to(site.url("/title?x"))).await.unwrap();
    assert!(!client.url(&Url::default()).await.unwrap().loading);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn console_and_network_are_recorded_without_secrets() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/secret"))).await.unwrap();
    client.navigate(&to(site.url("/noisy"))).await.unwrap();
    let console = wait("the messages", || {
        let (status, log) = browserd.post("/v1/console", json!({}));
        assert_eq!(status, 200, "{log}");
        (log["messages"].to_string().contains("uncaught one")).then_some(log)
    });
    let messages: Vec<ConsoleMessage> = serde_json::from_value(console["messages"].clone()).unwrap();
    let by_text = |text: &str| {
        messages
            .iter()
            .find(|message| message.text.contains(text))
            .unwrap_or_else(|| panic!("{text}: {messages:?}"))
    };
    let hello = by_text("hello");
    assert_eq!(
        (hello.text.as_str(), hello.level, hello.source.as_str(), hello.line),
        ("hello 7 {a: 1, b: \"x\"} [1, 2]", ConsoleLevel::Info, "console", Some(2))
    );
    assert_eq!(hello.url.as_deref(), Some(site.url("/noisy").as_str()));
    assert_eq!(
        (by_text("careful").level, by_text("detail").level),
        (ConsoleLevel::Warning, ConsoleLevel::Debug)
    );
    assert!(by_text("broken").text.starts_with("Error: broken"));
    let uncaught = by_text("uncaught one");
    assert_eq!((uncaught.level, uncaught.source.as_str()), (ConsoleLevel::Error, "exception"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(messages.iter().all(|message| message.at <= now && message.at > now - 600_000), "{messages:?}");
    let errors = Console { level: Some(ConsoleLevel::Error), ..Default::default() };
    let errors = client.console(&errors).await.unwrap();
    assert!(errors.messages.iter().all(|message| message.level == ConsoleLevel::Error));
    assert_eq!(errors.missed, 0);

    // Requests with status, size, timing and failure.
    let failed = wait("the requests", || {
        let (_, log) = browserd.post("/v1/network", json!({ "failed_only": true }));
        let requests: Vec<NetworkRequest> = serde_json::from_value(log["requests"].clone()).unwrap();
        (requests.len() == 2).then_some(requests)
    });
    let missing = failed.iter().find(|request| request.url == site.url("/status?404")).unwrap();
    assert_eq!((missing.status, missing.kind.as_str()), (Some(404), "Fetch"));
    let closed = failed.iter().find(|request| request.url == "http://closed.test:1/").unwrap();
    assert_eq!(closed.state, NetworkState::Failed);
    assert!(closed.failure.as_ref().unwrap().starts_with("net::ERR_"), "{closed:?}");
    let page = Network { url: Some("/noisy".into()), ..Default::default() };
    let page = client.network(&page).await.unwrap();
    let document = &page.requests[0];
    assert_eq!(
        (document.method.as_str(), document.kind.as_str(), document.status),
        ("GET", "Document", Some(200))
    );
    assert_eq!((document.state, document.mime_type.as_deref()), (NetworkState::Finished, Some("text/html")));
    assert!(document.size.unwrap() > 300 && document.duration_ms.unwrap() > 0.0, "{document:?}");

    // `since` gives what is new; a redirect has an entry for each step.
    client.navigate(&to(site.url("/redirect?1"))).await.unwrap();
    let new = Network { since: Some(page.last), ..Default::default() };
    let steps = wait("the redirect", || {
        let (_, log) = browserd.post("/v1/network", serde_json::to_value(&new).unwrap());
        let requests: Vec<NetworkRequest> = serde_json::from_value(log["requests"].clone()).unwrap();
        requests
            .iter()
            .any(|request| request.url.ends_with("?end") && request.duration_ms.is_some())
            .then_some(requests)
    });
    assert!(
        steps.iter().any(|step| step.state == NetworkState::Redirected && step.status == Some(302)),
        "{steps:?}"
    );
    let later = Console { since: Some(errors.last), ..Default::default() };
    assert_eq!(client.console(&later).await.unwrap().messages, []);

    // A frame of another site, and a popup, are recorded as well; neither headers nor cookies are.
    client.navigate(&to(site.url_at("app.test", "/frames"))).await.unwrap();
    wait("the frame's request", || {
        let (_, log) = browserd.post("/v1/network", json!({ "url": "other.test" }));
        (log["requests"][0]["status"] == 200).then_some(())
    });
    value(&client, "void window.open('/noisy')").await;
    let popup = wait("the popup", || {
        let (_, tabs) = browserd.get("/v1/tabs");
        tabs["tabs"].as_array().unwrap().iter().find(|tab| tab["title"] == "noisy").cloned()
    });
    wait("the popup's messages", || {
        let (_, log) = browserd.post("/v1/console", json!({ "tab": popup["tab"] }));
        log["messages"].to_string().contains("hello 7").then_some(())
    });
    let everything =
        format!("{:?}", client.network(&Network { max: Some(1000), ..Default::default() }).await.unwrap());
    assert!(everything.contains("/secret") && !everything.contains("canary"), "{everything}");
    assert_eq!(client.cookies().await.unwrap().cookies.len(), 1, "the cookie was there to be seen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_writes_without_end_does_not_fill_browserds_memory() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/title?flood"))).await.unwrap();
    value(&client, "for (let i = 0; i < 20000; i++) console.log('x'.repeat(3000), { i }); 0").await;
    let log = client.console(&Console { max: Some(1000), ..Default::default() }).await.unwrap();
    assert_eq!((log.messages.len(), log.last, log.missed), (300, 20_000, 19_700));
    let newest = &log.messages.last().unwrap().text;
    assert_eq!(newest.chars().count(), 2001, "shortened");
    let status = std::fs::read_to_string(format!("/proc/{}/status", browserd.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = resident.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kilobytes < 200_000, "{resident}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tabs_downloads_dialogs_and_restarts_are_events() {
    let (browserd, site) = (Browserd::ready(&[RULE, "--max-tabs", "2"]), Site::start().await);
    let client = browserd.client();
    let first = client.events(&Events::default()).await.unwrap();
    assert_eq!((first.events[0].kind, first.events[0].tab.as_deref()), (EventKind::BrowserReady, Some("t1")));
    assert_eq!((first.events.len(), first.browser_generation), (1, 1), "{first:?}");
    let mut since = first.last;
    let mut next = async |kind: EventKind| {
        loop {
            let request = Events { since: Some(since), max: Some(1), wait_ms: Some(200_000) };
            let list = client.events(&request).await.unwrap();
            since = list.last;
            match list.events.into_iter().next() {
                Some(event) if event.kind == kind => return event,
                Some(_) => {}
                None => panic!("no event {kind:?}"),
            }
        }
    };
    let caller = browserd.client();
    caller.navigate(&to(site.url("/popup"))).await.unwrap();
    assert_eq!(next(EventKind::TabNavigated).await.url, Some(site.url("/popup")));
    caller.click(&Click { selector: Some("#open".into()), ..Default::default() }).await.unwrap();
    let opened = next(EventKind::TabOpened).await;
    assert_eq!((opened.tab.as_deref(), opened.opener.as_deref()), (Some("t2"), Some("t1")));
    caller.click(&Click { selector: Some("#open".into()), ..Default::default() }).await.unwrap();
    assert_eq!(next(EventKind::TabRefused).await.tab.as_deref(), Some("t3"));
    caller.close_tab("t2").await.unwrap();
    while next(EventKind::TabClosed).await.tab.as_deref() != Some("t2") {}

    caller.navigate(&to(site.url("/download?10"))).await.unwrap();
    let started = next(EventKind::DownloadStarted).await;
    assert_eq!(
        (started.suggested_filename.as_deref(), started.url),
        (Some("report.csv"), Some(site.url("/download?10")))
    );
    let completed = next(EventKind::DownloadCompleted).await;
    assert_eq!((completed.guid, completed.bytes), (started.guid, Some(190)));

    caller.navigate(&to(site.url("/dialogs"))).await.unwrap();
    caller.click(&Click { selector: Some("#confirm".into()), ..Default::default() }).await.unwrap();
    let dialog = next(EventKind::Dialog).await.dialog.unwrap();
    assert_eq!((dialog.kind.as_str(), dialog.message.as_str(), dialog.accepted), ("confirm", "sure?", false));
    let dialogs = caller.recent_dialogs().await.unwrap().dialogs;
    assert_eq!((dialogs.len(), dialogs[0].tab.as_str(), &dialogs[0].dialog), (1, "t1", &dialog));

    // After a crash the numbers go on, the tabs' ids are new, and the profile has another generation.
    assert_eq!(caller.tabs().await.unwrap().browser_generation, 1);
    let pid = browserd.health()["browser_pid"].as_u64().unwrap();
    support::signal(pid as u32, nix::sys::signal::Signal::SIGKILL);
    assert!(next(EventKind::BrowserEnded).await.reason.unwrap().starts_with("signal 9"));
    let ready = next(EventKind::BrowserReady).await;
    assert_eq!(ready.tab.as_deref(), Some("t4"));
    let tabs = caller.tabs().await.unwrap();
    assert_eq!((tabs.browser_generation, tabs.tabs.len(), tabs.tabs[0].tab.as_str()), (2, 1, "t4"));
    let health = browserd.health();
    assert_eq!((&health["browser_generation"], &health["restarts"]), (&json!(2), &json!(1)));
    assert_eq!(
        code(caller.text(&Text { tab: Some("t1".into()), ..Default::default() }).await),
        "no_such_tab"
    );
    assert_eq!(caller.recent_dialogs().await.unwrap().dialogs.len(), 0);
}
