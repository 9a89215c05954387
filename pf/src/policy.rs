//! The policy: who may reach what, checked once so that rendering it cannot fail and cannot be tricked.
//!
//! Every text in it ends up inside a ruleset that root loads. So names are limited to characters that mean nothing
//! there, and everything else is a number or an address.

use crate::deny::{self, Kind, Range};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One place for a clone: its link on the host and the only addresses it may speak from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// The host's end of the clone's own link (Linux), such as `bt001`.
    pub interface: String,
    /// The clone's IPv4 address.
    pub ip: Ipv4Addr,
    /// The clone's IPv6 address, if the pool has any.
    #[serde(default)]
    pub ip6: Option<Ipv6Addr>,
}

/// The policy as it is written down. [`Policy`] is the checked form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// nftables: the table's name. Two daemons on one host use two tables.
    #[serde(default = "default_table")]
    pub table: String,
    /// PF: the anchor's name.
    #[serde(default = "default_anchor")]
    pub anchor: String,
    /// The set (nftables) or table (PF) whose members may go out.
    #[serde(default = "default_set")]
    pub set: String,
    /// The clones' networks. Nothing else lives in them, except the host's own address towards the clones.
    pub pool: Vec<IpNet>,
    /// nftables: every place for a clone.
    #[serde(default)]
    pub slots: Vec<Slot>,
    /// PF: the bridge behind which all clones are.
    #[serde(default = "default_bridge")]
    pub bridge: String,
    /// The host's own addresses, as far as the host itself does not know them (behind a NAT, a load balancer) or
    /// wants them listed. The ones on its interfaces are blocked anyway.
    #[serde(default)]
    pub host: Vec<IpAddr>,
    /// The one resolver the clones may ask, on port 53. None: they resolve nothing.
    #[serde(default)]
    pub resolver: Option<IpAddr>,
    /// Addresses that may call browserd in the clones. For callers on this host: the host's address towards the clones.
    #[serde(default)]
    pub control_plane: Vec<IpAddr>,
    /// Users on this host that may call browserd from one of these addresses. Remote callers are known by address only.
    #[serde(default = "default_control_users")]
    pub control_users: Vec<u32>,
    /// browserd's port in the clones.
    #[serde(default = "default_browserd_port")]
    pub browserd_port: u16,
    /// The interface to the Internet. With it, clones go out there and nowhere else. PF needs it for address
    /// translation.
    #[serde(default)]
    pub external: Option<String>,
    /// Also block the ranges for documentation. Off: they are public addresses nobody has, and what laboratories
    /// use to stand for the Internet.
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
    /// The defaults for a pool: no slot, no resolver, no control plane.
    pub fn new(pool: Vec<IpNet>) -> PolicySpec {
        PolicySpec {
            table: default_table(),
            anchor: default_anchor(),
            set: default_set(),
            pool,
            slots: Vec::new(),
            bridge: default_bridge(),
            host: Vec::new(),
            resolver: None,
            control_plane: Vec::new(),
            control_users: default_control_users(),
            browserd_port: default_browserd_port(),
            external: None,
            deny_documentation: false,
        }
    }
}

/// Why a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("egress policy: {key}: {why}")]
pub struct PolicyError {
    /// The field.
    pub key: &'static str,
    /// What is wrong and what would be right.
    pub why: String,
}

/// A checked policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PolicySpec", into = "PolicySpec")]
pub struct Policy(PolicySpec);

/// `IFNAMSIZ` without the terminating NUL, on both systems.
const LONGEST_INTERFACE: usize = 15;
/// PF's `PF_TABLE_NAME_SIZE` is 32 with the NUL. The IPv6 set's name has one character more.
const LONGEST_NAME: usize = 30;

fn check_name(key: &'static str, name: &str) -> Result<(), PolicyError> {
    let good = name.len() <= LONGEST_NAME
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if good {
        return Ok(());
    }
    let rule = format!("1 to {LONGEST_NAME} lower-case letters, digits and _, a letter first");
    Err(PolicyError { key, why: format!("{name:?} cannot be used as a name: use {rule}") })
}

fn check_interface(key: &'static str, name: &str) -> Result<(), PolicyError> {
    let good = (1..=LONGEST_INTERFACE).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if good {
        return Ok(());
    }
    let rule = format!("1 to {LONGEST_INTERFACE} letters, digits, _, - and ., a letter or digit first");
    Err(PolicyError { key, why: format!("{name:?} cannot be used as an interface's name: use {rule}") })
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

        if spec.pool.is_empty() {
            return wrong("pool", "no network: name the clones' networks".into());
        }
        for net in &mut spec.pool {
            *net = net.trunc();
            if net.prefix_len() < 8 {
                return wrong(
                    "pool",
                    format!("{net} is too large to be the clones' own: use a /8 or smaller"),
                );
            }
        }
        let in_pool = |address: IpAddr| spec.pool.iter().any(|net| net.contains(&address));

        let mut interfaces = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for slot in &spec.slots {
            let Slot { interface, ip, ip6 } = slot;
            check_interface("slots", interface)?;
            if !interfaces.insert(interface) {
                return wrong("slots", format!("interface {interface} twice"));
            }
            for address in [Some(IpAddr::V4(*ip)), ip6.map(IpAddr::V6)].into_iter().flatten() {
                if !in_pool(address) {
                    return wrong("slots", format!("{address} of {interface} is outside the pool"));
                }
                if !addresses.insert(address) {
                    return wrong("slots", format!("address {address} twice"));
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

        for (key, given) in [
            ("host", &spec.host),
            ("control_plane", &spec.control_plane),
            ("resolver", &spec.resolver.into_iter().collect()),
        ] {
            for address in given {
                if addresses.contains(address) {
                    return wrong(key, format!("{address} is a clone's address"));
                }
                if address.is_unspecified() || address.is_multicast() {
                    return wrong(key, format!("{address} is no address of a machine"));
                }
                if let IpAddr::V6(v6) = address
                    && let Some(v4) = deny::embedded(*v6)
                {
                    return wrong(key, format!("{address} is another way to write {v4}: use that"));
                }
            }
        }
        if spec.browserd_port == 0 || spec.browserd_port == 53 {
            return wrong("browserd_port", format!("{} cannot be browserd's port", spec.browserd_port));
        }
        for list in [&mut spec.host, &mut spec.control_plane] {
            list.sort();
            list.dedup();
        }
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

    /// Whether this address is a clone's.
    pub fn is_slot_address(&self, address: IpAddr) -> bool {
        self.slots.iter().any(|slot| match address {
            IpAddr::V4(v4) => slot.ip == v4,
            IpAddr::V6(v6) => slot.ip6 == Some(v6),
        })
    }

    /// The name of the set for IPv6 members, where the two families need two sets (nftables).
    pub fn set6(&self) -> String {
        format!("{}6", self.set)
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
    fn a_good_policy_is_accepted_and_keeps_its_fields() {
        let policy = Policy::try_from(spec()).unwrap();
        assert!(policy.is_slot_address("10.87.64.16".parse().unwrap()));
        assert!(policy.is_slot_address("fd87::10".parse().unwrap()));
        assert!(!policy.is_slot_address("10.87.64.1".parse().unwrap()));
        assert_eq!(policy.set6(), "browser_tasks6");
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy);
    }

    #[test]
    fn defaults_come_from_the_pool_alone_and_unknown_fields_are_errors() {
        let policy: Policy = serde_json::from_str(r#"{"pool": ["10.87.64.77/22"]}"#).unwrap();
        assert_eq!(policy.pool, ["10.87.64.0/22".parse::<IpNet>().unwrap()]);
        assert_eq!(PolicySpec::from(policy), PolicySpec::new(vec!["10.87.64.0/22".parse().unwrap()]));
        assert!(serde_json::from_str::<Policy>(r#"{"pool": ["10.87.64.0/22"], "extra": 1}"#).is_err());
        assert!(serde_json::from_str::<Policy>(r#"{"pool": []}"#).is_err());
    }

    #[test]
    fn documentation_is_blocked_only_when_asked_for() {
        let documentation = |policy: &Policy| {
            policy.denied_ranges().filter(|range| range.reason.kind == Kind::Documentation).count()
        };
        let mut spec = spec();
        assert_eq!(documentation(&Policy::try_from(spec.clone()).unwrap()), 0);
        spec.deny_documentation = true;
        assert_eq!(documentation(&Policy::try_from(spec).unwrap()), 5);
    }

    #[test]
    fn what_could_not_work_or_could_be_read_as_rules_is_refused_by_its_key() {
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
        refused("pool", |s| s.pool.clear());
        refused("pool", |s| s.pool.push("0.0.0.0/0".parse().unwrap()));
        refused("slots", |s| s.slots[0].interface = "bt\"".into());
        refused("slots", |s| s.slots[0].interface = "bt002".into());
        refused("slots", |s| s.slots[0].ip = "10.87.64.17".parse().unwrap());
        refused("slots", |s| s.slots[0].ip = "10.88.0.1".parse().unwrap());
        refused("slots", |s| s.slots[0].ip6 = Some("fd88::1".parse().unwrap()));
        refused("host", |s| s.host = vec!["10.87.64.16".parse().unwrap()]);
        refused("host", |s| s.host = vec!["0.0.0.0".parse().unwrap()]);
        refused("resolver", |s| s.resolver = Some("224.0.0.1".parse().unwrap()));
        refused("resolver", |s| s.resolver = Some("::ffff:1.1.1.1".parse().unwrap()));
        refused("control_plane", |s| s.control_plane = vec!["fd87::10".parse().unwrap()]);
        refused("browserd_port", |s| s.browserd_port = 0);
        refused("browserd_port", |s| s.browserd_port = 53);
    }
}
