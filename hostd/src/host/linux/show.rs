//! A look through a clone's browser, also one without browserd, whose debugging pipe is a socket. For demonstrations.

use crate::host::page::{self, decode};
use launcher::cdp::Connection;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub use crate::host::page::Seen;

/// Load a page in the browser behind an endpoint. The text of the error says what failed.
pub fn page(endpoint: &str, url: &str, patience: Duration) -> Result<Seen, String> {
    match endpoint.strip_prefix("cdp+unix://") {
        Some(socket) => by_pipe(socket, url, patience),
        None => page::load(endpoint, url, patience),
    }
}

fn by_pipe(socket: &str, url: &str, patience: Duration) -> Result<Seen, String> {
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
    Ok(Seen { title, picture: decode(picture["data"].as_str())? })
}
