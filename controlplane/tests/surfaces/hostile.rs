//! Clients that mean harm, or are broken.

use crate::rig::{Rig, answer, request};
use serde_json::json;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

fn with_headers(rig: &Rig, headers: &[(&str, &str)]) -> (u16, String) {
    let answer = rig.raw(&request("GET", "/v1/whoami", headers, None));
    (answer.status, answer.code().to_owned())
}

#[test]
fn web_pages_are_refused_by_their_headers_and_by_rebound_names() {
    let rig = Rig::with(|config| config.http.allowed_hosts = vec!["browsers.example.com".into()]);
    let (key, _) = rig.key("a", &["read"]);
    let bearer = format!("Bearer {key}");
    let host = rig.http.to_string();
    let own = [("host", host.as_str()), ("authorization", bearer.as_str())];
    assert_eq!(with_headers(&rig, &own).0, 200);
    for extra in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-dest", "empty"),
    ] {
        let headers: Vec<_> = own.into_iter().chain([extra]).collect();
        assert_eq!(with_headers(&rig, &headers), (403, "forbidden_origin".into()), "{extra:?}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example:80", ""] {
        assert_eq!(
            with_headers(&rig, &[("host", host), own[1]]),
            (403, "forbidden_origin".into()),
            "{host:?}"
        );
    }
    assert_eq!(with_headers(&rig, &[own[1]]), (403, "forbidden_origin".into()), "no host");
    assert_eq!(with_headers(&rig, &[own[0], own[0], own[1]]), (403, "forbidden_origin".into()), "two hosts");
    assert_eq!(with_headers(&rig, &[("host", "browsers.example.com"), own[1]]).0, 200);
}

#[test]
fn bodies_are_bounded_and_must_be_json() {
    let rig = Rig::with(|config| config.http.max_body_bytes = 2048);
    let (key, _) = rig.key("a", &["read", "write"]);
    let ask = |kind: &str, body: &str| {
        let host = rig.http;
        let length = body.len();
        let head = format!(
            "POST /v1/sessions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let answer = rig.raw(head.as_bytes());
        (answer.status, answer.code().to_owned())
    };
    let large = json!({ "labels": { "a": "x".repeat(4096) } }).to_string();
    assert_eq!(ask("application/json", &large), (413, "request_too_large".into()));
    assert_eq!(ask("text/plain", "{}"), (415, "unsupported_media_type".into()));
    for body in ["[]", "{", "\"x\"", "nonsense", "{\"unknown\":1}", "{\"deadline_seconds\":\"x\"}", "\u{0}"] {
        assert_eq!(ask("application/json", body), (400, "bad_request".into()), "{body}");
    }
    let deep = format!("{{\"labels\":{}{}}}", "[".repeat(500), "]".repeat(500));
    assert_eq!(ask("application/json", &deep), (400, "bad_request".into()));
    // What was refused is not repeated.
    let secret = rig.remote("POST", "/v1/sessions", Some(&key), Some(json!({ "record": "hunter2" })));
    assert_eq!(secret.status, 400, "{secret:?}");
    assert_eq!(ask("application/json; charset=utf-8", "{}").0, 201);
}

#[test]
fn requests_that_a_proxy_could_read_differently_are_refused() {
    let rig = Rig::new();
    let (key, _) = rig.key("a", &["read", "write"]);
    let host = rig.http;
    let head = |line: &str, headers: &str| {
        format!("{line}\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n{headers}\r\n")
    };
    let post = "POST /v1/sessions HTTP/1.1";
    let smuggled = "GET /v1/whoami HTTP/1.1\r\nhost: x\r\n\r\n";
    for (name, bytes) in [
        ("two lengths", head(post, "content-length: 2\r\ncontent-length: 3\r\n") + "{}" + smuggled),
        ("a list of lengths", head(post, "content-length: 2, 3\r\n") + "{}" + smuggled),
        ("a signed length", head(post, "content-length: +2\r\n") + "{}" + smuggled),
        ("another encoding", head(post, "transfer-encoding: xchunked\r\n") + "0\r\n\r\n" + smuggled),
        (
            "an encoding after chunked",
            head(post, "transfer-encoding: chunked, identity\r\n") + "0\r\n\r\n" + smuggled,
        ),
        (
            "chunks in HTTP/1.0",
            head("POST /v1/sessions HTTP/1.0", "transfer-encoding: chunked\r\n") + "0\r\n\r\n",
        ),
        ("a space before the colon", head(post, "content-length : 2\r\n") + "{}" + smuggled),
        ("a folded header", head(post, "x: y\r\n content-length: 2\r\n") + "{}" + smuggled),
        ("a wrong chunk", head(post, "transfer-encoding: chunked\r\n") + "zz\r\n{}\r\n0\r\n\r\n" + smuggled),
        ("an absolute URL", head("GET http://evil.example/v1/whoami HTTP/1.1", "")),
        ("no HTTP", "nonsense\r\n\r\n".to_owned()),
    ] {
        let mut stream = rig.connect();
        stream.write_all(bytes.as_bytes()).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap_or_else(|error| panic!("{name}: still open: {error}"));
        let text = String::from_utf8_lossy(&all);
        assert!(text.matches("HTTP/1.").count() <= 1, "{name}: {text}");
        assert!(all.is_empty() || answer(&all).status == 400, "{name}: {text}");
    }
    // hyper reads the chunks, as RFC 9112 says, and nothing after them.
    let both = head(post, "content-length: 5\r\ntransfer-encoding: chunked\r\n") + "0\r\n\r\n" + smuggled;
    let mut stream = rig.connect();
    stream.write_all(both.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.").count(), 1, "{text}");
    let session = answer(text.as_bytes()).text("session_id");
    rig.remote("DELETE", &format!("/v1/sessions/{session}"), Some(&key), None);
    assert_eq!(
        rig.remote("GET", "/v1/sessions", Some(&key), None).json["sessions"],
        json!([]),
        "nothing was done"
    );
}

#[test]
fn heads_are_bounded() {
    let rig = Rig::new();
    let host = rig.http;
    let many: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(200_000));
    for headers in [many, long] {
        let bytes = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n");
        let answer = rig.raw(bytes.as_bytes());
        assert!(matches!(answer.status, 0 | 400 | 431), "{answer:?}");
    }
    let path = format!("/{}", "a".repeat(100_000));
    let answer = rig.raw(&request("GET", &path, &[("host", "127.0.0.1")], None));
    assert!(matches!(answer.status, 0 | 400 | 414 | 431), "{answer:?}");
    assert_eq!(rig.remote("GET", "/healthz", None, None).status, 200);
}

/// Sends a part, then a byte at a time, and returns what the service said when it hung up.
fn trickle(rig: &Rig, head: &str, then: &[u8]) -> String {
    let mut stream = rig.connect();
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut all = Vec::new();
    let mut part = [0; 4096];
    let began = Instant::now();
    for byte in then.iter().cycle() {
        assert!(began.elapsed() < crate::rig::PATIENCE, "the service is patient for ever");
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => all.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if stream.write_all(&[*byte]).is_err() {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn slow_clients_are_cut_off() {
    let rig = Rig::with(|config| config.http.client_timeout_seconds = 1);
    let (key, _) = rig.key("a", &["read", "write", "files"]);
    let host = rig.http;
    trickle(&rig, &format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nx: "), b"y");
    trickle(&rig, "", b"\r");
    for path in ["/v1/sessions", "/mcp"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
             accept: application/json, text/event-stream\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
        );
        let mut stream = rig.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        if path == "/v1/sessions" {
            assert!(said.contains("408") && said.contains("request_timeout"), "{said}");
        }
    }
    assert_eq!(rig.remote("GET", "/healthz", None, None).status, 200);
}

#[test]
fn a_client_that_does_not_read_its_answers_is_cut_off() {
    let rig = Rig::with(|config| config.http.client_timeout_seconds = 1);
    let host = rig.http;
    let mut stream = rig.connect();
    let one = format!("GET /openapi.json HTTP/1.1\r\nhost: {host}\r\n\r\n");
    stream.set_write_timeout(Some(crate::rig::PATIENCE)).unwrap();
    let began = Instant::now();
    // The buffers of both sides fill up, then the service ends the connection: a write fails, and does not wait for ever.
    while stream.write_all(one.repeat(100).as_bytes()).is_ok() {
        assert!(began.elapsed() < crate::rig::PATIENCE, "the service is patient for ever");
    }
}

#[test]
fn connections_are_limited_and_local_users_have_their_own() {
    let rig = Rig::with(|config| config.http.max_connections = 4);
    let held: Vec<_> = (0..4).map(|_| rig.connect()).collect();
    // The listener is full: a fifth waits. The Unix socket still answers.
    let mut fifth = rig.connect();
    fifth.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    fifth.write_all(&request("GET", "/healthz", &[("host", "127.0.0.1")], None)).unwrap();
    assert!(fifth.read(&mut [0; 10]).is_err(), "it was served although the listener is full");
    assert_eq!(rig.local("GET", "/healthz", None).status, 200);
    drop(held);
    fifth.set_read_timeout(Some(crate::rig::PATIENCE)).unwrap();
    let mut text = String::new();
    fifth.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[test]
fn a_stop_lets_calls_end_and_refuses_new_ones() {
    let mut rig = Rig::new();
    let idle = rig.connect();
    rig.stop();
    let mut idle = idle;
    let mut all = Vec::new();
    // A connection that the service had not accepted yet is reset.
    let end = idle.read_to_end(&mut all);
    assert!(
        end.as_ref().is_ok_and(|count| *count == 0)
            || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    );
    assert!(all.is_empty());
    assert!(std::net::TcpStream::connect(rig.http).is_err(), "nothing listens any more");
    assert!(!rig.socket.exists(), "the socket is removed");
}
