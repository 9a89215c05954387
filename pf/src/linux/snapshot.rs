//! A table as the kernel holds it, in a form that can be compared: everything that decides about packets, and nothing
//! that differs between two loads of one text (handles, counters, members).

use super::netlink::{Attributes, INET, Message, NFTABLES, Socket};
use super::sets;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const GET_TABLE: u16 = NFTABLES | 1;
const GET_CHAIN: u16 = NFTABLES | 4;
const GET_RULE: u16 = NFTABLES | 7;
const GET_SET: u16 = NFTABLES | 10;

/// In chains, rules and sets the first attribute is the table's name; in tables it is the name itself.
const TABLE: u16 = 1;
/// `NFTA_TABLE_FLAGS`: a dormant table has no effect.
const TABLE_FLAGS: u16 = 2;
/// `NFTA_CHAIN_NAME`, then hook, policy, type and flags.
const CHAIN_NAME: u16 = 3;
const CHAIN_DECIDES: [u16; 4] = [4, 5, 7, 10];
/// `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_EXPR_NAME`
const EXPRESSION_NAME: u16 = 1;
/// `NFTA_SET_NAME`, then flags, key type and length, data type and length.
const SET_NAME: u16 = 2;
const SET_DECIDES: [u16; 5] = [3, 4, 5, 6, 7];
/// `NFTA_SET_ELEM_KEY`, `_DATA`, `_FLAGS`, `_KEY_END`
const ELEMENT_DECIDES: [u16; 4] = [1, 2, 3, 10];

/// What a table consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    flags: Vec<u8>,
    chains: BTreeMap<String, Chain>,
    sets: BTreeMap<String, Set>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Chain {
    head: Vec<u8>,
    rules: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Set {
    head: Vec<u8>,
    /// Of sets that never change. The kernel lists them in any order.
    elements: BTreeSet<Vec<u8>>,
}

fn keep(attributes: &Attributes, ids: &[u16]) -> Vec<u8> {
    let mut kept = Attributes::default();
    for id in ids {
        if let Some(value) = attributes.get(*id) {
            kept.bytes(*id, value);
        }
    }
    kept.0
}

/// A rule's expressions without the counts that its counters have come to.
fn expressions(rule: &Attributes) -> Vec<u8> {
    let mut kept = Attributes::default();
    for (id, expression) in rule.get_nested(RULE_EXPRESSIONS).unwrap_or_default().iter() {
        let expression = Attributes(expression.to_vec());
        let counter = expression.get_text(EXPRESSION_NAME).as_deref() == Some("counter");
        kept.bytes(id, if counter { b"counter" } else { &expression.0 });
    }
    kept.0
}

impl Snapshot {
    /// The table as it is now in the calling thread's network namespace; None if there is none.
    pub(super) fn read(table: &str, changing: &[&str]) -> io::Result<Option<Snapshot>> {
        let mut socket = Socket::open()?;
        let ours = |message: &Message| message.attributes.get_text(TABLE).as_deref() == Some(table);
        let mut ask = |kind| -> io::Result<Vec<Attributes>> {
            let question = Message::new(kind, INET).with(|attributes| {
                // Tables are dumped all together; the rest can be asked for by table.
                if kind != GET_TABLE {
                    attributes.text(TABLE, table);
                }
            });
            match socket.dump(&question) {
                Ok(messages) => {
                    Ok(messages.into_iter().filter(ours).map(|message| message.attributes).collect())
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        let Some(found) = ask(GET_TABLE)?.into_iter().next() else { return Ok(None) };
        let mut snapshot =
            Snapshot { flags: keep(&found, &[TABLE_FLAGS]), chains: BTreeMap::new(), sets: BTreeMap::new() };
        for chain in ask(GET_CHAIN)? {
            let name = chain.get_text(CHAIN_NAME).unwrap_or_default();
            snapshot.chains.entry(name).or_default().head = keep(&chain, &CHAIN_DECIDES);
        }
        for rule in ask(GET_RULE)? {
            let name = rule.get_text(RULE_CHAIN).unwrap_or_default();
            snapshot.chains.entry(name).or_default().rules.push(expressions(&rule));
        }
        for set in ask(GET_SET)? {
            let name = set.get_text(SET_NAME).unwrap_or_default();
            snapshot.sets.insert(name, Set { head: keep(&set, &SET_DECIDES), elements: BTreeSet::new() });
        }
        for (name, set) in snapshot.sets.iter_mut().filter(|(name, _)| !changing.contains(&name.as_str())) {
            let elements = match sets::elements(&mut socket, table, name) {
                Ok(elements) => elements,
                // It went away in between.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Vec::new(),
                Err(error) => return Err(error),
            };
            set.elements = elements.iter().map(|element| keep(element, &ELEMENT_DECIDES)).collect();
        }
        Ok(Some(snapshot))
    }

    /// How many chains, rules and sets there are.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.chains.len(), self.chains.values().map(|chain| chain.rules.len()).sum(), self.sets.len())
    }

    /// The first thing in which `found` differs from this, in words.
    pub(super) fn difference(&self, found: &Snapshot) -> Option<String> {
        if self.flags != found.flags {
            return Some("the table's flags differ (is it dormant?)".into());
        }
        for (name, chain) in &self.chains {
            let Some(other) = found.chains.get(name) else { return Some(format!("chain {name} is missing")) };
            if chain.head != other.head {
                return Some(format!("chain {name} has another hook, priority or policy"));
            }
            if chain.rules.len() != other.rules.len() {
                let (expected, rules) = (chain.rules.len(), other.rules.len());
                return Some(format!("chain {name} has {rules} rules instead of {expected}"));
            }
            if let Some(at) = (0..chain.rules.len()).find(|&at| chain.rules[at] != other.rules[at]) {
                return Some(format!("rule {} of chain {name} differs", at + 1));
            }
        }
        for (name, set) in &self.sets {
            let Some(other) = found.sets.get(name) else { return Some(format!("set {name} is missing")) };
            if set.head != other.head {
                return Some(format!("set {name} has another type"));
            }
            if set.elements != other.elements {
                return Some(format!("set {name} has other elements"));
            }
        }
        let extra = |kind, name: &String| Some(format!("{kind} {name} does not belong there"));
        if let Some(name) = found.chains.keys().find(|name| !self.chains.contains_key(*name)) {
            return extra("chain", name);
        }
        if let Some(name) = found.sets.keys().find(|name| !self.sets.contains_key(*name)) {
            return extra("set", name);
        }
        None
    }
}
