//! What pages, popups, frames and workers see of a real Chromium, and what a server receives from it.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use support::Browserd;

const SHELL: &str = "/usr/lib/chromium/chromium-headless-shell";
const FULL: &str = "/usr/lib/chromium/chromium";

/// Reads everything in the page or worker that runs it.
const READ: &str = r#"
async function read() {
  const seen = {
    agent: navigator.userAgent, version: navigator.appVersion, language: navigator.language,
    languages: navigator.languages, locale: Intl.DateTimeFormat().resolvedOptions().locale,
    zone: Intl.DateTimeFormat().resolvedOptions().timeZone, number: (1234.5).toLocaleString(),
    offset: new Date(1e12).getTimezoneOffset(), date: new Date(1e12).toString(),
    brands: navigator.userAgentData.brands.map((brand) => brand.brand + ' ' + brand.version),
    notification: Notification.permission,
    permission: (await navigator.permissions.query({ name: 'notifications' })).state,
  };
  const hints = await navigator.userAgentData.getHighEntropyValues(['fullVersionList', 'platform', 'bitness']);
  seen.full = hints.fullVersionList.map((brand) => brand.brand + ' ' + brand.version);
  return seen;
}"#;

const PAGE: &str = r#"<!doctype html><title>page</title><script>READ
async function all() {
  const seen = { page: await read() };
  seen.page.window = [innerWidth, innerHeight, outerWidth, outerHeight];
  seen.page.screen = [screen.width, screen.height, screen.availWidth, screen.availHeight];
  seen.page.media = ['(hover: hover)', '(pointer: fine)', `(device-width: ${screen.width}px)`]
    .map((query) => matchMedia(query).matches);
  const answer = (target) => new Promise((resolve) => { target.onmessage = (event) => resolve(event.data); });
  seen.worker = await answer(new Worker('/worker.js'));
  seen.shared = await answer(new SharedWorker('/shared.js').port);
  const registration = await navigator.serviceWorker.register('/service.js');
  await navigator.serviceWorker.ready;
  const service = answer(navigator.serviceWorker);
  registration.active.postMessage('go');
  seen.service = await service;
  const popup = answer(window);
  open('/popup');
  seen.popup = await popup;
  return seen;
}</script>"#;

type Headers = Arc<Mutex<HashMap<String, HashMap<String, String>>>>;

/// A site that keeps the headers of the first request of each path.
async fn site() -> (SocketAddr, Headers) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, headers) = (listener.local_addr().unwrap(), Headers::default());
    let kept = headers.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = kept.clone();
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let path = request.uri().path().to_owned();
                let received = request.headers().iter();
                let received =
                    received.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
                kept.lock().unwrap().entry(path.clone()).or_insert_with(|| received.collect());
                async move { Ok::<_, Infallible>(answer(&path)) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, headers)
}

fn answer(path: &str) -> Response<Full<Bytes>> {
    let (kind, text) = match path {
        "/" => ("text/html; charset=utf-8", PAGE.replace("READ", READ)),
        "/popup" => (
            "text/html",
            format!("<script>{READ} read().then((seen) => opener.postMessage(seen, '*'))</script>"),
        ),
        "/worker.js" => (
            "text/javascript",
            format!("{READ} read().then((seen) => fetch('/from-worker').then(() => postMessage(seen)))"),
        ),
        "/shared.js" => (
            "text/javascript",
            format!("{READ} onconnect = (e) => read().then((seen) => e.ports[0].postMessage(seen))"),
        ),
        "/service.js" => (
            "text/javascript",
            format!("{READ} onmessage = (e) => read().then((seen) => e.source.postMessage(seen))"),
        ),
        "/fonts" => (
            "text/html; charset=utf-8",
            "<p id=cjk>漢字かな한글</p><p id=emoji>😀🚀</p><p id=latin style='font-family:Arial'>Text</p>"
                .into(),
        ),
        _ => ("text/plain", String::new()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    let headers = response.headers_mut();
    headers.insert("content-type", kind.parse().unwrap());
    headers.insert("accept-ch", "Sec-CH-UA-Full-Version-List".parse().unwrap());
    response
}

/// What everything sees, and the headers by path.
async fn look(chromium: &str, arguments: &[&str]) -> (Value, HashMap<String, HashMap<String, String>>) {
    let (address, headers) = site().await;
    let browserd = Browserd::start_with(Path::new(chromium), arguments);
    browserd.wait_ready();
    let (status, answer) = tokio::task::spawn_blocking(move || {
        let (status, answer) = browserd.post("/v1/navigate", json!({ "url": format!("http://{address}/") }));
        assert_eq!(status, 200, "{answer}");
        browserd.post("/v1/evaluate", json!({ "expression": "all()" }))
    })
    .await
    .unwrap();
    assert_eq!(status, 200, "{answer}");
    let seen = answer.pointer("/value").cloned().unwrap_or_else(|| panic!("{answer}"));
    let headers = headers.lock().unwrap().clone();
    (seen, headers)
}

const PLACES: [&str; 5] = ["page", "worker", "shared", "service", "popup"];

/// Every place sees the same as the page, and the permission is consistent.
fn assert_consistent(seen: &Value) {
    for place in PLACES {
        for key in [
            "agent",
            "version",
            "languages",
            "language",
            "locale",
            "zone",
            "number",
            "offset",
            "brands",
            "full",
        ] {
            assert_eq!(seen[place][key], seen["page"][key], "{place} {key}: {seen:#}");
        }
        assert_eq!(seen[place]["notification"], "denied", "{place}");
        assert_eq!(seen[place]["permission"], "denied", "{place}");
    }
    let number = |key: &str, at: usize| seen["page"][key][at].as_u64().unwrap();
    for axis in [0, 1] {
        assert!(number("screen", axis) >= number("window", axis + 2), "{seen:#}");
        assert!(number("screen", axis + 2) >= number("window", axis + 2), "{seen:#}");
    }
    assert_eq!(seen["page"]["media"], json!([true, true, true]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_defaults_are_consistent() {
    for chromium in [SHELL, FULL] {
        let (seen, headers) = look(chromium, &[]).await;
        assert_consistent(&seen);
        assert_eq!(seen["page"]["languages"], json!(["en-US"]));
        assert!(seen["page"]["agent"].as_str().unwrap().contains("HeadlessChrome"), "{seen:#}");
        assert_eq!(seen["page"]["window"][2], 1280);
        for path in ["/", "/worker.js", "/from-worker", "/shared.js", "/service.js", "/popup"] {
            // The full Chromium adds the language without its region.
            let expected = if chromium == SHELL { "en-US" } else { "en-US,en;q=0.9" };
            assert_eq!(headers[path]["accept-language"], expected, "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_reach_pages_popups_and_workers() {
    for chromium in [SHELL, FULL] {
        let arguments = [
            "--languages=de-CH,de,en",
            "--timezone=Asia/Kolkata",
            "--window=2200x900",
            "--user-agent=ordinary",
        ];
        let (seen, headers) = look(chromium, &arguments).await;
        assert_consistent(&seen);
        let page = &seen["page"];
        assert_eq!(page["languages"], json!(["de-CH", "de", "en"]));
        assert_eq!(page["locale"], "de-CH");
        assert_eq!(page["number"], "1'234.5");
        assert_eq!(page["zone"], "Asia/Calcutta");
        assert_eq!(page["offset"], -330);
        assert_eq!(page["window"][2], 2200);
        for place in PLACES {
            assert!(!seen[place].to_string().contains("Headless"), "{place}: {seen:#}");
        }
        assert!(page["brands"].as_array().unwrap().len() == 2, "{seen:#}");
        for (path, headers) in &headers {
            assert!(!format!("{headers:?}").contains("Headless"), "{path}: {headers:?}");
            // The headless shell requests the scripts of service and shared workers without weights.
            let languages = headers["accept-language"].split(',').map(|part| part.split(';').next().unwrap());
            assert_eq!(languages.collect::<Vec<_>>(), ["de-CH", "de", "en"], "{path}");
            assert_eq!(headers["user-agent"], page["agent"].as_str().unwrap(), "{path}");
        }
        for path in ["/", "/popup"] {
            assert_eq!(headers[path]["accept-language"], "de-CH,de;q=0.9,en;q=0.8", "{path}");
        }
        assert!(headers["/popup"]["sec-ch-ua"].contains("Chromium"), "{headers:?}");
    }
}

/// The brands that browserd computes are those of an ordinary Chromium of this version.
#[tokio::test(flavor = "multi_thread")]
async fn ordinary_client_hints_are_those_of_chromium_itself() {
    let (full, _) = look(FULL, &[]).await;
    let (shell, _) = look(SHELL, &["--user-agent=ordinary"]).await;
    for key in ["brands", "full"] {
        assert_eq!(shell["page"][key], full["page"][key]);
    }
    let honest = full["page"]["agent"].as_str().unwrap();
    assert_eq!(shell["page"]["agent"], honest.replace("HeadlessChrome", "Chrome"));
}

/// Chinese, Japanese and Korean text and emoji have glyphs: the fonts that draw them are real ones for their scripts.
#[tokio::test(flavor = "multi_thread")]
async fn text_of_every_script_is_drawn_by_a_font_that_has_it() {
    let (address, _) = site().await;
    let browserd = Browserd::ready(&[]);
    let (status, answer) = browserd.post("/v1/navigate", json!({ "url": format!("http://{address}/fonts") }));
    assert_eq!(status, 200, "{answer}");
    // A glyph that no font has is drawn as the same box for every character.
    let script = r#"(() => {
      const pixels = (text, font) => {
        const canvas = new OffscreenCanvas(64, 64), context = canvas.getContext('2d');
        context.font = '40px ' + font;
        context.fillText(text, 4, 48);
        return Array.from(context.getImageData(0, 0, 64, 64).data);
      };
      const missing = pixels('\u{10ffff}', 'sans-serif').join();
      const drawn = (text) => {
        const data = pixels(text, 'sans-serif');
        const colours = new Set();
        for (let i = 0; i < data.length; i += 4) if (data[i + 3]) colours.add(data.slice(i, i + 3).join());
        return { real: data.join() !== missing && colours.size > 0, colourful: colours.size > 8 };
      };
      const width = (font) => {
        const context = new OffscreenCanvas(1, 1).getContext('2d');
        context.font = '40px ' + font;
        return context.measureText('MMMiii').width;
      };
      return {
        han: drawn('漢'), kana: drawn('あ'), hangul: drawn('한'), rocket: drawn('🚀'),
        differ: new Set(['漢', 'あ', '한', '🚀'].map((text) => pixels(text, 'sans-serif').join())).size,
        arial: width('Arial') === width('Liberation Sans') && width('Arial') !== width('DejaVu Sans'),
      };
    })()"#;
    let (status, answer) = browserd.post("/v1/evaluate", json!({ "expression": script }));
    assert_eq!(status, 200, "{answer}");
    let seen = &answer["value"];
    let install = "run scripts/install-deps, which installs the fonts";
    for text in ["han", "kana", "hangul", "rocket"] {
        assert_eq!(seen[text]["real"], true, "{text} is a box: {install}");
    }
    assert_eq!(seen["rocket"]["colourful"], true, "the emoji font has no colours: {install}");
    assert_eq!(seen["differ"], 4, "{seen}");
    assert_eq!(seen["arial"], true, "Arial is not drawn as Liberation Sans: {install}");
}
