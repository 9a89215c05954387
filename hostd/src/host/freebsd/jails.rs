//! The jails of the host as `jls` lists them, dying ones included.
//!
//! A name does not identify a jail: a new jail can have the name of a dying one, and both are listed. The clone's identity
//! is in `host.hostuuid`, which a jail without `allow.set_hostname` cannot change.
//!
//! The form was recorded on FreeBSD 14.1, where every value is text. FreeBSD 15 has jail descriptors and makes `allow.dying`
//! and `jail -d` no-ops; `jls -d` still lists dying jails, and a live jail never has the number of a dying one. Values that a
//! newer libxo prints as numbers or truth values are read too, new columns are passed over, and one jail of others with a
//! value that is not known does not make the list unreadable.

use super::conf;
use super::errors::{Unreadable, digits, unreadable};
use crate::host::{Identity, ObservedJail};
use crate::slot::SlotNames;
use serde::Deserialize;

/// One jail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Jail {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) jid: u32,
    pub(super) dying: bool,
    pub(super) vnet: bool,
    pub(super) uuid: String,
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "jail-information")]
    information: Information,
}

#[derive(Deserialize)]
struct Information {
    jail: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    name: Text,
    path: Text,
    jid: Text,
    dying: Text,
    #[serde(default)]
    vnet: Text,
    #[serde(rename = "host.hostuuid", default)]
    uuid: Text,
}

/// A value in any form that libxo has for it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Words(String),
    Number(u64),
    Truth(bool),
    /// How libxo can print an empty text.
    Nothing(()),
}

impl Default for Text {
    fn default() -> Text {
        Text::Nothing(())
    }
}

impl From<Text> for String {
    fn from(text: Text) -> String {
        match text {
            Text::Words(words) => words,
            Text::Number(number) => number.to_string(),
            Text::Truth(truth) => truth.to_string(),
            Text::Nothing(()) => String::new(),
        }
    }
}

/// Read the list.
pub(super) fn read(text: &str) -> Result<Vec<Jail>, Unreadable> {
    let document: Document = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(_) => {
            return unreadable("jls", text, "a JSON list of jails with name, path, jid and dying");
        }
    };
    let jail = |listed: Listed| {
        let Listed { name, path, jid, dying, vnet, uuid } = listed;
        let [name, path, jid, dying, vnet, uuid] = [name, path, jid, dying, vnet, uuid].map(String::from);
        let Some(jid) = digits(&jid).filter(|jid| *jid > 0) else {
            return unreadable("jls", &jid, "a jail's number");
        };
        let dying = match dying.as_str() {
            "true" | "1" => true,
            "false" | "0" => false,
            other => return unreadable("jls", other, "dying as true or false"),
        };
        // An unknown word is no proof that a jail shares the host's network. Path and identity decide.
        let vnet = !["inherit", "disable"].contains(&vnet.as_str());
        Ok(Jail { name, path, jid, dying, vnet, uuid })
    };
    document.information.jail.into_iter().map(jail).collect()
}

/// The slot's jail: a live one if there is one, else a dying one.
pub(super) fn of<'a>(jails: &'a [Jail], names: &SlotNames) -> Option<&'a Jail> {
    jails.iter().filter(|jail| jail.name == names.name.as_str()).min_by_key(|jail| jail.dying)
}

/// The slot's jail, for the lifecycle.
pub(super) fn observed(jails: &[Jail], names: &SlotNames) -> Option<ObservedJail> {
    let jail = of(jails, names)?;
    let root = conf::root(names);
    let identity = match conf::clone_id(&jail.uuid) {
        _ if std::path::Path::new(&jail.path) != root => {
            Identity::Foreign(format!("jail {} runs from {}", jail.jid, jail.path))
        }
        _ if !jail.vnet => Identity::Foreign(format!("jail {} shares the host's network", jail.jid)),
        Some(id) => Identity::Clone(id),
        None => Identity::Unmarked,
    };
    Some(ObservedJail { identity, dying: jail.dying })
}
