//! The Linux host: an overlay per clone, a network namespace with one link, a place in an nftables set, a cgroup, and a
//! supervisor that holds the browser's sandbox.
//!
//! | part | object | whose it is | module |
//! |---|---|---|---|
//! | storage | overlay, its changes bounded in size | a mark beside it | [`storage`], [`template`] |
//! | | or two ZFS clones | a mark on them | [`zfs`], [`super::zfs`] |
//! | limits | cgroup v2, or rlimits | the slot's name | [`limits`], [`cgroup`] |
//! | network | namespace and pair of links | the link's alias | [`network`], [`netns`], [`rtnl`] |
//! | egress | members of an nftables set | the slot's address | [`egress`] |
//! | jail | supervisor process | the file it locks | [`jail`], [`supervisor`], [`freezer`] |
//! | service | browser in the sandbox | the jail it is in | [`processes`] |
//!
//! Everything is done by system calls and netlink. The one program that is run is `nft`, to load the rules as one
//! transaction. All work blocks, shortly, so it is done on threads made for that.

mod apart;
mod blocking_work;
mod cgroup;
mod checks;
mod driver;
mod egress;
mod errors;
mod files;
mod freezer;
mod jail;
mod limits;
mod mounts;
mod netns;
mod network;
mod processes;
mod rtnl;
mod statmount;
mod storage;
mod supervisor;
mod template;
pub mod templates;
mod zfs;

pub use supervisor::main as supervise;
pub use template::{create as create_template, list as list_templates, remove as remove_template};

use super::zfs::datasets::Datasets;
use super::{
    CloneSpec, Host, HostError, HostErrorKind, HostResult, Inventory, ObservedClone, Part, RefusedPackets,
    ServiceEndpoint, Unmount, chain,
};
use crate::api::{CloneId, EgressHealth, Finding, Limits, SnapshotName};
use crate::config::Config;
use crate::slot::{Slot, SlotNames, Slots};
use apart::MountIsolation;
use driver::Storage;
use egress::Egress;
use errors::{ErrorContext, failed};
use freezer::{Freezer, Subject};
use kernel::pidfd::Exit;
use limits::LimitBackend;
use processes::ProcessHandles;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use supervisor::Orders;

/// How long the kernel may take to end killed processes.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The host that hostd runs on.
#[derive(Debug, Clone)]
pub struct LinuxHost(Arc<LinuxHostState>);

#[derive(Debug)]
struct LinuxHostState {
    pool: Slots,
    config: Config,
    storage: Storage,
    keeper: LimitBackend,
    freezer: Freezer,
    egress: Arc<Egress>,
    /// The clones' run folders.
    run: PathBuf,
    /// Where this storage's mounts can be kept apart.
    apart: Option<MountIsolation>,
    /// Processes that were killed and are not known to be gone.
    killed: Mutex<BTreeMap<Slot, ProcessHandles>>,
}

impl LinuxHost {
    /// Look at what the host offers, and put the packet filter in place before anything can need it.
    ///
    /// What is missing is no error here: hostd runs and says what to do, and creates are refused.
    pub fn open(config: &Config, pool: &Slots) -> HostResult<LinuxHost> {
        let run = config.paths.state.join("run");
        let hint = "look at the folder's file system";
        files::make_folders(&run, 0o700)
            .map_err(|error| failed(run.display().to_string(), "no run folder", error, hint))?;
        let clones = &config.pool.clones_dir;
        let storage = Storage::open(config, pool)
            .map_err(|error| failed(clones.display().to_string(), "no folder for the clones", error, hint))?;
        let apart = storage.own_folder().and_then(|clones| MountIsolation::keep(&[clones, &run]));
        let egress = Arc::new(Egress::new(pool, &config.egress)?);
        let keeper = LimitBackend::find(&config.linux.cgroup);
        if limits::has_rates(&config.clone_limits.grant(None)) {
            tracing::warn!("clone_limits: {}", limits::RATES);
        }
        egress.note_host_addresses(network::Seen::now(None)?.local_addresses());
        if let Err(error) = egress.repair().and_then(|_| egress.clone_filter()) {
            tracing::error!(
                error = chain(&error),
                hint = error.hint,
                "the clones' firewall is not in place; no clone is made until it is"
            );
        }
        Ok(LinuxHost(Arc::new(LinuxHostState {
            pool: pool.clone(),
            config: config.clone(),
            storage,
            keeper,
            freezer: Freezer::default(),
            egress,
            run,
            apart,
            killed: Mutex::default(),
        })))
    }

    /// Do something that blocks. A caller that goes away does not stop it; every piece is short.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LinuxHostState) -> HostResult<T> + Send + 'static,
    ) -> HostResult<T> {
        let inner = self.0.clone();
        driver::blocking(move || work(&inner)).await
    }
}

impl LinuxHostState {
    fn run(&self, names: &SlotNames) -> PathBuf {
        self.run.join(names.name.as_str())
    }

    /// Look at some parts of one slot.
    fn look(&self, names: &SlotNames, parts: &[Part], shared: &Shared) -> HostResult<ObservedClone> {
        let run = self.run(names);
        let what = ErrorContext { object: names.name.to_string(), hint: "hostctl doctor checks the host" };
        let cannot = |error: io::Error| what.failed("cannot be looked at", error);
        let mut seen = ObservedClone::default();
        for part in parts {
            match part {
                Part::Storage => {
                    let files = self.storage.look(names, &shared.mounts, &shared.datasets);
                    seen.storage = files.map_err(cannot)?;
                }
                Part::Mounts => seen.mounts = self.storage.mounts_below(names, &shared.mounts),
                Part::Limits => {
                    let name = names.name.as_str();
                    seen.limits = self.keeper.look(name, &run).map_err(cannot)?;
                    seen.oom_kills =
                        self.keeper.cgroup(name).map(|cgroup| cgroup::oom_kills(&cgroup)).unwrap_or_default();
                }
                Part::Network => {
                    seen.network =
                        shared.network.as_ref().and_then(|all| all.network(names, &network::pin(&run)));
                }
                Part::Egress => {
                    // A member with all its addresses; with only some of them it still has ways to the outside.
                    let (members, all) = shared.members(names);
                    seen.egress = members == all;
                    seen.connections =
                        (members > 0 && members < all) || shared.tracked.contains(&names.slot);
                }
                Part::Jail => {
                    seen.jail = jail::look(&run).map_err(cannot)?;
                    seen.frozen = seen.jail.is_some() && self.is_frozen(names).map_err(cannot)?;
                }
                Part::Processes => {
                    let name = names.name.as_str();
                    seen.processes = processes::inside(name, &run, &self.keeper).map_err(cannot)?;
                    seen.processes.extend(self.killed_and_running(names)?);
                }
                Part::Service => {
                    // One that is frozen would be waited for in vain.
                    seen.service_ready = !self.is_frozen(names).map_err(cannot)? && jail::is_ready(&run);
                }
            }
        }
        Ok(seen)
    }

    /// What is looked at once for all slots. Of which slots, if not of all that show anything, `only` tells.
    fn shared(&self, parts: &[Part], only: Option<&SlotNames>, datasets: Datasets) -> HostResult<Shared> {
        let wanted = |part| parts.contains(&part);
        let what = ErrorContext { object: "/proc".into(), hint: "hostd needs /proc" };
        let mounts = match wanted(Part::Storage) || wanted(Part::Mounts) {
            true => self
                .storage
                .mounts(only)
                .map_err(|error| what.failed("the mounts cannot be listed", error))?,
            false => Vec::new(),
        };
        let began = self.egress.moment();
        let network = match wanted(Part::Network) || wanted(Part::Egress) {
            true => Some(network::Seen::now(only)?),
            false => None,
        };
        if let (None, Some(all)) = (only, &network) {
            self.egress.note_host_addresses(all.local_addresses());
        }
        let members = match wanted(Part::Egress) {
            true => self.egress.members()?,
            false => BTreeSet::new(),
        };
        let mut shared = Shared { mounts, datasets, network, members, tracked: BTreeSet::new() };
        if wanted(Part::Egress) {
            // Of all slots, also those of which nothing is there: asked about together they cost one walk through the
            // host's connections, and a create in one of them none.
            let names: Vec<SlotNames> = match only {
                Some(names) => vec![names.clone()],
                None => self.pool.slots().map(|slot| self.pool.names(slot)).collect(),
            };
            let cut_off: Vec<&SlotNames> = names
                .iter()
                .filter(|names| shared.members(names).0 == 0 && !shared.has_link(names))
                .collect();
            shared.tracked = self.egress.tracked(&cut_off, began)?;
        }
        Ok(shared)
    }

    /// Every slot of which anything is there.
    fn slots(&self, shared: &Shared) -> HostResult<BTreeSet<Slot>> {
        let what = ErrorContext { object: "clones".into(), hint: "look at the folder's file system" };
        let cannot = |error: io::Error| what.failed("cannot be listed", error);
        let mut slots = self.storage.slots(&self.pool, &shared.datasets).map_err(cannot)?;
        let runs = std::fs::read_dir(&self.run).map_err(cannot)?;
        let names = runs.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let names = names.chain(self.keeper.names().map_err(cannot)?);
        slots.extend(names.filter_map(|name| self.pool.slot_of_name(&name)));
        let links = shared.network.as_ref().map(network::Seen::links).unwrap_or_default();
        slots.extend(links.iter().filter_map(|link| self.pool.slot_of_interface(&link.name)));
        slots.extend(shared.members.iter().filter_map(|address| self.pool.slot_of_address(*address)));
        Ok(slots)
    }

    fn inventory(&self, datasets: Datasets) -> HostResult<Inventory> {
        // A clone without its supervisor is broken; what else runs in it is no part of a look at everything.
        let parts: Vec<Part> = Part::ALL.iter().copied().filter(|part| *part != Part::Processes).collect();
        let shared = self.shared(&parts, None, datasets)?;
        let mut clones = BTreeMap::new();
        for slot in self.slots(&shared)? {
            let seen = self.look(&self.pool.names(slot), &parts, &shared)?;
            if !seen.is_absent() {
                clones.insert(slot, seen);
            }
        }
        let what = ErrorContext { object: "clones".into(), hint: "look at the folder's file system" };
        let aside = self.storage.aside(&shared.datasets);
        let aside = aside.map_err(|error| what.failed("what was moved aside cannot be listed", error))?;
        Ok(Inventory { clones, aside, egress: self.egress.health()? })
    }

    /// What the clone's supervisor is told.
    fn orders(&self, spec: &CloneSpec, browser: PathBuf) -> Orders {
        let names = &spec.names;
        let run = self.run(names);
        let browserd = &self.config.linux.browserd;
        let port = self.config.egress.browserd_port;
        let group = &self.config.paths.socket_group;
        Orders {
            clone_id: spec.clone_id.clone(),
            name: names.name.to_string(),
            uid: names.uid,
            folder: self.storage.folder(names),
            network: network::pin(&run),
            cgroup: self.keeper.cgroup(names.name.as_str()),
            limits: spec.limits,
            apart: self.apart.is_some(),
            warm_up: spec.warm_up,
            browser,
            browserd: browserd.is_file().then(|| (browserd.clone(), (names.ip, port).into())),
            resolver: self.config.egress.resolver,
            group: nix::unistd::Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw()),
        }
    }

    /// Kill everything inside, and wait for browserd's exit: it closes the connections of browserd's callers, who would
    /// otherwise wait for a packet from a link that is gone.
    fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        let what = ending(names);
        let killed = processes::kill(names.name.as_str(), &self.run(names), &self.keeper);
        let killed = killed.map_err(|error| what.failed("cannot be killed", error))?;
        let waited = killed.wait_for_browserd(Instant::now() + STOP_TIMEOUT);
        // Kept also when something fails: see `wait_for_processes`.
        self.killed().entry(names.slot).or_default().extend(killed);
        self.exited(names, waited)
    }

    /// Wait until the kernel has released the processes that [`LinuxHostState::end_processes`] killed.
    fn wait_for_processes(&self, names: &SlotNames) -> HostResult<()> {
        let Some(killed) = self.killed().remove(&names.slot) else { return Ok(()) };
        let waited = killed.wait(Instant::now() + STOP_TIMEOUT);
        if !matches!(waited, Ok(Exit::Exited)) {
            self.killed().entry(names.slot).or_default().extend(killed);
        }
        self.exited(names, waited)
    }

    fn exited(&self, names: &SlotNames, waited: io::Result<Exit>) -> HostResult<()> {
        let what = ending(names);
        match waited {
            Ok(Exit::Exited) => Ok(()),
            Ok(Exit::TimedOut) => {
                let why = format!("killed, but not gone after {} s", STOP_TIMEOUT.as_secs());
                Err(HostError::new(HostErrorKind::Timeout, what.object, why, what.hint))
            }
            Err(error) => Err(what.failed("cannot be waited for", error)),
        }
    }

    /// Release the network namespace of a clone whose link and processes are gone. Until then its mount stays: it is what
    /// proves whose a surviving process is, also to the next hostd.
    fn release_namespace(&self, names: &SlotNames) -> HostResult<()> {
        match self.killed_and_running(names)?.is_empty()
            && network::Seen::now(Some(names))?.links().is_empty()
        {
            true => network::release_namespace(names, &self.run(names)),
            false => Ok(()),
        }
    }

    fn killed_and_running(&self, names: &SlotNames) -> HostResult<BTreeSet<u32>> {
        let killed = self.killed();
        let running = killed.get(&names.slot).map_or_else(|| Ok(BTreeSet::new()), ProcessHandles::running);
        running.map_err(|error| ending(names).failed("cannot be inspected", error))
    }

    fn killed(&self) -> MutexGuard<'_, BTreeMap<Slot, ProcessHandles>> {
        self.killed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subject<'a>(&'a self, names: &'a SlotNames, run: &'a Path) -> Subject<'a> {
        Subject { names, run, keeper: &self.keeper }
    }

    fn is_frozen(&self, names: &SlotNames) -> io::Result<bool> {
        self.subject(names, &self.run(names)).is_frozen()
    }

    /// Make the kernel forget the connections of a clone that is cut off and whose link is gone.
    fn forget_connections(&self, names: &SlotNames) -> HostResult<()> {
        let began = self.egress.moment();
        let members = self.egress.members()?;
        let is_member = egress::addresses(names).any(|address| members.contains(&address));
        if is_member || !network::Seen::now(Some(names))?.links().is_empty() {
            return Ok(());
        }
        self.egress.end_connections(names, began)
    }
}

/// What the ending of a clone's processes is called in errors.
fn ending(names: &SlotNames) -> ErrorContext {
    ErrorContext {
        object: format!("processes of {}", names.name),
        hint: "look at them with ps; one in state D waits for a disk",
    }
}

/// What one look sees of all slots at once.
struct Shared {
    mounts: Vec<mounts::Mount>,
    /// Empty unless ZFS keeps the files.
    datasets: Datasets,
    network: Option<network::Seen>,
    members: BTreeSet<std::net::IpAddr>,
    /// Slots that are cut off and still have entries in connection tracking.
    tracked: BTreeSet<Slot>,
}

impl Shared {
    /// How many of a clone's addresses are members, and how many it has.
    fn members(&self, names: &SlotNames) -> (usize, usize) {
        let all = egress::addresses(names);
        (all.clone().filter(|address| self.members.contains(address)).count(), all.count())
    }

    fn has_link(&self, names: &SlotNames) -> bool {
        let links = self.network.as_ref().map(network::Seen::links).unwrap_or_default();
        links.iter().any(|link| link.name == names.interface)
    }
}

impl Host for LinuxHost {
    fn drivers(&self) -> BTreeMap<String, String> {
        let browserd = if self.0.config.linux.browserd.is_file() {
            "browserd"
        } else {
            "browser with its debugging pipe as a socket"
        };
        [
            ("storage", self.0.storage.word().to_owned()),
            ("network", "network namespace and veth".to_owned()),
            ("egress", format!("nftables table inet {}", self.0.egress.table())),
            ("limits", self.0.keeper.word()),
            ("rates", "of reading and writing are not kept".to_owned()),
            ("jail", "bubblewrap, Landlock, seccomp".to_owned()),
            ("service", browserd.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn not_kept(&self, limits: &Limits) -> Vec<String> {
        self.0.keeper.not_kept(limits).into_iter().map(str::to_owned).collect()
    }

    async fn checks(&self) -> Vec<Finding> {
        let storage = self.0.storage.findings().await;
        let template = self.0.storage.template(&self.0.config.host.snapshot).await;
        let datasets = self.0.storage.datasets(Part::ALL, None).await;
        self.blocking(|inner| Ok(checks::run(inner, storage, template, datasets)))
            .await
            .unwrap_or_else(|error| vec![checks::broken(&error)])
    }

    async fn check_template(&self, snapshot: &SnapshotName) -> HostResult<()> {
        self.0.storage.template(snapshot).await.map(drop)
    }

    async fn template_version(&self, snapshot: &SnapshotName) -> HostResult<String> {
        self.0.storage.template_version(snapshot).await
    }

    async fn inventory(&self) -> HostResult<Inventory> {
        let datasets = self.0.storage.datasets(Part::ALL, None).await?;
        self.blocking(|inner| inner.inventory(datasets)).await
    }

    async fn look(&self, names: &SlotNames, parts: &[Part]) -> HostResult<ObservedClone> {
        let datasets = self.0.storage.datasets(parts, Some(names)).await?;
        let (names, parts) = (names.clone(), parts.to_vec());
        self.blocking(move |inner| {
            let shared = inner.shared(&parts, Some(&names), datasets)?;
            inner.look(&names, &parts, &shared)
        })
        .await
    }

    /// Nothing runs in a clone before its service is started; that needs its files and its network, not the way out, which
    /// is closed until it is granted. The supervisor is started under the limits, whose step also makes the folder that the
    /// network is kept in.
    fn waits_for(&self, part: Part, earlier: Part) -> bool {
        match part {
            Part::Network | Part::Jail => earlier == Part::Limits,
            Part::Egress => earlier == Part::Network,
            Part::Service => earlier != Part::Egress,
            _ => false,
        }
    }

    async fn egress_health(&self) -> HostResult<EgressHealth> {
        // Every create asks, and another thread would take longer to hear of it than this takes.
        if self.0.egress.is_proven() {
            return Ok(EgressHealth::Ok);
        }
        self.blocking(|inner| inner.egress.health()).await
    }

    async fn repair_egress(&self) -> HostResult<EgressHealth> {
        self.blocking(|inner| inner.egress.repair()).await
    }

    fn refused_packets(&self) -> Option<RefusedPackets> {
        self.0.egress.refused_packets()
    }

    async fn changed(&self) {
        self.0.egress.changed.notified().await;
    }

    async fn ensure_storage(&self, spec: &CloneSpec) -> HostResult<()> {
        self.0.storage.ensure(spec).await
    }

    async fn ensure_limits(&self, spec: &CloneSpec) -> HostResult<()> {
        let spec = spec.clone();
        self.blocking(move |inner| {
            inner.keeper.ensure(inner.config.linux.limits, &spec, &inner.run(&spec.names))
        })
        .await
    }

    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        self.0.keeper.can_change(from, to)
    }

    async fn ensure_network(&self, spec: &CloneSpec) -> HostResult<()> {
        let spec = spec.clone();
        self.blocking(move |inner| {
            inner.egress.allow_connections(spec.names.slot);
            network::ensure(&inner.pool, &spec, &inner.run(&spec.names), inner.egress.clone_filter()?)
        })
        .await
    }

    async fn ensure_egress(&self, spec: &CloneSpec) -> HostResult<()> {
        let names = spec.names.clone();
        self.blocking(move |inner| inner.egress.grant(&names)).await
    }

    async fn ensure_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        let (browser, _) = self.0.storage.template(&spec.snapshot).await?;
        let wanted = spec.clone();
        let orders = self.blocking(move |inner| Ok(inner.orders(&wanted, browser))).await?;
        jail::start(self.0.run(&spec.names), orders, self.0.apart.as_ref()).await
    }

    async fn ensure_service(&self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        jail::start_service(self.0.run(&spec.names), spec.names.name.as_str(), &spec.clone_id).await
    }

    async fn cut_egress(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |inner| {
            inner.egress.cut(&names)?;
            inner.forget_connections(&names)
        })
        .await
    }

    /// Kills at once: the clone's files are destroyed afterwards, so there is nothing that the browser could save.
    async fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |inner| {
            inner.freezer.forget(&names);
            inner.end_processes(&names)
        })
        .await
    }

    async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |inner| inner.freezer.freeze(inner.subject(&names, &inner.run(&names)))).await
    }

    async fn thaw(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |inner| inner.freezer.thaw(inner.subject(&names, &inner.run(&names)))).await
    }

    async fn service_answers(&self, names: &SlotNames) -> HostResult<bool> {
        if let Some(well) = self.0.freezer.woken_well(names) {
            return Ok(well);
        }
        let names = names.clone();
        self.blocking(move |inner| Ok(jail::is_ready(&inner.run(&names)))).await
    }

    async fn unmount(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        self.0.storage.unmount(names, how).await
    }

    async fn stop_jail(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |inner| {
            // Unless this hostd has killed them: another one may have, or the supervisor ended by itself and left something.
            if !inner.killed().contains_key(&names.slot) {
                inner.end_processes(&names)?;
            }
            inner.wait_for_processes(&names)?;
            inner.release_namespace(&names)
        })
        .await
    }

    async fn remove_network(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |inner| {
            network::remove_link(&names)?;
            inner.forget_connections(&names)?;
            inner.release_namespace(&names)
        })
        .await
    }

    async fn remove_limits(&self, names: &SlotNames) -> HostResult<()> {
        let names = names.clone();
        self.blocking(move |inner| {
            inner.wait_for_processes(&names)?;
            inner.release_namespace(&names)?;
            inner.keeper.remove(names.name.as_str(), &inner.run(&names), &jail::FILES)
        })
        .await
    }

    async fn destroy_storage(&self, names: &SlotNames) -> HostResult<()> {
        self.0.storage.destroy(names).await
    }

    async fn move_storage_aside(&self, names: &SlotNames, clone_id: &CloneId) -> HostResult<()> {
        self.0.storage.move_aside(names, clone_id).await
    }

    async fn destroy_aside(&self, clone_id: &CloneId) -> HostResult<()> {
        self.0.storage.destroy_aside(clone_id).await
    }

    async fn settle(&self) {
        blocking_work::settle().await;
    }

    fn close(&self) {
        if let Some(apart) = &self.0.apart {
            apart.let_go();
        }
    }
}
