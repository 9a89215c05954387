//! The host's own addresses, which the rules in every clone's network namespace block.
//!
//! A clone gets those that are known when it is made. One that the host gets later is added to the rules of every clone as
//! soon as the kernel reports it, and at the latest by the next inspection of the host. An address that the host gives up
//! stays blocked in the clones that exist.

use super::egress::Egress;
use super::errors::refused;
use super::network;
use super::rtnetlink::{AddressEvents, Rtnetlink};
use super::{errors::failed, netns};
use crate::host::{HostErrorKind, HostResult, chain};
use crate::slot::{SlotNames, Slots};
use pf::linux::CloneFilter;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the thread sleeps at most before it checks whether it is still needed.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3600);
/// The pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// The host's addresses that no denied range contains.
#[derive(Debug)]
pub(super) struct HostAddresses {
    egress: Arc<Egress>,
    slots: Vec<SlotNames>,
    /// The parent of the clones' run folders.
    run: PathBuf,
    known: Mutex<BTreeSet<IpAddr>>,
}

impl HostAddresses {
    /// Read them, also for the clones that exist, and follow their changes.
    pub(super) fn watch(egress: Arc<Egress>, slots: &Slots, run: &Path) -> HostResult<Arc<HostAddresses>> {
        let addresses = Arc::new(HostAddresses {
            egress,
            slots: slots.slots().map(|slot| slots.names(slot)).collect(),
            run: run.to_owned(),
            known: Mutex::default(),
        });
        // First the subscription, so that no change is missed between the two.
        let subscribed = AddressEvents::subscribe().map_err(|error| {
            failed("netlink", "the addresses cannot be watched", error, "hostd needs netlink")
        })?;
        addresses.read()?;
        let weak = Arc::downgrade(&addresses);
        let follow = move || {
            let mut events = subscribed;
            loop {
                let new = events.wait(WATCH_TIMEOUT);
                let Some(addresses) = weak.upgrade() else { return };
                let handled = match new {
                    Ok(new) if addresses.are_known(&new) => Ok(()),
                    Ok(_) => addresses.read(),
                    Err(error) => Err(failed("netlink", "no address events", error, "hostd needs netlink")),
                };
                if let Err(error) = handled {
                    // The next inspection of the host reads them, too.
                    tracing::error!(error = chain(&error), "the host's new addresses are not blocked yet");
                    std::thread::sleep(PAUSE);
                }
            }
        };
        let thread = std::thread::Builder::new().name("address-watch".into()).spawn(follow);
        thread.map_err(|error| refused("address-watch", "start its thread", HostErrorKind::Failed, error))?;
        Ok(addresses)
    }

    /// Whether nothing has to be done for these new addresses. `None`: events were lost.
    fn are_known(&self, new: &Option<Vec<IpAddr>>) -> bool {
        let Some(new) = new else { return false };
        let known = self.known();
        new.iter().all(|address| known.contains(address) || self.egress.is_closed(*address))
    }

    fn read(&self) -> HostResult<()> {
        let all = Rtnetlink::open().and_then(|mut rtnetlink| rtnetlink.addresses(None));
        let all = all.map_err(|error| {
            failed("netlink", "the addresses cannot be listed", error, "hostd needs CAP_NET_ADMIN")
        })?;
        self.note(all.into_iter().map(|address| address.local));
        Ok(())
    }

    /// Take note of the addresses on all of the host's interfaces. Those that are new are blocked in every clone.
    pub(super) fn note(&self, all: impl Iterator<Item = IpAddr>) {
        let open: BTreeSet<IpAddr> = all.filter(|address| !self.egress.is_closed(*address)).collect();
        let new: Vec<IpAddr> = {
            let mut known = self.known();
            let new = open.difference(&known).copied().collect();
            *known = open;
            new
        };
        if new.is_empty() {
            return;
        }
        for names in &self.slots {
            let pin = network::pin(&self.run.join(names.name.as_str()));
            if !netns::is_pinned(&pin) {
                continue;
            }
            if let Err(error) = File::open(&pin).and_then(|namespace| block(&namespace, new.clone())) {
                tracing::error!(clone = %names.name, %error, ?new, "the host's new addresses are not blocked yet");
                // The next inspection tries again.
                self.known().retain(|address| !new.contains(address));
            }
        }
    }

    /// The addresses for a new clone.
    pub(super) fn list(&self) -> Vec<IpAddr> {
        self.known().iter().copied().collect()
    }

    /// Block what the host got while a new clone's rules were loaded with `listed`.
    pub(super) fn block_newer(&self, namespace: &File, listed: &[IpAddr]) -> io::Result<()> {
        let newer: Vec<IpAddr> =
            self.known().iter().copied().filter(|address| !listed.contains(address)).collect();
        if newer.is_empty() { Ok(()) } else { block(namespace, newer) }
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn block(namespace: &File, addresses: Vec<IpAddr>) -> io::Result<()> {
    match netns::inside(namespace, move || CloneFilter::block(&addresses)) {
        // An earlier version's clone has no rules of its own, and a clone that is being made or removed has none now.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}
