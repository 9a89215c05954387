//! A slot's number determines a clone's name, folder, dataset, addresses, interfaces and user ID.
//!
//! All of them are functions of the number and the configuration, and are computed only here. So claiming a slot's record
//! claims all of them at once, without an allocator and without a race.

use crate::api::CloneName;
use crate::config::PoolConfig;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use kernel::user_ids;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// ZFS names have at most 255 bytes. Below the parent come the name of a clone or of storage moved aside, and a snapshot.
const LONGEST_PARENT: usize = 120;

/// The number of a slot, 1 to 999. The names of 0 belong to hostd itself: [`Slots::probe_names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Slot(u16);

impl Slot {
    /// The largest slot: names have three digits.
    pub const MAX: u16 = 999;

    /// The slot of this number.
    pub fn new(number: u16) -> Option<Slot> {
        (1..=Slot::MAX).contains(&number).then_some(Slot(number))
    }

    /// Its number.
    pub fn number(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for Slot {
    type Error = String;
    fn try_from(number: u16) -> Result<Self, String> {
        Slot::new(number).ok_or_else(|| format!("{number} is not a slot: slots are 1 to {}", Slot::MAX))
    }
}

impl From<Slot> for u16 {
    fn from(slot: Slot) -> u16 {
        slot.0
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03}", self.0)
    }
}

/// A locally administered Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The names and addresses of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotNames {
    /// The slot.
    pub slot: Slot,
    /// The clone's, jail's and cgroup's name: `browsertask001`.
    pub name: CloneName,
    /// The host's end of the link on Linux: `bt001`.
    pub interface: String,
    /// The host's end of the pair on FreeBSD: `e0a_bt001`.
    pub epair_host: String,
    /// The clone's end of the pair on FreeBSD: `e0b_bt001`.
    pub epair_clone: String,
    /// The clone's dataset, with ZFS.
    pub dataset: String,
    /// The clone's folder.
    pub folder: PathBuf,
    /// The clone's IPv4 address.
    pub ip: Ipv4Addr,
    /// The clone's IPv6 address, if there is an IPv6 network.
    pub ip6: Option<Ipv6Addr>,
    /// The Ethernet address of the host's end. It follows from the IP address, so stale neighbour entries are harmless.
    pub mac_host: Mac,
    /// The Ethernet address of the clone's end.
    pub mac_clone: Mac,
    /// The user ID of the clone's processes on Linux. No other clone has it.
    pub uid: u32,
}

/// Why the section `[pool]` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pool.{key}: {why}")]
pub struct SlotsError {
    /// The configuration key.
    pub key: &'static str,
    /// What is wrong, and what is allowed.
    pub why: String,
}

/// The configured slots: from a slot to its names and back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    prefix: String,
    interface_prefix: String,
    first: Slot,
    last: Slot,
    subnet: Ipv4Net,
    subnet6: Option<Ipv6Net>,
    offset: u32,
    uid_base: u32,
    clones_dir: PathBuf,
    parent_dataset: String,
}

/// `IFNAMSIZ` without the terminating NUL, on both systems.
const LONGEST_INTERFACE: usize = 15;
/// `e0a_` before the interface's prefix on FreeBSD, three digits after it.
const INTERFACE_EXTRA: usize = 4 + 3;

impl Slots {
    /// Validate the configuration once, so that every name that is computed later is valid.
    pub fn new(config: &PoolConfig) -> Result<Slots, SlotsError> {
        let wrong = |key, why: String| Err(SlotsError { key, why });
        for (key, prefix, longest) in [
            ("prefix", &config.prefix, 32),
            ("interface_prefix", &config.interface_prefix, LONGEST_INTERFACE - INTERFACE_EXTRA),
        ] {
            let good = prefix.len() <= longest
                && prefix.starts_with(|c: char| c.is_ascii_lowercase())
                && prefix.ends_with(|c: char| c.is_ascii_lowercase())
                && prefix.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            if !good {
                let rule = format!("1 to {longest} lower-case letters and digits, a letter first and last");
                return wrong(key, format!("{prefix:?} cannot begin a name: use {rule}"));
            }
        }
        let slot = |key, number| {
            Slot::new(number).ok_or_else(|| SlotsError {
                key,
                why: format!("{number} is not a slot: slots are 1 to {}", Slot::MAX),
            })
        };
        let (first, last) = (slot("first_slot", config.first_slot)?, slot("last_slot", config.last_slot)?);
        if last < first {
            return wrong("last_slot", format!("{last} is below first_slot {first}"));
        }
        if config.address_offset < 2 {
            return wrong("address_offset", "must be at least 2: the first address is the gateway's".into());
        }
        let highest = u64::from(config.address_offset) + u64::from(last.0);
        let subnet = config.subnet.trunc();
        // The last address of an IPv4 network is its broadcast address.
        let room = (1u64 << (32 - subnet.prefix_len())).saturating_sub(1);
        if highest >= room {
            return wrong(
                "subnet",
                format!(
                    "{subnet} has no address for slot {last} (offset {highest}): use a larger network or fewer slots"
                ),
            );
        }
        if let Some(subnet6) = config.subnet6
            && subnet6.prefix_len() > 112
        {
            return wrong("subnet6", format!("{subnet6} is too small: use a /112 or larger"));
        }
        let uids = u64::from(config.uid_base) + 1..=u64::from(config.uid_base) + u64::from(Slot::MAX);
        // 65534 is nobody, and 65535 and 4294967295 mean "no user".
        let reserved = [65_534, 65_535].iter().any(|id| uids.contains(id));
        if config.uid_base < 1000 || reserved || *uids.end() > u64::from(*user_ids::ALL.end()) {
            let why = format!(
                "{} is not usable: the ids that follow it must be at least 1000, at most {} and not 65534 or 65535; {} is free \
                 on every system",
                config.uid_base,
                user_ids::ALL.end(),
                user_ids::CLONES
            );
            return wrong("uid_base", why);
        }
        if !config.clones_dir.is_absolute() {
            return wrong("clones_dir", format!("{} is not an absolute path", config.clones_dir.display()));
        }
        let dataset_ok = !config.parent_dataset.is_empty()
            && config.parent_dataset.split('/').all(|part| {
                part.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:".contains(&b))
            });
        if !dataset_ok {
            return wrong("parent_dataset", format!("{:?} is not a dataset's name", config.parent_dataset));
        }
        let length = config.parent_dataset.len();
        if length > LONGEST_PARENT {
            return wrong(
                "parent_dataset",
                format!(
                    "is {length} bytes long: with the clones' names below it, {LONGEST_PARENT} are the most"
                ),
            );
        }
        Ok(Slots {
            prefix: config.prefix.clone(),
            interface_prefix: config.interface_prefix.clone(),
            first,
            last,
            subnet,
            subnet6: config.subnet6.map(|net| net.trunc()),
            offset: config.address_offset,
            uid_base: config.uid_base,
            clones_dir: config.clones_dir.clone(),
            parent_dataset: config.parent_dataset.clone(),
        })
    }

    /// The user ids of all slots.
    pub fn user_ids(&self) -> std::ops::RangeInclusive<u32> {
        self.uid_base + u32::from(self.first.0)..=self.uid_base + u32::from(self.last.0)
    }

    /// All slots, in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (self.first.0..=self.last.0).map(Slot)
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        usize::from(self.last.0 - self.first.0) + 1
    }

    /// Always false: there is at least one slot.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The prefix of the clones' names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The dataset that holds the clones' datasets.
    pub fn parent_dataset(&self) -> &str {
        &self.parent_dataset
    }

    /// The clones' IPv4 network.
    pub fn subnet(&self) -> Ipv4Net {
        self.subnet
    }

    /// The clones' IPv6 network.
    pub fn subnet6(&self) -> Option<Ipv6Net> {
        self.subnet6
    }

    /// The gateway: the first address of the network.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.subnet.network()) + 1)
    }

    /// The IPv6 gateway.
    pub fn gateway6(&self) -> Option<Ipv6Addr> {
        self.subnet6.map(|net| Ipv6Addr::from(u128::from(net.network()) + 1))
    }

    /// Whether the slot is one of the configured slots.
    pub fn contains(&self, slot: Slot) -> bool {
        (self.first..=self.last).contains(&slot)
    }

    /// The clone name of a slot.
    pub fn name(&self, slot: Slot) -> CloneName {
        CloneName::try_from(format!("{}{slot}", self.prefix)).expect("a checked prefix and three digits")
    }

    /// The names and addresses of a slot.
    pub fn names(&self, slot: Slot) -> SlotNames {
        let step = self.offset + u32::from(slot.0);
        let ip = Ipv4Addr::from(u32::from(self.subnet.network()) + step);
        let [a, b, c, d] = ip.octets();
        let name = self.name(slot);
        SlotNames {
            slot,
            interface: format!("{}{slot}", self.interface_prefix),
            epair_host: format!("e0a_{}{slot}", self.interface_prefix),
            epair_clone: format!("e0b_{}{slot}", self.interface_prefix),
            dataset: format!("{}/{name}", self.parent_dataset),
            folder: self.clones_dir.join(name.as_str()),
            ip,
            ip6: self.subnet6.map(|net| Ipv6Addr::from(u128::from(net.network()) + u128::from(step))),
            mac_host: Mac([0x02, 0x0a, a, b, c, d]),
            mac_clone: Mac([0x02, 0x0b, a, b, c, d]),
            uid: self.uid_base + u32::from(slot.0),
            name,
        }
    }

    /// Names and addresses that no clone has: those before the first slot's. hostd uses them for a network of its own, to prove
    /// that clones reach what they may.
    pub fn probe_names(&self) -> SlotNames {
        self.names(Slot(0))
    }

    /// The slot of a clone's name, if it is a configured slot.
    pub fn slot_of_name(&self, name: &str) -> Option<Slot> {
        self.slot_after(&self.prefix, name)
    }

    /// The slot of an interface, if it is a configured slot.
    pub fn slot_of_interface(&self, interface: &str) -> Option<Slot> {
        let bare = ["e0a_", "e0b_"].iter().find_map(|side| interface.strip_prefix(side)).unwrap_or(interface);
        self.slot_after(&self.interface_prefix, bare)
    }

    /// The slot of an address, if it is a configured slot.
    pub fn slot_of_address(&self, address: IpAddr) -> Option<Slot> {
        let step = match (address, self.subnet6) {
            (IpAddr::V4(ip), _) if self.subnet.contains(&ip) => {
                u128::from(u32::from(ip) - u32::from(self.subnet.network()))
            }
            (IpAddr::V6(ip), Some(net)) if net.contains(&ip) => u128::from(ip) - u128::from(net.network()),
            _ => return None,
        };
        let number = step.checked_sub(u128::from(self.offset))?;
        let slot = Slot::new(u16::try_from(number).ok()?)?;
        self.contains(slot).then_some(slot)
    }

    /// The slot of an Ethernet address as tools print it, if it belongs to a slot.
    pub fn slot_of_mac(&self, mac: &str) -> Option<Slot> {
        let mut bytes = [0; 6];
        let mut parts = mac.split(':');
        for byte in &mut bytes {
            *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
        }
        let [0x02, 0x0a | 0x0b, a, b, c, d] = bytes else { return None };
        if parts.next().is_some() {
            return None;
        }
        self.slot_of_address(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
    }

    /// The clones' networks.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> + use<> {
        [Some(IpNet::V4(self.subnet)), self.subnet6.map(IpNet::V6)].into_iter().flatten()
    }

    /// A text of the settings that names depend on: the same text means the same names.
    pub fn fingerprint(&self) -> String {
        let Slots { prefix, interface_prefix, subnet, offset, uid_base, parent_dataset, .. } = self;
        let subnet6 = self.subnet6.map_or("none".to_owned(), |net| net.to_string());
        let clones_dir = self.clones_dir.display();
        format!(
            "prefix={prefix} interface_prefix={interface_prefix} subnet={subnet} subnet6={subnet6} \
             address_offset={offset} uid_base={uid_base} clones_dir={clones_dir} parent_dataset={parent_dataset}\n"
        )
    }

    fn slot_after(&self, prefix: &str, text: &str) -> Option<Slot> {
        let digits = text.strip_prefix(prefix)?;
        if digits.len() != 3 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let slot = Slot::new(digits.parse().ok()?)?;
        self.contains(slot).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(change: impl FnOnce(&mut PoolConfig)) -> Result<Slots, SlotsError> {
        let mut config = PoolConfig::default();
        change(&mut config);
        Slots::new(&config)
    }

    #[test]
    fn the_default_pool_names_as_documented() {
        let pool = pool(|_| {}).unwrap();
        let names = pool.names(Slot::new(1).unwrap());
        assert_eq!(names.name.as_str(), "browsertask001");
        assert_eq!(names.interface, "bt001");
        assert_eq!((names.epair_host.as_str(), names.epair_clone.as_str()), ("e0a_bt001", "e0b_bt001"));
        assert_eq!(names.dataset, "zroot/bastille/jails/browsertask001");
        assert_eq!(names.folder, PathBuf::from("/var/lib/hostd/clones/browsertask001"));
        assert_eq!(names.ip, Ipv4Addr::new(10, 87, 64, 16));
        assert_eq!(names.ip6, None);
        assert_eq!(names.mac_host.to_string(), "02:0a:0a:57:40:10");
        assert_eq!(names.mac_clone.to_string(), "02:0b:0a:57:40:10");
        for (mac, slot) in [
            ("02:0a:0a:57:40:10", Slot::new(1)),
            ("02:0b:0a:57:40:10", Slot::new(1)),
            ("02:0c:0a:57:40:10", None),
            ("02:0a:0a:57:40:01", None),
            ("02:0a:0a:57:40:10:00", None),
            ("02:0a:0a:57:40", None),
            ("", None),
        ] {
            assert_eq!(pool.slot_of_mac(mac), slot, "{mac}");
        }
        assert_eq!(names.uid, 1_900_000_001);
        assert_eq!(pool.gateway(), Ipv4Addr::new(10, 87, 64, 1));
        assert_eq!(pool.names(Slot::new(900).unwrap()).ip, Ipv4Addr::new(10, 87, 67, 147));
        assert_eq!(pool.len(), 900);
        let numbers: Vec<u16> = pool.slots().map(Slot::number).collect();
        assert_eq!(numbers, (1..=900).collect::<Vec<_>>());
        assert!(!pool.is_empty());
    }

    #[test]
    fn addresses_of_the_second_family_follow_the_same_offsets() {
        let pool = pool(|config| config.subnet6 = Some("fd12:3456::/64".parse().unwrap())).unwrap();
        let names = pool.names(Slot::new(17).unwrap());
        assert_eq!(names.ip6, Some("fd12:3456::20".parse().unwrap()));
        assert_eq!(pool.gateway6(), Some("fd12:3456::1".parse().unwrap()));
        assert_eq!(pool.slot_of_address("fd12:3456::20".parse().unwrap()), Slot::new(17));
        for other in ["fd12:3457::20", "fd12:3455::20"] {
            assert_eq!(pool.slot_of_address(other.parse().unwrap()), None, "{other}");
        }
        assert_eq!(pool.networks().count(), 2);
        assert_eq!(pool.subnet6(), Some("fd12:3456::/64".parse().unwrap()));
    }

    #[test]
    fn a_network_given_by_one_of_its_addresses_is_the_network() {
        let pool = pool(|config| config.subnet = "10.9.3.77/22".parse().unwrap()).unwrap();
        assert_eq!(pool.subnet(), "10.9.0.0/22".parse().unwrap());
        assert_eq!(pool.networks().collect::<Vec<_>>(), [IpNet::V4("10.9.0.0/22".parse().unwrap())]);
    }

    #[test]
    fn names_of_others_are_not_ours() {
        let pool = pool(|config| (config.first_slot, config.last_slot) = (5, 20)).unwrap();
        assert_eq!(pool.slot_of_name("browsertask005"), Slot::new(5));
        assert_eq!(pool.slot_of_name("browsertask020"), Slot::new(20));
        for other in [
            "browsertask004",
            "browsertask021",
            "browsertask5",
            "browsertask0005",
            "browsertask",
            "xbrowsertask005",
            "browsertask00x",
            "browsertask+05",
        ] {
            assert_eq!(pool.slot_of_name(other), None, "{other}");
        }
        for mine in ["bt006", "e0a_bt006", "e0b_bt006"] {
            assert_eq!(pool.slot_of_interface(mine), Slot::new(6), "{mine}");
        }
        for other in ["e0c_bt006", "bt021", "eth0", "e0a_e0b_bt006"] {
            assert_eq!(pool.slot_of_interface(other), None, "{other}");
        }
        let address = |last: u8| IpAddr::from([10, 87, 64, last]);
        assert_eq!(pool.slot_of_address(address(20)), Slot::new(5));
        assert_eq!(pool.slot_of_address(address(35)), Slot::new(20));
        for other in [0, 1, 14, 15, 16, 19, 36, 255] {
            assert_eq!(pool.slot_of_address(address(other)), None, "{other}");
        }
        assert_eq!(pool.slot_of_address(IpAddr::from([10, 87, 63, 20])), None);
        assert_eq!(pool.slot_of_address("fd12::14".parse().unwrap()), None);
    }

    #[test]
    fn pools_that_cannot_work_are_refused_by_their_key() {
        let refused = |key: &str, change: fn(&mut PoolConfig)| match pool(change) {
            Err(error) => assert_eq!(error.key, key, "{error}"),
            Ok(pool) => panic!("{key} was accepted: {pool:?}"),
        };
        refused("prefix", |c| c.prefix = String::new());
        refused("prefix", |c| c.prefix = "Browser".into());
        refused("prefix", |c| c.prefix = "browser-task".into());
        refused("prefix", |c| c.prefix = "1browser".into());
        refused("prefix", |c| c.prefix = "browser1".into());
        refused("prefix", |c| c.prefix = "b".repeat(33));
        refused("interface_prefix", |c| c.interface_prefix = "b".repeat(9));
        refused("interface_prefix", |c| c.interface_prefix = "b_t".into());
        refused("first_slot", |c| c.first_slot = 0);
        refused("last_slot", |c| c.last_slot = 1000);
        refused("last_slot", |c| (c.first_slot, c.last_slot) = (9, 8));
        refused("address_offset", |c| c.address_offset = 1);
        refused("subnet", |c| c.subnet = "10.0.0.0/24".parse().unwrap());
        refused("subnet", |c| c.subnet = "10.0.0.0/32".parse().unwrap());
        refused("subnet6", |c| c.subnet6 = Some("fd00::/113".parse().unwrap()));
        refused("uid_base", |c| c.uid_base = 0);
        refused("uid_base", |c| c.uid_base = 999);
        for base in [64_535, 65_533, 65_534, 0x7fff_fffe - 998, u32::MAX] {
            let error = pool(|c| c.uid_base = base).unwrap_err();
            assert_eq!(error.key, "uid_base", "{base}");
        }
        refused("clones_dir", |c| c.clones_dir = "clones".into());
        for dataset in ["", "/zroot", "zroot/", "zroot//x", "zroot/-x", "zroot/a b", "zroot/a@b"] {
            let error = pool(|c| c.parent_dataset = dataset.into()).unwrap_err();
            assert_eq!(error.key, "parent_dataset", "{dataset}");
        }
    }

    #[test]
    fn the_edges_of_what_works_are_accepted() {
        pool(|c| c.prefix = "b".repeat(32)).unwrap();
        pool(|c| c.prefix = "b2b".into()).unwrap();
        let longest = pool(|c| c.interface_prefix = "b".repeat(8)).unwrap();
        assert_eq!(longest.names(Slot::new(1).unwrap()).epair_host.len(), LONGEST_INTERFACE);
        pool(|c| c.address_offset = 2).unwrap();
        pool(|c| c.uid_base = 1000).unwrap();
        pool(|c| c.uid_base = 64_534).unwrap();
        pool(|c| c.uid_base = 65_535).unwrap();
        pool(|c| c.uid_base = 0x7fff_fffe - 999).unwrap();
        pool(|c| c.subnet6 = Some("fd00::/112".parse().unwrap())).unwrap();
        pool(|c| (c.first_slot, c.last_slot) = (7, 7)).unwrap();
        pool(|c| c.parent_dataset = "tank/a.b-c_d:e".into()).unwrap();
        // 256 addresses: 15 kept free, the last is for broadcast, so 239 slots and no more.
        let small = |last| pool(|c| (c.subnet, c.last_slot) = ("10.0.0.0/24".parse().unwrap(), last));
        assert_eq!(small(239).unwrap().names(Slot::new(239).unwrap()).ip, Ipv4Addr::new(10, 0, 0, 254));
        assert_eq!(small(240).unwrap_err().key, "subnet");
    }

    #[test]
    fn slots_are_three_digits() {
        assert_eq!(Slot::new(0), None);
        assert_eq!(Slot::new(1000), None);
        assert_eq!(Slot::new(7).unwrap().to_string(), "007");
        assert_eq!(Slot::new(7).unwrap().number(), 7);
        assert_eq!(u16::from(Slot::new(999).unwrap()), 999);
        assert_eq!(serde_json::from_str::<Slot>("12").unwrap(), Slot::new(12).unwrap());
        assert!(serde_json::from_str::<Slot>("0").is_err());
        assert_eq!(format!("{:?}", Mac([2, 10, 0, 1, 2, 255])), "02:0a:00:01:02:ff");
    }

    #[test]
    fn pools_with_other_names_have_another_fingerprint() {
        let base = pool(|_| {}).unwrap().fingerprint();
        let changes: [fn(&mut PoolConfig); 8] = [
            |c| c.uid_base = 2000,
            |c| c.prefix = "other".into(),
            |c| c.interface_prefix = "ot".into(),
            |c| c.subnet = "10.1.0.0/20".parse().unwrap(),
            |c| c.subnet6 = Some("fd00::/64".parse().unwrap()),
            |c| c.address_offset = 20,
            |c| c.clones_dir = "/elsewhere".into(),
            |c| c.parent_dataset = "tank/jails".into(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_ne!(pool(change).unwrap().fingerprint(), base, "change {number}");
        }
        assert_eq!(
            pool(|c| c.last_slot = 10).unwrap().fingerprint(),
            base,
            "more or fewer slots keep their names"
        );
    }

    proptest! {
        /// No two slots share anything, and every name leads back to its slot.
        #[test]
        fn slots_share_nothing(one in 1u16..=900, two in 1u16..=900) {
            let pool = pool(|config| config.subnet6 = Some("fd12:3456::/64".parse().unwrap())).unwrap();
            let (one, two) = (Slot::new(one).unwrap(), Slot::new(two).unwrap());
            let (a, b) = (pool.names(one), pool.names(two));
            prop_assert_eq!(pool.slot_of_name(a.name.as_str()), Some(one));
            prop_assert_eq!(pool.slot_of_interface(&a.interface), Some(one));
            prop_assert_eq!(pool.slot_of_interface(&a.epair_clone), Some(one));
            prop_assert_eq!(pool.slot_of_address(a.ip.into()), Some(one));
            prop_assert_eq!(pool.slot_of_address(a.ip6.unwrap().into()), Some(one));
            prop_assert!(a.ip != pool.gateway() && pool.subnet().contains(&a.ip) && a.ip != pool.subnet().broadcast());
            prop_assert_ne!(a.mac_host, a.mac_clone);
            if one != two {
                prop_assert!(a.name != b.name && a.interface != b.interface && a.ip != b.ip && a.ip6 != b.ip6);
                prop_assert!(a.dataset != b.dataset && a.folder != b.folder && a.uid != b.uid);
                prop_assert!(a.mac_host != b.mac_host && a.mac_clone != b.mac_clone);
            }
        }
    }
}
