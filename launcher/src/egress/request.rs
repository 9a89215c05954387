//! Parses the head of a proxy request and rewrites it for the server.

use super::Target;

/// Maximum length of a request head. Servers accept 8 to 64 KiB.
pub(super) const MAX_HEAD: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// `CONNECT host:port`: bytes both ways afterwards (TLS, WebSocket).
    Tunnel(Target),
    /// A plain request with an absolute address, and the rewritten head for the server.
    Plain { target: Target, head: Vec<u8> },
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum RequestError {
    #[error("the request is not valid HTTP: {0}")]
    Malformed(&'static str),
    #[error("only http:// addresses and CONNECT go through this proxy")]
    NotAProxyRequest,
}

/// Returns `Ok(None)` while the head is incomplete, else the request and the length of its head.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, RequestError> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) => {
            return Err(RequestError::Malformed("the head is too long"));
        }
        Err(_) => return Err(RequestError::Malformed("the head cannot be parsed")),
    };
    let method = head.method.expect("a complete head has a method");
    let address = head.path.expect("a complete head has a target");
    if method == "CONNECT" {
        let target = Target::from_authority(address, None)
            .ok_or(RequestError::Malformed("CONNECT needs host:port"))?;
        return Ok(Some((Request::Tunnel(target), length)));
    }
    let rest = strip_scheme(address).ok_or(RequestError::NotAProxyRequest)?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let target = Target::from_authority(authority, Some(80))
        .ok_or(RequestError::Malformed("the address has no valid host"))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut out = format!("{method} {slash}{path} HTTP/1.1\r\n").into_bytes();
    let is_upgrade = head.headers.iter().any(|header| header.name.eq_ignore_ascii_case("upgrade"));
    for header in head.headers.iter() {
        let hop = ["proxy-connection", "proxy-authorization", "keep-alive"]
            .iter()
            .any(|name| header.name.eq_ignore_ascii_case(name));
        let connection = header.name.eq_ignore_ascii_case("connection") && !is_upgrade;
        if !hop && !connection {
            out.extend_from_slice(header.name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(header.value);
            out.extend_from_slice(b"\r\n");
        }
    }
    // One request per connection, because the next one may be for another server and needs its own check.
    if !is_upgrade {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Ok(Some((Request::Plain { target, head: out }, length)))
}

fn strip_scheme(address: &str) -> Option<&str> {
    ["http://", "ws://"].iter().find_map(|scheme| {
        let (start, rest) = address.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(host: &str, port: u16) -> Target {
        Target { host: host.to_owned(), port }
    }

    #[test]
    fn connect_names_its_target() {
        let text = b"CONNECT Example.com:443 HTTP/1.1\r\nHost: other\r\n\r\nrest";
        assert_eq!(parse(text), Ok(Some((Request::Tunnel(target("example.com", 443)), text.len() - 4))));
    }

    #[test]
    fn a_plain_request_is_rewritten_for_the_server() {
        let text = b"GET http://example.com:8080/a?b HTTP/1.1\r\nHost: example.com:8080\r\nProxy-Connection: keep-alive\r\nAccept: */*\r\n\r\n";
        let Ok(Some((Request::Plain { target: to, head }, _))) = parse(text) else { panic!("plain") };
        assert_eq!(to, target("example.com", 8080));
        assert_eq!(
            String::from_utf8(head).expect("text"),
            "GET /a?b HTTP/1.1\r\nHost: example.com:8080\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn an_upgrade_keeps_its_connection_header() {
        let text = b"GET ws://example.com HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let Ok(Some((Request::Plain { target: to, head }, _))) = parse(text) else { panic!("plain") };
        assert_eq!(to, target("example.com", 80));
        let head = String::from_utf8(head).expect("text");
        assert!(head.starts_with("GET / HTTP/1.1\r\n") && head.contains("Connection: Upgrade\r\n"), "{head}");
        assert!(!head.contains("close"), "{head}");
    }

    #[test]
    fn user_information_cannot_hide_the_host() {
        for text in
            ["GET http://public.example@127.0.0.1/ HTTP/1.1\r\n\r\n", "GET http://a:b@c/ HTTP/1.1\r\n\r\n"]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn other_schemes_and_endless_heads_are_refused() {
        assert_eq!(parse(b"GET / HTTP/1.1\r\n\r\n"), Err(RequestError::NotAProxyRequest));
        assert_eq!(parse(b"GET ftp://a/ HTTP/1.1\r\n\r\n"), Err(RequestError::NotAProxyRequest));
        assert!(parse(&[b'A'; MAX_HEAD]).is_err());
        assert_eq!(parse(b"GET http://a/ HT"), Ok(None));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
        }
    }
}
