//! The clones' packet filter, kept and watched.
//!
//! The rules are proven once and after every change of them; the kernel itself tells of changes. Between two changes
//! nobody has to ask again, so a create does not pay for a proof. When the rules are not what they must be, the clones'
//! links go down first, and only proven rules bring them up again.

use super::errors::refused;
use super::network;
use crate::api::EgressHealth;
use crate::config::EgressConfig;
use crate::host::{HostError, HostErrorKind, HostResult};
use crate::slot::{Slot, SlotNames, Slots};
use pf::linux::{Firewall, FirewallError};
use pf::{Policy, PolicySpec};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How long the watching thread sleeps at most before it looks whether it is still needed.
const WATCH_PATIENCE: Duration = Duration::from_secs(3600);

/// The packet filter of one hostd.
#[derive(Debug)]
pub(super) struct Egress {
    firewall: Firewall,
    /// The rules are the rendered ones and nobody touched them since.
    proven: AtomicBool,
    /// Every place for a clone, for its link.
    slots: Vec<SlotNames>,
    /// Slots of which the kernel remembered no connection when they had neither link nor membership. As long as that
    /// and the rules stay so, none can come about, and looking again would cost a walk through all of the host's.
    quiet: Mutex<Quiet>,
    /// Something changed that cannot wait for the timer.
    pub(super) changed: Notify,
}

/// The slots of which no connection can be remembered, and when each was last expected to have some.
#[derive(Debug, Default)]
struct Quiet {
    slots: BTreeSet<Slot>,
    expected: BTreeMap<Slot, u64>,
    /// Counts what happens, to tell before from after.
    clock: u64,
}

impl Quiet {
    /// The slot gets a link or a membership: from here on connections can come about.
    fn expect(&mut self, slot: Slot) {
        self.clock += 1;
        self.slots.remove(&slot);
        self.expected.insert(slot, self.clock);
    }

    /// A look that began then found the slot cut off and without connections. It may have got a link meanwhile.
    fn settle(&mut self, slot: Slot, began: u64) {
        if self.expected.get(&slot).is_none_or(|expected| *expected <= began) {
            self.slots.insert(slot);
        }
    }
}

impl Egress {
    /// The policy of this pool, checked. Nothing is loaded yet.
    pub(super) fn new(pool: &Slots, config: &EgressConfig) -> HostResult<Egress> {
        let slots: Vec<SlotNames> = pool.slots().map(|slot| pool.names(slot)).collect();
        let place =
            |names: &SlotNames| pf::Slot { interface: names.interface.clone(), ip: names.ip, ip6: names.ip6 };
        let here = [Some(IpAddr::V4(pool.gateway())), pool.gateway6().map(IpAddr::V6)];
        let mut spec = PolicySpec::new(pool.networks().collect());
        spec.table = config.table.clone();
        spec.slots = slots.iter().map(place).collect();
        spec.resolver = config.resolver;
        spec.control_plane = here.into_iter().flatten().chain(config.control_plane.iter().copied()).collect();
        spec.control_users = config.control_users.clone();
        spec.browserd_port = config.browserd_port;
        spec.external = Some(config.external.clone()).filter(|name| !name.is_empty());
        let policy = Policy::try_from(spec).map_err(|error| {
            HostError::new(
                HostErrorKind::NotReady,
                "egress policy",
                "the policy is not valid",
                "correct the section [egress]",
            )
            .caused_by(error)
        })?;
        let firewall = Firewall::new(policy);
        Ok(Egress {
            firewall,
            proven: AtomicBool::new(false),
            slots,
            quiet: Mutex::default(),
            changed: Notify::new(),
        })
    }

    pub(super) fn table(&self) -> &str {
        &self.firewall.policy().table
    }

    /// Follow the kernel's news of the rules for as long as anybody else holds this.
    pub(super) fn watch(self: &Arc<Self>) -> HostResult<()> {
        let mut watch = self.firewall.watch().map_err(|error| self.failed(error))?;
        let weak = Arc::downgrade(self);
        let follow = move || {
            loop {
                let change = watch.wait(WATCH_PATIENCE);
                let Some(egress) = weak.upgrade() else { return };
                match change {
                    Ok(None) => continue,
                    // A member that hostd itself took or let go is no news.
                    Ok(Some(change)) if !change.rules && !change.others => continue,
                    Ok(Some(change)) if !change.rules => {}
                    Ok(Some(change)) => egress.rules_changed(&change.by),
                    Err(error) => {
                        tracing::error!(%error, "the kernel's news of the firewall cannot be read; only the timer looks now");
                        egress.proven.store(false, Ordering::SeqCst);
                        return;
                    }
                }
                egress.changed.notify_one();
            }
        };
        let spawned = std::thread::Builder::new().name("firewall-watch".into()).spawn(follow);
        spawned
            .map(drop)
            .map_err(|error| refused("firewall-watch", "start its thread", HostErrorKind::Failed, error))
    }

    /// Somebody changed the rules: prove them, and until they are put back keep the clones in.
    fn rules_changed(&self, by: &str) {
        self.proven.store(false, Ordering::SeqCst);
        self.quiet().slots.clear();
        match self.firewall.prove() {
            Ok(_) => self.proven.store(true, Ordering::SeqCst),
            Err(error) => {
                let down = network::set_up(&self.slots, false);
                tracing::error!(%error, by, ?down, "the clones' firewall was changed; their links are down until it is back");
            }
        }
    }

    /// Whether the rules are known to be the rendered ones.
    pub(super) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::SeqCst)
    }

    pub(super) fn health(&self) -> HostResult<EgressHealth> {
        if self.is_proven() {
            return Ok(EgressHealth::Ok);
        }
        match self.firewall.prove() {
            Ok(_) => {
                self.proven.store(true, Ordering::SeqCst);
                Ok(EgressHealth::Ok)
            }
            Err(FirewallError::Gone { .. } | FirewallError::Altered { .. }) => Ok(EgressHealth::RulesMissing),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Put the rules back, without members: the lifecycle knows who is one.
    pub(super) fn repair(&self) -> HostResult<EgressHealth> {
        if self.health()? == EgressHealth::Ok {
            // Links may still be down from an earlier repair that was cut short.
            network::set_up(&self.slots, true)?;
            return Ok(EgressHealth::Ok);
        }
        network::set_up(&self.slots, false)?;
        self.firewall.load(&BTreeSet::new()).map_err(|error| self.failed(error))?;
        let health = self.health()?;
        if health == EgressHealth::Ok {
            network::set_up(&self.slots, true)?;
        }
        Ok(health)
    }

    pub(super) fn grant(&self, names: &SlotNames) -> HostResult<()> {
        self.quiet().expect(names.slot);
        self.firewall.add(&addresses(names).collect::<Vec<_>>()).map_err(|error| self.failed(error))
    }

    /// Out of the table: no packet of the clone passes any more. A table that is gone has no members.
    ///
    /// What the kernel remembers of its connections is of no use to it then, and is forgotten once, when its link is gone
    /// too: see [`Egress::forget_connections`].
    pub(super) fn cut(&self, names: &SlotNames) -> HostResult<()> {
        match self.firewall.remove(&addresses(names).collect::<Vec<_>>()) {
            Ok(()) | Err(FirewallError::Gone { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Make the kernel forget the connections of a clone that has neither link nor membership, so that nothing is left for
    /// the next one with its addresses. `began` is the moment before that was seen.
    pub(super) fn forget_connections(&self, names: &SlotNames, began: u64) -> HostResult<()> {
        if self.quiet().slots.contains(&names.slot) {
            return Ok(());
        }
        let forgotten = self.firewall.forget_connections(&addresses(names).collect::<Vec<_>>());
        forgotten.map_err(|error| self.failed(error))?;
        if self.is_proven() {
            self.quiet().settle(names.slot, began);
        }
        Ok(())
    }

    /// Who is let out; nobody where there is no table.
    pub(super) fn members(&self) -> HostResult<BTreeSet<IpAddr>> {
        match self.firewall.members() {
            Err(FirewallError::Gone { .. }) => Ok(BTreeSet::new()),
            other => other.map_err(|error| self.failed(error)),
        }
    }

    /// The clone's addresses that have egress; none where there is no table. The time does not depend on the other clones.
    pub(super) fn members_of(&self, names: &SlotNames) -> HostResult<BTreeSet<IpAddr>> {
        let addresses: Vec<IpAddr> = addresses(names).collect();
        self.firewall.members_among(&addresses).map_err(|error| self.failed(error))
    }

    /// Which of these slots the kernel remembers connections of. Only those without a link and without membership are
    /// asked about: of the others connections come and go.
    pub(super) fn remembered(&self, cut_off: &[&SlotNames], began: u64) -> HostResult<BTreeSet<Slot>> {
        let unsure: Vec<&SlotNames> = {
            let quiet = self.quiet();
            cut_off.iter().copied().filter(|names| !quiet.slots.contains(&names.slot)).collect()
        };
        let found = self.connected(&unsure)?;
        if self.is_proven() {
            let mut quiet = self.quiet();
            let silent = unsure.iter().map(|names| names.slot).filter(|slot| !found.contains(slot));
            silent.for_each(|slot| quiet.settle(slot, began));
        }
        Ok(found)
    }

    fn connected(&self, slots: &[&SlotNames]) -> HostResult<BTreeSet<Slot>> {
        if slots.is_empty() {
            return Ok(BTreeSet::new());
        }
        let all: Vec<IpAddr> = slots.iter().flat_map(|names| addresses(names)).collect();
        let found = self.firewall.connected(&all).map_err(|error| self.failed(error))?;
        let is_found = |names: &&&SlotNames| addresses(names).any(|address| found.contains(&address));
        Ok(slots.iter().filter(is_found).map(|names| names.slot).collect())
    }

    /// The slot gets a link: from here on connections can come about.
    pub(super) fn expect_connections(&self, slot: Slot) {
        self.quiet().expect(slot);
    }

    /// The moment before a look at links and members, for [`Egress::remembered`].
    pub(super) fn moment(&self) -> u64 {
        self.quiet().clock
    }

    fn quiet(&self) -> MutexGuard<'_, Quiet> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: FirewallError) -> HostError {
        let kind = match &error {
            FirewallError::Gone { .. } | FirewallError::Altered { .. } | FirewallError::Load { .. } => {
                HostErrorKind::NotReady
            }
            _ => HostErrorKind::Failed,
        };
        let object = format!("table inet {}", self.table());
        HostError::new(
            kind,
            object,
            "the packet filter refused the request",
            "install nftables; hostctl doctor tells what the kernel lacks",
        )
        .caused_by(error)
    }
}

/// A clone's addresses.
pub(super) fn addresses(names: &SlotNames) -> impl Iterator<Item = IpAddr> + Clone + use<> {
    [Some(IpAddr::V4(names.ip)), names.ip6.map(IpAddr::V6)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_got_its_link_during_a_look_is_not_quiet() {
        let slot = Slot::try_from(7).unwrap();
        let mut quiet = Quiet::default();
        quiet.settle(slot, quiet.clock);
        assert!(quiet.slots.contains(&slot), "nobody expected anything of it");
        quiet.expect(slot);
        assert!(!quiet.slots.contains(&slot));
        let began = quiet.clock;
        quiet.settle(slot, began);
        assert!(quiet.slots.contains(&slot), "the look began after its last link");
        quiet.slots.clear();
        quiet.expect(slot);
        quiet.settle(slot, began);
        assert!(!quiet.slots.contains(&slot), "the look began before it");
    }
}
