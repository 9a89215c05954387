//! The upstream proxy that a caller sets by `--proxy-server`, and the hosts for which it is not used.

use std::net::IpAddr;

use super::{Denial, EgressRules, Target, denied_address};

/// A proxy that the launcher's own proxy dials instead of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub kind: Kind,
    pub target: Target,
    bypass: Bypass,
}

/// The protocol of an upstream proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Http,
    Socks5,
}

impl Upstream {
    /// Reads the values of `--proxy-server` and `--proxy-bypass-list`. `None` for no proxy.
    pub fn from_switches(server: &str, bypass: &str) -> Result<Option<Upstream>, String> {
        let server = server.trim();
        if server.is_empty() || server.eq_ignore_ascii_case("direct://") {
            return Ok(None);
        }
        if server.contains([';', ',', '=']) {
            return Err("one proxy for all addresses is supported, not a list".into());
        }
        let (scheme, rest) = match server.split_once("://") {
            Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
            None => ("http".to_owned(), server),
        };
        let (kind, port) = match scheme.as_str() {
            "http" => (Kind::Http, 80),
            "socks" | "socks5" | "socks5h" => (Kind::Socks5, 1080),
            other => return Err(format!("{other} proxies are not supported; use http or socks5")),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let target = Target::from_authority(authority, Some(port)).ok_or(
            "it is not scheme://HOST:PORT (Chromium takes no user name and password there; the client answers the proxy)",
        )?;
        Ok(Some(Upstream { kind, target, bypass: Bypass::parse(bypass) }))
    }

    /// Refuses a proxy that is known to be denied before its name is resolved.
    pub fn check(&self, rules: &EgressRules) -> Result<(), Denial> {
        rules.check_name(&self.target)?;
        rules.check_literal(&self.target, &Default::default())
    }

    /// Whether the caller wants a host to be reached without this proxy.
    pub(super) fn is_bypassed(&self, target: &Target, encrypted: bool) -> bool {
        self.bypass.matches(target, encrypted)
    }

    /// Whether a proxy at this address is in the machine's own networks. Such a proxy reaches what the browser must not.
    pub(super) fn is_local(address: IpAddr) -> bool {
        denied_address(address, &Default::default()).is_some()
    }
}

/// The rules of `--proxy-bypass-list`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bypass {
    rules: Vec<Rule>,
    /// `<-loopback>`: the proxy is used for loopback addresses too.
    proxy_loopback: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// `<local>`: names without a dot.
    Local,
    Network {
        base: IpAddr,
        bits: u8,
    },
    Host {
        encrypted: Option<bool>,
        pattern: String,
        port: Option<u16>,
    },
}

impl Bypass {
    fn parse(text: &str) -> Bypass {
        let mut bypass = Bypass::default();
        for rule in text.split([';', ',']).map(str::trim).filter(|rule| !rule.is_empty()) {
            match rule.to_ascii_lowercase().as_str() {
                "<-loopback>" => bypass.proxy_loopback = true,
                "<local>" => bypass.rules.push(Rule::Local),
                rule => bypass.rules.push(Rule::parse(rule)),
            }
        }
        bypass
    }

    fn matches(&self, target: &Target, encrypted: bool) -> bool {
        let address = target.host.parse::<IpAddr>().ok();
        let loopback = target.host == "localhost"
            || target.host.ends_with(".localhost")
            || address.is_some_and(|address| address.is_loopback());
        (loopback && !self.proxy_loopback)
            || self.rules.iter().any(|rule| match rule {
                Rule::Local => address.is_none() && !target.host.contains('.'),
                Rule::Network { base, bits } => address.is_some_and(|address| is_in(address, *base, *bits)),
                Rule::Host { encrypted: only, pattern, port } => {
                    only.is_none_or(|only| only == encrypted)
                        && port.is_none_or(|port| port == target.port)
                        && is_like(&target.host, pattern)
                }
            })
    }
}

impl Rule {
    fn parse(rule: &str) -> Rule {
        if let Some((base, bits)) = rule.split_once('/')
            && let (Ok(base), Ok(bits)) = (base.parse(), bits.parse())
        {
            return Rule::Network { base, bits };
        }
        let (encrypted, rest) = match rule.split_once("://") {
            Some((scheme, rest)) => (Some(matches!(scheme, "https" | "wss")), rest),
            None => (None, rule),
        };
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port))
                if port.parse::<u16>().is_ok() && (host.ends_with(']') || !host.contains(':')) =>
            {
                (host, port.parse().ok())
            }
            _ => (rest, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let pattern = if host.starts_with('.') { format!("*{host}") } else { host.to_owned() };
        Rule::Host { encrypted, pattern, port }
    }
}

fn is_in(address: IpAddr, base: IpAddr, bits: u8) -> bool {
    let same = |a: u128, b: u128, width: u32| {
        let bits = u32::from(bits).min(width);
        bits == 0 || (a ^ b) >> (width - bits) == 0
    };
    match (address, base) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(u32::from(a).into(), u32::from(b).into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.into(), b.into(), 128),
        _ => false,
    }
}

/// Whether a host matches a pattern in which `*` stands for any text.
fn is_like(host: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = host.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(position) => rest = &rest[position + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(server: &str, bypass: &str) -> Upstream {
        Upstream::from_switches(server, bypass).expect("valid").expect("a proxy")
    }

    #[test]
    fn a_proxy_is_read_from_the_switch() {
        let read = |text: &str| {
            let upstream = upstream(text, "");
            (upstream.kind, upstream.target.to_string())
        };
        assert_eq!(read("proxy.example:3128"), (Kind::Http, "proxy.example:3128".to_owned()));
        assert_eq!(read("HTTP://Proxy.Example/"), (Kind::Http, "proxy.example:80".to_owned()));
        assert_eq!(read("socks5://1.2.3.4"), (Kind::Socks5, "1.2.3.4:1080".to_owned()));
        assert_eq!(Upstream::from_switches("direct://", ""), Ok(None));
        for wrong in ["https://a:1", "socks4://a:1", "http=a:1;https=b:1", "http://user:pw@a:1", "quic://a"] {
            assert!(Upstream::from_switches(wrong, "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_local_proxy_must_be_allowed() {
        let local = upstream("http://127.0.0.1:8080", "");
        assert!(local.check(&EgressRules::default()).is_err());
        assert!(local.check(&EgressRules::new(vec!["127.0.0.1:8080".parse().expect("allow")])).is_ok());
        assert!(upstream("localhost:8080", "").check(&EgressRules::default()).is_err());
        assert!(upstream("proxy.example:8080", "").check(&EgressRules::default()).is_ok());
    }

    #[test]
    fn the_bypass_list_is_chromiums() {
        let list = ".corp.example, *.wild.example:8443;https://only.example;10.0.0.0/8,<local>,[2001:db8::1],exact.example";
        let proxy = upstream("a:1", list);
        let bypassed = |text: &str, encrypted| {
            proxy.is_bypassed(&Target::from_authority(text, Some(80)).expect("target"), encrypted)
        };
        for host in [
            "x.corp.example",
            "a.wild.example:8443",
            "10.1.2.3",
            "printer",
            "localhost",
            "127.0.0.1",
            "[2001:db8::1]",
            "exact.example",
        ] {
            assert!(bypassed(host, false), "{host}");
        }
        assert!(bypassed("only.example:443", true) && !bypassed("only.example:443", false));
        for host in ["corp.example", "a.wild.example:80", "11.0.0.1", "www.example.com", "xexact.example"] {
            assert!(!bypassed(host, false), "{host}");
        }
        let strict = upstream("a:1", "<-loopback>");
        assert!(!strict.is_bypassed(&Target::from_authority("127.0.0.1:80", None).expect("target"), false));
    }
}
