//! A look through a clone's browser: load a page, take a picture. For demonstrations.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use launcher::cdp::Connection;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The page's title.
    pub title: String,
    /// The picture, as PNG.
    pub picture: Vec<u8>,
}

/// Load a page in the browser behind an endpoint. The text of the error says what failed.
pub fn page(endpoint: &str, url: &str, patience: Duration) -> Result<Seen, String> {
    if let Some(socket) = endpoint.strip_prefix("cdp+unix://") {
        return by_pipe(socket, url, patience);
    }
    match endpoint.strip_prefix("http://") {
        Some(address) => by_browserd(address.trim_end_matches('/'), url, patience),
        None => Err(format!("{endpoint} is no endpoint that this program knows")),
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

fn by_browserd(address: &str, url: &str, patience: Duration) -> Result<Seen, String> {
    let post = |path: &str, body: Value| {
        let answer = post(address, path, &body.to_string(), patience);
        answer.map_err(|error| format!("http://{address}{path}: {error}"))
    };
    let loaded = post("/v1/navigate", json!({ "url": url }))?;
    let picture = post("/v1/screenshot", json!({ "format": "png" }))?;
    Ok(Seen {
        title: loaded["title"].as_str().unwrap_or_default().to_owned(),
        picture: decode(picture["image_base64"].as_str())?,
    })
}

fn decode(text: Option<&str>) -> Result<Vec<u8>, String> {
    BASE64_STANDARD.decode(text.unwrap_or_default()).map_err(|error| format!("the picture: {error}"))
}

/// One request, one connection, one JSON answer.
fn post(address: &str, path: &str, body: &str, patience: Duration) -> io::Result<Value> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(patience))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other(format!("{}: {body}", head.lines().next().unwrap_or_default())));
    }
    Ok(serde_json::from_str(body)?)
}
