//! Tells an address that the clone's network policy refuses from one that is only not reachable.
//!
//! The packet filter answers refused packets at once. Chromium's error for that also means other things, so the address decides:
//! it is looked up in the list that the packet filter is rendered from.

use crate::browser::actions::Context;
use pf::deny::{self, Kind};
use serde::Deserialize;
use serde_json::json;
use std::net::IpAddr;
use std::time::Duration;

/// How long a name may take that Chromium has just resolved.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrameTree {
    frame_tree: Tree,
}

#[derive(Deserialize)]
struct Tree {
    frame: Frame,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Frame {
    #[serde(default)]
    unreachable_url: Option<String>,
}

/// Why the policy refused the address of a navigation that failed with this error of Chromium.
pub(super) async fn reason(context: &Context, requested: &str, error: &str) -> Option<String> {
    if !["net::ERR_ADDRESS_UNREACHABLE", "net::ERR_NETWORK_ACCESS_DENIED", "net::ERR_CONNECTION_REFUSED"]
        .contains(&error)
    {
        return None;
    }
    // After a redirect it is another URL than the requested one.
    let tree = context.tab.call::<FrameTree>("Page.getFrameTree", json!({}), context.until).await.ok();
    let failed = tree.and_then(|tree| tree.frame_tree.frame.unreachable_url);
    let (host, port) = host_and_port(failed.as_deref().unwrap_or(requested))?;
    let lookup = tokio::net::lookup_host((host.as_str(), port));
    let addresses = tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await.ok()?.ok()?;
    let mut why = None;
    for address in addresses.map(|address| address.ip()) {
        let reason = refused(address, error)?;
        why.get_or_insert_with(|| format!("the clone's network policy refuses {address}: {reason}"));
    }
    why
}

/// Why the policy refuses an address, if this error fits.
fn refused(address: IpAddr, error: &str) -> Option<&'static str> {
    // On Linux a refused packet of IPv4 is answered by an ICMP error, which no closed port sends.
    if error.ends_with("REFUSED") && address.is_ipv4() && cfg!(target_os = "linux") {
        return None;
    }
    let reason = deny::denied(address)?;
    // Loopback is the clone itself. Addresses for documentation are allowed.
    (!matches!(reason.kind, Kind::Loopback | Kind::Documentation)).then_some(reason.text)
}

/// The host and port of an HTTP URL.
fn host_and_port(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let usual = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Some((host, after)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        let port = after.strip_prefix(':').and_then(|port| port.parse().ok());
        return Some((host.to_owned(), port.unwrap_or(usual)));
    }
    match host.split_once(':') {
        Some((host, port)) => Some((host.to_owned(), port.parse().unwrap_or(usual))),
        None => Some((host.to_owned(), usual)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_every_form_of_url_is_found() {
        for (url, host, port) in [
            ("http://10.1.2.3/", "10.1.2.3", 80),
            ("https://name.example:8443/a?b#c", "name.example", 8443),
            ("https://user:pass@name.example", "name.example", 443),
            ("http://[fd12::1]:8080/", "fd12::1", 8080),
            ("HTTPS://[fd12::1]", "fd12::1", 443),
            ("http://a?x@b", "a", 80),
        ] {
            assert_eq!(host_and_port(url), Some((host.to_owned(), port)), "{url}");
        }
        assert_eq!(host_and_port("about:blank"), None);
    }

    #[test]
    fn only_addresses_of_the_policy_and_fitting_errors_count() {
        let unreachable = "net::ERR_ADDRESS_UNREACHABLE";
        let refused_with = |address: &str, error| refused(address.parse().expect("an address"), error);
        for address in ["10.1.2.3", "169.254.169.254", "fd12::1", "100.64.0.1"] {
            assert!(refused_with(address, unreachable).is_some(), "{address}");
        }
        for address in ["93.184.216.34", "127.0.0.1", "203.0.113.10", "2606:4700::1111"] {
            assert_eq!(refused_with(address, unreachable), None, "{address}");
        }
        let closed = "net::ERR_CONNECTION_REFUSED";
        assert!(refused_with("fd12::1", closed).is_some());
        assert_eq!(refused_with("10.1.2.3", closed).is_none(), cfg!(target_os = "linux"));
    }
}
