//! A look through the browser of a clone without browserd, over its debugging socket: load a page, take a picture.

use crate::host::page;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use launcher::cdp::Connection;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub use crate::host::page::Seen;

/// Load a page in the browser behind an endpoint. The text of the error says what failed.
pub fn page(endpoint: &str, url: &str, patience: Duration) -> Result<Seen, String> {
    let socket = endpoint.strip_prefix("cdp+unix://").ok_or_else(|| page::unknown(endpoint))?;
    let stream = UnixStream::connect(socket).map_err(|error| format!("{socket}: {error}"))?;
    let copy = stream.try_clone().map_err(|error| format!("{socket}: {error}"))?;
    let mut cdp = Connection::new(stream.into(), copy.into());
    let mut call = |session: Option<&str>, method: &str, params: Value| {
        cdp.call_in(session, method, params, patience).map_err(|error| error.to_string())
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
    cdp.wait_event("Page.loadEventFired", patience).map_err(|error| error.to_string())?;
    let mut call = |method: &str, params: Value| {
        cdp.call_in(Some(&session), method, params, patience).map_err(|error| error.to_string())
    };
    let title = call("Runtime.evaluate", json!({ "expression": "document.title" }))?;
    let picture = call("Page.captureScreenshot", json!({ "format": "png" }))?;
    call("Page.close", json!({}))?;
    let title = title["result"]["value"].as_str().unwrap_or_default().to_owned();
    let picture = BASE64_STANDARD.decode(picture["data"].as_str().unwrap_or_default());
    Ok(Seen { title, picture: picture.map_err(|error| format!("the picture: {error}"))? })
}
