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

/// Adds an element. Adding it again is success.
pub(super) fn add_message(table: &str, set: &str, key: &[u8]) -> Message {
    let mut message = change(NEW_ELEMENTS, table, set, key);
    message.flags = CREATE;
    message
}

/// Removes an element. An absent one is success, because it is added before: a failed transaction would make the kernel
/// wait for all processors, about a hundred times as long.
pub(super) fn remove_messages(table: &str, set: &str, key: &[u8]) -> [Message; 2] {
    [add_message(table, set, key), change(DELETE_ELEMENTS, table, set, key)]
}

/// The key of an address.
pub(super) fn address_key(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The key of an interface name: `IFNAMSIZ` bytes, padded with zeroes.
pub(super) fn interface_key(name: &str) -> [u8; libc::IFNAMSIZ] {
    let mut key = [0; libc::IFNAMSIZ];
    for (to, from) in key.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    key
}

fn change(kind: u16, table: &str, set: &str, key: &[u8]) -> Message {
    Message::new(kind, INET).with(|attributes| {
        attributes.text(LIST_TABLE, table);
        attributes.text(LIST_SET, set);
        attributes.nested(LIST_ELEMENTS, |list| {
            list.nested(ELEMENT, |element| element.nested(KEY, |value| value.bytes(VALUE, key)));
        });
    })
}

/// Whether an address is a member. The kernel looks up this one element, however many members the set has.
pub(super) fn contains(socket: &mut Socket, table: &str, set: &str, member: IpAddr) -> io::Result<bool> {
    match socket.get(&change(GET_ELEMENTS, table, set, &address_key(member))) {
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
            socket
                .transaction(&[
                    add_message("t", "v4", &address_key(member)),
                    add_message("t", "v6", &address_key(member6)),
                ])
                .unwrap();
            assert!(contains(&mut socket, "t", "v4", member).unwrap());
            assert!(contains(&mut socket, "t", "v6", member6).unwrap());
            assert!(!contains(&mut socket, "t", "v4", stranger).unwrap());
            assert!(!contains(&mut socket, "t", "absent", member).unwrap(), "no set, no member");
            socket.transaction(&remove_messages("t", "v4", &address_key(member))).unwrap();
            assert!(!contains(&mut socket, "t", "v4", member).unwrap());
        };
        in_new_network(looked_up).expect("this test needs root, for a network of its own");
    }
}
