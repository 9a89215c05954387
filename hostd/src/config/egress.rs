//! The section `[egress]`: what the clones may reach, and who may reach them.

use super::types::{empty_is_none, none_is_empty};
use crate::api::Callers;
use ipnet::IpNet;
use pf::ConnectionLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What the clones may reach, and who may reach them. Private, local and cloud-internal addresses are always blocked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressConfig {
    /// The name of the nftables table. Two daemons on one host need two names.
    pub table: String,
    /// The resolver of the clones: `auto`, `none` or an address, the only one that they may ask. `auto` asks the resolvers of
    /// this machine: on Linux through a forwarder on the clones' gateway address, which reads /etc/resolv.conf for each query;
    /// on FreeBSD the first address of /etc/resolv.conf that is not loopback.
    pub resolver: Resolver,
    /// The interface to the Internet, the only one that clones may use. Empty: as the routes say.
    pub external: String,
    /// Addresses and networks that may connect to browserd in the clones, in addition to this host: other machines, and
    /// containers on this one.
    #[schemars(with = "Vec<String>")]
    #[serde(deserialize_with = "networks", serialize_with = "as_text")]
    pub control_plane: Vec<IpNet>,
    /// User ids on this host that may connect to browserd in the clones. Empty: root, and whoever `[[access]]` lets create
    /// clones. A clone's secret is required in any case.
    pub control_users: Vec<u32>,
    /// The port of browserd in the clones. browserd is not privileged, so it needs a port from 1024 on.
    #[schemars(range(min = 1024, max = 65535))]
    pub browserd_port: u16,
    /// What `hostctl doctor` connects to from a clone network of its own, to prove that clones resolve names and reach the
    /// Internet: NAME:PORT or ADDRESS:PORT. Only Linux. Empty: doctor proves nothing and says so.
    #[serde(deserialize_with = "empty_is_none", serialize_with = "none_is_empty")]
    #[schemars(with = "String")]
    pub probe: Option<ProbeTarget>,
    /// Connections and flows of one clone at the same time. More are refused, because all share the host's connection
    /// tracking. An ordinary browser needs a few hundred.
    #[schemars(range(min = 64, max = 1_000_000))]
    pub max_connections: u32,
    /// New connections of one clone per second, on average. More are refused.
    #[schemars(range(min = 10, max = 1_000_000))]
    pub new_connections_per_second: u32,
    /// New connections of one clone at once, after a time with fewer. A heavy page opens a few hundred.
    #[schemars(range(min = 10, max = 1_000_000))]
    pub new_connections_burst: u32,
}

impl EgressConfig {
    /// The limits of each clone's connections.
    pub fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            open: self.max_connections,
            new_per_second: self.new_connections_per_second,
            burst: self.new_connections_burst,
        }
    }

    /// Whether a user may connect to clones as soon as [[access]] lets him create one.
    pub fn creators_may_connect(&self) -> bool {
        self.control_users.is_empty()
    }

    /// Who may connect to a clone of this owner.
    pub fn callers(&self, owner: Option<u32>) -> Callers {
        let mut users = match self.creators_may_connect() {
            true => [0].into_iter().chain(owner).collect(),
            false => self.control_users.clone(),
        };
        users.sort_unstable();
        users.dedup();
        Callers { users, networks: self.control_plane.iter().map(shown).collect() }
    }
}

impl Default for EgressConfig {
    fn default() -> Self {
        let limits = ConnectionLimits::default();
        Self {
            table: "hostd".into(),
            resolver: Resolver::Auto,
            external: String::new(),
            control_plane: Vec::new(),
            control_users: Vec::new(),
            browserd_port: 8080,
            // A name and a server that IANA keeps for examples.
            probe: Some(ProbeTarget { host: "example.com".into(), port: 443 }),
            max_connections: limits.open,
            new_connections_per_second: limits.new_per_second,
            new_connections_burst: limits.burst,
        }
    }
}

/// Where clones resolve names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, JsonSchema)]
#[schemars(with = "String")]
pub enum Resolver {
    /// At this machine's resolvers.
    #[default]
    Auto,
    /// Nowhere.
    None,
    /// At this address.
    Address(IpAddr),
}

impl FromStr for Resolver {
    type Err = String;

    fn from_str(text: &str) -> Result<Resolver, String> {
        match text {
            "auto" => Ok(Resolver::Auto),
            // Files of earlier versions have empty text.
            "none" | "" => Ok(Resolver::None),
            address => address
                .parse()
                .map(Resolver::Address)
                .map_err(|_| format!("{address:?} is no resolver: use \"auto\", \"none\" or an IP address")),
        }
    }
}

impl fmt::Display for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resolver::Auto => f.write_str("auto"),
            Resolver::None => f.write_str("none"),
            Resolver::Address(address) => address.fmt(f),
        }
    }
}

impl Serialize for Resolver {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Resolver {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Resolver, D::Error> {
        String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A server that doctor connects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    /// A name or an address.
    pub host: String,
    /// Its TCP port.
    pub port: u16,
}

impl ProbeTarget {
    /// The address, if the host is not a name.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl FromStr for ProbeTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<ProbeTarget, String> {
        let wrong = || format!("{text:?} is no server: use NAME:PORT, ADDRESS:PORT or [IPV6]:PORT");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let is_name = |host: &str| {
            !host.is_empty()
                && host.len() <= 253
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        let good = match bare {
            Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
            None => is_name(host),
        };
        if good { Ok(ProbeTarget { host: bare.unwrap_or(host).to_owned(), port }) } else { Err(wrong()) }
    }
}

impl fmt::Display for ProbeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A list of networks, in which a bare address is a network of one.
fn networks<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<IpNet>, D::Error> {
    let network = |text: String| {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        address.or_else(|_| text.parse()).map_err(|_| {
            serde::de::Error::custom(format!(
                "{text:?} is neither an IP address nor a network such as 172.17.0.0/16"
            ))
        })
    };
    Vec::<String>::deserialize(input)?.into_iter().map(network).collect()
}

fn as_text<S: Serializer>(networks: &[IpNet], output: S) -> Result<S::Ok, S::Error> {
    output.collect_seq(networks.iter().map(shown))
}

fn shown(network: &IpNet) -> String {
    match network.prefix_len() == network.max_prefix_len() {
        true => network.addr().to_string(),
        false => network.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_and_probe_targets_are_read_as_they_are_shown() {
        for text in ["auto", "none", "10.0.0.1", "2001:db8::1"] {
            assert_eq!(text.parse::<Resolver>().unwrap().to_string(), text);
        }
        assert_eq!("".parse(), Ok(Resolver::None), "as earlier versions wrote it");
        assert!("localhost".parse::<Resolver>().is_err());
        for text in ["example.com:443", "203.0.113.1:80", "[2001:db8::1]:80"] {
            assert_eq!(text.parse::<ProbeTarget>().unwrap().to_string(), text);
        }
        for text in ["example.com", "example.com:0", ":80", "a b:80", "2001:db8::1:80", "[x]:80", "a/b:1"] {
            assert!(text.parse::<ProbeTarget>().is_err(), "{text}");
        }
    }

    #[test]
    fn whoever_creates_may_connect_unless_users_are_listed() {
        let mut egress = EgressConfig::default();
        assert_eq!(egress.callers(Some(1000)).users, [0, 1000]);
        assert_eq!(egress.callers(None).users, [0]);
        egress.control_users = vec![977];
        egress.control_plane = vec!["10.0.0.1/32".parse().unwrap(), "172.17.0.0/16".parse().unwrap()];
        let callers = egress.callers(Some(1000));
        assert_eq!(
            (callers.users, callers.networks),
            (vec![977], vec!["10.0.0.1".into(), "172.17.0.0/16".into()])
        );
    }
}
