//! The list of addresses and names that a confined browser may never reach, each with a reason.
//!
//! Packet filter rules are rendered from it and proxies query it, so both refuse the same destinations.

use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

/// Why an address or a name is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason {
    /// The category.
    pub kind: Kind,
    /// One line that continues "10.0.0.1 is".
    pub text: &'static str,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// The categories of denied destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The host itself: loopback and unspecified addresses.
    Loopback,
    /// A private network: RFC 1918, unique local, carrier-grade NAT, local names.
    Private,
    /// Link-local addresses.
    LinkLocal,
    /// A cloud's service for its own machines. It issues credentials.
    Metadata,
    /// Multicast and broadcast.
    Multicast,
    /// Not assigned.
    Reserved,
    /// An IPv6 address that embeds an IPv4 address and could bypass IPv4 rules.
    Embedded,
    /// Reserved for documentation. Only test networks use these addresses.
    Documentation,
}

/// A denied range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The addresses.
    pub net: IpNet,
    /// Why it is denied.
    pub reason: Reason,
}

use Kind::*;

/// The first match gives the reason, so single addresses precede the ranges that contain them.
const RANGES: &[(&str, Kind, &str)] = &[
    ("169.254.169.254/32", Metadata, "a cloud metadata service"),
    ("169.254.170.2/32", Metadata, "a cloud credentials service for containers"),
    (
        "168.63.129.16/32",
        Metadata,
        "a cloud host agent (Azure): a public address that exists only inside the cloud",
    ),
    ("100.100.100.200/32", Metadata, "a cloud metadata service (Alibaba)"),
    ("192.0.0.192/32", Metadata, "a cloud metadata service (Oracle, old)"),
    ("0.0.0.0/8", Loopback, "this host (RFC 1122): Linux connects 0.0.0.0 to loopback"),
    ("10.0.0.0/8", Private, "a private network (RFC 1918)"),
    ("100.64.0.0/10", Private, "carrier-grade NAT, used inside clouds and overlay networks (RFC 6598)"),
    ("127.0.0.0/8", Loopback, "loopback"),
    ("169.254.0.0/16", LinkLocal, "link-local (RFC 3927)"),
    ("172.16.0.0/12", Private, "a private network (RFC 1918)"),
    ("192.0.0.0/24", Reserved, "for protocol assignments (RFC 6890)"),
    ("192.0.2.0/24", Documentation, "for documentation (RFC 5737)"),
    ("192.88.99.0/24", Reserved, "the 6to4 relay anycast, retired (RFC 7526)"),
    ("192.168.0.0/16", Private, "a private network (RFC 1918)"),
    ("198.18.0.0/15", Private, "a benchmark network (RFC 2544)"),
    ("198.51.100.0/24", Documentation, "for documentation (RFC 5737)"),
    ("203.0.113.0/24", Documentation, "for documentation (RFC 5737)"),
    ("224.0.0.0/4", Multicast, "multicast"),
    ("255.255.255.255/32", Multicast, "broadcast"),
    ("240.0.0.0/4", Reserved, "reserved (RFC 1112)"),
    ("::/128", Loopback, "unspecified: Linux connects it to loopback"),
    ("::1/128", Loopback, "loopback"),
    ("::ffff:0:0/96", Embedded, "IPv4-mapped: another way to write an IPv4 address"),
    ("::ffff:0:0:0/96", Embedded, "IPv4-translated: another way to write an IPv4 address (RFC 2765)"),
    ("::/96", Embedded, "IPv4-compatible, retired (RFC 4291)"),
    ("64:ff9b::/96", Embedded, "NAT64: leads to IPv4 addresses (RFC 6052)"),
    ("64:ff9b:1::/48", Embedded, "local NAT64: leads to IPv4 addresses (RFC 8215)"),
    ("100::/64", Reserved, "the discard prefix (RFC 6666)"),
    ("2001::/32", Embedded, "Teredo: leads to IPv4 addresses (RFC 4380)"),
    ("2001:2::/48", Private, "a benchmark network (RFC 5180)"),
    ("2001:10::/28", Reserved, "ORCHID, retired (RFC 4843)"),
    ("2001:20::/28", Reserved, "ORCHIDv2 (RFC 7343)"),
    ("2001:db8::/32", Documentation, "for documentation (RFC 3849)"),
    ("2002::/16", Embedded, "6to4: leads to IPv4 addresses (RFC 3056)"),
    ("3fff::/20", Documentation, "for documentation (RFC 9637)"),
    ("fd00:ec2::254/128", Metadata, "a cloud metadata service (AWS)"),
    ("fd20:ce::254/128", Metadata, "a cloud metadata service (Google)"),
    ("fc00::/7", Private, "unique local, the private range of IPv6 (RFC 4193)"),
    ("fe80::/10", LinkLocal, "link-local (RFC 4291)"),
    ("fec0::/10", Private, "site-local, retired (RFC 3879)"),
    ("ff00::/8", Multicast, "multicast"),
    // Only 2000::/3 is assigned as global unicast. These three ranges cover the rest.
    ("::/3", Reserved, "not global unicast"),
    ("4000::/2", Reserved, "not global unicast"),
    ("8000::/1", Reserved, "not global unicast"),
];

/// A leading `*` matches every name with this suffix.
///
/// Names are refused early to give a clear message and to spare the resolver. The security boundary is the list of
/// addresses, which is applied to every address that a name resolves to.
const NAMES: &[(&str, Reason)] = &[
    ("localhost", HERE),
    ("*.localhost", HERE),
    ("localhost.localdomain", HERE),
    ("*.localdomain", LOCAL_NAME),
    ("ip6-localhost", HERE),
    ("ip6-loopback", HERE),
    ("metadata", METADATA_NAME),
    ("metadata.google.internal", METADATA_NAME),
    ("metadata.goog", METADATA_NAME),
    ("instance-data", METADATA_NAME),
    ("*.internal", LOCAL_NAME),
    ("*.local", LOCAL_NAME),
    ("*.home.arpa", LOCAL_NAME),
    ("*.svc", CLUSTER_NAME),
    ("kubernetes", CLUSTER_NAME),
    ("kubernetes.default", CLUSTER_NAME),
];

const HERE: Reason = Reason { kind: Loopback, text: "the host itself (RFC 6761)" };
const LOCAL_NAME: Reason = Reason { kind: Private, text: "a name of a private network (RFC 6762, RFC 8375)" };
const METADATA_NAME: Reason = Reason { kind: Metadata, text: "a cloud metadata service" };
const CLUSTER_NAME: Reason = Reason { kind: Private, text: "a service of a cluster" };

static PARSED: LazyLock<Vec<Range>> = LazyLock::new(|| {
    let row = |&(net, kind, text): &(&str, Kind, &'static str)| Range {
        net: net.parse().expect("a test parses every row"),
        reason: Reason { kind, text },
    };
    RANGES.iter().map(row).collect()
});

/// All denied ranges. The first that contains an address gives its reason.
pub fn ranges() -> &'static [Range] {
    &PARSED
}

/// Why this address is denied; `None` if it is allowed.
///
/// An IPv6 address that embeds a denied IPv4 address is denied for the reason of that one. Every other IPv6 address that
/// embeds an IPv4 address is denied as [`Kind::Embedded`].
pub fn denied(address: IpAddr) -> Option<&'static Reason> {
    let inner = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(outer) => embedded(outer).map(IpAddr::V4).and_then(listed),
    };
    inner.or_else(|| listed(address))
}

fn listed(address: IpAddr) -> Option<&'static Reason> {
    ranges().iter().find(|range| range.net.contains(&address)).map(|range| &range.reason)
}

/// Why this name is denied; `None` if it is allowed. Case and a final dot are ignored.
pub fn denied_name(name: &str) -> Option<&'static Reason> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let fits = |pattern: &str| match pattern.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => name == pattern,
    };
    NAMES.iter().find(|(pattern, _)| fits(pattern)).map(|(_, reason)| reason)
}

/// The IPv4 address that an IPv6 address embeds: mapped, translated, compatible, NAT64, 6to4, Teredo.
///
/// `::` and `::1` are not treated as IPv4-compatible addresses.
pub fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let last = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => Some(last(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(last(high, low)),
        // A /96 below the local prefix is the usual length. RFC 6052 allows others; the whole prefix is denied anyway.
        [0x64, 0xff9b, 1, _, _, _, high, low] => Some(last(high, low)),
        [0x2002, high, low, ..] => Some(last(high, low)),
        // Teredo stores the client's address inverted.
        [0x2001, 0, .., high, low] => Some(last(!high, !low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind(address: &str) -> Option<Kind> {
        denied(address.parse().expect("an address")).map(|reason| reason.kind)
    }

    #[test]
    fn every_row_is_a_network_that_denies_its_first_and_last_address() {
        assert_eq!(ranges().len(), RANGES.len());
        for range in ranges() {
            assert_eq!(range.net.addr(), range.net.network(), "{} has host bits", range.net);
            for address in [range.net.network(), range.net.broadcast()] {
                assert!(denied(address).is_some(), "{address} of {}", range.net);
            }
            assert!(!range.reason.text.is_empty() && !range.reason.text.contains('\n'), "{}", range.net);
        }
    }

    #[test]
    fn addresses_next_to_a_denied_range_are_allowed() {
        for open in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2000::1",
            "2001:1::1",
            "2001:4860::1",
            "2003::1",
            "2606:4700::1111",
            "3ffe::1",
        ] {
            assert_eq!(kind(open), None, "{open}");
        }
    }

    #[test]
    fn addresses_are_denied_with_the_most_specific_kind() {
        for (address, expected) in [
            ("169.254.169.254", Metadata),
            ("168.63.129.16", Metadata),
            ("fd00:ec2::254", Metadata),
            ("169.254.1.1", LinkLocal),
            ("10.1.2.3", Private),
            ("100.64.0.1", Private),
            ("0.0.0.0", Loopback),
            ("255.255.255.255", Multicast),
            ("203.0.113.1", Documentation),
            ("::", Loopback),
            ("::1", Loopback),
            ("fe80::1", LinkLocal),
            ("fd12::1", Private),
            ("ff02::1", Multicast),
            ("5f00::1", Reserved),
        ] {
            assert_eq!(kind(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_embedded_ipv4_address_determines_the_reason() {
        for (address, expected) in [
            ("::ffff:10.0.0.1", Private),
            ("::ffff:169.254.169.254", Metadata),
            ("::ffff:0:127.0.0.1", Loopback),
            ("::10.0.0.1", Private),
            ("64:ff9b::169.254.169.254", Metadata),
            ("64:ff9b:1::10.0.0.1", Private),
            ("2002:a00:1::1", Private),
            // Teredo for the client 192.168.0.1, inverted.
            ("2001:0:1:2:3:4:3f57:fffe", Private),
            // A public embedded address does not make the outer one allowed.
            ("::ffff:8.8.8.8", Embedded),
            ("64:ff9b::8.8.8.8", Embedded),
            ("2002:808:808::", Embedded),
        ] {
            assert_eq!(kind(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn denied_names_include_their_subdomains() {
        for name in [
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "metadata.google.internal",
            "Metadata.Google.Internal.",
            "db.prod.internal",
            "printer.local",
            "router.home.arpa",
        ] {
            assert!(denied_name(name).is_some(), "{name}");
        }
        for name in ["example.com", "internal.example.com", "notlocalhost", "mylocal", "local", ""] {
            assert_eq!(denied_name(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn special_addresses_of_the_standard_library_are_denied(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from(bits);
            let special = v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_multicast()
                || v4.is_broadcast() || v4.is_documentation() || v4.is_unspecified();
            prop_assert!(!special || denied(v4.into()).is_some());
            // Every IPv6 form is denied too, even of public addresses.
            let [a, b, c, d] = v4.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            for outer in [
                v4.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2001, 0, 1, 2, 3, 4, !high, !low),
            ] {
                let reason = denied(outer.into());
                prop_assert!(reason.is_some(), "{}", outer);
                if let Some(inner) = denied(v4.into()) && embedded(outer).is_some() {
                    prop_assert_eq!(reason, Some(inner), "{} in {}", v4, outer);
                }
            }
        }

        #[test]
        fn ipv6_addresses_outside_global_unicast_are_denied(bits in any::<u128>()) {
            let v6 = Ipv6Addr::from(bits);
            let open = denied(v6.into()).is_none();
            prop_assert!(!open || bits >> 125 == 1);
            let special = v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.is_unique_local()
                || v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some();
            prop_assert!(!special || !open);
        }

        #[test]
        fn addresses_in_small_ipv6_prefixes_are_denied(
            prefix in prop::sample::select(vec![0u128, 0x64 << 112, 0xfc << 120, 0xfe8 << 116, 0xff << 120, 0x2002 << 112]),
            rest in any::<u64>(),
        ) {
            prop_assert!(denied(Ipv6Addr::from(prefix | u128::from(rest)).into()).is_some());
        }
    }
}
