//! The one list of what a confined browser may never reach: data, one reason per row.
//!
//! It is kept free of any mechanism so that a packet filter can be rendered from the same rows.

/// A range of addresses that is never dialled.
#[derive(Clone, Copy, Debug)]
pub struct DeniedRange {
    pub net: &'static str,
    pub reason: &'static str,
}

/// A name that is never resolved. A leading `*.` stands for every name below.
///
/// Names are refused for a clear message and to keep the resolver quiet; the boundary is the address list, which is
/// applied to every address that a name resolves to.
#[derive(Clone, Copy, Debug)]
pub struct DeniedName {
    pub name: &'static str,
    pub reason: &'static str,
}

const fn range(net: &'static str, reason: &'static str) -> DeniedRange {
    DeniedRange { net, reason }
}

const fn name(name: &'static str, reason: &'static str) -> DeniedName {
    DeniedName { name, reason }
}

/// First match gives the reason, so single addresses stand before the ranges around them.
pub const DENIED_RANGES: &[DeniedRange] = &[
    // IPv4
    range("169.254.169.254/32", "cloud metadata service"),
    range("169.254.170.2/32", "cloud container credentials service"),
    range(
        "168.63.129.16/32",
        "cloud host agent (Azure WireServer), a public-looking address that only exists inside",
    ),
    range("100.100.100.200/32", "cloud metadata service (Alibaba)"),
    range("192.0.0.192/32", "cloud metadata service (Oracle, old)"),
    range(
        "0.0.0.0/8",
        "this host (RFC 1122): Linux connects 0.0.0.0 to loopback",
    ),
    range("10.0.0.0/8", "private network (RFC 1918)"),
    range(
        "100.64.0.0/10",
        "carrier-grade NAT, used inside clouds and overlay networks (RFC 6598)",
    ),
    range("127.0.0.0/8", "loopback of the host"),
    range("169.254.0.0/16", "link-local (RFC 3927)"),
    range("172.16.0.0/12", "private network (RFC 1918)"),
    range("192.0.0.0/24", "protocol assignments (RFC 6890)"),
    range("192.0.2.0/24", "documentation (RFC 5737)"),
    range("192.88.99.0/24", "6to4 relay anycast, retired (RFC 7526)"),
    range("192.168.0.0/16", "private network (RFC 1918)"),
    range("198.18.0.0/15", "benchmark networks (RFC 2544)"),
    range("198.51.100.0/24", "documentation (RFC 5737)"),
    range("203.0.113.0/24", "documentation (RFC 5737)"),
    range("224.0.0.0/4", "multicast"),
    range("240.0.0.0/4", "reserved, and the broadcast address"),
    // IPv6
    range("::/128", "unspecified: Linux connects it to loopback"),
    range("::1/128", "loopback of the host"),
    range(
        "::ffff:0:0/96",
        "IPv4-mapped: another way to write an IPv4 address",
    ),
    range(
        "::ffff:0:0:0/96",
        "IPv4-translated (RFC 2765): another way to write an IPv4 address",
    ),
    range("::/96", "IPv4-compatible, retired (RFC 4291)"),
    range(
        "64:ff9b::/96",
        "NAT64: leads to IPv4 addresses unchecked (RFC 6052)",
    ),
    range(
        "64:ff9b:1::/48",
        "local NAT64: leads to IPv4 addresses unchecked (RFC 8215)",
    ),
    range("100::/64", "discard prefix (RFC 6666)"),
    range("2001::/32", "Teredo: carries IPv4 addresses unchecked"),
    range("2001:2::/48", "benchmark networks (RFC 5180)"),
    range("2001:10::/28", "ORCHID, retired (RFC 4843)"),
    range("2001:20::/28", "ORCHIDv2 (RFC 7343)"),
    range("2001:db8::/32", "documentation (RFC 3849)"),
    range(
        "2002::/16",
        "6to4: leads to IPv4 addresses unchecked (RFC 3056)",
    ),
    range("3fff::/20", "documentation (RFC 9637)"),
    range("fd00:ec2::254/128", "cloud metadata service (AWS)"),
    range("fd20:ce::254/128", "cloud metadata service (Google)"),
    range(
        "fc00::/7",
        "unique local, the private range of IPv6 (RFC 4193)",
    ),
    range("fe80::/10", "link-local (RFC 4291)"),
    range("fec0::/10", "site-local, retired (RFC 3879)"),
    range("ff00::/8", "multicast"),
    // Only 2000::/3 is handed out as global unicast; the three rows are all the rest.
    range("::/3", "not global unicast"),
    range("4000::/2", "not global unicast"),
    range("8000::/1", "not global unicast"),
];

pub const DENIED_NAMES: &[DeniedName] = &[
    name("localhost", "the host itself"),
    name("*.localhost", "the host itself (RFC 6761)"),
    name("localhost.localdomain", "the host itself"),
    name("*.localdomain", "the local network"),
    name("ip6-localhost", "the host itself"),
    name("ip6-loopback", "the host itself"),
    name("metadata", "cloud metadata service"),
    name(
        "metadata.google.internal",
        "cloud metadata service (Google)",
    ),
    name("instance-data", "cloud metadata service (AWS)"),
    name(
        "*.internal",
        "names of a private network (reserved by ICANN), cloud metadata and container hosts among them",
    ),
    name(
        "*.local",
        "names of the local network (mDNS, RFC 6762), clusters among them",
    ),
    name("*.home.arpa", "names of a home network (RFC 8375)"),
    name("*.svc", "services of a cluster"),
    name("kubernetes", "the control plane of a cluster"),
    name("kubernetes.default", "the control plane of a cluster"),
];
