//! The second barrier: rules inside a clone's own network namespace.
//!
//! They do not depend on the host's table. The namespace belongs to the host's user namespace, so no process of the clone
//! has the capability to change them, whatever capabilities it has in a user namespace of its own.
//!
//! `nft` translates the rules once, in a network namespace that is then discarded. The kernel's own listing is sent again
//! for every clone, as one transaction without another process.

use super::netlink::{Attributes, CREATE, INET, Message, NESTED, NFTABLES, Socket};
use super::sets::{self, NEW_ELEMENTS};
use super::snapshot::{
    CHAIN_NAME, GET_CHAIN, GET_RULE, GET_SET, RULE_CHAIN, RULE_EXPRESSIONS, SET_NAME, TABLE, dump,
};
use crate::clone_rules::{HOST4, HOST6, TABLE_NAME};
use std::io;
use std::net::IpAddr;

const NEW_TABLE: u16 = NFTABLES;
const NEW_CHAIN: u16 = NFTABLES | 3;
const NEW_RULE: u16 = NFTABLES | 6;
const NEW_SET: u16 = NFTABLES | 9;
/// `NLM_F_APPEND`: after the rules before it.
const APPEND: u16 = 0x800;
/// `NFTA_CHAIN_HOOK`, `_POLICY`, `_TYPE`
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
/// `NFTA_SET_FLAGS`, `_KEY_TYPE`, `_KEY_LEN`, `_ID`
const SET_HEAD: [u16; 3] = [3, 4, 5];
const SET_ID: u16 = 10;
/// `NFTA_SET_ELEM_LIST_TABLE`, `_SET`, `_ELEMENTS`; `NFTA_LIST_ELEM`; `NFTA_SET_ELEM_KEY`, `_FLAGS`
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_FLAGS: u16 = 3;

/// The rules for the inside of a clone's network namespace, as messages to the kernel.
#[derive(Debug)]
pub struct CloneFilter {
    messages: Vec<Message>,
}

impl CloneFilter {
    /// Reads the rules that are loaded in the calling thread's network namespace.
    pub(super) fn read() -> io::Result<CloneFilter> {
        let mut socket = Socket::open()?;
        let table = |attributes: &mut Attributes| attributes.text(TABLE, TABLE_NAME);
        let mut messages = vec![create(NEW_TABLE, table)];
        let listed = dump(&mut socket, TABLE_NAME, GET_SET)?;
        for (set, id) in listed.iter().zip(1u32..) {
            messages.push(create(NEW_SET, |attributes| {
                table(attributes);
                copy(set, SET_NAME, attributes);
                SET_HEAD.iter().for_each(|head| copy(set, *head, attributes));
                attributes.bytes(SET_ID, &id.to_be_bytes());
            }));
            messages.extend(elements(&mut socket, &set.get_text(SET_NAME).unwrap_or_default())?);
        }
        for chain in dump(&mut socket, TABLE_NAME, GET_CHAIN)? {
            messages.push(create(NEW_CHAIN, |attributes| {
                table(attributes);
                copy(&chain, CHAIN_NAME, attributes);
                copy_nested(&chain, CHAIN_HOOK, attributes);
                copy(&chain, CHAIN_POLICY, attributes);
                copy(&chain, CHAIN_TYPE, attributes);
            }));
        }
        for rule in dump(&mut socket, TABLE_NAME, GET_RULE)? {
            let mut message = create(NEW_RULE, |attributes| {
                table(attributes);
                copy(&rule, RULE_CHAIN, attributes);
                copy_nested(&rule, RULE_EXPRESSIONS, attributes);
            });
            message.flags |= APPEND;
            messages.push(message);
        }
        Ok(CloneFilter { messages })
    }

    /// Loads the rules into the calling thread's network namespace, which must not have them yet. `host` are the addresses
    /// of the host that no denied range contains.
    pub fn load(&self, host: &[IpAddr]) -> io::Result<()> {
        let messages: Vec<Message> = self.messages.iter().cloned().chain(block_messages(host)).collect();
        Socket::open()?.transaction(&messages)
    }

    /// Blocks more addresses of the host in the calling thread's network namespace, where the rules are loaded. One that is
    /// blocked already is success.
    pub fn block(host: &[IpAddr]) -> io::Result<()> {
        Socket::open()?.transaction(&block_messages(host).collect::<Vec<_>>())
    }
}

fn block_messages(host: &[IpAddr]) -> impl Iterator<Item = Message> + '_ {
    host.iter().map(|address| {
        let set = if address.is_ipv4() { HOST4 } else { HOST6 };
        sets::add_message(TABLE_NAME, set, &sets::address_key(*address))
    })
}

fn create(kind: u16, fill: impl FnOnce(&mut Attributes)) -> Message {
    let message = Message::new(kind, INET).with(fill);
    Message { flags: CREATE, ..message }
}

fn copy(from: &Attributes, id: u16, to: &mut Attributes) {
    if let Some(value) = from.get(id) {
        to.bytes(id, value);
    }
}

fn copy_nested(from: &Attributes, id: u16, to: &mut Attributes) {
    if let Some(value) = from.get(id) {
        to.bytes(id | NESTED, value);
    }
}

/// The message that adds a set's elements; none for an empty set.
///
/// The kernel requires the ends of intervals in ascending order. Where one interval ends and the next begins, the end comes
/// first.
fn elements(socket: &mut Socket, set: &str) -> io::Result<Option<Message>> {
    let mut elements = sets::elements(socket, TABLE_NAME, set)?;
    if elements.is_empty() {
        return Ok(None);
    }
    elements.sort_by_key(|element| {
        let key = element.get(ELEMENT_KEY).map(<[u8]>::to_vec);
        let starts = element.get(ELEMENT_FLAGS).is_none_or(|flags| flags == [0; 4]);
        (key, starts)
    });
    Ok(Some(create(NEW_ELEMENTS, |attributes| {
        attributes.text(LIST_TABLE, TABLE_NAME);
        attributes.text(LIST_SET, set);
        attributes.nested(LIST_ELEMENTS, |list| {
            for element in &elements {
                list.nested(LIST_ELEMENT, |to| {
                    copy_nested(element, ELEMENT_KEY, to);
                    copy(element, ELEMENT_FLAGS, to);
                });
            }
        });
    })))
}
