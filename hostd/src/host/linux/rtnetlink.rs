//! Links, addresses and routes (rtnetlink(7)).
//!
//! A socket belongs to the network namespace of the thread that opened it. The inside of a clone's namespace is therefore
//! set up by a thread in that namespace: see [`super::netns`].

use kernel::netlink::{
    self, Attributes, EventSocket, Events, NLM_F_CREATE, NLM_F_EXCL, Protocol, Request, Socket,
};
use netlink_packet_core::NetlinkSerializable;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// `RTNLGRP_LINK` is group 1: links that are made, changed or removed.
const LINK_EVENTS: u32 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;

/// `struct ifinfomsg`: family, padding, type, index, flags, change.
const LINK_HEADER: usize = 16;
/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
const ADDRESS_HEADER: usize = 8;
/// `IFLA_*`
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
/// `IFLA_INFO_KIND`, inside of `IFLA_LINKINFO`
const IFLA_INFO_KIND: u16 = 1;
/// `IFA_*`
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR` are groups 5 and 9.
const ADDRESS_EVENTS: u32 = 1 << (5 - 1) | 1 << (9 - 1);

/// A subscription to addresses that are added, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct AddressEvents(EventSocket);

impl AddressEvents {
    pub(super) fn subscribe() -> io::Result<AddressEvents> {
        EventSocket::subscribe(Protocol::Route, ADDRESS_EVENTS).map(AddressEvents)
    }

    /// Wait for events and return the new addresses. `None`: events were lost. Nothing, if the time is over first.
    pub(super) fn wait(&mut self, patience: Duration) -> io::Result<Option<Vec<IpAddr>>> {
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut new = Vec::new();
        loop {
            match self.0.read()? {
                Events::Messages(messages) => {
                    new.extend(messages.iter().filter_map(address).map(|address| address.local));
                }
                Events::Lost => return Ok(None),
                Events::None => return Ok(Some(new)),
            }
        }
    }
}

/// A link as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// Whether it is one end of a veth pair.
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
    /// The namespace that this end is made in. `None`: the socket's own.
    pub(super) namespace: Option<BorrowedFd<'a>>,
}

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Rtnetlink(Socket);

impl Rtnetlink {
    pub(super) fn open() -> io::Result<Rtnetlink> {
        let socket = Socket::open(Protocol::Route)?;
        // Without this the kernel ignores the filter of a dump, such as one link's addresses.
        socket.check_strictly()?;
        Ok(Rtnetlink(socket))
    }

    /// All links.
    pub(super) fn links(&mut self) -> io::Result<Vec<Link>> {
        let mut wanted = LinkMessage::default();
        // RTEXT_FILTER_SKIP_STATS: counters are most of a link's message, and nobody here reads them.
        wanted
            .attributes
            .push(LinkAttribute::ExtMask(vec![netlink_packet_route::link::LinkExtentMask::SkipStats]));
        let replies = self.0.dump(&request(RouteNetlinkMessage::GetLink(wanted), 0))?;
        Ok(replies.iter().filter_map(link).collect())
    }

    /// The link of this name, if there is one.
    pub(super) fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut wanted = LinkMessage::default();
        wanted.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.0.get(&request(RouteNetlinkMessage::GetLink(wanted), 0)) {
            Ok(reply) => Ok(link(&reply)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The addresses of one link, or of all.
    pub(super) fn addresses(&mut self, of: Option<&Link>) -> io::Result<Vec<Address>> {
        let mut wanted = AddressMessage::default();
        wanted.header.index = of.map_or(0, |link| link.index);
        let replies = self.0.dump(&request(RouteNetlinkMessage::GetAddress(wanted), 0))?;
        Ok(replies.iter().filter_map(address).collect())
    }

    /// Make a veth pair, each end in its namespace, both down.
    pub(super) fn make_pair(&mut self, near: End<'_>, far: End<'_>) -> io::Result<()> {
        let mut peer = LinkMessage::default();
        peer.attributes = end(far);
        let mut pair = LinkMessage::default();
        pair.attributes = end(near);
        pair.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.make(RouteNetlinkMessage::NewLink(pair))
    }

    /// Write the owner's identity on the link.
    pub(super) fn set_alias(&mut self, index: u32, alias: &str) -> io::Result<()> {
        self.set_link(index, |message| message.attributes.push(LinkAttribute::IfAlias(alias.to_owned())))
    }

    pub(super) fn set_up(&mut self, index: u32, up: bool) -> io::Result<()> {
        self.set_link(index, |message| {
            message.header.change_mask = LinkFlags::Up;
            message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        })
    }

    /// Remove a link and with it the other end of its pair. An absent link is success.
    ///
    /// The kernel acknowledges only when nothing in it refers to the link any more (`rcu_barrier`), about thirty
    /// milliseconds after the link is gone for every process. So another thread waits for the acknowledgement, and this one
    /// returns as soon as the kernel reports the removal as an event.
    pub(super) fn remove(index: u32) -> io::Result<()> {
        let mut events = EventSocket::subscribe(Protocol::Route, LINK_EVENTS)?;
        // The thread closes the write end when it has the acknowledgement.
        let (acknowledged, waiting) = io::pipe()?;
        let mut socket = Rtnetlink::open()?;
        let remove = move || {
            let mut message = LinkMessage::default();
            message.header.index = index;
            let result = socket.0.change(&request(RouteNetlinkMessage::DelLink(message), 0));
            drop(waiting);
            result
        };
        let thread = std::thread::Builder::new().name("link-remove".into()).spawn(remove)?;
        loop {
            let [has_events, is_acknowledged] = kernel::pidfd::readable(&events, &acknowledged, None)?;
            if is_acknowledged {
                let result = thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")));
                return match result {
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
                    other => other,
                };
            }
            if has_events && reports_removal(&mut events, index)? {
                return Ok(());
            }
        }
    }

    /// Put a point-to-point address on a link. An address that is there already is success.
    ///
    /// The kernel adds the route to the peer itself. For IPv4 it does so again whenever the link comes up; for IPv6 see
    /// [`Rtnetlink::add_peer_route`].
    pub(super) fn add_address(&mut self, index: u32, local: IpAddr, peer: IpAddr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = host_prefix(local);
        message.header.family = family(local);
        message.attributes = vec![AddressAttribute::Local(local), AddressAttribute::Address(peer)];
        if local.is_ipv6() {
            // IFA_F_NODAD: nobody else is on this link, and duplicate address detection takes a second.
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        existing_is_success(self.make(RouteNetlinkMessage::NewAddress(message)))
    }

    /// The route to an IPv6 peer, once its link is up.
    ///
    /// The kernel adds this route together with the address, and drops it when the link goes down or when its carrier comes
    /// late: of an address that is kept, it restores only the route to the near end.
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
            // The metric that the kernel gives such a route, so that there is one route and not two.
            RouteAttribute::Priority(256),
        ];
        existing_is_success(self.make(RouteNetlinkMessage::NewRoute(message)))
    }

    /// The default route, by this gateway on this link.
    ///
    /// `RTNH_F_ONLINK` says that the gateway is on the link: the kernel has no route to an IPv6 peer yet.
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
        existing_is_success(self.make(RouteNetlinkMessage::NewRoute(message)))
    }

    fn set_link(&mut self, index: u32, change: impl FnOnce(&mut LinkMessage)) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        change(&mut message);
        self.0.change(&request(RouteNetlinkMessage::SetLink(message), 0))
    }

    /// Make an object that must not exist yet.
    fn make(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.0.change(&request(message, NLM_F_CREATE | NLM_F_EXCL))
    }
}

fn request(message: RouteNetlinkMessage, flags: u16) -> Request {
    let mut body = vec![0; message.buffer_len()];
    message.serialize(&mut body);
    Request { kind: message.message_type(), flags, body }
}

/// Whether one of the events is the removal of this link.
fn reports_removal(events: &mut EventSocket, index: u32) -> io::Result<bool> {
    let messages = match events.read()? {
        Events::Messages(messages) => messages,
        // The acknowledgement will tell.
        Events::Lost | Events::None => return Ok(false),
    };
    Ok(messages.iter().any(|message| {
        // A bridge reports with its own family that a link left it.
        let unspecified = message.body.first() == Some(&(libc::AF_UNSPEC as u8));
        message.kind == RTM_DELLINK && unspecified && number(&message.body, 4) == Some(index)
    }))
}

fn existing_is_success(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other,
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

/// The length of a prefix that holds one address.
fn host_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(body: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?))
}

/// A link of a dump. Only what is needed is decoded: a message holds some fifty attributes.
fn link(message: &netlink::Message) -> Option<Link> {
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let attributes = Attributes(message.body.get(LINK_HEADER..)?.to_vec());
    let flags = LinkFlags::from_bits_retain(number(&message.body, 8)?);
    let kind = attributes.get_nested(IFLA_LINKINFO).and_then(|info| info.get_text(IFLA_INFO_KIND));
    Some(Link {
        index: number(&message.body, 4)?,
        name: attributes.get_text(IFLA_IFNAME)?,
        veth: kind.as_deref() == Some("veth"),
        alias: attributes.get_text(IFLA_IFALIAS),
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
    })
}

fn address(message: &netlink::Message) -> Option<Address> {
    if message.kind != RTM_NEWADDR {
        return None;
    }
    let attributes = Attributes(message.body.get(ADDRESS_HEADER..)?.to_vec());
    let ip = |id| {
        let octets = attributes.get(id)?;
        let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
        v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
    };
    let (local, peer) = (ip(IFA_LOCAL), ip(IFA_ADDRESS));
    // Without a peer IPv6 has only IFA_ADDRESS.
    let (local, peer) = (local.or(peer)?, peer.or(local)?);
    Some(Address { link: number(&message.body, 4)?, local, peer })
}
