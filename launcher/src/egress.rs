//! Network access in mode `proxy`.
//!
//! The browser's network namespace has no route. All traffic goes through an HTTP proxy in the launcher, which resolves
//! a name once, checks the addresses, and dials an address that it checked. The same check applies to names that change
//! their address (DNS rebinding), redirects, subresources, WebSockets and requests of a compromised browser process.
//! UDP, and with it QUIC and WebRTC, cannot leave.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

mod proxy;
mod request;
mod upstream;

pub use proxy::{HostNetwork, Network, Proxy, serve};
pub use upstream::Upstream;

/// A local server that may be reached although its address is denied: `127.0.0.1:3000`, `[::1]:3000`, `wiki.lan:80`.
///
/// It applies to requests for exactly this host and port. Another name that resolves to the same address stays denied,
/// so that allowing a development server does not expose it to every web site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Allowed {
    host: String,
    port: u16,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` in `allow` is not HOST:PORT, for example 127.0.0.1:3000 or [::1]:3000")]
pub struct AllowedError(String);

impl FromStr for Allowed {
    type Err = AllowedError;

    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let bad = || AllowedError(text.to_owned());
        let target = Target::from_authority(text, None).ok_or_else(bad)?;
        Ok(Allowed { host: target.host, port: target.port })
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Allowed {
    fn permits(&self, target: &Target) -> bool {
        let host_matches = self.host == target.host
            // Users type `localhost` for a server that they allowed by its loopback address.
            || (target.host == "localhost" && self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()));
        host_matches && self.port == target.port
    }
}

/// The destination of a request: host without brackets, in lower case, without a final dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub host: String,
    pub port: u16,
}

impl Target {
    /// Reads `host:port`, `[v6]:port` or, with a default port, the host alone.
    fn from_authority(text: &str, default_port: Option<u16>) -> Option<Target> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return None,
            }
        } else {
            match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        let port = match port {
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok()?,
            Some(_) => return None,
            None => default_port?,
        };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
        let valid = !host.is_empty() && host.len() <= 253 && host.bytes().all(fits) && port != 0;
        valid.then_some(Target { host, port })
    }
}

impl Target {
    /// `host:port`, with brackets around an IPv6 address.
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Why a target was refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Denial {
    #[error("the name {name} is denied: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("{host} is denied: its address {address} is {reason}")]
    Address { host: String, address: IpAddr, reason: &'static str },
}

/// The reachable destinations: public addresses except the host's own, plus the allowed servers.
#[derive(Clone, Debug, Default)]
pub struct EgressRules {
    allow: Vec<Allowed>,
    /// The debugging port on this machine's loopback. Whoever connects to it is the client, so the browser never does.
    debugging_port: Option<u16>,
}

impl EgressRules {
    pub fn new(allow: Vec<Allowed>) -> Self {
        EgressRules { allow, debugging_port: None }
    }

    /// Denies a port of this machine, whatever is allowed.
    pub fn without_port(mut self, port: Option<u16>) -> Self {
        self.debugging_port = port;
        self
    }

    /// Checks a target that is an address and not a name.
    fn check_literal(&self, target: &Target, own: &BTreeSet<IpAddr>) -> Result<(), Denial> {
        match target.host.parse() {
            Ok(address) => {
                self.check_addresses(target, &[SocketAddr::new(address, target.port)], own).map(drop)
            }
            Err(_) => Ok(()),
        }
    }

    fn allows(&self, target: &Target) -> bool {
        self.allow.iter().any(|allowed| allowed.permits(target))
    }

    /// Checks the name before it is resolved.
    pub fn check_name(&self, target: &Target) -> Result<(), Denial> {
        if self.allows(target) {
            return Ok(());
        }
        match denied_name(&target.host) {
            Some(reason) => Err(Denial::Name { name: target.host.clone(), reason }),
            None => Ok(()),
        }
    }

    /// Keeps the permitted addresses in their order; fails if none is left.
    pub fn check_addresses(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
        own: &BTreeSet<IpAddr>,
    ) -> Result<Vec<SocketAddr>, Denial> {
        let allowed = self.allows(target);
        let mut first_denial = None;
        let mut kept = Vec::new();
        for address in addresses {
            let listed = denied_address(address.ip(), own);
            let reason = match self.debugging_port == Some(address.port()) {
                true => listed,
                false => listed.filter(|_| !allowed),
            };
            match reason {
                None => kept.push(*address),
                Some(reason) => {
                    first_denial.get_or_insert(Denial::Address {
                        host: target.host.clone(),
                        address: address.ip(),
                        reason,
                    });
                }
            }
        }
        match first_denial {
            Some(denial) if kept.is_empty() => Err(denial),
            _ => Ok(kept),
        }
    }
}

/// Why an address is never dialled, if it is denied.
pub fn denied_address(address: IpAddr, own: &BTreeSet<IpAddr>) -> Option<&'static str> {
    let listed = pf::deny::denied(address).map(|reason| reason.text);
    listed.or_else(|| own.contains(&address).then_some("an address of this host"))
}

/// Why a name is never resolved, if it is denied.
pub fn denied_name(host: &str) -> Option<&'static str> {
    pf::deny::denied_name(host).map(|reason| reason.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn own_addresses_are_denied_even_when_public() {
        let own = BTreeSet::from(["93.184.216.34".parse().expect("address")]);
        assert_eq!(
            denied_address("93.184.216.34".parse().expect("address"), &own),
            Some("an address of this host")
        );
        assert_eq!(denied_address("93.184.216.35".parse().expect("address"), &own), None);
    }

    #[test]
    fn names_are_denied_with_their_subdomains() {
        for name in
            ["localhost", "a.localhost", "metadata.google.internal", "db.prod.internal", "printer.local"]
        {
            assert!(denied_name(name).is_some(), "{name}");
        }
        for name in ["example.com", "internal.example.com", "notlocalhost", "mylocal"] {
            assert!(denied_name(name).is_none(), "{name}");
        }
    }

    #[test]
    fn an_allowed_server_is_reached_only_by_its_own_name_and_port() {
        let rules = EgressRules::new(vec!["127.0.0.1:3000".parse().expect("allow")]);
        let target = |text: &str| Target::from_authority(text, None).expect(text);
        let loopback = |port| vec![SocketAddr::from(([127, 0, 0, 1], port))];
        let open = |text: &str, port| {
            rules.check_name(&target(text)).is_ok()
                && rules.check_addresses(&target(text), &loopback(port), &BTreeSet::new()).is_ok()
        };
        assert!(open("127.0.0.1:3000", 3000));
        assert!(open("localhost:3000", 3000));
        assert!(open("LOCALHOST.:3000", 3000));
        assert!(!open("127.0.0.1:3001", 3001), "another port");
        assert!(!open("localhost:22", 22), "another port by name");
        assert!(!open("rebound.example.com:3000", 3000), "a foreign name with the same address");
    }

    /// A browser that reached its own debugging port could speak as the client.
    #[test]
    fn the_debugging_port_is_never_reached() {
        let rules = EgressRules::new(vec!["127.0.0.1:9222".parse().expect("allow")]).without_port(Some(9222));
        let target = Target::from_authority("127.0.0.1:9222", None).expect("target");
        let own = BTreeSet::new();
        assert!(rules.check_addresses(&target, &["127.0.0.1:9222".parse().expect("address")], &own).is_err());
        assert!(rules.check_addresses(&target, &["1.1.1.1:9222".parse().expect("address")], &own).is_ok());
    }

    #[test]
    fn only_permitted_addresses_are_kept() {
        let rules = EgressRules::default();
        let target = Target::from_authority("mixed.example.com:443", None).expect("target");
        let addresses: Vec<SocketAddr> = ["10.0.0.1:443", "1.1.1.1:443", "[::1]:443"]
            .iter()
            .map(|text| text.parse().expect(text))
            .collect();
        let kept = rules.check_addresses(&target, &addresses, &BTreeSet::new()).expect("one is public");
        assert_eq!(kept, [addresses[1]]);
        let error = rules
            .check_addresses(&target, &addresses[..1], &BTreeSet::new())
            .expect_err("only a private one");
        assert!(error.to_string().contains("10.0.0.1") && error.to_string().contains("RFC 1918"), "{error}");
    }

    #[test]
    fn malformed_authorities_are_refused() {
        for text in [
            "",
            ":80",
            "host:",
            "host:0",
            "host:99999",
            "host:+80",
            "[::1",
            "[::1]80",
            "[not]:80",
            "a b:80",
            "a/b:80",
            "::1:80",
            "host:80:90",
        ] {
            assert_eq!(Target::from_authority(text, None), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_v6_address_outside_global_unicast_is_open(bits in any::<u128>()) {
            let address = std::net::Ipv6Addr::from(bits);
            let open = denied_address(address.into(), &BTreeSet::new()).is_none();
            prop_assert!(!open || (bits >> 125) == 1);
        }

        #[test]
        fn v4_agrees_with_the_standard_library(bits in any::<u32>()) {
            let address = std::net::Ipv4Addr::from(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local() || address.is_multicast()
                || address.is_broadcast() || address.is_documentation() || address.is_unspecified();
            prop_assert!(!special || denied_address(address.into(), &BTreeSet::new()).is_some());
        }

        #[test]
        fn reading_an_authority_never_panics(text in "\\PC{0,40}") {
            let _ = Target::from_authority(&text, Some(80));
        }
    }
}
