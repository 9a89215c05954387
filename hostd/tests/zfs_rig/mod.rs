//! Real ZFS below the real lifecycle, for tests in the machine of `scripts/vm-test`.
//!
//! The daemon is a process of its own, so that it can be killed: the test's own program, started once more. Its host is
//! the Linux host for everything about files and mounts and a model for the rest ([`Half`]), because no browser is needed
//! to find out what busy datasets do. One test has the whole daemon with a browser.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use crate::daemon::{Daemon, Home};
use crate::lab::{Lab, in_private_machine};
use hostd::api::{CloneId, CloneInfo, DestroyParams, EgressHealth, Finding, SnapshotName};
use hostd::client::Client;
use hostd::config::Config;
use hostd::host::fake::FakeHost;
use hostd::host::linux::LinuxHost;
use hostd::host::{CloneSpec, Host, HostResult, Inventory, ObservedClone, Part, ServiceEndpoint, Unmount};
use hostd::server::daemon;
use hostd::slot::{SlotNames, Slots};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Nothing waits for a time to pass; an emulated machine with other things to do is slow.
pub const PATIENCE: Duration = Duration::from_secs(600);
const SERVE: &str = "HOSTD_TEST_SERVE";

/// Run the body with a pool of its own, in a private machine. Or be its daemon.
pub fn with_zfs(test: &'static str, more: &[&str], body: impl FnOnce(&Rig)) {
    match std::env::var(SERVE) {
        Ok(arguments) => serve(&arguments),
        Err(_) => in_private_machine(test, |lab| body(&Rig::new(test, lab, more))),
    }
}

/// Run a command to its end; its output.
pub fn run(command: &[&str]) -> String {
    let done = Command::new(command[0]).args(&command[1..]).output();
    let done = done.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{text}", done.status);
    text
}

/// A pool in a file, with a template, and a home for a daemon.
pub struct Rig {
    test: &'static str,
    pub home: Home,
    zpool: String,
    pub parent: String,
    _disk: tempfile::TempDir,
}

impl Rig {
    fn new(test: &'static str, lab: &Lab, more: &[&str]) -> Rig {
        let loaded = Command::new("modprobe").arg("zfs").status();
        assert!(
            Path::new("/sys/module/zfs").is_dir(),
            "this kernel has no ZFS ({loaded:?}), so nothing can be shown here: run scripts/test --vm"
        );
        let disk = tempfile::Builder::new().prefix("zfs").tempdir().unwrap();
        let file = disk.path().join("disk");
        std::fs::File::create(&file).unwrap().set_len(2 << 30).unwrap();
        // Pools are in no namespace: the name must be nobody else's on the whole machine, as the folder's is.
        let zpool = disk.path().file_name().unwrap().to_str().unwrap().to_owned();
        let parent = format!("{zpool}/jails");
        let mut settings = lab.settings();
        settings.extend([
            "linux.storage=zfs".to_owned(),
            format!("pool.parent_dataset={parent}"),
            "lifecycle.step_timeout_seconds=600".to_owned(),
            "lifecycle.orphan_grace_seconds=0".to_owned(),
            "lifecycle.reap_cap=100".to_owned(),
        ]);
        settings.extend(more.iter().map(|setting| (*setting).to_owned()));
        let home = Home::new(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        let rig = Rig { test, home, zpool, parent, _disk: disk };
        let (file, clones) = (file.to_str().unwrap(), format!("mountpoint={}", rig.clones().display()));
        // Without compression: what a test writes must count.
        let settings = ["-o", "cachefile=none", "-O", "mountpoint=none", "-O", "compression=off"];
        run(&[&["zpool", "create"], settings.as_slice(), &[&rig.zpool, file]].concat());
        run(&["zfs", "create", "-o", &clones, &rig.parent]);
        println!("{}", rig.hostctl(&["template", "create"]));
        rig
    }

    pub fn clones(&self) -> PathBuf {
        self.home.path().join("clones")
    }

    pub fn config(&self) -> Config {
        load(&self.home.arguments())
    }

    /// `hostctl` on this host, which reads a file and no flags.
    pub fn hostctl(&self, arguments: &[&str]) -> String {
        let file = self.home.path().join("hostctl.toml");
        let config = self.config();
        let text = format!(
            "[linux]\nstorage = \"zfs\"\ntemplates = {:?}\n[pool]\nparent_dataset = {:?}\nclones_dir = {:?}\n",
            config.linux.templates, self.parent, config.pool.clones_dir
        );
        std::fs::write(&file, text).unwrap();
        let done = Command::new(Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("hostctl"))
            .args(arguments)
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap();
        format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
    }

    /// The daemon on half a host.
    pub async fn start(&self) -> Daemon {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([self.test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
            .env_clear()
            .env(SERVE, self.home.arguments().join("\n"));
        self.home.start_command(command).await
    }

    /// The names below the parent.
    pub fn datasets(&self) -> BTreeSet<String> {
        let all = run(&["zfs", "list", "-H", "-o", "name", "-r", "-t", "all", &self.parent]);
        let names = all.lines().filter_map(|line| line.strip_prefix(&self.parent)?.strip_prefix('/'));
        names.map(str::to_owned).collect()
    }

    /// What is mounted below the clones' folder.
    pub fn mounts(&self) -> BTreeSet<String> {
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let clones = self.clones();
        let clones = clones.canonicalize().unwrap_or(clones).display().to_string();
        let places = text.lines().filter_map(|line| line.split(' ').nth(4));
        places.filter_map(|place| place.strip_prefix(&clones)).map(str::to_owned).collect()
    }

    pub fn property(&self, name: &str, property: &str) -> String {
        let name = format!("{}/{name}", self.parent);
        run(&["zfs", "get", "-Hp", "-o", "value,source", property, &name]).trim().replace('\t', " ")
    }

    /// Wait until only the template is left, in the datasets, the mounts and the folders.
    pub async fn until_empty(&self, client: &Client) {
        let template = ["browser", "browser/root"];
        let left = || {
            let all = self.datasets();
            let clones = |name: &&String| name.starts_with("browsertask") && *name != "browsertask-aside";
            let mut left: Vec<String> = all.iter().filter(clones).cloned().collect();
            left.extend(self.mounts().into_iter().filter(|place| place.contains("browsertask")));
            let folders = std::fs::read_dir(self.clones()).unwrap().flatten();
            left.extend(
                folders
                    .filter_map(|entry| entry.file_name().into_string().ok())
                    .filter(|name| name != "browser"),
            );
            assert!(template.iter().all(|name| all.contains(*name)), "the template is gone: {all:?}");
            left
        };
        until(self, "nothing is left", async || {
            client.list(Default::default()).await.is_ok_and(|list| list.clones.is_empty())
                && left().is_empty()
        })
        .await;
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.home.log());
            println!("{:?}\n{:?}", self.mounts(), Command::new("zfs").args(["list", "-t", "all"]).output());
        }
        let _ = Command::new("zpool").args(["destroy", "-f", &self.zpool]).status();
    }
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

pub async fn until(rig: &Rig, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "never: {what}; {:?}", rig.datasets());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub async fn patient(daemon: &Daemon) -> Client {
    daemon.client().await.with_timeout(PATIENCE)
}

pub fn params(clone: &CloneInfo) -> DestroyParams {
    let clone_id = clone.clone_id.clone().expect("an id");
    DestroyParams::new(clone.name.clone(), clone_id)
}

/// A process that keeps a clone busy until it is dropped.
pub struct Holder(Child);

impl Holder {
    /// Its working folder is there.
    pub fn in_folder(folder: &Path) -> Holder {
        Holder(Command::new("sleep").arg("100000").current_dir(folder).spawn().unwrap())
    }

    /// It has a file open there.
    pub fn of_file(file: &Path) -> Holder {
        let file = std::fs::File::create(file).unwrap();
        Holder(Command::new("sleep").arg("100000").stdin(file).spawn().unwrap())
    }

    /// It has copies of all mounts, in a namespace of its own that hears of no unmount.
    pub fn of_mounts() -> Holder {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sleep", "100000"]);
        let holder = Holder(command.spawn().unwrap());
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        let theirs = format!("/proc/{}/ns/mnt", holder.0.id());
        while std::fs::read_link(&theirs).unwrap() == own {
            std::thread::sleep(Duration::from_millis(20));
        }
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn load(arguments: &[String]) -> Config {
    let [_, file, sets @ ..] = arguments else { panic!("{arguments:?}") };
    let sets: Vec<(String, String)> = sets
        .chunks(2)
        .map(|pair| pair[1].split_once('=').map(|(key, value)| (key.into(), value.into())).unwrap())
        .collect();
    settings::load(Some(Path::new(file)), std::iter::empty(), &sets).unwrap()
}

fn serve(arguments: &str) {
    let arguments: Vec<String> = arguments.split('\n').map(str::to_owned).collect();
    let config = load(&arguments);
    daemon::start_log(&config.log);
    let checked = daemon::check(config.clone()).unwrap();
    let served = block_on(daemon::run_with_host(checked, |_| {
        let pool = Slots::new(&config.pool).unwrap();
        let world = config.paths.state.join("fake-world");
        let linux = LinuxHost::open(&config, &pool).unwrap();
        Ok(Half { fake: FakeHost::persistent(pool, &world).unwrap(), linux })
    }));
    // Not through the test harness, which would wait for every thread.
    std::process::exit(i32::from(served.is_err()));
}

/// Files and mounts are real, the rest is a model that survives a kill like the real thing.
struct Half {
    fake: FakeHost,
    linux: LinuxHost,
}

const REAL: [Part; 2] = [Part::Storage, Part::Mounts];

impl Host for Half {
    fn drivers(&self) -> BTreeMap<String, String> {
        self.linux.drivers()
    }

    async fn checks(&self) -> Vec<Finding> {
        self.linux.checks().await
    }

    async fn check_template(&self, snapshot: &SnapshotName) -> HostResult<()> {
        self.linux.check_template(snapshot).await
    }

    async fn inventory(&self) -> HostResult<Inventory> {
        let real = self.linux.inventory().await?;
        let mut seen = self.fake.inventory().await?;
        for clone in seen.clones.values_mut() {
            (clone.storage, clone.mounts) = Default::default();
        }
        for (slot, clone) in real.clones {
            let entry = seen.clones.entry(slot).or_default();
            (entry.storage, entry.mounts) = (clone.storage, clone.mounts);
        }
        seen.clones.retain(|_, clone| !clone.is_absent());
        Ok(Inventory { aside: real.aside, ..seen })
    }

    async fn inspect(&self, names: &SlotNames, parts: &[Part]) -> HostResult<ObservedClone> {
        let (real, rest): (Vec<Part>, Vec<Part>) = parts.iter().partition(|part| REAL.contains(part));
        let real = self.linux.inspect(names, &real).await?;
        let rest = self.fake.inspect(names, &rest).await?;
        Ok(ObservedClone { storage: real.storage, mounts: real.mounts, ..rest })
    }

    async fn egress_health(&self) -> HostResult<EgressHealth> {
        self.fake.egress_health().await
    }

    async fn repair_egress(&self) -> HostResult<EgressHealth> {
        self.fake.repair_egress().await
    }

    async fn ensure_storage(&self, spec: &CloneSpec) -> HostResult<()> {
        self.linux.ensure_storage(spec).await?;
        self.fake.ensure_storage(spec).await
    }

    async fn ensure_limits(&self, spec: &CloneSpec) -> HostResult<()> {
        self.fake.ensure_limits(spec).await
    }

    async fn ensure_network(&self, spec: &CloneSpec) -> HostResult<()> {
        self.fake.ensure_network(spec).await
    }

    async fn ensure_egress(&self, spec: &CloneSpec) -> HostResult<()> {
        self.fake.ensure_egress(spec).await
    }

    async fn ensure_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        self.fake.ensure_jail(spec).await
    }

    async fn ensure_service(&self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        self.fake.ensure_service(spec).await
    }

    async fn cut_egress(&self, names: &SlotNames) -> HostResult<()> {
        self.fake.cut_egress(names).await
    }

    async fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        self.fake.end_processes(names).await
    }

    async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        self.fake.freeze(names).await
    }

    async fn thaw(&self, names: &SlotNames, deadline: Duration) -> HostResult<()> {
        self.fake.thaw(names, deadline).await
    }

    async fn unmount(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        self.linux.unmount(names, how).await?;
        self.fake.unmount(names, how).await
    }

    async fn stop_jail(&self, names: &SlotNames) -> HostResult<()> {
        self.fake.stop_jail(names).await
    }

    async fn remove_network(&self, names: &SlotNames) -> HostResult<()> {
        self.fake.remove_network(names).await
    }

    async fn remove_limits(&self, names: &SlotNames) -> HostResult<()> {
        self.fake.remove_limits(names).await
    }

    async fn destroy_storage(&self, names: &SlotNames) -> HostResult<()> {
        self.linux.destroy_storage(names).await?;
        self.fake.destroy_storage(names).await
    }

    async fn move_storage_aside(&self, names: &SlotNames, id: &CloneId) -> HostResult<()> {
        self.linux.move_storage_aside(names, id).await?;
        self.fake.destroy_storage(names).await
    }

    async fn destroy_aside(&self, id: &CloneId) -> HostResult<()> {
        self.linux.destroy_aside(id).await
    }
}
