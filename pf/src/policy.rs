//! The policy: which addresses a clone may reach. It is validated once, so rendering cannot fail.
//!
//! Every string in it is written into a ruleset that root loads. To exclude injection, names are limited to characters
//! without meaning in a ruleset; all other values are numbers or addresses.

use crate::deny::{self, Kind, Range};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One slot: its link on the host and the only source addresses its clone may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// The host's end of the clone's own link (Linux), such as `bt001`.
    pub interface: String,
    /// The clone's IPv4 address.
    pub ip: Ipv4Addr,
    /// The clone's IPv6 address, if the clones' networks include IPv6.
    #[serde(default)]
    pub ip6: Option<Ipv6Addr>,
}

impl Slot {
    /// The clone's addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        [Some(IpAddr::V4(self.ip)), self.ip6.map(IpAddr::V6)].into_iter().flatten()
    }
}

/// How many connections one clone may have and open. It protects the host's connection tracking, which all share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionLimits {
    /// Connections and flows of any protocol at the same time.
    pub open: u32,
    /// New connections per second on average.
    pub new_per_second: u32,
    /// New connections at once, after a time with fewer.
    pub burst: u32,
}

impl Default for ConnectionLimits {
    /// Chromium opens at most 256 sockets and 255 web sockets, and its DNS queries stay tracked for some seconds. A heavy
    /// page opens a few hundred connections within a second or two.
    fn default() -> ConnectionLimits {
        ConnectionLimits { open: 1024, new_per_second: 100, burst: 500 }
    }
}

/// How long a closed TCP connection of a clone stays in connection tracking.
pub const CLOSED_SECONDS: u32 = 5;

impl ConnectionLimits {
    /// The most entries that one clone can have in connection tracking: its open connections, and those that it closed
    /// within the last [`CLOSED_SECONDS`], which do not count as open.
    pub fn tracked(&self) -> u64 {
        u64::from(self.open) + self.opened_in(CLOSED_SECONDS)
    }

    /// The most connections that one clone can open in so many seconds.
    pub fn opened_in(&self, seconds: u32) -> u64 {
        u64::from(self.burst) + u64::from(self.new_per_second) * u64::from(seconds)
    }
}

/// The policy as configured. [`Policy`] is the validated form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// nftables: the table's name. Two daemons on one host need different tables.
    #[serde(default = "default_table")]
    pub table: String,
    /// PF: the anchor's name.
    #[serde(default = "default_anchor")]
    pub anchor: String,
    /// The set (nftables) or table (PF) of members: the addresses with access to the Internet.
    #[serde(default = "default_set")]
    pub set: String,
    /// The clones' networks. Besides clones they may contain only the host's own address on the clones' side.
    #[serde(rename = "pool")]
    pub networks: Vec<IpNet>,
    /// nftables: all slots.
    #[serde(default)]
    pub slots: Vec<Slot>,
    /// PF: the bridge of all clones.
    #[serde(default = "default_bridge")]
    pub bridge: String,
    /// Further addresses of the host, for example of a NAT or load balancer in front of it. Addresses on its interfaces
    /// are blocked in any case.
    #[serde(default)]
    pub host: Vec<IpAddr>,
    /// The only resolver that clones may query, on port 53. `None`: clones cannot resolve names.
    #[serde(default)]
    pub resolver: Option<IpAddr>,
    /// Addresses and networks that may call browserd in the clones. For callers on this host: the host's address on the
    /// clones' side.
    #[serde(default)]
    pub control_plane: Vec<IpNet>,
    /// Users on this host that may call browserd from one of these addresses. Remote callers are identified by address. On
    /// Linux more users can be admitted later.
    #[serde(default = "default_control_users")]
    pub control_users: Vec<u32>,
    /// browserd's port in the clones.
    #[serde(default = "default_browserd_port")]
    pub browserd_port: u16,
    /// The interface to the Internet. If set, clones can reach the Internet only through it. PF needs it for address
    /// translation.
    #[serde(default)]
    pub external: Option<String>,
    /// Limits of each clone's connections.
    #[serde(default)]
    pub connections: ConnectionLimits,
    /// Also block the documentation ranges. Off by default: nobody owns these addresses, and test networks use them
    /// as stand-ins for the Internet.
    #[serde(default)]
    pub deny_documentation: bool,
}

fn default_table() -> String {
    "hostd".into()
}
fn default_anchor() -> String {
    "browser".into()
}
fn default_set() -> String {
    "browser_tasks".into()
}
fn default_bridge() -> String {
    "bridge72".into()
}
fn default_control_users() -> Vec<u32> {
    vec![0]
}
fn default_browserd_port() -> u16 {
    8080
}

impl PolicySpec {
    /// The defaults for these networks: no slots, no resolver, no control plane.
    pub fn new(networks: Vec<IpNet>) -> PolicySpec {
        PolicySpec {
            table: default_table(),
            anchor: default_anchor(),
            set: default_set(),
            networks,
            slots: Vec::new(),
            bridge: default_bridge(),
            host: Vec::new(),
            resolver: None,
            control_plane: Vec::new(),
            control_users: default_control_users(),
            browserd_port: default_browserd_port(),
            external: None,
            connections: ConnectionLimits::default(),
            deny_documentation: false,
        }
    }
}

/// Why a policy is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("egress policy: {key}: {why}")]
pub struct PolicyError {
    /// The field.
    pub key: &'static str,
    /// What is wrong and how to correct it.
    pub why: String,
}

/// A validated policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PolicySpec", into = "PolicySpec")]
pub struct Policy(PolicySpec);

/// `IFNAMSIZ` without the terminating NUL, on Linux and FreeBSD.
const LONGEST_INTERFACE: usize = 15;
/// PF's `PF_TABLE_NAME_SIZE` is 32 including the NUL. The name of the IPv6 set is one character longer.
const LONGEST_NAME: usize = 30;
/// Far above every useful limit, and accepted by both packet filters.
const MOST_CONNECTIONS: u32 = 1_000_000;

fn check_name(key: &'static str, name: &str) -> Result<(), PolicyError> {
    let good = name.len() <= LONGEST_NAME
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if good {
        return Ok(());
    }
    let rule = format!("1 to {LONGEST_NAME} lower-case letters, digits and _, a letter first");
    Err(PolicyError { key, why: format!("{name:?} is not a valid name: use {rule}") })
}

fn check_interface(key: &'static str, name: &str) -> Result<(), PolicyError> {
    let good = (1..=LONGEST_INTERFACE).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if good {
        return Ok(());
    }
    let rule = format!("1 to {LONGEST_INTERFACE} letters, digits, _, - and ., a letter or digit first");
    Err(PolicyError { key, why: format!("{name:?} is not a valid interface name: use {rule}") })
}

impl TryFrom<PolicySpec> for Policy {
    type Error = PolicyError;

    fn try_from(mut spec: PolicySpec) -> Result<Policy, PolicyError> {
        let wrong = |key, why: String| Err(PolicyError { key, why });
        check_name("table", &spec.table)?;
        check_name("anchor", &spec.anchor)?;
        check_name("set", &spec.set)?;
        check_interface("bridge", &spec.bridge)?;
        if let Some(external) = &spec.external {
            check_interface("external", external)?;
        }

        if spec.networks.is_empty() {
            return wrong("pool", "the list is empty: name the clones' networks".into());
        }
        for net in &mut spec.networks {
            *net = net.trunc();
            if net.prefix_len() < 8 {
                return wrong(
                    "pool",
                    format!("{net} is too large for the clones' networks: use a /8 or smaller"),
                );
            }
        }
        let in_networks = |address: IpAddr| spec.networks.iter().any(|net| net.contains(&address));

        let mut interfaces = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for slot in &spec.slots {
            let Slot { interface, ip, ip6 } = slot;
            check_interface("slots", interface)?;
            if !interfaces.insert(interface) {
                return wrong("slots", format!("interface {interface} is listed twice"));
            }
            for address in [Some(IpAddr::V4(*ip)), ip6.map(IpAddr::V6)].into_iter().flatten() {
                if !in_networks(address) {
                    return wrong(
                        "slots",
                        format!("{address} of {interface} is not in the clones' networks"),
                    );
                }
                if !addresses.insert(address) {
                    return wrong("slots", format!("address {address} is listed twice"));
                }
            }
        }
        for (key, interface) in [("external", spec.external.as_ref()), ("bridge", Some(&spec.bridge))] {
            if let Some(interface) = interface
                && interfaces.contains(interface)
            {
                return wrong(key, format!("{interface} is a clone's link"));
            }
        }

        for net in &mut spec.control_plane {
            *net = net.trunc();
            let single = net.prefix_len() == net.max_prefix_len();
            if let Some(address) = addresses.iter().find(|address| net.contains(*address) && !single) {
                return wrong("control_plane", format!("{net} contains the clone's address {address}"));
            }
        }
        let callers: Vec<IpAddr> = spec.control_plane.iter().map(IpNet::addr).collect();
        for (key, given) in [
            ("host", &spec.host),
            ("control_plane", &callers),
            ("resolver", &spec.resolver.into_iter().collect()),
        ] {
            for address in given {
                if addresses.contains(address) {
                    return wrong(key, format!("{address} is a clone's address"));
                }
                if address.is_unspecified() || address.is_multicast() {
                    return wrong(key, format!("{address} is not a unicast address"));
                }
                if let IpAddr::V6(v6) = address
                    && let Some(v4) = deny::embedded(*v6)
                {
                    return wrong(key, format!("{address} embeds the IPv4 address {v4}: use {v4}"));
                }
            }
        }
        if spec.browserd_port == 0 || spec.browserd_port == 53 {
            return wrong("browserd_port", format!("{} cannot be browserd's port", spec.browserd_port));
        }
        let ConnectionLimits { open, new_per_second, burst } = spec.connections;
        for (name, value) in [("open", open), ("new_per_second", new_per_second), ("burst", burst)] {
            if !(1..=MOST_CONNECTIONS).contains(&value) {
                return wrong("connections", format!("{name} is {value}: use 1 to {MOST_CONNECTIONS}"));
            }
        }
        spec.host.sort();
        spec.host.dedup();
        spec.control_plane.sort();
        spec.control_plane.dedup();
        spec.control_users.sort_unstable();
        spec.control_users.dedup();
        Ok(Policy(spec))
    }
}

impl From<Policy> for PolicySpec {
    fn from(policy: Policy) -> PolicySpec {
        policy.0
    }
}

impl std::ops::Deref for Policy {
    type Target = PolicySpec;

    fn deref(&self) -> &PolicySpec {
        &self.0
    }
}

impl Policy {
    /// The ranges that stay blocked for members.
    pub fn denied_ranges(&self) -> impl Iterator<Item = &'static Range> + use<> {
        let documentation = self.deny_documentation;
        deny::ranges().iter().filter(move |range| documentation || range.reason.kind != Kind::Documentation)
    }

    /// Whether clones are blocked from this address whatever the host's own addresses are: it is in a denied range, in the
    /// clones' networks, or listed as the host's.
    pub fn is_closed(&self, address: IpAddr) -> bool {
        self.denied_ranges().any(|range| range.net.contains(&address))
            || self.networks.iter().any(|net| net.contains(&address))
            || self.host.contains(&address)
    }

    /// Whether this address belongs to a slot.
    pub fn is_slot_address(&self, address: IpAddr) -> bool {
        self.slots.iter().any(|slot| match address {
            IpAddr::V4(v4) => slot.ip == v4,
            IpAddr::V6(v6) => slot.ip6 == Some(v6),
        })
    }

    /// The control plane's addresses of one family, as packet filters write them: a single address without its length.
    pub(crate) fn callers(&self, v4: bool) -> impl Iterator<Item = String> {
        let of_family = move |net: &&IpNet| matches!(net, IpNet::V4(_)) == v4;
        self.control_plane.iter().filter(of_family).map(shown)
    }

    /// The name of the set of IPv6 members (nftables needs one set per family).
    pub fn set6(&self) -> String {
        format!("{}6", self.set)
    }
}

/// A network as text, a single address without its length.
pub(crate) fn shown(net: &IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn spec() -> PolicySpec {
        let mut spec = PolicySpec::new(vec!["10.87.64.0/22".parse().unwrap(), "fd87::/64".parse().unwrap()]);
        spec.slots = vec![
            Slot {
                interface: "bt001".into(),
                ip: "10.87.64.16".parse().unwrap(),
                ip6: Some("fd87::10".parse().unwrap()),
            },
            Slot { interface: "bt002".into(), ip: "10.87.64.17".parse().unwrap(), ip6: None },
        ];
        spec
    }

    #[test]
    fn a_valid_policy_is_accepted_and_keeps_its_fields() {
        let policy = Policy::try_from(spec()).unwrap();
        assert!(policy.is_slot_address("10.87.64.16".parse().unwrap()));
        assert!(policy.is_slot_address("fd87::10".parse().unwrap()));
        assert!(!policy.is_slot_address("10.87.64.1".parse().unwrap()));
        assert_eq!(policy.set6(), "browser_tasks6");
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy);
    }

    #[test]
    fn only_the_networks_are_required_and_unknown_fields_are_errors() {
        let policy: Policy = serde_json::from_str(r#"{"pool": ["10.87.64.77/22"]}"#).unwrap();
        assert_eq!(policy.networks, ["10.87.64.0/22".parse::<IpNet>().unwrap()]);
        assert_eq!(PolicySpec::from(policy), PolicySpec::new(vec!["10.87.64.0/22".parse().unwrap()]));
        assert!(serde_json::from_str::<Policy>(r#"{"pool": ["10.87.64.0/22"], "extra": 1}"#).is_err());
        assert!(serde_json::from_str::<Policy>(r#"{"pool": []}"#).is_err());
    }

    #[test]
    fn documentation_ranges_are_blocked_only_if_configured() {
        let documentation = |policy: &Policy| {
            policy.denied_ranges().filter(|range| range.reason.kind == Kind::Documentation).count()
        };
        let mut spec = spec();
        assert_eq!(documentation(&Policy::try_from(spec.clone()).unwrap()), 0);
        let example = "198.51.100.1".parse().unwrap();
        assert!(!Policy::try_from(spec.clone()).unwrap().is_closed(example));
        spec.deny_documentation = true;
        assert_eq!(documentation(&Policy::try_from(spec.clone()).unwrap()), 5);
        assert!(Policy::try_from(spec).unwrap().is_closed(example));
    }

    #[test]
    fn invalid_values_are_refused_with_the_name_of_their_field() {
        let refused = |key: &str, change: fn(&mut PolicySpec)| {
            let mut spec = spec();
            change(&mut spec);
            match Policy::try_from(spec) {
                Err(error) => assert_eq!(error.key, key, "{error}"),
                Ok(policy) => panic!("{key} was accepted: {policy:?}"),
            }
        };
        refused("table", |s| s.table = String::new());
        refused("table", |s| s.table = "hostd { }".into());
        refused("table", |s| s.table = "Hostd".into());
        refused("anchor", |s| s.anchor = "a\"b".into());
        refused("set", |s| s.set = "x".repeat(31));
        refused("set", |s| s.set = "a b".into());
        refused("bridge", |s| s.bridge = "bridge0\npass all".into());
        refused("bridge", |s| s.bridge = "bt001".into());
        refused("external", |s| s.external = Some("sixteen_letters_".into()));
        refused("external", |s| s.external = Some("-x".into()));
        refused("external", |s| s.external = Some("bt002".into()));
        refused("pool", |s| s.networks.clear());
        refused("pool", |s| s.networks.push("0.0.0.0/0".parse().unwrap()));
        refused("slots", |s| s.slots[0].interface = "bt\"".into());
        refused("slots", |s| s.slots[0].interface = "bt002".into());
        refused("slots", |s| s.slots[0].ip = "10.87.64.17".parse().unwrap());
        refused("slots", |s| s.slots[0].ip = "10.88.0.1".parse().unwrap());
        refused("slots", |s| s.slots[0].ip6 = Some("fd88::1".parse().unwrap()));
        refused("host", |s| s.host = vec!["10.87.64.16".parse().unwrap()]);
        refused("host", |s| s.host = vec!["0.0.0.0".parse().unwrap()]);
        refused("resolver", |s| s.resolver = Some("224.0.0.1".parse().unwrap()));
        refused("resolver", |s| s.resolver = Some("::ffff:1.1.1.1".parse().unwrap()));
        refused("control_plane", |s| s.control_plane = vec!["fd87::10/128".parse().unwrap()]);
        refused("control_plane", |s| s.control_plane = vec!["10.0.0.0/8".parse().unwrap()]);
        refused("browserd_port", |s| s.browserd_port = 0);
        refused("browserd_port", |s| s.browserd_port = 53);
    }
}
