//! The trait [`Host`]: what FreeBSD and Linux do for a clone, and how the result is inspected.
//!
//! Every effect can be inspected. The lifecycle does not trust an effect's `Ok`: success is decided by inspecting the host
//! afterwards. All effects are idempotent: ensuring what exists and removing what is absent succeed. No effect touches an
//! object with another identity than the clone's.

pub mod command;
#[cfg(feature = "fake-host")]
pub mod fake;
pub mod freebsd;
#[cfg(target_os = "linux")]
pub mod linux;
#[cfg_attr(target_os = "linux", path = "linux/native.rs")]
#[cfg_attr(not(target_os = "linux"), path = "freebsd/native.rs")]
mod native;
mod resolvers;
pub mod zfs;

pub use native::{helper, templates};

use crate::api::{CloneId, CloneSecret, EgressHealth, Finding, Limits, SnapshotName};
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
    /// Whether the browser service answers. A slow service makes this slow. It is not needed to find leftovers: a service
    /// that is left shows as a process.
    Service,
}

impl Part {
    /// Every part that can be left behind. Their inspection does not wait for the clone.
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

/// The specification of a clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneSpec {
    /// Names and addresses.
    pub names: SlotNames,
    /// Its identity, the label of its objects.
    pub clone_id: CloneId,
    /// The template's snapshot.
    pub snapshot: SnapshotName,
    /// Its limits.
    pub limits: Limits,
    /// When it has to be gone, as time since boot.
    pub deadline: Duration,
    /// What its browser service requires of callers.
    pub secret: Option<CloneSecret>,
    /// Whether its browser loads a page before it counts as ready, so that the owner's first page loads faster. Only members
    /// of the warm pool have the time.
    pub warm_up: bool,
}

/// The owner of an object, as the object itself shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// It has this clone's label.
    Clone(CloneId),
    /// hostd made it (a clone of the template, a slot's interface name), but it has no label yet.
    Unmarked,
    /// hostd did not make it. The text says why.
    Foreign(String),
}

/// A clone's files, as inspected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedStorage {
    /// Its owner.
    pub identity: Identity,
    /// The snapshot of the template that it was made from.
    pub snapshot: Option<SnapshotName>,
    /// Whether it is mounted at the clone's folder.
    pub mounted: bool,
    /// Its age, if the host knows it.
    pub age: Option<Duration>,
}

/// A clone's interfaces, as inspected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedNetwork {
    /// Their owner.
    pub identity: Identity,
    /// Whether both ends exist, have addresses, are attached and up.
    pub complete: bool,
}

/// A clone's jail, as inspected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedJail {
    /// Its owner.
    pub identity: Identity,
    /// It was stopped, but the kernel has not released it yet.
    pub dying: bool,
}

/// One clone, as inspected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedClone {
    /// Its files.
    pub storage: Option<ObservedStorage>,
    /// Mounts below its folder.
    pub mounts: BTreeSet<String>,
    /// Its limits, if there are any. The disk quota is left out if the storage enforces it.
    pub limits: Option<Limits>,
    /// How many of its processes the system killed because it reached its memory limit. Inspected with [`Part::Limits`].
    pub oom_kills: u64,
    /// Its interfaces.
    pub network: Option<ObservedNetwork>,
    /// Whether its address is in the table.
    pub egress: bool,
    /// Whether the firewall still has states of its addresses.
    pub connections: bool,
    /// Its jail. A dying one is only reported when no live one has the name.
    pub jail: Option<ObservedJail>,
    /// Whether the jail is frozen. Inspected with [`Part::Jail`], and a host may need [`Part::Processes`] too. Never true
    /// without a jail.
    pub frozen: bool,
    /// Processes that are proven to be inside it. A host may leave them out if [`Part::Jail`] is not inspected too, because
    /// the jail proves them.
    pub processes: BTreeSet<u32>,
    /// Whether the browser service answers; a frozen one does not. Only inspected with [`Part::Service`].
    pub service_ready: bool,
}

impl ObservedClone {
    /// Whether nothing of it exists.
    pub fn is_absent(&self) -> bool {
        *self == ObservedClone::default()
    }

    /// The parts that exist.
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

/// All slots, inspected together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// Every slot that has any object.
    pub clones: BTreeMap<Slot, ObservedClone>,
    /// Storage that was moved aside and has to be destroyed.
    pub aside: BTreeSet<CloneId>,
    /// The state of the firewall rules.
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

/// The endpoint of a clone's browser service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceEndpoint {
    /// Its address.
    pub endpoint: String,
    /// Its raw CDP, if it has any, without the secret.
    pub cdp_endpoint: Option<String>,
}

/// The raw CDP endpoint that a service reports, if it is well-formed and at the service's own address: a clone must not send
/// its callers elsewhere.
pub(crate) fn cdp_endpoint(address: SocketAddr, reported: &str) -> Option<String> {
    let id = reported.strip_prefix(&format!("ws://{address}/devtools/browser/"))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    ((1..=64).contains(&id.len()) && id.bytes().all(plain)).then(|| reported.to_owned())
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Fails if the mount is in use.
    Gentle,
    /// Also if the mount is in use.
    Force,
}

/// The kind of a failure. The lifecycle's decisions depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostErrorKind {
    /// In use; may work later.
    Busy,
    /// An object with another identity is in the way.
    Foreign,
    /// The disk or pool is full.
    NoSpace,
    /// A command exceeded its deadline.
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

/// The result of a host operation.
pub type HostResult<T> = Result<T, HostError>;

/// A host that can hold clones.
///
/// Methods may run concurrently for different clones. For one clone the lifecycle runs one at a time, except for steps that
/// [`Host::waits_for`] allows in parallel. A method whose future is dropped stops its work (kills its command) or finishes it
/// before [`Host::settle`] returns.
pub trait Host: Send + Sync + 'static {
    /// The drivers in use, such as `storage` → `zfs`, for status and logs.
    fn drivers(&self) -> BTreeMap<String, String>;

    /// Which of these limits this host does not enforce, by their names in the contract.
    fn limits_not_kept(&self, _: &Limits) -> Vec<String> {
        Vec::new()
    }

    /// Check everything that a create needs.
    fn checks(&self) -> impl Future<Output = Vec<Finding>> + Send;

    /// Verify that this snapshot of the template can be cloned: it exists, is quiescent and has no credentials.
    fn check_template(&self, snapshot: &SnapshotName) -> impl Future<Output = HostResult<()>> + Send;

    /// The version of this snapshot of the template: a text that changes whenever clones made from it would change. Every
    /// bind asks for it, so it must be quick. If snapshots cannot change, their name is enough.
    fn template_version(&self, snapshot: &SnapshotName) -> impl Future<Output = HostResult<String>> + Send {
        let named = snapshot.to_string();
        async move { Ok(named) }
    }

    /// Inspect all slots. The number of commands must not depend on the number of clones.
    fn inventory(&self) -> impl Future<Output = HostResult<Inventory>> + Send;

    /// Inspect some parts of one slot. Other parts are left out of the result.
    fn inspect(
        &self,
        names: &SlotNames,
        parts: &[Part],
    ) -> impl Future<Output = HostResult<ObservedClone>> + Send;

    /// Inspect a slot that is about to be used. A host whose effects refuse existing objects may use a recent inspection of
    /// all slots, if that showed nothing in this slot.
    fn inspect_before_create(
        &self,
        names: &SlotNames,
    ) -> impl Future<Output = HostResult<ObservedClone>> + Send {
        self.inspect(names, Part::ALL)
    }

    /// Whether the step that makes this part already reads the result back from the kernel, so that an inspection after it
    /// would repeat the query. Only for parts whose absence takes something from the clone: the next inspection of all slots
    /// repairs them.
    fn answers_for(&self, _part: Part) -> bool {
        false
    }

    /// Whether the step that makes a part has to wait for an earlier one. By default steps are sequential.
    fn waits_for(&self, _part: Part, _earlier: Part) -> bool {
        true
    }

    /// The state of the firewall rules.
    fn egress_health(&self) -> impl Future<Output = HostResult<EgressHealth>> + Send;

    /// How many packets the limits of the clones' connections have refused since the rules were loaded. Read at every
    /// scrape of the metrics, so it must be quick. `None` if the host cannot tell.
    fn refused_packets(&self) -> Option<RefusedPackets> {
        None
    }

    /// Completes when the host noticed something that must not wait for the timer, such as lost rules.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Load the rules and the table again. While that fails, the clones' links are taken down.
    fn repair_egress(&self) -> impl Future<Output = HostResult<EgressHealth>> + Send;

    /// Clone the template's files, with the clone's label and its quota.
    fn ensure_storage(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Set the limits, before any process runs under them.
    fn ensure_limits(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Whether [`Host::ensure_limits`] can change a running clone's limits, so that they hold for its existing processes.
    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        from == to
    }

    /// Make the interface pair, with addresses, attached to the jail.
    fn ensure_network(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Add the clone's addresses to the table that grants egress.
    fn ensure_egress(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Start the jail.
    fn ensure_jail(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<()>> + Send;

    /// Start the browser service and wait until it is ready. Returns its endpoint.
    fn ensure_service(&self, spec: &CloneSpec) -> impl Future<Output = HostResult<ServiceEndpoint>> + Send;

    /// Tell a running clone's jail its new deadline. A host whose jails end at their deadline by themselves does so a moment
    /// later than hostd, so that no clone outlives its deadline while hostd does not run.
    fn set_deadline(
        &self,
        _names: &SlotNames,
        _deadline: Duration,
    ) -> impl Future<Output = HostResult<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Remove the clone's addresses from the table, so that no packet of the clone passes any more, also of existing
    /// connections in both directions and behind NAT. Their states may stay until the clone has no interface.
    fn cut_egress(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// End everything that runs inside the clone, frozen or not. When this returns `Ok`, nothing in the clone can execute
    /// another instruction; the kernel may still be releasing what the processes held. The host decides how: by asking
    /// the service first or by killing at once. Only processes that are proven to be inside are signalled.
    fn end_processes(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Freeze everything in the clone, so that it uses no processor time: see [`ObservedClone::frozen`].
    fn freeze(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Resume a frozen clone; a clone that is not frozen is left as it is. Every create from the warm pool waits for this.
    /// Its jail learns its deadline first, because a member's own may have passed: see [`Host::set_deadline`].
    fn thaw(&self, names: &SlotNames, deadline: Duration) -> impl Future<Output = HostResult<()>> + Send;

    /// Whether the browser service answers now. It is [`Part::Service`] alone, because every create from the warm pool waits
    /// for this.
    fn service_answers(&self, names: &SlotNames) -> impl Future<Output = HostResult<bool>> + Send {
        async { Ok(self.inspect(names, &[Part::Service]).await?.service_ready) }
    }

    /// Unmount everything below the clone's folder, deepest first.
    fn unmount(&self, names: &SlotNames, how: Unmount) -> impl Future<Output = HostResult<()>> + Send;

    /// Remove the jail itself, after [`Host::end_processes`]. When this returns `Ok`, the kernel has released every process
    /// of the clone and, where it can, the jail.
    fn stop_jail(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Remove the interface pair, also if it is incomplete.
    fn remove_network(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Remove the limits.
    fn remove_limits(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Destroy the files: one attempt, without force. Busy files are an error of kind [`HostErrorKind::Busy`].
    fn destroy_storage(&self, names: &SlotNames) -> impl Future<Output = HostResult<()>> + Send;

    /// Move files that cannot be destroyed aside, under their identity, so that the slot becomes free.
    fn move_storage_aside(
        &self,
        names: &SlotNames,
        clone_id: &CloneId,
    ) -> impl Future<Output = HostResult<()>> + Send;

    /// Destroy files that were moved aside: one attempt.
    fn destroy_aside(&self, clone_id: &CloneId) -> impl Future<Output = HostResult<()>> + Send;

    /// Wait for the work of calls whose future was dropped before its end. A host whose work ends with the future has none.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Let a user of this host connect to the endpoints of clones, unless the configuration lists the users.
    fn admit(&self, _user: u32) -> impl Future<Output = HostResult<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Called when hostd stops: release what only a running hostd needs. Remaining clones keep everything.
    fn close(&self) {}
}
