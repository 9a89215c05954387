//! The elements of a set over netlink: microseconds, where running `nft` takes milliseconds.

use super::netlink::{Attributes, CREATE, INET, Message, NFTABLES, Socket};
use std::io;
use std::net::IpAddr;

pub(super) const NEW_ELEMENTS: u16 = NFTABLES | 12;
const GET_ELEMENTS: u16 = NFTABLES | 13;
pub(super) const DELETE_ELEMENTS: u16 = NFTABLES | 14;

/// `NFTA_SET_ELEM_LIST_*`
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
/// `NFTA_LIST_ELEM`
const ELEMENT: u16 = 1;
/// `NFTA_SET_ELEM_KEY`
const KEY: u16 = 1;
/// `NFTA_DATA_VALUE`
const VALUE: u16 = 1;

/// Adds a member. Adding it again is success.
pub(super) fn add_message(table: &str, set: &str, member: IpAddr) -> Message {
    let mut message = change(NEW_ELEMENTS, table, set, member);
    message.flags = CREATE;
    message
}

/// Removes a member, which must exist.
pub(super) fn delete_message(table: &str, set: &str, member: IpAddr) -> Message {
    change(DELETE_ELEMENTS, table, set, member)
}

fn change(kind: u16, table: &str, set: &str, member: IpAddr) -> Message {
    Message::new(kind, INET).with(|attributes| {
        attributes.text(LIST_TABLE, table);
        attributes.text(LIST_SET, set);
        attributes.nested(LIST_ELEMENTS, |list| {
            list.nested(ELEMENT, |element| {
                element.nested(KEY, |key| match member {
                    IpAddr::V4(v4) => key.bytes(VALUE, &v4.octets()),
                    IpAddr::V6(v6) => key.bytes(VALUE, &v6.octets()),
                });
            });
        });
    })
}

/// All elements of a set, each with its attributes.
pub(super) fn elements(socket: &mut Socket, table: &str, set: &str) -> io::Result<Vec<Attributes>> {
    let question = Message::new(GET_ELEMENTS, INET).with(|attributes| {
        attributes.text(LIST_TABLE, table);
        attributes.text(LIST_SET, set);
    });
    let mut elements = Vec::new();
    for message in socket.dump(&question)? {
        let list = message.attributes.get_nested(LIST_ELEMENTS).unwrap_or_default();
        elements.extend(list.iter().map(|(_, element)| Attributes(element.to_vec())));
    }
    Ok(elements)
}

/// The address that is an element's key.
pub(super) fn address(element: &Attributes) -> Option<IpAddr> {
    let key = element.get_nested(KEY)?;
    let value = key.get(VALUE)?;
    <[u8; 4]>::try_from(value)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from))
        .ok()
}
