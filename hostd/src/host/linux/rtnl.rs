//! Links, addresses and routes over netlink: a small synchronous client.
//!
//! The kernel answers on the same call, so there is nothing to wait for and no reason for a task per socket. A socket
//! belongs for ever to the network namespace of the thread that opened it, which is how the inside of a clone's
//! namespace is set up: see [`super::netns`].

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `RTNLGRP_LINK`: links that come, go and change.
const LINK_NEWS: u32 = 1;

/// A link as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// The kind of virtual link, such as `veth`; none for real ones.
    pub(super) veth: bool,
    pub(super) alias: Option<String>,
    pub(super) up: bool,
    /// Both ends of the pair are up.
    pub(super) carrier: bool,
}

/// An address on a link, with the address at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) link: u32,
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
}

/// One end of a new pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) name: &'a str,
    pub(super) mac: [u8; 6],
    /// The namespace it goes to; ours if not given.
    pub(super) namespace: Option<BorrowedFd<'a>>,
}

/// A netlink socket in the namespace of the thread that opened it.
pub(super) struct Rtnl {
    socket: Socket,
    sequence: u32,
}

impl std::fmt::Debug for Rtnl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rtnl").finish_non_exhaustive()
    }
}

impl Rtnl {
    pub(super) fn open() -> io::Result<Rtnl> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Else the kernel tells of everything, whatever it is asked.
        socket.set_netlink_get_strict_chk(true)?;
        Ok(Rtnl { socket, sequence: 0 })
    }

    pub(super) fn links(&mut self) -> io::Result<Vec<Link>> {
        let answers = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(answers.into_iter().filter_map(|answer| link(&answer)).collect())
    }

    /// The link of this name, if there is one.
    pub(super) fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut wanted = LinkMessage::default();
        wanted.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.request(RouteNetlinkMessage::GetLink(wanted), 0) {
            Ok(answers) => Ok(answers.iter().find_map(link)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The addresses of one link, or of all.
    pub(super) fn addresses(&mut self, of: Option<&Link>) -> io::Result<Vec<Address>> {
        let mut wanted = AddressMessage::default();
        wanted.header.index = of.map_or(0, |link| link.index);
        let answers = self.dump(RouteNetlinkMessage::GetAddress(wanted))?;
        Ok(answers.iter().filter_map(address).collect())
    }

    /// Make a pair of links, each end in its namespace, both down.
    pub(super) fn make_pair(&mut self, near: End<'_>, far: End<'_>) -> io::Result<()> {
        let mut peer = LinkMessage::default();
        peer.attributes = end(far);
        let mut pair = LinkMessage::default();
        pair.attributes = end(near);
        pair.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.request(RouteNetlinkMessage::NewLink(pair), NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK).map(drop)
    }

    /// Write whose it is on the link.
    pub(super) fn set_alias(&mut self, index: u32, alias: &str) -> io::Result<()> {
        self.set_link(index, |message| message.attributes.push(LinkAttribute::IfAlias(alias.to_owned())))
    }

    pub(super) fn set_up(&mut self, index: u32, up: bool) -> io::Result<()> {
        self.set_link(index, |message| {
            message.header.change_mask = LinkFlags::Up;
            message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        })
    }

    /// Remove a link and with it the other end of its pair; absent is success.
    ///
    /// The kernel answers only when nothing in it refers to the link any more, some thirty milliseconds after it is gone
    /// for everybody else. So the answer is another thread's to wait for, and this one waits for the news of the end.
    pub(super) fn remove(index: u32) -> io::Result<()> {
        let mut news = Socket::new(NETLINK_ROUTE)?;
        news.bind_auto()?;
        news.add_membership(LINK_NEWS)?;
        // Its other end is closed when there is an answer.
        let (answered, unanswered) = io::pipe()?;
        let mut asking = Rtnl::open()?;
        let ask = move || {
            let mut message = LinkMessage::default();
            message.header.index = index;
            let answer = asking.request(RouteNetlinkMessage::DelLink(message), NLM_F_ACK);
            drop(unanswered);
            answer
        };
        let asked = std::thread::Builder::new().name("link-remove".into()).spawn(ask)?;
        loop {
            let mut watched = [news.as_fd(), answered.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut watched, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            let [heard, answered] = watched.map(|one| one.any().unwrap_or(false));
            if answered {
                let answer = asked.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
                return match answer {
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
                    other => other.map(drop),
                };
            }
            if heard && tells_the_end(&news, index)? {
                return Ok(());
            }
        }
    }

    /// Put a point-to-point address on a link; one that is there already is success.
    ///
    /// The kernel adds the route to the peer by itself, and for IPv4 again whenever the link comes up; for IPv6 see
    /// [`Rtnl::add_peer_route`].
    pub(super) fn add_address(&mut self, index: u32, local: IpAddr, peer: IpAddr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = whole(local);
        message.header.family = family(local);
        message.attributes = vec![AddressAttribute::Local(local), AddressAttribute::Address(peer)];
        if local.is_ipv6() {
            // Nobody else is on this link, so there is no duplicate to look for, and no second to wait.
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        exists_is_fine(
            self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK),
        )
    }

    /// The way to an IPv6 peer, once its link is up.
    ///
    /// The kernel makes it together with the address, and forgets it when the link goes down or its carrier comes late:
    /// of an address that is kept it restores only the way to the near end.
    pub(super) fn add_peer_route(&mut self, index: u32, peer: Ipv6Addr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        message.header.destination_prefix_length = 128;
        message.header.table = libc::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet6(peer)),
            RouteAttribute::Oif(index),
            // The kernel's own metric of such a route: there is one of them, whoever made it.
            RouteAttribute::Priority(256),
        ];
        exists_is_fine(
            self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK),
        )
    }

    /// Everything that has no better way goes to this gateway on this link.
    ///
    /// The kernel is told that the gateway is there: of IPv6 peers it learns only a little later by itself.
    pub(super) fn add_default_route(&mut self, index: u32, gateway: IpAddr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(gateway);
        message.header.table = libc::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.header.flags = RouteFlags::Onlink;
        let via = match gateway {
            IpAddr::V4(ip) => RouteAddress::Inet(ip),
            IpAddr::V6(ip) => RouteAddress::Inet6(ip),
        };
        message.attributes = vec![RouteAttribute::Gateway(via), RouteAttribute::Oif(index)];
        exists_is_fine(
            self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK),
        )
    }

    fn set_link(&mut self, index: u32, change: impl FnOnce(&mut LinkMessage)) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        change(&mut message);
        self.request(RouteNetlinkMessage::SetLink(message), NLM_F_ACK).map(drop)
    }

    fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.request(message, NLM_F_DUMP)
    }

    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let wants_ack = flags & NLM_F_ACK != 0;
        let dumps = flags & NLM_F_DUMP == NLM_F_DUMP;
        let mut answers = Vec::new();
        loop {
            for packet in receive(&self.socket)? {
                // The rest of an answer to an earlier request that ended with an error.
                let stale = packet.header.sequence_number != self.sequence;
                match packet.payload {
                    _ if stale => {}
                    NetlinkPayload::Error(error) => match error.code {
                        Some(code) => return Err(io::Error::from_raw_os_error(code.get().abs())),
                        None => return Ok(answers),
                    },
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Overrun(_) => return Err(io::Error::other("netlink lost messages")),
                    NetlinkPayload::InnerMessage(message) => {
                        answers.push(message);
                        if !wants_ack && !dumps {
                            return Ok(answers);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// What came in one piece.
fn receive(socket: &Socket) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
    let (bytes, _) = socket.recv_from_full()?;
    let mut rest = bytes.as_slice();
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let packet = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        // Messages are padded to four bytes, the last one need not be.
        let length = (packet.header.length as usize).next_multiple_of(4).max(16);
        rest = rest.get(length..).unwrap_or_default();
        packets.push(packet);
    }
    Ok(packets)
}

/// Whether the news are that this link is gone.
fn tells_the_end(news: &Socket, index: u32) -> io::Result<bool> {
    let packets = match receive(news) {
        // Some were lost. Then the answer tells.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(false),
        other => other?,
    };
    Ok(packets.iter().any(|packet| {
        // A bridge tells in a family of its own that a link left it.
        matches!(&packet.payload, NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link))
            if link.header.index == index && link.header.interface_family == AddressFamily::Unspec)
    }))
}

fn exists_is_fine<T>(result: io::Result<T>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other.map(drop),
    }
}

fn end(end: End<'_>) -> Vec<LinkAttribute> {
    let mut attributes =
        vec![LinkAttribute::IfName(end.name.to_owned()), LinkAttribute::Address(end.mac.to_vec())];
    attributes.extend(end.namespace.map(|namespace| LinkAttribute::NetNsFd(namespace.as_raw_fd())));
    attributes
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn link(message: &RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = message else { return None };
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        veth: false,
        alias: None,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::LinkInfo(infos) => link.veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
            _ => {}
        }
    }
    Some(link)
}

fn address(message: &RouteNetlinkMessage) -> Option<Address> {
    let RouteNetlinkMessage::NewAddress(message) = message else { return None };
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => peer = Some(*ip),
            _ => {}
        }
    }
    // Without a peer IPv6 has only one of the two.
    let (local, peer) = (local.or(peer)?, peer.or(local)?);
    Some(Address { link: message.header.index, local, peer })
}
