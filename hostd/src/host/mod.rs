//! The host behind one trait: what FreeBSD and Linux both can do for a clone, and how to look at it.
//!
//! Every effect has a way to observe it. The lifecycle never believes an effect's `Ok`: it looks.
//! All effects are idempotent: ensuring what is there and removing what is absent succeed. None of
//! them touches an object that carries another identity than the clone's own.

pub mod command;
#[cfg(feature = "fake-host")]
pub mod fake;
pub mod freebsd;
#[cfg(target_os = "linux")]
pub mod linux;
#[cfg_attr(target_os = "linux", path = "linux/native.rs")]
#[cfg_attr(not(target_os = "linux"), path = "freebsd/native.rs")]
mod native;
pub mod zfs;

pub use native::{helper, templates};

use crate::api::{CloneId, EgressHealth, Finding, Limits, SnapshotName};
use crate::slot::{Slot, SlotNames};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The parts a clone consists of on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Its files.
    Storage,
    /// Mounts below its folder, other than its storage itself.
    Mounts,
    /// Its resource limits.
    Limits,
    /// Its interface pair and addresses.
    Network,
    /// Its membership in the table that grants egress, and its connections' states.
    Egress,
    /// The jail (FreeBSD) or the sandbox's namespaces and cgroup (Linux).
    Jail,
    /// Its processes.
    Processes,
    /// Whether the browser service answers. It is asked, so this takes as long as it likes to answer: nothing of a clone is
    /// left that its processes do not show.
    Service,
}

impl Part {
    /// Every part of which something can be left. Nobody is asked anything to look at them.
    pub const ALL: &'static [Part] = &[
        Part::Storage,
        Part::Mounts,
        Part::Limits,
        Part::Network,
        Part::Egress,
        Part::Jail,
        Part::Processes,
    ];

    /// The word used in errors and logs.
    pub fn word(self) -> &'static str {
        match self {
            Part::Storage => "storage",
            Part::Mounts => "mounts",
            Part::Limits => "limits",
            Part::Network => "network",
            Part::Egress => "egress",
            Part::Jail => "jail",
            Part::Processes => "processes",
            Part::Service => "service",
        }
    }
}

/// What a clone shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneSpec {
    /// Names and addresses.
    pub names: SlotNames,
    /// Its identity, to be marked on what is made.
    pub clone_id: CloneId,
    /// The template's snapshot.
    pub snapshot: SnapshotName,
    /// Its limits.
    pub limits: Limits,
    /// Its browser loads a page of its own before it is called ready, so that its owner's first page loads faster: a clone
    /// that is made ahead has the time.
    pub warm_up: bool,
}

/// Whose an object is, as far as the object itself tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// It carries this clone's mark.
    Clone(CloneId),
    /// It is of our making (our template's clone, our interface's name) but carries no mark yet.
    Unmarked,
    /// It only looks like ours; the text says why it is not.
    Foreign(String),
}

/// A clone's files as seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedStorage {
    /// Whose it is.
    pub identity: Identity,
    /// The template's snapshot it came from.
    pub snapshot: Option<SnapshotName>,
    /// Whether it is mounted where it belongs.
    pub mounted: bool,
    /// How old it is, where the host can tell.
    pub age: Option<Duration>,
}

/// A clone's interfaces as seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedNetwork {
    /// Whose they are.
    pub identity: Identity,
    /// Both ends there, addressed, attached and up. False: half made.
    pub complete: bool,
}

/// A clone's jail as seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedJail {
    /// Whose it is.
    pub identity: Identity,
    /// Stopped, but the kernel still holds something of it.
    pub dying: bool,
}

/// One clone as the host shows it now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedClone {
    /// Its files.
    pub storage: Option<ObservedStorage>,
    /// Mounts below its folder.
    pub mounts: BTreeSet<String>,
    /// Its limits, if any rule is there. What it may add to its disk is left out where the storage keeps that.
    pub limits: Option<Limits>,
    /// How many of its processes the system ended because it was at its memory limit. Looked at with its limits.
    pub oom_kills: u64,
    /// Its interfaces.
    pub network: Option<ObservedNetwork>,
    /// Whether its address is in the table.
    pub egress: bool,
    /// Whether the firewall still knows connections of its address.
    pub connections: bool,
    /// Its jail. A dying one is only reported when no live one has the name.
    pub jail: Option<ObservedJail>,
    /// Whether what runs in the jail is frozen. Looked at with [`Part::Jail`], and a host may need [`Part::Processes`] for
    /// it too; never true without a jail.
    pub frozen: bool,
    /// Processes proven to be inside it. A host may leave them out when [`Part::Jail`] is not asked for too: they are
    /// proven by the jail they are in.
    pub processes: BTreeSet<u32>,
    /// Whether the browser service answers, which a frozen one does not. Only looked at when asked for
    /// [`Part::Service`].
    pub service_ready: bool,
}

impl ObservedClone {
    /// Nothing at all.
    pub fn is_absent(&self) -> bool {
        *self == ObservedClone::default()
    }

    /// The parts that are there.
    pub fn parts(&self) -> Vec<Part> {
        let there = |part: &Part| match part {
            Part::Storage => self.storage.is_some(),
            Part::Mounts => !self.mounts.is_empty(),
            Part::Limits => self.limits.is_some(),
            Part::Network => self.network.is_some(),
            Part::Egress => self.egress || self.connections,
            Part::Jail => self.jail.is_some(),
            Part::Processes => !self.processes.is_empty(),
            Part::Service => self.service_ready,
        };
        Part::ALL.iter().copied().filter(there).collect()
    }
}

/// Everything of the pool that the host shows, taken in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// Every slot of which anything is there.
    pub clones: BTreeMap<Slot, ObservedClone>,
    /// Storage that was moved aside and still has to go.
    pub aside: BTreeSet<CloneId>,
    /// How the firewall is.
    pub egress: EgressHealth,
}

/// Packets that the limits of the clones' connections refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RefusedPackets {
    /// Their clone opened connections too fast.
    pub rate: u64,
    /// Their clone had too many connections.
    pub count: u64,
}

/// Where a clone's browser service answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceEndpoint {
    /// Its address.
    pub endpoint: String,
    /// Its raw CDP, if it has any.
    pub cdp_endpoint: Option<String>,
}

/// What a service says its raw CDP endpoint is, if that is at its own address and plain: a clone must not send its callers
/// elsewhere.
pub(crate) fn cdp_endpoint(address: SocketAddr, said: &str) -> Option<String> {
    let id = said.strip_prefix(&format!("ws://{address}/devtools/browser/"))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    ((1..=64).contains(&id.len()) && id.bytes().all(plain)).then(|| said.to_owned())
}

/// How hard to pull at a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only what is not in use.
    Gentle,
    /// In use or not.
    Force,
}

/// What kind of failure it was, as far as the lifecycle decides on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostErrorKind {
    /// In use; may work later.
    Busy,
    /// Something of another identity is in the way.
    Foreign,
    /// The disk or pool is full.
    NoSpace,
    /// A command did not end in time.
    Timeout,
    /// The template or snapshot is missing or not quiescent.
    Template,
    /// The host lacks something: rules, a kernel feature, a tool.
    NotReady,
    /// Anything else.
    Failed,
}

/// A failure on the host: which object, what happened, what caused it, what to do.
///
/// The cause is kept as a source, down to the kernel's errno. [`chain`] prints all of it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{object}: {message}")]
pub struct HostError {
    /// What kind.
    pub kind: HostErrorKind,
    /// The dataset, interface, jail, table or file.
    pub object: String,
    /// What happened. It does not repeat the source.
    pub message: String,
    /// What the operator can do.
    pub hint: String,
    /// What caused it: the error of the system call, the tool or the parser.
    pub source: Option<Arc<dyn Error + Send + Sync>>,
}

impl HostError {
    /// A failure of this kind.
    pub fn new(
        kind: HostErrorKind,
        object: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { kind, object: object.into(), message: message.into(), hint: hint.into(), source: None }
    }

    /// The same failure with its cause.
    pub fn caused_by(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), ..self }
    }
}

/// An error with all its sources in one line: `object: message: cause: cause of the cause`.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// Result of everything the host does.
pub type HostResult<T> = Result<T, HostError>;

/// A host that can hold clones.
///
/// Methods may run at the same time for different clones; the lifecycle runs at most one at a time
/// for the same clone. A method whose future is dropped must stop its work (kill its command).
pub trait Host: Send + Sync + 'static {
    /// The drivers at work, such as `storage` → `zfs`, for status and logs.
    fn drivers(&self) -> BTreeMap<String, String>;

    /// Which of these limits this host does not keep, by their names in the contract. Nobody may believe they are on.
    fn limits_not_kept(&self, _: &Limits) -> Vec<String> {
        Vec::new()
    }

    /// Everything a create needs, looked at one by one.
    fn checks(&self) -> impl Future<Output = Vec<Finding>> + Send;

    /// Prove that this snapshot of the template can be cloned now: there, quiescent, credential-free.
    fn check_template(&self, snapshot: &SnapshotName) -> impl Future<Output = HostResult<()>> + Send;

    /// What this snapshot of the template is now: a text that is another one whenever a clone made of it would be another.
    /// Asked for at every claim from the warm pool, so it must be quick. Where snapshots cannot change, their name is enough.
    fn template_version(&self, snapshot: &SnapshotName) -> impl Future<Output = HostResult<String>> + Send {
        let named = snapshot.to_string();
        async move { Ok(named) }
    }

    /// Look at the whole pool. The number of commands must not depend on the number of clones.
    fn inventory(&self) -> impl Future<Output = HostResult<Inventory>> + Send;

    /// Look at some parts of one slot. Parts not asked for are left out of the answer.
    fn inspect(
        &self,
        names: &SlotNames,
        parts: &[Part],
    ) -> impl Future<Output = HostResult<ObservedClone>> + Send;

    /// Look at a slot that is about to be used. A host whose effects refuse whatever is in their way may answer from a
    /// recent look at the whole pool, as long as that showed nothing.
    fn inspect_before_create(
        &self,
        names: &SlotNames,
    ) -> impl Future<Output = HostResult<ObservedClone>> + Send {
        self.inspect(names, Part::ALL)
    }

    /// Whether the step that makes this part answers with the kernel's own account of what it did, so that a look right
    /// after it would ask the same question twice. Only for parts whose lack takes something from the clone and gives
    /// it nothing: the next look at the pool puts them right.
    fn answers_for(&self, _part: Part) -> bool {
        false
    }

    /// Whether the making of a part has to wait until an earlier one is there. Without a word to the contrary they are
    /// made one after the other.
    fn waits_for(&self, _part: Part, _earlier: Part) -> bool {
        true
    }

    /// How the firewall is.
    fn egress_health(&self) -> impl Future<Output = HostResult<EgressHealth>> + Send;

    /// How many packets the limits of the clones' connections have refused since the rules were loaded. Read at every
    /// scrape of the metrics, so it must be quick. `None` if the host cannot tell.
    fn refused_packets(&self) -> Option<RefusedPackets> {
        None
    }

    /// Ends when the host noticed something that must not wait for the timer, such as lost rules.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Put the rules and the table back; while that fails, take the clones' links down.
    fn repair_egress(&self) -> impl Future<Output = HostResult<EgressHealth>> + Send;

    /// Clone the template's files, marked with the clone's identity, with its quota.
    fn ensure_storage(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Put the limits in place, before anything runs under them.
    fn ensure_limits(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Whether [`Host::ensure_limits`] can change a running clone's limits from these to those, so that they hold for what
    /// runs in it already.
    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        from == to
    }

    /// Make the interface pair, addressed and attached.
    fn ensure_network(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Put the address into the table that grants egress.
    fn ensure_egress(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Start the jail.
    fn ensure_jail(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Start the browser service and wait until it is ready; answers where it is.
    fn ensure_service(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<ServiceEndpoint>> + Send;

    /// Take the address out of the table, so that no packet of the clone passes any more, also of connections in both
    /// directions and behind NAT. What the system remembers of them may stay until the clone has no interface.
    fn cut_egress(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// End everything that runs inside the clone, frozen or not. When this returns `Ok`, nothing in the clone can execute
    /// another instruction; the kernel may still be releasing what the processes held. The host decides how: by asking
    /// the service first or by killing at once. Only processes that are proven to be inside are signalled.
    fn end_processes(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Freeze everything in the clone, so that it uses no processor time: see [`ObservedClone::frozen`].
    fn freeze(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Resume a frozen clone; a clone that is not frozen is left as it is. Every create from the warm pool waits for this.
    fn thaw(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Whether the browser service answers now: as [`Part::Service`] tells, but nothing else is looked at, because every
    /// create from the warm pool waits for this.
    fn service_answers(&self, names: &SlotNames) -> impl Future<Output = HostResult<bool>> + Send {
        async { Ok(self.inspect(names, &[Part::Service]).await?.service_ready) }
    }

    /// Unmount what is below the clone's folder, deepest first.
    fn unmount(&self, names: &SlotNames, how: Unmount) -> impl Future<Output = HostResult<()>> + Send;

    /// Remove the jail itself, after [`Host::end_processes`]. When this returns `Ok`, the kernel has released every process
    /// of the clone and, where it can, the jail.
    fn stop_jail(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Remove the interface pair, half-made ones too.
    fn remove_network(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Remove the limits.
    fn remove_limits(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Destroy the files: one try, without force. Busy is an error of kind [`HostErrorKind::Busy`].
    fn destroy_storage(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Move stubborn files aside under their identity, so that the slot is free.
    fn move_storage_aside(
        &self,
        names: &SlotNames,
        clone_id: &CloneId,
    ) -> impl Future<Output = HostResult<()>> + Send;

    /// Destroy files that were moved aside: one try.
    fn destroy_aside(&self, clone_id: &CloneId) -> impl Future<Output = HostResult<()>> + Send;

    /// Wait until no work is left of calls whose future was dropped before its end. A host whose work ends with the future
    /// has none.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// hostd ends: take away what only a running one needs. Clones that are left keep all they have.
    fn close(&self) {}
}
