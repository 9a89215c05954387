//! The Linux host: an overlay per clone, a network namespace with one link, an element of an nftables set, a cgroup, and a
//! supervisor process that holds the browser's sandbox.
//!
//! | part | kernel object | how its owner is identified | module |
//! |---|---|---|---|
//! | storage | overlay over a file system of limited size | a label file beside it | [`overlay`], [`template`] |
//! | | or two ZFS clones | a property of the dataset | [`zfs`], [`super::zfs`] |
//! | limits | cgroup v2, or rlimits | the slot's name | [`limits`], [`cgroup`] |
//! | network | network namespace and veth pair | the link's alias | [`network`], [`netns`], [`rtnetlink`] |
//! | egress | elements of an nftables set | the slot's addresses | [`egress`], [`host_addresses`] |
//! | jail | supervisor process | the file it has locked | [`jail`], [`supervisor`], [`freezer`] |
//! | service | browser in the sandbox | the jail it runs in | [`processes`] |
//!
//! Everything is done by system calls and netlink. Two programs are run: `nft`, which loads the rules as one transaction,
//! and `mke2fs` for clones on loop devices. System calls block for a short time, so they run on tokio's blocking threads
//! ([`blocking_work`]).

mod blocking_work;
mod cgroup;
mod checks;
mod dns_forwarder;
mod egress;
mod end_processes;
mod errors;
mod files;
mod fonts;
mod freezer;
mod host;
mod host_addresses;
mod inspection;
mod jail;
mod limits;
mod mount_isolation;
mod mounts;
mod netns;
mod network;
mod open_files;
mod other_firewalls;
mod overlay;
mod probe;
mod processes;
mod rtnetlink;
mod statmount;
mod storage;
mod supervisor;
mod template;
mod user_ids;
mod zfs;

pub use storage::templates;
pub use template::create as create_template;

use super::{CloneSpec, HostResult, chain};
use crate::config::{Config, Resolver};
use crate::slot::{SlotNames, Slots};
use dns_forwarder::DnsForwarder;
use egress::Egress;
use end_processes::KilledProcesses;
use errors::{ErrorContext, failed};
use freezer::Freezer;
use host_addresses::HostAddresses;
use limits::LimitBackend;
use mount_isolation::MountIsolation;
use processes::CloneRef;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use storage::Storage;
use supervisor::Orders;

/// Run a process of hostd's other than the daemon, if these are its arguments.
pub fn helper(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    supervisor::main(arguments.clone()).or_else(|| dns_forwarder::main(arguments))
}

/// The host that hostd runs on.
#[derive(Debug, Clone)]
pub struct LinuxHost(Arc<LinuxHostState>);

#[derive(Debug)]
struct LinuxHostState {
    slots: Slots,
    config: Config,
    storage: Storage,
    limits: LimitBackend,
    freezer: Freezer,
    egress: Arc<Egress>,
    dns_forwarder: DnsForwarder,
    /// Held while the network of [`probe`] exists.
    probing: Mutex<()>,
    host_addresses: Arc<HostAddresses>,
    /// The parent of the clones' run folders.
    run: PathBuf,
    /// `None`: this storage or this kernel cannot isolate the clones' mounts.
    mount_isolation: Option<MountIsolation>,
    killed: KilledProcesses,
    /// Accounts that have user ids of these slots.
    claimed_ids: Vec<kernel::user_ids::Claim>,
}

impl LinuxHost {
    /// Find out what the host offers, and load the firewall rules before the first clone needs them.
    ///
    /// Missing features are not errors here: hostd starts, `hostctl doctor` reports them, and creates are refused.
    pub fn open(config: &Config, slots: &Slots) -> HostResult<LinuxHost> {
        let run = config.paths.state.join("run");
        let hint = "check the folder's file system";
        files::make_folders(&run, 0o700).map_err(|error| {
            failed(run.display().to_string(), "the run folder cannot be made", error, hint)
        })?;
        let clones = &config.pool.clones_dir;
        let storage = Storage::open(config, slots).map_err(|error| {
            failed(clones.display().to_string(), "the clones' folder cannot be made", error, hint)
        })?;
        let isolated = storage.exclusive_folder().map(|clones| [clones, &run]);
        let mount_isolation = isolated.and_then(|folders| MountIsolation::set_up(&folders));
        let egress = Arc::new(Egress::new(slots, &config.egress)?);
        let limits = LimitBackend::find(&config.linux.cgroup);
        if limits::has_rates(&config.clone_limits.all()) {
            tracing::warn!("clone_limits: {}", limits::RATES);
        }
        let host_addresses = HostAddresses::watch(egress.clone(), slots, &run)?;
        if let Err(error) = egress.repair().and_then(|_| egress.clone_filter()) {
            tracing::error!(
                error = chain(&error),
                hint = error.hint,
                "the clones' firewall rules cannot be loaded; creates are refused until they are"
            );
        }
        let (gateway, uid) = (slots.gateway(), slots.probe_names().uid);
        let dns_forwarder = DnsForwarder::new(gateway, slots.subnet(), uid, &run, |name| limits.cgroup(name));
        let state = LinuxHostState {
            slots: slots.clone(),
            config: config.clone(),
            storage,
            limits,
            freezer: Freezer::default(),
            egress,
            dns_forwarder,
            probing: Mutex::default(),
            host_addresses,
            run,
            mount_isolation,
            killed: KilledProcesses::default(),
            claimed_ids: user_ids::claimed(slots),
        };
        probe::remove_leftovers(&state);
        let forwarder = match config.egress.resolver {
            Resolver::Auto => state.dns_forwarder.restart(),
            _ => state.dns_forwarder.end().map_err(|error| {
                failed(
                    "the clones' resolver",
                    "it cannot be ended",
                    error,
                    "end the process hostd forward-names",
                )
            }),
        };
        if let Err(error) = forwarder {
            tracing::error!(error = chain(&error), hint = error.hint, "the clones' resolver");
        }
        Ok(LinuxHost(Arc::new(state)))
    }

    /// Run something that blocks. It continues if its caller goes away; every piece is short.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LinuxHostState) -> HostResult<T> + Send + 'static,
    ) -> HostResult<T> {
        let state = self.0.clone();
        blocking_work::run(move || work(&state)).await
    }
}

impl LinuxHostState {
    /// The clone's run folder.
    fn run(&self, names: &SlotNames) -> PathBuf {
        self.run.join(names.name.as_str())
    }

    /// The clone as [`processes`] and [`freezer`] need it.
    fn clone_ref<'a>(&'a self, names: &'a SlotNames, run: &'a Path) -> CloneRef<'a> {
        CloneRef { names, run, limits: &self.limits }
    }

    fn set_deadline(&self, names: &SlotNames, deadline: Duration) -> HostResult<()> {
        let object = format!("jail of {}", names.name);
        let what = ErrorContext { object, hint: "create another clone: this one's run folder is gone" };
        let changed = jail::deadline::change(&self.run(names), deadline);
        changed.map_err(|error| what.failed("its deadline cannot be changed", error))
    }

    /// What the clone's supervisor is told.
    fn orders(&self, spec: &CloneSpec, browser: PathBuf) -> Orders {
        let names = &spec.names;
        let run = self.run(names);
        let browserd = &self.config.linux.browserd;
        let port = self.config.egress.browserd_port;
        Orders {
            clone_id: spec.clone_id.clone(),
            name: names.name.to_string(),
            uid: names.uid,
            folder: self.storage.folder(names),
            network: network::pin(&run),
            cgroup: self.limits.cgroup(names.name.as_str()),
            limits: spec.limits,
            isolated_mounts: self.mount_isolation.is_some(),
            warm_up: spec.warm_up,
            browser,
            browserd: browserd.is_file().then(|| (browserd.clone(), (names.ip, port).into())),
            resolver: self.egress.resolver(),
        }
    }
}
