//! A clone's pair of interfaces: `e0a_btNNN` in the bridge, `e0b_btNNN` for the jail.
//!
//! The pair's number is derived from the slot, so no free number is searched and parallel creates do not collide. The
//! host's end is a private member of the bridge, because PF does not see traffic between members. The clone's identity is
//! in the description of the host's end. An end that somebody renamed is found by its Ethernet address, which is derived from
//! the slot too. Destroying one end destroys both, even if the other is in a jail.

use super::errors::{Complaint, classify, command_failed};
use super::interfaces::{self, Interface};
use super::{FreebsdState, commands};
use crate::api::CloneId;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult, Identity, ObservedNetwork};
use crate::slot::{Slot, SlotNames, Slots};
use std::collections::BTreeSet;
use std::time::Duration;

/// How often the interfaces are listed while those of the slot in question are torn.
const LISTINGS: u32 = 25;
const LISTING_PAUSE: Duration = Duration::from_millis(20);

/// The names of the slots' interfaces.
#[derive(Debug, Clone)]
pub(super) struct PairNames {
    pub(super) bridge: String,
    /// The pair's number is this plus the slot's number.
    pub(super) base: u32,
}

impl PairNames {
    /// All names that a slot's interfaces can have, the host's end first.
    fn names(&self, names: &SlotNames) -> [String; 4] {
        let pair = commands::pair(self.base, names);
        [names.epair_host.clone(), format!("{pair}a"), names.epair_clone.clone(), format!("{pair}b")]
    }

    /// The slot an interface belongs to, by its name or by its Ethernet address.
    pub(super) fn slot_of(&self, slots: &Slots, interface: &Interface) -> Option<Slot> {
        self.slot_of_name(slots, &interface.name).or_else(|| {
            let ether = interface.ether.as_deref().filter(|_| interface.groups.contains("epair"))?;
            slots.slot_of_mac(ether)
        })
    }

    /// The slot whose interface has this name.
    pub(super) fn slot_of_name(&self, slots: &Slots, name: &str) -> Option<Slot> {
        if name.starts_with("e0a_") || name.starts_with("e0b_") {
            return slots.slot_of_interface(name);
        }
        let number: u32 = super::errors::digits(name.strip_prefix("epair")?.strip_suffix(['a', 'b'])?)?;
        let slot = Slot::new(u16::try_from(number.checked_sub(self.base)?).ok()?)?;
        slots.contains(slot).then_some(slot)
    }

    /// The bridge, if it exists.
    pub(super) fn bridge<'a>(&self, all: &'a [Interface]) -> Option<&'a Interface> {
        all.iter().find(|interface| interface.name == self.bridge)
    }

    /// A slot's interfaces, in the order in which they are to be destroyed. Renamed ends come last.
    pub(super) fn of<'a>(&self, all: &'a [Interface], names: &SlotNames) -> Vec<&'a Interface> {
        let known = self.names(names);
        let macs = [names.mac_host.to_string(), names.mac_clone.to_string()];
        let renamed = |found: &&Interface| {
            !known.contains(&found.name)
                && found.groups.contains("epair")
                && found.ether.as_ref().is_some_and(|ether| macs.contains(ether))
        };
        let named = known.iter().flat_map(|name| all.iter().filter(move |found| found.name == *name));
        named.chain(all.iter().filter(renamed)).collect()
    }

    /// A slot's network, for the lifecycle.
    pub(super) fn observed(&self, all: &[Interface], names: &SlotNames) -> Option<ObservedNetwork> {
        let own = self.of(all, names);
        let first = own.first()?;
        // Several interfaces can have one name: a mark outweighs none.
        let identities = own.iter().map(|interface| identity(interface));
        let identity = identities
            .max_by_key(|identity| match identity {
                Identity::Unmarked => 0,
                Identity::Clone(_) => 1,
                Identity::Foreign(_) => 2,
            })
            .unwrap_or(Identity::Unmarked);
        let member = self.bridge(all).and_then(|bridge| bridge.members.get(&names.epair_host));
        let complete = first.name == names.epair_host
            && !first.torn
            && first.up
            && first.ether.as_deref() == Some(names.mac_host.to_string().as_str())
            && member.is_some_and(|flags| flags.contains("PRIVATE"))
            // An end that still has its first name was not completed.
            && own.iter().all(|interface| !interface.name.starts_with("epair"));
        Some(ObservedNetwork { identity, complete })
    }
}

fn identity(interface: &Interface) -> Identity {
    // The group of a torn interface may not have been printed.
    if !interface.torn && !interface.groups.contains("epair") {
        return Identity::Foreign(format!(
            "{} is no pair of own: it is another kind of interface",
            interface.name
        ));
    }
    match &interface.description {
        None => Identity::Unmarked,
        Some(text) => {
            match text.strip_prefix("hostd:").and_then(|id| CloneId::try_from(id.to_owned()).ok()) {
                Some(id) => Identity::Clone(id),
                None => Identity::Foreign(format!("{} carries the description {text:?}", interface.name)),
            }
        }
    }
}

/// The result of taking the bridge up or down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BridgeState {
    Set,
    Missing,
}

/// The result of creating a pair.
enum Made {
    Yes,
    /// An object of that name exists.
    InTheWay(HostError),
}

impl FreebsdState {
    /// List the interfaces. Other clones' interfaces may be torn: their own operations inspect them.
    pub(super) async fn interfaces(&self) -> HostResult<Vec<Interface>> {
        let outcome = self.tools.ifconfig.with(commands::list_interfaces()).run().await?;
        if !outcome.success() {
            return Err(command_failed("interfaces", &outcome, "run `ifconfig -a` by hand"));
        }
        Ok(interfaces::read(outcome.text()?, &outcome.stderr)?)
    }

    /// List the interfaces until those of this slot are whole. An interface is torn only while it is being renamed or
    /// destroyed, so a few attempts are enough. After the last one the interface counts as incomplete.
    pub(super) async fn interfaces_for(&self, names: &SlotNames) -> HostResult<Vec<Interface>> {
        let mut all = self.interfaces().await?;
        for _ in 1..LISTINGS {
            if !self.network.of(&all, names).iter().any(|interface| interface.torn) {
                break;
            }
            tokio::time::sleep(LISTING_PAUSE).await;
            all = self.interfaces().await?;
        }
        Ok(all)
    }

    /// Create the pair. Leftovers of the slot without another clone's mark are destroyed first.
    pub(super) async fn make_network(&self, spec: &CloneSpec) -> HostResult<()> {
        let in_the_way = match self.try_network(spec).await? {
            Made::Yes => return Ok(()),
            Made::InTheWay(error) => error,
        };
        let all = self.interfaces_for(&spec.names).await?;
        match self.network.observed(&all, &spec.names) {
            Some(ObservedNetwork { identity: Identity::Clone(id), complete: true })
                if id == spec.clone_id =>
            {
                return Ok(());
            }
            Some(ObservedNetwork { identity: Identity::Clone(id), .. }) if id != spec.clone_id => {
                return Err(in_the_way_of(&spec.names, format!("the pair of clone {id} is there")));
            }
            Some(ObservedNetwork { identity: Identity::Foreign(why), .. }) => {
                return Err(in_the_way_of(&spec.names, why));
            }
            Some(_) => self.destroy_interfaces(&spec.names, &all).await?,
            None => return Err(in_the_way),
        }
        match self.try_network(spec).await? {
            Made::Yes => Ok(()),
            Made::InTheWay(error) => Err(error),
        }
    }

    async fn try_network(&self, spec: &CloneSpec) -> HostResult<Made> {
        let (names, base, bridge) = (&spec.names, self.network.base, &self.network.bridge);
        for line in [
            commands::create_pair(base, names, &spec.clone_id),
            commands::name_clone_end(base, names),
            commands::attach(bridge, names),
        ] {
            let outcome = self.tools.ifconfig.with(line).run().await?;
            if outcome.success() {
                continue;
            }
            let hint = "hostctl doctor checks the bridge; setup-host makes it";
            let error = command_failed(&names.epair_host, &outcome, hint);
            return match classify(&outcome.stderr) {
                Complaint::Exists => Ok(Made::InTheWay(error)),
                // Both ends were just created, so the bridge is missing.
                Complaint::Absent => {
                    Err(HostError { kind: HostErrorKind::NotReady, object: bridge.clone(), ..error })
                }
                _ => Err(error),
            };
        }
        Ok(Made::Yes)
    }

    /// Remove the pair, also a half-made one. An absent pair is success; a foreign interface of that name is left alone.
    pub(super) async fn remove_pair(&self, names: &SlotNames) -> HostResult<()> {
        let own = self.own_interfaces(names).await?;
        match self.network.observed(&own, names) {
            None => Ok(()),
            Some(ObservedNetwork { identity: Identity::Foreign(why), .. }) => Err(in_the_way_of(names, why)),
            Some(_) => {
                let destroyed = self.destroy_interfaces(names, &own).await;
                match destroyed {
                    Ok(()) => self.looks.interfaces_destroyed(names.slot),
                    Err(_) => self.looks.forget(names.slot),
                }
                destroyed
            }
        }
    }

    async fn destroy_interfaces(&self, names: &SlotNames, all: &[Interface]) -> HostResult<()> {
        // Destroying one end destroys the other, so each name is tried once and absence is success.
        let own: Vec<&Interface> = self.network.of(all, names);
        let mut done = BTreeSet::new();
        for name in own.iter().map(|interface| interface.name.as_str()) {
            if done.insert(name) {
                self.destroy_interface(name).await?;
            }
        }
        Ok(())
    }

    async fn destroy_interface(&self, name: &str) -> HostResult<()> {
        let outcome = self.tools.ifconfig.with(commands::destroy_interface(name)).run().await?;
        match classify(&outcome.stderr) {
            _ if outcome.success() => Ok(()),
            Complaint::Absent => Ok(()),
            _ => Err(command_failed(name, &outcome, "inspect it with ifconfig; the reaper tries again")),
        }
    }

    /// Take the clones' bridge down, or up again. Without a bridge no clone reaches anything.
    pub(super) async fn set_bridge(&self, up: bool) -> HostResult<BridgeState> {
        let bridge = &self.network.bridge;
        let outcome = self.tools.ifconfig.with(commands::set_bridge(bridge, up)).run().await?;
        match classify(&outcome.stderr) {
            _ if outcome.success() => Ok(BridgeState::Set),
            Complaint::Absent => Ok(BridgeState::Missing),
            _ => Err(command_failed(bridge, &outcome, "inspect it with ifconfig; setup-host makes it")),
        }
    }
}

fn in_the_way_of(names: &SlotNames, why: String) -> HostError {
    let hint = "it belongs to something else: destroy or rename it, or configure another pool.prefix";
    HostError::new(HostErrorKind::Foreign, &names.epair_host, why, hint)
}
