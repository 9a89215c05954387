//! A table as the kernel holds it, in a form that can be compared. It contains everything that decides about packets and
//! nothing that differs between two loads of the same text (handles, counter values, members).

use super::netlink::{Attributes, INET, Message, NFTABLES, Socket};
use super::sets;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const GET_TABLE: u16 = NFTABLES | 1;
pub(super) const GET_CHAIN: u16 = NFTABLES | 4;
pub(super) const GET_RULE: u16 = NFTABLES | 7;
pub(super) const GET_SET: u16 = NFTABLES | 10;
pub(super) const GET_OBJECT: u16 = NFTABLES | 19;

/// In chains, rules and sets the first attribute is the table's name; in tables it is the name itself.
pub(super) const TABLE: u16 = 1;
/// `NFTA_TABLE_FLAGS`: a dormant table has no effect.
const TABLE_FLAGS: u16 = 2;
/// `NFTA_CHAIN_NAME`, then hook, policy, type and flags.
pub(super) const CHAIN_NAME: u16 = 3;
const CHAIN_DECIDES: [u16; 4] = [4, 5, 7, 10];
/// `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_EXPR_NAME`
const EXPRESSION_NAME: u16 = 1;
/// `NFTA_SET_NAME`, then flags, key type and length, data type and length.
pub(super) const SET_NAME: u16 = 2;
const SET_DECIDES: [u16; 5] = [3, 4, 5, 6, 7];
/// `NFTA_SET_ELEM_KEY`, `_DATA`, `_FLAGS`, `_KEY_END`
const ELEMENT_DECIDES: [u16; 4] = [1, 2, 3, 10];

/// `NFTA_OBJ_NAME`, `_TYPE`, `_DATA`
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
/// `NFT_OBJECT_CT_TIMEOUT`
const CT_TIMEOUT: u32 = 7;
/// `NFTA_CT_TIMEOUT_L3PROTO`, `_L4PROTO`, `_DATA`
const TIMEOUT_PROTOCOLS: [u16; 2] = [1, 2];
const TIMEOUT_DATA: u16 = 3;
/// `CTA_TIMEOUT_TCP_TIME_WAIT`, `_CLOSE`, and the two of UDP: the ones that the rendered rules set. The kernel fills the
/// others from the settings of the network namespace, so they differ between two namespaces.
const TCP_DECIDES: [u16; 2] = [7, 8];
const UDP_DECIDES: [u16; 2] = [1, 2];

/// What a table consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    flags: Vec<u8>,
    chains: BTreeMap<String, Chain>,
    sets: BTreeMap<String, Set>,
    /// Named counters and timeouts.
    objects: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Chain {
    head: Vec<u8>,
    rules: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Set {
    head: Vec<u8>,
    /// Only of sets whose elements are part of the rules. The kernel lists them in any order.
    elements: BTreeSet<Vec<u8>>,
}

/// All objects of one kind in a table. A table that does not exist has none.
pub(super) fn dump(socket: &mut Socket, table: &str, kind: u16) -> io::Result<Vec<Attributes>> {
    let question = Message::new(kind, INET).with(|attributes| {
        // The kernel lists all tables at once, and everything else by table.
        if kind != GET_TABLE {
            attributes.text(TABLE, table);
        }
    });
    let messages = match socket.dump(&question) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let all = messages.into_iter().map(|message| message.attributes);
    Ok(all.filter(|attributes| attributes.get_text(TABLE).as_deref() == Some(table)).collect())
}

pub(super) fn keep(attributes: &Attributes, ids: &[u16]) -> Vec<u8> {
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

/// What decides in a named object: its type, and of timeouts also the protocols and the values that the rules set.
fn object(attributes: &Attributes) -> Vec<u8> {
    let mut kept = keep(attributes, &[OBJECT_TYPE]);
    if attributes.get(OBJECT_TYPE) == Some(&CT_TIMEOUT.to_be_bytes()) {
        let timeout = attributes.get_nested(OBJECT_DATA).unwrap_or_default();
        let tcp = timeout.get(TIMEOUT_PROTOCOLS[1]) == Some(&[libc::IPPROTO_TCP as u8]);
        let values = timeout.get_nested(TIMEOUT_DATA).unwrap_or_default();
        kept.extend(keep(&timeout, &TIMEOUT_PROTOCOLS));
        kept.extend(keep(&values, if tcp { &TCP_DECIDES } else { &UDP_DECIDES }));
    }
    kept
}

impl Snapshot {
    /// Reads the table in the calling thread's network namespace; `None` if there is none. The elements of the sets named
    /// in `changing` are left out.
    pub(super) fn read(table: &str, changing: &[&str]) -> io::Result<Option<Snapshot>> {
        let mut socket = Socket::open()?;
        let mut ask = |kind| dump(&mut socket, table, kind);
        let Some(found) = ask(GET_TABLE)?.into_iter().next() else { return Ok(None) };
        let mut snapshot = Snapshot {
            flags: keep(&found, &[TABLE_FLAGS]),
            chains: BTreeMap::new(),
            sets: BTreeMap::new(),
            objects: BTreeMap::new(),
        };
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
        for found in ask(GET_OBJECT)? {
            snapshot.objects.insert(found.get_text(OBJECT_NAME).unwrap_or_default(), object(&found));
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

    /// The first difference between this and `found`, as text.
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
        for (name, object) in &self.objects {
            match found.objects.get(name) {
                None => return Some(format!("{name} is missing")),
                Some(other) if other != object => return Some(format!("{name} has another content")),
                Some(_) => {}
            }
        }
        let extra = |kind, name: &String| Some(format!("{kind} {name} does not belong there"));
        if let Some(name) = found.chains.keys().find(|name| !self.chains.contains_key(*name)) {
            return extra("chain", name);
        }
        if let Some(name) = found.sets.keys().find(|name| !self.sets.contains_key(*name)) {
            return extra("set", name);
        }
        if let Some(name) = found.objects.keys().find(|name| !self.objects.contains_key(*name)) {
            return extra("object", name);
        }
        None
    }
}
