//! The fake host from the outside: how a test makes one, looks at it and meddles with it.

use crate::calls::{self, Run};
use crate::fake::{Fake, TOOLS};
use crate::laws::now;
use crate::world::{Dataset, Fault, Interface, Mount, World, Wrong};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A fake host in a folder.
#[derive(Debug)]
pub struct Machine {
    folder: PathBuf,
    fake: Fake,
}

impl Machine {
    /// Install the tools and a bare host: a pool, no jails, PF loaded but off, limits on. What the tools take for `/` is
    /// `root`.
    pub fn install(folder: &Path, executable: &Path, root: &Path) -> Machine {
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).expect("the folder of the tools");
        fs::create_dir_all(folder.join("world")).expect("the folder of the world");
        // Real files and no symbolic links, because a careful caller follows those before it looks at the name.
        let first = bin.join(TOOLS[0]);
        // Copied by another process: as long as this one had the copy open for writing, a fork of another thread could
        // keep it so, and nobody could execute it.
        let copied = std::process::Command::new("cp").arg(executable).arg(&first).status();
        assert!(copied.is_ok_and(|status| status.success()), "{} can be copied", executable.display());
        fs::set_permissions(&first, fs::Permissions::from_mode(0o755)).expect("an executable");
        for tool in &TOOLS[1..] {
            fs::hard_link(&first, bin.join(tool)).expect("a tool");
        }
        let fake = Fake::at(folder);
        fake.save(&bare(root));
        Machine { folder: folder.to_owned(), fake }
    }

    /// The host that was installed in a folder before.
    pub fn at(folder: &Path) -> Machine {
        Machine { folder: folder.to_owned(), fake: Fake::at(folder) }
    }

    /// The folder of the tools.
    pub fn tools(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// The world now.
    pub fn world(&self) -> World {
        self.fake.change(|world| world.clone())
    }

    /// Change the world behind everybody's back.
    pub fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        self.fake.change(change)
    }

    /// Run a tool as an administrator would, and answer what it says on stdout.
    ///
    /// # Panics
    /// When the tool fails.
    pub fn run(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = std::process::Command::new(self.tools().join(words[0]))
            .args(&words[1..])
            .env_clear()
            .output()
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(done.status.success(), "{line}: {} {}", done.status, String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Run a tool that may fail.
    pub fn attempt(&self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut tool = std::process::Command::new(self.tools().join(words[0]));
        tool.args(&words[1..]).env_clear().output().is_ok_and(|done| done.status.success())
    }

    /// Let runs whose command line has all these words go wrong, so many times or for ever.
    pub fn fault(&self, words: &[&str], times: Option<u32>, what: Wrong) {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        self.change(|world| world.faults.push(Fault { words, times, what }));
    }

    /// End all faults.
    pub fn mend(&self) {
        self.change(|world| world.faults.clear());
    }

    /// The runs of tools since [`Machine::forget_calls`].
    pub fn calls(&self) -> Vec<Run> {
        calls::read(&self.fake.calls_file())
    }

    /// Begin to count anew.
    pub fn forget_calls(&self) {
        let _ = fs::remove_file(self.fake.calls_file());
    }
}

/// A host as the installer leaves it.
fn bare(root: &Path) -> World {
    let mut world =
        World { root: root.to_owned(), bastille: "/usr/local/bastille".into(), ..World::default() };
    let id = world.new_id();
    let properties = [("mountpoint".to_owned(), "none".to_owned())].into();
    let pool = Dataset { id, created: now(), origin: None, properties, referenced: 24_576, own: 24_576 };
    world.datasets.insert("zroot".to_owned(), pool);
    for (source, target, kind) in [("/dev/vtbd0p2", "/", "ufs"), ("devfs", "/dev", "devfs")] {
        let (source, target, kind) = (source.to_owned(), target.to_owned(), kind.to_owned());
        world.mounts.push(Mount { source, target, kind, options: "rw".to_owned() });
    }
    for (name, group, address) in [("vtnet0", "", "10.0.2.15/24"), ("lo0", "lo", "127.0.0.1/8")] {
        let (id, name, group) = (world.new_id(), name.to_owned(), group.to_owned());
        let (made_as, ether) = (name.clone(), "52:54:00:12:34:56".to_owned());
        let hardware = ether.clone();
        let addresses = vec![address.to_owned()];
        world.interfaces.push(Interface {
            id,
            name,
            made_as,
            group,
            ether,
            hardware,
            up: true,
            addresses,
            ..Interface::default()
        });
    }
    world.start(0, 0, "/sbin/init");
    world.start(0, 1, "/usr/sbin/sshd -D");
    world.last.pid = 1000;
    world.pf.loaded = true;
    world.ipfw_loaded = true;
    world.pf.file = "/etc/pf.conf".into();
    for (name, value) in [
        ("kern.racct.enable", "1"),
        ("net.inet.ip.forwarding", "1"),
        ("net.inet6.ip6.forwarding", "0"),
        ("net.link.bridge.pfil_member", "0"),
        ("net.link.bridge.pfil_bridge", "0"),
        ("net.inet.tcp.msl", "30000"),
        ("kern.osreldate", "1401000"),
        ("kern.osrelease", "14.1-RELEASE-p5"),
        ("security.jail.jailed", "0"),
        ("kern.features.vimage", "1"),
    ] {
        world.sysctl.insert(name.to_owned(), value.to_owned());
    }
    world
}
