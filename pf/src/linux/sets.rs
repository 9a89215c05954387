//! The members of a set, straight to and from the kernel: microseconds where the program takes milliseconds.

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

/// Makes an address a member; if it is one already, it stays one.
pub(super) fn add_message(table: &str, set: &str, member: IpAddr) -> Message {
    let mut message = change(NEW_ELEMENTS, table, set, member);
    message.flags = CREATE;
    message
}

/// Takes a member out; it must be one.
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

/// Whether an address is a member. The kernel looks up this one element, however many members the set has.
pub(super) fn contains(socket: &mut Socket, table: &str, set: &str, member: IpAddr) -> io::Result<bool> {
    match socket.get(&change(GET_ELEMENTS, table, set, member)) {
        Ok(_) => Ok(true),
        // No such element, set or table.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
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

#[cfg(test)]
mod tests {
    use super::super::{in_new_network, nft};
    use super::*;

    #[test]
    fn one_member_is_looked_up_without_reading_the_others() {
        let looked_up = || {
            let [member, stranger] = ["10.1.2.3", "10.1.2.4"].map(|ip| ip.parse::<IpAddr>().unwrap());
            let member6: IpAddr = "fd00::3".parse().unwrap();
            let mut socket = Socket::open().unwrap();
            assert!(!contains(&mut socket, "t", "v4", member).unwrap(), "no table, no member");
            nft::load("table inet t { set v4 { type ipv4_addr; }; set v6 { type ipv6_addr; }; }").unwrap();
            assert!(!contains(&mut socket, "t", "v4", member).unwrap(), "the set is empty");
            socket.transaction(&[add_message("t", "v4", member), add_message("t", "v6", member6)]).unwrap();
            assert!(contains(&mut socket, "t", "v4", member).unwrap());
            assert!(contains(&mut socket, "t", "v6", member6).unwrap());
            assert!(!contains(&mut socket, "t", "v4", stranger).unwrap());
            assert!(!contains(&mut socket, "t", "absent", member).unwrap(), "no set, no member");
            socket.transaction(&[delete_message("t", "v4", member)]).unwrap();
            assert!(!contains(&mut socket, "t", "v4", member).unwrap());
        };
        in_new_network(looked_up).expect("this test needs root, for a network of its own");
    }
}
