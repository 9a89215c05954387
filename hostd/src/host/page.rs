//! A look through a clone's browser by browserd's HTTP interface: load a page, take a picture. For demonstrations.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::TcpStream;
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
pub fn load(endpoint: &str, url: &str, patience: Duration) -> Result<Seen, String> {
    match endpoint.strip_prefix("http://") {
        Some(address) => by_browserd(address.trim_end_matches('/'), url, patience),
        None => Err(format!("{endpoint} is no endpoint that this program knows")),
    }
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

/// A picture from its text.
pub(super) fn decode(text: Option<&str>) -> Result<Vec<u8>, String> {
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
