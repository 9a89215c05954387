//! Access control.
//!
//! The packet filter decides which hosts can reach browserd. It cannot stop the clone's own browser, which shares browserd's
//! network: a page could navigate a tab to browserd's address, send requests to it, open its WebSocket, or reach it through
//! DNS rebinding. Therefore connections from the machine's own addresses are closed before a byte is read. A browserd that
//! listens on loopback has only such peers; there the secret and the checks of the headers refuse pages.

use crate::api::error::{ApiError, ErrorCode};
use crate::config::Config;
use hyper::Request;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, TRANSFER_ENCODING};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Why a connection from `peer` to `local` is closed at once, if it is.
pub(super) fn refuse_peer(config: &Config, peer: SocketAddr, local: SocketAddr) -> Option<&'static str> {
    if !config.allow_peers.is_empty() && !config.allow_peers.contains(&peer.ip().to_canonical()) {
        return Some("the address is not allowed");
    }
    if !config.listen.ip().is_loopback() && is_own(peer, local) {
        return Some("the address is this machine's own, so the browser may have sent it");
    }
    None
}

/// Whether the peer's address is one of this machine: loopback, the address that was connected to, or any other to which
/// a socket can be bound. An error that says nothing about the address counts as yes.
fn is_own(peer: SocketAddr, local: SocketAddr) -> bool {
    let address = peer.ip().to_canonical();
    if address.is_loopback() || address == local.ip().to_canonical() {
        return true;
    }
    let free_port = match (address, peer) {
        // The scope of a link-local address is needed.
        (IpAddr::V6(_), SocketAddr::V6(mut peer)) => {
            peer.set_port(0);
            SocketAddr::V6(peer)
        }
        (address, _) => SocketAddr::new(address, 0),
    };
    !matches!(UdpSocket::bind(free_port), Err(error) if error.kind() == ErrorKind::AddrNotAvailable)
}

/// Refuses requests that may come from a web page.
pub(super) fn check_request<B>(config: &Config, request: &Request<B>) -> Result<(), ApiError> {
    let headers = request.headers();
    let forbidden = |message: &str| Err(ApiError::new(ErrorCode::ForbiddenOrigin, message));
    // Not Sec-Fetch-Mode: Node's fetch sends it too. ChromeDriver sends the site `none` for data (`empty`). A page's own
    // requests have another site, and `none` only for a document that a person opens.
    let fetch = |name: &str| headers.get(name).map(|value| value.as_bytes());
    let no_page = fetch("sec-fetch-site") == Some(b"none") && fetch("sec-fetch-dest") == Some(b"empty");
    let has_fetch = fetch("sec-fetch-site").is_some() || fetch("sec-fetch-dest").is_some();
    if headers.contains_key(ORIGIN) || (has_fetch && !no_page) {
        return forbidden("the request comes from a web page");
    }
    let mut hosts = headers.get_all(HOST).iter();
    let (host, more) = (hosts.next().and_then(|host| host.to_str().ok()), hosts.next());
    if more.is_some() || !host.is_some_and(|host| host_allowed(config, host)) {
        return forbidden("the Host header is missing or not allowed");
    }
    Ok(())
}

/// Refuses a body of another type. A page of another origin could send text or a form without being asked first.
pub(super) fn check_type<B>(request: &Request<B>, expected: &str) -> Result<(), ApiError> {
    let headers = request.headers();
    let has_body = headers.contains_key(TRANSFER_ENCODING)
        || headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0");
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if has_body && !kind.eq_ignore_ascii_case(expected) {
        let message = format!("the Content-Type is not {expected}");
        return Err(ApiError::new(ErrorCode::UnsupportedMediaType, message));
    }
    Ok(())
}

/// IP addresses are always allowed, names only if configured: DNS rebinding needs a name.
fn host_allowed(config: &Config, host: &str) -> bool {
    if host.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() && !name.ends_with(':') => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || config.allow_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use hyper::Method;

    fn config(extra: &[&str]) -> Config {
        let base = ["browserd", "--chromium", "/c", "--data-dir", "/d"];
        Config::parse_from(base.iter().chain(extra))
    }

    fn check(headers: &[(&str, &str)]) -> Result<(), ErrorCode> {
        let mut request = Request::builder().method(Method::POST);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let config = config(&["--allow-host", "clone.internal"]);
        let request = request.body(()).unwrap();
        let checked =
            check_request(&config, &request).and_then(|()| check_type(&request, "application/json"));
        checked.map_err(|error| error.code)
    }

    #[test]
    fn requests_of_web_pages_are_refused() {
        for good in ["10.0.0.5:9230", "127.0.0.1", "[::1]:9230", "[::1]", "localhost:1", "clone.internal:80"]
        {
            assert_eq!(check(&[("host", good)]), Ok(()), "{good}");
        }
        for bad in
            ["evil.example", "evil.example:9230", "", "localhost.evil.example", "127.0.0.1.evil.example"]
        {
            assert_eq!(check(&[("host", bad)]), Err(ErrorCode::ForbiddenOrigin), "{bad}");
        }
        assert_eq!(check(&[]), Err(ErrorCode::ForbiddenOrigin));
        assert_eq!(check(&[("host", "::1"), ("host", "::1")]), Err(ErrorCode::ForbiddenOrigin));
        assert_eq!(check(&[("host", "localhost"), ("origin", "null")]), Err(ErrorCode::ForbiddenOrigin));
        assert_eq!(
            check(&[("host", "localhost"), ("sec-fetch-site", "none")]),
            Err(ErrorCode::ForbiddenOrigin)
        );
        let chromedriver = [("host", "localhost"), ("sec-fetch-site", "none"), ("sec-fetch-dest", "empty")];
        assert_eq!(check(&chromedriver), Ok(()));
        for (site, dest) in [("none", "document"), ("cross-site", "empty"), ("same-origin", "empty")] {
            let page = [("host", "localhost"), ("sec-fetch-site", site), ("sec-fetch-dest", dest)];
            assert_eq!(check(&page), Err(ErrorCode::ForbiddenOrigin), "{site} {dest}");
        }
        let length = ("content-length", "2");
        assert_eq!(check(&[("host", "::1"), length]), Err(ErrorCode::UnsupportedMediaType));
        let text = ("content-type", "text/plain");
        assert_eq!(check(&[("host", "::1"), length, text]), Err(ErrorCode::UnsupportedMediaType));
        let json = ("content-type", "application/json; charset=utf-8");
        assert_eq!(check(&[("host", "::1"), length, json]), Ok(()));
    }

    fn refused(extra: &[&str], peer: &str, local: &str) -> bool {
        refuse_peer(&config(extra), peer.parse().unwrap(), local.parse().unwrap()).is_some()
    }

    #[test]
    fn peers_are_allowed_by_address() {
        assert!(!refused(&[], "192.0.2.1:5", "192.0.2.9:80"));
        let only = ["--allow-peer", "192.0.2.1"];
        assert!(!refused(&only, "192.0.2.1:5", "192.0.2.9:80"));
        assert!(!refused(&only, "[::ffff:192.0.2.1]:5", "192.0.2.9:80"));
        assert!(refused(&only, "127.0.0.1:5", "127.0.0.1:80"));
    }

    #[test]
    fn own_addresses_are_refused_unless_browserd_listens_on_loopback() {
        for listen in ["192.0.2.9:80", "0.0.0.0:80", "[::]:80", "[2001:db8::9]:80"] {
            let listen = ["--listen", listen];
            for (peer, local) in [
                ("192.0.2.9:5", "192.0.2.9:80"),
                ("127.0.0.1:5", "192.0.2.9:80"),
                ("127.9.9.9:5", "192.0.2.9:80"),
                ("[::1]:5", "[2001:db8::9]:80"),
                ("[2001:db8::9]:5", "[2001:db8::9]:80"),
                ("[::ffff:127.0.0.1]:5", "[::ffff:192.0.2.9]:80"),
                ("[::ffff:192.0.2.9]:5", "[::ffff:192.0.2.9]:80"),
                ("192.0.2.9:5", "[::ffff:192.0.2.9]:80"),
            ] {
                assert!(refused(&listen, peer, local), "{listen:?}: {peer} to {local}");
            }
            assert!(!refused(&listen, "192.0.2.1:5", "192.0.2.9:80"));
            assert!(!refused(&listen, "[2001:db8::1]:5", "[2001:db8::9]:80"));
        }
        assert!(!refused(&["--listen", "127.0.0.1:80"], "127.0.0.1:5", "127.0.0.1:80"));
        assert!(!refused(&["--listen", "[::1]:80"], "[::1]:5", "[::1]:80"));
    }
}
