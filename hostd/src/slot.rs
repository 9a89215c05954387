//! A slot decides everything: name, folder, dataset, addresses, interfaces, user id.
//!
//! All of them are functions of the slot's number and the configuration, computed here and nowhere
//! else. Claiming a slot's record therefore claims all of them at once: there is no allocator and no race.

use crate::api::CloneName;
use crate::config::PoolConfig;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// The number of a slot, 1 to 999.
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

/// Everything that follows from a slot.
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
    /// The clone's dataset, for the ZFS driver.
    pub dataset: String,
    /// The clone's folder.
    pub folder: PathBuf,
    /// The clone's IPv4 address.
    pub ip: Ipv4Addr,
    /// The clone's IPv6 address, if the pool has any.
    pub ip6: Option<Ipv6Addr>,
    /// The Ethernet address of the host's end. One address, one MAC, for ever: stale neighbour entries are harmless.
    pub mac_host: Mac,
    /// The Ethernet address of the clone's end.
    pub mac_clone: Mac,
    /// The private user id of the clone's processes on Linux.
    pub uid: u32,
}

/// Why a pool cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pool.{key}: {why}")]
pub struct PoolError {
    /// The configuration key.
    pub key: &'static str,
    /// What is wrong and what would be right.
    pub why: String,
}

/// The checked pool: from slot to names and back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
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

impl Pool {
    /// Check the configuration once, so that every name made from it later is valid.
    pub fn new(config: &PoolConfig) -> Result<Pool, PoolError> {
        let wrong = |key, why: String| Err(PoolError { key, why });
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
            Slot::new(number).ok_or_else(|| PoolError {
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
        let highest_uid = u64::from(config.uid_base) + u64::from(Slot::MAX);
        if config.uid_base < 1000 || highest_uid >= 65_534 {
            let uid = config.uid_base;
            return wrong(
                "uid_base",
                format!("{uid} is not usable: 1000 to {}", 65_533 - u32::from(Slot::MAX)),
            );
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
        Ok(Pool {
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

    /// All slots, in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (self.first.0..=self.last.0).map(Slot)
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        usize::from(self.last.0 - self.first.0) + 1
    }

    /// Never: a checked pool has at least one slot.
    pub fn is_empty(&self) -> bool {
        false
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

    /// Whether the slot is one of this pool's.
    pub fn contains(&self, slot: Slot) -> bool {
        (self.first..=self.last).contains(&slot)
    }

    /// The clone name of a slot.
    pub fn name(&self, slot: Slot) -> CloneName {
        CloneName::try_from(format!("{}{slot}", self.prefix)).expect("a checked prefix and three digits")
    }

    /// Everything that follows from a slot.
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

    /// The slot of a clone's name, if it is one of this pool's.
    pub fn slot_of_name(&self, name: &str) -> Option<Slot> {
        self.slot_after(&self.prefix, name)
    }

    /// The slot of an interface, if it is one of this pool's.
    pub fn slot_of_interface(&self, interface: &str) -> Option<Slot> {
        let bare = ["e0a_", "e0b_"].iter().find_map(|side| interface.strip_prefix(side)).unwrap_or(interface);
        self.slot_after(&self.interface_prefix, bare)
    }

    /// The slot of an address, if it is one of this pool's.
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

    /// The pool's networks.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> + use<> {
        [Some(IpNet::V4(self.subnet)), self.subnet6.map(IpNet::V6)].into_iter().flatten()
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
