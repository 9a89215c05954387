//! Everything there is on the fake host, as data.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The whole host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct World {
    /// The folder that the tools take for `/`.
    pub root: PathBuf,
    /// Datasets by name.
    pub datasets: BTreeMap<String, Dataset>,
    /// Snapshots, the oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Mounts, the oldest first.
    pub mounts: Vec<Mount>,
    /// Jails, dying ones too, in the order of their ids.
    pub jails: Vec<Jail>,
    /// Processes by number.
    pub processes: BTreeMap<u32, Process>,
    /// Interfaces of the host and of all jails, in the order in which they came.
    pub interfaces: Vec<Interface>,
    /// The packet filter.
    pub pf: Pf,
    /// Limits, the newest first.
    pub limits: Vec<Limit>,
    /// Kernel settings.
    pub sysctl: BTreeMap<String, String>,
    /// Bastille's folder, as the tools see it.
    pub bastille: PathBuf,
    /// What keeps a folder busy.
    pub holds: Vec<Hold>,
    /// Jails that stay dying after their end, for so many looks.
    pub lingering: BTreeMap<String, u32>,
    /// What shall go wrong.
    pub faults: Vec<Fault>,
    /// What no caller may ever do, and was done.
    pub violations: Vec<String>,
    /// How many Bastilles run.
    pub bastilles: BTreeSet<u32>,
    /// The last numbers given out.
    pub last: Last,
}

/// The last numbers given out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Last {
    /// Of a jail.
    pub jid: u32,
    /// Of a process.
    pub pid: u32,
    /// Of a dataset, snapshot or interface.
    pub id: u64,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dataset {
    /// Its number for ever, and the name of its folder while it is not mounted.
    pub id: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// The snapshot it is a clone of.
    pub origin: Option<String>,
    /// Properties set on it, as text.
    pub properties: BTreeMap<String, String>,
    /// Bytes it refers to.
    pub referenced: u64,
    /// Bytes that only it refers to.
    pub own: u64,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its number for ever, and the name of the folder with its files.
    pub id: u64,
    /// `dataset@name`.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// The transaction that made it: the same for all of one recursive snapshot.
    pub transaction: u64,
    /// Properties set on it, as text.
    pub properties: BTreeMap<String, String>,
    /// Its holds.
    pub holds: BTreeSet<String>,
    /// To be destroyed with its last clone.
    pub deferred: bool,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// What.
    pub source: String,
    /// Where, as the tools see it.
    pub target: String,
    /// Which kind.
    pub kind: String,
    /// Options.
    pub options: String,
}

/// A jail.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Jail {
    /// Its number.
    pub jid: u32,
    /// Its name, which a dying jail may share.
    pub name: String,
    /// Its root, as the tools see it.
    pub path: String,
    /// Its host name.
    pub hostname: String,
    /// It has a network of its own.
    pub vnet: bool,
    /// Other parameters, as text.
    pub parameters: BTreeMap<String, String>,
    /// Removed, but held by the kernel for so many looks more.
    pub dying: Option<u32>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its jail; 0 is the host.
    pub jid: u32,
    /// Its parent.
    pub parent: u32,
    /// Its command line.
    pub command: String,
    /// TERM does not end it.
    pub deaf: bool,
    /// It stands still.
    pub stopped: bool,
    /// TERM came while it stood still.
    pub condemned: bool,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Its number for ever.
    pub id: u64,
    /// Its name, which two may share after a jail gave one back.
    pub name: String,
    /// The name it was made with.
    pub made_as: String,
    /// The jail that has it; 0 is the host.
    pub jid: u32,
    /// `epair`, `bridge`, `lo` or nothing.
    pub group: String,
    /// Its place among those of its group: the second side of a pair comes before the first.
    pub grouped: u64,
    /// Its Ethernet address.
    pub ether: String,
    /// The address it was made with.
    pub hardware: String,
    /// It is up.
    pub up: bool,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<String>,
    /// Its description.
    pub description: String,
    /// A bridge's members by their numbers, and whether they are private.
    pub members: BTreeMap<u64, bool>,
}

/// The packet filter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pf {
    /// The kernel has it.
    pub loaded: bool,
    /// It works.
    pub enabled: bool,
    /// The main ruleset.
    pub main: Ruleset,
    /// Anchors by name.
    pub anchors: BTreeMap<String, Ruleset>,
    /// Connections.
    pub states: Vec<State>,
    /// What `service pf start` loads, as the tools see it.
    pub file: PathBuf,
}

/// Rules and tables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ruleset {
    /// Filter rules as listed.
    pub filter: Vec<String>,
    /// Translation rules as listed.
    pub nat: Vec<String>,
    /// Tables by name.
    pub tables: BTreeMap<String, Table>,
    /// Interfaces that it passes everything on.
    #[serde(default)]
    pub skip: BTreeSet<String>,
}

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// It stays without rules.
    pub persist: bool,
    /// It cannot be changed.
    pub constant: bool,
    /// Its entries.
    pub members: BTreeSet<String>,
}

/// A connection that PF knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Who made it.
    pub source: String,
    /// To whom.
    pub destination: String,
    /// How PF came to know it.
    pub kind: StateKind,
}

/// How PF came to know a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateKind {
    /// From a clone, where it enters the host.
    Inner,
    /// The same behind the translation.
    Translated,
    /// To a clone.
    ToClone,
}

/// A limit: `jail:NAME:RESOURCE:ACTION=AMOUNT`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// `jail` or `process`.
    pub subject: String,
    /// Whose.
    pub whose: String,
    /// Of what.
    pub resource: String,
    /// What happens.
    pub action: String,
    /// Beyond how much.
    pub amount: u64,
    /// Of each what, if it is not the subject.
    pub per: String,
}

/// Something that keeps a folder busy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// The folder or one above it, as the tools see it.
    pub path: String,
    /// For so many tries; for ever without.
    pub tries: Option<u32>,
    /// Force does not help either.
    pub stubborn: bool,
}

/// Something that goes wrong with some runs of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Every one of these is in the command line of the runs it concerns.
    pub words: Vec<String>,
    /// How often; for ever without.
    pub times: Option<u32>,
    /// What goes wrong.
    pub what: Wrong,
}

/// What can go wrong with a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Wrong {
    /// It takes so many milliseconds longer.
    Slow(u64),
    /// It never ends.
    Hangs,
    /// It says this and does nothing.
    Fails {
        /// Its exit code.
        code: i32,
        /// Its last words.
        stderr: String,
    },
    /// It dies before it does anything.
    DiesBefore,
    /// It dies between its two transactions: `zfs clone` has made the dataset and not set its properties.
    DiesHalfway,
    /// It does everything and dies.
    DiesAfter,
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl World {
    /// Where a path of the fake host really is.
    pub fn real(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A number nobody had.
    pub fn new_id(&mut self) -> u64 {
        self.last.id += 1;
        self.last.id
    }

    /// Start a process.
    pub fn start(&mut self, jid: u32, parent: u32, command: &str) -> u32 {
        self.last.pid += 1;
        let command = command.to_owned();
        let process = Process { jid, parent, command, deaf: false, stopped: false, condemned: false };
        self.processes.insert(self.last.pid, process);
        self.last.pid
    }

    /// A jail that is not dying, by name or number.
    pub fn jail(&self, key: &str) -> Option<&Jail> {
        let live = || self.jails.iter().filter(|jail| jail.dying.is_none());
        live().find(|jail| jail.name == key).or_else(|| live().find(|jail| jail.jid.to_string() == key))
    }

    /// A dying jail, by name or number.
    pub fn dying(&self, key: &str) -> Option<&Jail> {
        let mut dying = self.jails.iter().filter(|jail| jail.dying.is_some());
        dying.find(|jail| jail.name == key || jail.jid.to_string() == key)
    }

    /// An interface that the host or a jail has.
    pub fn interface(&self, jid: u32, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.jid == jid && interface.name == name)
    }

    /// The same, to change it.
    pub fn interface_mut(&mut self, jid: u32, name: &str) -> Option<&mut Interface> {
        self.interfaces.iter_mut().find(|interface| interface.jid == jid && interface.name == name)
    }

    /// The mount of a dataset.
    pub fn mount_of(&self, dataset: &str) -> Option<&Mount> {
        self.mounts.iter().find(|mount| mount.kind == "zfs" && mount.source == dataset)
    }

    /// Whether a folder is in use; a hold that ends by itself comes one try nearer to its end.
    pub(crate) fn busy(&mut self, path: &str, force: bool) -> bool {
        let mut busy = false;
        for hold in self.holds.iter_mut().filter(|hold| below(&hold.path, path)) {
            busy |= hold.stubborn || !force;
            if let Some(tries) = &mut hold.tries {
                *tries = tries.saturating_sub(1);
            }
        }
        self.holds.retain(|hold| hold.tries != Some(0));
        busy
    }

    /// One look has passed: dying jails come nearer to their end.
    pub(crate) fn age_jails(&mut self) {
        for polls in self.jails.iter_mut().filter_map(|jail| jail.dying.as_mut()) {
            *polls = polls.saturating_sub(1);
        }
        self.jails.retain(|jail| jail.dying != Some(0));
    }

    /// End a jail by its name, as its own last process or a panic in it would; answers whether there was one.
    pub fn end_jail(&mut self, name: &str) -> bool {
        let jid = self.jail(name).map(|jail| jail.jid);
        jid.inspect(|jid| self.remove_jail(*jid)).is_some()
    }

    /// End a jail: its processes die, its interfaces come back to the host.
    pub(crate) fn remove_jail(&mut self, jid: u32) {
        let Some(at) = self.jails.iter().position(|jail| jail.jid == jid) else { return };
        self.processes.retain(|_, process| process.jid != jid);
        let (mut back, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.interfaces).into_iter().partition(|interface| interface.jid == jid);
        self.interfaces = rest;
        back.retain(|interface| interface.group != "lo");
        for interface in &mut back {
            (interface.jid, interface.up) = (0, false);
            interface.addresses.clear();
            interface.grouped = self.new_id();
        }
        self.interfaces.append(&mut back);
        match self.lingering.get(&self.jails[at].name) {
            Some(polls) => self.jails[at].dying = Some(*polls),
            None => drop(self.jails.remove(at)),
        }
    }

    /// Destroy an interface, and with one side of a pair the other.
    pub(crate) fn remove_interface(&mut self, id: u64) {
        let Some(gone) = self.interfaces.iter().find(|interface| interface.id == id) else { return };
        let pair = match gone.group == "epair" {
            true => gone.made_as[..gone.made_as.len() - 1].to_owned(),
            false => gone.made_as.clone(),
        };
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.interfaces).into_iter().partition(|it| {
                it.id == id || (it.group == "epair" && it.made_as[..it.made_as.len() - 1] == pair)
            });
        self.interfaces = left;
        for bridge in &mut self.interfaces {
            bridge.members.retain(|member, _| gone.iter().all(|gone| gone.id != *member));
        }
    }
}

/// Whether a path is another one or below it.
pub(crate) fn below(path: &str, above: &str) -> bool {
    path == above || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/') || above == "/")
}
