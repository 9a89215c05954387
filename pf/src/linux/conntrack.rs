//! Ending the connections of a clone, in both directions and behind address translation.
//!
//! The rules look at every packet, so a clone that is no member is cut off anyway. Its states are killed so that
//! nothing of it is left for the next clone with the same address.

use super::netlink::{CONNTRACK, Message, NESTED, Socket, UNSPECIFIED};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

const GET: u16 = CONNTRACK | 1;
const DELETE: u16 = CONNTRACK | 2;

/// `CTA_*`
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// `CTA_TUPLE_IP`
const TUPLE_IP: u16 = 1;

/// Kills all states that one of these addresses is an end of, and says how many there were.
///
/// One look is enough for addresses that are no members any more: the rules let no new connection of theirs come about.
pub(super) fn kill(socket: &mut Socket, addresses: &[IpAddr]) -> io::Result<usize> {
    let mut killed = 0;
    for state in states(socket, addresses)? {
        match socket.request(&deletion(&state)) {
            Ok(()) => killed += 1,
            // It ended by itself.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(killed)
}

/// The states with one of these addresses at any end, as seen before or after translation.
///
/// All states are read and sorted out here. What costs is the kernel's walk through its whole table, and its own filter
/// would need one walk for each direction and family.
pub(super) fn states(socket: &mut Socket, addresses: &[IpAddr]) -> io::Result<Vec<Message>> {
    let wanted: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let mut states = socket.dump(&Message::new(GET, UNSPECIFIED))?;
    states.retain(|state| ends(state).any(|end| wanted.contains(&end)));
    Ok(states)
}

/// Which of these addresses is an end of any state.
pub(super) fn connected(socket: &mut Socket, addresses: &[IpAddr]) -> io::Result<BTreeSet<IpAddr>> {
    let states = states(socket, addresses)?;
    let ends: BTreeSet<IpAddr> = states.iter().flat_map(ends).collect();
    Ok(addresses.iter().copied().filter(|address| ends.contains(address)).collect())
}

/// The addresses of a state, as seen before and after translation.
fn ends(state: &Message) -> impl Iterator<Item = IpAddr> {
    [TUPLE_ORIGINAL, TUPLE_REPLY].into_iter().flat_map(|tuple| {
        let tuple = state.attributes.get_nested(tuple).unwrap_or_default();
        let ends = tuple.get_nested(TUPLE_IP).unwrap_or_default();
        ends.iter().filter_map(|(_, end)| address(end)).collect::<Vec<_>>()
    })
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// A request that ends exactly this state, not a later one with the same ends.
fn deletion(state: &Message) -> Message {
    Message::new(DELETE, state.family).with(|attributes| {
        for (id, flag) in [(TUPLE_ORIGINAL, NESTED), (ID, 0), (ZONE, 0)] {
            if let Some(value) = state.attributes.get(id) {
                attributes.bytes(id | flag, value);
            }
        }
    })
}
