//! Loads one page in a clone's browser and takes a screenshot: with browserd's client, or over the browser's debugging
//! socket when the clone has no browserd.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use browserd::api::types::{Navigate, Screenshot};
use browserd::client::Client;
use hostd::api::{CloneSecret, StageTiming};
use std::time::{Duration, Instant};

/// How long each call to the browser may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The loaded page, and how long each call took.
#[derive(Debug)]
pub(crate) struct Visit {
    /// The interface that drove the browser.
    pub(crate) by: &'static str,
    pub(crate) title: String,
    /// The screenshot, as PNG.
    pub(crate) picture: Vec<u8>,
    pub(crate) stages: Vec<StageTiming>,
}

/// Load `url` in the browser behind `endpoint`; browserd requires the secret. The error text says which step failed.
pub(crate) async fn visit(endpoint: &str, secret: Option<&CloneSecret>, url: &str) -> Result<Visit, String> {
    match endpoint.strip_prefix("http://") {
        Some(address) => by_browserd(address, secret, url).await,
        None => by_socket(endpoint, url).await,
    }
}

async fn by_browserd(address: &str, secret: Option<&CloneSecret>, url: &str) -> Result<Visit, String> {
    let secret = secret.ok_or("hostd returned no secret for the clone's browserd")?;
    let secret = secret.as_str().parse().map_err(|error| format!("{error}"))?;
    let address = address.trim_end_matches('/').parse().map_err(|error| format!("{address}: {error}"))?;
    let client = Client::new(address, secret);
    let milliseconds = TIMEOUT.as_millis() as u64;
    let navigate =
        Navigate { url: Some(url.to_owned()), timeout_ms: Some(milliseconds), ..Navigate::default() };
    let began = Instant::now();
    let page = client.navigate(&navigate).await.map_err(|error| browserd::with_causes(&error))?;
    let loaded = timing("navigate", began);
    let began = Instant::now();
    let picture =
        client.screenshot(&Screenshot::default()).await.map_err(|error| browserd::with_causes(&error))?;
    let pictured = timing("screenshot", began);
    let picture = decode(&picture.image_base64)?;
    Ok(Visit { by: "browserd", title: page.title, picture, stages: vec![loaded, pictured] })
}

async fn by_socket(endpoint: &str, url: &str) -> Result<Visit, String> {
    let (endpoint, url) = (endpoint.to_owned(), url.to_owned());
    let began = Instant::now();
    let loaded = tokio::task::spawn_blocking(move || debugging_socket::load(&endpoint, &url)).await;
    let (title, picture) = loaded.unwrap_or_else(|panicked| Err(panicked.to_string()))?;
    let stages = vec![timing("page", began)];
    Ok(Visit { by: "the browser's debugging socket", title, picture, stages })
}

/// Only Linux has clones without browserd.
#[cfg(target_os = "linux")]
mod debugging_socket {
    use super::{TIMEOUT, decode, unknown_endpoint};
    use launcher::cdp::Connection;
    use serde_json::{Value, json};
    use std::os::unix::net::UnixStream;

    /// The page's title and its screenshot.
    pub(super) fn load(endpoint: &str, url: &str) -> Result<(String, Vec<u8>), String> {
        let socket = endpoint.strip_prefix("cdp+unix://").ok_or_else(|| unknown_endpoint(endpoint))?;
        let stream = UnixStream::connect(socket).map_err(|error| format!("{socket}: {error}"))?;
        let copy = stream.try_clone().map_err(|error| format!("{socket}: {error}"))?;
        let mut cdp = Connection::new(stream.into(), copy.into());
        let mut call = |session: Option<&str>, method: &str, params: Value| {
            cdp.call_in(session, method, params, TIMEOUT).map_err(|error| error.to_string())
        };
        let target = call(None, "Target.createTarget", json!({ "url": "about:blank" }))?;
        let session =
            call(None, "Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }))?;
        let session = session["sessionId"].as_str().ok_or("the browser names no session")?.to_owned();
        call(Some(&session), "Page.enable", json!({}))?;
        let answer = call(Some(&session), "Page.navigate", json!({ "url": url }))?;
        if let Some(error) = answer["errorText"].as_str() {
            return Err(format!("{url}: {error}"));
        }
        cdp.wait_event("Page.loadEventFired", TIMEOUT).map_err(|error| error.to_string())?;
        let mut call = |method: &str, params: Value| {
            cdp.call_in(Some(&session), method, params, TIMEOUT).map_err(|error| error.to_string())
        };
        let title = call("Runtime.evaluate", json!({ "expression": "document.title" }))?;
        let picture = call("Page.captureScreenshot", json!({ "format": "png" }))?;
        call("Page.close", json!({}))?;
        let title = title["result"]["value"].as_str().unwrap_or_default().to_owned();
        Ok((title, decode(picture["data"].as_str().unwrap_or_default())?))
    }
}

#[cfg(not(target_os = "linux"))]
mod debugging_socket {
    pub(super) fn load(endpoint: &str, _: &str) -> Result<(String, Vec<u8>), String> {
        Err(super::unknown_endpoint(endpoint))
    }
}

fn unknown_endpoint(endpoint: &str) -> String {
    format!("{endpoint}: hostctl does not know this kind of endpoint")
}

fn decode(picture: &str) -> Result<Vec<u8>, String> {
    BASE64_STANDARD.decode(picture).map_err(|error| format!("the screenshot is not base64: {error}"))
}

fn timing(stage: &str, began: Instant) -> StageTiming {
    StageTiming { stage: stage.to_owned(), seconds: began.elapsed().as_secs_f64() }
}
