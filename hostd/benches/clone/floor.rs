//! The floor: the least kernel work that a clone needs, done bare, without a check, a mark or a record of anything.
//!
//! | row | bare work |
//! |---|---|
//! | storage | folders, a sized tmpfs, an overlay on it |
//! | limits | one small file, renamed into place |
//! | network | a namespace kept by a mount, a veth pair, addresses, routes, both ends up |
//! | egress | two elements into nftables sets, by netlink |
//! | jail | hostd's own program started, until its first word |
//! | browser ready | bubblewrap and the bare browser as an ordinary user, until a page ran script |
//! | records and audit | the writes and syncs that a create promises |
//! | destroy | the way back: kill and wait, elements, pair, unmounts, folders, syncs |

mod browser;
mod wire;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// One round of the floor, in seconds.
#[derive(Default)]
pub(crate) struct Bare(BTreeMap<&'static str, f64>);

impl Bare {
    pub(crate) fn of(&self, row: &str) -> f64 {
        self.0[row]
    }

    /// All that a create does.
    pub(crate) fn create(&self) -> f64 {
        let undo = |name: &str| name.starts_with("undo ");
        self.0.iter().filter(|(name, _)| !undo(name)).map(|(_, seconds)| seconds).sum()
    }

    /// All that a destroy does.
    pub(crate) fn destroy(&self) -> f64 {
        self.0.iter().filter(|(name, _)| name.starts_with("undo ")).map(|(_, seconds)| seconds).sum()
    }

    fn time<T>(&mut self, row: &'static str, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.0.insert(row, began.elapsed().as_secs_f64());
        result
    }
}

pub(crate) struct Floor {
    folder: tempfile::TempDir,
    template: PathBuf,
    sets: wire::Netfilter,
}

impl Floor {
    pub(crate) fn new(templates: &Path) -> Floor {
        let folder = tempfile::Builder::new().prefix("floor").tempdir().unwrap();
        for command in [
            "add table inet floor",
            "add set inet floor v4 { type ipv4_addr; }",
            "add set inet floor v6 { type ipv6_addr; }",
        ] {
            let done = Command::new("nft").arg(command).status().unwrap();
            assert!(done.success(), "nft {command}");
        }
        let template = templates.join("browser/default/files");
        Floor { folder, template, sets: wire::Netfilter::open() }
    }

    pub(crate) fn round(&mut self) -> Bare {
        let mut bare = Bare::default();
        let at = |name: &str| self.folder.path().join(name);
        bare.time("storage", || {
            for name in ["store", "store/disk", "view"] {
                fs::create_dir(at(name)).unwrap();
            }
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("floor"), &at("store/disk"), Some("tmpfs"), flags, Some("size=1g,mode=0700")).unwrap();
            for name in ["store/disk/upper", "store/disk/work"] {
                fs::create_dir(at(name)).unwrap();
            }
            let options = format!(
                "lowerdir={},upperdir={},workdir={}",
                self.template.display(),
                at("store/disk/upper").display(),
                at("store/disk/work").display()
            );
            mount(Some("floor"), &at("view"), Some("overlay"), flags, Some(options.as_str())).unwrap();
        });
        bare.time("limits", || written(&at("limits"), false));
        bare.time("network", || network(&at("net")));
        bare.time("egress", || self.sets.change(wire::ADD));
        bare.time("jail", || {
            let said = Command::new(env!("CARGO_BIN_EXE_hostd")).arg("--version").output().unwrap();
            assert!(said.status.success());
        });
        let browser = bare.time("browser ready", || browser::Bare::start(&at("browser")));
        bare.time("records and audit", || {
            for _ in 0..2 {
                appended(&at("audit"));
                written(&at("record"), true);
            }
        });

        bare.time("undo browser", || browser.kill());
        bare.time("undo egress", || self.sets.change(wire::DELETE));
        bare.time("undo network", || {
            wire::Rtnl::open().remove("floor0");
            umount2(&at("net"), MntFlags::MNT_DETACH).unwrap();
            fs::remove_file(at("net")).unwrap();
        });
        bare.time("undo storage", || {
            for name in ["view", "store/disk"] {
                umount2(&at(name), MntFlags::empty()).unwrap();
                fs::remove_dir(at(name)).unwrap();
            }
            fs::remove_dir(at("store")).unwrap();
        });
        bare.time("undo records and audit", || {
            appended(&at("audit"));
            written(&at("record"), true);
            appended(&at("audit"));
            for name in ["record", "limits"] {
                fs::remove_file(at(name)).unwrap();
            }
        });
        fs::remove_dir_all(at("browser")).unwrap();
        bare
    }
}

/// A file renamed into place.
fn written(path: &Path, synced: bool) {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh).unwrap();
    file.write_all(&[b'x'; 700]).unwrap();
    if synced {
        file.sync_all().unwrap();
    }
    fs::rename(&fresh, path).unwrap();
    if synced {
        File::open(path.parent().unwrap()).unwrap().sync_all().unwrap();
    }
}

/// A line that is on the disk.
fn appended(path: &Path) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(&[b'x'; 300]).unwrap();
    file.sync_data().unwrap();
}

fn network(pin: &Path) {
    File::create(pin).unwrap();
    let namespace = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                let fresh = "/proc/thread-self/ns/net";
                mount(Some(fresh), pin, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
                File::open(pin).unwrap()
            })
            .join()
            .unwrap()
    });
    let (here, there) =
        ([[10, 99, 0, 1], [10, 99, 0, 2]], ["fd99::1", "fd99::2"].map(|text| text.parse().unwrap()));
    let pairs = [(here[0].into(), here[1].into()), (there[0], there[1])];
    let mut rtnl = wire::Rtnl::open();
    rtnl.make_pair("floor0", &namespace);
    rtnl.furnish("floor0", &pairs, false);
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
            let mut rtnl = wire::Rtnl::open();
            rtnl.up("lo");
            rtnl.furnish("eth0", &pairs.map(|(one, other)| (other, one)), true);
        });
        inside.join().unwrap();
    });
}
