//! The policy on Linux: loaded by `nft` as one transaction, changed and verified over netlink.
//!
//! All methods act in the calling thread's network namespace and read the kernel's state each time. Only open sockets are
//! kept, and the expected form of the ruleset in the kernel, which depends on the policy alone.

mod clone_filter;
mod conntrack;
mod counters;
mod netlink;
mod nft;
mod others;
mod sets;
mod snapshot;
mod sockets;
mod watch;

pub use clone_filter::CloneFilter;
pub use nft::NftError;
pub use others::{ClosedChain, Hook};
pub use watch::{Change, Watch};

use crate::policy::Policy;
use crate::{clone_rules, nftables};
use nix::sched::{CloneFlags, unshare};
use snapshot::Snapshot;
use sockets::Sockets;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why an operation of the firewall failed.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// Loading failed; the rules are what they were before.
    #[error("table inet {table} could not be loaded: {source}")]
    Load {
        /// The table.
        table: String,
        /// nft's reason.
        source: NftError,
    },
    /// The kernel refused a request or did not answer.
    #[error("{doing}: {source}")]
    Kernel {
        /// What was being done, with its object.
        doing: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Only addresses of slots can be members.
    #[error("{0} is no clone's address: only addresses of the policy's slots can be members")]
    NotASlot(IpAddr),
    /// The table does not exist, so nothing is blocked.
    #[error("table inet {table} is not loaded: load it again before any clone's link is up")]
    Gone {
        /// The table.
        table: String,
    },
    /// The loaded rules are not the rendered ones.
    #[error("table inet {table} was changed: {difference}; load it again")]
    Altered {
        /// The table.
        table: String,
        /// The first difference.
        difference: String,
    },
}

/// What [`Firewall::prove`] compared, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// Number of chains.
    pub chains: usize,
    /// Number of rules.
    pub rules: usize,
    /// Number of sets, including the nameless ones of rules.
    pub sets: usize,
}

/// Packets that the limits of connections refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Their clone opened connections too fast.
    pub rate: u64,
    /// Their clone had too many connections.
    pub count: u64,
}

/// The firewall of one policy.
#[derive(Debug)]
pub struct Firewall {
    policy: Policy,
    set6: String,
    /// The rendered ruleset as the kernel lists it, read in a network namespace of its own. The lock also prevents a load
    /// during a proof, which reads in several steps.
    expected: Mutex<Option<Snapshot>>,
    sockets: Sockets,
    /// Users that were admitted beside the policy's.
    callers: Mutex<BTreeSet<u32>>,
}

impl Firewall {
    /// Nothing is loaded.
    pub fn new(policy: Policy) -> Firewall {
        let (set6, callers) = (policy.set6(), Mutex::default());
        Firewall { set6, policy, expected: Mutex::new(None), sockets: Sockets::default(), callers }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Replaces the table by the rendered one with exactly these members, in one transaction: there is no moment without
    /// rules. Connections stay.
    pub fn load(&self, members: &BTreeSet<IpAddr>) -> Result<(), FirewallError> {
        self.check_slots(members)?;
        let _apart = self.expected();
        let rules = nftables::render(&self.policy, members, &self.callers());
        self.run_nft(&rules)
    }

    /// Whether a user was admitted, or is one of the policy's.
    pub fn admits(&self, user: u32) -> bool {
        self.policy.control_users.contains(&user) || self.callers().contains(&user)
    }

    /// Lets a user of this host call browserd in the clones, from now on and also after another load.
    pub fn admit(&self, user: u32) -> Result<(), FirewallError> {
        self.callers().insert(user);
        self.add_caller(user)
    }

    fn add_caller(&self, user: u32) -> Result<(), FirewallError> {
        let message = sets::add_message(&self.policy.table, nftables::CALLERS, &user.to_ne_bytes());
        self.sockets
            .with(|socket| socket.transaction(std::slice::from_ref(&message)))
            .map_err(|error| self.failed(format!("adding user {user} to {}", nftables::CALLERS), error))
    }

    /// Removes the table, after the last clone's link is gone.
    pub fn unload(&self) -> Result<(), FirewallError> {
        let table = &self.policy.table;
        let _apart = self.expected();
        // It is added before it is deleted, so that an absent table is success.
        self.run_nft(&format!("table inet {table}\ndelete table inet {table}\n"))
    }

    fn run_nft(&self, ruleset: &str) -> Result<(), FirewallError> {
        nft::load(ruleset).map_err(|source| FirewallError::Load { table: self.policy.table.clone(), source })
    }

    /// Verifies that the loaded table is the rendered one: every chain, rule, set and constant element as the kernel lists
    /// them. Members are not compared.
    pub fn prove(&self) -> Result<Proof, FirewallError> {
        let mut expected = self.expected();
        let found = self.read()?.ok_or_else(|| self.gone())?;
        let known = expected.as_ref().is_some_and(|expected| expected.difference(&found).is_none());
        if !known {
            // For the first proof, and before an alarm: an upgraded nft may translate the same text differently.
            let anew = self.load_elsewhere()?;
            if let Some(difference) = anew.difference(&found) {
                return Err(FirewallError::Altered { table: self.policy.table.clone(), difference });
            }
            *expected = Some(anew);
        }
        let (chains, rules, sets) = found.counts();
        Ok(Proof { chains, rules, sets })
    }

    /// Whether the loaded table differs from the last one that was proven; `None` if none was. Faster than
    /// [`Firewall::prove`] and without another process.
    pub fn differs(&self) -> Result<Option<bool>, FirewallError> {
        let expected = self.expected();
        let Some(expected) = expected.as_ref() else { return Ok(None) };
        Ok(Some(self.read()?.is_none_or(|found| expected.difference(&found).is_some())))
    }

    /// Translates the rules for the inside of the clones' network namespaces, see [`clone_rules`].
    pub fn clone_filter(&self) -> Result<CloneFilter, FirewallError> {
        let failed = |source| FirewallError::Kernel {
            doing: "translating the rules for the clones' namespaces".into(),
            source,
        };
        let compiled = in_new_network(|| {
            nft::load(&clone_rules::render(&self.policy))
                .map_err(|source| FirewallError::Load { table: clone_rules::TABLE_NAME.into(), source })?;
            CloneFilter::read().map_err(failed)
        });
        compiled.map_err(failed)?
    }

    /// How many packets the limits of connections have refused since the table was loaded.
    pub fn refused(&self) -> Result<Refused, FirewallError> {
        let packets = |name| {
            let read = self.sockets.with(|socket| counters::packets(socket, &self.policy.table, name));
            read.map_err(|error| self.failed(format!("reading counter {name}"), error))
        };
        Ok(Refused { rate: packets(nftables::OVER_RATE)?, count: packets(nftables::OVER_COUNT)? })
    }

    /// Adds a clone with all its addresses or none. Adding a member again is success.
    pub fn add(&self, clone: &[IpAddr]) -> Result<(), FirewallError> {
        self.check_slots(clone)?;
        let messages: Vec<_> = clone
            .iter()
            .map(|member| {
                sets::add_message(&self.policy.table, self.set_of(*member), &sets::address_key(*member))
            })
            .collect();
        self.sockets
            .with(|socket| socket.transaction(&messages))
            .map_err(|error| self.failed(format!("adding {clone:?} to {}", self.policy.set), error))
    }

    /// Removes a clone's addresses from the set, so that none of its packets passes any more. Removing an absent member is
    /// success.
    pub fn remove(&self, clone: &[IpAddr]) -> Result<(), FirewallError> {
        self.check_slots(clone)?;
        let failed = |error| self.failed(format!("removing {clone:?} from {}", self.policy.set), error);
        let table = &self.policy.table;
        let addresses = clone.iter().flat_map(|member| {
            sets::remove_messages(table, self.set_of(*member), &sets::address_key(*member))
        });
        // What the kernel has counted of the clone goes too.
        let links = self.policy.slots.iter().filter(|slot| slot.addresses().any(|own| clone.contains(&own)));
        let counts = links.flat_map(|slot| {
            let key = sets::interface_key(&slot.interface);
            nftables::LIMIT_SETS.into_iter().flat_map(move |set| sets::remove_messages(table, set, &key))
        });
        let messages: Vec<_> = addresses.chain(counts).collect();
        match self.sockets.with(|socket| socket.transaction(&messages)) {
            // Without the set there are no members.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map_err(failed),
        }
    }

    /// Removes the entries of a clone from connection tracking, once. The clone must not be a member any more, and its link
    /// should be gone, or new entries can appear.
    pub fn end_connections(&self, clone: &[IpAddr]) -> Result<(), FirewallError> {
        let ended = self.sockets.with(|socket| conntrack::end(socket, clone));
        ended.map_err(|source| FirewallError::Kernel {
            doing: format!("ending the connections of {clone:?}"),
            source,
        })
    }

    /// Removes all entries of these addresses from connection tracking, in both directions, translated ones too, and checks
    /// that none is left. For many addresses: it reads the table once instead of once per address.
    pub fn end_all_connections(&self, addresses: &[IpAddr]) -> Result<(), FirewallError> {
        let ended = self.sockets.with(|socket| conntrack::end_all(socket, addresses));
        ended.map_err(|source| FirewallError::Kernel {
            doing: "ending the clones' connections".into(),
            source,
        })
    }

    /// The current members.
    pub fn members(&self) -> Result<BTreeSet<IpAddr>, FirewallError> {
        let mut members = BTreeSet::new();
        for set in [&self.policy.set, &self.set6] {
            let elements = self.sockets.with(|socket| sets::elements(socket, &self.policy.table, set));
            let elements = elements.map_err(|error| self.failed(format!("reading set {set}"), error))?;
            members.extend(elements.iter().filter_map(sets::address));
        }
        Ok(members)
    }

    /// Which of these addresses are members. The time does not depend on the number of members.
    pub fn members_among(&self, addresses: &[IpAddr]) -> Result<BTreeSet<IpAddr>, FirewallError> {
        let mut members = BTreeSet::new();
        for address in addresses {
            let set = self.set_of(*address);
            let found = self.sockets.with(|socket| sets::contains(socket, &self.policy.table, set, *address));
            if found.map_err(|error| self.failed(format!("reading {address} in set {set}"), error))? {
                members.insert(*address);
            }
        }
        Ok(members)
    }

    /// How many entries of a clone connection tracking has.
    pub fn connections(&self, clone: &[IpAddr]) -> Result<usize, FirewallError> {
        let states = self.sockets.with(|socket| conntrack::states(socket, clone));
        let states = states.map_err(|source| FirewallError::Kernel {
            doing: format!("reading the connections of {clone:?}"),
            source,
        })?;
        Ok(states.len())
    }

    /// Which of these addresses have entries in connection tracking. The table is read once, however many addresses there
    /// are.
    pub fn connected(&self, addresses: &[IpAddr]) -> Result<BTreeSet<IpAddr>, FirewallError> {
        let found = self.sockets.with(|socket| conntrack::connected(socket, addresses));
        found.map_err(|source| FirewallError::Kernel { doing: "reading the connections".into(), source })
    }

    /// The chains of other tables that drop or reject what their own rules do not accept.
    pub fn closed_chains_of_others(&self) -> Result<Vec<ClosedChain>, FirewallError> {
        others::closed_chains(&self.policy.table).map_err(|source| FirewallError::Kernel {
            doing: "listing the chains of all tables".into(),
            source,
        })
    }

    /// Adds the admitted users again, after another program removed them.
    pub fn admit_again(&self) -> Result<(), FirewallError> {
        let callers = self.callers().clone();
        callers
            .into_iter()
            .chain(self.policy.control_users.iter().copied())
            .try_for_each(|user| self.add_caller(user))
    }

    /// Subscribes to changes of the table.
    pub fn watch(&self) -> Result<Watch, FirewallError> {
        Watch::new(&self.policy.table, self.sockets.clone()).map_err(|source| FirewallError::Kernel {
            doing: format!("watching table inet {}", self.policy.table),
            source,
        })
    }

    fn check_slots<'a>(&self, members: impl IntoIterator<Item = &'a IpAddr>) -> Result<(), FirewallError> {
        match members.into_iter().find(|member| !self.policy.is_slot_address(**member)) {
            Some(stranger) => Err(FirewallError::NotASlot(*stranger)),
            None => Ok(()),
        }
    }

    fn set_of(&self, member: IpAddr) -> &str {
        if member.is_ipv4() { &self.policy.set } else { &self.set6 }
    }

    fn gone(&self) -> FirewallError {
        FirewallError::Gone { table: self.policy.table.clone() }
    }

    fn failed(&self, doing: String, source: io::Error) -> FirewallError {
        if source.raw_os_error() == Some(libc::ENOENT) {
            self.gone()
        } else {
            FirewallError::Kernel { doing, source }
        }
    }

    fn read(&self) -> Result<Option<Snapshot>, FirewallError> {
        let [rate, count] = nftables::LIMIT_SETS;
        let changing = [self.policy.set.as_str(), &self.set6, nftables::CALLERS, rate, count];
        Snapshot::read(&self.policy.table, &changing).map_err(|source| FirewallError::Kernel {
            doing: format!("reading table inet {}", self.policy.table),
            source,
        })
    }

    /// What a proof compares with: the ruleset loaded into another network namespace and read back from the same kernel. So
    /// neither the daemon's memory nor a mark inside the table has to be trusted.
    fn load_elsewhere(&self) -> Result<Snapshot, FirewallError> {
        let snapshot = in_new_network(|| {
            self.run_nft(&nftables::render(&self.policy, [], &BTreeSet::new()))?;
            self.read()?.ok_or_else(|| self.gone())
        });
        snapshot.map_err(|source| FirewallError::Kernel {
            doing: "making a network namespace to compare with".into(),
            source,
        })?
    }

    fn callers(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expected(&self) -> MutexGuard<'_, Option<Snapshot>> {
        // A panic leaves either nothing or a whole snapshot in it.
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` in a thread with a new network namespace, which ends with the thread.
fn in_new_network<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
