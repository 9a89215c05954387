//! Parses the head of a proxy request and rewrites it for the server.

use super::Target;

/// Maximum length of a request head. Servers accept 8 to 64 KiB.
pub(super) const MAX_HEAD: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// `CONNECT host:port`: bytes both ways afterwards (TLS, WebSocket).
    Tunnel { target: Target, authorization: Option<Vec<u8>> },
    /// A plain request with an absolute address.
    Plain(Plain),
}

/// A plain request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plain {
    pub(super) target: Target,
    method: String,
    path: String,
    /// The header lines for the server, without the empty line at the end.
    fields: Vec<u8>,
    /// The value of `Proxy-Authorization`, for an upstream proxy.
    pub(super) authorization: Option<Vec<u8>>,
    /// The length of the body; `None` if only the end of the connection shows it.
    pub(super) body: Option<u64>,
}

impl Plain {
    /// The head for the server itself.
    pub(super) fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        head.extend_from_slice(&self.fields);
        head.extend_from_slice(b"\r\n");
        head
    }

    /// The head for an upstream proxy, which connects to `host`.
    pub(super) fn head_for_proxy(&self, host: &Target) -> Vec<u8> {
        let mut head =
            format!("{} http://{}{} HTTP/1.1\r\n", self.method, host.authority(), self.path).into_bytes();
        head.extend_from_slice(&self.fields);
        head.extend_from_slice(&authorization_line(self.authorization.as_deref()));
        head.extend_from_slice(b"\r\n");
        head
    }
}

/// The head of a `CONNECT` request for an upstream proxy.
pub(super) fn connect_head(host: &Target, authorization: Option<&[u8]>) -> Vec<u8> {
    let host = host.authority();
    let mut head = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
    head.extend_from_slice(&authorization_line(authorization));
    head.extend_from_slice(b"\r\n");
    head
}

fn authorization_line(value: Option<&[u8]>) -> Vec<u8> {
    match value {
        Some(value) => [b"Proxy-Authorization: ", value, b"\r\n"].concat(),
        None => Vec::new(),
    }
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
    let value_of = |name: &str| {
        let header = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| header.value.to_vec())
    };
    let authorization = value_of("proxy-authorization");
    if method == "CONNECT" {
        let target = Target::from_authority(address, None)
            .ok_or(RequestError::Malformed("CONNECT needs host:port"))?;
        return Ok(Some((Request::Tunnel { target, authorization }, length)));
    }
    let rest = strip_scheme(address).ok_or(RequestError::NotAProxyRequest)?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let target = Target::from_authority(authority, Some(80))
        .ok_or(RequestError::Malformed("the address has no valid host"))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut out = Vec::new();
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
    let plain = Plain {
        target,
        method: method.to_owned(),
        path: format!("{slash}{path}"),
        fields: out,
        authorization,
        body: if is_upgrade { None } else { body_length(head.headers) },
    };
    Ok(Some((Request::Plain(plain), length)))
}

/// The length of the body if the head tells it in the one way that every server reads alike.
fn body_length(headers: &[httparse::Header<'_>]) -> Option<u64> {
    let named =
        |name: &'static str| headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    if named("transfer-encoding").next().is_some() {
        return None;
    }
    let mut lengths = named("content-length");
    let Some(length) = lengths.next() else {
        return Some(0);
    };
    let digits = !length.value.is_empty() && length.value.iter().all(u8::is_ascii_digit);
    let valid = digits && lengths.next().is_none();
    valid.then(|| std::str::from_utf8(length.value).ok()?.parse().ok())?
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
        let tunnel = Request::Tunnel { target: target("example.com", 443), authorization: None };
        assert_eq!(parse(text), Ok(Some((tunnel, text.len() - 4))));
    }

    #[test]
    fn a_plain_request_is_rewritten_for_the_server() {
        let text = b"GET http://example.com:8080/a?b HTTP/1.1\r\nHost: example.com:8080\r\nProxy-Connection: keep-alive\r\nAccept: */*\r\n\r\n";
        let Ok(Some((Request::Plain(plain), _))) = parse(text) else { panic!("plain") };
        assert_eq!((&plain.target, plain.body), (&target("example.com", 8080), Some(0)));
        assert_eq!(
            String::from_utf8(plain.head()).expect("text"),
            "GET /a?b HTTP/1.1\r\nHost: example.com:8080\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn an_upgrade_keeps_its_connection_header() {
        let text = b"GET ws://example.com HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let Ok(Some((Request::Plain(plain), _))) = parse(text) else { panic!("plain") };
        assert_eq!((&plain.target, plain.body), (&target("example.com", 80), None));
        let head = String::from_utf8(plain.head()).expect("text");
        assert!(head.starts_with("GET / HTTP/1.1\r\n") && head.contains("Connection: Upgrade\r\n"), "{head}");
        assert!(!head.contains("close"), "{head}");
    }

    #[test]
    fn credentials_are_only_for_the_upstream_proxy() {
        let text = b"POST http://example.com/a HTTP/1.1\r\nHost: example.com\r\nContent-Length: 3\r\nProxy-Authorization: Basic eDp5\r\n\r\nabc";
        let Ok(Some((Request::Plain(plain), _))) = parse(text) else { panic!("plain") };
        assert_eq!(plain.body, Some(3));
        assert!(!String::from_utf8(plain.head()).expect("text").contains("Basic"));
        let head = String::from_utf8(plain.head_for_proxy(&target("example.com", 80))).expect("text");
        assert!(head.starts_with("POST http://example.com:80/a HTTP/1.1\r\n"), "{head}");
        assert!(head.ends_with("Proxy-Authorization: Basic eDp5\r\n\r\n"), "{head}");
        let head = connect_head(&target("::1", 443), Some(b"Basic eDp5"));
        assert!(
            head.starts_with(b"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\nProxy-Authorization: Basic")
        );
    }

    #[test]
    fn an_ambiguous_length_is_unknown() {
        for field in
            ["Transfer-Encoding: chunked", "Content-Length: +3", "Content-Length: 3\r\nContent-Length: 4"]
        {
            let text = format!("POST http://a/ HTTP/1.1\r\n{field}\r\n\r\n");
            let Ok(Some((Request::Plain(plain), _))) = parse(text.as_bytes()) else { panic!("plain") };
            assert_eq!(plain.body, None, "{field}");
        }
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
