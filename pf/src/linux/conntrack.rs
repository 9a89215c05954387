//! Removes a clone's entries from connection tracking, in both directions and behind address translation.
//!
//! The rules check every packet, so a clone that is not a member is cut off without this. Its entries are removed so that the
//! next clone with the same address starts without any.

use super::netlink::{CONNTRACK, IPV4, Message, NESTED, Socket, UNSPECIFIED};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

const GET: u16 = CONNTRACK | 1;
const DELETE: u16 = CONNTRACK | 2;

/// `CTA_*`
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// `CTA_TUPLE_IP`
const TUPLE_IP: u16 = 1;
/// `CTA_IP_V4_SRC` and `CTA_IP_V4_DST`, which are also the bits of a filter.
const SOURCE: u16 = 1;
const DESTINATION: u16 = 2;

/// How often [`end_all`] removes entries before it gives up.
const END_TRIES: usize = 5;

/// The positions of an address in an entry.
const ENDS: [(u16, u16); 4] = [
    (TUPLE_ORIGINAL, SOURCE),
    (TUPLE_ORIGINAL, DESTINATION),
    (TUPLE_REPLY, SOURCE),
    (TUPLE_REPLY, DESTINATION),
];

/// Removes all entries with one of these addresses at any position, before or after translation.
///
/// Once is enough for addresses that are not members any more: the rules prevent new entries.
pub(super) fn end(socket: &mut Socket, addresses: &[IpAddr]) -> io::Result<()> {
    for address in addresses {
        // The kernel's filter for IPv6 addresses is inverted (Linux 6.18): it would remove everybody else's entries.
        let IpAddr::V4(address) = address else { return end_one_by_one(socket, addresses) };
        for (tuple, end) in ENDS {
            match socket.request(&sweep(*address, tuple, end)) {
                Ok(()) => {}
                Err(error) if takes_no_filter(&error) => return end_one_by_one(socket, addresses),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Linux before 6.12 has no filter for deletions and answers with one of two errors.
fn takes_no_filter(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// The same without the kernel's filter. It reads the whole table, which takes ten times as long.
fn end_one_by_one(socket: &mut Socket, addresses: &[IpAddr]) -> io::Result<()> {
    for state in states(socket, addresses)? {
        match socket.request(&deletion(&state)) {
            Ok(()) => {}
            // It has expired.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes all entries of these addresses and checks that none is left.
pub(super) fn end_all(socket: &mut Socket, addresses: &[IpAddr]) -> io::Result<()> {
    for _ in 0..END_TRIES {
        end_one_by_one(socket, addresses)?;
        if states(socket, addresses)?.is_empty() {
            return Ok(());
        }
    }
    Err(io::Error::other("new connections appear as fast as they are ended: their links are not down"))
}

/// The entries with one of these addresses at any position, before or after translation.
///
/// All entries are read and filtered here. The kernel's own filter would read the whole table once for each position and
/// family.
pub(super) fn states(socket: &mut Socket, addresses: &[IpAddr]) -> io::Result<Vec<Message>> {
    let wanted: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let mut states = socket.dump(&Message::new(GET, UNSPECIFIED))?;
    states.retain(|state| ends(state).any(|end| wanted.contains(&end)));
    Ok(states)
}

/// Which of these addresses have an entry.
pub(super) fn connected(socket: &mut Socket, addresses: &[IpAddr]) -> io::Result<BTreeSet<IpAddr>> {
    let states = states(socket, addresses)?;
    let ends: BTreeSet<IpAddr> = states.iter().flat_map(ends).collect();
    Ok(addresses.iter().copied().filter(|address| ends.contains(address)).collect())
}

/// The addresses of an entry, before and after translation.
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

/// A request that removes exactly this entry and no later one with the same addresses.
fn deletion(state: &Message) -> Message {
    Message::new(DELETE, state.family).with(|attributes| {
        for (id, flag) in [(TUPLE_ORIGINAL, NESTED), (ID, 0), (ZONE, 0)] {
            if let Some(value) = state.attributes.get(id) {
                attributes.bytes(id | flag, value);
            }
        }
    })
}

/// A request that removes all entries with the address at this position.
fn sweep(address: Ipv4Addr, tuple: u16, end: u16) -> Message {
    Message::new(DELETE, IPV4).with(|attributes| {
        attributes.nested(tuple, |tuple| tuple.nested(TUPLE_IP, |ends| ends.bytes(end, &address.octets())));
        // The filter names what it compares of each tuple by the same numbers as the tuples.
        attributes.nested(FILTER, |filter| filter.bytes(tuple, &u32::from(end).to_ne_bytes()));
    })
}

#[cfg(test)]
mod tests {
    use super::super::netlink::{Attributes, CREATE};
    use super::*;
    use nix::sched::{CloneFlags, unshare};

    const NEW: u16 = CONNTRACK;
    const IPV6: u8 = 10;
    const TIMEOUT: u16 = 7;
    const TUPLE_PROTOCOL: u16 = 2;
    const UDP: u8 = 17;
    const CLONE: &str = "10.87.64.16";
    const CLONE6: &str = "fd00::16";
    const OF_THE_CLONE: [[&str; 4]; 6] = [
        [CLONE, "1.1.1.1", "1.1.1.1", CLONE],
        ["2.2.2.2", CLONE, CLONE, "2.2.2.2"],
        // Behind translation, each way.
        [CLONE, "3.3.3.3", "3.3.3.3", "9.9.9.9"],
        ["4.4.4.4", "9.9.9.9", CLONE, "4.4.4.4"],
        ["5.5.5.5", CLONE, "9.9.9.9", "5.5.5.5"],
        ["6.6.6.6", "9.9.9.9", "9.9.9.9", CLONE],
    ];
    const OF_THE_CLONE_BY_IPV6: [[&str; 4]; 2] =
        [[CLONE6, "fd01::1", "fd01::1", CLONE6], ["fd01::2", CLONE6, CLONE6, "fd01::2"]];
    const OF_OTHERS: [[&str; 4]; 4] = [
        ["10.87.64.17", "1.1.1.1", "1.1.1.1", "10.87.64.17"],
        ["2.2.2.2", "10.87.64.17", "10.87.64.17", "2.2.2.2"],
        ["fd00::17", "fd01::1", "fd01::1", "fd00::17"],
        ["fd01::2", "fd00::17", "fd00::17", "fd01::2"],
    ];

    /// A state between two addresses, answered from a third to a fourth.
    fn state(ends: [&str; 4]) -> Message {
        let [from, to, answer_from, answer_to] = ends.map(|end| end.parse::<IpAddr>().expect("an address"));
        let tuple = |of: &mut Attributes, source: IpAddr, destination: IpAddr| {
            of.nested(TUPLE_IP, |ip| {
                for (end, address) in [(SOURCE, source), (DESTINATION, destination)] {
                    match address {
                        IpAddr::V4(address) => ip.bytes(end, &address.octets()),
                        IpAddr::V6(address) => ip.bytes(end + DESTINATION, &address.octets()),
                    }
                }
            });
            of.nested(TUPLE_PROTOCOL, |protocol| {
                protocol.bytes(1, &[UDP]);
                protocol.bytes(2, &1000u16.to_be_bytes());
                protocol.bytes(3, &2000u16.to_be_bytes());
            });
        };
        let message = Message::new(NEW, if from.is_ipv4() { IPV4 } else { IPV6 }).with(|attributes| {
            attributes.nested(TUPLE_ORIGINAL, |original| tuple(original, from, to));
            attributes.nested(TUPLE_REPLY, |reply| tuple(reply, answer_from, answer_to));
            attributes.bytes(TIMEOUT, &600u32.to_be_bytes());
        });
        Message { flags: CREATE, ..message }
    }

    /// In a network of its own, so that there are no other states: make these, forget the clone's.
    fn only_the_clones_are_ended(
        addresses: &'static [&str],
        of_the_clone: Vec<[&'static str; 4]>,
        end: fn(&mut Socket, &[IpAddr]) -> io::Result<()>,
    ) {
        let work = move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root, for a network of its own");
            let mut socket = Socket::open().expect("a socket");
            for ends in of_the_clone.iter().chain(&OF_OTHERS) {
                socket.request(&state(*ends)).unwrap_or_else(|error| panic!("{ends:?}: {error}"));
            }
            let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
            assert_eq!(states(&mut socket, &addresses).expect("readable").len(), of_the_clone.len());
            end(&mut socket, &addresses).expect("ended");
            assert_eq!(states(&mut socket, &addresses).expect("readable").len(), 0);
            let left = socket.dump(&Message::new(GET, UNSPECIFIED)).expect("readable");
            assert_eq!(left.len(), OF_OTHERS.len(), "the neighbours' stay");
        };
        std::thread::spawn(work).join().expect("the other thread told what failed");
    }

    #[test]
    fn states_are_ended_by_the_kernels_filter() {
        only_the_clones_are_ended(&[CLONE], OF_THE_CLONE.to_vec(), end);
    }

    #[test]
    fn states_are_ended_one_by_one() {
        only_the_clones_are_ended(&[CLONE], OF_THE_CLONE.to_vec(), end_one_by_one);
    }

    #[test]
    fn states_of_both_families_are_ended() {
        let both = [&OF_THE_CLONE[..], &OF_THE_CLONE_BY_IPV6].concat();
        only_the_clones_are_ended(&[CLONE, CLONE6], both.clone(), end);
        only_the_clones_are_ended(&[CLONE6, CLONE], both.clone(), end);
        only_the_clones_are_ended(&[CLONE, CLONE6], both, end_all);
    }
}
