//! Everything there is on the fake host, as data.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

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
    /// The kernel has ipfw.
    pub ipfw_loaded: bool,
    /// The rules of ipfw without the default one, by their numbers.
    pub ipfw: Vec<IpfwRule>,
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
    /// Permanent ARP entries: Ethernet address and interface by IPv4 address.
    pub arp: BTreeMap<String, (String, u64)>,
    /// Jails by number whose files were gone for a while, as after a forced export of the pool: their browserd resets
    /// connections.
    pub rootless: BTreeSet<u32>,
    /// Signals take some looks at the processes to reach them, as on a host without a free processor.
    pub sluggish: bool,
    /// `ifconfig -a` tears the rows of interfaces that are made, renamed or destroyed at the same time.
    pub tears: bool,
    /// Interfaces that were destroyed since the last list: it may still show their first lines.
    pub vanished: Vec<Interface>,
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
    /// A signal that has not reached it yet, and after how many looks at the processes it does.
    #[serde(default)]
    pub awaiting: Option<(String, u32)>,
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
    /// It got its name since the last list, which may show it torn.
    #[serde(default)]
    pub moved: bool,
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

/// A rule of ipfw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpfwRule {
    /// Its place.
    pub number: u32,
    /// Its set; 31 is not flushed.
    pub set: u32,
    /// Action, matches and comment.
    pub body: String,
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
