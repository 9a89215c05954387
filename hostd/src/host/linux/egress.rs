//! The clones' packet filter: loaded, verified and watched.
//!
//! The rules are verified once and again after every change, of which the kernel sends an event. Between two changes a
//! create relies on the last proof. When the rules are wrong, the clones' links are taken down within milliseconds. They come
//! up again when the rules are proven and no connection that was made in between is left in connection tracking.
//!
//! Until the links are down, and if hostd does not run at all, the rules in the clones' own network namespaces hold: see
//! [`pf::clone_rules`].

mod proof;
mod untracked;
mod watch;

pub(super) use untracked::Moment;

use super::errors::refused;
use super::network;
use crate::api::EgressHealth;
use crate::config::{EgressConfig, Resolver};
use crate::host::{HostError, HostErrorKind, HostResult, RefusedPackets};
use crate::slot::{Slot, SlotNames, Slots};
use ipnet::IpNet;
use pf::linux::{CloneFilter, ClosedChain, Firewall, FirewallError, Watch};
use pf::{Policy, PolicySpec};
use proof::ProofState;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use untracked::UntrackedSlots;
use watch::{Events, Next};

/// How long the watching thread sleeps at most before it checks whether it is still needed.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3600);

/// How often the rules are proven before hostd gives up because they change all the time.
const PROOF_TRIES: usize = 5;

/// The packet filter of one hostd.
#[derive(Debug)]
pub(super) struct Egress {
    firewall: Firewall,
    proof: Arc<ProofState>,
    /// Whether the thread that follows events runs.
    watch_thread: Arc<AtomicBool>,
    slots: Vec<SlotNames>,
    untracked: Mutex<UntrackedSlots>,
    /// The clones' links were taken down and are not up again.
    links_down: AtomicBool,
    /// Held while links are taken down or brought up, so that the last change wins.
    switching: Mutex<()>,
    /// The rules for the clones' own network namespaces, translated once.
    clone_filter: Mutex<Option<Arc<CloneFilter>>>,
    /// Something changed that cannot wait for the timer.
    pub(super) changed: Notify,
}

impl Egress {
    /// The policy of this pool, checked. Nothing is loaded yet.
    pub(super) fn new(pool: &Slots, config: &EgressConfig) -> HostResult<Egress> {
        let slots: Vec<SlotNames> = pool.slots().map(|slot| pool.names(slot)).collect();
        let probe = pool.probe_names();
        let slot =
            |names: &SlotNames| pf::Slot { interface: names.interface.clone(), ip: names.ip, ip6: names.ip6 };
        let here = [Some(IpAddr::V4(pool.gateway())), pool.gateway6().map(IpAddr::V6)];
        let mut spec = PolicySpec::new(pool.networks().collect());
        spec.table = config.table.clone();
        spec.slots = slots.iter().chain([&probe]).map(slot).collect();
        spec.resolver = match config.resolver {
            // The forwarder listens there.
            Resolver::Auto => Some(pool.gateway().into()),
            Resolver::None => None,
            Resolver::Address(address) => Some(address),
        };
        spec.control_plane =
            here.into_iter().flatten().map(IpNet::from).chain(config.control_plane.iter().copied()).collect();
        spec.control_users = config.callers(None).users;
        spec.browserd_port = config.browserd_port;
        spec.external = Some(config.external.clone()).filter(|name| !name.is_empty());
        spec.connections = config.connection_limits();
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
            proof: Arc::default(),
            watch_thread: Arc::default(),
            slots,
            untracked: Mutex::default(),
            links_down: AtomicBool::new(false),
            switching: Mutex::default(),
            clone_filter: Mutex::default(),
            changed: Notify::new(),
        })
    }

    pub(super) fn table(&self) -> &str {
        &self.firewall.policy().table
    }

    /// Start the thread that follows the kernel's events about the rules, unless it runs. It ends when nobody else holds
    /// this.
    pub(super) fn watch(self: &Arc<Self>) -> HostResult<()> {
        let Some(running) = ThreadMark::set(&self.watch_thread) else { return Ok(()) };
        let events = self.subscribe().map_err(|error| self.failed(error))?;
        let (proof, first) = (self.proof.clone(), (self.proof.watch(), events));
        let (again, resubscribed) = (Arc::downgrade(self), Arc::downgrade(self));
        let follow = move || {
            let _running = running;
            watch::follow(
                &proof,
                first,
                || again.upgrade().map(|egress| egress.subscribe()),
                || {
                    if let Some(egress) = resubscribed.upgrade() {
                        egress.changed.notify_one();
                    }
                },
                std::thread::sleep,
            );
        };
        std::thread::Builder::new()
            .name("firewall-watch".into())
            .spawn(follow)
            .map(drop)
            .map_err(|error| refused("firewall-watch", "start its thread", HostErrorKind::Failed, error))
    }

    fn subscribe(self: &Arc<Self>) -> Result<RuleEvents, FirewallError> {
        let watch = self.firewall.watch()?;
        Ok(RuleEvents { watch, egress: Arc::downgrade(self) })
    }

    /// The rules changed. If they are not the rendered ones, the clones' links go down before anything else happens.
    fn rules_changed(&self, by: &str) {
        self.proof.changed();
        self.untracked().clear();
        let began = self.proof.begin();
        let unchanged = match self.firewall.differs() {
            Ok(Some(differs)) => Ok(!differs),
            // Nothing to compare with yet: hostd has just loaded the rules for the first time.
            Ok(None) => self.firewall.prove().map(|_| true),
            Err(error) => Err(error),
        };
        if matches!(unchanged, Ok(true)) {
            return self.proof.complete(began);
        }
        let down = self.close_links();
        let message = "the clones' firewall was changed; their links are down until it is back";
        tracing::error!(?unchanged, by, ?down, "{message}");
    }

    fn close_links(&self) -> HostResult<()> {
        let _switching = self.switching();
        self.links_down.store(true, Ordering::SeqCst);
        network::set_up(&self.slots, false).map(drop)
    }

    /// Bring the clones' links up. Connections that were made while the rules were wrong are ended first.
    fn open_links(self: &Arc<Self>) -> HostResult<()> {
        let _switching = self.switching();
        if network::any_down(&self.slots)? {
            let all: Vec<IpAddr> = self.slots.iter().flat_map(addresses).collect();
            self.firewall.end_all_connections(&all).map_err(|error| self.failed(error))?;
            // A change after this check waits for the lock and then takes the links down.
            if !self.record_proof()? {
                let hint = "find out who changes the rules: nft monitor";
                let why = "the rules changed before the clones' links could come up";
                return Err(HostError::new(HostErrorKind::NotReady, self.object(), why, hint));
            }
            network::set_up(&self.slots, true)?;
        }
        self.links_down.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Whether the rules are known to be the rendered ones and the clones' links are open.
    pub(super) fn is_proven(&self) -> bool {
        self.proof.is_proven() && !self.links_down.load(Ordering::SeqCst)
    }

    pub(super) fn health(self: &Arc<Self>) -> HostResult<EgressHealth> {
        if !self.is_proven() && (!self.prove()? || self.links_down.load(Ordering::SeqCst)) {
            return Ok(EgressHealth::RulesMissing);
        }
        Ok(EgressHealth::Ok)
    }

    /// Whether the loaded rules are the rendered ones and are watched.
    fn prove(self: &Arc<Self>) -> HostResult<bool> {
        self.watch()?;
        let began = self.proof.begin();
        match self.firewall.prove() {
            Ok(_) => {
                self.proof.complete(began);
                Ok(true)
            }
            Err(FirewallError::Gone { .. } | FirewallError::Altered { .. }) => Ok(false),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Prove the rules until the proof is recorded. The event of hostd's own load may arrive during the first one.
    fn record_proof(self: &Arc<Self>) -> HostResult<bool> {
        for _ in 0..PROOF_TRIES {
            if self.proof.is_proven() {
                return Ok(true);
            }
            if !self.prove()? {
                return Ok(false);
            }
        }
        Ok(self.proof.is_proven())
    }

    /// Load the rules again if they are wrong, without members: the lifecycle knows who is one.
    pub(super) fn repair(self: &Arc<Self>) -> HostResult<EgressHealth> {
        if !self.prove()? {
            self.close_links()?;
            self.firewall.load(&BTreeSet::new()).map_err(|error| self.failed(error))?;
            if !self.prove()? {
                return Ok(EgressHealth::RulesMissing);
            }
        }
        self.open_links()?;
        Ok(EgressHealth::Ok)
    }

    /// The rules for the inside of a new clone's network namespace.
    pub(super) fn clone_filter(&self) -> HostResult<Arc<CloneFilter>> {
        let mut filter = self.clone_filter.lock().unwrap_or_else(PoisonError::into_inner);
        match &*filter {
            Some(filter) => Ok(filter.clone()),
            None => {
                let new = Arc::new(self.firewall.clone_filter().map_err(|error| self.failed(error))?);
                Ok(filter.insert(new).clone())
            }
        }
    }

    /// Whether the policy blocks this address whatever addresses the host has.
    pub(super) fn is_closed(&self, address: IpAddr) -> bool {
        self.firewall.policy().is_closed(address)
    }

    /// The resolver that clones may ask.
    pub(super) fn resolver(&self) -> Option<IpAddr> {
        self.firewall.policy().resolver
    }

    /// The chains of other programs that drop what they do not know.
    pub(super) fn closed_chains_of_others(&self) -> HostResult<Vec<ClosedChain>> {
        self.firewall.closed_chains_of_others().map_err(|error| self.failed(error))
    }

    /// Whether a user of this host may connect to browserd in the clones.
    pub(super) fn admits(&self, user: u32) -> bool {
        self.firewall.admits(user)
    }

    /// Let a user of this host connect to browserd in the clones.
    pub(super) fn admit(&self, user: u32) -> HostResult<()> {
        match self.firewall.admit(user) {
            // He is remembered, and the next load lets him in.
            Ok(()) | Err(FirewallError::Gone { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// How many packets the limits of connections have refused; `None` if the rules are not loaded.
    pub(super) fn refused_packets(&self) -> Option<RefusedPackets> {
        let refused = self.firewall.refused().ok()?;
        Some(RefusedPackets { rate: refused.rate, count: refused.count })
    }

    /// The most entries that one clone can have in connection tracking.
    pub(super) fn tracked_per_clone(&self) -> u64 {
        self.firewall.policy().connections.tracked()
    }

    pub(super) fn grant(&self, names: &SlotNames) -> HostResult<()> {
        self.untracked().connect(names.slot);
        self.firewall.add(&addresses(names).collect::<Vec<_>>()).map_err(|error| self.failed(error))
    }

    /// Remove a clone's addresses from the set: none of its packets passes any more. A missing table has no members.
    ///
    /// Its entries in connection tracking have no effect then. They are removed once, when its link is gone too: see
    /// [`Egress::end_connections`].
    pub(super) fn cut(&self, names: &SlotNames) -> HostResult<()> {
        match self.firewall.remove(&addresses(names).collect::<Vec<_>>()) {
            Ok(()) | Err(FirewallError::Gone { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Remove the entries of hostd's own network from connection tracking.
    pub(super) fn end_connections_of_probe(&self, names: &SlotNames) -> HostResult<()> {
        let ended = self.firewall.end_connections(&addresses(names).collect::<Vec<_>>());
        ended.map_err(|error| self.failed(error))
    }

    /// Remove a clone's entries from connection tracking, so that the next clone with its addresses starts without any. The
    /// clone must have had neither link nor membership in an inspection that began at this moment.
    pub(super) fn end_connections(&self, names: &SlotNames, began: Moment) -> HostResult<()> {
        if self.untracked().contains(names.slot) {
            return Ok(());
        }
        let ended = self.firewall.end_connections(&addresses(names).collect::<Vec<_>>());
        ended.map_err(|error| self.failed(error))?;
        if self.is_proven() {
            self.untracked().confirm(names.slot, began);
        }
        Ok(())
    }

    /// The members; none if there is no table.
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

    /// Which of these slots have entries in connection tracking. Only slots without link and membership are asked about:
    /// entries of the others come and go.
    pub(super) fn tracked(&self, cut_off: &[&SlotNames], began: Moment) -> HostResult<BTreeSet<Slot>> {
        let unknown: Vec<&SlotNames> = {
            let untracked = self.untracked();
            cut_off.iter().copied().filter(|names| !untracked.contains(names.slot)).collect()
        };
        let tracked = self.connected(&unknown)?;
        if self.is_proven() {
            let mut untracked = self.untracked();
            let without = unknown.iter().map(|names| names.slot).filter(|slot| !tracked.contains(slot));
            without.for_each(|slot| untracked.confirm(slot, began));
        }
        Ok(tracked)
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

    /// The slot gets a link, so entries in connection tracking can appear.
    pub(super) fn allow_connections(&self, slot: Slot) {
        self.untracked().connect(slot);
    }

    /// The moment before an inspection of links and members, for [`Egress::tracked`].
    pub(super) fn moment(&self) -> Moment {
        self.untracked().now()
    }

    fn untracked(&self) -> MutexGuard<'_, UntrackedSlots> {
        self.untracked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switching(&self) -> MutexGuard<'_, ()> {
        self.switching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn object(&self) -> String {
        format!("table inet {}", self.table())
    }

    fn failed(&self, error: FirewallError) -> HostError {
        let kind = match &error {
            FirewallError::Gone { .. } | FirewallError::Altered { .. } | FirewallError::Load { .. } => {
                HostErrorKind::NotReady
            }
            _ => HostErrorKind::Failed,
        };
        HostError::new(
            kind,
            self.object(),
            "the packet filter refused the request",
            "install nftables; hostctl doctor reports what the kernel lacks",
        )
        .caused_by(error)
    }
}

/// A clone's addresses.
pub(super) fn addresses(names: &SlotNames) -> impl Iterator<Item = IpAddr> + Clone + use<> {
    [Some(IpAddr::V4(names.ip)), names.ip6.map(IpAddr::V6)].into_iter().flatten()
}

/// Set while the thread that holds it runs, also if it panics.
struct ThreadMark(Arc<AtomicBool>);

impl ThreadMark {
    /// `None` if it is set already.
    fn set(flag: &Arc<AtomicBool>) -> Option<ThreadMark> {
        (!flag.swap(true, Ordering::SeqCst)).then(|| ThreadMark(flag.clone()))
    }
}

impl Drop for ThreadMark {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The kernel's events about the rules.
struct RuleEvents {
    watch: Watch,
    egress: Weak<Egress>,
}

impl Events for RuleEvents {
    type Error = FirewallError;

    fn next(&mut self) -> Result<Next, FirewallError> {
        let change = self.watch.wait(WATCH_TIMEOUT);
        let Some(egress) = self.egress.upgrade() else { return Ok(Next::Stop) };
        let change =
            change.map_err(|source| FirewallError::Kernel { doing: "reading events".into(), source })?;
        let Some(change) = change else { return Ok(Next::Continue) };
        if change.rules {
            egress.rules_changed(&change.by);
        }
        if change.others
            && !change.rules
            && let Err(error) = egress.firewall.admit_again()
        {
            tracing::warn!(%error, "users that may connect to clones cannot be added again");
        }
        // hostd's own changes of members need no inspection.
        if change.rules || change.others {
            egress.changed.notify_one();
        }
        Ok(Next::Continue)
    }
}
