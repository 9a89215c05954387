//! How the world goes on: what follows from a jail's end, from an interface's, from a look.

use crate::world::{Interface, Jail, Mount, Process, World};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

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
        let process =
            Process { jid, parent, command, deaf: false, stopped: false, condemned: false, awaiting: None };
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
        self.arp.retain(|_, (_, interface)| gone.iter().all(|gone| gone.id != *interface));
    }
}

/// Whether a path is another one or below it.
pub(crate) fn below(path: &str, above: &str) -> bool {
    path == above || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/') || above == "/")
}
