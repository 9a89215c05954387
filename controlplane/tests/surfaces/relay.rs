//! The CDP relay, over a stand-in that sends back what it gets.

use crate::rig::{PATIENCE, Rig, request};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SCOPES: [&str; 3] = ["read", "write", "cdp"];

/// A WebSocket connection after its handshake, or the answer of the service.
fn connect(rig: &Rig, path: &str, key: Option<&str>, extra: &[(&str, &str)]) -> Result<TcpStream, String> {
    let host = rig.http.to_string();
    let bearer = key.map(|key| format!("Bearer {key}"));
    let mut text = format!(
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    );
    for (name, value) in extra.iter().copied().chain(bearer.as_deref().map(|value| ("authorization", value)))
    {
        text += &format!("{name}: {value}\r\n");
    }
    let mut stream = rig.connect();
    stream.write_all((text + "\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    if !head.starts_with("HTTP/1.1 101") {
        return Err(head);
    }
    assert!(head.to_ascii_lowercase().contains("sec-websocket-accept: of-the-stand-in"), "{head}");
    // What the browser sent together with its handshake is not lost.
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    Ok(stream)
}

fn address(rig: &Rig, key: &str, session: &str, seconds: u64) -> String {
    let path = format!("/v1/sessions/{session}/cdp-address");
    let answer = rig.remote("POST", &path, Some(key), Some(json!({ "expires_in_seconds": seconds })));
    assert_eq!(answer.status, 201, "{answer:?}");
    let url = answer.text("cdp_url");
    assert_eq!(answer.text("http_url"), url.replacen("ws", "http", 1));
    url.strip_prefix(&format!("ws://{}", rig.http)).expect("the address of the listener").to_owned()
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut back = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut back).is_ok() && &back == b"ping"
}

/// The connection ends without a word.
fn ends(mut stream: TcpStream, why: &str) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "{why}"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{why}: {error}"),
    }
}

#[test]
fn bytes_are_copied_as_they_are_both_ways() {
    let rig = Rig::new();
    let (key, _) = rig.key("a", &SCOPES);
    let session = rig.open(&key);
    let by_header = connect(&rig, &format!("/v1/sessions/{session}/cdp"), Some(&key), &[]).unwrap();
    let by_address = connect(&rig, &address(&rig, &key, &session, 60), None, &[]).unwrap();
    for stream in [by_header, by_address] {
        let mut bytes = vec![0u8; 8 << 20];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (index * 31 % 251) as u8;
        }
        let (mut reads, mut writes) = (stream.try_clone().unwrap(), stream);
        let sent = bytes.clone();
        let sending = std::thread::spawn(move || {
            writes.write_all(&sent).unwrap();
            writes
        });
        let mut back = vec![0u8; bytes.len()];
        reads.read_exact(&mut back).unwrap();
        assert!(back == bytes, "the bytes changed");
        drop(sending.join().unwrap());
    }
    let metrics = || rig.remote("GET", "/metrics", None, None).body;
    crate::rig::wait("the connections are counted down", || {
        metrics().contains("controlplane_cdp_connections 0").then_some(())
    });
    assert!(
        metrics().contains("controlplane_cdp_relayed_bytes_total{direction=\"client\"} 167772"),
        "{}",
        metrics()
    );
    crate::rig::wait("both ends are in the audit log", || {
        let rows = rig.audit("a");
        let ended = rows.iter().filter(|row| row["verb"] == "cdp" && row["event"] == "end").count();
        // Two connections and one address.
        (ended == 3).then_some(())
    });
}

#[test]
fn a_connection_ends_with_its_session() {
    let rig = Rig::new();
    let (key, _) = rig.key("a", &SCOPES);
    let session = rig.open(&key);
    let path = address(&rig, &key, &session, 60);
    let mut stream = connect(&rig, &path, None, &[]).unwrap();
    assert!(echoes(&mut stream));
    let closed = rig.remote("DELETE", &format!("/v1/sessions/{session}"), Some(&key), None);
    assert_eq!(closed.status, 200, "{closed:?}");
    ends(stream, "the session was closed");
    let refused = connect(&rig, &path, None, &[]).unwrap_err();
    assert!(refused.contains(" 404 ") || refused.contains(" 410 "), "{refused}");
}

#[test]
fn a_connection_ends_with_its_key() {
    let rig = Rig::new();
    let (key, key_id) = rig.key("a", &SCOPES);
    let (other, _) = rig.key("a", &SCOPES);
    let session = rig.open(&key);
    let path = address(&rig, &key, &session, 60);
    let by_address = connect(&rig, &path, None, &[]).unwrap();
    let by_header = connect(&rig, &format!("/v1/sessions/{session}/cdp"), Some(&key), &[]).unwrap();
    let others = rig.open(&other);
    let mut unharmed = connect(&rig, &format!("/v1/sessions/{others}/cdp"), Some(&other), &[]).unwrap();
    rig.revoke("a", &key_id);
    ends(by_address, "the key was revoked");
    ends(by_header, "the key was revoked");
    assert!(echoes(&mut unharmed));
    assert!(connect(&rig, &path, None, &[]).unwrap_err().contains(" 404 "));
}

#[test]
fn a_connection_ends_when_its_address_or_key_expires() {
    let rig = Rig::new();
    let (key, _) = rig.key("a", &SCOPES);
    let session = rig.open(&key);
    let path = address(&rig, &key, &session, 2);
    let stream = connect(&rig, &path, None, &[]).unwrap();
    let began = Instant::now();
    ends(stream, "the address expired");
    assert!(began.elapsed() > Duration::from_millis(500));
    assert!(connect(&rig, &path, None, &[]).unwrap_err().contains(" 404 "));
    let (short, _) = rig.key_until("a", &SCOPES, Some(3));
    let session = rig.open(&short);
    ends(
        connect(&rig, &format!("/v1/sessions/{session}/cdp"), Some(&short), &[]).unwrap(),
        "the key expired",
    );
}

#[test]
fn a_connection_ends_with_the_service() {
    let mut rig = Rig::new();
    let (key, _) = rig.key("a", &SCOPES);
    let session = rig.open(&key);
    let stream = connect(&rig, &format!("/v1/sessions/{session}/cdp"), Some(&key), &[]).unwrap();
    let began = Instant::now();
    rig.stop();
    ends(stream, "the service stopped");
    assert!(began.elapsed() < Duration::from_secs(10), "a stop does not wait for CDP clients");
}

#[test]
fn pages_strangers_and_wrong_addresses_are_refused() {
    let rig = Rig::new();
    let (key, _) = rig.key("a", &SCOPES);
    let (stranger, _) = rig.key("b", &SCOPES);
    let (reader, _) = rig.key("a", &["read", "write"]);
    let session = rig.open(&key);
    let path = format!("/v1/sessions/{session}/cdp");
    let ticket = address(&rig, &key, &session, 60);
    let status = |path: &str, key: Option<&str>, extra: &[(&str, &str)]| {
        connect(&rig, path, key, extra).unwrap_err().split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status(&path, None, &[]), "401");
    assert_eq!(status(&path, Some(&stranger), &[]), "404");
    assert_eq!(status(&path, Some(&reader), &[]), "403");
    for page in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
        assert_eq!(status(&path, Some(&key), &[page]), "403");
        assert_eq!(status(&ticket, None, &[page]), "403");
    }
    let mut wrong = ticket.clone();
    let last = wrong.pop().unwrap();
    wrong.push(if last == 'A' { 'E' } else { 'A' });
    assert_eq!(status(&wrong, None, &[]), "404");
    assert_eq!(status("/cdp/", None, &[]), "404");
    let host = rig.http.to_string();
    let plain = rig.raw(&request("GET", &ticket, &[("host", &host)], None));
    assert_eq!((plain.status, plain.code()), (426, "upgrade_required"));
    let many = (0..100).find_map(|_| {
        let path = format!("/v1/sessions/{session}/cdp-address");
        let answer = rig.remote("POST", &path, Some(&key), Some(json!({})));
        (answer.status != 201).then_some(answer)
    });
    let many = many.expect("addresses are limited");
    assert_eq!((many.status, many.code()), (429, "cdp_addresses"));
    assert!(many.header("retry-after").is_some());
}
